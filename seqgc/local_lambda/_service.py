"""The service's own process: three kinds of HTTP server, and a parent of environments."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from seqgc._bounded import allow_files
from seqgc.local_lambda._apis import FunctionUrl, InvokeApi
from seqgc.local_lambda._function_settings import MAX_REQUEST_BYTES, ServiceSettings
from seqgc.local_lambda._http_server import HttpServer
from seqgc.local_lambda._parent import Parent
from seqgc.local_lambda._versions import Versions

__all__ = ["main"]

_STRANGERS = 256  # callers that connect at once, beyond those that there is room for
_IDLE_S = 900.0  # clients keep connections for their next round


def main() -> None:
    """Serve until the connection whose descriptor is the only argument ends."""
    control: Connection = Connection(int(sys.argv[1]))
    try:
        settings: ServiceSettings = control.recv()
    except (OSError, EOFError):  # whoever started this has been stopped before it had said more
        return
    sys.path[:] = settings.search
    # Strangers shall not use up what is needed.
    allow_files(2 * settings.descriptors + 2 * _STRANGERS)
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        control.close()
        ours.close()
        Parent(theirs, settings).run()
    theirs.close()
    try:
        asyncio.run(_serve(control, ours, settings))
    finally:
        with suppress(OSError):  # it has gone already
            ours.shutdown(socket.SHUT_RDWR)  # ends the parent, and all environments before it
        os.waitpid(pid, 0)
        control.close()


async def _serve(control: Connection, channel: socket.socket, settings: ServiceSettings) -> None:
    """Serve until the master's goodbye, or the parent's end."""
    over = asyncio.Event()
    versions = Versions(settings, channel, on_loss=over.set)
    invoke_api, function_url = InvokeApi(versions), FunctionUrl(versions)
    questions: dict[str, Callable[..., object]]
    questions = {"log": versions.log, "statistics": versions.statistics}
    questions["publish"] = versions.publish
    strangers = 2 * settings.concurrency + _STRANGERS
    api, url = (
        HttpServer(
            each.respond,
            refusal=each.refusal,
            max_body_bytes=MAX_REQUEST_BYTES,
            strangers=strangers,
            idle_s=_IDLE_S,
        )
        for each in (invoke_api, function_url)
    )

    def converse() -> None:
        try:
            question, arguments = control.recv()
            control.send(questions[question](*arguments))
        except (OSError, EOFError):
            loop.remove_reader(control.fileno())
            over.set()

    loop = asyncio.get_running_loop()
    try:
        ports = await api.start(), await url.start()
        with suppress(OSError):  # or nobody is there any more
            control.send(ports)
            loop.add_reader(control.fileno(), converse)
            await over.wait()
    finally:
        for closing in (api, url, invoke_api, versions):
            closing.close()


if __name__ == "__main__":
    main()

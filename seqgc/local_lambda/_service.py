"""The service's own process: three kinds of HTTP server, and a parent of environments."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from seqgc.local_lambda._apis import InvokeApi, answer_url
from seqgc.local_lambda._environments import Environments
from seqgc.local_lambda._function import Function
from seqgc.local_lambda._function_settings import MAX_REQUEST_BYTES, ServiceSettings
from seqgc.local_lambda._http_server import HttpServer
from seqgc.local_lambda._parent import Parent

__all__ = ["main"]


def main() -> None:
    """Serve until the connection whose descriptor is the only argument ends."""
    control: Connection = Connection(int(sys.argv[1]))
    settings: ServiceSettings = control.recv()
    sys.path[:] = settings.search
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < settings.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings.descriptors, hard))
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            control.close()
            ours.close()
            Parent(theirs, settings).run()
            code = 0
        finally:
            os._exit(code)
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
    environments = Environments(channel, on_loss=over.set)
    function = Function(settings, environments=environments)
    invoke_api = InvokeApi(function)
    api = HttpServer(respond=invoke_api.respond, max_body_bytes=MAX_REQUEST_BYTES)
    url = HttpServer(respond=partial(answer_url, function), max_body_bytes=MAX_REQUEST_BYTES)

    def converse() -> None:
        try:
            question, request_id = control.recv()
            answer = function.log(request_id) if question == "log" else function.statistics()
            control.send(answer)
        except (OSError, EOFError):
            loop.remove_reader(control.fileno())
            over.set()

    loop = asyncio.get_running_loop()
    try:
        control.send((await api.start(), await url.start()))
        loop.add_reader(control.fileno(), converse)
        await over.wait()
    finally:
        for closing in (api, url, invoke_api, environments):
            closing.close()


if __name__ == "__main__":
    main()

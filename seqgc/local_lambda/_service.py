"""The service's own process: three kinds of HTTP server, and a parent of environments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import sys
from typing import Any

from seqgc.local_lambda._environments import Environments
from seqgc.local_lambda._function import Function
from seqgc.local_lambda._function_settings import MAX_REQUEST_BYTES, ServiceSettings
from seqgc.local_lambda._function_url import FunctionUrl
from seqgc.local_lambda._http_server import HttpServer
from seqgc.local_lambda._invoke_api import InvokeApi
from seqgc.local_lambda._parent import Parent

__all__ = ["main"]

_COUNTS = ("requests", "throttled", "failed", "timed_out")


def main() -> None:
    """Serve until the socket whose descriptor is the only argument is closed at its other end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with control.makefile("r") as lines:
        settings = ServiceSettings.from_json(lines.readline())
    sys.path[:] = list(settings.search)
    _raise_descriptor_limit(settings.descriptors)
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        _be_parent(control, ours, theirs, settings)
    theirs.close()
    try:
        asyncio.run(_serve(control, ours, settings))
    finally:
        ours.close()  # ends the parent, and all environments before it
        os.waitpid(pid, 0)
        control.close()


def _be_parent(
    control: socket.socket, ours: socket.socket, theirs: socket.socket, settings: ServiceSettings
) -> None:
    code = 1
    try:
        control.close()
        ours.close()
        Parent(theirs, settings).run()
        code = 0
    finally:
        os._exit(code)


async def _serve(control: socket.socket, channel: socket.socket, settings: ServiceSettings) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=control)
    lost = asyncio.Event()
    environments = Environments(settings.concurrency, channel=channel, on_loss=lost.set)
    function = Function(settings, environments=environments)
    invoke_api = InvokeApi(function)
    api = HttpServer(invoke_api.respond, max_body_bytes=MAX_REQUEST_BYTES)
    url = HttpServer(FunctionUrl(function).respond, max_body_bytes=MAX_REQUEST_BYTES)
    try:
        for server in (api, url):
            await server.start()
        _write(writer, {"api": api.port, "url": url.port})
        await _until(asyncio.create_task(_converse(reader, writer, function, environments)), lost)
    finally:
        for server in (api, url):
            server.close()
        invoke_api.close()
        environments.close()
        writer.close()


async def _until(task: asyncio.Task[None], lost: asyncio.Event) -> None:
    """Wait for the master's goodbye or the parent's end."""
    waiting = asyncio.create_task(lost.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    for each in (task, waiting):
        each.cancel()


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    function: Function,
    environments: Environments,
) -> None:
    """Answer the master, until it is gone."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            question = json.loads(line)
            if question["ask"] == "log":
                _write(writer, {"log": function.logs.text(question["request_id"])})
            else:
                _write(writer, _statistics(function, environments))


def _statistics(function: Function, environments: Environments) -> dict[str, Any]:
    counts = {name: function.counts[name] for name in _COUNTS}
    return counts | {
        "cold_starts": environments.cold_starts,
        "environments": len(environments),
        "faults": dict(function.faults),
    }


def _write(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _raise_descriptor_limit(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


if __name__ == "__main__":
    main()

"""TLS before a server that has none, in a process of its own, so that its cost is not a test's.

``python -m tests.backends.lambda_.tls_front FOLDER PORT...`` makes a certificate (``bundle.pem`` is
the one to trust), listens on a free port for each, prints these, and ends when its stdin is closed.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.backends.lambda_.peer import own_certificate


@contextmanager
def tls_before(urls: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """Return https addresses of what is behind ``urls``; to be trusted: ``bundle.pem``."""
    ports = [str(urlsplit(url).port) for url in urls]
    command = [sys.executable, "-m", __name__, str(folder), *ports]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        fronts = process.stdout.readline().split()
        yield [f"https://127.0.0.1:{int(port)}" for port in fronts]
        process.stdin.close()


async def _serve(context: ssl.SSLContext, ports: Sequence[int]) -> None:
    fronts = [await _front(context, port) for port in ports]
    print(*fronts, flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def _front(context: ssl.SSLContext, port: int) -> int:
    async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(_copy(reader, back_writer), _copy(back_reader, writer))

    server = await asyncio.start_server(
        front, "127.0.0.1", 0, ssl=context, backlog=1024, limit=1 << 20
    )
    return int(server.sockets[0].getsockname()[1])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(own_certificate(Path(sys.argv[1]))[0], [int(p) for p in sys.argv[2:]]))

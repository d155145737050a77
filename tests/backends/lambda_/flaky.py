"""A way to a service that can be cut: while it is, connections are reset, or answered with 503."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from seqgc.local_lambda import LocalLambda

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_LEAST = 8
_RESET = struct.pack("ii", 1, 0)  # what SO_LINGER takes: on, after no time


class Flaky:
    """Carries connections to a service, or to its function's URL; a context manager."""

    def __init__(self, service: LocalLambda, *, to_url: bool = False) -> None:
        self._port = urlsplit(service.function_url if to_url else service.endpoint_url).port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._down_until, self._busy, self._due = 0.0, False, 0
        self.function_name, self.keys = service.function_name, service.keys
        self.endpoint_url = self._here(service.endpoint_url)
        self.function_url = self._here(service.function_url)

    def cut(self, seconds: float, *, busy: bool = False) -> None:
        """Reset every connection, and for so long all new ones; or answer these that it is busy.

        And so many new ones at least, however few come in that time.
        """
        self._down_until, self._busy = time.monotonic() + seconds, busy
        self._due = _LEAST if seconds else 0
        for each in tuple(self._open):
            self._reset(each)

    def __enter__(self) -> Flaky:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` would go on
        self._listener.close()
        self.cut(0.0)

    def _here(self, url: str) -> str:
        host, port = self._listener.getsockname()
        return urlunsplit(urlsplit(url)._replace(netloc=f"{host}:{port}"))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._open.add(client)
                if time.monotonic() < self._down_until or self._due > 0:
                    self._due -= 1
                    if self._busy:
                        threading.Thread(target=self._put_off, args=(client,), daemon=True).start()
                    else:
                        self._reset(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open.add(server)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _put_off(self, client: socket.socket) -> None:
        """Answer a request that it is a bad time, and read what is left of it."""
        with suppress(OSError), client:
            client.recv(1 << 16)
            client.sendall(_BUSY)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
        self._open.discard(client)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for each in (source, sink):
            self._reset(each)

    def _reset(self, end: socket.socket) -> None:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.shutdown(socket.SHUT_RDWR)  # wakes who reads from it
        end.close()
        self._open.discard(end)

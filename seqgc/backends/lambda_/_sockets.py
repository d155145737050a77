"""Sockets of blocking HTTP libraries, known so that a thread that waits on one can be freed."""

from __future__ import annotations

import socket
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from urllib3.connectionpool import HTTPConnectionPool

__all__ = ["Sockets"]


class Sockets:
    """The open connections of urllib3 pools (requests and botocore use it); thread-safe.

    No HTTP library stops a read that another thread waits in, and an invocation may take fifteen
    minutes. Shutting the socket down does: the read ends as if the peer had hung up.
    """

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()

    def watched(self, pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
        """Return a kind of ``pool`` whose connections are known here once they are open."""
        connection = pool.ConnectionCls

        def connect(self_: object) -> None:
            connection.connect(self_)  # type: ignore[arg-type]
            self._add(getattr(self_, "sock", None))

        watched = type(f"Watched{connection.__name__}", (connection,), {"connect": connect})
        made = type(f"Watched{pool.__name__}", (pool,), {"ConnectionCls": watched})
        return cast("type[HTTPConnectionPool]", made)

    def abort(self) -> None:
        """End what is being read or written on every connection, now."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with suppress(OSError):  # closed meanwhile, or by the other side
                # Not TLS's own, which would wait for the thread that reads.
                socket.socket.shutdown(each, socket.SHUT_RDWR)

    def _add(self, opened: object) -> None:
        if isinstance(opened, socket.socket):
            with self._lock:
                self._sockets.add(opened)

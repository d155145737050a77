"""What an environment and the service say about a request, as CloudWatch would show it."""

from __future__ import annotations

import asyncio
import base64
import math
import os
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime

__all__ = ["LogBook", "LogPipe", "now", "report", "tail"]

_TAIL_BYTES = 4096
_KEPT_BYTES = 1 << 20  # of one request's log, and of the log book
_PIPE_BYTES = 1 << 16


class LogPipe:
    """The reading end of an environment's stdout and stderr; reads as it is written to.

    ``writing`` is the other end, for the environment; whoever sends it there closes it here.
    """

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._text = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reading, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._reading, _PIPE_BYTES):
                self._text += data
                del self._text[:-_KEPT_BYTES]
            self._loop.remove_reader(self._reading)  # the other end is closed

    def take(self) -> bytes:
        """Return what has been written and not yet taken, with ordinary line ends.

        The runtime ends the lines of a traceback with carriage returns, which CloudWatch shows as
        lines and a terminal does not.
        """
        self._read()
        text = bytes(self._text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._text.clear()
        return text

    def close(self) -> None:
        """Release the reading end."""
        self._loop.remove_reader(self._reading)
        os.close(self._reading)


class LogBook:
    """The logs of the latest requests, up to 1 MiB."""

    def __init__(self) -> None:
        self._entries: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    def add(self, request_id: str, text: bytes) -> None:
        """Keep a request's log."""
        self._entries.append((request_id, text))
        self._bytes += len(text)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._entries.popleft()[1])

    def text(self, request_id: str | None) -> str:
        """Return one request's log, or all there are."""
        wanted = (text for id_, text in self._entries if request_id in (None, id_))
        return b"".join(wanted).decode("utf-8", "replace")


def now() -> str:
    """Return the time as logs have it, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def report(
    request_id: str, *, duration_s: float, init_s: float | None, memory_mb: int, used_mb: int
) -> str:
    """Return the REPORT line; a cold start's initialization is billed too.

    Examples
    --------
    >>> print(report("id", duration_s=0.0123, init_s=None, memory_mb=128, used_mb=40).expandtabs(2))
    REPORT RequestId: id  Duration: 12.30 ms  Billed Duration: 13 ms  Memory Size: 128 MB ...
    """
    parts = [
        f"REPORT RequestId: {request_id}",
        f"Duration: {1e3 * duration_s:.2f} ms",
        f"Billed Duration: {math.ceil(1e3 * (duration_s + (init_s or 0.0)))} ms",
        f"Memory Size: {memory_mb} MB",
        f"Max Memory Used: {used_mb} MB",
    ]
    if init_s is not None:
        parts.append(f"Init Duration: {1e3 * init_s:.2f} ms")
    return "\t".join(parts) + "\t\n"


def tail(text: bytes) -> str:
    """Return the last 4 KB in base64, as in the header X-Amz-Log-Result."""
    return base64.b64encode(text[-_TAIL_BYTES:]).decode("ascii")

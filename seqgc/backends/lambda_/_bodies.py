"""The bodies of HTTP/1.1 responses: their lengths, their chunks, and the memory they are in."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

__all__ = ["BLANK", "MAX_HEAD_BYTES", "Chunks", "HttpError", "Memory", "announced_bytes"]

BLANK = b"\r\n\r\n"
MAX_HEAD_BYTES = 1 << 16  # also of what else is no body: a chunk's own line, and trailers
_SCRATCH_BYTES = _WORTH_BYTES = 1 << 16
_KEPT_BYTES = 1 << 27
_TRIES = 4  # lengths that are looked through
_LINE_END = b"\r\n"
_DECIMAL, _HEXADECIMAL = re.compile("[0-9]{1,19}"), re.compile("[0-9A-Fa-f]{1,16}")


class HttpError(ConnectionError):
    """The other side hung up, or spoke no HTTP."""


def announced_bytes(told: str) -> int:
    """Return a body's announced length.

    Raises
    ------
    HttpError
        If it is none.

    Examples
    --------
    >>> announced_bytes("400000")
    400000
    """
    return _length(told, _DECIMAL, 10)


class Memory:
    """Memory that is used again, so that the system need not map and clear pages for each answer.

    Answers of one round are of one length, or few; what is kept are the latest ones'. ``scratch``
    is for what is read before a length is known: whoever fills it empties it before another reads.
    """

    def __init__(self) -> None:
        self.scratch: Final = memoryview(bytearray(_SCRATCH_BYTES))
        self._free: deque[bytearray] = deque()
        self._bytes = 0

    def take(self, length: int) -> bytearray:
        """Return a body of this length, which holds anything."""
        for _ in range(min(len(self._free), _TRIES)):
            body = self._free.pop()
            if len(body) == length:
                self._bytes -= length
                return body
            self._free.appendleft(body)
        return bytearray(length)

    def give(self, body: bytearray) -> None:
        """Take back what `take` returned."""
        if len(body) < _WORTH_BYTES:
            return
        self._free.append(body)
        self._bytes += len(body)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._free.popleft())


class Chunks:
    r"""A body of at most ``max_bytes`` that comes in chunks (RFC 9112, 7.1); each is read once.

    Examples
    --------
    >>> chunks = Chunks(max_bytes=100)
    >>> chunks.take(b"3;a=b\r\nabc\r\n1\r\n")  # None: there is more to come
    >>> chunks.take(b"d\r\n0\r\n\r\n")
    bytearray(b'abcd')
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._came = bytearray()  # of the chunk that is not complete
        self._body = bytearray()
        self._last = False  # chunk: what follows are trailers, and a blank line

    def take(self, data: bytes | bytearray) -> bytearray | None:
        """Return the body if this completes it.

        Raises
        ------
        HttpError
            If a chunk has no length or no end, or the body exceeds its limit.
        """
        self._came += data
        at = 0
        while not self._last and (after := self._after_chunk(at)) is not None:
            at = after
        del self._came[:at]
        if not self._last:
            return None
        if self._came.find(BLANK) >= 0:
            return self._body
        if len(self._came) > MAX_HEAD_BYTES:
            raise HttpError("its trailers do not end")
        return None

    def _after_chunk(self, at: int) -> int | None:
        """Add the chunk that begins here to the body; return its end, None if that has not come."""
        end = self._came.find(_LINE_END, at)
        if (end if end >= 0 else len(self._came)) - at > MAX_HEAD_BYTES:
            raise HttpError("a chunk's length does not end")
        if end < 0:
            return None
        told = self._came[at:end].partition(b";")[0].decode("latin-1").rstrip(" \t")
        size = _length(told, _HEXADECIMAL, 16)
        if len(self._body) + size > self._max_bytes:
            raise HttpError(f"a body of more than {self._max_bytes} bytes")
        if size == 0:
            self._last = True
            return end  # with the line's end, after which a blank line, or trailers and one
        begin, end = end + len(_LINE_END), end + len(_LINE_END) + size
        if len(self._came) < end + len(_LINE_END):
            return None
        if self._came[end : end + len(_LINE_END)] != _LINE_END:
            raise HttpError("a chunk is longer than it says")
        self._body += self._came[begin:end]
        return end + len(_LINE_END)


def _length(told: str, digits: re.Pattern[str], base: int) -> int:
    """Return an announced length: digits and nothing else, as `int` would take signs and more."""
    if not digits.fullmatch(told):
        raise HttpError(f"{told[:40]!r} is no length")
    return int(told, base)

"""Frames over a stream socket, without blocking: bytes that the socket does not accept wait.

Master and workers never wait for each other (a deadlock). The master's `push` and `pull` return at
once in any state of the worker. A worker may wait until its answer is read, but the master reads
from every worker whenever it receives, even if frames to this worker are waiting to be sent.

Each frame is preceded by its length. Frames have no hash, because the kernel does not damage them.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

from seqgc.errors import WireError

__all__ = ["Channel"]

_LENGTH = struct.Struct("<Q")


class Channel:
    """One end of a connection, which owns its socket."""

    def __init__(self, end: socket.socket, *, max_bytes: int) -> None:
        end.setblocking(False)
        self._socket, self._max_bytes = end, max_bytes
        self._unsent: deque[memoryview] = deque()
        self._in_body = False
        self._expect(_LENGTH.size)
        self.ended = False  # the other end is closed: no more bytes can be received or sent

    def fileno(self) -> int:
        """Return the file descriptor of the socket, for selectors."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """True if frames wait to be sent; call `flush` when the socket is writable."""
        return bool(self._unsent)

    @property
    def begun(self) -> int:
        """The number of bytes received of a frame that is still incomplete."""
        return self._filled + _LENGTH.size * self._in_body

    def push(self, frame: bytes | bytearray) -> None:
        """Send as much of a frame as the socket accepts; the rest waits for `flush`."""
        self._unsent += (memoryview(_LENGTH.pack(len(frame))), memoryview(frame))
        self.flush()

    def flush(self) -> None:
        """Send the waiting bytes that the socket accepts; drop them if the other end is closed."""
        while self._unsent and not self.ended:
            try:
                # Length and frame in one call, or the other side would wake up twice.
                sent = self._socket.sendmsg([self._unsent[0], *list(self._unsent)[1:2]])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()  # answers may still be read: `pull` sets `ended` at their end
                return
            while sent >= len(self._unsent[0]):
                sent -= len(self._unsent.popleft())
                if not self._unsent:
                    return
            self._unsent[0] = self._unsent[0][sent:]

    def pull(self) -> list[bytearray]:
        """Return the frames that are complete; set ``ended`` at the end of the stream.

        If a frame is longer than ``max_bytes``, no memory is allocated for it, and `WireError` is
        raised.
        """
        frames: list[bytearray] = []
        while not self.ended:
            try:
                count = self._socket.recv_into(self._space[self._filled :])
            except BlockingIOError:
                break
            except ConnectionResetError:
                count = 0
            self.ended = count == 0
            self._filled += count
            if self._filled < len(self._space):
                continue
            full, self._in_body = self._buffer, not self._in_body
            if self._in_body:
                (size,) = _LENGTH.unpack(full)
                if not 0 < size <= self._max_bytes:
                    rule = f"a frame has 1 to {self._max_bytes} bytes"
                    raise WireError(f"a frame of {size} bytes was announced; {rule}")
                self._expect(size)
            else:
                frames.append(full)
                self._expect(_LENGTH.size)
        return frames

    def close(self) -> None:
        self._unsent.clear()
        self._socket.close()

    def _expect(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._space, self._filled = memoryview(self._buffer), 0

"""Between the service and the parent of its environments: JSON and descriptors over a socket.

One message is four bytes of length, then JSON; a request to fork carries the descriptor that the
environment writes its log to. The parent may block while it sends; the service never does, or the
two would wait for each other as soon as some hundred messages are under way.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

__all__ = ["Sender", "receive", "send"]

_LENGTH = struct.Struct("<I")


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one message, blocking."""
    channel.sendall(_packed(message))


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message and its descriptors, blocking until it is complete; None is the end."""
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 1)
    if not head:
        return None, descriptors
    head += _exactly(channel, _LENGTH.size - len(head))
    (length,) = _LENGTH.unpack(head)
    message: dict[str, Any] = json.loads(_exactly(channel, length))
    return message, descriptors


class Sender:
    """The service's way to send: what the socket does not take at once waits for its turn."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[bytes, int | None]] = deque()

    def send(self, message: Mapping[str, Any], *, descriptor: int | None = None) -> None:
        """Send one message; the descriptor is closed here once it has been sent."""
        self._queue.append((_packed(message), descriptor))
        if len(self._queue) == 1:
            self._flush()

    def close(self) -> None:
        """Give up what has not been sent."""
        self._loop.remove_writer(self._channel)
        for _, descriptor in self._queue:
            if descriptor is not None:
                os.close(descriptor)
        self._queue.clear()

    def _flush(self) -> None:
        while self._queue:
            data, descriptor = self._queue[0]
            try:
                sent = self._send_some(data, descriptor)
            except BlockingIOError:
                self._loop.add_writer(self._channel, self._flush)
                return
            except OSError:  # the parent has gone, which is noticed where it is listened to
                self.close()
                return
            self._queue.popleft()
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(data):
                self._queue.appendleft((data[sent:], None))
        self._loop.remove_writer(self._channel)

    def _send_some(self, data: bytes, descriptor: int | None) -> int:
        # Not socket.send_fds: in Python 3.11 it ignores its flags, and blocks.
        descriptors = array("i", [] if descriptor is None else [descriptor])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        return self._channel.sendmsg([data], rights, socket.MSG_DONTWAIT)


def _packed(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


def _exactly(channel: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        if not (part := channel.recv(length - len(data))):
            raise EOFError
        data += part
    return data

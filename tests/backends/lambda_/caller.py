"""A function's end of the line to its master, for whatever a function would not say."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import dataclass


@dataclass
class Caller:
    """A function's end, written after what `seqgc.worker._resident` says of the bytes."""

    sock: socket.socket

    def hello(self, call: bytes, *, magic: bytes = b"SGCR", version: int = 1) -> bytes:
        nonce = secrets.token_bytes(32)
        self.sock.sendall(magic + struct.pack("<H", version) + call + nonce)
        return nonce

    def prove(self, call: bytes, token: bytes) -> bytes:
        """Go through with it; return the proof."""
        nonce = self.hello(call)
        answer = self.exactly(64)
        theirs, proof = answer[:32], answer[32:]
        about = call + nonce + theirs
        assert proof == hmac.new(token, b"master" + about, "sha256").digest()
        own = hmac.new(token, b"function" + about, "sha256").digest()
        self.sock.sendall(own)
        return own

    def send(self, frame: bytes) -> None:
        self.sock.sendall(struct.pack("<Q", len(frame)) + frame)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (piece := self.sock.recv(count - len(data))):
            data += piece
        return data

    def rest(self) -> bytes:
        """All that comes until the end of the stream."""
        data = b""
        try:
            while piece := self.sock.recv(4096):
                data += piece
        except ConnectionError:
            pass
        return data

    def frame(self) -> bytes:
        """The next frame; beats are passed over."""
        while not (size := struct.unpack("<Q", self.exactly(8))[0]):
            pass
        return self.exactly(size)

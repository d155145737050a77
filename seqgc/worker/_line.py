"""One connection between a master and a function that stays: who is there, and what is said.

A function has no address that anybody could call, so it calls its master (`StayMessage` says
where), and each proves to the other, before anything else is said, that it knows the token which
that invocation alone brought::

    function                                              master
    "SGCR", version, call (16), nonce f (32)  ---------->         54 bytes; knows the call's token
             <----------  nonce m (32), HMAC("master", call, f, m)
    HMAC("function", call, f, m)              ---------->         32 bytes; the call is answered
    frames, each behind its length (8)        <--------->
    a beat, which is the length 0             <--------->         every second

HMAC is that of SHA-256, keyed by the token. Both nonces are new, so no proof is of use twice, and
a proof of one side is none of the other's. To one who sends anything else the master says nothing
and hangs up: it reads 54 bytes of a stranger, and waits `PROOF_BEATS` for all of it.

Where anybody could read or change what is on the way, the connection is TLS: the certificate is
made for one run and travels by the invocation too, so it is the only one that the function takes.

*Beats.* Whoever has been silent for a number of beats has gone, though no end of the stream says
so. They are counted, not timed: a process that was stopped for a minute finds one late beat of its
own and what the other side has sent meanwhile, and not that a minute has passed in silence. Any
byte counts: a long frame on a slow line is no silence.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from seqgc.errors import WireError
from seqgc.wire import MAX_FRAME_BYTES

__all__ = ["CERTIFIED_NAME", "PROOF_BEATS", "Line", "prove_function", "prove_master", "tls_client"]

CERTIFIED_NAME: Final = "master.seqgc"
PROOF_BEATS: Final = 5
_HELLO = struct.Struct("<4sH16s32s")
_MAGIC, _VERSION = b"SGCR", 1
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_LENGTH = struct.Struct("<Q")
_BEAT = _LENGTH.pack(0)
_PIECE_BYTES = 1 << 18
_WITHOUT_TIME = ssl.VerifyFlags(0x200000)  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, unnamed by ssl


class Stranger(Exception):
    """Whoever calls does not know the token."""


def tls_client(certificate: str) -> ssl.SSLContext:
    """Return the context of a function, which takes this one certificate (PEM)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= _WITHOUT_TIME  # whose clock is right is no question between the two
    context.load_verify_locations(cadata=certificate)
    return context


async def prove_function(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, call: bytes, token: bytes
) -> None:
    """Prove to a master that this is the function it invoked; `Stranger` if it is not the master.

    ``call`` is 16 bytes, ``token`` any number.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(_HELLO.pack(_MAGIC, _VERSION, call, nonce))
    answer = await _exactly(reader, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    about = call + nonce + theirs
    if not hmac.compare_digest(proof, _proof(token, b"master", about)):
        raise Stranger("whoever listens there is not the master that invoked this function")
    writer.write(_proof(token, b"function", about))


async def prove_master(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    token_of: Callable[[bytes], bytes | None],
) -> bytes:
    """Return the call of a function that proves that it knows the token, and prove the same to it.

    ``token_of`` says it for a call; None: nobody is expected by it. `Stranger`: it does not know
    it, or says something else.
    """
    call: bytes
    magic, version, call, theirs = _HELLO.unpack(await _exactly(reader, _HELLO.size))
    token = token_of(call)
    if magic != _MAGIC or version != _VERSION or token is None:
        raise Stranger("an unexpected call")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    about = call + theirs + nonce
    writer.write(nonce + _proof(token, b"master", about))
    if not hmac.compare_digest(
        await _exactly(reader, _PROOF_BYTES), _proof(token, b"function", about)
    ):
        raise Stranger("a proof that is none")
    return call


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except (asyncio.IncompleteReadError, OSError):
        raise Stranger("the other side hung up") from None


def _proof(token: bytes, whose: bytes, about: bytes) -> bytes:
    return hmac.new(token, whose + about, "sha256").digest()


@dataclass(slots=True, eq=False)
class Line:
    """Frames and beats over a connection on which both sides are known; one event loop's.

    The other side is taken for lost once it has been silent for ``patience`` beats of ``beat_s``
    seconds, those left out in which nobody took the frame that came last. ``end`` says, in one
    line, why there is nothing more; empty while there may be.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    beat_s: float
    patience: float
    max_bytes: int = MAX_FRAME_BYTES
    end: str = ""
    _silent: int = 0  # beats
    _listening: bool = True

    async def frames(self) -> AsyncIterator[bytearray]:
        """Yield each frame as it has come in whole, until there is an `end`."""
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._read(_LENGTH.size))
                if size > self.max_bytes:
                    rule = f"{self.max_bytes} may be"
                    raise WireError(f"a frame of {size} bytes was announced; at most {rule}")
                if size:
                    frame = await self._read(size)
                    self._listening = False
                    yield frame
                    self._listening = True
        except (OSError, EOFError) as error:
            self.hang_up(str(error) or type(error).__name__)
        except WireError as error:
            self.hang_up(f"WireError: {error}")
        finally:
            beating.cancel()
            self.hang_up("this side hung up")

    def send(self, frame: bytes) -> None:
        """Send a frame; what is not taken at once waits in memory."""
        if not self.end:
            self.writer.writelines((_LENGTH.pack(len(frame)), frame))

    async def sent(self, frame: bytes) -> None:
        """Send a frame; return once nearly all of it is on its way, or the line has ended."""
        self.send(frame)
        try:
            await self.writer.drain()
        except OSError as error:
            self.hang_up(str(error))

    def hang_up(self, why: str) -> None:
        """End the line, now, whatever waits to be sent; only the first reason is kept."""
        self.end = self.end or why
        self.writer.transport.abort()

    async def _read(self, size: int) -> bytearray:
        data = bytearray()
        while (left := size - len(data)) > 0:
            piece = await self.reader.read(min(left, _PIECE_BYTES))
            if not piece:
                raise EOFError("the connection ended")
            self._silent = 0
            data += piece
        return data

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.beat_s)
            self._silent += self._listening
            if self._silent > self.patience:
                self.hang_up(f"silent for {self.patience:g} heartbeats")
                return
            if not self.writer.transport.get_write_buffer_size():
                self.writer.write(_BEAT)

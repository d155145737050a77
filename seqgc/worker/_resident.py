"""The resident function: it connects to its master and serves tasks until the connection ends.

Theory of operation
-------------------
An ordinary invocation takes time to start a function, or to find a warm one, in every round. A
resident function starts once. Its invocation, a `StayMessage`, names the address where the master
listens. The function connects to this address. Over the connection go the same requests
(`InvokeMessage`) and answers as in ordinary invocations. They may have any size, because Lambda's
limit on messages does not apply to a connection.

The function has two threads. One thread computes (`TaskServer`). While it computes a gradient, the
other thread sends heartbeats, reads the master's messages and watches the clock. If a library holds
Python's lock (the GIL) for more than five beats, the second thread cannot run, and the master
assumes that the function is lost. The master waits longer before the function is ready, because
imports take time::

    invoked --> calling --> known --> making the workload --> ready --> serving --> ended
                   |          |                                            |
                   +----------+---- refused, unreachable: an error         +-- lease over: leaving

*End.* A stay ends if the master closes the connection, if the master has sent nothing for 30 beats,
or if the lease ends. The computing thread then stops before its next mini-task, and the invocation
ends. If the mini-task takes longer than 5 beats, the process exits, because the user would pay for
a gradient that is not needed. A function therefore outlives its master by at most 5 beats if the
connection is closed, and by at most 36 beats (`OUTLIVES_BEATS`) if the master's machine vanishes.

*Leases.* Lambda ends an invocation after 15 minutes at most. Before this time ends, the function
announces that it is going to leave, and the master invokes a successor. The function serves until
the successor is connected. The master then tells the function to leave. The function hands back the
tasks that it has not begun and answers the task in progress, and the master closes the connection.
If no successor connects, the function serves until ``end_s``, and only the task that it is then
computing is lost.

The connection
--------------
The master cannot connect to a function, because the function has no public address. The function
connects to its master instead. First, each side proves to the other that it knows the token of the
invocation::

    function                                              master
    "SGCR", version, call (16), nonce f (32)  ---------->         54 bytes; knows the call's token
             <----------  nonce m (32), HMAC("master", call, f, m)
    HMAC("function", call, f, m)              ---------->         32 bytes; the call is answered
    frames, each after its length (8)         <--------->
    a beat, which is the length 0             <--------->         every second

The HMAC uses SHA-256 with the token as its key. Both nonces are new, so a proof cannot be used
again, and a proof of one side is not valid for the other side. If a caller sends anything else, the
master closes the connection without an answer. It reads at most 54 bytes of a caller that has not
proved itself, and waits `PROOF_BEATS` for them.

Where a stranger could read or change the traffic, the connection is TLS. Its certificate is made
for one run and travels in the invocation. The function accepts no other certificate.

*Beats.* If the other side has been silent for a number of beats, it is assumed to be lost, even if
the stream has not ended. A process counts the silence in its own beats instead of measuring the
time. If the process is suspended for a minute, it therefore counts one beat of silence afterwards,
and not a minute. Any byte ends a silence, so a long frame on a slow connection is not a silence.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from seqgc import wire
from seqgc.errors import WireError, WorkerError, one_line, reraise_stop
from seqgc.wire import MAX_FRAME_BYTES, LeaveMessage, ReadyMessage, StayMessage
from seqgc.worker._serving import Answer, StayReport, TaskServer
from seqgc.worker._workloads import failure_of

__all__ = [
    "CERTIFIED_NAME",
    "GRACE_BEATS",
    "OUTLIVES_BEATS",
    "PROOF_BEATS",
    "Line",
    "prove_function",
    "prove_master",
    "stay",
    "tls_client",
]

# ---- a function's stay --------------------------------------------------------------------------

_CALL_BEATS = 6  # time limit, in beats, to connect to the master
_PATIENCE_BEATS = 30
GRACE_BEATS = 5
OUTLIVES_BEATS: Final = _PATIENCE_BEATS + 1 + GRACE_BEATS
"""A function ends at most this number of beats after its master has closed or lost the connection.
"""

_LONGEST_WAIT_S = 3600.0


def stay(
    run_id: str,
    message: StayMessage,
    *,
    make: Callable[[], object],
    answer: Answer,
    abandon: Callable[[], None] = lambda: os._exit(1),
) -> StayReport:
    """Connect to the master, serve tasks until the stay ends, and return a report.

    ``make`` builds the models before the first task, and ``answer`` computes the frames of results.
    ``abandon`` ends the process if a computation takes too long at the end of the stay.

    Raises
    ------
    WorkerError
        If the master cannot be reached, or is not the master that invoked this function.
    """
    received = time.monotonic()
    call = _Call(run_id, message, abandon, received=received)
    server = TaskServer(call, answer, run_id=run_id)
    with call.taken_in_by(server):
        if call.wait_until_known():
            problem, final = _problem_of(make)
            while not call.ended and (rest_s := received + message.start_s - time.monotonic()) > 0:
                call.receive(rest_s)  # the master sends no task before the function is ready
            ready = ReadyMessage(worker=message.worker, problem=problem, final=final)
            call.send(wire.encode(ready, run_id=run_id))
        server.serve()
    leave = LeaveMessage(worker=message.worker, reason=call.reason)
    return StayReport(
        reply=wire.to_mapping(wire.encode(leave, run_id=run_id)),
        run_id=run_id,
        worker=message.worker,
        reason=leave.reason,
        tasks=server.tasks,
        failures=server.failures,
        stayed_s=time.monotonic() - received,
    )


def _problem_of(make: Callable[[], object]) -> tuple[str, bool]:
    """Make the workload; return the problem, which may be empty, and True if it is final."""
    try:
        make()
    except BaseException as error:
        reraise_stop(error)
        return failure_of(error)
    return "", False


class _Call:
    """The listening thread, which is also the `Connection` of the computing thread."""

    def __init__(
        self, run_id: str, message: StayMessage, abandon: Callable[[], None], *, received: float
    ) -> None:
        self.reason = ""
        self._received = received
        self._run_id, self._message, self._abandon = run_id, message, abandon
        self._server: TaskServer
        self._news = threading.Event()  # set after a message, and when the connection has ended
        self._known = threading.Event()  # set after both proofs, and if the call has failed
        self._error: Exception | None = None
        self._ended = False
        self._line: Line | None = None
        self._finished = asyncio.Event()  # no computation is running any more
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._listen, name="seqgc-line", daemon=True)

    @contextmanager
    def taken_in_by(self, server: TaskServer) -> Iterator[None]:
        """In this block, run the listening thread, which passes messages to ``server``."""
        self._server = server
        self._thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._finish)
            self._thread.join()
            self._loop.close()

    def wait_until_known(self) -> bool:
        """Wait until both sides have proved themselves; return False if the connection has ended.

        Raise `WorkerError` if the master cannot be reached or does not prove itself.
        """
        self._known.wait()
        if self._error is not None:
            raise WorkerError(
                f"the master at {self._message.host}:{self._message.port} does not answer "
                f"({one_line(self._error) or type(self._error).__name__}); it has ended, or the "
                "network blocks the call: check with `seqgc doctor --resident`",
                worker=self._message.worker,
            )
        return not self._ended

    # ---- the connection, used by the computing thread -------------------------------------------

    @property
    def ended(self) -> bool:
        return self._ended

    def receive(self, timeout_s: float) -> Sequence[bytes]:
        if timeout_s > 0 and not self._ended:
            self._news.wait(min(timeout_s, _LONGEST_WAIT_S))
        self._news.clear()
        return ()

    def send(self, frame: bytes) -> None:
        if self._line is not None:
            asyncio.run_coroutine_threadsafe(self._line.sent(frame), self._loop).result()

    # ---- the listening thread -------------------------------------------------------------------

    def _listen(self) -> None:
        self._loop.run_until_complete(self._converse())

    async def _converse(self) -> None:
        message, loop = self._message, self._loop
        try:
            line = self._line = await self._reached()
        except Exception as error:
            self._error, self._ended = error, True
            self._known.set()
            return
        self._known.set()
        leave = LeaveMessage(worker=message.worker, reason="its lease ends soon")
        took_s = time.monotonic() - self._received
        leaves = wire.encode(leave, run_id=self._run_id)
        loop.call_later(message.leave_s - took_s, line.send, leaves)
        loop.call_later(message.end_s - took_s, line.hang_up, "its lease has ended")
        try:
            async for frame in line.frames():
                if (reply := self._server.take_in(frame)) is not None:
                    line.send(reply)
                self._news.set()
        except WireError as error:
            line.hang_up(f"WireError: {error}")
        finally:
            self.reason, self._ended = line.end, True
            self._news.set()
        try:
            await asyncio.wait_for(self._finished.wait(), GRACE_BEATS * message.beat_s)
        except TimeoutError:
            self._abandon()

    def _finish(self) -> None:
        self._finished.set()
        if self._line is not None:
            self._line.hang_up("the function has ended")

    async def _reached(self) -> Line:
        """Connect to the master and return the line; try again while the master does not answer."""
        beat_s, refusal = self._message.beat_s, Exception("it took too long")
        with suppress(TimeoutError):
            async with asyncio.timeout(_CALL_BEATS * beat_s):
                while True:
                    try:
                        async with asyncio.timeout(PROOF_BEATS * beat_s):
                            return await self._called()
                    except (OSError, Stranger) as error:
                        refusal = error
                    await asyncio.sleep(beat_s)
        raise refusal

    async def _called(self) -> Line:
        message = self._message
        ip_address(message.host)  # only an address is allowed: looking up a name needs a thread
        tls = tls_client(message.certificate) if message.certificate else None
        reader, writer = await asyncio.open_connection(
            message.host, message.port, ssl=tls, server_hostname=tls and CERTIFIED_NAME
        )
        call, token = bytes.fromhex(message.call), bytes.fromhex(message.token)
        try:
            await prove_function(reader, writer, call=call, token=token)
        except BaseException:
            writer.transport.abort()
            raise
        return Line(reader, writer, message.beat_s, patience=_PATIENCE_BEATS)


# ---- the connection ------------------------------------------------------------------------------

CERTIFIED_NAME: Final = "master.seqgc"
PROOF_BEATS: Final = 5
_HELLO = struct.Struct("<4sH16s32s")
_MAGIC, _VERSION = b"SGCR", 1
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_LENGTH = struct.Struct("<Q")
_BEAT = _LENGTH.pack(0)
_PIECE_BYTES = 1 << 18
_WITHOUT_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which `ssl` does not have


class Stranger(Exception):
    """The other side of a connection has not proved that it knows the token."""


def tls_client(certificate: str) -> ssl.SSLContext:
    """Return the TLS context of a function, which accepts only this certificate (PEM)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= _WITHOUT_TIME  # the two clocks may differ
    context.load_verify_locations(cadata=certificate)
    return context


async def prove_function(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, call: bytes, token: bytes
) -> None:
    """Prove to the master that this is the function that it invoked, and check the master's proof.

    ``call`` has 16 bytes, and ``token`` may have any length. Raise `Stranger` if the master's proof
    is wrong.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    writer.write(_HELLO.pack(_MAGIC, _VERSION, call, nonce))
    answer = await _exactly(reader, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    about = call + nonce + theirs
    if not hmac.compare_digest(proof, _proof(token, b"master", about)):
        raise Stranger("the listener is not the master that invoked this function")
    writer.write(_proof(token, b"function", about))


async def prove_master(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    token_of: Callable[[bytes], bytes | None],
) -> bytes:
    """Exchange proofs with a function that has connected, and return its call (16 bytes).

    ``token_of`` returns the token of a call, or None if this call is not expected. Raise `Stranger`
    if the function does not prove that it knows the token.
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
        raise Stranger("a wrong proof")
    return call


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except (asyncio.IncompleteReadError, OSError):
        raise Stranger("the other side hung up") from None


def _proof(token: bytes, side: bytes, about: bytes) -> bytes:
    return hmac.new(token, side + about, "sha256").digest()


@dataclass(slots=True, eq=False)
class Line:
    """A connection that carries frames and heartbeats after both sides have proved themselves.

    It belongs to one event loop. If the other side is silent for more than ``patience`` beats of
    ``beat_s`` seconds, the line ends. Beats in which this side processes the last frame do not
    count. When the line has ended, ``end`` is the reason in one line; before, it is empty.
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
        """Yield each complete frame until the line ends."""
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._read(_LENGTH.size))
                if size > self.max_bytes:
                    rule = f"at most {self.max_bytes} are allowed"
                    raise WireError(f"a frame of {size} bytes is announced; {rule}")
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
        """Send a frame without waiting. Unsent bytes are buffered in memory."""
        if not self.end:
            self.writer.writelines((_LENGTH.pack(len(frame)), frame))

    async def sent(self, frame: bytes) -> None:
        """Send a frame; wait until nearly all bytes are sent, or the line has ended."""
        self.send(frame)
        try:
            await self.writer.drain()
        except OSError as error:
            self.hang_up(str(error))

    def hang_up(self, why: str) -> None:
        """End the line at once and drop unsent bytes. The reason of the first call is kept."""
        self.end = self.end or why
        self.writer.transport.abort()

    async def _read(self, size: int) -> bytearray:
        data = bytearray()
        while (missing := size - len(data)) > 0:
            piece = await self.reader.read(min(missing, _PIECE_BYTES))
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

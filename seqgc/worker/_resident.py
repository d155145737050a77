"""A function that stays: it calls its master and serves it over a connection until it ends.

Theory of operation
-------------------
An ordinary invocation pays for a start, or for finding a warm function, in every round. A function
that stays pays once. A `StayMessage` says where its master listens. From then on the same questions
(`InvokeMessage`) and answers as in ordinary invocations go over the connection. They may be of any
size, because Lambda's limit on messages does not apply.

Two threads work in the function. One computes (`TaskServer`). The other one listens: it sends
heartbeats, takes in the master's messages and watches the clock while a gradient is computed. This
needs a computation that lets other threads run: if a library holds Python's lock (the GIL) for more
than five beats, the master takes the function for lost. Before the function is ready, during
imports, it may take longer::

    invoked --> calling --> known --> making the workload --> ready --> serving --> ended
                   |          |                                            |
                   +----------+---- refused, unreachable: an error         +-- lease over: leaving

*End.* A stay ends as soon as the master hangs up, the master has sent nothing for 30 beats, or the
lease ends. The computing thread then stops before its next mini-task, and the invocation ends. If
the mini-task takes longer than 5 beats, the process exits, so that nobody pays for a gradient that
is not needed. So a function outlives its master by 5 beats if the connection is closed, and by 36
(`OUTLIVES_BEATS`) if the master vanishes.

*Leases.* Lambda ends an invocation after 15 minutes at most. So a function says early enough that
it is going to leave, and continues to serve while its successor, another invocation, calls. Then
the master asks it to leave. It hands back the tasks that it has not begun and answers the task in
progress, and the master hangs up. If the successor does not come, the function serves until
``end_s``; only the task that it is computing then is lost.

The connection
--------------
A function has no address that the master could call, so the function calls its master. Before
anything else is said, each side proves to the other that it knows the token of the invocation::

    function                                              master
    "SGCR", version, call (16), nonce f (32)  ---------->         54 bytes; knows the call's token
             <----------  nonce m (32), HMAC("master", call, f, m)
    HMAC("function", call, f, m)              ---------->         32 bytes; the call is answered
    frames, each after its length (8)         <--------->
    a beat, which is the length 0             <--------->         every second

The HMAC uses SHA-256 with the token as its key. Both nonces are new, so a proof cannot be used
twice, and a proof of one side is not valid for the other. If a caller sends anything else, the
master hangs up without a word: it reads 54 bytes of a stranger, and waits `PROOF_BEATS` for them.

Where a stranger could read or change the traffic, the connection is TLS. Its certificate is made
for one run and travels in the invocation. The function accepts no other certificate.

*Beats.* If the other side has been silent for a number of beats, it is taken for lost, even if the
stream has not ended. Silence is counted in beats of this process, and not measured as time. So a
process that was suspended for a minute finds one late beat and the data that have arrived, and no
minute of silence. Any byte ends a silence, so a long frame on a slow connection is no silence.
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

_CALL_BEATS = 6  # within which the master must be reached
_PATIENCE_BEATS = 30
GRACE_BEATS = 5
OUTLIVES_BEATS: Final = _PATIENCE_BEATS + 1 + GRACE_BEATS
"""A function ends within this number of beats after its connection ends on either side."""

_LONGEST_WAIT_S = 3600.0


def stay(
    run_id: str,
    message: StayMessage,
    *,
    make: Callable[[], object],
    answer: Answer,
    abandon: Callable[[], None] = lambda: os._exit(1),
) -> StayReport:
    """Call the master, serve it until the stay ends, and return a report.

    ``make`` makes the workload before the first task; ``answer`` makes the frames of results.
    ``abandon`` ends the process if a computation delays the end.

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
            while not call.ended and (left := received + message.start_s - time.monotonic()) > 0:
                call.receive(left)  # no task comes before the function is ready
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
    """Make the workload; return the problem, or an empty text, and True if it is final."""
    try:
        make()
    except BaseException as error:
        reraise_stop(error)
        return failure_of(error)
    return "", False


class _Call:
    """The thread that listens, and the `Connection` of the thread that computes."""

    def __init__(
        self, run_id: str, message: StayMessage, abandon: Callable[[], None], *, received: float
    ) -> None:
        self.reason = ""
        self._received = received
        self._run_id, self._message, self._abandon = run_id, message, abandon
        self._server: TaskServer
        self._news = threading.Event()  # a message was taken in, or the connection has ended
        self._known = threading.Event()  # both sides know each other, or the call has failed
        self._error: Exception | None = None
        self._ended = False
        self._line: Line | None = None
        self._finished = asyncio.Event()  # no computation is running any more
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._listen, name="seqgc-line", daemon=True)

    @contextmanager
    def taken_in_by(self, server: TaskServer) -> Iterator[None]:
        """Run the listening thread, which gives messages to ``server``, during the block."""
        self._server = server
        self._thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._finish)
            self._thread.join()
            self._loop.close()

    def wait_until_known(self) -> bool:
        """Wait for both proofs; return False if the connection has ended again.

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

    # ---- the connection, for the thread that computes -------------------------------------------

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

    # ---- the thread that listens ----------------------------------------------------------------

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
        """Return the line to the master, after several calls if the master is busy."""
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
        ip_address(message.host)  # looking up a name would take another thread
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
_WITHOUT_TIME = ssl.VerifyFlags(0x200000)  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, unnamed by ssl


class Stranger(Exception):
    """The other side does not know the token."""


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
    """Prove to the master that this is the function it invoked, and check the master's proof.

    ``call`` has 16 bytes, ``token`` any number. Raise `Stranger` if the proof is wrong.
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
    """Exchange proofs with a function that calls, and return its call.

    ``token_of`` returns the token of a call, or None if no such call is expected. Raise `Stranger`
    if the caller does not prove that it knows the token.
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
    """Frames and beats over a connection whose sides know each other, for one event loop.

    If the other side is silent for more than ``patience`` beats of ``beat_s`` seconds, the line
    ends. Beats during which the reader is busy with the last frame do not count. ``end`` is the
    reason, in one line, why the line has ended; it is empty until then.
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
        """Send a frame; bytes that the connection does not accept yet wait in memory."""
        if not self.end:
            self.writer.writelines((_LENGTH.pack(len(frame)), frame))

    async def sent(self, frame: bytes) -> None:
        """Send a frame; return when nearly all of it is on its way, or the line has ended."""
        self.send(frame)
        try:
            await self.writer.drain()
        except OSError as error:
            self.hang_up(str(error))

    def hang_up(self, why: str) -> None:
        """End the line at once and drop unsent bytes; keep only the first reason."""
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

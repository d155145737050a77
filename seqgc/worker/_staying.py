"""A function that stays: it calls its master, and answers over that connection until it ends.

Theory of operation
-------------------
An ordinary invocation pays for a start, or for the wait until a function is found, in every round.
One that stays pays once: a `StayMessage` says where its master listens, and from then on the same
questions (`InvokeMessage`) and answers as in ordinary invocations go over the connection
(`seqgc.worker._line`), however large: Lambda's limit on messages does not apply.

Two threads. One *computes* (`TaskServer`). The other one *listens*: it beats, takes in what the
master says, and watches the clock, however long a gradient takes, provided that what computes it
lets other threads run. A library that holds Python's lock (the GIL) for more than five beats once
the function is ready lets it be taken for lost; an import, before that, may take its time::

    invoked --> calling --> known --> making the workload --> ready --> serving --> ended
                   |          |                                            |
                   +----------+---- refused, unreachable: an error         +-- lease over: leaving

What ends it, whichever is first: the master hangs up; the master has not said a word, nor sent a
beat, for 30 beats; the lease ends. Then the thread that computes stops before its next mini-task,
and the invocation ends. Should the one at work take longer than 5 beats the process ends with it:
nobody pays for a gradient that nobody waits for. So a function outlives a master whose end it hears
of by 5 beats, and one that has vanished without a word by 36 (`OUTLIVES_BEATS`).

*Leases.* Lambda ends an invocation after 15 minutes at most. So a function says, a while before,
that it is going to leave, and goes on as ever: its successor, another invocation, calls first. Then
the master asks it to leave: it hands back what it has not begun, answers what it has, and is hung
up on. If the successor does not come the function serves until its time is up (``end_s``); what it
is computing then is lost, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Final

from seqgc import wire
from seqgc.errors import WireError, WorkerError, one_line, reraise_stop
from seqgc.wire import LeaveMessage, ReadyMessage, StayMessage
from seqgc.worker._invocations import StayReport
from seqgc.worker._line import (
    CERTIFIED_NAME,
    PROOF_BEATS,
    Line,
    Stranger,
    prove_function,
    tls_client,
)
from seqgc.worker._serving import Answer, TaskServer
from seqgc.worker._workloads import told_of

__all__ = ["GRACE_BEATS", "OUTLIVES_BEATS", "stay"]

_CALL_BEATS = 6  # within which the master must be reached
_PATIENCE_BEATS = 30
GRACE_BEATS = 5
OUTLIVES_BEATS: Final = _PATIENCE_BEATS + 1 + GRACE_BEATS
"""Within which a function has ended whose line has, on whatever side."""

_LONGEST_WAIT_S = 3600.0


def stay(
    run_id: str,
    message: StayMessage,
    *,
    make: Callable[[], object],
    answer: Answer,
    abandon: Callable[[], None] = lambda: os._exit(1),
) -> StayReport:
    """Call the master and serve it until the stay ends, in whatever way; return how it went.

    ``make`` makes the workload, before the first task is there; ``answer`` the frames of results.
    ``abandon`` ends the process, should a computation hold up the end.

    Raises
    ------
    WorkerError
        If the master cannot be reached, or is not the one that invoked this function.
    """
    received = time.monotonic()
    call = _Call(run_id, message, abandon, received=received)
    server = TaskServer(call, answer, run_id=run_id)
    with call.taken_in_by(server):
        if call.wait_until_known():
            problem, final = _problem_of(make)
            while not call.ended and (left := received + message.start_s - time.monotonic()) > 0:
                call.receive(left)  # nothing is asked before it is ready
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
    """Return why the workload cannot be made, empty if it can; and whether that is final."""
    try:
        make()
    except BaseException as error:
        reraise_stop(error)
        return told_of(error)
    return "", False


class _Call:
    """The connection to the master, and the thread that listens; a `Connection` for the other."""

    def __init__(
        self, run_id: str, message: StayMessage, abandon: Callable[[], None], *, received: float
    ) -> None:
        self.reason = ""
        self._received = received
        self._run_id, self._message, self._abandon = run_id, message, abandon
        self._server: TaskServer
        self._news = threading.Event()  # something was taken in, or it is over
        self._known = threading.Event()  # or refused
        self._error: Exception | None = None
        self._ended = False
        self._line: Line | None = None
        self._finished = asyncio.Event()  # nothing is computed any more
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._listen, name="seqgc-line", daemon=True)

    @contextmanager
    def taken_in_by(self, server: TaskServer) -> Iterator[None]:
        """Have a server take in what the master says, for the block's time."""
        self._server = server
        self._thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._finish)
            self._thread.join()
            self._loop.close()

    def wait_until_known(self) -> bool:
        """Wait until both know each other; False: it is over already; `WorkerError`: refused."""
        self._known.wait()
        if self._error is not None:
            raise WorkerError(
                f"the master at {self._message.host}:{self._message.port} does not answer "
                f"({one_line(self._error) or type(self._error).__name__}); it has gone, or the "
                "network lets nobody through: `seqgc doctor --resident` looks",
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
        """Return the line to the master, who may be too busy at first to take the call."""
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

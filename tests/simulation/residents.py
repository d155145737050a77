"""Functions that stay, simulated: processes with threads, and the connections to their master.

Real are `ResidentBackend` with its switchboard, and all that runs in a function: `FunctionWorker`,
`stay`, `TaskServer`, and asyncio's streams between them. Replaced are threads, of which one runs at
a time (`threads`), sockets (`network`), the clock, and randomness, which is seeded. Connections are
not encrypted: TLS is tested on real sockets.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np

from seqgc.errors import StoreError
from seqgc.wire import InvokeMessage, ResultMessage, StayMessage, encode, from_json, to_json
from seqgc.worker import FunctionWorker
from tests.simulation.faults import Fault
from tests.simulation.frames import altered_frames
from tests.simulation.network import End, Network, NetworkAddress, NetworkLoop
from tests.simulation.seams import serving, starts, staying, switchboard, timing
from tests.simulation.threads import Gone, Process, Thread, Threads
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.functions import Account, Call

PORT: Final = 9840
_START_S: Final = 0.5
_LOST_BEATS, _OUTLIVES_BEATS, _LEFT_ALONE_BEATS = 8, 10, 45
_KNOWS_NOTHING: Final = 0.6  # of strangers: others know a call, and none of its token
_HELLO: Final = struct.Struct("<4sH16s32s")


class Function(Process):
    """One invocation that stays, in an environment; its ``master`` is the one that made it."""

    def __init__(self, threads: Threads, call: Call, message: StayMessage, master: Process) -> None:
        super().__init__(threads)
        self.call, self.message, self.master = call, message, master
        self.altered: dict[bytes, list[bytes]] = {}  # frames, and what is sent in their place
        self.failure = "Runtime.ExitError", "Runtime exited with error: signal: killed"
        self.returned = self.at_work = self.served = False
        self.deaf = False  # it cannot hear its master


class Stranger(Process):
    """Somebody who found the port; knows some ``call`` or none, and no token."""

    def __init__(self, threads: Threads, call: bytes) -> None:
        super().__init__(threads)
        self.call = call


class _Worker(FunctionWorker):
    """A real one, but that computing takes time, and goes wrong."""

    residents: Residents
    _run_id = ""

    def _stay(self, run_id: str, message: StayMessage) -> Any:
        self._run_id = run_id
        return super()._stay(run_id, message)

    def _result(
        self, message: InvokeMessage, made: Any, cancelled: Callable[[], bool] = lambda: False
    ) -> ResultMessage | None:
        answer = partial(super()._result, message, made)
        return self.residents.compute(self._run_id, message, answer, cancelled)


class Residents:
    """An account's functions that stay, and the network between them and their masters."""

    def __init__(self, account: Account) -> None:
        self._account, self._world = account, account.world
        self.threads = Threads(account, self._aside)
        self.network = Network(self.threads)
        self.network.altered, self.network.watch = self._altered, self._watch
        self.threads.at_end = self._ended
        self.address = type("Address", (NetworkAddress,), {"network": self.network})(ports=(PORT,))
        self._functions: list[Function] = []  # that have begun and not ended
        self._calls: dict[int, bytes] = {}  # by tag, of invocations that have not begun
        self._strangers: list[float] = []  # who wait for the next invocation
        account.world.is_idle = self._is_idle
        self._idle: list[FunctionWorker] = []
        self._invited: Counter[int] = Counter()
        self._random = np.random.default_rng([self._world.seed, 7])

    # ---- masters --------------------------------------------------------------------------------

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Have functions that stay call the master of this block."""
        self.threads.master = Process(self.threads)
        self._calls.clear()
        with self.replaced():
            try:
                yield
            finally:
                self.master_gone(silently=False)

    def master_gone(self, *, silently: bool) -> None:
        """End the master's process; ``silently``, as if its machine were lost: unheard."""
        master = self.threads.master
        if not master.alive:
            return
        for function in self._of(master) if silently else ():
            function.deaf = True
            for end in self.network.ends_of(function):
                end.muted = end.other.muted = True
        master.end()
        for function in self._of(master):
            self._must_end(function)

    def end(self) -> None:
        """See that no function outlives its master, and end whatever there is."""
        with self.replaced():
            self.master_gone(silently=False)
            self._account.wait(1e4, lambda: not self._functions)
        if left := [f.message.worker for f in self._functions]:
            raise Violation(f"functions of workers {left} have outlived all masters")

    def close(self) -> None:
        """Leave no thread behind."""
        with self.replaced():
            self.threads.end()

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Let backends and functions run here for the block's time."""
        threads, clock = self.threads, self._world.clock
        secrets = SimpleNamespace(token_bytes=self._random.bytes)
        with ExitStack() as stack:
            for owner, name, new in (
                (asyncio, "new_event_loop", lambda: NetworkLoop(self.network)),
                (asyncio, "run_coroutine_threadsafe", threads.run_coroutine_threadsafe),
                (switchboard, "threading", threads),
                (staying, "threading", threads),
                (staying, "time", clock),
                (staying, "os", SimpleNamespace(_exit=self._exit)),
                (serving, "time", clock),
                (timing, "time", clock),
                (starts, "secrets", secrets),
                (staying, "secrets", secrets),
            ):
                stack.enter_context(mock.patch.object(owner, name, new))
            yield

    # ---- functions ------------------------------------------------------------------------------

    def invite(self, call: Call, message: StayMessage) -> None:
        """Take an invocation that is to stay."""
        account, number = self._account, self._invited[message.worker]
        self._invited[message.worker] += 1
        fault = self._world.of_stay(message.worker, number)
        kind, amount = ("", 0.0) if fault is None else (fault.kind, fault.amount)
        if kind == "refused-start":
            account.refuse(call)
        elif kind == "broken-start":
            account.respond(call, 503, b'{"message":"try again"}')
        elif kind == "no-start":
            lease_s = self._world.lease_s
            fail = partial(account.fail, call, "Sandbox.Timedout", "Task timed out")
            account.after(lease_s, fail)
        else:
            self._calls[call.tag] = bytes.fromhex(message.call)
            for each in self._strangers:
                account.after(_START_S / 2, partial(self._call_as_stranger, each))
            self._strangers.clear()
            seconds = 10 + 100 * amount**3 if kind == "late-start" else _START_S
            master = self.threads.master
            account.after(seconds, partial(self._start, call, message, master))

    def _start(self, call: Call, message: StayMessage, master: Process) -> None:
        self._calls.pop(call.tag, None)
        function = Function(self.threads, call, message, master)
        self._functions.append(function)
        worker = self._idle.pop() if self._idle else self._environment()
        Thread(self.threads, partial(self._serve, function, worker), process=function).start()
        self._account.after(self._world.lease_s, partial(self._time_out, function))
        self._account.after(message.end_s, partial(self._lease_over, function))
        if not master.alive:
            self._must_end(function)

    def _environment(self) -> FunctionWorker:
        worker = self._account.environment(_Worker)
        worker.residents = self  # type: ignore[attr-defined]
        return worker

    def _serve(self, function: Function, worker: FunctionWorker) -> None:
        call, account = function.call, self._account
        try:
            reply = worker.serve(call.body).reply
        except Exception as error:
            account.after(0.0, partial(account.fail, call, type(error).__name__, str(error)))
        else:
            answer = to_json(from_json(reply))
            account.after(0.0, partial(account.answer, call, answer))
        function.returned = True
        self._idle.append(worker)
        function.end()

    def _ended(self, process: Process) -> None:
        """Do as the kernel does with what a process has open; an invocation's end is told."""
        for end in self.network.ends_of(process):
            end.abort()
        if not isinstance(process, Function):
            return
        self._functions.remove(process)
        if not process.returned:
            fail = partial(self._account.fail, process.call, *process.failure)
            self._account.after(0.0, fail)

    def _time_out(self, function: Function) -> None:
        if function.alive:
            function.failure = "Sandbox.Timedout", "Task timed out"
            function.end()

    def _lease_over(self, function: Function) -> None:
        self._world.leases_over |= function.alive

    def _exit(self, _: int) -> None:
        process = self.threads.process
        process.end()
        raise Gone

    def compute(
        self,
        run_id: str,
        message: InvokeMessage,
        answer: Callable[[Callable[[], bool]], ResultMessage | None],
        cancelled: Callable[[], bool],
    ) -> ResultMessage | None:
        """Compute a task in the function that is at work."""
        function, task, world = self.threads.process, message.request.task, self._world
        assert isinstance(function, Function)
        function.served = True
        fault: Fault | None = None
        if world.alive and function.master is self.threads.master:
            fault = world.of_task(task.round, task.worker)
            with suppress(StoreError):  # it was cancelled, and is about to be told so
                self._account.expect(task, message, run_id)
        kind, amount = ("", 0.0) if fault is None else (fault.kind, fault.amount)
        seconds = world.delay_s(task.round, task.worker) if task.items else 0.0
        seconds += 100 * amount**3 if kind == "delay" else 0.0
        if kind == "crash":
            self.threads.sleep(seconds * amount)
            self._exit(1)
        elif kind == "hang":
            function.at_work = True
            self.threads.sleep(None)
        elif kind == "error":
            raise MemoryError("scripted")

        def begins() -> bool:
            function.at_work = not cancelled()
            if function.at_work:
                self.threads.sleep(seconds / len(task.items))
            return not function.at_work

        result = answer(begins)
        function.at_work = False
        if result is not None and fault is not None:
            frame = encode(result, run_id=run_id)
            function.altered[frame] = altered_frames(fault, frame, run_id=run_id)
        return result

    # ---- what goes wrong with connections -------------------------------------------------------

    def happen(self, fault: Fault) -> None:
        """Let something happen to one of the functions that there are, or to the port."""
        amount = fault.amount
        if fault.kind == "stranger" and amount > _KNOWS_NOTHING and not self._calls:
            self._strangers.append(amount)
            return
        if fault.kind == "stranger":
            self._call_as_stranger(amount)
            return
        there = [f for f in self._of(self.threads.master) if self.network.ends_of(f)]
        if not there:
            return
        function = there[int(1e6 * amount) % len(there)]
        if fault.kind == "expire":
            self._time_out(function)
            return
        for end in self.network.ends_of(function):
            if fault.kind == "cut":
                end.other.abort()
                end.abort()
                continue
            end.muted |= int(3 * amount) != 2
            end.other.muted |= int(3 * amount) != 1
            function.deaf |= end.other.muted
            if end.muted and function.served:  # before, it may be too busy to beat
                beats = _LOST_BEATS * function.message.beat_s
                self._account.after(beats, partial(self._require_hung_up, end.other))

    def _require_hung_up(self, end: End) -> None:
        if not end.closed and end.process.alive:
            self.threads.violated(f"a connection was silent for {_LOST_BEATS} beats, and is kept")

    def _call_as_stranger(self, amount: float) -> None:
        known = next(iter(self._calls.values()), b"") if amount > _KNOWS_NOTHING else b""
        random = self._random.bytes
        stranger = Stranger(self.threads, known)
        try:
            end = self.network.connect(stranger, PORT)
        except ConnectionRefusedError:
            return
        end.attach(None, _Replies(end))
        if known or 0.2 < amount < 0.4:
            end.write(_HELLO.pack(b"SGCR", 1, known or random(16), random(32)))
        elif amount < 0.2:
            end.write(random(1 + int(1000 * amount)))
        self._account.after(_LOST_BEATS, partial(self._require_hung_up, end.other))

    def _altered(self, end: End, data: Any) -> list[Any]:
        length, frame = data
        instead = getattr(end.process, "altered", {}).pop(bytes(frame), None)
        if instead is None:
            return [(length, frame)]
        return [(struct.pack("<Q", len(each)), each) for each in instead]

    def _watch(self, sender: End) -> None:
        """See that a master tells nothing to whom it has not invoked."""
        to, said = sender.other.process, sender.said
        if isinstance(to, Function) and to.master is not sender.process and said:
            self.threads.violated("a function of an earlier master was let in")
        if isinstance(to, Stranger) and said > (64 if to.call else 0):
            self.threads.violated(f"a stranger was told {said} bytes")

    def _is_idle(self, worker: int) -> bool:
        """Say whether a worker's functions have nothing to do, though they can be asked."""
        there = [f for f in self._of(self.threads.master) if f.message.worker == worker]
        return bool(there) and all(
            self.network.ends_of(f) and not (f.deaf or f.at_work) for f in there
        )

    def _must_end(self, function: Function) -> None:
        beats = _LEFT_ALONE_BEATS if function.deaf else _OUTLIVES_BEATS

        def check() -> None:
            if function.alive:
                raise Violation(f"a function outlived its master by {beats} beats")

        self._account.after(beats * function.message.beat_s, check)

    def _of(self, master: Process) -> list[Function]:
        return [function for function in self._functions if function.master is master]

    def _aside(self, elsewhere: bool) -> None:
        self._world.elsewhere = elsewhere


class _Replies:
    """A stranger's end: whatever it is told, it answers with a proof that is none."""

    def __init__(self, end: End) -> None:
        self._end = end

    def connection_made(self, _: object) -> None:
        """What is said first was said before."""

    def data_received(self, data: bytes) -> None:
        self._end.write(data[-32:])

    def connection_lost(self, _: object) -> None:
        """So be it."""

"""Functions, simulated: an account with its environments, and the file system that they share.

Real are `seqgc.workers`' way to open functions, `LambdaBackend`, the wire, `FunctionWorker`, and
the stores, whose files are real ones. Replaced is what is between them: network, service, time. The
account outlives masters: what a dead one has sent runs on, and its environments are still warm.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from seqgc.backends.lambda_ import Reply
from seqgc.errors import WireError
from seqgc.ports import Task, WeightRef
from seqgc.stores import DirectoryStore
from seqgc.wire import (
    InvokeMessage,
    StayMessage,
    TaskMessage,
    decode_invocation,
    encode,
    from_json,
    to_json,
)
from seqgc.worker import FACTORIES, FunctionWorker
from tests.simulation.backend import cached
from tests.simulation.faults import Fault
from tests.simulation.frames import altered, flipped, not_finite, of_another_run
from tests.simulation.ledger import Ledger
from tests.simulation.residents import Residents
from tests.simulation.seams import connection_error, opening, reply_of
from tests.simulation.world import Clock, Violation, World

TIMEOUT_S: Final = 25.0  # longer than the longest task takes after a cold start
COLD_S: Final = 10.0
_EVER_S: Final = 3000.0  # longer than anything that is waited for
MOST_AGAIN: Final = 1.2  # of n workers' invocations in any second
_LATENCY_S: Final = 0.02
_CACHED_BYTES: Final = 128  # four versions of the weights
_Worker = TypeVar("_Worker", bound=FunctionWorker)


class Bucket:
    """Tokens, ``rate`` of which come in a second: a service that admits so many calls."""

    def __init__(self, clock: Clock, *, rate: float, burst: float) -> None:
        self._clock, self._rate, self._burst = clock, rate, burst
        self._tokens, self._at = burst, clock.now()

    def admits(self) -> bool:
        now = self._clock.now()
        self._tokens = min(self._burst, self._tokens + self._rate * (now - self._at))
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """An invocation, as the service has it."""

    wire: Wire
    tag: int
    body: bytes
    run_id: str
    message: InvokeMessage | StayMessage
    fault: Fault | None

    @property
    def about(self) -> str:
        stays = isinstance(self.message, StayMessage)
        return "to stay" if stays else f"round {self.task.round}"

    @property
    def request(self) -> TaskMessage:
        assert isinstance(self.message, InvokeMessage), "of those that stay nobody asks"
        return self.message.request

    @property
    def task(self) -> Task:
        return self.request.task

    @property
    def kind(self) -> str | None:
        return None if self.fault is None else self.fault.kind

    @property
    def amount(self) -> float:
        return 0.0 if self.fault is None else self.fault.amount


class Wire:
    """A `seqgc.backends.lambda_.Transport` to an account, on its virtual clock."""

    def __init__(self, account: Account, n: int) -> None:
        self._account, self._n = account, n
        self.again: list[float] = []  # when throttled invocations were sent again
        self._inbox: list[Reply] = []
        self._read: list[bytearray] = []
        self.woken = self.closed = False
        self.under_way: set[int] = set()
        self.refused: set[int] = set()  # by throttling, when last sent
        self._seen: set[int] = set()

    def submit(self, tag: int, body: bytes) -> None:
        if tag in self.under_way or (tag in self._seen and tag not in self.refused):
            raise Violation(f"invocation {tag} is sent twice, and was not refused")
        if tag in self.refused:
            now = self._account.now()
            self.again.append(now)
            within = len(self.again) - bisect_left(self.again, now - 1 + 1e-6)
            if within > MOST_AGAIN * self._n:
                raise Violation(f"{within} invocations were sent again in the second before {now}")
        self._seen.add(tag)
        self.refused.discard(tag)
        self.under_way.add(tag)
        self._account.invoke(self, tag, body)

    def flush(self) -> None:
        pass

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        for body in self._read:
            body[:] = bytes(len(body))  # its memory is the transport's again
        self._account.wait(timeout_s, lambda: bool(self._inbox) or self.woken)
        self.woken = False
        replies, self._inbox = self._inbox, []
        self._read = [each.body for each in replies if isinstance(each.body, bytearray)]
        return replies

    def wake(self) -> None:
        self.woken = True

    def close(self) -> None:
        self.closed = True

    def deliver(self, reply: Reply) -> None:
        self.under_way.discard(reply.tag)
        if reply.throttled:
            self.refused.add(reply.tag)
        if not self.closed:
            self._inbox.append(reply)


class Account:
    """A function's service, and all that is under way there, in order of time."""

    def __init__(self, world: World, ledger: Ledger, mount: Path) -> None:
        self.world, self.mount, self._ledger = world, mount, ledger
        self.warming = False
        self.throttled = self.fetching = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._idle: list[FunctionWorker] = []
        self._refusals: dict[tuple[int, int], int] = {}  # to come, by round and worker
        self._bucket: tuple[float, Bucket] | None = None  # until when
        self._spent: float | None = None  # by a function or thread; None: the master is at it
        self._serving: Call | None = None
        self._wrong = ""
        self.residents = Residents(self)

    # ---- time -----------------------------------------------------------------------------------

    def now(self) -> float:
        """The time where something is done now, by the master or on its own."""
        return self.world.clock.at + (self._spent or 0.0)

    def pause(self, seconds: float) -> None:
        if self.residents.threads.current is not None:
            self.residents.threads.sleep(seconds)
        elif self._spent is None:
            self.world.clock.at += seconds
        else:
            self._spent += seconds

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.world.clock.at + seconds, self._count, do))

    def wait(self, timeout_s: float, news: Callable[[], bool]) -> None:
        """Let time pass until there are news, or no longer than that."""
        clock = self.world.clock
        until = clock.at + timeout_s
        last = min(until, clock.at + _EVER_S)
        while not news() and self._due and self._due[0][0] <= last:
            at, _, do = heapq.heappop(self._due)
            clock.at = max(clock.at, at)
            do()
            if self._wrong:
                raise Violation(self._wrong)
        if not news():
            if math.isinf(until):
                raise Violation("the policy waits for ever: nothing is left to arrive")
            clock.at = max(clock.at, until)

    @contextmanager
    def aside(self) -> Iterator[Callable[[], float]]:
        """What is done in the block takes time of its own, which is told, and no fault of disks."""
        before, self._spent, self.world.elsewhere = self._spent, 0.0, True
        try:
            yield lambda: self._spent or 0.0
        finally:
            self._spent, self.world.elsewhere = before, False

    # ---- invocations ----------------------------------------------------------------------------

    def invoke(self, wire: Wire, tag: int, body: bytes) -> None:
        run_id, message = decode_invocation(from_json(body))
        if isinstance(message, StayMessage):
            stay = Call(wire=wire, tag=tag, body=body, run_id=run_id, message=message, fault=None)
            self.residents.invite(stay, message)
            return
        task = message.request.task
        fault = None
        if not self.warming:
            self.expect(task, message, run_id)
            fault = self.world.of_task(task.round, task.worker)
        call = Call(wire=wire, tag=tag, body=body, run_id=run_id, message=message, fault=fault)
        if self._refuses(call):
            self.throttled += 1
            self.refuse(call)
        elif call.kind == "unavailable":
            status = (500, 502, 503, 504)[int(4 * call.amount)]
            self.respond(call, status, b'{"message":"try again"}')
        elif call.kind == "reset" and call.amount < 0.5:  # else its answer is lost
            self._break(call)
        else:
            self._start(call)

    def refuse(self, call: Call) -> None:
        text = b'{"Reason":"CallerRateLimitExceeded","message":"Rate exceeded"}'
        self.respond(call, 429, text, {"x-amzn-errortype": "TooManyRequestsException"})

    def _refuses(self, call: Call) -> bool:
        task, now = call.task, self.world.clock.now()
        address = task.round, task.worker
        if call.kind == "throttle":
            self._refusals[address] = 1 + int(11 * call.amount)
        elif call.kind == "scarce":
            self.ration(20, rate=self.world.shape.n * (0.2 + call.amount), burst=2)
        if self._refusals.get(address, 0) > 0:
            self._refusals[address] -= 1
            return True
        return bool(self._bucket and now < self._bucket[0] and not self._bucket[1].admits())

    def ration(self, seconds: float, *, rate: float, burst: float) -> None:
        """For so long, admit ``rate`` calls a second, and ``burst`` at once."""
        bucket = Bucket(self.world.clock, rate=rate, burst=burst)
        self._bucket = self.world.clock.now() + seconds, bucket

    def _start(self, call: Call) -> None:
        """Find an environment for a call, and let it run there until its end."""
        task = call.task
        seconds = _LATENCY_S
        if call.request.delay_s == 0:
            seconds += self.world.delay_s(task.round, task.worker)
        if call.kind == "delay":
            seconds += 100 * call.amount**3
        if self._idle and call.kind != "cold":
            worker = self._idle.pop()
        else:
            worker = self.environment()
            seconds += COLD_S if call.kind == "cold" or self.world.starts_cold() else 0
        if call.kind == "hang" or seconds > TIMEOUT_S:
            said = f"Task timed out after {TIMEOUT_S:.2f} seconds"
            self.after(TIMEOUT_S, partial(self.fail, call, "Sandbox.Timedout", said))
        elif call.kind == "crash":
            said = "RequestId: 1 Error: Runtime exited with error: signal: killed"
            self.after(seconds, partial(self.fail, call, "Runtime.ExitError", said))
        else:
            self.after(seconds, partial(self._finish, call, worker))

    def environment(self, kind: type[_Worker] = FunctionWorker) -> _Worker:
        return kind(
            FACTORIES,
            partial(opening.open_store, mount=self.mount),
            cached_bytes=_CACHED_BYTES,
            now=self.now,
            sleep=self.pause,
        )

    def _finish(self, call: Call, worker: FunctionWorker) -> None:
        """Have the function do its work, all of it at its end, and answer."""
        body = call.body
        if call.kind == "damage" and call.amount < 0.5:
            body = flipped(body, call.amount)
        with self.aside() as spent:
            self._serving = call
            try:
                if call.kind == "other-run":
                    worker.serve(of_another_run(call))
                if call.kind == "error":
                    raise MemoryError("scripted")
                answer = to_json(from_json(worker.serve(body).reply))
            except (WireError, MemoryError) as error:
                failed = partial(self.fail, call, type(error).__name__, str(error))
                self.after(spent(), failed)
            else:
                self.after(spent(), partial(self.answer, call, answer))
            finally:
                self._serving = None
        self._idle.append(worker)

    def answer(self, call: Call, answer: bytes) -> None:
        if call.kind == "reset":
            self._break(call)
            return
        if call.kind == "not-finite":
            answer = self._not_finite(call, answer)
        content = altered(call, answer)
        if call.kind == "foreign" and call.amount > 0.8:  # a stray one, before the true one
            stray = reply_of(call.tag + 10**9, self.now(), 200, bytearray(content), {})
            call.wire.deliver(stray)
            content = answer
        self.respond(call, 200, content)
        if call.kind == "repeat":
            self.after(5 * call.amount, partial(self.respond, call, 200, content))

    def _not_finite(self, call: Call, answer: bytes) -> bytes:
        wrong = not_finite(call, answer)
        if wrong is None:
            return answer
        if not call.wire.closed:  # to this, the worker's answer is true
            self._ledger.true[call.task.round, call.task.worker, call.task.attempt] = wrong.results
        return to_json(encode(wrong, run_id=call.run_id))

    def fail(self, call: Call, kind: str, said: str) -> None:
        """Answer as the service does if the function fails: under 200, with the tail of its log."""
        own = f"loading\n{call.about}, call {call.tag}"
        log = f"START RequestId: 1\n{own}\nEND RequestId: 1\nREPORT RequestId: 1\n"
        headers = {
            "x-amz-function-error": "Unhandled",
            "x-amz-log-result": base64.b64encode(log.encode()).decode(),
        }
        text = json.dumps({"errorType": kind, "errorMessage": said}).encode()
        self.respond(call, 200, text, headers)

    def _break(self, call: Call) -> None:
        error = connection_error(ConnectionResetError(104, "Connection reset by peer"))

        def deliver() -> None:
            call.wire.deliver(Reply(tag=call.tag, at=self.now(), error=error))

        self.after(_LATENCY_S, deliver)

    def respond(
        self, call: Call, status: int, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        def deliver() -> None:
            content = bytearray(body)
            call.wire.deliver(reply_of(call.tag, self.now(), status, content, headers or {}))

        self.after(_LATENCY_S, deliver)

    # ---- what must hold -------------------------------------------------------------------------

    def expect(self, task: Task, message: InvokeMessage, run_id: str) -> None:
        """Have the ledger know what a task's answer must be."""
        brought = dict(message.weights)
        files = DirectoryStore(Path(self.mount, message.store.location or run_id))

        def fetch(ref: WeightRef) -> Any:
            return brought[ref] if ref in brought else files.fetch(ref)

        def compute(parts: Any) -> Any:
            factory = FACTORIES.find(message.workload.name)
            return factory(message.workload.settings, fetch)(tuple(parts))

        results = {item.slot: cached(compute, item.parts) for item in task.items}
        self._ledger.true[task.round, task.worker, task.attempt] = results

    def missing(self, name: str) -> None:
        """Take note that a file is not there."""
        call = self._serving
        if call is not None and name.endswith(".npy") and not call.wire.closed:
            self._wrong = f"{name} was deleted, and a function of the run had yet to read it"

"""Answers on dask that are late, said twice, in another's place or of elsewhere, by a seed.

What a client of dask brings is replaced: here is only what the backend makes of it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from distributed.protocol import Serialize

from seqgc.backends import Messaging
from seqgc.backends.dask_ import DaskBackend
from seqgc.master import run
from seqgc.ports import Arrival, Close, Drop, Failure, Seen, Task
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.wire import ResultMessage, TaskMessage, decode, encode
from seqgc.worker import Compute, run_task
from tests.kit import SOAK
from tests.sums import Sums

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
SCHEDULES = 100_000 if SOAK else 40
N, JOBS = 4, 4
SPECS = ["uncoded", "gc:s=1", "sr-sgc:B=1,W=2,lam=2", "m-sgc:B=1,W=2,lam=2"]
KINDS = ["twice", "reordered", "run", "round", "attempt", "worker"]


class Gossip:
    """Stands for a `distributed.Client`: computes each task, and a seed has what it says of it.

    Its loop turns when `turn` is called, not by itself: what comes when is by the seed, too.
    """

    status, direct_to_workers = "running", True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.scheduler = SimpleNamespace(asyncio_loop=loop), self
        self.done = Counter[str]()
        self.under_way = 0

    def begin(self, compute: Compute, *, run_id: str, seed: int) -> None:
        """Answer the tasks of another run from here on."""
        self._compute, self._run_id, self._seed = compute, run_id, seed
        self._said = deque[ResultMessage](maxlen=40)

    def turn(self) -> None:
        """Let every answer be a step nearer."""
        self.loop.asyncio_loop.call_soon(self.loop.asyncio_loop.stop)
        self.loop.asyncio_loop.run_forever()

    def wait_for_workers(self, count: int, timeout: float) -> None: ...

    def register_plugin(self, plugin: object, name: str) -> None: ...

    def submit(self, _: object, key: str) -> concurrent.futures.Future[int]:  # noqa: ARG002
        """Return a future of the task that keeps a cluster awake."""
        future = concurrent.futures.Future[int]()
        future.release = lambda: None  # type: ignore[attr-defined]
        return future

    def sync(self, function: Callable[[], Coroutine[Any, Any, Any]], **_: object) -> Any:
        return self.loop.asyncio_loop.run_until_complete(function())

    async def ncores(self) -> dict[str, int]:
        return {"here": N}

    def rpc(self, _: str) -> Gossip:
        return self

    def __getattr__(self, operation: str) -> Any:
        """Return what stands for a handler of a dask worker."""
        if operation.endswith("-prepare"):
            return self._prepare
        if operation.endswith("-forget"):
            return self._forget
        return self._answer

    async def _prepare(self) -> dict[str, object]:
        return {"fault": "", "nanny": None}

    async def _forget(self, **_: object) -> str:
        return "OK"

    async def _answer(self, frame: Serialize) -> dict[str, object]:
        request = decode(frame.data, run_id=self._run_id)
        assert isinstance(request, TaskMessage)
        task = request.task
        chance = random.Random(f"{self._seed} {task.round} {task.worker} {task.attempt}")
        computed = run_task(task, self._compute)
        assert computed is not None
        answer = request.result(*computed)
        said = self._mixed_up(answer, chance)
        self._said.append(answer)
        self.under_way += 1
        try:
            for _ in range(chance.choice([0, 0, 1, 2, 3, 5, 20])):  # turns of the loop
                await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        return {"frame": [said], "seconds": 1.0}

    def _mixed_up(self, answer: ResultMessage, chance: random.Random) -> bytes:
        """Return the answer's frame, or that of another, and which kind of another it is."""
        subject, run_id = answer.subject, self._run_id
        round, worker, attempt = subject.address
        # One that has failed twice waits before it is asked again, and there is no need of that.
        if attempt > 1 or chance.random() > (0.3, 0.02)[attempt]:
            return encode(answer, run_id=run_id)
        kind, others = chance.choice(KINDS), [answer]
        match kind:
            case "twice":  # what this worker has answered before
                others = [each for each in self._said if each.subject.worker == worker]
            case "reordered":
                others = [each for each in self._said if each.subject.worker != worker]
            case "run":
                run_id = f"{run_id}-before"
            case "round":
                others = [_of(answer, round=round + chance.choice([1, 7, -round or 2]))]
            case "attempt":
                others = [_of(answer, attempt=attempt + chance.randint(1, 3))]
            case "worker":
                others = [_of(answer, worker=(worker + chance.randint(1, N - 1)) % N)]
        if others:
            self.done[kind] += 1
            answer = chance.choice(others)
        return encode(answer, run_id=run_id)


def _of(answer: ResultMessage, **address: int) -> ResultMessage:
    return replace(answer, subject=msgspec.structs.replace(answer.subject, **address))


class Turning:
    """A backend whose client's loop turns while answers are waited for."""

    def __init__(self, backend: DaskBackend, gossip: Gossip) -> None:
        self.n, self._backend, self._gossip = backend.n, backend, gossip

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        return self._backend.dispatch(round, tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        self._backend.cancel(round, workers)

    def receive(self, until: float) -> Arrival | Failure | None:
        for _ in range(3):  # until the dispatched tasks are under way
            self._gossip.turn()
        while self._gossip.under_way:
            self._gossip.turn()
            if event := self._backend.receive(min(until, time.monotonic())):
                return event
        return self._backend.receive(until)


@pytest.fixture
def gossip() -> Iterator[Gossip]:
    with closing(asyncio.new_event_loop()) as loop:
        yield Gossip(loop)


def test_whatever_an_answer_on_dask_says_no_gradient_is_wrong(gossip: Gossip) -> None:
    seen = Counter[str]()

    def observe(each: Seen) -> None:
        match each:
            case Failure(reason=reason):
                assert reason.startswith(("WireError: answer has", "WireError: frame belongs to"))
                seen["refused"] += 1
            case Arrival(round=round):
                seen["late"] += round <= closed[-1]
            case Drop():
                seen["dropped"] += 1
            case Close(record=record):
                closed.append(record.round)

    for seed in range(SCHEDULES):
        scheme, closed = parse_scheme(SPECS[seed % len(SPECS)], n=N), [-1]
        workload, messaging = Sums(scheme), Messaging(run_id=f"run-{seed}")
        gossip.begin(workload.factory(), run_id=messaging.run_id, seed=seed)
        policy = RoundPolicy(scheme.start(JOBS), ClosingRule(mu=0.0))
        with DaskBackend(N, workload.factory, client=gossip, messaging=messaging) as backend:
            backend.receive(time.monotonic() + 1e-3)  # else its first look is one after an absence
            run(policy, Turning(backend, gossip), workload, observe=observe)
            while gossip.under_way:
                gossip.turn()
        for _ in range(5):  # the backend's tasks in the loop end
            gossip.turn()
        assert workload.finished == JOBS, seed
    print(dict(seen), dict(gossip.done))
    assert set(gossip.done) == set(KINDS)
    assert seen["late"]
    # Each is, but for those that come when their run is over.
    assert 0.6 * gossip.done.total() < seen["refused"] <= gossip.done.total()

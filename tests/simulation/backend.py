"""Workers of this machine, simulated: they are slow, die, hang, repeat themselves, and lie."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from seqgc.ports import Arrival, Failure, FloatArray, Task, WeightedPoints
from tests.simulation import values
from tests.simulation.faults import Fault
from tests.simulation.ledger import Ledger
from tests.simulation.world import Violation, World

Compute = Callable[[Sequence[WeightedPoints]], FloatArray]
_CACHE: dict[object, FloatArray] = {}  # results depend on nothing else than their key


class SimulatedBackend:
    """A `seqgc.ports.RestartingBackend` on a virtual clock.

    Nothing that has been sent is called back: answers to rounds that are closed come all the same.
    """

    def __init__(self, world: World, ledger: Ledger, compute: Compute) -> None:
        self._world, self._ledger, self._compute = world, ledger, compute
        self._due: list[tuple[float, int, Arrival | Failure]] = []
        self._count = 0

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        now = self._world.clock.now()
        for task in tasks:
            fault = self._world.of_task(round, task.worker)
            results = {item.slot: cached(self._compute, item.parts) for item in task.items}
            due = now + self._world.delay_s(round, task.worker)
            self._send(task, results, due, fault)
        return [now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Nobody listens."""

    def restart(self, worker: int) -> None:
        now = self._world.clock.now()
        lost = [event for _, _, event in self._due if event.worker == worker]
        self._due = [entry for entry in self._due if entry[2].worker != worker]
        heapq.heapify(self._due)
        for event in lost:
            self._push(now, _failure(event, "replaced"))

    def receive(self, until: float) -> Arrival | Failure | None:
        clock = self._world.clock
        if self._due and self._due[0][0] <= until:
            at, _, event = heapq.heappop(self._due)
            clock.at = max(clock.at, at)
            return replace(event, at=clock.at) if isinstance(event, Failure) else event
        if math.isinf(until):
            raise Violation("the policy waits for ever: nothing is left to arrive")
        clock.at = max(clock.at, until)
        return None

    def close(self) -> None:
        self._due = []

    def _send(
        self, task: Task, results: Mapping[int, FloatArray], at: float, fault: Fault | None
    ) -> None:
        kind, amount = (None, 0.0) if fault is None else (fault.kind, fault.amount)
        if kind == "not-finite":
            results = values.not_finite(results, amount)
        elif kind == "lie":
            results = values.lie(results, amount)
        answer = values.answer(task, results, at=at)
        self._ledger.true[task.round, task.worker, task.attempt] = answer.results
        match kind:
            case "delay":
                at += 100 * amount**3
                self._push(at, replace(answer, at=at))
            case "crash":
                self._push(at, _failure(answer, "crashed"))
            case "hang":
                pass
            case "repeat":
                self._push(at, answer)
                again = at + 5 * amount
                self._push(again, replace(answer, at=again))
            case "foreign":
                self._push(at, answer)
                at += (3 * amount) % 1 - 0.8
                wrong = _foreign(answer, at=at, amount=amount, n=self._world.shape.n)
                self._forge(wrong, at, results.keys())
            case "falsify" if results:  # an answer to nothing has no form to be wrong
                wrong = replace(answer, results=_falsified(results, amount))
                if int(6 * amount) in {3, 4}:  # asked again, this says that a model has diverged
                    self._ledger.true[task.round, task.worker, task.attempt] = wrong.results
                    self._push(at, wrong)
                else:
                    new = wrong.results
                    slots = {slot for slot in results if new.get(slot) is not results[slot]}
                    self._forge(wrong, at, slots)
            case _:
                self._push(at, answer)

    def _forge(self, answer: Arrival, at: float, slots: Set[int]) -> None:
        self._ledger.forge(answer, slots)
        self._push(at, answer)

    def _push(self, at: float, event: Arrival | Failure) -> None:
        self._count += 1
        heapq.heappush(self._due, (at, self._count, event))


def cached(compute: Compute, parts: Sequence[WeightedPoints]) -> FloatArray:
    """Return what ``compute`` makes of the parts, or made of their like before."""
    key = tuple(
        (p.model, p.weights.digest, p.points.tobytes(), p.coefficients.tobytes()) for p in parts
    )
    if key not in _CACHE:
        if len(_CACHE) > 50_000:
            _CACHE.clear()
        _CACHE[key] = compute(parts)
        _CACHE[key].flags.writeable = False
    return _CACHE[key]


def _failure(of: Arrival | Failure, reason: str) -> Failure:
    return Failure(round=of.round, worker=of.worker, attempt=of.attempt, at=of.at, reason=reason)


def _foreign(answer: Arrival, *, at: float, amount: float, n: int) -> Arrival:
    """Return an answer that nobody asked for, whose results are nobody's."""
    results = {slot: np.full_like(vector, 1e3) for slot, vector in answer.results.items()}
    wrong = replace(answer, at=at, results=results)
    match int(4 * amount):
        case 0:
            return replace(wrong, attempt=answer.attempt + 5)
        case 1:
            return replace(wrong, round=answer.round + 1, attempt=answer.attempt + 5)
        case 2:
            return replace(wrong, round=answer.round - 1, attempt=answer.attempt + 5)
        case _:
            return replace(wrong, worker=(answer.worker + 1) % n, attempt=answer.attempt + 9)


def _falsified(results: Mapping[int, FloatArray], amount: float) -> Mapping[int, FloatArray]:
    """Return results that no worker can have computed, and whose form shows it."""
    slot = sorted(results)[int(1000 * amount) % len(results)]
    good = results[slot]
    match int(6 * amount):
        case 0:
            return {**results, slot: good[:-1]}
        case 1:
            with np.errstate(over="ignore"):  # it is the form that is wrong, not a value
                return {**results, slot: good.astype(np.float16)}
        case 2:
            return {other: vector for other, vector in results.items() if other != slot}
        case 3:
            return {**results, slot: np.full_like(good, 3e38)}
        case 4:  # of a backend without the wire
            return {**results, slot: np.full_like(good, np.nan)}
        case _:
            return {**results, slot: good.reshape(1, -1)}

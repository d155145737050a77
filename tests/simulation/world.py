"""What all masters of one simulated run share: time, faults, the record, and what must hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from seqgc import ports
from seqgc.ports import Arrival, Doubt, Drop, FloatArray, Seen
from seqgc.training import JobMetrics
from tests.simulation.faults import HARMLESS, MAX_NORM, Fault, Scenario, sort

_OF_WORKERS = ("task", "read")


class Violation(AssertionError):
    """Something happened that never may."""


class Killed(BaseException):
    """The master is no more; what it does while this passes through it happens to nobody."""


class Clock:
    """Virtual seconds, and a wall clock that may step; stands for the module ``time`` as well."""

    def __init__(self) -> None:
        self.at = 0.0
        self.off_s = 0.0  # by how much the wall clock is wrong

    def now(self) -> float:
        return self.at

    def time(self) -> float:
        return 2e9 + self.at + self.off_s

    def monotonic(self) -> float:
        return self.at

    perf_counter = now


class Record:
    """A digest of all that has happened, in order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.lines: list[str] | None = None  # kept if a list is put here
        self.folder = ""  # whose name is random, and is left out

    def add(self, *words: object) -> None:
        line = " ".join(map(str, words)).replace(self.folder, "")
        self._digest.update(line.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


class World:
    """Faults, each of which happens once, and the number of events and system calls so far."""

    def __init__(self, scenario: Scenario) -> None:
        self.clock, self.record, self.shape = Clock(), Record(), scenario.shape
        self.dealt = scenario.spec.startswith("deal")
        self.rng = np.random.default_rng([scenario.seed, 1])
        table = np.random.default_rng([scenario.delays, 2])
        self.delays_s = 1 + np.minimum(table.pareto(2.0, size=(64, self.shape.n)), 9.0)
        self._faults = {(sort(f.kind), f.at): f for f in scenario.faults}
        self._wild = scenario.wild
        self.events = self.calls = self.reads = 0
        self.sent: dict[tuple[int, int], int] = {}  # by round and worker
        self.happened: list[Fault] = []
        self.jobs_begun = self.disk_failed = False
        self.alive = True  # the present master
        self.elsewhere = False  # whether it is on another machine that something is done
        self.expelled: set[int] = set()  # workers
        self.claims: dict[tuple[int, str], set[int]] = {}  # who said that a model is not finite
        self.diverged: set[str] = set()  # models, as told
        self.uncompared = False  # whether an audit has told of results that nobody confirmed
        self.switches: list[tuple[int, int, str]] = []  # first round, first job, scheme
        self.closed: dict[int, tuple[int, ...]] = {}  # stragglers by round

    def delay_s(self, round: int, worker: int) -> float:
        """Return how long a worker computes, seconds."""
        return float(self.delays_s[round, worker])

    def starts_cold(self) -> bool:
        """Say whether an environment that is needed now takes long to start."""
        return False

    def of_task(self, round: int, worker: int) -> Fault | None:
        """Return what goes wrong with the task that is now sent."""
        count = self.sent.get((round, worker), 0)
        self.sent[round, worker] = count + 1
        return self._note("task", round, worker, count)

    def of_event(self) -> Fault | None:
        self.events += 1
        return self._note("event", self.events - 1)

    def of_call(self) -> Fault | None:
        self.calls += 1
        return self._note("call", self.calls - 1)

    def of_read(self) -> Fault | None:
        """Return what goes wrong with the reading of the functions' store that is made now."""
        self.reads += 1
        return self._note("read", self.reads - 1)

    @property
    def may_fail(self) -> bool:
        """Whether something has happened to a worker, or a model, by which its task may fail."""
        return self._wild or any(
            sort(f.kind) in _OF_WORKERS and f.kind not in HARMLESS for f in self.happened
        )

    def _note(self, kind: str, *at: int) -> Fault | None:
        fault = self._faults.get((kind, at))
        if fault is not None:
            self.happened.append(fault)
            if fault.kind != "clock":  # of which nothing may be seen
                self.record.add("fault", fault)
        return fault


Address: TypeAlias = tuple[int, int, int]  # worker, round, slot


class Ledger:
    """An observer that knows which answers are true, and that only these are used, once.

    ``true`` is what was sent in answer to an attempt; ``forged`` are the answers of this run whose
    form is not what their task asked for. Masters of one run share what was ``accepted``.
    """

    def __init__(self, world: World, accepted: set[Address] | None = None) -> None:
        self._world = world
        self._accepted = set[Address]() if accepted is None else accepted  # by any master
        self.begin()

    def begin(self) -> None:
        """Another master begins."""
        # What an attempt was asked for, by slot.
        self.true: dict[tuple[int, int, int], Mapping[int, FloatArray]] = {}
        self.forged: set[int] = set()  # identities of events, kept alive by `kept`
        self.kept: list[Arrival] = []
        self._open: set[int] = set()  # one round, or jobs under way where work is dealt
        self._last: Arrival | None = None
        self._settled: set[object] = set()
        self._finished: set[int] = set()

    def __call__(self, seen: Seen) -> None:
        if not self._world.alive:
            return
        self._write(seen)
        last, self._last = self._last, None
        if last is not None and not (isinstance(seen, Drop | Doubt) and seen.event is last):
            self._accept(last)
        match seen:
            case ports.Diverged(answers=answers):
                for answer in answers:
                    self._accept(answer)
            case Arrival():
                self._last = seen
            case ports.Failure(round=round, worker=worker):
                why = f"worker {worker} failed in round {round}, and nothing had happened to it"
                self._require(self._world.may_fail, f"{why}: {seen.reason}")
            case ports.Dispatch():
                self._begin_round(seen)
            case ports.Close():
                is_open = seen.record.round in self._open or seen.record.reason == "idle"
                self._require(is_open, f"round {seen.record.round} was not open")
                self._open.discard(seen.record.round)
            case ports.Finish():
                self._finish(seen)

    def _begin_round(self, dispatch: ports.Dispatch) -> None:
        if dispatch.attempt == 0 or self._world.dealt:
            self._world.jobs_begun = True
            if not self._world.dealt:
                self._open, self._settled = set(), set()
            self._open.add(dispatch.round)

    def _finish(self, finish: ports.Finish) -> None:
        job = finish.job
        self._require(job not in self._finished, f"job {job} finished twice")
        self._finished.add(job)
        for term in finish.decoding().terms:
            key = (term.worker, term.round, term.slot)
            self._require(key in self._accepted, f"job {job} uses {key}, never accepted")

    def _accept(self, answer: Arrival) -> None:
        round, worker = answer.round, answer.worker
        name = f"the answer of round {round}, worker {worker}, attempt {answer.attempt}"
        self._require(worker not in self._world.expelled, f"{name}, who was expelled, was accepted")
        self._require(id(answer) not in self.forged, f"{name}, which is forged, was accepted")
        true = self.true.get((round, worker, answer.attempt))
        self._require(true is not None, f"{name}, which nobody asked for, was accepted")
        for slot, result in (true or {}).items():
            self._require(
                _is_as_asked(answer, slot, result),
                f"{name} was accepted, and slot {slot} is not what was asked for",
            )
        is_open = round in self._open or (self._world.dealt and not true)  # a greeting's is empty
        self._require(is_open, f"{name} was accepted while {self._open} was open")
        once = {(round, slot) for slot in true or ()} if self._world.dealt else {worker}
        self._require(not once & self._settled, f"{name} was accepted, and is the second")
        self._settled |= once
        self._accepted |= {(worker, round, slot) for slot in true or ()}

    def _write(self, seen: Seen) -> None:
        about = seen.event if isinstance(seen, Drop) else seen
        address = [getattr(about, name, "") for name in ("round", "worker", "attempt", "job")]
        extra: object = getattr(about, "kind", "") or getattr(about, "reason", "")
        if isinstance(seen, ports.Close):
            extra = (seen.record.reason, np.flatnonzero(~seen.record.responded).tolist())
        self._world.record.add(type(seen).__name__, *address, extra, f"{self._world.clock.at:.9f}")

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise Violation(message)


def _is_as_asked(answer: Arrival, slot: int, sent: FloatArray) -> bool:
    """Say whether a result is what was sent, with zeros for what is too large of it."""
    result, sent = answer.results[slot].astype(float), sent.astype(float)
    if np.linalg.norm(sent) <= MAX_NORM:
        return np.array_equal(result, sent)
    same = result.shape == sent.shape and bool(((result == sent) | (result == 0)).all())
    return same and bool(answer.not_finite) and bool(np.linalg.norm(result) <= MAX_NORM)


def check_losses(
    metrics: Iterable[JobMetrics], expected: dict[tuple[str, int], float], *, exact: bool
) -> None:
    """See that each model's step has the loss that it has without faults."""
    for entry in metrics:
        due = expected[entry.model, entry.step]
        if entry.loss != due and (exact or not abs(entry.loss - due) <= 1e-5 * max(1, abs(due))):
            what = f"the loss of {entry.model}, step {entry.step}, job {entry.job}"
            raise Violation(f"{what}, is {entry.loss!r}, and without faults {due!r}")

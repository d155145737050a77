"""What all masters of one simulated run share: time, faults, the record, and what must hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from seqgc.schemes import parse_scheme
from seqgc.training import JobMetrics
from tests.simulation.faults import Fault, Scenario, may_fail_by, sort


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
        self.seed, self.lease_s = scenario.seed, scenario.lease_s
        self.leases_over = False  # whether a function has served until its lease ended
        self.dealt = scenario.spec.startswith("deal")
        specs = scenario.spec, *(spec for _, spec in scenario.switches)
        schemes = [parse_scheme(spec, n=self.shape.n) for spec in specs if spec]
        self.takes_late = any(getattr(scheme, "late", "drop") == "take" for scheme in schemes)
        self.rng = np.random.default_rng([scenario.seed, 1])
        table = np.random.default_rng([scenario.delays, 2])
        self.delays_s = 1 + np.minimum(table.pareto(2.0, size=(64, self.shape.n)), 9.0)
        if scenario.late is not None:
            self.delays_s[:] = 1
            for round, workers in enumerate(scenario.late):
                self.delays_s[round, list(workers)] = 50
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
        self.is_idle: Callable[[int], bool] = lambda _: False  # a worker that could be asked
        self.switches: list[tuple[int, int, str]] = []  # first round, first job, scheme
        self.closed: dict[int, tuple[int, ...]] = {}  # stragglers by round

    def delay_s(self, round: int, worker: int) -> float:
        """Return how long a worker computes, seconds."""
        return float(self.delays_s[round % len(self.delays_s), worker])

    def starts_cold(self) -> bool:
        """Say whether an environment that is needed now takes long to start."""
        return False

    def of_task(self, round: int, worker: int) -> Fault | None:
        """Return what goes wrong with the task that is now sent."""
        count = self.sent.get((round, worker), 0)
        self.sent[round, worker] = count + 1
        return self._note("task", round, worker, count)

    def of_stay(self, worker: int, number: int) -> Fault | None:
        """Return what goes wrong with a worker's so-manieth invocation that is to stay."""
        return self._note("stay", worker, number)

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
        return self._wild or self.leases_over or any(map(may_fail_by, self.happened))

    def _note(self, kind: str, *at: int) -> Fault | None:
        fault = self._faults.get((kind, at))
        if fault is not None:
            self.happened.append(fault)
            if fault.kind != "clock":  # of which nothing may be seen
                self.record.add("fault", fault)
        return fault


def check_losses(
    metrics: Iterable[JobMetrics], expected: dict[tuple[str, int], float], *, exact: bool
) -> None:
    """See that each model's step has the loss that it has without faults."""
    for entry in metrics:
        due = expected[entry.model, entry.step]
        if entry.loss != due and (exact or not abs(entry.loss - due) <= 1e-5 * max(1, abs(due))):
            what = f"the loss of {entry.model}, step {entry.step}, job {entry.job}"
            raise Violation(f"{what}, is {entry.loss!r}, and without faults {due!r}")

"""What goes wrong in a simulated run, and where: drawn from a seed, so that a seed is a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

N: Final = 6
MAX_NORM: Final = 1e6
SPECS: Final = (
    "uncoded",
    "gc:s=2",
    "gc-rep:s=1",
    "gc-binary:s=1",
    "sr-sgc:B=1,W=2,lam=2",
    "sr-sgc-rep:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc-rep:B=1,W=2,lam=2",
)
AUDITED: Final = ("gc-rep:s=2", "gc-binary:s=2", "sr-sgc-rep:B=1,W=2,lam=3")
SWITCHED: Final = ("uncoded", "gc:s=2", "gc-rep:s=1", "sr-sgc:B=1,W=2,lam=2", "m-sgc:B=1,W=2,lam=2")
TASK_KINDS: Final = ("delay", "crash", "hang", "repeat", "foreign", "falsify", "not-finite", "lie")
EVENT_KINDS: Final = ("kill", "rival", "clock")
FUNCTION_KINDS: Final = (  # of tasks as well, where workers are functions
    "throttle",
    "scarce",
    "reset",
    "unavailable",
    "error",
    "cold",
    "damage",
    "other-run",
)
READ_KINDS: Final = ("stale-read", "short-read", "flipped-read", "failing-read")  # of their store
HARMLESS: Final = ("repeat", "cold", "other-run")  # of these nobody fails
BACKENDS: Final = ("local", "lambda", "lambda-receipts", "lambda-inline")
CALL_KINDS: Final = ("kill-at-call", "power-loss", "no-space", "io-error")
TABLES: Final = 3
# About as many as a run without faults has.
ROUNDS, EVENTS, CALLS, READS = 16, 220, 330, 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, once.

    ``at`` is (round, worker, how often this task has been sent before), or the number of the event,
    of the system call, or of the reading of the store. ``amount``, from [0, 1), says how much, or
    which variant.
    """

    kind: str
    at: tuple[int, ...]
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run and all that goes wrong in it."""

    seed: int
    spec: str
    delays: int  # which of the tables of delays, of which there are `TABLES`
    checkpoint_every_s: float
    faults: tuple[Fault, ...]
    backend: str = "local"  # of `BACKENDS`
    audit: bool = False
    wild: bool = False  # whether one model's steps are beyond what a float holds
    switches: tuple[tuple[int, str], ...] = ()  # (jobs left, scheme): what is best from then on

    def __str__(self) -> str:
        rows = [f"with {jobs} jobs left {spec} is best" for jobs, spec in self.switches]
        rows += [f"{f.kind} at {', '.join(map(str, f.at))} ({f.amount:.3f})" for f in self.faults]
        more = ", audit" * self.audit + ", a model that diverges" * self.wild
        where = f"{self.spec}{more}, {self.backend}, delays {self.delays}"
        head = f"{where}, a checkpoint every {self.checkpoint_every_s:g} s"
        return "\n  ".join([head, *rows])


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed: some kinds of faults, each a few times."""
    rng = np.random.default_rng(seed)
    faults: list[Fault] = []
    for kind in TASK_KINDS[:6]:
        if rng.random() < 0.4:
            for _ in range(1 + rng.geometric(0.25)):
                at = int(rng.integers(ROUNDS)), int(rng.integers(N)), int(rng.geometric(0.7)) - 1
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    for kinds, range_, chance in ((EVENT_KINDS[:1], EVENTS, 0.4), (CALL_KINDS, CALLS, 0.25)):
        for kind in kinds:
            if rng.random() < chance:
                for _ in range(rng.geometric(0.5)):
                    at = (int(rng.integers(range_)),)
                    faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    backend = str(np.random.default_rng([seed, 3]).choice(BACKENDS, p=[0.85, 0.05, 0.05, 0.05]))
    if backend != "local":
        faults += of_functions(np.random.default_rng([seed, 4]))
    scenario = Scenario(
        seed=seed,
        spec=str(rng.choice(SPECS)),
        delays=int(rng.integers(TABLES)),
        checkpoint_every_s=float(rng.choice([2.0, 9.0, 1e9])),
        faults=tuple(faults),
        backend=backend,
    )
    scenario = _widened(scenario, np.random.default_rng([seed, 5]))
    places = {(sort(f.kind), f.at): f for f in scenario.faults}
    return _with(scenario, list(places.values()))  # one a place


def _widened(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """Add, now and then, clocks that step and second masters, wrong values, or switches."""
    faults = list(scenario.faults)
    for kind in EVENT_KINDS[1:]:
        if rng.random() < 0.15:
            for _ in range(rng.geometric(0.3)):
                at = (int(rng.integers(EVENTS)),)
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    scenario = _with(scenario, faults)
    return _themed(scenario, rng) if scenario.backend == "local" else scenario


def _themed(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    faults, theme = list(scenario.faults), rng.random()
    if theme < 0.12:
        liars = rng.choice(N, 2, replace=False)
        for _ in range(1 + rng.geometric(0.3)):
            at = int(rng.integers(ROUNDS)), int(rng.choice(liars)), 0
            faults.append(Fault(kind="lie", at=at, amount=float(rng.random())))
        scenario = replace(scenario, spec=str(rng.choice(AUDITED)), audit=True)
    elif theme < 0.24:
        jobs = sorted(rng.choice(np.arange(1, 11), 1 + int(rng.integers(3)), replace=False))[::-1]
        switches = tuple((int(left), str(rng.choice(SWITCHED))) for left in jobs)
        scenario = replace(scenario, switches=switches)
    elif theme < 0.4:
        for _ in range(1 + rng.geometric(0.3)):
            at = int(rng.integers(ROUNDS)), int(rng.integers(N)), 0
            faults.append(Fault(kind="not-finite", at=at, amount=float(rng.random())))
    elif theme < 0.45:
        scenario = replace(scenario, wild=True)
    return _with(scenario, faults)


def of_functions(rng: np.random.Generator) -> list[Fault]:
    """Return what goes wrong with functions alone."""
    faults = []
    for kind in FUNCTION_KINDS:
        if rng.random() < 0.3:
            for _ in range(1 + rng.geometric(0.3)):
                at = int(rng.integers(ROUNDS)), int(rng.integers(N)), int(rng.geometric(0.7)) - 1
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    for kind in READ_KINDS:
        if rng.random() < 0.3:
            first = int(rng.integers(READS))
            faults += [
                Fault(kind=kind, at=(number,), amount=float(rng.random()))
                for number in range(first, first + int(rng.geometric(0.4)))
            ]
    return faults


def sort(kind: str) -> str:
    """Return what faults of the kind happen to: of one place only one may."""
    kinds = {"read": READ_KINDS, "event": EVENT_KINDS, "call": CALL_KINDS}
    return next((sort for sort, each in kinds.items() if kind in each), "task")


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return a scenario that fails with as few of its faults as can be found (Zeller's ddmin)."""
    faults, pieces = list(scenario.faults), 2
    while faults:
        size = max(1, len(faults) // pieces)
        for begin in range(0, len(faults), size):
            fewer = faults[:begin] + faults[begin + size :]
            if fails(_with(scenario, fewer)):
                faults, pieces = fewer, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(faults), 2 * pieces)
    return _with(scenario, faults)


def without(scenario: Scenario, kind: str) -> Scenario:
    """Return the scenario in which no such fault happens."""
    return _with(scenario, [fault for fault in scenario.faults if fault.kind != kind])


def _with(scenario: Scenario, faults: Sequence[Fault]) -> Scenario:
    return replace(scenario, faults=tuple(faults))

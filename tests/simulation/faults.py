"""What goes wrong in a simulated run, and where: drawn from a seed, so that a seed is a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

MAX_NORM: Final = 1e6
SPECS: Final = (
    "uncoded",
    "gc:s=2",
    "gc-rep:s=1",
    "gc-binary:s=1",
    "sr-sgc:B=1,W=2,lam=2",
    "sr-sgc-rep:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc-rep:B=1,W=2,lam=1",
    "ra-sgc:s=0,q=0.5,r=2,late=drop",
    "ra-sgc:s=0,q=0.5,r=2",
    "ra-sgc:s=0,q=0.5,r=2,p=2",
    "sr-sgc:B=1,W=2,lam=2,late=take",
    "m-sgc:B=1,W=2,lam=2,late=take",
    "m-sgc-rep:B=1,W=2,lam=1,late=take",
)
AUDITED: Final = ("gc-rep:s=2", "gc-binary:s=2", "sr-sgc-rep:B=1,W=2,lam=3")
SWITCHED: Final = (
    "uncoded",
    "gc:s=2",
    "gc-rep:s=1",
    "sr-sgc:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "ra-sgc:s=0,q=0.5,r=2",
)
TASK_KINDS: Final = ("delay", "crash", "hang", "repeat", "foreign", "falsify", "not-finite", "lie")
EVENT_KINDS: Final = ("kill", "rival", "clock", "lost-machine", "cut", "mute", "expire", "stranger")
CONNECTION_KINDS: Final = EVENT_KINDS[4:]  # of functions that stay
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
STAY_KINDS: Final = ("late-start", "no-start", "refused-start", "broken-start")
"""Of a worker's so-manieth invocation that is to stay."""
READ_KINDS: Final = ("stale-read", "short-read", "flipped-read", "failing-read")  # of their store
HARMLESS: Final = ("repeat", "cold", "other-run", "stranger")  # of these nobody fails
BACKENDS: Final = ("local", "lambda", "lambda-receipts", "lambda-inline", "resident")
LEASES_S: Final = (900.0, 60.0, 25.0)
CALL_KINDS: Final = ("kill-at-call", "power-loss", "no-space", "io-error")
TABLES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a run is: each of so many models takes so many steps on ``n`` workers.

    Rounds, events, system calls, and readings of the functions' store are about as many as a run
    without faults has.
    """

    n: int
    models: int
    steps: int
    rounds: int
    events: int
    calls: int
    reads: int

    @property
    def jobs(self) -> int:
        return self.models * self.steps


LARGE: Final = Shape(n=6, models=4, steps=3, rounds=16, events=220, calls=330, reads=150)
SMALL: Final = Shape(n=4, models=2, steps=3, rounds=8, events=90, calls=150, reads=50)
"""What fails can nearly always be had small, where many more can be tried."""
_WIDE: Final = Shape(n=6, models=2, steps=3, rounds=8, events=110, calls=150, reads=50)
_LARGE_PART: Final = 0.02  # of all seeds


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
    shape: Shape = LARGE
    backend: str = "local"  # of `BACKENDS`
    lease_s: float = LEASES_S[0]  # of functions that stay
    audit: bool = False
    wild: bool = False  # whether one model's steps are beyond what a float holds
    switches: tuple[tuple[int, str], ...] = ()  # (jobs left, scheme): what is best from then on
    updates: str = ""  # of `tests.simulation.promises.UPDATES`: of batches that come in parts
    straight: bool = False  # whether models are such that any weights have the same gradients
    late: tuple[tuple[int, ...], ...] | None = None  # workers by round, instead of the delays
    stale: bool = False  # whether gradients wait, decoded, until they are exactly T rounds late

    def __str__(self) -> str:
        rows = [f"with {jobs} jobs left {spec} is best" for jobs, spec in self.switches]
        rows += [f"{f.kind} at {', '.join(map(str, f.at))} ({f.amount:.3f})" for f in self.faults]
        more = f", {self.updates}" * bool(self.updates) + ", audit" * self.audit
        more += ", a model that diverges" * self.wild + ", stale" * self.stale
        size = f"{self.shape.n} workers, {self.shape.jobs} jobs"
        lease = f" for {self.lease_s:g} s" * (self.backend == "resident")
        where = f"{self.spec}{more}, {self.backend}{lease}, {size}, delays {self.delays}"
        head = f"{where}, a checkpoint every {self.checkpoint_every_s:g} s"
        return "\n  ".join([head, *rows])


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed: some kinds of faults, each a few times."""
    rng = np.random.default_rng(seed)
    shape = LARGE if np.random.default_rng([seed, 6]).random() < _LARGE_PART else SMALL
    # Of what happens to a task, and of what happens to a run, in a small one.
    fewer, rarer = (1.0, 1.0) if shape is LARGE else (2.0, 1.6)
    faults: list[Fault] = []
    for kind in TASK_KINDS[:6]:
        if rng.random() < 0.4 / fewer**0.5:
            count = 1 + rng.geometric(0.25 * fewer)
            faults += [_of_task(kind, shape, rng) for _ in range(count)]
    runs = ((EVENT_KINDS[:1], shape.events, 0.4), (CALL_KINDS, shape.calls, 0.25))
    for kinds, range_, chance in runs:
        for kind in kinds:
            if rng.random() < chance / rarer:
                for _ in range(rng.geometric(0.5 * rarer)):
                    at = (int(rng.integers(range_)),)
                    faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    chances = [1 - 0.03 * len(BACKENDS[1:]), *[0.03] * len(BACKENDS[1:])]
    backend = str(np.random.default_rng([seed, 3]).choice(BACKENDS, p=chances))
    lease_s = LEASES_S[0]
    if backend == "resident":
        own = np.random.default_rng([seed, 8])
        faults, lease_s = [*faults, *of_residents(own, shape=shape)], float(own.choice(LEASES_S))
    elif backend != "local":
        faults += of_functions(np.random.default_rng([seed, 4]), shape=shape)
    scenario = Scenario(
        seed=seed,
        shape=shape,
        spec=str(rng.choice(SPECS)),
        delays=int(rng.integers(TABLES)),
        checkpoint_every_s=float(rng.choice([2.0, 9.0, 1e9])),
        faults=tuple(faults),
        backend=backend,
        lease_s=lease_s,
    )
    scenario = _widened(scenario, np.random.default_rng([seed, 5]))
    places = {(sort(f.kind), f.at): f for f in scenario.faults}
    return _with(scenario, list(places.values()))  # one a place


def _of_task(kind: str, shape: Shape, rng: np.random.Generator) -> Fault:
    """Return a fault of any task, most often of its first attempt."""
    at = int(rng.integers(shape.rounds)), int(rng.integers(shape.n)), int(rng.geometric(0.7)) - 1
    return Fault(kind=kind, at=at, amount=float(rng.random()))


def _widened(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """Add, now and then, clocks that step and second masters, wrong values, or switches."""
    faults = list(scenario.faults)
    for kind, chance in (("rival", 0.1), ("clock", 0.08)):
        if rng.random() < chance:
            for _ in range(rng.geometric(0.3)):
                at = (int(rng.integers(scenario.shape.events)),)
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    scenario = _with(scenario, faults)
    return _themed(scenario, rng) if scenario.backend == "local" else scenario


def _themed(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    faults, theme, shape = list(scenario.faults), rng.random(), scenario.shape
    if theme < 0.12:
        shape = _WIDE if shape is SMALL else shape  # for three replicas
        liars = rng.choice(shape.n, 2, replace=False)
        for _ in range(1 + rng.geometric(0.3)):
            at = int(rng.integers(shape.rounds)), int(rng.choice(liars)), 0
            faults.append(Fault(kind="lie", at=at, amount=float(rng.random())))
        scenario = replace(scenario, shape=shape, spec=str(rng.choice(AUDITED)), audit=True)
    elif theme < 0.24:
        left = rng.choice(np.arange(1, shape.jobs - 1), 1 + int(rng.integers(3)), replace=False)
        switches = tuple((int(jobs), str(rng.choice(SWITCHED))) for jobs in sorted(left)[::-1])
        scenario = replace(scenario, switches=switches)
    elif theme < 0.4:
        for _ in range(1 + rng.geometric(0.3)):
            at = int(rng.integers(shape.rounds)), int(rng.integers(shape.n)), 0
            faults.append(Fault(kind="not-finite", at=at, amount=float(rng.random())))
    elif theme < 0.45:
        scenario = replace(scenario, wild=True)
    return _with(scenario, faults)


def of_functions(rng: np.random.Generator, *, shape: Shape = LARGE) -> list[Fault]:
    """Return what goes wrong with functions alone."""
    faults = []
    for kind in FUNCTION_KINDS:
        if rng.random() < 0.3:
            faults += [_of_task(kind, shape, rng) for _ in range(1 + rng.geometric(0.3))]
    for kind in READ_KINDS:
        if rng.random() < 0.3:
            first = int(rng.integers(shape.reads))
            faults += [
                Fault(kind=kind, at=(number,), amount=float(rng.random()))
                for number in range(first, first + int(rng.geometric(0.4)))
            ]
    return faults


def of_residents(rng: np.random.Generator, *, shape: Shape = LARGE) -> list[Fault]:
    """Return what goes wrong with functions that stay alone."""
    faults = []
    for kind in (*CONNECTION_KINDS, "lost-machine"):
        if rng.random() < 0.3:
            for _ in range(rng.geometric(0.4)):
                at = (int(rng.integers(shape.events)),)
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    for kind in STAY_KINDS:
        if rng.random() < 0.2:
            for _ in range(rng.geometric(0.4)):
                at = int(rng.integers(shape.n)), int(rng.geometric(0.6)) - 1
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    for kind in ("error", "damage"):
        if rng.random() < 0.3:
            faults += [_of_task(kind, shape, rng) for _ in range(1 + rng.geometric(0.3))]
    return faults


def may_happen_to(backend: str, fault: Fault) -> bool:
    """Say whether a fault is one that workers of the kind can have."""
    stay = {*CONNECTION_KINDS, *STAY_KINDS, "lost-machine"}
    functions = {*READ_KINDS, *FUNCTION_KINDS}
    never = {
        "local": functions | stay,
        "resident": {"lie", "not-finite", *functions} - {"error", "damage"},
    }
    return fault.kind not in never.get(backend, {"lie", "not-finite", *stay})


def sort(kind: str) -> str:
    """Return what faults of the kind happen to: of one place only one may."""
    kinds = {"read": READ_KINDS, "event": EVENT_KINDS, "call": CALL_KINDS, "stay": STAY_KINDS}
    return next((sort for sort, each in kinds.items() if kind in each), "task")


def may_fail_by(fault: Fault) -> bool:
    """Say whether a task may fail by what happened."""
    is_workers = sort(fault.kind) in {"task", "read", "stay"} or fault.kind in CONNECTION_KINDS
    return is_workers and fault.kind not in HARMLESS


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

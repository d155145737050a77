"""What goes wrong in a simulated run, and where: drawn from a seed, so that a seed is a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

N: Final = 6
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
TASK_KINDS: Final = ("delay", "crash", "hang", "repeat", "foreign", "falsify")
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
EVENT_KINDS: Final = ("kill",)
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

    def __str__(self) -> str:
        rows = [f"{f.kind} at {', '.join(map(str, f.at))} ({f.amount:.3f})" for f in self.faults]
        where = f"{self.spec}, {self.backend}, delays {self.delays}"
        head = f"{where}, a checkpoint every {self.checkpoint_every_s:g} s"
        return "\n  ".join([head, *rows])


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed: some kinds of faults, each a few times."""
    rng = np.random.default_rng(seed)
    faults: list[Fault] = []
    for kind in TASK_KINDS:
        if rng.random() < 0.4:
            for _ in range(1 + rng.geometric(0.25)):
                at = int(rng.integers(ROUNDS)), int(rng.integers(N)), int(rng.geometric(0.7)) - 1
                faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    for kinds, range_, chance in ((EVENT_KINDS, EVENTS, 0.4), (CALL_KINDS, CALLS, 0.25)):
        for kind in kinds:
            if rng.random() < chance:
                for _ in range(rng.geometric(0.5)):
                    at = (int(rng.integers(range_)),)
                    faults.append(Fault(kind=kind, at=at, amount=float(rng.random())))
    backend = str(np.random.default_rng([seed, 3]).choice(BACKENDS, p=[0.85, 0.05, 0.05, 0.05]))
    if backend != "local":
        faults += of_functions(np.random.default_rng([seed, 4]))
    places = {(sort(f.kind), f.at): f for f in faults}  # one a place
    return Scenario(
        seed=seed,
        spec=str(rng.choice(SPECS)),
        delays=int(rng.integers(TABLES)),
        checkpoint_every_s=float(rng.choice([2.0, 9.0, 1e9])),
        faults=tuple(places.values()),
        backend=backend,
    )


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


def _with(scenario: Scenario, faults: Sequence[Fault]) -> Scenario:
    return replace(scenario, faults=tuple(faults))

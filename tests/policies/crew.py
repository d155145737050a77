"""The table of all policies, and a run of each in virtual time whose faults a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

import examples.ksync
import examples.multimessage  # noqa: F401 (registers uc-mmc)
from seqgc import master
from seqgc.ports import (
    Arrival,
    Decoding,
    Dispatched,
    Failure,
    Flaw,
    FloatArray,
    MiniTask,
    PartialArrival,
    Policy,
    Seen,
    Task,
    WeightedPoints,
)
from seqgc.rounds import ClosingRule, Setting, policy_of
from seqgc.schemes import Defence, parse_scheme
from seqgc.testing import ChunkWorkload, ScriptedBackend

N, JOBS = 4, 6
TIMEOUT_S = 60.0

SPECS = [
    "uncoded",
    "backup:b=1",
    "balanced:shares=4-3-2-1",
    "gc:s=1",
    "gc-rep:s=1",
    "gc-binary:s=1",
    "ra-sgc:s=1,q=0.5,r=2",
    "ra-sgc:s=1,q=0.5,r=2,late=drop",
    "sr-sgc:B=1,W=2,lam=2",
    "sr-sgc:B=1,W=2,lam=2,late=take",
    "sr-sgc-rep:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2,late=take",
    "m-sgc-rep:B=1,W=2,lam=1",
    "m-sgc-binary:B=1,W=2,lam=1",
    "deal:pieces=8",
    "bsp",
    "a-bsp:wpc=2",
    "ssp:slack=2",
    "asp",
    "hedge",
    "hedge:q=0.1,factor=0.1",
    "flexrr:slack=1,pieces=1",
    "flexrr:slack=2,pieces=1,helpers=0",
    "bsp-rr:pieces=1",
    "k-sync:k=3",
    "uc-mmc:r=2",
    "lb-bsp",
    "antdt-nd",
    "antdt-dd",
    "asp-dds:M=2",
    "antdt-nd-asp:M=2",
]
"""All policies: each registered scheme and defence, with the options that change decisions."""

_NEED_ALL = ("uncoded", "balanced", "m-sgc", "lb-bsp", "antdt-nd:", "antdt-dd")
NEED_ALL = [spec for spec in SPECS if f"{spec}:".startswith(_NEED_ALL)]
"""The policies that cannot finish a job without each of the workers."""

WITHOUT_ONE = [spec for spec in SPECS if spec not in NEED_ALL]

Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt
Turn: TypeAlias = float | tuple[float, str]
"""Seconds until a task is answered, or until it fails and the reason; infinite if it hangs."""


class Models(ChunkWorkload):
    """A workload whose jobs have two models, "a" and "b", of two parameters each."""

    def __init__(self, defence: Defence) -> None:
        super().__init__(defence, seed=0, size=4)
        self.defence = defence
        self.parked: dict[str, str] = {}
        self._parts: dict[int, dict[int, FloatArray]] = {}  # by job and part

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = super().resolve(mini_task)
        halves = [replace(part.weights, model=model, size=2) for model in "ab"]
        return tuple(replace(part, model=half.model, weights=half) for half in halves)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return super().compute(parts[:1])

    def park(self, names: Sequence[str], *, why: str, kind: str) -> None:
        assert not self.parked.keys() & set(names), "a model fails once"
        self.parked |= dict.fromkeys(names, f"{kind}: {why}")

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        part = 0 if decoding.part is None else decoding.part.index
        parts = self._parts.setdefault(decoding.job, {})
        assert part not in parts, f"part {part} of job {decoding.job} is applied twice"
        parts[part] = gradient

    @property
    def gradients(self) -> dict[int, FloatArray]:
        """The gradient (4,) of each job, whose parts are added in a fixed order."""
        return {job: sum(parts[p] for p in sorted(parts)) for job, parts in self._parts.items()}

    def check(self, *, jobs: int = JOBS) -> None:
        """Require that each job has its gradient, which is the sum of all chunks if it is exact."""
        gradients = self.gradients
        assert sorted(gradients) == list(range(jobs))
        if self.defence.kind == "approximate":
            return
        for job, gradient in gradients.items():
            direct = self.partials(job).sum(axis=0)
            np.testing.assert_allclose(gradient, direct, rtol=0, atol=1e-9)


def in_a_second(_: Address) -> Turn:
    return 1.0


class _Script(dict[Address, Turn]):
    """A script from a function; ``parts`` are the numbers of answers of tasks with several."""

    def __init__(self, turn: Callable[[Address], Turn]) -> None:
        self._turn = turn
        self.parts: dict[Address, int] = {}

    def get(self, address: Address, default: object = None) -> object:  # type: ignore[override]  # noqa: ARG002
        turn, parts = self._turn(address), self.parts.get(address, 1)
        if isinstance(turn, tuple) or parts < 2:
            return turn  # a task that fails has not answered a part before
        return [turn * part / parts for part in range(1, parts + 1)]


Damage: TypeAlias = Callable[[Address, FloatArray], tuple[FloatArray, bool]]
"""Changes the result of a task; also returns True if model b raised an error."""


class Crew(ScriptedBackend):
    """Workers that compute: ``turn`` decides how each task goes, ``damage`` changes its results."""

    def __init__(
        self,
        workload: ChunkWorkload,
        turn: Callable[[Address], Turn] = in_a_second,
        damage: Damage | None = None,
    ) -> None:
        self._parts = _Script(turn)
        super().__init__(self._parts)
        self._compute, self._damage = workload.compute, damage
        self.tasks: dict[Address, Task] = {}
        self._answered = set[tuple[Address, int]]()  # mini-tasks, by slot

    @property
    def elapsed_s(self) -> float:
        """The seconds since the run began."""
        return self.clock.now() - 100.0

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        tasks = list(tasks)
        sent = {(round, task.worker, task.attempt): task for task in tasks}
        self.tasks |= sent
        self._parts.parts |= {each: len(task.item_loads) for each, task in sent.items()}
        return super().dispatch(round, tasks)

    def receive(self, until: float) -> Arrival | PartialArrival | Failure | None:
        event = super().receive(until)
        if event is None or isinstance(event, Failure):
            return event
        address = event.round, event.worker, event.attempt
        slots = {item.slot for item in self.tasks[address].items}
        slots &= {event.slot} if isinstance(event, PartialArrival) else slots
        results, raised = dict[int, FloatArray](), False
        for item in self.tasks[address].items:
            if item.slot not in slots or (address, item.slot) in self._answered:
                continue
            results[item.slot] = self._compute(item.parts)
            if self._damage is not None:
                results[item.slot], bad = self._damage(address, results[item.slot])
                raised |= bad
        if isinstance(event, PartialArrival):
            if raised:  # it waits for the last answer
                return self.receive(until)
            self._answered.add((address, event.slot))
            return replace(event, results=results)
        flaws = {"b": Flaw(kind="raised", why="no memory")} if raised else {}
        return replace(event, results=results, flaws=flaws)


class Replaceable(Crew):
    """The same for workers that can be replaced; ``restarted`` lists those that were."""

    def __init__(
        self, workload: ChunkWorkload, turn: Callable[[Address], Turn] = in_a_second
    ) -> None:
        super().__init__(workload, turn)
        self.restarted: list[int] = []

    def restart(self, worker: int) -> None:
        self.restarted.append(worker)


@dataclass
class Run:
    """A run of a policy; ``seen`` are its events and actions."""

    spec: str
    jobs: int = JOBS
    timeout_s: float = TIMEOUT_S
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workload = Models(parse_scheme(self.spec, n=N))

    def policy(self) -> Policy:
        rule = ClosingRule(timeout_s=self.timeout_s)
        return policy_of(Setting(scheme=self.workload.defence, rule=rule), num_jobs=self.jobs)

    def play(self, backend: ScriptedBackend) -> None:
        master.run(self.policy(), backend, self.workload, observe=self.seen.append, max_norm=1e6)

    def sent_at(self, worker: int) -> list[float]:
        """Return the seconds from the beginning of the run at which a worker was sent its tasks."""
        left = [
            each for each in self.seen if isinstance(each, Dispatched) and worker in each.workers
        ]
        return [each.left_at[each.workers.index(worker)] - 100.0 for each in left]

    def failures(self) -> list[Failure]:
        return [each for each in self.seen if isinstance(each, Failure)]


def trained(spec: str, damage: Damage | None = None) -> Run:
    """Return a complete run in which results are damaged."""
    run = Run(spec)
    run.play(Crew(run.workload, damage=damage))
    return run

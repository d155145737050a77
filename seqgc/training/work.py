"""What training asks of workers (processes, functions, a cluster), and what its tasks weigh."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from seqgc.models.compute import TorchComputeFactory
from seqgc.models.factories import workload_of
from seqgc.models.model import Model, ParameterVector
from seqgc.models.precision import Precision
from seqgc.ports import (
    Backend,
    BlobStore,
    Capability,
    Payload,
    Task,
    WeightStore,
    payload_format,
)
from seqgc.schemes import Scheme
from seqgc.wire import MESSAGE_LIMIT_BYTES, StoreKind, WorkloadRef, envelope_bytes

if TYPE_CHECKING:
    from seqgc.backends.lambda_ import Leases

__all__ = [
    "Crew",
    "LeaseObserver",
    "TaskSizes",
    "Work",
    "Workers",
    "most_mini_tasks",
    "replicas_of",
    "task_sizes",
]

# What messages weigh: a little more than they do, so that what is said to fit fits.
_FRAME_BYTES: Final = 4096  # of a request or reply, beside what is in it
_POINT_BYTES: Final = 16  # an index and a coefficient
_PART_BYTES: Final = 400  # of a part beside its points: whose weights, and their digest
_NAMED: Final = 3  # times that a part names its model: itself, what it refers to, what it brings
_PIECE_BYTES: Final = 64  # of a part's result beside its numbers: how many, scaled by what
_MODEL_BYTES: Final = 80  # of a model's settings, beside its name and recipe
_RECIPE_BYTES: Final = 500  # of what is made of a recipe: fingerprint, its data's digest


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """The bytes of the heaviest task of a run."""

    weights_bytes: int  # of one job,
    weights_files: int  # in so many files
    mini_tasks: int  # jobs whose weights a task needs
    task_bytes: int
    result_bytes: int  # as they are packed
    versions: int = 1  # of weights that are published for one job, at most
    limit_bytes: int = MESSAGE_LIMIT_BYTES  # of a message, as JSON

    def request_bytes(self, where: StoreKind) -> int:
        """Return the length of the request as JSON; ``where`` the weights are."""
        brought = self.mini_tasks * self.weights_bytes if where == "inline" else 0
        return envelope_bytes(self.task_bytes + brought + _FRAME_BYTES)

    @property
    def reply_bytes(self) -> int:
        """The length of the reply as JSON, if the results are in it."""
        parts = self.mini_tasks * self.weights_files
        return envelope_bytes(self.result_bytes + parts * _PIECE_BYTES + _FRAME_BYTES)

    @property
    def reply_fits(self) -> bool:
        """Whether Lambda carries the results in a reply."""
        return self.reply_bytes <= self.limit_bytes


def task_sizes(
    models: Sequence[Model],
    *,
    jobs_per_round: int = 1,
    load: float,
    mini_tasks: int = 1,
    precision: Precision,
    payload: Payload,
) -> TaskSizes:
    """Return the sizes of tasks of so many mini-tasks, at a normalized load."""
    bundle = jobs_per_round
    bundles = [models[i : i + bundle] for i in range(0, len(models), bundle)]
    layouts = {model.name: ParameterVector(model.module).layout for model in models}
    largest = max(sum(layouts[model.name].parameters for model in each) for each in bundles)
    longest = max(sum(layouts[model.name].size for model in each) for each in bundles)
    points = max(sum(model.batch_size for model in each) for each in bundles)
    part_bytes = _PART_BYTES + _NAMED * max(len(model.name) for model in models)
    task_bytes = int(np.ceil(load * points)) * _POINT_BYTES + mini_tasks * bundle * part_bytes
    for model in models:
        recipe = model.recipe
        task_bytes += _MODEL_BYTES + len(model.name)
        task_bytes += len(json.dumps(recipe.settings)) if recipe else 0
    task_bytes += _RECIPE_BYTES * len({model.recipe for model in models if model.recipe})
    return TaskSizes(
        weights_bytes=largest * np.dtype(precision).itemsize,
        weights_files=bundle,
        mini_tasks=mini_tasks,
        task_bytes=task_bytes,
        result_bytes=mini_tasks * longest * payload_format(payload).bits // 8,
    )


@lru_cache(maxsize=8)
def most_mini_tasks(scheme: Scheme, num_jobs: int) -> int:
    """Return the most mini-tasks of any worker's round.

    They come up in the first T + 1 rounds: if nobody straggles, since coded results are due then,
    or, where a scheme has none, if all straggle as long as it bears that, since they are asked
    again.
    """
    everyone = np.ones(scheme.n, dtype=np.bool_)
    most = 0
    for straggling in (False, True):
        schedule = scheme.start(num_jobs)
        while schedule.round <= scheme.delay:
            most = max(most, *map(len, schedule.assignment()))
            nobody = straggling and schedule.feasible(~everyone)
            schedule.close_round(~everyone if nobody else everyone)
    return most


@lru_cache(maxsize=8)
def replicas_of(scheme: Scheme) -> tuple[int, ...]:
    """Return how many workers are asked for each result of a job, if nobody straggles.

    Results that enter a gradient with weights are no replicas of each other.
    """
    everyone = np.ones(scheme.n, dtype=np.bool_)
    schedule, asked = scheme.start(1), defaultdict[object, set[int]](set)
    while schedule.round < schedule.num_rounds:
        for worker, tasks in enumerate(schedule.assignment()):
            for task in tasks:
                alone = (schedule.round, worker, task.slot)
                place = alone if task.cover is None else (task.cover, task.place)
                asked[place].add(worker)
        schedule.close_round(everyone)
    return tuple(map(len, asked.values()))


def batch_sizes(models: Sequence[Model]) -> tuple[int, ...]:
    """Return the sizes of the models' batches, each once."""
    return tuple(sorted({model.batch_size for model in models}))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """What workers are opened for: one run, or one recording."""

    name: str  # the run's; it seeds stochastic rounding
    run_id: str  # in every message: of the run and its master, so that old answers are refused
    models: tuple[Model, ...]
    precision: Precision
    payload: Payload  # the format in which results travel
    stochastic_rounding: bool = False
    weights: Path  # a folder of this machine, for workers that can read it
    cached_weights: int  # versions that a worker should keep
    code: str  # names what is computed, in every message
    sizes: TaskSizes  # of the heaviest task
    fixed: bool = True  # whether that stays so: not in a run that may come to another scheme
    # task -> which row of injected delays it has, and its normalized load; None: it is not delayed
    occasion: Callable[[Task], tuple[int, float] | None]
    piece_loads: tuple[float, ...] = ()
    needs: frozenset[Capability] = frozenset()  # of the policy, what workers must be able to do
    """Where work is dealt, the normalized load of each piece: workers must stay between tasks."""
    pin: Mapping[str, str] = field(default_factory=dict)
    """To which published version of their code a run's first crew was held (see `Crew`)."""

    def compute_factory(self, store: WeightStore) -> TorchComputeFactory:
        """Return what makes, in a worker's process, the compute function of this work."""
        return TorchComputeFactory(
            models=self.models,
            store=store,
            precision=self.precision,
            cached_weights=self.cached_weights,
        )

    def workload(self) -> WorkloadRef:
        """Return the names by which functions rebuild the models."""
        return workload_of(self.models, precision=self.precision)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Workers that are ready to be started for one piece of work.

    ``start`` starts them, once; whoever calls it closes the backend. ``store`` is where they find
    weights, as the master sees it. ``grace_s``: how long versions that are needed no more are kept
    for stragglers that nobody can call back, seconds: a function's time-out (None: they are removed
    at once). ``note`` is what is worth saying of them when they have been started. ``leases`` keep
    count of functions that stay (None: they are no such functions). ``pin`` says to which published
    version of their code they are held, if there are any: a resumed run gives it to its next crew.
    """

    start: Callable[[], Backend]
    store: BlobStore
    grace_s: float | None = None
    note: str = ""
    leases: Leases | None = None
    pin: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class LeaseObserver(Protocol):
    """An observer that looks after functions that stay."""

    def watch(self, leases: Leases) -> None:
        """Look after a crew's, before the first is invoked; no more after those before."""


class Workers(Protocol):
    """Who computes; `seqgc.workers` has them for this machine, Lambda and dask."""

    @property
    def n(self) -> int:
        """How many there are."""

    @property
    def provider(self) -> str:
        """What they are, in a word; kept in the profiles that are recorded on them."""

    def check(self, work: Work) -> None:
        """Refuse, with `ParameterError`, what they cannot do; starts and writes nothing."""

    def open(self, work: Work) -> AbstractContextManager[Crew]:
        """Prepare for one piece of work; nothing of it is left at the end of the block."""

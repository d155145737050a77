"""The interface between training and its workers: `Work`, `Workers`, `Crew`, and task sizes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np

from seqgc.models.compute import GroupSizes, TorchComputeFactory
from seqgc.models.factories import workload_of
from seqgc.models.model import Model, ParameterVector
from seqgc.models.precision import Precision
from seqgc.ports import (
    Backend,
    BlobStore,
    Capability,
    Leases,
    Payload,
    Task,
    WeightStore,
    payload_format,
)
from seqgc.rounds import bundles_of
from seqgc.schemes import Scheme
from seqgc.wire import MESSAGE_LIMIT_BYTES, StoreKind, WorkloadRef, envelope_bytes

__all__ = [
    "Crew",
    "LeaseObserver",
    "TaskSizes",
    "Work",
    "Workers",
    "most_mini_tasks",
    "most_points",
    "replicas_of",
    "task_sizes",
]

# Sizes in messages, rounded up, so that a message is never larger than its predicted size.
_FRAME_BYTES: Final = 4096  # a request or reply, without its content
_POINT_BYTES: Final = 16  # an index and a coefficient
_PART_BYTES: Final = 400  # a part without its points: the model, the weights' digest
_NAMED: Final = 3  # number of times that a part contains the name of its model
_PIECE_BYTES: Final = 64  # the result of a part without its numbers: count and scale
_MODEL_BYTES: Final = 100  # a model's settings, without its name and recipe
_RECIPE_BYTES: Final = 500  # a recipe's fingerprint and the digest of its data


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """The sizes of the largest task of a run, in bytes."""

    weights_bytes: int  # weights of one job
    weights_files: int  # number of files with the weights of one job
    mini_tasks: int  # number of mini-tasks, each of which may read the weights of another job
    models: int = 1  # number of models of one job
    task_bytes: int  # the task without weights
    result_bytes: int  # the results of all mini-tasks, packed
    versions: int = 1  # largest number of versions of weights that are published for one job
    limit_bytes: int = MESSAGE_LIMIT_BYTES  # size limit of a message, as JSON

    def request_bytes(self, where: StoreKind) -> int:
        """Return the length of the request as JSON.

        ``where`` is the kind of store that has the weights. If it is ``"inline"``, the request
        contains the weights.
        """
        weights_bytes = self.mini_tasks * self.weights_bytes if where == "inline" else 0
        return envelope_bytes(self.task_bytes + weights_bytes + _FRAME_BYTES)

    @property
    def reply_bytes(self) -> int:
        """The length of a reply that contains the results, as JSON."""
        parts = self.mini_tasks * self.models
        return envelope_bytes(self.result_bytes + parts * _PIECE_BYTES + _FRAME_BYTES)

    @property
    def reply_fits(self) -> bool:
        """True if the results fit into a reply. Otherwise workers must put them into a store."""
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
    """Return the sizes of the largest task of a run.

    ``load`` is the normalized load of the task: its number of data points, divided by the batch
    size. The task has ``mini_tasks`` mini-tasks.
    """
    bundles = [[models[i] for i in each] for each in bundles_of(len(models), jobs_per_round)]
    bundle = len(bundles[0])
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
        weights_files=1,
        mini_tasks=mini_tasks,
        models=bundle,
        task_bytes=task_bytes,
        result_bytes=mini_tasks * longest * payload_format(payload).bits // 8,
    )


@lru_cache(maxsize=8)
def most_mini_tasks(scheme: Scheme, num_jobs: int) -> int:
    """Return the largest number of mini-tasks that a worker has in a round.

    This number occurs in the first T + 1 rounds, where T is the scheme's delay. In a scheme with
    coded results, it occurs if no worker straggles. In other schemes, the work of stragglers is
    requested again. There the number occurs if all workers straggle for as long as the scheme
    tolerates this.
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


@lru_cache(maxsize=64)
def most_points(scheme: Scheme, num_jobs: int, batch_size: int) -> int:
    """Return the largest number of one model's points in a mini-task.

    This number occurs in the first T + 1 rounds if no worker straggles, where T is the scheme's
    delay.
    """
    everyone, cut = np.ones(scheme.n, dtype=np.bool_), scheme.cut(batch_size)
    most = 0
    schedule = scheme.start(num_jobs)
    while schedule.round <= scheme.delay:
        tasks = (task for mini_tasks in schedule.assignment() for task in mini_tasks)
        most = max(most, *(int(cut[task.chunks].sum()) for task in tasks))
        schedule.close_round(everyone)
    return most


@lru_cache(maxsize=8)
def replicas_of(scheme: Scheme) -> tuple[int, ...]:
    """Return the number of workers that compute each result of a job if no worker straggles.

    Two workers compute the same result if a gradient can be summed with either of their results
    (`MiniTask.place`). A result whose weight depends on the other answers counts for one worker.
    """
    everyone = np.ones(scheme.n, dtype=np.bool_)
    schedule, workers_of = scheme.start(1), defaultdict[object, set[int]](set)
    while schedule.round < schedule.num_rounds:
        for worker, tasks in enumerate(schedule.assignment()):
            for task in tasks:
                alone = (schedule.round, worker, task.slot)
                place = alone if task.cover is None else (task.cover, task.place)
                workers_of[place].add(worker)
        schedule.close_round(everyone)
    return tuple(map(len, workers_of.values()))


def batch_sizes(models: Sequence[Model]) -> tuple[int, ...]:
    """Return the distinct sizes of the models' batches, in ascending order."""
    return tuple(sorted({model.batch_size for model in models}))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """The work for which workers are opened: a run or a recording."""

    name: str  # the name of the run, from which the seed of stochastic rounding follows
    # The id of the run and its master. It is in every message, so that answers to an earlier master
    # are rejected.
    run_id: str
    models: tuple[Model, ...]
    precision: Precision
    payload: Payload  # the format of results in messages
    stochastic_rounding: bool = False
    weights: Path  # a folder of this machine, for workers that can read it
    run: Path | None = None  # the folder of the run, on this machine; None for a recording
    cached_weights: int  # number of versions of weights that a worker should cache
    code: str  # a label for the computation, in every message
    sizes: TaskSizes  # the sizes of the largest task
    fixed: bool = True  # False if the run may switch to a scheme with other sizes
    # A function that returns the row of injected delays for a task, and the load of the task. It
    # returns None if the task is not delayed.
    occasion: Callable[[Task], tuple[int, float] | None]
    piece_loads: tuple[float, ...] = ()
    """The normalized load of each piece if work is dealt (`seqgc.schemes.Deal`); otherwise ()."""
    needs: frozenset[Capability] = frozenset()  # capabilities that workers must have
    pin: Mapping[str, str] = field(default_factory=dict)
    """The published version of the workers' code at the beginning of the run (see `Crew`)."""
    group_sizes: GroupSizes = field(default_factory=dict)
    """The number of similar models that a worker computes at once, by model."""

    def compute_factory(self, store: WeightStore) -> TorchComputeFactory:
        """Return a factory that makes the compute function in the process of a worker."""
        return TorchComputeFactory(
            models=self.models,
            store=store,
            precision=self.precision,
            cached_weights=self.cached_weights,
            group_sizes=self.group_sizes,
        )

    def workload(self) -> WorkloadRef:
        """Return the reference from which workers on AWS Lambda rebuild the models."""
        return workload_of(self.models, precision=self.precision, group_sizes=self.group_sizes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Workers that are ready to be started for one `Work`.

    ``start`` starts the workers and returns their backend, which the caller must close. It may be
    called once. ``store`` is the master's access to the store in which workers find weights.
    ``grace_s`` is the time, in seconds, for which old versions of weights remain for stragglers
    that cannot be cancelled. If it is None, old versions are removed at once. ``note`` is a text
    that is shown when the workers have started. ``leases`` counts resident functions; it is None
    for other workers. ``pin`` is the published version of the workers' code. If the run is resumed,
    its `Work` has this version, so that the code remains the same.
    """

    start: Callable[[], Backend]
    store: BlobStore
    grace_s: float | None = None
    note: str = ""
    leases: Leases | None = None
    pin: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class LeaseObserver(Protocol):
    """An observer that watches the leases of resident functions."""

    def watch(self, leases: Leases) -> None:
        """Watch the leases of a new crew instead of the leases of the previous crew."""


class Workers(Protocol):
    """Workers that can compute a run or a recording.

    `seqgc.workers` has workers on this machine, on AWS Lambda and on dask clusters.
    """

    @property
    def n(self) -> int:
        """The number of workers."""

    @property
    def provider(self) -> str:
        """The kind of the workers, in one word. Recorded profiles contain it."""

    def check(self, work: Work) -> None:
        """Raise `ParameterError` if the workers cannot do the work. Start and write nothing."""

    def open(self, work: Work) -> AbstractContextManager[Crew]:
        """Prepare the workers for this work; clean up at the end of the block."""

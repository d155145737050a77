"""What the tasks of a run weigh, known from its scheme and models before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from seqgc.ports import Payload, payload_format
from seqgc.schemes import Scheme
from seqgc.training._vectors import Precision
from seqgc.training.model import Model
from seqgc.wire import MESSAGE_LIMIT_BYTES, StoreKind, envelope_bytes

__all__ = ["TaskSizes", "most_mini_tasks", "task_sizes"]

# What messages weigh: a little more than they do, so that what is said to fit fits.
_FRAME_BYTES: Final = 4096  # of a request or reply, beside what is in it
_POINT_BYTES: Final = 16  # an index and a coefficient
_PART_BYTES: Final = 400  # of a part beside its points: whose weights, and their digest
_NAMED: Final = 3  # times that a part names its model: itself, what it refers to, what it brings
_PIECE_BYTES: Final = 64  # of a part's result beside its numbers: how many, scaled by what
_MODEL_BYTES: Final = 100  # of a model's settings, beside its names


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSizes:
    """The bytes of the heaviest task of a run.

    ``weights_bytes`` are those of one job, in ``weights_files`` files; a task needs the weights of
    ``mini_tasks`` jobs. ``task_bytes`` are its own, and ``result_bytes`` those of its results, as
    they are packed. A message takes ``limit_bytes`` as JSON.
    """

    weights_bytes: int
    weights_files: int
    mini_tasks: int
    task_bytes: int
    result_bytes: int
    limit_bytes: int = MESSAGE_LIMIT_BYTES

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
    parameters = {model.name: _parameters(model) for model in models}
    largest = max(sum(parameters[model.name] for model in each) for each in bundles)
    points = max(sum(model.batch_size for model in each) for each in bundles)
    part_bytes = _PART_BYTES + _NAMED * max(len(model.name) for model in models)
    task_bytes = int(np.ceil(load * points)) * _POINT_BYTES + mini_tasks * bundle * part_bytes
    task_bytes += sum(_MODEL_BYTES + len(model.name) + _recipe_bytes(model) for model in models)
    return TaskSizes(
        weights_bytes=largest * np.dtype(precision).itemsize,
        weights_files=bundle,
        mini_tasks=mini_tasks,
        task_bytes=task_bytes,
        # and a loss each
        result_bytes=mini_tasks * (largest + bundle) * payload_format(payload).bits // 8,
    )


def _parameters(model: Model) -> int:
    return sum(p.numel() for p in model.module.parameters() if p.requires_grad)


def _recipe_bytes(model: Model) -> int:
    return 0 if model.recipe is None else len(model.recipe.module + model.recipe.data)


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

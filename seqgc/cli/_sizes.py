"""What the tasks of a run weigh, known from its scheme and models before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.cost import Traffic, Where
from seqgc.ports import payload_format
from seqgc.stores import INLINE_LIMIT_BYTES
from seqgc.wire import envelope_bytes

if TYPE_CHECKING:
    from torch import nn

    from seqgc.cli._config import ModelConfig, RunConfig
    from seqgc.schemes import Scheme

__all__ = ["TaskSizes", "parameters_of", "registered_parameters", "task_sizes"]

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
    limit_bytes: int = INLINE_LIMIT_BYTES

    def request_bytes(self, where: Where) -> int:
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

    def traffic(self, where: Where, *, master_outside: bool) -> Traffic:
        """Return what a task moves by way of a store."""
        return Traffic(
            where=where,
            weights_bytes=0 if where == "inline" else self.weights_bytes,
            weights_files=self.weights_files,
            weights_jobs=self.mini_tasks,
            result_bytes=self.result_bytes,
            results_stored=not self.reply_fits and where != "inline",
            master_outside=master_outside,
        )


def task_sizes(config: RunConfig, scheme: Scheme, *, parameters: Sequence[int]) -> TaskSizes:
    """Return the sizes of a run whose models have so many trainable parameters each."""
    bundle = config.jobs_per_round
    starts = range(0, len(config.models), bundle)
    largest = max(sum(parameters[i : i + bundle]) for i in starts)
    points = max(sum(m.batch_size for m in config.models[i : i + bundle]) for i in starts)
    mini_tasks = _most_mini_tasks(scheme, config.steps * len(starts))
    payload = payload_format(config.payload or config.precision)
    part_bytes = _PART_BYTES + _NAMED * max(len(model.name) for model in config.models)
    task_bytes = int(np.ceil(scheme.normalized_load * points)) * _POINT_BYTES
    task_bytes += mini_tasks * bundle * part_bytes
    task_bytes += sum(_MODEL_BYTES + len(m.name + m.module + m.data) for m in config.models)
    return TaskSizes(
        weights_bytes=largest * np.dtype(config.precision).itemsize,
        weights_files=bundle,
        mini_tasks=mini_tasks,
        task_bytes=task_bytes,
        result_bytes=mini_tasks * (largest + bundle) * payload.bits // 8,  # and a loss each
    )


def parameters_of(module: nn.Module) -> int:
    """Return how many trainable parameters a network has."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def registered_parameters(models: Sequence[ModelConfig]) -> list[int]:
    """Return the models' numbers of trainable parameters, from the names of their networks.

    Raises
    ------
    ParameterError
        If a network is none of those that functions know.
    """
    return [_registered(model.module) for model in models]


@lru_cache(maxsize=64)
def _registered(module: str) -> int:
    from seqgc.training.factories import named_module

    return parameters_of(named_module(module, seed=0))


@lru_cache(maxsize=8)
def _most_mini_tasks(scheme: Scheme, num_jobs: int) -> int:
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

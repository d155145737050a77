"""What training asks of workers: processes, functions, a cluster, or a backend of one's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seqgc.ports import Backend, BlobStore, Payload, WeightStore
from seqgc.training._sizes import TaskSizes
from seqgc.training._vectors import Precision
from seqgc.training.compute import TorchComputeFactory
from seqgc.training.model import Model

__all__ = ["Crew", "Work", "Workers"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """What workers are opened for: one run, or one recording.

    Parameters
    ----------
    name
        The run's; it seeds stochastic rounding.
    models, precision
        What is computed, and in which precision.
    payload, stochastic_rounding
        How results travel (see `seqgc.ports`).
    weights
        A folder of this machine, for the weights of workers that can read it.
    cached_weights
        How many versions of weights a worker should keep.
    code
        Names what is computed, in every message.
    sizes
        Of the heaviest task.
    fixed
        Whether that stays so: not in a run that may come to another scheme.
    occasion
        ``(round, worker) -> (row, load)``: which row of injected delays a task has, and its
        normalized load.
    """

    name: str
    models: tuple[Model, ...]
    precision: Precision
    payload: Payload
    stochastic_rounding: bool = False
    weights: Path
    cached_weights: int
    code: str
    sizes: TaskSizes
    fixed: bool = True
    occasion: Callable[[int, int], tuple[int, float]]

    def compute_factory(self, store: WeightStore) -> TorchComputeFactory:
        """Return what makes, in a worker's process, the compute function of this work."""
        return TorchComputeFactory(
            models=self.models,
            store=store,
            precision=self.precision,
            cached_weights=self.cached_weights,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Workers that are ready to be started for one piece of work.

    Parameters
    ----------
    start
        Starts them, once; whoever calls it closes the backend.
    store
        Where they find weights, as the master sees it.
    grace_s
        How long versions that are needed no more are kept for stragglers that nobody can call back,
        seconds: a function's time-out. None: they are removed at once.
    note
        What is worth saying of them when they have been started.
    """

    start: Callable[[], Backend]
    store: BlobStore
    grace_s: float | None = None
    note: str = ""


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

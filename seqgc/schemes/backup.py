"""Backup workers: each round closes without the ``b`` slowest answers.

Chen, Pan, Monga, Bengio, Jozefowicz (2016), "Revisiting Distributed Synchronous SGD", section 3:
the optimizer step uses the first n - b answers of n workers, and later results are discarded. In
the paper, each worker draws its own data. Here each worker holds one n-th of the job's batch. The
batch of a step is therefore smaller by the fraction b/n, `Decoding.lost` lists the missing chunks,
and the sum of results is multiplied by ``n / (n - b)``. If all workers are equally likely to
straggle, the average of this product is the gradient.

*Lost data are used again.* In training, the points of lost chunks return to the end of the epoch's
queue. Each point is therefore used exactly once in an epoch, and an epoch takes n / (n - b) times
as many steps. Because the number of steps of a run is fixed, some points that are lost near the end
of the run are not used again.

*Exactly b answers are dropped.* Several answers can arrive at the same instant, in particular in a
replay. If more than n - b answers have arrived when a round closes, the gradient still uses only
n - b of them, from the workers with the lowest numbers. Otherwise the resolution of the clock would
decide how many data are lost, and the scheme would look better in a replay, where ties are common,
than it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._defence import Grid
from seqgc.schemes._registry import register
from seqgc.schemes._scheme import Assignment, Schedule, Scheme
from seqgc.stragglers import PerRound, StragglerModel

__all__ = ["Backup"]


@register("backup")
@dataclass(frozen=True, kw_only=True)
class Backup(Scheme):
    """Uncoded work in rounds that close without ``b`` of the n answers; ``0 <= b < n``, delay 0.

    The decoded gradient is ``n / (n - b)`` times the sum of exactly n - b results. It approximates
    the gradient of the batch with the error bound ``sqrt(b / (n - b))`` (see
    `GradientCode.approximation`). This follows because each chunk has the share 1/n, the weights of
    n - b chunks are wrong by ``b / (n - b)``, and the weights of b chunks are wrong by 1.

    Examples
    --------
    >>> scheme = Backup(n=256, b=32)
    >>> scheme.spec, scheme.normalized_load == 1 / 256, scheme.exact, round(scheme.error, 3)
    ('backup:b=32', True, False, 0.378)
    """

    n: int
    b: int
    delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._keep_integers("n", "b")
        if not 0 <= self.b < self.n:
            raise ParameterError("b", f"must satisfy 0 <= b < n (backup), n={self.n}", self.b)

    @property
    def exact(self) -> bool:
        return self.b == 0

    @property
    def error(self) -> float:
        """The error bound of every gradient (`Decoding.error`)."""
        return math.sqrt(self.b / (self.n - self.b))

    @property
    def tolerated(self) -> int:
        return self.b

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._equal_loads(1 / self.n)  # worker i holds chunk i

    def points_touched(self, sizes: IntArray) -> IntArray:
        return sizes

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=self.b)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return BackupSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        return (cls(n=n, b=b) for b in (grid.values(1, n // 2) if grid.inexact else ()))


class BackupSchedule(Schedule):
    """A run of `Backup`: round ``t`` computes job ``t``, and any n - b answers suffice."""

    def __init__(
        self, scheme: Backup, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._used, self._error = scheme.n - scheme.b, scheme.error
        self._finished: BoolArray | None = None  # (n,) the workers whose results the job uses

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:  # noqa: ARG002 (a sum)
        if self._finished is None or job != self._round - 1:
            raise self._not_finished(job)
        terms = tuple(
            Term(worker=worker, round=job, slot=0, weight=self.n / self._used)
            for worker in np.flatnonzero(self._finished).tolist()
        )
        lost = tuple(np.flatnonzero(~self._finished).tolist())
        return Decoding(job=job, terms=terms, error=self._error, lost=lost)

    def _assign(self) -> Assignment:
        job, one = self._round, np.ones(1)
        one.setflags(write=False)

        def tasks_of(worker: int) -> tuple[MiniTask, ...]:
            chunks = np.array([worker])
            chunks.setflags(write=False)
            return (MiniTask(job=job, slot=0, chunks=chunks, coefficients=one),)

        return Assignment(np.ones(self.n, dtype=np.bool_), tasks_of)

    def _feasible(self, responded: BoolArray) -> bool:
        return int(np.count_nonzero(responded)) >= self._used

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        self._finished = responded & (np.cumsum(responded) <= self._used)
        return (self._round,)

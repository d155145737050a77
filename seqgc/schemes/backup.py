"""Backup workers: a round does without its ``b`` slowest answers, and their data.

Chen, Pan, Monga, Bengio, Jozefowicz (2016), "Revisiting Distributed Synchronous SGD", section 3:
of n workers, the n - b whose answers come first make the step, and what the others compute is
thrown away. There each worker draws data of its own, and here each holds one n-th of the job's
batch; so the batch that a step is made on is smaller by b/n, which chunks it lacks is known
(`Decoding.lost`), and the sum is scaled by ``n / (n - b)``: the gradient on average, where all
workers are as likely to straggle.

*The data come again.* In training the points of lost chunks go back to the end of the epoch's
queue, so that each is used at least once, and once only, and an epoch takes n / (n - b) times as
many steps. A run has as many steps as it was given: what its last epoch lost last is not seen.

*Exactly b.* Answers of one instant come together, and so more than n - b may be there when a round
closes, in replay above all. The gradient is made of n - b of them all the same, those of the
workers with the lowest numbers: else it would depend on how finely time is told apart whether the
scheme loses data, and replayed, where ties are common, it would look better than it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._assignment import Assignment
from seqgc.schemes._contract import Scheme
from seqgc.schemes._grid import Grid
from seqgc.schemes._registry import register
from seqgc.schemes._schedule import Schedule
from seqgc.stragglers import PerRound, StragglerModel

__all__ = ["Backup"]


@register("backup")
@dataclass(frozen=True, kw_only=True)
class Backup(Scheme):
    """Uncoded, but that a round closes without ``b`` of its n answers; ``0 <= b < n``, delay 0.

    The gradient is ``n / (n - b)`` times the sum of exactly n - b results. As an approximation of
    the batch's it has the error bound ``sqrt(b / (n - b))`` (see `GradientCode.approximation`):
    n - b chunks of share 1/n are off by ``b / (n - b)`` each, b chunks by 1.

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
        """What `Decoding.error` is of each of its gradients."""
        return math.sqrt(self.b / (self.n - self.b))

    @property
    def tolerated(self) -> int:
        return self.b

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._equal_loads(1 / self.n)  # worker i's is chunk i

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
    """Round ``t`` computes job ``t``; any n - b answers close it, and n - b of them are used."""

    _reach = 1

    def __init__(
        self, scheme: Backup, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._used, self._error = scheme.n - scheme.b, scheme.error
        self._finished: BoolArray | None = None  # (n,) whose results the latest job is made of

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

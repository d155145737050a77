"""Stochastic gradient coding, as a plug-in: ``--plugin examples.stochastic``, ``sgc:d=2,s=3``.

Bitar, Wootters, El Rouayheb (2020), "Stochastic Gradient Coding for Straggler Mitigation in
Distributed Learning", IEEE J. Sel. Areas Inf. Theory 1(1). Every chunk of data is given to ``d``
workers, so that any two workers share about as many chunks as any other two (a pair-wise balanced
design; here random, from a seed). Worker i returns the sum of the gradients of its chunks, each
divided by ``d (1 - p)``, where p = s/n is the part that straggles. The master adds the results of
any ``n - s`` workers or more. The sum is the gradient on average, at load ``d/n``, but each single
sum is an approximation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError, ScheduleError
from seqgc.ports import BoolArray, Decoding, FloatArray, MiniTask, Payload, Term
from seqgc.schemes import Assignment, Grid, Schedule, Scheme, register
from seqgc.stragglers import PerRound, StragglerModel


@register("sgc")
@dataclass(frozen=True, kw_only=True)
class StochasticGC(Scheme):
    """A scheme with every chunk at ``d`` workers; any ``n - s`` answers close a round.

    Examples
    --------
    >>> scheme = StochasticGC(n=12, d=2, s=3)
    >>> scheme.spec, round(scheme.normalized_load, 3), scheme.exact
    ('sgc:d=2,s=3', 0.167, False)
    """

    n: int
    d: int
    s: int
    seed: int = 0
    exact: ClassVar[bool] = False
    delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._keep_integers("n", "d", "s", "seed")
        if not 1 <= self.d <= self.n:
            raise ParameterError("d", f"must satisfy 1 <= d <= n (SGC), n={self.n}", self.d)
        if not 0 <= self.s < self.n:
            raise ParameterError("s", f"must satisfy 0 <= s < n (SGC), n={self.n}", self.s)

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(self.d / self.n)

    @property
    def tolerated(self) -> int:
        return self.s

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._equal_loads(1 / self.n)  # one chunk for each worker, all of one size

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=self.s)

    @cached_property
    def holds(self) -> BoolArray:
        """Mask (workers, chunks) of the chunks that each worker holds, d in each row and column.

        Worker i holds the chunks ``order[i + j]``, j in a random set of d shifts. Two workers share
        a chunk for each pair of shifts whose difference is the distance between the workers.
        """
        rng = np.random.default_rng(self.seed)
        shifts = rng.choice(self.n, size=self.d, replace=False)
        order = rng.permutation(self.n)
        held = np.zeros((self.n, self.n), dtype=np.bool_)
        for worker in range(self.n):
            held[worker, order[(worker + shifts) % self.n]] = True
        return held

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return StochasticSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        if grid.inexact:
            for d in (1, 2, 3, 4):
                for s in grid.values(1, n // 2):
                    if d <= n:
                        yield cls(n=n, d=d, s=s)


class StochasticSchedule(Schedule):
    """Round ``t`` computes job ``t``; any n - s answers close it."""

    def __init__(
        self,
        scheme: StochasticGC,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._scheme = scheme
        self._answered: BoolArray = np.zeros(scheme.n, dtype=np.bool_)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:  # noqa: ARG002
        if job != self._round - 1:
            raise ScheduleError(f"job {job} was not finished by the round closed last")
        scheme = self._scheme
        weight = scheme.n / (scheme.n - scheme.s) / scheme.d  # 1 / (d (1 - p))
        workers = np.flatnonzero(self._answered).tolist()
        terms = tuple(Term(worker=i, round=job, slot=0, weight=weight) for i in workers)
        missed = weight * scheme.holds[workers].sum(axis=0) - 1  # of each chunk's gradient
        error = float(np.linalg.norm(missed * np.sqrt(scheme.chunk_fractions)))
        lost = tuple(np.flatnonzero(~scheme.holds[workers].any(axis=0)).tolist())
        return Decoding(job=job, terms=terms, error=error, lost=lost)

    def _assign(self) -> Assignment:
        holds, job = self._scheme.holds, self._round

        def tasks_of(worker: int) -> tuple[MiniTask, ...]:
            chunks = np.flatnonzero(holds[worker])
            return (MiniTask(job=job, slot=0, chunks=chunks, coefficients=np.ones(len(chunks))),)

        return Assignment(np.ones(self.n, dtype=np.bool_), tasks_of)

    def _feasible(self, responded: BoolArray) -> bool:
        return int(responded.sum()) >= self.n - self._scheme.s

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        self._answered = responded.copy()
        return (self._round,)

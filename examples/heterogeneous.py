"""Heterogeneity-aware gradient coding, as a plug-in: ``--plugin examples.heterogeneous``.

Wang, Guo, Tang, Li, Li (2019), "Heterogeneity-aware Gradient Coding for Straggler Tolerance",
ICDCS. Workers have different speeds, and a faster worker holds more of the data, so that all need
the same time; any ``s`` may straggle. Each chunk has ``s + 1`` copies, and a worker holds copies in
proportion to its speed. With a random ``(s+1) x n`` matrix C, the coefficients of a chunk solve
``C_k b_k = 1`` over its s + 1 holders (the paper's Algorithm 1), so that ``C B = 1``. Decoding uses
the combination of rows of C that sums to 1 and vanishes at the stragglers.

``het:s=1,fast=4,ratio=3``: the first 4 workers are 3 times as fast as the others.
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


@register("het")
@dataclass(frozen=True, kw_only=True)
class HeterogeneousGC(Scheme):
    """Workers 0 … fast-1 are ``ratio`` times as fast as the others; any ``s`` may straggle.

    Examples
    --------
    >>> HeterogeneousGC(n=4, s=1, fast=2, ratio=3).worker_loads
    array([0.75, 0.75, 0.25, 0.25])
    """

    n: int
    s: int
    fast: int
    ratio: int
    exact: ClassVar[bool] = True
    delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._keep_integers("n", "s", "fast", "ratio")
        if not 0 <= self.s < self.n:
            raise ParameterError("s", f"must satisfy 0 <= s < n (het), n={self.n}", self.s)
        if not 0 <= self.fast <= self.n:
            raise ParameterError("fast", f"must satisfy 0 <= fast <= n, n={self.n}", self.fast)
        if self.ratio < 1 or (self.s + 1) * self.ratio > self._total:
            rule = f"must be >= 1, and at most 1/(s+1) of all speeds, {self._total}"
            raise ParameterError("ratio", rule, self.ratio, "no worker can hold a chunk twice")

    @property
    def _speeds(self) -> list[int]:
        return [self.ratio] * self.fast + [1] * (self.n - self.fast)

    @property
    def _total(self) -> int:  # also the number of chunks
        return self.fast * self.ratio + self.n - self.fast

    @property
    def worker_loads(self) -> FloatArray:
        loads = (self.s + 1) * np.array(self._speeds) / self._total
        loads.setflags(write=False)
        return loads

    @property
    def tolerated(self) -> int:
        return self.s

    @property
    def chunk_fractions(self) -> FloatArray:
        return np.broadcast_to(np.float64(1 / self._total), (self._total,))

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=self.s)

    @cached_property
    def combinations(self) -> FloatArray:
        """The matrix C (s+1, n): Gaussian, from a fixed seed."""
        return np.random.default_rng(0).normal(size=(self.s + 1, self.n))

    @cached_property
    def encoding_matrix(self) -> FloatArray:
        """The matrix B (n, chunks): ``C @ B == 1``; a column has an entry for each holder."""
        speeds, encoding = np.array(self._speeds), np.zeros((self.n, self._total))
        copies = np.repeat(np.arange(self.n), (self.s + 1) * speeds)
        for chunk in range(self._total):
            holders = copies[chunk :: self._total]  # s + 1 workers, all of them different
            C = self.combinations[:, holders]
            encoding[holders, chunk] = np.linalg.solve(C, np.ones(self.s + 1))
        return encoding

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return HeterogeneousSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        for s in grid.values(1, n // 4):
            for ratio in (2, 3):
                if (s + 1) * ratio <= n // 2 * ratio + n - n // 2:
                    yield cls(n=n, s=s, fast=n // 2, ratio=ratio)


class HeterogeneousSchedule(Schedule):
    """Round ``t`` computes job ``t``; any n - s answers close it."""

    def __init__(
        self, scheme: HeterogeneousGC, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._scheme = scheme
        self._answered: BoolArray = np.zeros(scheme.n, dtype=np.bool_)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:  # noqa: ARG002
        if job != self._round - 1:
            raise ScheduleError(f"job {job} was not finished by the round closed last")
        C, missing = self._scheme.combinations, ~self._answered
        # Combine the rows of C to 0 at missing workers and, with B, to the plain sum of chunks.
        conditions = np.column_stack([C[:, missing], np.ones(len(C))])
        rows = np.linalg.lstsq(conditions.T, np.append(np.zeros(missing.sum()), 1))[0]
        weights = np.where(missing, 0, rows @ C).tolist()
        terms = [Term(worker=i, round=job, slot=0, weight=w) for i, w in enumerate(weights) if w]
        return Decoding(job=job, terms=tuple(terms))

    def _assign(self) -> Assignment:
        rows, job = self._scheme.encoding_matrix, self._round

        def tasks_of(worker: int) -> tuple[MiniTask, ...]:
            chunks = np.flatnonzero(rows[worker])
            return (MiniTask(job=job, slot=0, chunks=chunks, coefficients=rows[worker, chunks]),)

        return Assignment(np.ones(self.n, dtype=np.bool_), tasks_of)

    def _feasible(self, responded: BoolArray) -> bool:
        return int(responded.sum()) >= self.n - self._scheme.s

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        self._answered = responded.copy()
        return (self._round,)

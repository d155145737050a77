"""M-SGC: multiplexed sequential gradient coding (paper, section 3.3 and Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, IntArray, MiniTask
from seqgc.schemes._assignment import MiniTasks
from seqgc.schemes._contract import Scheme
from seqgc.schemes._grid import Grid
from seqgc.schemes._m_sgc_schedule import MSGCSchedule
from seqgc.schemes._registry import register
from seqgc.schemes._schedule import Schedule, require_late
from seqgc.schemes.gc import coded_mini_task, held, require_family
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, StragglerModel

__all__ = ["MSGC"]

_MOST_CHUNKS = 2**22  # D1 has (W-1) n of them, and their fractions are an array


@register("m-sgc-binary", family="binary")
@register("m-sgc-rep", family="rep")
@register("m-sgc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class MSGC(Scheme):
    """(B, W, lam) multiplexed sequential gradient coding; delay W - 2 + B.

    For bursts of ``B`` rounds and at most ``lam`` distinct stragglers in a window of ``W``, where
    ``1 <= B < W``, ``0 <= lam <= n``. The code of the D2 groups is of the ``family`` ``cyclic``,
    ``rep`` (M-SGC-Rep: ``(lam+1) | n``) or ``binary`` (``lam < n``). For ``lam = n`` there is no
    D2, nothing to encode: that is ``cyclic``'s. Answers that come after their round, while their
    jobs are in flight, are dropped or, with ``late="take"``, count.

    Examples
    --------
    >>> scheme = MSGC(n=256, B=1, W=2, lam=27)
    >>> scheme.delay, round(scheme.normalized_load, 6)
    (1, 0.007543)
    >>> round(MSGC(n=256, B=1, W=2, lam=27, family="binary").normalized_load, 6)
    0.007547
    """

    n: int
    B: int
    W: int
    lam: int
    family: str = "cyclic"
    late: str = "drop"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n", "B", "W", "lam")
        if self.B < 1:
            raise ParameterError("B", "must be >= 1 (M-SGC)", self.B)
        require_family(self.family, ("cyclic", "rep", "binary"), name="M-SGC")
        require_late(self.late, name="M-SGC")
        if self.W <= self.B:
            raise ParameterError("W", f"must satisfy B < W (M-SGC), B={self.B}", self.W)
        if self.n * self.W > _MOST_CHUNKS:
            rule = f"must satisfy n * W <= {_MOST_CHUNKS} (M-SGC), n={self.n}"
            raise ParameterError("W", rule, self.W)
        if not 0 <= self.lam <= self.n:
            raise ParameterError("lam", f"must satisfy 0 <= lam <= n (M-SGC), n={self.n}", self.lam)
        if self.family == "rep" and self.n % (self.lam + 1):
            rule = f"must satisfy (lam+1) | n (M-SGC-Rep), n={self.n}"
            raise ParameterError("lam", rule, self.lam, "or take m-sgc-binary")
        if self.family == "binary" and self.lam == self.n:
            rule = f"must satisfy 0 <= lam < n (M-SGC-Binary), n={self.n}"
            raise ParameterError("lam", rule, self.lam, "or take m-sgc")

    @property
    def delay(self) -> int:
        return self.W - 2 + self.B

    @cached_property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads((self.W - 1 + self.B) * self._d1_fraction)

    @property
    def _d1_fraction(self) -> float:
        """Share of the batch of a D1 chunk, which is also the most that a mini-task touches.

        There are (W-1) n such chunks. A D2 group holds `_d2_results` times as much, so that its
        coded results, which touch that part of it, are as large (docs/mathematics.md, section 3.3).
        """
        return 1 / ((self.W - 1) * self.n + self.B * self._d2_results)

    @property
    def _d2_results(self) -> float:
        """Least number of coded results that cover a D2 group: 1 over the load of its code."""
        if self.lam == self.n:
            return 0.0
        least = self.n / (self.lam + 1)
        return math.floor(least) if self.family == "binary" else least

    @property
    def tolerated(self) -> int:
        return self.lam

    @cached_property
    def chunk_fractions(self) -> FloatArray:
        groups: list[FloatArray] = []
        if self.code is not None:
            groups = [self._d2_results * self._d1_fraction * self.code.chunk_fractions] * self.B
        fractions = np.concatenate([np.full((self.W - 1) * self.n, self._d1_fraction), *groups])
        fractions.flags.writeable = False
        return fractions

    @property
    def promise(self) -> StragglerModel:
        span = self.W - 1 + self.B
        bursty = Bursty(B=self.B, W=self.W, lam=self.lam)
        return AnyOf(span=span, models=(bursty, Arbitrary(N=self.B, W=span, lam=self.lam)))

    @cached_property
    def code(self) -> GradientCode | None:
        """The (n, lam) code of every D2 group; None for lam = n, where there is no D2."""
        return None if self.lam == self.n else make_code(self.family, self.n, self.lam)

    @cached_property
    def uncoded_tasks(self) -> tuple[MiniTasks, ...]:
        """``[worker][chunk]``: the mini-tasks on the worker's own D1 chunks, for job 0 and slot 0.

        Every D1 chunk enters the gradient as it is: they are the places of cover 0.
        """
        own, one = np.arange((self.W - 1) * self.n).reshape(self.n, -1, 1), np.ones(1)
        own.flags.writeable = one.flags.writeable = False
        form = MiniTask(job=0, slot=0, chunks=own[0, 0], coefficients=one, cover=0)
        return tuple(
            tuple(replace(form, chunks=chunk, place=int(chunk[0])) for chunk in chunks)
            for chunks in own
        )

    @cached_property
    def coded_tasks(self) -> tuple[MiniTasks, ...]:
        """``[worker][group]``: the mini-tasks on the D2 groups, for job 0 and slot 0.

        The groups' chunks follow those of D1, and their codes' covers follow cover 0.
        """
        if self.code is None:
            return ((),) * self.n
        code, tasks = self.code, []
        for worker, group in np.ndindex(self.n, self.B):
            first_chunk = (self.W - 1) * self.n + group * code.chunk_fractions.size
            task = coded_mini_task(code, worker, 0, first_chunk=first_chunk)
            if task.cover is not None:
                task = replace(task, cover=1 + group * len(code.covers) + task.cover)
            tasks.append(task)
        return tuple(tuple(tasks[i : i + self.B]) for i in range(0, len(tasks), self.B))

    def points_touched(self, sizes: IntArray) -> IntArray:
        d1 = sizes[: (self.W - 1) * self.n].reshape(self.n, -1)
        again = d1.max(axis=1)  # what a slot costs that repeats a D1 chunk
        touched: IntArray = d1.sum(axis=1) + self.B * again
        if self.code is not None:
            for group in sizes[d1.size :].reshape(self.B, -1):
                touched += np.maximum(held(self.code, group) - again, 0)
        return touched

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return MSGCSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        for delay in grid.values(1, grid.max_delay):
            for B in grid.values(1, (delay + 1) // 2):  # 1 <= B < W
                W = delay + 2 - B
                for size in (1, *grid.divisors(n)):
                    yield cls(n=n, B=B, W=W, lam=size - 1, family="rep")
                for lam in grid.values(0, n - 1):
                    yield cls(n=n, B=B, W=W, lam=lam, family="binary")
                for lam in grid.values(0, n):
                    yield cls(n=n, B=B, W=W, lam=lam)

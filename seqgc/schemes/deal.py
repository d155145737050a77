"""Dealing: a job is cut into pieces, and whoever is free gets the next one.

Theory
------
Nothing is coded, and nothing is assigned before a worker is there to do it: who is slow, or dead,
gets few pieces, or none, and the others theirs. A worker that fails loses one piece, which is dealt
again. So the load is that of one batch (and of a few copies, at the end of a job, of pieces that
are overdue), and no worker is waited for as long as another can do its work.

The *cut* is fixed beforehand: piece p of a job is chunk p of its batch, whoever computes it and
whenever. So a gradient is the plain sum of a job's chunks, its bits depend on nothing that happens
in a run, and a run that was killed and resumed ends in the same weights.

How many pieces? With many, each costs a message; with few, a slow worker holds up much. A worker
that turns up late finds work if there are more pieces than workers, and what is left at the end is
spread best if the last pieces are small: *guided self-scheduling* (Polychronopoulos and Kuck 1987)
gives each of n workers that comes ``1/n`` of what is left. This goes on until the pieces would be
smaller than equal shares of what is left, for the number of pieces that was asked for; if that is
more than ``(1 + ln 4) n``, all are smaller, and the last stays near a quarter of the first (0.24 or
more from 18 workers on, 0.15 or more with two). Where M jobs are under way at once, the end of one
is the middle of the next: ``n/M`` equal pieces of each keep all workers busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, IntArray
from seqgc.schemes._defence import Defence
from seqgc.schemes._grid import Grid
from seqgc.schemes._registry import register

__all__ = ["Deal"]

_MOST = 100_000  # pieces of a job
# Of p n pieces, guided from 1/n on, the last are near exp(1 - p) of the first: a quarter here.
_FINEST = 1 + math.log(4)


@register("deal")
@dataclass(frozen=True, kw_only=True)
class Deal(Defence):
    """Each job in ``pieces``, dealt to whoever is free; exact, load 1/n a worker and copies.

    Up to ``n`` pieces are of equal size; of more, those that follow the first get smaller. None
    leaves it to the number M of jobs under way at once: ``3 n`` for one, ``n / M`` for more (see
    `fitted`).

    `seqgc.rounds.DealingPolicy` runs it. It is no `Scheme`: it has no rounds in which everybody is
    asked, makes no promise, and its workers must stay from one piece to the next.

    Examples
    --------
    >>> Deal(n=4, pieces=4).chunk_fractions.tolist()
    [0.25, 0.25, 0.25, 0.25]
    >>> Deal(n=2, pieces=4).chunk_fractions.tolist()
    [0.5, 0.25, 0.125, 0.125]
    >>> Deal(n=16).fitted(4).spec
    'deal:pieces=4'
    """

    n: int
    pieces: int | None = None
    delay: ClassVar[int] = 0
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n")
        if self.pieces is None:
            return
        self._keep_integers("pieces")
        if not 1 <= self.pieces <= _MOST:
            rule = f"must satisfy 1 <= pieces <= {_MOST} (deal)"
            remedy = "left out, it is as suits the jobs under way"
            raise ParameterError("pieces", rule, self.pieces, remedy)

    def jobs_in_flight(self, bundles: int) -> int:
        return bundles

    def fitted(self, bundles: int) -> Deal:
        if self.pieces is not None:
            return self
        return replace(self, pieces=3 * self.n if bundles == 1 else math.ceil(self.n / bundles))

    @property
    def worker_loads(self) -> FloatArray:
        """(n,) the most that a worker is asked for at a time: the largest piece."""
        return self._equal_loads(float(self.chunk_fractions.max()))

    @property
    def load_lower_bound(self) -> float:
        return 1 / self.n

    @property
    def chunk_fractions(self) -> FloatArray:
        return _shares(self.n, self.pieces or 3 * self.n)

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.full(self.n, sizes.max())

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Defence]:  # noqa: ARG003 (one only)
        return [cls(n=n)]


@lru_cache(maxsize=64)
def _shares(n: int, pieces: int) -> FloatArray:
    """Return the share of a batch that each piece is, (pieces,), read-only, in falling order."""
    shares: list[float] = []
    left, parts = 1.0, max(n, 2, pieces / _FINEST)
    while (equal := left / (pieces - len(shares))) < left / parts:
        shares.append(left / parts)
        left -= left / parts
    shares += [equal] * (pieces - len(shares))
    fractions = np.array(shares)
    fractions.setflags(write=False)
    return fractions

"""Dealing: a job is cut into pieces, and each worker that is free gets the next piece.

Theory
------
Nothing is coded, and no work is assigned before a worker is free to do it. A slow worker gets few
pieces, a dead one none, and the other workers compute the rest. A worker that fails loses one
piece, which is dealt again. The total load is therefore that of one batch, plus a few copies of
overdue pieces at the end of a job, and no worker is waited for as long as another can do its work.

The *cut* is fixed in advance: piece p of a job is chunk p of its batch, whichever worker computes
it and whenever. A gradient is the plain sum of a job's chunks. Its bits do not depend on the course
of the run, so that a run that was killed and resumed ends with the same weights.

Each piece costs a message, but with few pieces a slow worker holds up much of the job. If there are
more pieces than workers, a worker that arrives late still finds work; and the end of a job is
balanced best if its last pieces are small. *Guided self-scheduling* (Polychronopoulos and Kuck
1987) gives each of n workers that asks ``1/n`` of the remaining work. Here this continues until
such a piece would be smaller than an equal share of the remaining work for the requested number of
pieces. If more than ``(1 + ln 4) n`` pieces are requested, all are made smaller, so that the last
remains about a quarter of the first (at least 0.24 of it for 18 workers or more, 0.15 for two). If
M jobs are in flight at a time, the end of one is the middle of the next: then ``n/M`` equal pieces
of each keep all workers busy.
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
from seqgc.schemes._defence import Defence, Grid
from seqgc.schemes._registry import register

__all__ = ["Deal"]

_MOST_PIECES = 100_000  # of a job
# If p n pieces begin at 1/n, the last is about exp(1 - p) of the first: a quarter for this p.
_FINEST = 1 + math.log(4)


@register("deal")
@dataclass(frozen=True, kw_only=True)
class Deal(Defence):
    """Each job in ``pieces``, dealt to workers that are free; exact, with a load of 1/n and copies.

    Up to ``n`` pieces are of equal size; if there are more, later pieces are smaller. None chooses
    the number by the number M of jobs in flight: ``3 n`` for one, ``n / M`` for more (see
    `fitted`).

    `seqgc.rounds.DealingPolicy` runs it. It is not a `Scheme`: it has no rounds and no promise, and
    its workers must stay from one piece to the next.

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
        if not 1 <= self.pieces <= _MOST_PIECES:
            rule = f"must satisfy 1 <= pieces <= {_MOST_PIECES} (deal)"
            remedy = "omit it to let seqgc choose"
            raise ParameterError("pieces", rule, self.pieces, remedy)

    def jobs_in_flight(self, bundles: int) -> int:
        return bundles

    def fitted(self, bundles: int) -> Deal:
        if self.pieces is not None:
            return self
        return replace(self, pieces=3 * self.n if bundles == 1 else math.ceil(self.n / bundles))

    @property
    def worker_loads(self) -> FloatArray:
        """(n,) the size of the largest piece, the most that a worker computes at a time."""
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
    """Return each piece's share of a batch, (pieces,), read-only, in descending order."""
    shares: list[float] = []
    rest, parts = 1.0, max(n, 2, pieces / _FINEST)
    while (equal := rest / (pieces - len(shares))) < rest / parts:
        shares.append(rest / parts)
        rest -= rest / parts
    shares += [equal] * (pieces - len(shares))
    fractions = np.array(shares)
    fractions.setflags(write=False)
    return fractions

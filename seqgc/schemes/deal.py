"""Dealing: each job is cut into pieces, and each free worker gets the next piece.

Theory
------
Nothing is coded, and work is assigned only when a worker is free. A slow worker gets few pieces, a
dead worker gets none, and the other workers compute the rest. A worker that fails loses the pieces
that it holds, and they are dealt again. The total load is therefore one batch, plus a few copies of
overdue pieces at the end of a job. As long as another worker can do the work of a late worker, the
job does not wait for the late worker.

The *cut* is fixed in advance: piece p of a job is always chunk p of its batch, whichever worker
computes it. The gradient is the plain sum of the partial gradients of a job's chunks. Its bits do
not depend on the course of the run. Therefore a run that was killed and resumed ends with the same
weights.

*The number of pieces.* Each piece costs a message, but with few pieces a slow worker delays a large
part of the job. If there are more pieces than workers, a worker that becomes free late still finds
work. By default there are three to ten pieces per worker, more for larger batches: if workers
differ in speed, a job with fewer pieces waits longer for its last one. With more than 1333 workers
there are fewer pieces per worker: 4000 in all, but at least two per worker. If M > 1 jobs are in
flight at a time, workers that find no piece of one job compute pieces of the next. Then ``n/M``
equal pieces of each job keep all workers busy.

*The sizes of pieces.* Workers finish a job at nearly the same time if the last pieces of the job
are small. *Guided self-scheduling* (Polychronopoulos and Kuck 1987) gives each free worker ``1/n``
of the remaining work. Here this continues until such a piece would be smaller than the remaining
work divided by the remaining number of pieces. From then on, pieces are equal. If more than
``(1 + ln 4) n`` pieces are requested, all pieces are made smaller, so that the last piece is still
about a quarter of the first: at least 0.24 of it for 18 workers or more, and 0.15 for two.
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

_MOST_PIECES = 100_000  # for one job
# By default, if one job is in flight, there are ten pieces per worker. The number of pieces is
# reduced, down to three per worker, so that a piece has this number of data points on average.
_USUAL_LEAST_POINTS = 64
_USUAL_MOST_PIECES = 4000  # unless there are fewer than two per worker
_SEARCHED = (1, 3, 6, 10, 20)  # numbers of pieces per worker that a search tries
# If the first of p n pieces has the size 1/n, the last one has about exp(1 - p) times this size,
# which is a quarter for this p.
_FINEST = 1 + math.log(4)


@register("deal")
@dataclass(frozen=True, kw_only=True)
class Deal(Defence):
    """A defence that cuts each job into ``pieces``, and gives each free worker the next piece.

    Gradients are exact, and each job costs one batch of work plus a few copies of overdue pieces.
    Up to ``n`` pieces have equal sizes; if there are more, later pieces are smaller. If ``pieces``
    is None, `fitted` chooses the number: ``n / M`` if M > 1 jobs are in flight at a time. If one
    job is in flight, it chooses ``3 n`` to ``10 n``, more for a larger batch, but at most 4000 (or
    ``2 n`` if this is more).

    The policy of a `Deal` is `seqgc.rounds.DealingPolicy`. A `Deal` is not a `Scheme`: it has no
    rounds and no promise, and its workers must stay alive from one piece to the next.

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

    @property
    def same_bits(self) -> bool:
        return True

    def jobs_in_flight(self, bundles: int) -> int:
        return bundles

    def fitted(self, bundles: int, *, batch: int | None = None) -> Deal:
        if self.pieces is not None:
            return self
        if bundles > 1:
            return replace(self, pieces=math.ceil(self.n / bundles))
        pieces = 10 * self.n
        if batch is not None:
            pieces = min(pieces, max(3 * self.n, batch // _USUAL_LEAST_POINTS))
        return replace(self, pieces=max(2 * self.n, min(pieces, _USUAL_MOST_PIECES)))

    @property
    def worker_loads(self) -> FloatArray:
        """The size of the largest piece for every worker, (n,): the largest load of one task."""
        return self._equal_loads(float(self.chunk_fractions.max()))

    @property
    def load_lower_bound(self) -> float:
        return 1 / self.n

    @property
    def chunk_fractions(self) -> FloatArray:
        pieces = self.fitted(1).pieces
        assert pieces is not None
        return _shares(self.n, pieces)

    @property
    def num_pieces(self) -> int:
        return len(self.chunk_fractions)

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.full(self.n, sizes.max())

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Defence]:
        numbers = () if grid.coarse else [each * n for each in _SEARCHED]
        most = max(n, _USUAL_MOST_PIECES)
        return [cls(n=n), *(cls(n=n, pieces=each) for each in numbers if each <= most)]


@lru_cache(maxsize=64)
def _shares(n: int, pieces: int) -> FloatArray:
    """Return the pieces' shares of a batch, (pieces,), read-only, the largest first."""
    shares: list[float] = []
    rest, parts = 1.0, max(n, 2, pieces / _FINEST)
    while (equal := rest / (pieces - len(shares))) < rest / parts:
        shares.append(rest / parts)
        rest -= rest / parts
    shares += [equal] * (pieces - len(shares))
    fractions = np.array(shares)
    fractions.setflags(write=False)
    return fractions

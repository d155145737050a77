"""`Pace`: how long a piece of work takes, learned from the answers that came."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from seqgc.ports import FloatArray

_KEPT: Final = 64  # latest samples
_FEW: Final = 4  # too few samples to say anything
_OFTEN: Final = 32  # samples from one estimate to the next, once there are as many
_USUAL: Final = 0.9  # the share of answers whose way back takes no longer than usual


class Pace:
    """Seconds per batch of work, and what an answer takes beside the work.

    Two things can be observed. Of a worker that begins a piece when the one before is done, the
    time between the two answers is work, and nothing else (`learn_gap`); the median of those is
    the pace. Any other answer took its way back besides (`learn`). Where ``by_gaps`` is not to be
    had, the pace is the median of the slopes between two samples (Theil 1950, Sen 1968), so that up
    to 29 % of them may be of slow workers; where all shares are alike, of seconds per share.

    The way back is ``way_back_s`` as a rule, and longer than ``usual_s`` for one answer in ten.
    Where each invocation is one of its own, a worker that was long in coming may be long in
    answering: by what factor says ``per_coming``.

    Examples
    --------
    >>> pace = Pace()
    >>> for share in (0.1, 0.2, 0.3, 0.4) * 2:
    ...     pace.learn(share, 0.5 + 10 * share, came_s=1.0)
    >>> round(pace.per_batch_s, 6), round(pace.usual_s, 6), round(pace.per_coming, 6)
    (10.0, 0.5, 0.5)
    >>> pace = Pace(by_gaps=True)
    >>> for worker in range(4):
    ...     pace.learn(0.1, 3.0 + worker, came_s=1.0)
    ...     pace.learn_gap(0.2, 2.0)
    >>> pace.per_batch_s, pace.way_back_s
    (10.0, 3.5)
    """

    def __init__(self, *, by_gaps: bool = False) -> None:
        self._by_gaps = by_gaps
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=_KEPT)
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self._new, self._next = 0, _FEW
        self.known = False
        self.per_batch_s = 0.0
        self.way_back_s = self.usual_s = 0.0
        self.per_coming = 0.0

    @property
    def sure(self) -> bool:
        """Whether as much is known as ever will be."""
        return self.known and len(self._samples) == _KEPT

    def learn(self, share: float, seconds: float, *, came_s: float) -> None:
        """Take a sample of work and way back, ``share`` > 0; the worker took ``came_s`` to come."""
        self._samples.append((share, seconds, came_s))
        self._count()

    def learn_gap(self, share: float, seconds: float) -> None:
        """Take a sample of work alone."""
        self._gaps.append(seconds / share)
        self._count()

    def _count(self) -> None:
        self._new += 1
        enough = len(self._gaps) >= _FEW
        if not self._by_gaps or len(self._samples) == _KEPT:
            enough = enough or len(self._samples) >= _FEW
        if enough and (not self.known or self._new >= self._next):
            self._estimate()
            self._new, self._next = 0, min(2 * self._next, _OFTEN)

    def _estimate(self) -> None:
        self.known = True
        shares, seconds, came_s = np.array(self._samples or [(1.0, 0.0, 0.0)]).T
        if len(self._gaps) >= _FEW:
            self.per_batch_s = float(np.median(self._gaps))
        else:
            self.per_batch_s = max(0.0, _slope(shares, seconds))
        beside = np.maximum(seconds - self.per_batch_s * shares, 0.0)
        self.way_back_s = float(np.median(beside)) if self._samples else 0.0
        self.usual_s = float(np.quantile(beside, _USUAL)) if self._samples else 0.0
        if (came := came_s > 0).any():
            self.per_coming = float(np.median(beside[came] / came_s[came]))


def _slope(shares: FloatArray, seconds: FloatArray) -> float:
    first, second = np.triu_indices(len(shares), 1)
    runs = shares[second] - shares[first]
    apart = np.abs(runs) > 0.1 * shares.mean()
    if np.count_nonzero(apart) < len(shares):
        return float(np.median(seconds / shares))
    return float(np.median((seconds[second] - seconds[first])[apart] / runs[apart]))

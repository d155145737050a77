"""`AnswerPace`: how long a piece of work takes, learned from the answers that came."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from seqgc.ports import FloatArray

_KEPT: Final = 64  # latest samples
_FEW: Final = 4  # too few samples to say anything
_OFTEN: Final = 32  # samples from one estimate to the next, once there are as many
_USUAL: Final = 0.9  # the share of answers whose way back takes no longer than usual


class AnswerPace:
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
    >>> pace = AnswerPace()
    >>> for share in (0.1, 0.2, 0.3, 0.4) * 2:
    ...     _ = pace.learn(share, 0.5 + 10 * share, came_s=1.0)
    >>> round(pace.per_batch_s, 6), round(pace.usual_s, 6), round(pace.per_coming, 6)
    (10.0, 0.5, 0.5)
    >>> pace = AnswerPace(by_gaps=True)
    >>> for worker in range(4):
    ...     _ = pace.learn(0.1, 3.0 + worker, came_s=1.0)
    ...     _ = pace.learn_gap(0.2, 2.0)
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

    def learn(self, share: float, seconds: float, *, came_s: float) -> bool:
        """Take a sample of work and way back, ``share`` > 0; the worker took ``came_s`` to come.

        Returns whether all has been judged anew since.
        """
        self._samples.append((share, seconds, came_s))
        return self._count()

    def learn_gap(self, share: float, seconds: float) -> bool:
        """Take a sample of work alone; returns like `learn`."""
        self._gaps.append(seconds / share)
        return self._count()

    def _count(self) -> bool:
        self._new += 1
        enough = len(self._gaps) >= _FEW
        if not self._by_gaps or len(self._samples) == _KEPT:
            enough = enough or len(self._samples) >= _FEW
        if not enough or (self.known and self._new < self._next):
            return False
        self._estimate()
        self._new, self._next = 0, min(2 * self._next, _OFTEN)
        return True

    def _estimate(self) -> None:
        self.known, samples = True, self._samples
        if len(self._gaps) >= _FEW:
            self.per_batch_s = median(self._gaps)
        else:
            shares, seconds, _ = np.array(samples).T
            self.per_batch_s = max(0.0, _slope(shares, seconds))
        beside = [max(seconds - self.per_batch_s * share, 0.0) for share, seconds, _ in samples]
        if beside:
            self.way_back_s, self.usual_s = median(beside), _quantile(beside, _USUAL)
        came = [(came_s, back_s) for (*_, came_s), back_s in zip(samples, beside, strict=True)]
        if factors := [back_s / came_s for came_s, back_s in came if came_s > 0]:
            self.per_coming = median(factors)


def _quantile(values: Sequence[float], share: float) -> float:
    """Return `numpy.quantile`, which takes fifty times as long for so few."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    part = place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def _slope(shares: FloatArray, seconds: FloatArray) -> float:
    first, second = np.triu_indices(len(shares), 1)
    runs = shares[second] - shares[first]
    apart = np.abs(runs) > 0.1 * shares.mean()
    if np.count_nonzero(apart) < len(shares):
        return float(np.median(seconds / shares))
    return float(np.median((seconds[second] - seconds[first])[apart] / runs[apart]))

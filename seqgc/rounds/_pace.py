"""`AnswerPace`: an estimate of the time that work takes, learned from the answers so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from seqgc.ports import FloatArray

_KEPT: Final = 64  # the number of latest samples that are used
_FEW: Final = 4  # the fewest samples of an estimate
_OFTEN: Final = 32  # the largest number of samples from one estimate to the next
_USUAL: Final = 0.9  # the fraction of answers whose way back is at most `usual_s`


class AnswerPace:
    """An estimate of the seconds of work per batch, and of the other seconds that an answer takes.

    There are two kinds of samples. If a worker begins a piece as soon as it has finished the one
    before, the time between the two answers is work only (`learn_gap`). The time of any other
    answer is work and *way back*, which is all the time that an answer takes beyond its work
    (`learn`).

    The pace, ``per_batch_s``, is the median of the first kind. If there are fewer than four such
    samples, it is the median of the slopes between samples of the second kind (Theil 1950, Sen
    1968), so that up to 29 % of the samples may be of slow workers. If all shares of work are
    alike, so that there are no slopes, it is the median of the seconds per share. With ``by_gaps``,
    samples of the second kind are used only when there are 64 of them.

    ``way_back_s`` is the median time of the way back; one answer in ten takes more than
    ``usual_s``. If each answer comes from its own invocation, a worker that took long to start may
    also take long to answer: ``per_coming`` is the median of the way back divided by this start.

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
        """True if the estimate is based on the largest number of samples."""
        return self.known and len(self._samples) == _KEPT

    def learn(self, share: float, seconds: float, *, came_s: float) -> bool:
        """Add a sample of work and way back; return True if the estimate has changed.

        The answer to ``share`` > 0 of a batch took ``seconds``, and the start of the worker took
        ``came_s`` seconds.
        """
        self._samples.append((share, seconds, came_s))
        return self._count()

    def learn_gap(self, share: float, seconds: float) -> bool:
        """Add a sample of work only: ``seconds`` for ``share`` > 0. Returns like `learn`."""
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
    """Return the same as `numpy.quantile`, which takes fifty times as long for few values."""
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

"""`AnswerPace`: an estimate of the time that work takes, learned from the times of answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from seqgc.ports import FloatArray

_KEPT: Final = 64  # the number of latest samples that are used
_FEW: Final = 4  # the fewest samples of an estimate
_OFTEN: Final = 32  # the largest number of new samples from one estimate to the next
_USUAL: Final = 0.9  # the fraction of answers whose way back is at most `usual_s`


class AnswerPace:
    """An estimate of two times: the work of a batch, and what an answer takes in addition.

    There are two kinds of samples. A *gap* is the time between two answers of a worker that began
    the second piece as soon as it had finished the first: this time is work only (`learn_gap`). A
    *full* sample is the time of any other answer: its work and its *way back*, which is all other
    time that the answer takes (`learn`).

    The pace ``per_batch_s``, the seconds of work for a batch, is the median of the gaps. If there
    are fewer than four gaps, it is the median of the slopes between full samples (Theil 1950, Sen
    1968), which is robust if up to 29 % of the samples are from slow workers. If too few pairs of
    samples differ in their shares of a batch, it is the median of seconds divided by share. With
    ``by_gaps``, full samples determine the pace only if there are 64 of them.

    ``way_back_s`` is the median of the way back in seconds, which exceeds ``usual_s`` in one answer
    of ten. If each answer comes from an invocation of its own, a worker that took long to start may
    also take long to answer: ``per_coming`` is the median of the way back divided by the time that
    the worker took to start.

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
        """True if the pace is known and there are 64 full samples, the largest number."""
        return self.known and len(self._samples) == _KEPT

    def learn(self, share: float, seconds: float, *, came_s: float) -> bool:
        """Add a full sample; return True if the estimate has changed.

        The answer to a ``share`` > 0 of a batch took ``seconds``, and the worker took ``came_s``
        seconds to start.
        """
        self._samples.append((share, seconds, came_s))
        return self._count()

    def learn_gap(self, share: float, seconds: float) -> bool:
        """Add a gap of ``seconds`` for a ``share`` > 0 of a batch. Return the same as `learn`."""
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
    """Return a quantile. `numpy.quantile` gives the same, but takes fifty times as long here."""
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

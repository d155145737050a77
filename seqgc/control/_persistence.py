from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seqgc.control._statistics import Means, Statistics
from seqgc.errors import require_number
from seqgc.ports import BoolArray

__all__ = ["Persistence"]


class Persistence:
    """A rule that finds persistent stragglers, once every ``act`` > 0 seconds.

    It considers only workers that have been up for at least ``per`` > 0 seconds. For each of these
    workers it takes the mean time of a batch over the latest ``per`` seconds. A worker is a
    *persistent* straggler if its mean is at least ``lam`` >= 1 times the average of these means.

    If there are workers to replace, the function ``busy`` is called. If it returns True, the
    cluster has no room for new workers now, and no worker is replaced.

    Source: AntDT (2024), its controller for non-dedicated clusters.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> rule = Persistence(lam=1.5, per=600.0, act=300.0)
    >>> [rule.is_due(now) for now in (299.0, 310.0, 609.0, 610.0)]
    [False, True, False, True]
    >>> rule.slow(Means(np.array([4.0, 1.0, 1.0]), np.array([True, True, False]))).tolist()
    [True, False, False]
    >>> rule.reason
    '1.5 times as slow as the average for 600 s'
    """

    def __init__(
        self, *, lam: float, per: float, act: float, busy: Callable[[], bool] = lambda: False
    ) -> None:
        self._lam = require_number("lam", lam, least=1)
        self._per = require_number("per", per, above=0)
        self._act = require_number("act", act, above=0)
        self._busy, self._acts_at = busy, self._act

    @property
    def reason(self) -> str:
        """The reason for replacing a worker, in a few words."""
        return f"{self._lam:g} times as slow as the average for {self._per:g} s"

    def is_due(self, now: float) -> bool:
        """Return True if it is time to act, and then set the next time ``act`` seconds later."""
        if now < self._acts_at:
            return False
        self._acts_at = now + self._act
        return True

    def slow(self, seconds: Means) -> BoolArray:
        """Return a mask (n,) of the workers whose mean is at least ``lam`` times the average.

        Workers whose means are not known are left out of the average, and are not in the mask.
        """
        if not seconds.known.any():
            return seconds.known
        average = float(seconds.values[seconds.known].mean())
        return seconds.known & np.greater_equal(seconds.values, self._lam * average)

    def persistent(self, statistics: Statistics) -> tuple[int, ...]:
        """Return the workers to replace now."""
        long = statistics.seconds(self._per)
        known = long.known & (statistics.up_s >= self._per)
        found = np.flatnonzero(self.slow(Means(long.values, known))).tolist()
        return () if found and self._busy() else tuple(found)

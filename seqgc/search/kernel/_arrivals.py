"""The order in which workers answer in each round, which is the same for all candidates.

A candidate's load adds one constant to every time of the profile (docs/mathematics.md, section 7).
Adding a constant is monotone, even with rounding: no load makes a worker answer later than a worker
that is slower at another load. Therefore each round is sorted once, and a candidate's state in the
round is one integer, *answered*: the number of sorted workers that had answered when the round
closed. Ties need care, because different times may be rounded to the same sum: `Arrivals.count`
compares the sums themselves.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.rounds import ClosingRule

__all__ = ["Arrivals", "Closings", "SmallInts"]

SmallInts = npt.NDArray[np.signedinteger]
"""Numbers of workers or rounds, in the smallest type that fits, to reduce memory traffic."""


class Arrivals:
    """The sorted rounds of a profile at its base load, ``times`` (rounds, n).

    ``seconds`` (rounds, n) are the times in order of arrival, ``order`` (rounds, n) are the workers
    in order of arrival, and ``rank`` (rounds, n) is the position (from 0) of each worker in this
    order. ``dtype`` is an integer type that can hold every number of workers and every round
    number.
    """

    def __init__(self, times: FloatArray) -> None:
        num_rounds, n = times.shape
        self.n = n
        wide = max(n + 2, num_rounds) > np.iinfo(np.int16).max
        self.dtype: type[np.signedinteger] = np.int32 if wide else np.int16
        self.order: IntArray = np.argsort(times, axis=1, kind="stable")
        self.seconds: FloatArray = np.take_along_axis(times, self.order, axis=1)
        self.rank: SmallInts = np.empty((num_rounds, n), dtype=self.dtype)
        places = np.broadcast_to(np.arange(n, dtype=self.dtype), times.shape)
        np.put_along_axis(self.rank, self.order, places, axis=1)

    def count(self, rounds: IntArray, instants: FloatArray, *, shifts: FloatArray) -> IntArray:
        """Return the number of workers that have answered in these rounds by these instants.

        All arrays are broadcast together. The method is a bisection over the sums ``time + shift``
        that a replay compares.
        """
        low = np.zeros(np.broadcast_shapes(rounds.shape, instants.shape), dtype=np.intp)
        high = np.full_like(low, self.n)
        while (searching := low < high).any():
            middle = (low + high) // 2
            there = self.seconds[rounds, np.minimum(middle, self.n - 1)] + shifts <= instants
            low = np.where(searching & there, middle + 1, low)
            high = np.where(searching & ~there, middle, high)
        return low


class Closings:
    """The closing times of many candidates' rounds, as `seqgc.rounds.RoundGate` has them.

    A round is open until ``(1+mu) * kappa``, or until all workers have answered. If fewer workers
    have answered than are needed, it stays open until enough (or with ``all``, all) workers have
    answered. The candidates' `Thresholds` are the numbers of answers needed. ``shifts``
    (candidates,) are the seconds that each candidate's load adds to every time. The results are
    ``seconds``, the duration of each round, and ``waited_out``, True if the round stays open beyond
    ``(1+mu) * kappa``; both are (num_rounds, candidates).
    """

    def __init__(
        self, arrivals: Arrivals, shifts: FloatArray, *, num_rounds: int, rule: ClosingRule
    ) -> None:
        self._arrivals, self._shifts, self._wait_out = arrivals, shifts, rule.wait_out
        kappa = arrivals.seconds[:num_rounds, :1] + shifts
        slowest = arrivals.seconds[:num_rounds, -1:] + shifts
        self._deadline = (1 + rule.mu) * kappa
        self._first_look = np.minimum(self._deadline, slowest)
        rounds = np.arange(num_rounds)[:, None]
        self._early = arrivals.count(rounds, self._first_look, shifts=shifts)
        self.seconds: FloatArray = np.zeros_like(kappa)
        self.waited_out: BoolArray = np.zeros(kappa.shape, dtype=np.bool_)

    def close(self, round: int, needed: SmallInts, *, idle: BoolArray | None) -> IntArray:
        """Close a round with at least ``needed`` answers; return their number, (candidates,).

        If ``idle`` is True for a candidate, no worker has a task: the round takes no time, and all
        workers count as answered.
        """
        early, n = self._early[round], self._arrivals.n
        waits = needed > early
        answered = np.where(waits, n if self._wait_out == "all" else np.minimum(needed, n), early)
        at = self._arrivals.seconds[round]
        instants = np.where(waits, at[answered - 1] + self._shifts, self._first_look[round])
        tied = waits & (answered < n)
        tied &= at[np.minimum(answered, n - 1)] + self._shifts <= instants
        if tied.any():
            which, shifts = np.array([round]), self._shifts[tied]
            answered[tied] = self._arrivals.count(which, instants[tied], shifts=shifts)
        if idle is not None:
            answered[idle], instants[idle] = n, 0.0
        self.seconds[round] = instants
        self.waited_out[round] = instants > self._deadline[round]
        return answered

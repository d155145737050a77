"""The straggler models of `seqgc.stragglers`, on one more round of many patterns at once.

Each of them says how many answers the open round needs for the window that ends with it to fit the
model, n + 1 meaning that it cannot, whoever answers. Windows are cut at round 0.
"""

from __future__ import annotations

import numpy as np

from seqgc.search.kernel._arrivals import SmallInts
from seqgc.search.kernel._thresholds import History, Recent, after_enough, after_last

__all__ = ["ArbitraryWindow", "BurstyWindow"]


class ArbitraryWindow:
    """`Arbitrary` (N = B, W = W-1+B, lam), M-SGC's, lam (candidates,).

    No worker straggled more than B times in the rounds before: every window of W-1+B rounds was
    arbitrary, or else bursty, and that implies it. For of a worker's stragglings in a bursty window
    let the first be in round 0. Any two are less than B or at least W rounds apart, so they are in
    rounds x < B and W + y, y < B - 1. No y is x - 1, for W - 1 is neither less than B nor at least
    W. So all the x and y + 1 differ and lie in 0 ... B-1: there are at most B.
    """

    def __init__(self, history: History, *, B: int, W: int, lam: SmallInts) -> None:
        self._history, self._times = history, B
        self._enough = history.arrivals.n - lam
        self._recent = Recent(history, W - 2 + B)

    def needed(self, round: int) -> SmallInts:
        """Answers that the round needs, (candidates,).

        At most lam distinct stragglers means that n - lam of those answer who never straggled.
        """
        past, arrivals = self._recent.times, self._history.arrivals
        needed = after_enough(past == 0, arrivals.order[round], self._enough)
        np.maximum(needed, after_last(past >= self._times, arrivals.rank[round]), out=needed)
        return needed

    def close(self, round: int) -> None:
        """Move on by a round; the history has been fed."""
        self._recent.close(round)


class BurstyWindow:
    """`Bursty` (B, W, lam), lam (candidates,), for a window of W rounds.

    Beside the distinct stragglers, no worker may straggle in two rounds of the window that are B or
    more apart. Two such rounds that are both past are kept as the latest first round of any such
    pair; of those whose second round would be the open one, by every worker's latest straggling
    round that is B or more rounds ago.
    """

    def __init__(self, history: History, *, B: int, W: int, lam: SmallInts) -> None:
        self._history, self._burst, self._length = history, B, W
        self._n, dtype = history.arrivals.n, history.arrivals.dtype
        self._enough = self._n - lam
        self._recent = Recent(history, W - 1)
        # Rounds from 1, so that 0 stands for none.
        self._long_ago: SmallInts = np.zeros(history.shape, dtype=dtype)
        self._latest_pair: SmallInts = np.zeros(history.shape[1], dtype=dtype)

    def needed(self, round: int) -> SmallInts:
        """Answers that the round needs, (candidates,)."""
        arrivals, first = self._history.arrivals, max(round - self._length + 1, 0) + 1
        needed = after_enough(self._recent.times == 0, arrivals.order[round], self._enough)
        if round >= self._burst:
            again = after_last(self._long_ago >= first, arrivals.rank[round])
            np.maximum(needed, again, out=needed)
        needed[self._latest_pair >= first] = self._n + 1
        return needed

    def close(self, round: int) -> None:
        """Move on by a round; the history has been fed."""
        if round >= self._burst:
            pairs = (self._long_ago * self._history.stragglers(round)).max(axis=0)
            np.maximum(self._latest_pair, pairs, out=self._latest_pair)
        self._recent.close(round)
        oldest = round + 1 - self._burst
        if oldest >= 0:
            np.copyto(self._long_ago, oldest + 1, where=self._history.stragglers(oldest))

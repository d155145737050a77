"""The straggler models of `seqgc.stragglers`, on one more round of many patterns at once.

Each of them says how many answers the open round needs for the window that ends with it to fit the
model, n + 1 meaning that it cannot, whoever answers. Windows are cut at round 0. `Conforms` puts
them together, as `AnyOf` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from seqgc.ports import BoolArray
from seqgc.search.kernel._arrivals import SmallInts
from seqgc.search.kernel._codes import Codes
from seqgc.search.kernel._thresholds import History, Recent, Thresholds, after_enough, after_last

__all__ = ["ArbitraryWindow", "BurstyWindow", "Conforms", "EachRound", "Window"]


class Window(ABC):
    """One model, and the windows of ``length`` rounds that it judges."""

    length: int

    @abstractmethod
    def needed(self, round: int) -> SmallInts:
        """Return the answers that the round needs, (candidates,)."""

    @abstractmethod
    def close(self, round: int) -> None:
        """Move on by a round, which the history has taken note of."""


class EachRound(Window):
    """`PerRound` or, of repetition codes, `EveryGroup`: the answers decode (see `Codes`)."""

    length = 1

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def needed(self, round: int) -> SmallInts:
        return self._codes.needed(round)

    def close(self, round: int) -> None:
        """Nothing to remember."""


class ArbitraryWindow(Window):
    """`Arbitrary` (N = B, W = W-1+B, lam), M-SGC's, lam (candidates,).

    No worker straggled more than B times in the rounds before: every window of W-1+B rounds was
    arbitrary, or else bursty, and that implies it. For of a worker's stragglings in a bursty window
    let the first be in round 0. Any two are less than B or at least W rounds apart, so they are in
    rounds x < B and W + y, y < B - 1. No y is x - 1, for W - 1 is neither less than B nor at least
    W. So all the x and y + 1 differ and lie in 0 ... B-1: there are at most B.
    """

    def __init__(self, history: History, *, B: int, W: int, lam: SmallInts) -> None:
        self.length = W - 1 + B
        self._arrivals, self._times = history.arrivals, B
        self._enough = history.arrivals.n - lam
        self._recent = Recent(history, self.length - 1)

    def needed(self, round: int) -> SmallInts:
        # At most lam distinct stragglers: n - lam of those answer who never straggled.
        past, arrivals = self._recent.times, self._arrivals
        needed = after_enough(past == 0, arrivals.order[round], self._enough)
        np.maximum(needed, after_last(past >= self._times, arrivals.rank[round]), out=needed)
        return needed

    def close(self, round: int) -> None:
        self._recent.close(round)


class BurstyWindow(Window):
    """`Bursty` (B, W, lam), lam (candidates,), for a window of W rounds.

    Beside the distinct stragglers, no worker may straggle in two rounds of the window that are B or
    more apart. Two such rounds that are both past are kept as the latest first round of any such
    pair; of those whose second round would be the open one, by every worker's latest straggling
    round that is B or more rounds ago.
    """

    def __init__(self, history: History, *, B: int, W: int, lam: SmallInts) -> None:
        self.length = W
        self._history, self._burst = history, B
        self._n, dtype = history.arrivals.n, history.arrivals.dtype
        self._enough = self._n - lam
        self._recent = Recent(history, W - 1)
        # Rounds from 1, so that 0 stands for none.
        self._long_ago: SmallInts = np.zeros(history.shape, dtype=dtype)
        self._latest_pair: SmallInts = np.zeros(history.shape[1], dtype=dtype)

    def needed(self, round: int) -> SmallInts:
        arrivals, first = self._history.arrivals, max(round - self.length + 1, 0) + 1
        needed = after_enough(self._recent.times == 0, arrivals.order[round], self._enough)
        if round >= self._burst:
            again = after_last(self._long_ago >= first, arrivals.rank[round])
            np.maximum(needed, again, out=needed)
        needed[self._latest_pair >= first] = self._n + 1
        return needed

    def close(self, round: int) -> None:
        if round >= self._burst:
            pairs = (self._long_ago * self._history.stragglers(round)).max(axis=0)
            np.maximum(self._latest_pair, pairs, out=self._latest_pair)
        self._recent.close(round)
        oldest = round + 1 - self._burst
        if oldest >= 0:
            np.copyto(self._long_ago, oldest + 1, where=self._history.stragglers(oldest))


class Conforms(Thresholds):
    """The pattern must conform: in any ``span`` rounds one of the models fits all its windows.

    Of the span that ends with the open round, those are its own and the ones that ended in the
    latest rounds before. (Early in the run that asks for windows which are not whole inside the
    span; they are parts of ones that are asked for anyhow.) That every job is then decoded in time
    are Propositions 3.1 and 3.2 of the paper: feasibility needs no look. ``ends`` follows what is
    left to do at the end of the run, for the candidates that may be idle (a mask; None: nobody).
    """

    def __init__(
        self,
        history: History,
        models: Sequence[Window],
        *,
        span: int,
        ends: Thresholds | None,
        may_be_idle: BoolArray,
    ) -> None:
        self._history, self._models, self._span = history, models, span
        self._needed: list[SmallInts] = []  # by model, and the last round that had fewer answers
        self._failed = [np.full(history.shape[1], -1) for _ in models]
        self._ends, self._may_be_idle = ends, may_be_idle

    def needed(self, round: int) -> SmallInts:
        self._needed = [model.needed(round) for model in self._models]
        options = []
        for model, needed, failed in zip(self._models, self._needed, self._failed, strict=True):
            since = max(0, round - self._span + model.length)
            options.append(np.where(failed < since, needed, self._history.arrivals.n + 1))
        least: SmallInts = np.min(options, axis=0)
        return least

    def idle(self, round: int) -> BoolArray | None:
        idle = None if self._ends is None else self._ends.idle(round)
        if idle is None:
            return None
        everywhere = self._may_be_idle.copy()
        everywhere[everywhere] = idle
        return everywhere

    def close(self, round: int) -> None:
        for needed, failed in zip(self._needed, self._failed, strict=True):
            failed[self._history.answered(round) < needed] = round
        for model in self._models:
            model.close(round)
        if self._ends is not None:
            self._ends.close(round)

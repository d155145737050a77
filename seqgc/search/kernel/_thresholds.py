"""The number of answers that each round needs, for many candidates at once.

`Thresholds` is the interface. `Codes` tells which answers decode. A `Window` is a straggler model
of `seqgc.stragglers`: it gives the number of answers that the open round needs for the window that
ends with it to fit the model, or n + 1 if it cannot fit. Windows are cut at round 0. `Conforms`
combines several models as `AnyOf` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqgc.codes import GradientCode, make_code
from seqgc.ports import BoolArray, IntArray
from seqgc.search.kernel._arrivals import Arrivals, SmallInts

__all__ = [
    "AnswerHistory",
    "ArbitraryWindow",
    "BurstyWindow",
    "Codes",
    "Conforms",
    "Covers",
    "Recent",
    "Thresholds",
    "Window",
    "after_enough",
    "after_last",
]

_RUN = 16  # answers; at most 127


class Thresholds(ABC):
    """The number of answers that each round of some candidates needs.

    The methods are called once per round, in the order `idle`, `needed`, `close`.
    """

    @abstractmethod
    def needed(self, round: int) -> SmallInts:
        """Return the least number of first answers that suffices, (candidates,); n + 1: none does.

        A round with n + 1 ends, like any other, at the latest with its last answer.
        """

    def idle(self, round: int) -> BoolArray | None:  # noqa: ARG002
        """Return the candidates without any task in this round, (candidates,); None: no one."""
        return None

    def close(self, round: int) -> None:  # noqa: B027 (most need no state)
        """Update the state with a round that was added to the history."""


class AnswerHistory:
    """The stragglers of all closed rounds: masks (n, candidates), stored as numbers of answers.

    ``arrivals`` has the order of arrival of the rounds; ``shape`` is the shape of a mask.
    """

    def __init__(self, arrivals: Arrivals, candidates: int) -> None:
        self.arrivals, self.shape = arrivals, (arrivals.n, candidates)
        self._answered: list[SmallInts] = []
        self._columns: BoolArray | None = None  # of the whole history; None: all
        self._latest_round, self._latest = -1, np.zeros(self.shape, dtype=np.bool_)

    def part(self, columns: BoolArray) -> AnswerHistory:
        """Return a view of some candidates, which follows this history."""
        part = AnswerHistory(self.arrivals, int(columns.sum()))
        part._answered, part._columns = self._answered, columns
        return part

    def close(self, answered: IntArray) -> None:
        """Append the number of answers of the next round, (candidates,)."""
        self._answered.append(answered.astype(self.arrivals.dtype))

    def answered(self, round: int) -> SmallInts:
        """Return the number of answers of a closed round, (candidates,)."""
        answered = self._answered[round]
        return answered if self._columns is None else answered[self._columns]

    def stragglers(self, round: int) -> BoolArray:
        """Return the stragglers of a closed round, (n, candidates)."""
        if round == self._latest_round:
            return self._latest
        mask: BoolArray = self.arrivals.rank[round][:, None] >= self.answered(round)
        if round == len(self._answered) - 1:  # several callers need it
            self._latest_round, self._latest = round, mask
        return mask


class Recent:
    """A sliding count of stragglings: ``times`` (n, candidates) in the last ``length`` rounds."""

    def __init__(self, history: AnswerHistory, length: int) -> None:
        self._history, self._length = history, length
        self.times: SmallInts = np.zeros(history.shape, dtype=history.arrivals.dtype)

    def close(self, round: int) -> None:
        """Add a round, and remove the one that leaves the window."""
        self.times += self._history.stragglers(round)
        if round >= self._length:
            self.times -= self._history.stragglers(round - self._length)


def after_last(wanted: BoolArray, rank: SmallInts) -> SmallInts:
    """Return the number of answers until all wanted workers (n, candidates) have answered."""
    most: SmallInts = ((rank + 1)[:, None] * wanted).max(axis=0)
    return most


def after_enough(wanted: BoolArray, order: IntArray, enough: SmallInts) -> SmallInts:
    """Return the number of answers until ``enough`` wanted ones have come; n + 1: never.

    ``wanted`` (n, candidates), ``enough`` (candidates,). The result is at least 1.
    """
    # Strided sums are slow: count whole runs of answers first, then within the last run.
    n, candidates = wanted.shape
    arrived = np.zeros((-(-n // _RUN) * _RUN, candidates), dtype=np.bool_)
    arrived[:n] = wanted[order]
    runs = arrived.reshape(-1, _RUN, candidates)
    up_to = np.cumsum(runs.view(np.int8).sum(axis=1, dtype=np.int8), axis=0, dtype=enough.dtype)
    too_few: SmallInts = (up_to < enough).sum(axis=0, dtype=enough.dtype)
    each = np.arange(candidates)
    before = np.where(too_few > 0, up_to[too_few - 1, each], 0)
    within = np.cumsum(runs[np.minimum(too_few, len(runs) - 1), :, each], axis=1)
    too_few_within = (before[:, None] + within < enough[:, None]).sum(axis=1, dtype=enough.dtype)
    needed: SmallInts = np.minimum(too_few * _RUN + too_few_within, n) + 1
    return needed


_T = TypeVar("_T", np.signedinteger, np.floating)


class Covers:
    """The covers of several codes (`GradientCode.covers`), concatenated column by column.

    ``workers`` (entries,) are the workers of the entries, ``code_of`` (entries,) their codes.

    Examples
    --------
    >>> covers = Covers([make_code("rep", 4, 1), make_code("cyclic", 4, 1)])
    >>> place_of_worker = np.array([0, 3, 1, 2])
    >>> covers.first(place_of_worker[covers.workers])
    array([2, 1])
    """

    def __init__(self, codes: Sequence[GradientCode]) -> None:
        covers = [cover for code in codes for cover in code.covers]
        entries = [sum(cover.size for cover in code.covers) for code in codes]
        self.workers: IntArray = np.concatenate([cover.T.ravel() for cover in covers])
        self.code_of: IntArray = np.repeat(np.arange(len(codes)), entries)
        candidates, places = np.array([cover.shape for cover in covers]).T
        # If every column has only one worker, as in cyclic codes, there is no first to look for.
        self._columns = _starts(np.repeat(candidates, places)) if candidates.max() > 1 else None
        self._covers = _starts(places)
        self._codes = _starts(np.array([len(code.covers) for code in codes]))

    def first(self, arrived: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return when each code's first cover is complete, (..., codes).

        ``arrived`` (..., entries) has the arrival of each entry's answer: a time, or a place in the
        order of arrival.
        """
        columns = arrived
        if self._columns is not None:
            columns = np.minimum.reduceat(arrived, self._columns, axis=-1)
        covers = np.maximum.reduceat(columns, self._covers, axis=-1)
        first: npt.NDArray[_T] = np.minimum.reduceat(covers, self._codes, axis=-1)
        return first


def _starts(lengths: IntArray) -> IntArray:
    starts: IntArray = np.cumsum(lengths) - lengths
    return starts


class Window(Thresholds):
    """A straggler model, and the windows of ``length`` rounds that it judges."""

    length: int


class Codes(Window):
    """A gradient code for each candidate: its family (``kinds``) and its s (``tolerated``).

    Answers decode as soon as they complete a cover of the code. For a code without covers, any n -
    s answers decode; they suffice for every code. A family of None stands for a promise instead of
    a code: exactly any n - s answers suffice. ``covered`` (m,) are the candidates whose codes have
    covers.
    """

    length = 1

    def __init__(
        self, arrivals: Arrivals, tolerated: Sequence[int], kinds: Sequence[str | None]
    ) -> None:
        n = arrivals.n
        self._arrivals, self._never = arrivals, arrivals.dtype(n)
        self._enough: SmallInts = n - np.array(tolerated, dtype=arrivals.dtype)
        codes = [
            None if kind is None else _code_with_covers(kind, n, s)
            for s, kind in zip(tolerated, kinds, strict=True)
        ]
        self.covered: IntArray = np.flatnonzero([code is not None for code in codes])
        if len(self.covered):
            self._covers = Covers([code for code in codes if code is not None])
            # The place of each entry in a flattened mask (n, candidates).
            candidates = self.covered[self._covers.code_of]
            self._entries: IntArray = self._covers.workers * len(codes) + candidates

    def needed(self, round: int, useful: BoolArray | None = None) -> SmallInts:
        """Return the number of answers that decode, (candidates,), counting only useful ones.

        ``useful`` (n, candidates) is a mask; None: all answers are useful. n + 1: not even all
        useful answers decode.
        """
        order, rank = self._arrivals.order[round], self._arrivals.rank[round]
        if useful is None:
            needed = self._enough.copy()
        elif len(self.covered) == len(self._enough):
            needed = np.empty_like(self._enough)
        else:
            needed = after_enough(useful, order, self._enough)
        if len(self.covered):
            arrived = rank[self._covers.workers]
            if useful is not None:
                arrived = np.where(useful.take(self._entries), arrived, self._never)
            needed[self.covered] = self._covers.first(arrived) + 1
        return needed

    def still_needed(self, round: int, useful: BoolArray, *, known: BoolArray) -> SmallInts:
        """Return the number of answers that complete a cover, (m,), given the known results.

        ``useful``, ``known`` (n, candidates). 0: no answer is needed; n + 1: not even all useful
        answers suffice.
        """
        arrived = self._arrivals.rank[round][self._covers.workers]
        arrived = np.where(useful.take(self._entries), arrived, self._never)
        arrived[known.take(self._entries)] = -1
        return self._covers.first(arrived) + 1

    def decode(self, known: BoolArray) -> BoolArray:
        """Return which codes with covers are decoded by the known results (n, candidates), (m,)."""
        missing = ~known.take(self._entries)
        decoded: BoolArray = self._covers.first(missing.view(np.int8)) == 0
        return decoded


@lru_cache(maxsize=1024)
def _code_with_covers(kind: str, n: int, s: int) -> GradientCode | None:
    code = make_code(kind, n, s)
    return code if code.covers else None


class ArbitraryWindow(Window):
    """`Arbitrary` (N = B, W = W-1+B, lam) as used by M-SGC, for lam (candidates,).

    No worker straggled more than B times in the earlier rounds, because every window of W-1+B
    rounds was arbitrary or bursty, and bursty implies it. Proof: in a bursty window, number the
    rounds from a worker's first straggling, round 0. Two of its stragglings are either less than B
    rounds apart or at least W. So they are in rounds x < B and W + y, y < B - 1. No y equals x - 1,
    because W - 1 is neither less than B nor at least W. So all the x and y + 1 are different and
    lie in 0 ... B-1: there are at most B of them.
    """

    def __init__(self, history: AnswerHistory, *, B: int, W: int, lam: SmallInts) -> None:
        self.length = W - 1 + B
        self._arrivals, self._times = history.arrivals, B
        self._enough = history.arrivals.n - lam
        self._recent = Recent(history, self.length - 1)

    def needed(self, round: int) -> SmallInts:
        # At most lam distinct stragglers: n - lam workers that never straggled must answer.
        past, arrivals = self._recent.times, self._arrivals
        needed = after_enough(past == 0, arrivals.order[round], self._enough)
        np.maximum(needed, after_last(past >= self._times, arrivals.rank[round]), out=needed)
        return needed

    def close(self, round: int) -> None:
        self._recent.close(round)


class BurstyWindow(Window):
    """`Bursty` (B, W, lam), for lam (candidates,) and a window of W rounds.

    In addition to the limit of distinct stragglers, no worker may straggle in two rounds of the
    window that are B or more apart. Of such pairs in the past, the latest first round is kept. For
    pairs whose second round would be the open one, every worker's latest straggling that is at
    least B rounds ago is kept.
    """

    def __init__(self, history: AnswerHistory, *, B: int, W: int, lam: SmallInts) -> None:
        self.length = W
        self._history, self._burst = history, B
        self._n, dtype = history.arrivals.n, history.arrivals.dtype
        self._enough = self._n - lam
        self._recent = Recent(history, W - 1)
        # Rounds are numbered from 1; 0 stands for none.
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
    """The rule of ``conform``: in any ``span`` rounds, one of the models fits all its windows.

    The windows of the span that ends with the open round are its own window and all that ended in
    the latest rounds before. Early in the run, this includes windows that are not entirely inside
    the span, but these are parts of windows that are checked in any case. Propositions 3.1 and 3.2
    of the paper show that every job is then decoded in time, so that feasibility is not checked.
    ``ends`` tracks the work at the end of the run, for the candidates in the mask ``may_be_idle``;
    None: no candidate.
    """

    def __init__(
        self,
        history: AnswerHistory,
        models: Sequence[Window],
        *,
        span: int,
        ends: Thresholds | None,
        may_be_idle: BoolArray,
    ) -> None:
        self._history, self._models, self._span = history, models, span
        self._needed: list[SmallInts] = []  # by model
        self._failed = [np.full(history.shape[1], -1) for _ in models]  # last round with too few
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

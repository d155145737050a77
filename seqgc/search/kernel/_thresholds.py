"""The number of answers that each round needs, for many candidates at once.

`Thresholds` is the interface. `Codes` is for gradient codes, whose answers must decode. A `Window`
is for a straggler model of `seqgc.stragglers`: its threshold is the number of answers with which
the window that ends with the open round fits the model, or n + 1 if the window cannot fit. Early in
a run, windows begin with round 0. `Conforms` combines several models as `AnyOf` does.
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

_RUN = 16  # number of answers that `after_enough` sums at a time; at most 127, for int8


class Thresholds(ABC):
    """The number of answers that each round of some candidates needs.

    The methods are called once per round, in the order `idle`, `needed`, `close`.
    """

    @abstractmethod
    def needed(self, round: int) -> SmallInts:
        """Return the least number of first answers that suffices, (candidates,).

        It is n + 1 if no number suffices; the round then closes with its last answer.
        """

    def idle(self, round: int) -> BoolArray | None:  # noqa: ARG002
        """Return a mask (candidates,) of the candidates without any task in this round.

        None means that there is no such candidate.
        """
        return None

    def close(self, round: int) -> None:  # noqa: B027 (most need no state)
        """Update the state after a round has been added to the history."""


class AnswerHistory:
    """The stragglers of all closed rounds: masks (n, candidates), stored as numbers of answers.

    ``arrivals`` has the order of arrival of the rounds; ``shape`` is the shape of a mask.
    """

    def __init__(self, arrivals: Arrivals, candidates: int) -> None:
        self.arrivals, self.shape = arrivals, (arrivals.n, candidates)
        self._answered: list[SmallInts] = []
        self._columns: BoolArray | None = None  # the candidates of this view; None means all
        self._latest_round, self._latest = -1, np.zeros(self.shape, dtype=np.bool_)

    def part(self, columns: BoolArray) -> AnswerHistory:
        """Return a view of some candidates, which follows this history."""
        part = AnswerHistory(self.arrivals, int(columns.sum()))
        part._answered, part._columns = self._answered, columns
        return part

    def close(self, answered: IntArray) -> None:
        """Append the round that closes: ``answered`` (candidates,) are its numbers of answers."""
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
        if round == len(self._answered) - 1:  # cached, because several callers need it
            self._latest_round, self._latest = round, mask
        return mask


class Recent:
    """The numbers ``times`` (n, candidates) of rounds, of the last ``length``, with a straggler.

    ``times[i, c]`` counts the rounds in which worker i straggled.
    """

    def __init__(self, history: AnswerHistory, length: int) -> None:
        self._history, self._length = history, length
        self.times: SmallInts = np.zeros(history.shape, dtype=history.arrivals.dtype)

    def close(self, round: int) -> None:
        """Add a round, and remove the round that leaves the window."""
        self.times += self._history.stragglers(round)
        if round >= self._length:
            self.times -= self._history.stragglers(round - self._length)


def after_last(wanted: BoolArray, rank: SmallInts) -> SmallInts:
    """Return the number of answers after which all ``wanted`` workers (n, candidates) answered."""
    most: SmallInts = ((rank + 1)[:, None] * wanted).max(axis=0)
    return most


def after_enough(wanted: BoolArray, order: IntArray, enough: SmallInts) -> SmallInts:
    """Return the number of answers after which ``enough`` of the ``wanted`` workers answered.

    ``wanted`` is (n, candidates), ``enough`` (candidates,). The result (candidates,) is at least 1,
    and n + 1 if fewer workers than ``enough`` are wanted.
    """
    # Strided sums are slow: count complete runs of answers first, then within the last run.
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

    ``workers`` (entries,) are the workers of the entries, and ``code_of`` (entries,) the indices of
    their codes.

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
        # If every column has only one worker, as in cyclic codes, no minimum is needed.
        self._columns = _starts(np.repeat(candidates, places)) if candidates.max() > 1 else None
        self._covers = _starts(places)
        self._codes = _starts(np.array([len(code.covers) for code in codes]))

    def first(self, arrived: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return the arrival with which the first cover of each code is complete, (..., codes).

        ``arrived`` (..., entries) are the arrivals of the answers: times, or positions in the order
        of arrival.
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
    """The thresholds of a straggler model that checks windows of ``length`` rounds."""

    length: int


class Codes(Window):
    """The thresholds of a gradient code for each candidate.

    ``kinds`` are the families of the codes, and ``tolerated`` their s. Any n - s answers decode. If
    a code has covers, the answers of a complete cover also decode. If a kind is None, there is no
    code, and exactly n - s answers are required. ``covered`` (m,) are the candidates whose codes
    have covers.
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
            # The index of each entry in a flattened mask (n, candidates).
            candidates = self.covered[self._covers.code_of]
            self._entries: IntArray = self._covers.workers * len(codes) + candidates

    def needed(self, round: int, useful: BoolArray | None = None) -> SmallInts:
        """Return the number of answers after which the ``useful`` answers decode, (candidates,).

        ``useful`` (n, candidates) is a mask; None means that all answers are useful. The result is
        n + 1 if all useful answers together do not decode.
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
        """Return the number of answers after which a cover is complete, (m,).

        ``known`` (n, candidates) marks results that have arrived before, and ``useful``
        (n, candidates) the answers that count. The result is 0 if no answer is needed, and n + 1 if
        all useful answers together do not suffice.
        """
        arrived = self._arrivals.rank[round][self._covers.workers]
        arrived = np.where(useful.take(self._entries), arrived, self._never)
        arrived[known.take(self._entries)] = -1
        return self._covers.first(arrived) + 1

    def decode(self, known: BoolArray) -> BoolArray:
        """Return a mask (m,) of the codes with covers that the results ``known`` decode.

        ``known`` is a mask (n, candidates).
        """
        missing = ~known.take(self._entries)
        decoded: BoolArray = self._covers.first(missing.view(np.int8)) == 0
        return decoded


@lru_cache(maxsize=1024)
def _code_with_covers(kind: str, n: int, s: int) -> GradientCode | None:
    code = make_code(kind, n, s)
    return code if code.covers else None


class ArbitraryWindow(Window):
    """The model `Arbitrary` (N = B, W = W-1+B, lam) of M-SGC, for lam (candidates,).

    In the earlier rounds of the window no worker straggled more than B times. The reason is that
    every window of W-1+B rounds was arbitrary or bursty, and a bursty window has this property too.
    Proof: in a bursty window, let round 0 be the first round in which a worker straggles. Two
    rounds in which it straggles are either less than B rounds apart or at least W. Therefore it
    straggles in rounds x < B and in rounds W + y with y < B - 1. If some y were equal to some
    x - 1, these rounds would be W - 1 apart, which is neither less than B nor at least W. Therefore
    all numbers x and y + 1 are different. They lie in 0 ... B-1, so there are at most B of them.
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
    """The model `Bursty` (B, W, lam), for lam (candidates,) and a window of W rounds.

    In addition to the limit of distinct stragglers, no worker may straggle in two rounds of the
    window that are at least B rounds apart. For such pairs in the past, the most recent first round
    is stored. For pairs whose second round would be the open round, the most recent round, at least
    B rounds ago, in which each worker straggled is stored.
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
    """The wait-out rule ``conform``: in any ``span`` rounds, one of the models fits all windows.

    The span that ends with the open round contains the window that ends with the open round, and
    windows that ended shortly before. Early in the run, some of these windows are not entirely
    inside the span, but they are parts of windows that are checked in any case. Propositions 3.1
    and 3.2 of the paper (docs/mathematics.md) show that every job is then decoded in time;
    therefore feasibility is not checked. ``ends`` tracks the work at the end of the run, for the
    candidates in the mask ``may_be_idle``; None means that no candidate may be idle.
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

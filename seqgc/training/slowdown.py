"""`Slowdown`: all workers alike have become slower, which no scheme can do anything about.

Theory of operation
-------------------
Stragglers are some of the workers, in some of the rounds; a throttled account, a file system that
all share, a master that is short of memory slow down everybody at once, and for long. The workers'
times are compared with what they were:

- *Times.* Of a worker that has not answered when its round closes it is known that it takes longer
  than what was left of the round: that counts as its time. So all of this scales with the workers'
  times, whatever the scheme and the closing rule.
- *Usual* is the lower quartile over the latest `_WINDOW` rounds, which cold starts and single good
  rounds do not move. It is not the median: who is twenty times slower in half of the rounds has
  that for a median, and a slowdown of all just twice as large would look like these.
- *Loads.* A task of more load takes longer, at most in proportion; one of less load takes at most
  as long. So a past time counts ``max(1, load / past load)``-fold: never too little, whatever part
  of it load has. A change of scheme, or the first rounds of one with a delay, look like nothing.
- *A slow round.* The fastest tenth takes more than `_FACTOR` times as long as the fastest tenth
  usually does: stragglers, however many, leave the fastest as they are. It also takes clearly
  longer (`_CLEARLY` times) than in all but a few of these rounds: where the fastest tenth itself is
  slow every second time, one more such round is nothing new. And more than a third of the workers
  take more than `_FACTOR` times as long, each compared with itself: a few that were faster than all
  others, and have become like these, are not everybody. A slow round does not become part of what
  is usual.
- *A change.* Slow rounds count 1, others -1, and the sum never falls below 0 (Page's cumulative
  sum, of signs): at `_ROUNDS` a slowdown is told, back at 0 its end. A single round adds 1 however
  slow it is, so that the tails of the times do not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from seqgc.ports import Arrival, Close, Dispatch, Dispatched, FloatArray, RoundRecord, Seen
from seqgc.rounds import Setting

__all__ = ["Slowdown", "SlowdownState"]

_WINDOW: Final = 16  # rounds
_LEAST: Final = 5  # rounds before anything is usual
_LEAST_S: Final = 1e-6  # a time that is not 0
_FACTOR: Final = 3.0
_CLEARLY: Final = 1.5
_FEW: Final = 0.2  # of the rounds
_ROUNDS: Final = 8


@dataclass(slots=True, kw_only=True)
class SlowdownState:
    """What a `Slowdown` remembers: for checkpoints."""

    usual_s: list[float] = field(default_factory=list)  # (n,), at these loads; [] at first
    loads: list[float] = field(default_factory=list)
    count: int = 0  # of slow rounds, less the others
    since: int = 0  # the first round of these
    factors: list[float] = field(default_factory=list)  # by which each slow round was slower
    told: bool = False


class Slowdown:
    """Tells of a slowdown of all workers alike, once, and of its end; an observer of the run.

    ``setting`` returns what the tasks of a dispatch that is shown belong to. ``tell`` is given kind
    and fields of a `seqgc.ports.Notice`: ``slowdown`` or ``recovered``.
    """

    def __init__(
        self,
        n: int,
        *,
        setting: Callable[[], Setting],
        tell: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._n, self._setting, self._tell = n, setting, tell
        self._past: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=_WINDOW)  # times, loads
        self._state = SlowdownState()
        self._round = -1  # the open one
        self._loads: FloatArray = np.zeros(n)
        self._left_at = self._seconds = np.zeros(n)

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Dispatch(attempt=0):
                self._loads = self._touched(seen)
            case Dispatched(attempt=0, workers=workers):
                self._round = seen.round
                self._seconds = np.full(self._n, np.inf)
                self._left_at = np.full(self._n, seen.at)
                self._left_at[list(workers)] = seen.left_at
            case Arrival(round=round, worker=worker) if round == self._round:
                if 0 <= worker < self._n and self._seconds[worker] == np.inf:
                    self._seconds[worker] = seen.at - self._left_at[worker]
            case Close(record=record) if record.round == self._round:
                self._close(record)

    def snapshot(self) -> SlowdownState:
        """Return what it remembers."""
        state = self._state
        usual_s, loads = list[float](), list[float]()
        if len(self._past) >= _LEAST:
            at = self._past[-1][1]
            usual = _usual(self._scaled(at))
            if np.isfinite(usual).all():
                usual_s, loads = usual.tolist(), at.tolist()
        return SlowdownState(
            usual_s=usual_s,
            loads=loads,
            count=state.count,
            since=state.since,
            factors=list(state.factors),
            told=state.told,
        )

    def restore(self, state: SlowdownState) -> None:
        """Remember what another one did."""
        self._state = state
        self._past.clear()
        if state.usual_s:
            row = np.array(state.usual_s), np.array(state.loads)
            self._past.extend([row] * _LEAST)

    def _close(self, record: RoundRecord) -> None:
        self._round = -1
        rest = record.duration_s - (self._left_at - self._left_at.min())
        seconds = np.maximum(np.minimum(self._seconds, rest), _LEAST_S)
        asked = self._loads > 0
        if len(self._past) >= _LEAST and asked.any():
            past = self._scaled(self._loads)[:, asked]
            if _is_slow(seconds[asked], past):
                slower = seconds[asked] / np.median(past, axis=0)
                self._count_slow(record.round, float(np.median(slower)))
                return
            self._count_usual(record.round)
        # Of who was not asked nothing is known but what was known before.
        unknown = np.full(self._n, np.inf), np.ones(self._n)
        times, loads = self._past[-1] if self._past else unknown
        self._past.append((np.where(asked, seconds, times), np.where(asked, self._loads, loads)))

    def _touched(self, dispatch: Dispatch) -> FloatArray:
        """Return the part of a batch that each worker (n,) is asked for, in batches."""
        setting = self._setting()
        tasks = [(w, task.chunks) for w, mini in dispatch.assignment.items() for task in mini]
        workers = np.repeat([w for w, _ in tasks], [len(chunks) for _, chunks in tasks])
        chunks = np.concatenate([np.zeros(0, np.intp), *(chunks for _, chunks in tasks)])
        fractions = setting.jobs_per_round * setting.scheme.chunk_fractions[chunks]
        return np.bincount(workers.astype(np.intp), fractions, self._n).astype(np.float64)

    def _scaled(self, loads: FloatArray) -> FloatArray:
        """Return the times of the past (rounds, n), of which there are some, at these loads."""
        return np.array([times * np.maximum(1.0, loads / before) for times, before in self._past])

    def _count_usual(self, round: int) -> None:
        state = self._state
        if state.count == 1 and state.told:
            state.told = False
            self._tell("recovered", {"round": round, "since": state.since})
        state.count = max(0, state.count - 1)

    def _count_slow(self, round: int, factor: float) -> None:
        """Count a round in which the median worker was slower by a factor."""
        state = self._state
        if state.count == 0:
            state.since, state.factors = round, []
        state.count = min(_ROUNDS, state.count + 1)
        if not state.told:
            state.factors = [*state.factors, factor][-_ROUNDS:]
        if state.count == _ROUNDS and not state.told:
            state.told = True
            times = float(np.median(state.factors))
            self._tell("slowdown", {"round": round, "since": state.since, "times": times})


def _is_slow(seconds: FloatArray, past: FloatArray) -> bool:
    """Say whether times (m,) are those of a slow round, after these (rounds, m)."""
    fast = len(seconds) // 10
    levels = np.partition(past, fast)[:, fast]
    often = float(np.quantile(levels, 1 - _FEW, method="lower"))
    least = max(_FACTOR * float(_usual(levels)), _CLEARLY * often)
    if not np.partition(seconds, fast)[fast] > least:
        return False
    slower = seconds > _FACTOR * _usual(past)
    return 3 * int(slower.sum()) > len(seconds)


def _usual(past: FloatArray) -> FloatArray:
    """Return the lower quartile over some rounds, the first axis: a time that there was."""
    usual: FloatArray = np.quantile(past, 0.25, axis=0, method="lower")
    return usual

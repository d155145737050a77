"""Decisions from the times of live rounds: `AdaptiveDirector` and `SlowdownWatch`.

`AdaptiveDirector` searches for a better setting on the rounds that it has seen (`SeenRounds`).
`SlowdownWatch` warns if all workers become slower at once, which no scheme can mitigate.

Theory of operation of the watch
--------------------------------
Straggling affects some of the workers, in some of the rounds. In contrast, a throttled account, a
slow shared file system or a master that is short of memory slows down all workers, for many rounds.
The watch compares each round with the rounds before:

- *Times.* If a worker has not answered when its round closes, the time from its dispatch to the end
  of the round counts as its time. All times then scale with the speed of the workers, whatever the
  scheme and the closing rule.
- *Usual times.* The usual time of a worker is the lower quartile of its times in the most recent
  `_WINDOW` rounds. Cold starts and single fast rounds do not affect it. A median would hide a
  slowdown: if a worker is twenty times slower in half of the rounds, its median already contains
  the slow times.
- *Loads.* If the load of a task is larger, its time grows at most in proportion; if the load is
  smaller, its time does not grow. A past time is therefore multiplied by
  ``max(1, load / past load)``, which is never too small. Thus neither a switch of schemes nor the
  first rounds of a delayed scheme appear to be slow.
- *A slow round* meets three conditions. (1) The fastest tenth of the workers takes more than
  `_FACTOR` times its usual time. Stragglers do not change the fastest tenth, unless nearly all
  workers straggle. (2) The fastest tenth takes clearly longer (`_CLEARLY` times) than in all but a
  few of the past rounds. This excludes workers whose fastest tenth is often slow. (3) More than a
  third of the workers take more than `_FACTOR` times their usual times. This excludes a few fast
  workers that have become as slow as the rest. The times of a slow round do not count for the usual
  times.
- *A slowdown.* A slow round adds 1 to a sum, and any other round subtracts 1. The sum stays between
  0 and `_ROUNDS` (Page's cumulative sum of signs). When the sum reaches `_ROUNDS`, the watch
  reports a slowdown. When it then returns to 0, the watch reports the end. Extreme times do not
  matter, because a slow round adds 1 however slow it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from seqgc.errors import ProfileError, require_int
from seqgc.ports import (
    Arrival,
    Close,
    Dispatch,
    Dispatched,
    Event,
    FloatArray,
    RoundRecord,
    Seen,
)
from seqgc.profiles import DelayProfile, ProfileMeta, completed
from seqgc.rounds import Adaptation, Decision, Setting
from seqgc.training.tuner import Answer, Choice, Question, SearchFailure, Tuner

__all__ = ["AdaptiveDirector", "SeenRounds", "SlowdownState", "SlowdownWatch", "Switch"]

_WINDOW: Final = 16  # number of rounds
_LEAST: Final = 5  # number of rounds that are needed for a usual time
_LEAST_S: Final = 1e-6  # replaces shorter times, so that no time is 0
_FACTOR: Final = 3.0
_CLEARLY: Final = 1.5
_FEW: Final = 0.2  # a few rounds, as a fraction of the past rounds
_ROUNDS: Final = 8


@dataclass(slots=True, kw_only=True)
class SlowdownState:
    """The state of a `SlowdownWatch`, for checkpoints."""

    # (n,): the usual time of each worker for the load in `loads`. Empty in the first rounds.
    usual_s: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # (n,), in batches
    count: int = 0  # the sum of signs
    since: int = 0  # the first round since which `count` has been above 0
    # For each slow round: the median over the workers of time divided by the worker's median time.
    factors: list[float] = field(default_factory=list)
    told: bool = False  # True if a slowdown has been reported, and its end has not


class SlowdownWatch:
    """An observer that reports the beginning and the end of a slowdown of all workers.

    There are ``n`` workers. The function ``setting`` returns the present setting of the run.
    ``notify`` is called with the kind (``slowdown`` or ``recovered``) and the fields of a
    `seqgc.ports.Notice`.
    """

    def __init__(
        self,
        n: int,
        *,
        setting: Callable[[], Setting],
        notify: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._n, self._setting, self._notify = n, setting, notify
        self._past: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=_WINDOW)  # times, loads
        self._state = SlowdownState()
        self._round = -1  # the open round
        self._loads: FloatArray = np.zeros(n)
        self._left_at = self._seconds = np.zeros(n)

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Dispatch(attempt=0):
                self._loads = self._loads_of(seen)
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
        usual_s, loads = list[float](), list[float]()
        if len(self._past) >= _LEAST:
            latest_loads = self._past[-1][1]
            usual = _usual(self._scaled(latest_loads))
            if np.isfinite(usual).all():
                usual_s, loads = usual.tolist(), latest_loads.tolist()
        factors = list(self._state.factors)
        return replace(self._state, usual_s=usual_s, loads=loads, factors=factors)

    def restore(self, state: SlowdownState) -> None:
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
        # A worker that had no task keeps the time and load of the round before.
        unknown = np.full(self._n, np.inf), np.ones(self._n)
        times, loads = self._past[-1] if self._past else unknown
        self._past.append((np.where(asked, seconds, times), np.where(asked, self._loads, loads)))

    def _loads_of(self, dispatch: Dispatch) -> FloatArray:
        """Return the load (n,) of each worker, in batches."""
        setting = self._setting()
        tasks = [(w, task.chunks) for w, mini in dispatch.assignment.items() for task in mini]
        workers = np.repeat([w for w, _ in tasks], [len(chunks) for _, chunks in tasks])
        chunks = np.concatenate([np.zeros(0, np.intp), *(chunks for _, chunks in tasks)])
        fractions = setting.jobs_per_round * setting.scheme.chunk_fractions[chunks]
        return np.bincount(workers.astype(np.intp), fractions, self._n).astype(np.float64)

    def _scaled(self, loads: FloatArray) -> FloatArray:
        """Return the past times (rounds, n), scaled to ``loads`` (n,) by the rule for loads."""
        return np.array([times * np.maximum(1.0, loads / before) for times, before in self._past])

    def _count_usual(self, round: int) -> None:
        state = self._state
        if state.count == 1 and state.told:
            state.told = False
            self._notify("recovered", {"round": round, "since": state.since})
        state.count = max(0, state.count - 1)

    def _count_slow(self, round: int, factor: float) -> None:
        """Count a slow round, in which the median worker took ``factor`` times its median time."""
        state = self._state
        if state.count == 0:
            state.since, state.factors = round, []
        state.count = min(_ROUNDS, state.count + 1)
        if not state.told:
            state.factors = [*state.factors, factor][-_ROUNDS:]
        if state.count == _ROUNDS and not state.told:
            state.told = True
            times = float(np.median(state.factors))
            self._notify("slowdown", {"round": round, "since": state.since, "times": times})


def _is_slow(seconds: FloatArray, past: FloatArray) -> bool:
    """Return True if a round with these times (m,) is slow, compared to ``past`` (rounds, m)."""
    fast = len(seconds) // 10
    levels = np.partition(past, fast)[:, fast]
    often = float(np.quantile(levels, 1 - _FEW, method="lower"))
    least = max(_FACTOR * float(_usual(levels)), _CLEARLY * often)
    if not np.partition(seconds, fast)[fast] > least:
        return False
    slower = seconds > _FACTOR * _usual(past)
    return 3 * int(slower.sum()) > len(seconds)


def _usual(past: FloatArray) -> FloatArray:
    """Return the lower quartile over the first axis, without interpolation."""
    usual: FloatArray = np.quantile(past, 0.25, axis=0, method="lower")
    return usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of setting: the first job and round of the new setting, and the reason for it."""

    first_job: int
    first_round: int
    choice: Choice

    @property
    def after(self) -> Setting:
        """The new setting."""
        return self.choice.setting

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the switch's line in ``events.jsonl``."""
        return {"round": self.first_round, "job": self.first_job} | self.choice.prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorState:
    """The state of an `AdaptiveDirector`, for checkpoints."""

    rounds_to_search: int | None  # number of rounds until the next search; None: no more searches
    rows: list[SeenRow]


class AdaptiveDirector:
    """A `seqgc.rounds.Director` that searches for a better setting while the run continues.

    After the first ``probe`` rounds, and then every ``retune`` rounds, the director sends a
    question to the ``tuner``. After each round, it checks without waiting whether there is an
    answer. A search that fails changes nothing.

    ``begin()`` is called when a round has closed, before a decision is made.
    ``note(answer, round)`` is called as soon as an answer is known; ``round`` is the round that has
    closed last. ``max_delay`` is the largest delay, in rounds, that a scheme may have. ``batch`` is
    the batch size if all models have the same batch size, and otherwise None. If it is None,
    searches use nominal loads, which need not be a whole number of points.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        *,
        n: int,
        max_delay: int,
        tuner: Tuner,
        begin: Callable[[], None],
        note: Callable[[Answer, int], None],
        batch: int | None = None,
    ) -> None:
        self._adaptation, self._tuner = adaptation, tuner
        self._begin, self._note, self._round = begin, note, -1
        self._batch, self._max_delay = batch, max_delay
        # A search uses the last `probe` or `retune` rounds, whichever number is larger.
        self._seen = SeenRounds(n, window=max(adaptation.probe or 1, adaptation.retune or 1))
        self._rounds_to_search = adaptation.probe or adaptation.retune
        self._searching = False

    def snapshot(self) -> DirectorState:
        """Return the state. A search that has not ended begins again after `restore`."""
        rounds = 0 if self._searching else self._rounds_to_search
        return DirectorState(rounds_to_search=rounds, rows=self._seen.snapshot())

    def restore(self, state: DirectorState) -> None:
        self._rounds_to_search = state.rounds_to_search
        self._seen.restore(state.rows)

    def skip_search(self) -> None:
        """Restart the count of rounds until the next search.

        Call this when a resumed run repeats a switch. The search before the switch is not repeated.
        """
        self._rounds_to_search = self._adaptation.retune

    def on(self, event: Event) -> None:
        self._seen.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        self._begin()
        self._round = record.round
        self._seen.close(record, jobs_per_round=setting.jobs_per_round)
        if self._rounds_to_search is not None:
            self._rounds_to_search -= 1

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        if not self._searching:
            if self._rounds_to_search is not None and self._rounds_to_search <= 0:
                self._rounds_to_search = self._adaptation.retune
                self._search(setting, jobs_left)
            return None
        answer = self._tuner.result()
        if answer is None:
            return None
        self._searching = False
        if isinstance(answer, Choice):
            answer = replace(answer, jobs_left=jobs_left)
        self._note(answer, self._round)
        return Decision(setting=answer.setting) if isinstance(answer, Choice) else None

    def _search(self, setting: Setting, jobs_left: int) -> None:
        alpha = self._adaptation.alpha or 0.0
        try:
            profile = self._seen.profile(alpha=alpha)
        except ProfileError as error:
            self._note(SearchFailure(reason=f"alpha={alpha}: {error}"), self._round)
            return
        self._tuner.submit(
            Question(
                profile=profile,
                current=setting,
                jobs_left=jobs_left,
                max_delay=self._max_delay,
                batch=self._batch,
            )
        )
        self._searching = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRow:
    """One closed round, for checkpoints. Each list has one entry for each worker."""

    round: int
    seconds: list[float]  # from the dispatch of the task to its answer
    rests: list[float]  # from the dispatch of the task to the end of the round
    loads: list[float]  # in batches
    answered: list[bool]


class _Row:
    """One round: for each worker, when its task left, and after how many seconds it answered."""

    def __init__(self, round: int, left_at: FloatArray, loads: FloatArray | None = None) -> None:
        self.round, self.left_at = round, left_at
        self.seconds, self.rests, self.loads = np.zeros((3, len(left_at)))
        if loads is not None:
            self.loads[:] = loads
        self.answered = np.zeros(len(left_at), dtype=np.bool_)

    def close(self, duration_s: float, jobs_per_round: int) -> None:
        """Record the end of the round, which lasted ``duration_s``.

        Also multiply the loads by ``jobs_per_round``, so that they count batches.
        """
        self.rests[:] = duration_s - (self.left_at - self.left_at.min())
        self.loads *= jobs_per_round

    def snapshot(self) -> SeenRow:
        return SeenRow(
            round=self.round,
            seconds=self.seconds.tolist(),
            rests=self.rests.tolist(),
            loads=self.loads.tolist(),
            answered=self.answered.tolist(),
        )

    @classmethod
    def restored(cls, seen: SeenRow) -> _Row:
        """Return the row of a snapshot.

        Another master's clock measured when the tasks of the row were sent. If one of these tasks
        is answered later, the time of the answer is therefore not known.
        """
        row = cls(seen.round, np.full(len(seen.seconds), np.nan))
        row.seconds[:], row.rests[:], row.loads[:] = seen.seconds, seen.rests, seen.loads
        row.answered[:] = seen.answered
        return row


class SeenRounds:
    """The times of the workers' answers in the last ``window`` rounds, including late answers.

    A worker's time is from the first dispatch of its task to its answer, in any attempt. A
    straggler that is cancelled may never answer. Its time is *censored*: all that is known is that
    it is longer than the *rest*, the time from the dispatch to the end of the round. The times of
    failed tasks, and of late answers to restored rounds, are also censored.

    A censored time is replaced by an estimate (`seqgc.profiles.completed`).

    Times are scaled to the window's smallest load before they are compared (docs/mathematics.md,
    section 7).
    """

    def __init__(self, n: int, *, window: int) -> None:
        self._n = n
        self._open: _Row | None = None
        self._rows: deque[_Row] = deque(maxlen=require_int("window", window, least=1))

    def on(self, event: Event) -> None:
        """Record a dispatch or an answer."""
        match event:
            case Dispatched(attempt=0):
                left_at = np.full(self._n, event.at)
                left_at[list(event.workers)] = event.left_at
                self._open = _Row(event.round, left_at, event.loads)
            case Arrival(round=round, worker=worker):
                rows = self._rows if self._open is None else (*self._rows, self._open)
                for row in rows:
                    seconds = event.at - row.left_at[worker]
                    if row.round == round and not (row.answered[worker] or np.isnan(seconds)):
                        row.seconds[worker], row.answered[worker] = seconds, True

    def close(self, record: RoundRecord, *, jobs_per_round: int = 1) -> None:
        """Add the open round, in which a unit of load is ``jobs_per_round`` batches."""
        if self._open is not None and self._open.round == record.round:
            self._open.close(record.duration_s, jobs_per_round)
            self._rows.append(self._open)
        self._open = None

    def snapshot(self) -> list[SeenRow]:
        """Return the closed rounds, the oldest first."""
        return [row.snapshot() for row in self._rows]

    def restore(self, rows: Iterable[SeenRow]) -> None:
        """Replace all rounds by the rounds of a snapshot."""
        self._open = None
        self._rows.clear()
        self._rows.extend(_Row.restored(row) for row in rows)

    def profile(self, *, alpha: float) -> DelayProfile:
        """Return the rounds of the window as a profile, with estimates of the censored times.

        All times are scaled to the smallest load in the window. ``alpha`` is the time that load
        costs, in seconds per unit of load.

        Raises
        ------
        ProfileError
            If there is no round, or alpha makes a time negative.
        """
        shape = (len(self._rows), self._n)
        loads = np.reshape([row.loads for row in self._rows], shape)
        base_load = float(loads.min()) if self._rows else 0.0
        extra = alpha * (loads - base_load)
        rests = np.reshape([row.rests for row in self._rows], shape) - extra
        times = np.reshape([row.seconds for row in self._rows], shape) - extra
        answered = np.reshape([row.answered for row in self._rows], shape).astype(np.bool_)
        return DelayProfile.from_times(
            completed(times, answered, where=~answered, rests=rests),
            meta=ProfileMeta(base_load=base_load, alpha=alpha, source="rounds of a live run"),
        )

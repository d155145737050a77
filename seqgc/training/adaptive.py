"""Looking for a better setting while training goes on (paper, Appendix K.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from seqgc.errors import ProfileError, require_int
from seqgc.ports import Arrival, BoolArray, Dispatched, Event, FloatArray, RoundRecord
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import Adaptation, Decision, Setting
from seqgc.training.tuner import Answer, Choice, Question, SearchFailure, Tuner

__all__ = ["Adaptation", "AdaptiveDirector", "SearchFailure", "SeenRounds", "Switch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of setting: where the new one begins, and why it was chosen."""

    first_job: int
    first_round: int
    choice: Choice

    @property
    def after(self) -> Setting:
        """What was switched to."""
        return self.choice.setting

    @property
    def fields(self) -> dict[str, object]:
        """The switch as a line of ``events.jsonl``."""
        return {"round": self.first_round, "job": self.first_job} | self.choice.prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectorState:
    """What an `AdaptiveDirector` remembers: for checkpoints."""

    rounds_to_search: int | None
    rows: list[SeenRow]


class AdaptiveDirector:
    """Searches on the rounds seen while the next ones go on; a `seqgc.rounds.Director`.

    After the first search's rounds, and then every ``retune`` rounds, it asks the tuner, and
    between rounds looks, without waiting, whether there is an answer. A search that fails changes
    nothing.

    ``note`` is told every answer at once; ``max_delay`` is the largest, rounds, that a scheme may
    have; ``batch`` the size of all models' batches, if they have one size: else loads are nominal.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        *,
        n: int,
        max_delay: int,
        tuner: Tuner,
        note: Callable[[Answer], None],
        batch: int | None = None,
    ) -> None:
        self._adaptation, self._tuner, self._note = adaptation, tuner, note
        self._batch, self._max_delay = batch, max_delay
        # A search looks at as many rounds as were probed or, if more, retuned on.
        self._seen = SeenRounds(n, window=max(adaptation.probe or 1, adaptation.retune or 1))
        self._rounds_to_search = adaptation.probe or adaptation.retune
        self._searching = False

    def snapshot(self) -> DirectorState:
        """Return what it remembers; a search that is under way is to be asked for again."""
        rounds = 0 if self._searching else self._rounds_to_search
        return DirectorState(rounds_to_search=rounds, rows=self._seen.snapshot())

    def restore(self, state: DirectorState) -> None:
        """Remember what another one did."""
        self._rounds_to_search = state.rounds_to_search
        self._seen.restore(state.rows)

    def repeat(self) -> None:
        """Take note that a choice on record is made again: the search for it is over."""
        self._rounds_to_search = self._adaptation.retune

    def on(self, event: Event) -> None:
        self._seen.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
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
        self._note(answer)
        return Decision(setting=answer.setting) if isinstance(answer, Choice) else None

    def _search(self, setting: Setting, jobs_left: int) -> None:
        alpha = self._adaptation.alpha or 0.0
        try:
            profile = self._seen.profile(alpha=alpha)
        except ProfileError as error:
            self._note(SearchFailure(reason=f"alpha={alpha}: {error}"))
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
    """One round that is over, for checkpoints; lists (n,) of its workers."""

    round: int
    seconds: list[float]
    rests: list[float]
    loads: list[float]
    answered: list[bool]


class _Row:
    """One round: when each worker's task left, and how long the answers took from then on."""

    def __init__(self, round: int, left_at: FloatArray, loads: FloatArray | None = None) -> None:
        self.round, self.left_at = round, left_at
        self.seconds, self.rests, self.loads = np.zeros((3, len(left_at)))
        if loads is not None:
            self.loads[:] = loads
        self.answered = np.zeros(len(left_at), dtype=np.bool_)

    def close(self, duration_s: float, jobs_per_round: int) -> None:
        """Take note of how many jobs' batches there were, and what was left as each task left."""
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
        """Return the row of which this is a snapshot.

        Its tasks left by another master's clock: an answer that still comes has no time here.
        """
        row = cls(seen.round, np.full(len(seen.seconds), np.nan))
        row.seconds[:], row.rests[:], row.loads[:] = seen.seconds, seen.rests, seen.loads
        row.answered[:] = seen.answered
        return row


class SeenRounds:
    """Keeps the answers' times of the latest rounds, late ones included.

    A worker's time is from when its task first left to its answer, in whichever attempt. A
    straggler that is cancelled may never answer: all that is known of its time is that it is longer
    than what was left of the round, a *censored* time. As what it would have been counts the median
    of the longer times that were seen in the window: the worker's own, or everyone's if it has
    none, or the rest of the round if nobody has. So what the stragglers would have taken is what
    stragglers did take wherever they were waited for. An uncoded round waits for everybody, and
    hides nothing. A failed task is censored too, and a late answer to a round that was restored.
    Every worker's load is what it was dispatched with, and times are brought to the window's
    smallest load before they are compared (docs/mathematics.md, section 7).
    """

    def __init__(self, n: int, *, window: int) -> None:
        self._n = n
        self._open: _Row | None = None
        self._rows: deque[_Row] = deque(maxlen=require_int("window", window, least=1))

    def on(self, event: Event) -> None:
        """Take note of an event of the loop."""
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
        """Take note of how a round ended, whose tasks were of so many models' batches."""
        if self._open is not None and self._open.round == record.round:
            self._open.close(record.duration_s, jobs_per_round)
            self._rows.append(self._open)
        self._open = None

    def snapshot(self) -> list[SeenRow]:
        """Return the rounds that are over, the oldest first."""
        return [row.snapshot() for row in self._rows]

    def restore(self, rows: Iterable[SeenRow]) -> None:
        """Keep these rounds, and no others."""
        self._open = None
        self._rows.clear()
        self._rows.extend(_Row.restored(row) for row in rows)

    def profile(self, *, alpha: float) -> DelayProfile:
        """Return the window's rounds at its smallest load, censored times filled in.

        ``alpha`` is in seconds per unit of load. ProfileError if there is no round, or if alpha
        makes a time negative.
        """
        shape = (len(self._rows), self._n)
        loads = np.reshape([row.loads for row in self._rows], shape)
        base_load = float(loads.min()) if self._rows else 0.0
        extra = alpha * (loads - base_load)
        rests = np.reshape([row.rests for row in self._rows], shape) - extra
        times = np.reshape([row.seconds for row in self._rows], shape) - extra
        answered = np.reshape([row.answered for row in self._rows], shape).astype(np.bool_)
        return DelayProfile.from_times(
            _completed(times, answered, rests=rests),
            meta=ProfileMeta(base_load=base_load, alpha=alpha, source="rounds of a live run"),
        )


def _completed(times: FloatArray, answered: BoolArray, *, rests: FloatArray) -> FloatArray:
    """Return ``times`` (rounds, n) with the censored ones filled in; see `SeenRounds`."""
    full, everyone = times.copy(), np.sort(times[answered])
    for worker in np.flatnonzero(~answered.all(axis=0)):
        own = np.sort(times[answered[:, worker], worker])
        for row in np.flatnonzero(~answered[:, worker]):
            than = float(rests[row, worker])
            full[row, worker] = _longer(own, than) or _longer(everyone, than) or than
    return full


def _longer(seen: FloatArray, than: float) -> float:
    """Return the median of the times ``seen``, in order, that are longer; 0 if there is none."""
    longer = seen[np.searchsorted(seen, than, side="right") :]
    if not longer.size:
        return 0.0
    return float(longer[(len(longer) - 1) // 2] + longer[len(longer) // 2]) / 2

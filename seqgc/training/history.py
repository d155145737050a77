"""The content of a run's journal: closed rounds, switches of schemes, expelled workers and more.

`read_history` reads the journal, and a `Recorder` appends to it while the run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from seqgc.errors import DamageError, SeqgcError, StoreError
from seqgc.models.provenance import differences
from seqgc.ports import (
    BoolArray,
    Close,
    Dispatch,
    LastingObserver,
    Notice,
    Observer,
    RoundRecord,
    Seen,
)
from seqgc.rounds import ClosingRule, PastRound, SettingState
from seqgc.runs.journal import Entry, Journal, continues, read_journal
from seqgc.runs.lease import Lease
from seqgc.training.tuner import Choice

__all__ = [
    "ChoiceState",
    "History",
    "JournalState",
    "Recorder",
    "history_since",
    "limited",
    "read_history",
]


@dataclass(slots=True, kw_only=True)
class JournalState:
    """A position in the journal, and the facts about the run from the lines before the position.

    A checkpoint contains this state, so that a resumed run reads only the later lines.
    """

    lines: int = 0
    size_bytes: int = 0
    num_workers: int = 0
    name: str = ""  # name of the run's folder when it began: the seed of stochastic rounding
    fingerprint: dict[str, str] = field(default_factory=dict)
    """The current fingerprint (`seqgc.training.fingerprint`)."""
    expelled: set[int] = field(default_factory=set)
    """Workers that an audit has excluded permanently."""
    memories: dict[str, dict[str, float]] = field(default_factory=dict)
    """The saved state of each `LastingObserver` (its ``memory``), by the observer's name."""
    pin: dict[str, str] = field(default_factory=dict)
    """The published version of the code of the run's latest workers (see `Crew`)."""
    group_sizes: dict[str, int] = field(default_factory=dict)
    """The number of similar models that a worker computes at once, by model (`GroupSizes`)."""


@dataclass(slots=True, kw_only=True)
class History(JournalState):
    """The content of a run's journal: its present state, and the events since a checkpoint.

    ``origin`` is the state at the checkpoint, after which the journal was read. ``first`` is the
    number of rounds that were closed at the checkpoint. ``by`` is the number of the master that
    wrote the checkpoint. Without a checkpoint, both numbers are 0.
    """

    origin: JournalState = field(default_factory=JournalState)
    first: int = 0
    by: int = 0
    closed: dict[int, PastRound] = field(default_factory=dict)
    """The rounds that closed since the checkpoint, by number, without gaps."""
    choices: dict[int, Choice] = field(default_factory=dict)
    """Decisions to switch since the checkpoint, by the round after which they were made."""
    is_superseded: bool = False  # True if a later master has continued from an earlier checkpoint
    # False if the run has continued from a later checkpoint with another number of workers. A run
    # that continues from this checkpoint can then not close the recorded rounds in the same way.
    is_repeatable: bool = True
    torn_bytes: int = 0  # length of an incomplete last line, which is cut off

    @classmethod
    def since(cls, state: JournalState, *, rounds: int = 0, by: int = 0) -> History:
        """Return a history without events, to which the lines after ``state`` can be added."""
        return cls(origin=state, first=rounds, by=by, **_fields(state))

    def has_after(self, rounds: int) -> bool:
        """Return True if the resumed run still has a recorded round or switch to repeat.

        ``rounds`` is the number of rounds that the resumed run has closed.
        """
        return max([*self.closed, *self.choices], default=-1) >= rounds

    def again(self) -> dict[int, PastRound]:
        """Return the rounds that a resumed run must close as before, each with its switch."""
        past = dict(self.closed)
        for round, choice in self.choices.items():
            past[round] = replace(past.get(round, PastRound()), setting=choice.setting)
        return past

    def limit(self, rule: ClosingRule) -> None:
        """Give all recorded settings the time limit and the number of attempts of ``rule``."""
        self.choices = {round: limited(each, rule) for round, each in self.choices.items()}

    def forget_from(self, round: int) -> None:
        """Forget a round and everything after it, except the choice to switch after this round.

        The journal has the line of the choice before the line of the round.
        """
        self.closed = {r: past for r, past in self.closed.items() if r < round}
        self.choices = {r: choice for r, choice in self.choices.items() if r <= round}

    def forget_all(self) -> None:
        """Forget all rounds and switches. Another number of workers cannot repeat them."""
        self.closed, self.choices = {}, {}

    def take(self, entry: Entry) -> None:
        """Add the next line of the journal."""
        self.lines += 1
        body = entry.fields
        if "memories" in body:
            self.memories = msgspec.convert(body.pop("memories"), dict[str, dict[str, float]])
        match entry.kind:
            case "begin":
                begin = msgspec.convert(body, _Begin)
                changes = self.num_workers not in (0, begin.workers)
                if changes:
                    self.forget_all()
                if changes or not self.is_repeatable:
                    self.is_repeatable = begin.since <= self.first
                self.fingerprint, self.num_workers = begin.fingerprint, begin.workers
                self.name = begin.name
                self.is_superseded |= entry.master > self.by and begin.since < self.first
            case "pin":
                self.pin = msgspec.convert(body, dict[str, str])
            case "group":
                self.group_sizes = msgspec.convert(body["sizes"], dict[str, _GroupSize])
            case "round" if self.is_repeatable:
                self._close(msgspec.convert(body, _Round))
            case "decide" if self.is_repeatable:
                decision = msgspec.convert(body, _Decision)
                self.choices[decision.round] = decision.choice.choice(self.num_workers)
            case "expel":
                self.expelled.add(msgspec.convert(body, _Expulsion).worker)

    def _close(self, line: _Round) -> None:
        following = self.first + len(self.closed)
        if line.round > following:
            raise StoreError(f"round {line.round} follows {following} rounds")
        responded: BoolArray | None = None
        if line.stragglers is not None:
            responded = np.ones(self.num_workers, dtype=np.bool_)
            responded[line.stragglers] = False
        # If the round is known, a later master could not close it in the same way as before.
        self.forget_from(line.round)
        if line.round >= self.first:
            self.closed[line.round] = PastRound(responded=responded, late=line.late)


def _fields(state: JournalState) -> dict[str, Any]:
    """Return copies of the fields of a journal's state."""
    values = {each.name: getattr(state, each.name) for each in fields(JournalState)}
    return {name: v.copy() if isinstance(v, dict | set) else v for name, v in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    workers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    fingerprint: dict[str, str]
    name: str
    since: int  # number of rounds of the checkpoint from which the master continues


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


_GroupSize: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    round: _Number
    stragglers: list[_Number] | None = None  # None if the bits do not depend on the stragglers
    late: list[tuple[_Number, _Number]] = field(default_factory=list)  # pairs (round, worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expulsion:
    worker: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceState:
    """A `Choice` in a form that can be written as JSON."""

    current: SettingState
    found: SettingState
    current_s: float
    found_s: float
    jobs_left: int
    searched: int

    @classmethod
    def of(cls, choice: Choice) -> ChoiceState:
        return cls(
            current=SettingState.of(choice.current),
            found=SettingState.of(choice.found),
            current_s=choice.current_s,
            found_s=choice.found_s,
            jobs_left=choice.jobs_left,
            searched=choice.searched,
        )

    def choice(self, n: int) -> Choice:
        """Return the choice, whose settings are for ``n`` workers."""
        return Choice(
            current=self.current.setting(n),
            found=self.found.setting(n),
            current_s=self.current_s,
            found_s=self.found_s,
            jobs_left=self.jobs_left,
            searched=self.searched,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    round: int
    choice: ChoiceState


def limited(choice: Choice, rule: ClosingRule) -> Choice:
    """Return a choice whose settings have the time limit and the number of attempts of ``rule``."""
    current, found = choice.current.limited_by(rule), choice.found.limited_by(rule)
    return replace(choice, current=current, found=found)


def read_history(path: Path, since: History | None = None) -> History:
    """Read a journal into a history, and cut off an incomplete last line.

    ``since`` is the history at a checkpoint, to which the later lines are added. Without ``since``,
    all lines are read. If there are no lines, ``num_workers`` is 0, and the name of the run is the
    name of its folder.

    Raises
    ------
    DamageError
        If the file is damaged, or its first line is missing.
    """
    history = since or History.since(JournalState(name=path.parent.resolve().name))
    if not path.exists():
        return history
    first_line = history.lines + 1
    entries, history.torn_bytes = read_journal(
        path, mend=True, after_bytes=history.size_bytes, after_lines=history.lines
    )
    for number, entry in enumerate(entries, start=first_line):
        try:
            history.take(entry)
        except (msgspec.ValidationError, KeyError, IndexError, SeqgcError) as error:
            raise DamageError(f"journal {path}, line {number}: {error}") from error
    if entries and not history.num_workers:
        raise DamageError(
            f"journal {path} has no beginning, so the run cannot be resumed: restore the file from "
            "a backup"
        )
    return history


def history_since(path: Path, state: JournalState, *, rounds: int, by: int) -> History | None:
    """Return the history since a checkpoint, or None if the run cannot continue from it.

    The master ``by`` has written the checkpoint after ``rounds`` rounds, when the journal had the
    state ``state``. The run cannot continue from the checkpoint if the journal does not contain
    this state, or if a later master has continued from an earlier checkpoint.
    """
    if not continues(path, after_bytes=state.size_bytes, after_lines=state.lines):
        return None
    history = read_history(path, History.since(state, rounds=rounds, by=by))
    return None if history.is_superseded else history


class Recorder:
    """An observer that writes the run's history to the journal.

    ``repeats(round)`` returns True if a resumed run must close the round with the same answers.
    The lines of other rounds do not name the answers. When a resumed run closes a round in the same
    way as before, no new line is written.

    Some ``observers`` have a state that must survive an interruption (`LastingObserver`), such as
    the money spent. Each line contains the states of these observers. If a state has changed, a
    line is written before new tasks are sent, so that the next master knows the state.
    """

    def __init__(
        self,
        journal: Journal,
        history: History,
        lease: Lease,
        *,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._journal, self.history, self.lease = journal, history, lease
        self.repeats: Callable[[int], bool] = lambda _: True
        self._begins: tuple[dict[str, str], int] | None = None
        self._lasting: dict[str, LastingObserver] = {}
        for each in observers:
            if isinstance(each, LastingObserver):
                name = type(each).__name__
                same = sum(other.partition(" ")[0] == name for other in self._lasting)
                self._lasting[f"{name} {same + 1}" if same else name] = each

    @property
    def master(self) -> int:
        """The number of the master that writes the journal."""
        return self._journal.master

    def write(self, kind: str, **fields: object) -> None:
        """Write a line, and wait until it is on the disk.

        Raises `StoreError` if this fails, or if another master has taken over the run.
        """
        self._write(kind, fields, sync=True)

    def _write(self, kind: str, fields: dict[str, object], *, sync: bool) -> None:
        self.lease.check()
        if self._lasting:
            self.history.memories = fields["memories"] = self._memories()
        self._journal.append(kind, sync=sync, **fields)
        self.lease.check()  # again, because writing may have taken long

    def mark(self, rounds: int) -> JournalState:
        """Return the state of the journal for a checkpoint after ``rounds`` rounds.

        First wait until all lines are on the disk. The state usually has the position at the end of
        the journal. If the run still has rounds to repeat, it has the position before the lines of
        these rounds, so that the next master reads them again. Raises `StoreError` if the lines
        cannot be written.
        """
        self._journal.sync()
        if self.history.has_after(rounds):
            return replace(self.history.origin, fingerprint=dict(self.history.fingerprint))
        state = JournalState(**_fields(self.history))
        return replace(state, lines=self._journal.lines, size_bytes=self._journal.size_bytes)

    def restore_observers(self) -> list[str]:
        """Restore the recorded state of each `LastingObserver`; return warnings.

        There is a warning for each observer of a resumed run whose state the journal does not have.
        """
        memories, warnings = self.history.memories, []
        for name, observer in self._lasting.items():
            if name in memories:
                observer.recall(memories[name])
            elif self.history.num_workers:
                warnings.append(
                    f"{name}: the journal has no saved state of this observer, so it does not "
                    "include what happened before the run was resumed"
                )
        return warnings

    @property
    def open_usd(self) -> float:
        """The cost, in US dollars, that the tasks in flight may still cause."""
        return sum(memory.get("open_usd", 0.0) for memory in self._memories().values())

    def _memories(self) -> dict[str, dict[str, float]]:
        return {name: dict(observer.memory) for name, observer in self._lasting.items()}

    def begin(self, fingerprint: dict[str, str], *, workers: int) -> None:
        """Write the first line of a new run; for a resumed run, write only the observers' states.

        `write_begin` later writes the line that says that a run was resumed.
        """
        self._begins = fingerprint, workers
        if self.history.num_workers:
            self._write_memories()
        else:
            self.write_begin()

    def write_begin(self) -> None:
        """Write the fingerprint, unless it is written. Call this after restoring the checkpoint."""
        if self._begins is not None:
            (fingerprint, workers), self._begins = self._begins, None
            about = {"workers": workers, "fingerprint": fingerprint, "name": self.history.name}
            self.write("begin", **about, since=self.history.first)
            self.history.fingerprint, self.history.num_workers = fingerprint, workers

    def pin(self, pin: Mapping[str, str]) -> list[str]:
        """Record the published version of the workers' code, if it has changed.

        Return a warning for each difference to the version of the previous master.
        """
        before = self.history.pin
        if pin != before:
            self.write("pin", **pin)
            self.history.pin = dict(pin)
        changes = differences(before, pin, words=("was", "is")) if before else []
        return [f"the functions have changed: {each}" for each in changes]

    def group(self, sizes: Mapping[str, int]) -> None:
        """Record how many models a worker computes at once, if the journal has other numbers."""
        if sizes != self.history.group_sizes:
            self.write("group", sizes=dict(sizes))
            self.history.group_sizes = dict(sizes)

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Close():
                self._close(seen)
            case Dispatch() if self._memories() != self.history.memories:
                self.write("send", round=seen.round, attempt=seen.attempt)
            case Notice(kind="expelled", fields={"worker": int(worker)}):
                self.write("expel", worker=worker)
                self.history.expelled.add(worker)

    def write_last_memories(self) -> None:
        """Write the observers' states after the last task has ended, if they have changed."""
        with suppress(StoreError):  # another master has the run, or the disk is full
            self._write_memories()

    def _write_memories(self) -> None:
        if self._memories() != self.history.memories:
            self.write("rest")

    def decide(self, round: int, choice: Choice) -> None:
        """Record the choice to switch after ``round``. Call this before the round is recorded."""
        body = _Decision(round=round, choice=ChoiceState.of(choice))
        self.write("decide", **msgspec.to_builtins(body))

    def contradicts(self, record: RoundRecord) -> bool:
        """Return True if a repeated round has closed with other answers than before."""
        past = self.history.closed.get(record.round)
        return past is not None and past.contradicts(record)

    def _close(self, close: Close) -> None:
        record = close.record
        if record.round in self.history.closed and not self.contradicts(record):
            return
        body: dict[str, object] = {"round": record.round}
        if repeats := self.repeats(record.round):
            body["stragglers"] = np.flatnonzero(~record.responded).tolist()
            if record.late:
                body["late"] = [list(each) for each in record.late]
        self._write("round", body, sync=repeats or bool(self._lasting))
        self.history.forget_from(record.round)

"""The content of a run's journal: closed rounds, switches of schemes, expelled workers.

`read_history` reads the journal, and a `Recorder` writes it while the run continues.
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
    """A position in the journal, and what the lines before it say about the run.

    Checkpoints hold it, so that a resumed run reads only the later lines.
    """

    lines: int = 0
    size_bytes: int = 0
    num_workers: int = 0
    name: str = ""  # name of the run's folder when it began, which seeds rounding
    fingerprint: dict[str, str] = field(default_factory=dict)
    """The current fingerprint (`seqgc.training.fingerprint`)."""
    expelled: set[int] = field(default_factory=set)
    """Workers that an audit has excluded."""
    memories: dict[str, dict[str, float]] = field(default_factory=dict)
    """Memories of lasting observers, by the observers' names."""
    pin: dict[str, str] = field(default_factory=dict)  # the pin of its latest crew (see `Crew`)
    group_sizes: dict[str, int] = field(default_factory=dict)
    """By model: how many models of its form workers compute at once (`GroupSizes`)."""


@dataclass(slots=True, kw_only=True)
class History(JournalState):
    """The content of a run's journal: its state, and what has happened since a checkpoint.

    ``origin`` is the state from which the journal was read. ``first`` is the number of rounds at
    the checkpoint, and ``by`` the master that wrote it; both are 0 if there is none.
    """

    origin: JournalState = field(default_factory=JournalState)
    first: int = 0
    by: int = 0
    closed: dict[int, PastRound] = field(default_factory=dict)
    """The rounds that closed since the checkpoint, by number, without gaps."""
    choices: dict[int, Choice] = field(default_factory=dict)
    """Decisions to switch since the checkpoint, by the round after which they were made."""
    is_superseded: bool = False  # True if a later master has continued from an earlier checkpoint
    # False if the run has continued from a later checkpoint with another number of workers: its
    # rounds cannot be closed again from this checkpoint.
    is_repeatable: bool = True
    torn_bytes: int = 0

    @classmethod
    def since(cls, state: JournalState, *, rounds: int = 0, by: int = 0) -> History:
        """Return the history before any line after ``state`` has been read."""
        return cls(origin=state, first=rounds, by=by, **_fields(state))

    def has_after(self, rounds: int) -> bool:
        """Return True if the run must still close a round, or make a switch, as before."""
        return max([*self.closed, *self.choices], default=-1) >= rounds

    def again(self) -> dict[int, PastRound]:
        """Return the rounds that a resumed run must close as before, with its switches."""
        past = dict(self.closed)
        for round, choice in self.choices.items():
            past[round] = replace(past.get(round, PastRound()), setting=choice.setting)
        return past

    def limit(self, rule: ClosingRule) -> None:
        """Replace the time limit and number of attempts in all recorded settings."""
        self.choices = {round: limited(each, rule) for round, each in self.choices.items()}

    def forget_from(self, round: int) -> None:
        """Forget a round and all that followed it, but not the switch after it."""
        self.closed = {r: past for r, past in self.closed.items() if r < round}
        self.choices = {r: choice for r, choice in self.choices.items() if r <= round}

    def forget_all(self) -> None:
        """Forget all rounds and switches, because another number of workers cannot repeat them."""
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
        # The line is of a round that a later master could not close again as before.
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
    stragglers: list[_Number] | None = None  # None: the bits do not depend on them
    late: list[tuple[_Number, _Number]] = field(default_factory=list)  # rounds and workers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expulsion:
    worker: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceState:
    """A `Choice` as values of JSON."""

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
        """Return the choice for ``n`` workers."""
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
    """Return a choice with the time limit and number of attempts of a rule in its settings."""
    current, found = choice.current.limited_by(rule), choice.found.limited_by(rule)
    return replace(choice, current=current, found=found)


def read_history(path: Path, since: History | None = None) -> History:
    """Read a journal, and cut off an incomplete last line.

    With ``since``, the history at a checkpoint, only the later lines are read. If there is no
    journal, or the run ended before its first line, ``num_workers`` is 0, and the name is that of
    the folder.

    Raises
    ------
    DamageError
        If the file is damaged.
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
        raise DamageError(f"journal {path} has no beginning: the run cannot be resumed")
    return history


def history_since(path: Path, state: JournalState, *, rounds: int, by: int) -> History | None:
    """Return the history since a checkpoint of the master ``by`` after this number of rounds.

    Return None if the journal does not continue from the checkpoint.
    """
    if not continues(path, after_bytes=state.size_bytes, after_lines=state.lines):
        return None
    history = read_history(path, History.since(state, rounds=rounds, by=by))
    return None if history.is_superseded else history


class Recorder:
    """An observer that writes the run's history to the journal.

    ``repeats`` returns True for a round that a resumed run must close with the same answers; the
    lines of other rounds do not name the answers. If a round closes again as it must, it is not
    written again. Every line contains the
    memories of the lasting ``observers``, such as spent money. If a memory has changed, a line is
    written before tasks leave, so that the next master knows the memory.
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
        """The number of the master that writes."""
        return self._journal.master

    def write(self, kind: str, **fields: object) -> None:
        """Write a line to the disk; raise `StoreError` if another master has taken over the run."""
        self._write(kind, fields, sync=True)

    def _write(self, kind: str, fields: dict[str, object], *, sync: bool) -> None:
        self.lease.check()
        if self._lasting:
            self.history.memories = fields["memories"] = self._memories()
        self._journal.append(kind, sync=sync, **fields)
        self.lease.check()  # again, because writing may have taken long

    def mark(self, rounds: int) -> JournalState:
        """Return the state of the journal for a checkpoint after this number of rounds.

        All lines are on the disk then. The position is the end of the journal. If rounds are still
        to be closed as before, it is the position from which their lines were read. Raises
        `StoreError` if the lines cannot be written.
        """
        self._journal.sync()
        if self.history.has_after(rounds):
            return replace(self.history.origin, fingerprint=dict(self.history.fingerprint))
        state = JournalState(**_fields(self.history))
        return replace(state, lines=self._journal.lines, size_bytes=self._journal.size_bytes)

    def restore_observers(self) -> list[str]:
        """Restore the recorded state of each `LastingObserver`.

        Return a warning for each observer whose state is missing in the journal of a resumed run.
        """
        memories, warnings = self.history.memories, []
        for name, observer in self._lasting.items():
            if name in memories:
                observer.recall(memories[name])
            elif self.history.num_workers:
                warnings.append(f"{name}: the journal has no memory of it from earlier masters")
        return warnings

    @property
    def open_usd(self) -> float:
        """The cost, in US dollars, that the tasks in flight may still cause."""
        return sum(memory.get("open_usd", 0.0) for memory in self._memories().values())

    def _memories(self) -> dict[str, dict[str, float]]:
        return {name: dict(observer.memory) for name, observer in self._lasting.items()}

    def begin(self, fingerprint: dict[str, str], *, workers: int) -> None:
        """Write the first line of a new run; for a resumed run, write only the memories.

        The first line of a resumed run is written later by `write_begin`.
        """
        self._begins = fingerprint, workers
        if self.history.num_workers:
            self._write_memories()
        else:
            self.write_begin()

    def write_begin(self) -> None:
        """Write the fingerprint; call this after the state has been restored."""
        if self._begins is not None:
            (fingerprint, workers), self._begins = self._begins, None
            about = {"workers": workers, "fingerprint": fingerprint, "name": self.history.name}
            self.write("begin", **about, since=self.history.first)
            self.history.fingerprint, self.history.num_workers = fingerprint, workers

    def pin(self, pin: Mapping[str, str]) -> list[str]:
        """Record the published version of the workers' code if it has changed; return warnings."""
        before = self.history.pin
        if pin != before:
            self.write("pin", **pin)
            self.history.pin = dict(pin)
        changes = differences(before, pin, words=("was", "is")) if before else []
        return [f"the functions have changed: {each}" for each in changes]

    def group(self, sizes: Mapping[str, int]) -> None:
        """Record how many models are computed at once, if the journal does not have it yet."""
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
        """Write the memories after the last task has ended, if they have changed."""
        with suppress(StoreError):  # another master has the run, or the disk is full
            self._write_memories()

    def _write_memories(self) -> None:
        if self._memories() != self.history.memories:
            self.write("rest")

    def decide(self, round: int, choice: Choice) -> None:
        """Record a decision to switch after ``round``, before the round itself is recorded."""
        body = _Decision(round=round, choice=ChoiceState.of(choice))
        self.write("decide", **msgspec.to_builtins(body))

    def contradicts(self, record: RoundRecord) -> bool:
        """Return whether a round has closed with other answers than it must."""
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

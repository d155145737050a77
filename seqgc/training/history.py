"""The content of a run's journal: closed rounds, switches of schemes, expelled workers.

`read_history` reads the journal, and a `Recorder` writes it while the run continues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from seqgc.errors import DamageError, SeqgcError, StoreError
from seqgc.models.provenance import differences
from seqgc.ports import Close, Dispatch, LastingObserver, Notice, Observer, RoundRecord, Seen
from seqgc.rounds import Answers, ClosingRule, Setting, WaitOut
from seqgc.runs.journal import Entry, Journal, read_journal
from seqgc.runs.lease import Lease
from seqgc.schemes import parse_scheme
from seqgc.training.tuner import Choice

__all__ = ["History", "Recorder", "read_history"]


@dataclass(slots=True, kw_only=True)
class History:
    """The content of a run's journal."""

    answers: Answers = field(default_factory=Answers)  # the workers that responded, by round
    choices: dict[int, Choice] = field(default_factory=dict)
    """Decisions to switch, by the round after which they were made."""
    expelled: set[int] = field(default_factory=set)
    """Workers that an audit has excluded."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    """The current fingerprint (`seqgc.training.fingerprint`)."""
    fingerprints: dict[int, dict[str, str]] = field(default_factory=dict)
    """Each fingerprint that the run has had, by the number of the first master that had it."""
    name: str = ""  # name of the run's folder when it began, which seeds rounding
    memories: dict[str, dict[str, float]] = field(default_factory=dict)
    """Memories of lasting observers, by the observers' names."""
    first_rounds: dict[int, int] = field(default_factory=dict)
    """For each master, the first round that it closed itself, and did not repeat."""
    pin: dict[str, str] = field(default_factory=dict)  # the pin of its latest crew (see `Crew`)
    group_sizes: dict[str, int] = field(default_factory=dict)
    """By model: how many models of its form workers compute at once (`GroupSizes`)."""
    num_workers: int = 0
    lines: int = 0  # number of lines of the journal
    torn_bytes: int = 0

    def knows(self, rounds: int, master: int) -> bool:
        """Return whether the first ``rounds`` rounds have not changed since ``master``."""
        later = [first for by, first in self.first_rounds.items() if by > master]
        return rounds <= min([len(self.answers), *later])

    def apply_limits(self, rule: ClosingRule) -> None:
        """Replace the time limit and number of attempts in all recorded settings."""

        def limited(setting: Setting) -> Setting:
            timeout_s, attempts = rule.timeout_s, rule.max_attempts
            own = replace(setting.rule, timeout_s=timeout_s, max_attempts=attempts)
            return replace(setting, rule=own)

        for round, choice in self.choices.items():
            current, found = limited(choice.current), limited(choice.found)
            self.choices[round] = replace(choice, current=current, found=found)

    def fingerprint_of(self, master: int) -> dict[str, str]:
        """Return the fingerprint that the run had under ``master``."""
        masters = [by for by in self.fingerprints if by <= master]
        return self.fingerprints[max(masters)] if masters else self.fingerprint

    def take(self, entry: Entry) -> None:
        """Add the next line of the journal."""
        self.lines += 1
        fields = entry.fields
        if "memories" in fields:
            self.memories = msgspec.convert(fields.pop("memories"), dict[str, dict[str, float]])
        match entry.kind:
            case "begin":
                begin = msgspec.convert(fields, _Begin)
                if begin.fingerprint != self.fingerprint:
                    self.fingerprints[entry.master] = begin.fingerprint
                self.fingerprint, self.num_workers = begin.fingerprint, begin.workers
                self.name = begin.name or self.name
            case "pin":
                self.pin = msgspec.convert(fields, dict[str, str])
            case "group":
                self.group_sizes = msgspec.convert(fields["sizes"], dict[str, _GroupSize])
            case "round":
                closed = msgspec.convert(fields, _Round)
                responded = np.ones(self.num_workers, dtype=np.bool_)
                responded[closed.stragglers] = False
                if closed.round > len(self.answers):
                    raise StoreError(f"round {closed.round} follows {len(self.answers)} rounds")
                # If a repeated round closed differently, the rounds after it are not valid.
                self.answers.forget_from(closed.round)
                self.choices = {r: c for r, c in self.choices.items() if r <= closed.round}
                self.answers.append(responded, closed.late, closed.jobs)
                before = self.first_rounds.get(entry.master, closed.round)
                self.first_rounds[entry.master] = min(before, closed.round)
            case "decide":
                decision = msgspec.convert(fields, _Decision)
                self.choices[decision.round] = decision.choice(self.num_workers)
            case "expel":
                self.expelled.add(msgspec.convert(fields, _Expulsion).worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    workers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    fingerprint: dict[str, str]
    name: str = ""  # missing in journals of earlier versions


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


_GroupSize: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    round: _Number
    stragglers: list[_Number]
    late: list[tuple[_Number, _Number]] = field(default_factory=list)  # rounds and workers
    jobs: list[_Number] | None = None  # finished jobs; missing in journals of earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expulsion:
    worker: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A `Setting` as JSON."""

    scheme: str
    mu: float
    wait_out: WaitOut
    timeout_s: float | None  # None: no limit
    max_attempts: int
    jobs_per_round: int

    @classmethod
    def of(cls, setting: Setting) -> _Setting:
        rule = setting.rule
        return cls(
            scheme=setting.scheme.spec,
            mu=rule.mu,
            wait_out=rule.wait_out,
            timeout_s=None if math.isinf(rule.timeout_s) else rule.timeout_s,
            max_attempts=rule.max_attempts,
            jobs_per_round=setting.jobs_per_round,
        )

    def setting(self, n: int) -> Setting:
        rule = ClosingRule(
            mu=self.mu,
            wait_out=self.wait_out,
            timeout_s=math.inf if self.timeout_s is None else self.timeout_s,
            max_attempts=self.max_attempts,
        )
        scheme = parse_scheme(self.scheme, n=n)
        return Setting(scheme=scheme, rule=rule, jobs_per_round=self.jobs_per_round)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    round: int
    current: _Setting
    found: _Setting
    current_s: float
    found_s: float
    jobs_left: int
    searched: int

    def choice(self, n: int) -> Choice:
        return Choice(
            current=self.current.setting(n),
            found=self.found.setting(n),
            current_s=self.current_s,
            found_s=self.found_s,
            jobs_left=self.jobs_left,
            searched=self.searched,
        )


def read_history(path: Path) -> History:
    """Read a journal, and cut off an incomplete last line.

    If there is no journal, or the run ended before its first line, ``num_workers`` is 0. The
    run's name is that of the folder, unless the journal has an earlier name.

    Raises
    ------
    DamageError
        If the file is damaged.
    """
    name = path.parent.resolve().name
    if not path.exists():
        return History(name=name)
    entries, torn_bytes = read_journal(path, mend=True)
    history = History(name=name, torn_bytes=torn_bytes)
    for number, entry in enumerate(entries, start=1):
        try:
            history.take(entry)
        except (msgspec.ValidationError, IndexError, SeqgcError) as error:
            raise DamageError(f"journal {path}, line {number}: {error}") from error
    if entries and not history.num_workers:
        raise DamageError(f"journal {path} has no beginning: the run cannot be resumed")
    return history


class Recorder:
    """An observer that writes the run's history to the journal, and then updates ``history``.

    If a round closes again with the same answers, it is not written again. Every line contains the
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

    def sync(self) -> None:
        """Wait until all lines are on the disk; raise `StoreError` if that fails."""
        self._journal.sync()

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
            self.write("begin", **about)
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
        body = _Decision(
            round=round,
            current=_Setting.of(choice.current),
            found=_Setting.of(choice.found),
            current_s=choice.current_s,
            found_s=choice.found_s,
            jobs_left=choice.jobs_left,
            searched=choice.searched,
        )
        self.write("decide", **msgspec.to_builtins(body))
        self.history.choices[round] = choice

    def contradicts(self, record: RoundRecord) -> bool:
        """Return whether a round has closed with other answers than the journal has for it."""
        answers, round = self.history.answers, record.round
        # The gradient of a dealt job has the same bits, whichever workers sent its pieces.
        if record.reason == "dealt" or round >= len(answers):
            return False
        same = np.array_equal(answers[round], record.responded)
        return not same or set(answers.late.get(round, ())) != set(record.late)

    def _close(self, close: Close) -> None:
        answers, choices, record = self.history.answers, self.history.choices, close.record
        round, responded = record.round, record.responded
        if round < len(answers) and not self.contradicts(record):
            return
        late = {"late": [list(each) for each in record.late]} if record.late else {}
        stragglers = np.flatnonzero(~responded).tolist()
        sync = record.reason != "dealt" or bool(self._lasting)  # see `seqgc.runs.journal`
        fields = {"round": round, "stragglers": stragglers, "jobs": close.jobs, **late}
        self._write("round", fields, sync=sync)
        answers.forget_from(round)
        for later in [r for r in choices if r > round]:
            del choices[later]

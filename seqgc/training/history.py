"""What a run's journal says: whose answers closed its rounds, what followed, and who had lied."""

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
    """The part of a run that was over when its journal was read."""

    answers: Answers = field(default_factory=Answers)  # who responded, by round
    choices: dict[int, Choice] = field(default_factory=dict)
    """What to switch to was decided when these rounds had closed."""
    expelled: set[int] = field(default_factory=set)
    """Workers that an audit has excluded."""
    fingerprint: dict[str, str] = field(default_factory=dict)  # of what is trained, and with what
    fingerprints: dict[int, dict[str, str]] = field(default_factory=dict)
    """What it has been, by the first master to whom it was that."""
    name: str = ""  # of the run's folder when it began, by which rounding is seeded
    memories: dict[str, dict[str, float]] = field(default_factory=dict)
    """What observers that last had to remember, by their names."""
    first_rounds: dict[int, int] = field(default_factory=dict)
    """The first round that each master has closed, and was not closed like that before."""
    pin: dict[str, str] = field(default_factory=dict)  # of its latest crew (see `Crew`)
    num_workers: int = 0
    lines: int = 0  # of the journal
    torn_bytes: int = 0

    def knows(self, rounds: int, master: int) -> bool:
        """Say whether so many rounds are here as a master has closed them, or found them."""
        later = [first for by, first in self.first_rounds.items() if by > master]
        return rounds <= min([len(self.answers), *later])

    def keep_limits(self, rule: ClosingRule) -> None:
        """Have all that was switched to wait as long, and ask as often, as ``rule`` says by now."""

        def kept(setting: Setting) -> Setting:
            timeout_s, attempts = rule.timeout_s, rule.max_attempts
            own = replace(setting.rule, timeout_s=timeout_s, max_attempts=attempts)
            return replace(setting, rule=own)

        for round, choice in self.choices.items():
            current, found = kept(choice.current), kept(choice.found)
            self.choices[round] = replace(choice, current=current, found=found)

    def fingerprint_of(self, master: int) -> dict[str, str]:
        """Return what was trained, and with what, when so many masters had been at work on it."""
        known = [by for by in self.fingerprints if by <= master]
        return self.fingerprints[max(known)] if known else self.fingerprint

    def take(self, entry: Entry) -> None:
        """Take note of the journal's next line."""
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
            case "round":
                closed = msgspec.convert(fields, _Round)
                responded = np.ones(self.num_workers, dtype=np.bool_)
                responded[closed.stragglers] = False
                if closed.round > len(self.answers):
                    raise StoreError(f"round {closed.round} follows {len(self.answers)} rounds")
                # A round that was closed otherwise the second time: what followed it did not.
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
    name: str = ""  # earlier versions did not say


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    round: _Number
    stragglers: list[_Number]
    late: list[tuple[_Number, _Number]] = field(default_factory=list)  # rounds and workers
    jobs: list[_Number] | None = None  # that it finished; earlier versions did not say


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expulsion:
    worker: Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A `Setting` as JSON says it."""

    scheme: str
    mu: float
    wait_out: WaitOut
    timeout_s: float | None  # None: without end
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
    """Return what a journal says, and cut off a torn last line; one that is absent says nothing.

    A run that was ended before the first line was written has no workers. Its name is the folder's
    own, unless the journal says what that was.

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
    """Keeps a run's history, on the disk first; an observer of the run.

    What is closed again as it was is not written again. Every line says what those of the
    ``observers`` that last have to remember, and there is one before any tasks leave of which they
    have something new to remember: what a master has spent, the next one knows.
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
                same = sum(known.partition(" ")[0] == name for known in self._lasting)
                self._lasting[f"{name} {same + 1}" if same else name] = each

    @property
    def master(self) -> int:
        """Number of the master that writes."""
        return self._journal.master

    def write(self, kind: str, **fields: object) -> None:
        """Write a line, unless another master has taken the run over; raises `StoreError`."""
        self.lease.check()
        if self._lasting:
            self.history.memories = fields["memories"] = self._memories()
        self._journal.append(kind, **fields)
        self.lease.check()  # the disk may have taken long

    def recall(self) -> list[str]:
        """Let the observers that last go on; return what is worth a warning."""
        known, warnings = self.history.memories, []
        for name, observer in self._lasting.items():
            if name in known:
                observer.recall(known[name])
            elif self.history.num_workers:
                warnings.append(f"{name}: what the masters before had to remember is not known")
        return warnings

    @property
    def open_usd(self) -> float:
        """What the tasks under way may still cost, US dollars."""
        return sum(memory.get("open_usd", 0.0) for memory in self._memories().values())

    def _memories(self) -> dict[str, dict[str, float]]:
        return {name: dict(observer.memory) for name, observer in self._lasting.items()}

    def begin(self, fingerprint: dict[str, str], *, workers: int) -> None:
        """Write what is trained, and with what: the first line, or one once `go_on` is called.

        What there is to remember is on record at once.
        """
        self._begins = fingerprint, workers
        if self.history.num_workers:
            self._remember()
        else:
            self.go_on()

    def go_on(self) -> None:
        """Write what `begin` has left for when the state that the run goes on from is restored."""
        if self._begins is not None:
            (fingerprint, workers), self._begins = self._begins, None
            about = {"workers": workers, "fingerprint": fingerprint, "name": self.history.name}
            self.write("begin", **about)
            self.history.fingerprint, self.history.num_workers = fingerprint, workers

    def pin(self, pin: Mapping[str, str]) -> list[str]:
        """Record to which published version of their code workers are held, if it is another one.

        Returns what is worth a warning.
        """
        before = self.history.pin
        if pin != before:
            self.write("pin", **pin)
            self.history.pin = dict(pin)
        found = differences(before, pin, words=("was", "is")) if before else []
        return [f"the functions have changed: {each}" for each in found]

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Close():
                self._close(seen)
            case Dispatch() if self._memories() != self.history.memories:
                self.write("send", round=seen.round, attempt=seen.attempt)
            case Notice(kind="expelled", fields={"worker": int(worker)}):
                self.write("expel", worker=worker)
                self.history.expelled.add(worker)

    def rest(self) -> None:
        """Write what there is to remember once nothing runs any more, as far as it is new."""
        with suppress(StoreError):  # another master has the run, or the disk is full
            self._remember()

    def _remember(self) -> None:
        if self._memories() != self.history.memories:
            self.write("rest")

    def decide(self, round: int, choice: Choice) -> None:
        """Record what is switched to once a round has closed; before that is on record itself."""
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

    def overrules(self, record: RoundRecord) -> bool:
        """Say whether a round closes now, and otherwise than it is on record."""
        answers, round = self.history.answers, record.round
        # Whoever gave the pieces of a job that was dealt, its gradient has the same bits.
        if record.reason == "dealt" or round >= len(answers):
            return False
        same = np.array_equal(answers[round], record.responded)
        return not same or set(answers.late.get(round, ())) != set(record.late)

    def _close(self, close: Close) -> None:
        answers, choices, record = self.history.answers, self.history.choices, close.record
        round, responded = record.round, record.responded
        if round < len(answers) and not self.overrules(record):
            return
        took = {"late": [list(each) for each in record.late]} if record.late else {}
        stragglers = np.flatnonzero(~responded).tolist()
        self.write("round", round=round, stragglers=stragglers, jobs=close.jobs, **took)
        answers.forget_from(round)
        for later in [r for r in choices if r > round]:
            del choices[later]

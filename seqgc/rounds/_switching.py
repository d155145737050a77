"""A live run, whatever defends it; another scheme between two rounds (paper, Appendix K.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import (
    Action,
    BoolArray,
    Capability,
    Close,
    Dispatch,
    Event,
    LateAnswer,
    Payload,
    Restart,
    RoundRecord,
)
from seqgc.rounds._answers import Answers, OnRecord
from seqgc.rounds._dealing import DealingPolicy
from seqgc.rounds._policy import RoundPolicy
from seqgc.rounds._rule import Setting
from seqgc.schemes import Deal, Defence, by_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The stretch of a run under one setting; it ends where the next one begins."""

    setting: Setting
    first_job: int
    first_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to change before the next round.

    ``setting`` is what to switch to (None: the present one stays), ``restart`` are workers to
    replace by fresh ones, for a ``reason`` in a few words. Where the backend cannot, the run goes
    on without, and a warning says so, unless the director ``needs`` it (`DemandingPolicy`).
    """

    setting: Setting | None = None
    restart: tuple[int, ...] = ()
    reason: str = ""


class Director(Protocol):
    """Decides what to run next. It sees all that the policy sees, and holds no clock either."""

    def on(self, event: Event) -> None:
        """Take note of an event that the policy has not refused, before a round that it closes."""

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        """Take note of how a round ended."""

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        """Return what is to change, or None to go on; ``jobs_left`` have not started.

        Asked between rounds, while there are such jobs and no switch is under way.
        """


class SwitchingPolicy:
    """Runs jobs scheme after scheme, whichever the director chooses; a `seqgc.ports.Policy`.

    Jobs and rounds are numbered through the whole run; each segment is a run of its scheme over
    the jobs from its first one on. To leave a scheme of delay T, no job starts for T rounds, in
    which its last jobs end as they would at the end of a run: all are decoded, by their deadlines,
    before the next scheme starts its first. Leaving a scheme of delay 0 costs nothing.

    ``setting`` is what to begin with; every setting must have its workers. The whole run has
    ``num_jobs``, >= 1. Without a director nothing changes. ``again`` and ``audit``: see
    `RoundPolicy`; ``batches`` and ``payload``: see `Scheme.begin`. Where work is dealt, ``bundles``
    of models take turns, and a round is a job; a run that begins so stays so, and none comes to it.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a chosen scheme has other workers.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.master import run
    >>> from seqgc.search import ReplayBackend
    >>> from seqgc.schemes import GC, Uncoded
    >>> class AfterTwoJobs:
    ...     def on(self, event): pass
    ...     def close(self, record, *, setting): pass
    ...     def choose(self, *, setting, jobs_left):
    ...         if jobs_left == 3:
    ...             return Decision(setting=Setting(scheme=GC(n=2, s=1)))
    >>> uncoded = Setting(scheme=Uncoded(n=2))
    >>> policy = SwitchingPolicy(uncoded, num_jobs=5, director=AfterTwoJobs())
    >>> run(policy, ReplayBackend(np.ones((5, 2))))
    >>> [(part.setting.scheme.spec, part.first_job) for part in policy.segments]
    [('uncoded', 0), ('gc:s=1', 2)]
    """

    def __init__(
        self,
        setting: Setting,
        *,
        num_jobs: int,
        director: Director | None = None,
        payload: Payload | None = None,
        batches: Iterable[int] = (),
        again: OnRecord | None = None,
        audit: bool = False,
        bundles: int = 1,
    ) -> None:
        self._audit, self._bundles, self._bundles_left = audit, bundles, bundles
        again = again or OnRecord()
        self._again, self._on_record = dict(again.answers), again
        if director is not None:
            by_rounds(setting.scheme, "a run that looks for a better one")
        self._num_jobs, self._director = require_int("num_jobs", num_jobs, least=1), director
        self._jobs = self._num_jobs  # of the segment; fewer once it is left
        self._payload, self._batches = payload, tuple(batches)
        self._segments: list[Segment] = []
        self._started, self._rounds = 0, 0  # jobs that have started, rounds that are closed
        self._next: Setting | None = None  # while the segment drains
        self._enter(setting)
        self._policy = self._run()

    @property
    def needs(self) -> frozenset[Capability]:
        """What the backend must be able to do, as the director says: see `DemandingPolicy`."""
        return getattr(self._director, "needs", frozenset())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What ran so far, the present segment included."""
        return tuple(self._segments)

    @property
    def num_jobs(self) -> int:
        """How many jobs the whole run has."""
        return self._num_jobs

    def end_after(self, job: int) -> None:
        """Let ``job``, which has started and was the latest to do so, be the run's last.

        Between two events, or before `repeat`, where a run of before ended so. What was dealt
        already is done.
        """
        if isinstance(self._policy, DealingPolicy):
            self._num_jobs = self._policy.end_after(job)
        else:
            self._num_jobs = min(self._num_jobs, job + 1)

    def go_on_with(self, bundles: int) -> None:
        """Know that only so many bundles are left: where work is dealt, as many jobs at once.

        Where there are rounds these go on as they are: which tasks they have does not depend on it.
        """
        self._bundles_left = max(1, bundles)
        if isinstance(self._policy, DealingPolicy):
            self._policy.in_flight = self._bundles_left

    @property
    def rounds(self) -> int:
        """How many rounds are closed."""
        return self._rounds

    @property
    def done(self) -> bool:
        """Whether every round of every job is closed."""
        return self._policy.done and self._next is None

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._policy.wake_at

    def scheme_of(self, job: int) -> Defence:
        """Return the scheme under which a job that has started runs, or raise `ParameterError`."""
        if not 0 <= job < self._num_jobs:
            raise ParameterError("job", f"must satisfy 0 <= job < {self._num_jobs}", job)
        return next(s.setting.scheme for s in reversed(self._segments) if s.first_job <= job)

    def start(self) -> Sequence[Dispatch]:
        """Open the first round that is not closed."""
        return self._policy.start()

    def repeat(
        self,
        answers: Iterable[BoolArray],
        *,
        settings: Mapping[int, Setting] = MappingProxyType({}),
    ) -> None:
        """Before the start, close the first rounds as they were closed before, on these answers.

        These are (n,) each, beside the late ones that the policy knows of; ``settings`` says, by
        its number, after which round it was decided to switch, and to what. Raises like
        `Schedule.repeat`.
        """
        for responded in answers:
            setting = settings.get(self._rounds)
            round, known = self._rounds, self._on_record
            self._count(responded, known.late.get(round, ()), known.finished.get(round))
            self._go_on(setting)
        self._shorten()
        self._policy = self._run()

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done, in order; raises like `RoundPolicy.on`."""
        actions = self._policy.on(event)
        if self._director is not None:
            self._director.on(event)
        closed = [action for action in actions if isinstance(action, Close)]
        for each in closed[:-1]:  # jobs that were dealt close several at once
            self._count(each.record.responded, each.record.late, each.jobs)
        return self._between_rounds(actions, closed[-1]) if closed else actions

    def _between_rounds(self, actions: Sequence[Action], close: Close) -> Sequence[Action]:
        decision, record = Decision(), close.record
        setting = self._segments[-1].setting
        self._count(record.responded, record.late, close.jobs)
        if self._director is not None:
            self._director.close(record, setting=setting)
            jobs_left = self._num_jobs - self._started
            if self._next is None and jobs_left:
                chosen = self._director.choose(setting=setting, jobs_left=jobs_left)
                decision = chosen or decision
        switch_to = None if decision.setting == setting else decision.setting
        ends = self._shorten()
        begins = self._go_on(switch_to)
        closing = [action for action in actions if not isinstance(action, Dispatch)]
        restarts = [Restart(worker=each, reason=decision.reason) for each in decision.restart]
        opening = [action for action in actions if isinstance(action, Dispatch)]
        if begins or switch_to is not None or ends:  # then this is sent in place of what was opened
            before, self._policy = self._policy, self._run()
            if isinstance(before, RoundPolicy) and isinstance(self._policy, RoundPolicy):
                self._policy.inherit(before)
            opening = [replace(a, begins_segment=begins) for a in self._policy.start()]
        return [*closing, *restarts, *opening]

    def _count(
        self, responded: BoolArray, late: Sequence[LateAnswer], finished: Sequence[int] | None
    ) -> None:
        """Count a round that has closed; which jobs it ``finished`` may not be known."""
        segment = self._segments[-1]
        taken = [(round - segment.first_round, worker) for round, worker in late]
        jobs = None if finished is None else [job - segment.first_job for job in finished]
        self._answers.append(responded, taken, jobs)
        self._rounds += 1
        if self._next is None:
            first = self._segments[-1].first_job
            self._started = min(first + len(self._answers), self._num_jobs)

    def _shorten(self) -> bool:
        """Let the segment have no more jobs than the run has; say whether its policy knows of more.

        A segment that drains to make way for another one begins none. Who deals has been told, and
        goes on with what is dealt already.
        """
        left = self._num_jobs - self._segments[-1].first_job
        if self._next is not None or self._jobs <= left:
            return False
        self._jobs = left
        return not isinstance(self._policy, DealingPolicy)

    def _go_on(self, setting: Setting | None) -> bool:
        """Leave the segment for a setting, if it is not None; say whether the next one begins."""
        segment = self._segments[-1]
        if setting is not None:
            self._next, self._jobs = setting, self._started - segment.first_job
        if self._next is None or len(self._answers) < self._jobs + segment.setting.scheme.delay:
            return False
        following, self._next = self._next, None
        if begins := self._started < self._num_jobs:  # else the run has ended meanwhile
            self._enter(following)
        return begins

    def _enter(self, setting: Setting) -> None:
        """Begin a segment: the setting, over every job that has not started."""
        due = self._segments[0].setting.scheme.n if self._segments else setting.scheme.n
        if setting.scheme.n != due:
            raise ParameterError("scheme", f"must have the run's n={due} workers", setting.scheme.n)
        segment = Segment(setting=setting, first_job=self._started, first_round=self._rounds)
        self._segments.append(segment)
        self._jobs = self._num_jobs - self._started
        self._answers = Answers()  # who responded, in the segment's closed rounds

    def _run(self) -> RoundPolicy | DealingPolicy:
        """Return a policy over the segment's jobs, from after its closed rounds on.

        A segment that is left goes on as if its jobs had always been the few that have started: how
        many will follow has no part in what a schedule does before its last one starts.
        """
        segment, closed = self._segments[-1], len(self._answers)
        if isinstance(deal := segment.setting.scheme, Deal):
            deal = deal.fitted(self._bundles, batch=min(self._batches, default=None))
            cuts = [deal.cut(batch) for batch in self._batches]
            return DealingPolicy(
                deal,
                segment.setting.rule,
                num_jobs=self._jobs - closed,
                in_flight=deal.jobs_in_flight(self._bundles_left),
                first_job=segment.first_job + closed,
                empty=np.max(cuts, axis=0) == 0 if cuts else None,
            )
        schedule = by_rounds(segment.setting.scheme, "a schedule").begin(
            self._jobs, batches=self._batches, payload=self._payload
        )
        schedule.repeat(self._answers, self._answers.late, self._answers.finished)
        return RoundPolicy(
            schedule,
            segment.setting.rule,
            first_job=segment.first_job,
            first_round=segment.first_round,
            again=self._again,
            late=self._on_record.late,
            audit=self._audit,
        )

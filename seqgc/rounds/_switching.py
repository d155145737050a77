"""Another scheme between two rounds of a live run, no job lost (paper, Appendix K.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from seqgc.errors import ParameterError
from seqgc.ports import (
    Action,
    BoolArray,
    Close,
    Decoding,
    Dispatch,
    Event,
    Payload,
    Restart,
    RoundRecord,
)
from seqgc.rounds._policy import RoundPolicy
from seqgc.rounds._rule import Setting
from seqgc.schemes import Assignment, Schedule, Scheme

__all__ = ["Decision", "Director", "Segment", "SwitchingPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The stretch of a run under one setting; it ends where the next one begins."""

    setting: Setting
    first_job: int
    first_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to change before the next round.

    Parameters
    ----------
    setting
        What to switch to; None: the present one stays.
    restart
        Workers to replace by fresh ones; the backend must be one that can.

    Examples
    --------
    >>> Decision(restart=(3,))
    Decision(setting=None, restart=(3,))
    """

    setting: Setting | None = None
    restart: tuple[int, ...] = ()


class Director(Protocol):
    """Decides what to run next. It sees all that the policy sees, and holds no clock either."""

    def on(self, event: Event) -> None:
        """Take note of an event, before the policy acts on it."""

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

    Parameters
    ----------
    setting
        What to begin with.
    num_jobs : int
        Of the whole run, >= 1.
    director
        Chooses; every setting must have the workers of the first.
    payload
        See `seqgc.rounds.RoundPolicy`.
    batches
        Sizes of the models' batches; see `seqgc.schemes.Scheme.begin`.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a chosen scheme has other workers.

    Examples
    --------
    Two jobs uncoded, the others coded:

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
        director: Director,
        payload: Payload | None = None,
        batches: Iterable[int] = (),
    ) -> None:
        if num_jobs < 1:
            raise ParameterError("num_jobs", "must be >= 1", num_jobs)
        self._num_jobs, self._director = num_jobs, director
        self._payload: Payload | None = payload
        self._batches = tuple(batches)
        self._segments: list[Segment] = []
        self._answers: list[BoolArray] = []  # who responded, in the segment's closed rounds
        self._started, self._rounds = 0, 0  # jobs that have started, rounds that are closed
        self._next: Setting | None = None  # while the segment drains
        self._policy = self._enter(setting)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What ran so far, the present segment included."""
        return tuple(self._segments)

    @property
    def done(self) -> bool:
        """Whether every round of every job is closed."""
        return self._policy.done and self._next is None

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._policy.wake_at

    def scheme_of(self, job: int) -> Scheme:
        """Return the scheme under which a job that has started runs.

        Raises
        ------
        ParameterError
            If there is no such job.
        """
        if not 0 <= job < self._num_jobs:
            raise ParameterError("job", f"must satisfy 0 <= job < {self._num_jobs}", job)
        segment = next(s for s in reversed(self._segments) if s.first_job <= job)
        return segment.setting.scheme

    def start(self) -> Sequence[Dispatch]:
        """Open the first round."""
        return self._policy.start()

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done, in order; raises like `RoundPolicy.on`."""
        self._director.on(event)
        actions = self._policy.on(event)
        for action in actions:
            if isinstance(action, Close):
                return self._between_rounds(actions, action.record)
        return actions

    def _between_rounds(self, actions: Sequence[Action], record: RoundRecord) -> Sequence[Action]:
        segment = self._segments[-1]
        self._answers.append(record.responded)
        self._rounds += 1
        self._director.close(record, setting=segment.setting)
        before = self._policy
        restarts: tuple[Restart, ...] = ()
        if self._next is None:
            self._started = min(segment.first_job + len(self._answers), self._num_jobs)
            self._next, restarts = self._decided(segment.setting)
            if self._next is not None:
                self._policy = self._drain(segment)
        begins = self._next is not None and self._policy.done
        if self._next is not None and begins:
            self._policy, self._next = self._enter(self._next), None
        closing = [action for action in actions if not isinstance(action, Dispatch)]
        opening = [action for action in actions if isinstance(action, Dispatch)]
        if self._policy is not before:  # what it has opened was never sent: this takes its place
            opening = [replace(a, begins_segment=begins) for a in self._policy.start()]
        return [*closing, *restarts, *opening]

    def _decided(self, setting: Setting) -> tuple[Setting | None, tuple[Restart, ...]]:
        """Return what to switch to, None for what runs already, and who is to be restarted."""
        jobs_left = self._num_jobs - self._started
        decision = None
        if jobs_left:
            decision = self._director.choose(setting=setting, jobs_left=jobs_left)
        if decision is None:
            return None, ()
        restarts = tuple(Restart(worker=worker) for worker in decision.restart)
        return (None if decision.setting == setting else decision.setting), restarts

    def _enter(self, setting: Setting) -> RoundPolicy:
        """Return the policy of a new segment: the setting, over every job that has not started."""
        if self._segments and setting.scheme.n != self._segments[0].setting.scheme.n:
            n = self._segments[0].setting.scheme.n
            raise ParameterError("scheme", f"must have the run's n={n} workers", setting.scheme.n)
        segment = Segment(setting=setting, first_job=self._started, first_round=self._rounds)
        self._segments.append(segment)
        self._answers = []
        return self._run(self._begin(setting.scheme, self._num_jobs - self._started), segment)

    def _drain(self, segment: Segment) -> RoundPolicy:
        """Return the policy that ends the segment: as if its jobs had always been these few.

        How many jobs will follow has no part in what a schedule does before its last one starts,
        so a schedule of the jobs that have started, given who responded, is where the old one is.
        """
        schedule = self._begin(segment.setting.scheme, self._started - segment.first_job)
        for responded in self._answers:
            schedule.close_round(responded)
        return self._run(schedule, segment)

    def _begin(self, scheme: Scheme, num_jobs: int) -> Schedule:
        return scheme.begin(num_jobs, batches=self._batches)

    def _run(self, schedule: Schedule, segment: Segment) -> RoundPolicy:
        return RoundPolicy(
            _Numbered(schedule, first_job=segment.first_job, first_round=segment.first_round),
            segment.setting.rule,
            payload=self._payload,
        )


class _Numbered:
    """A schedule whose jobs and rounds bear the run's numbers; what `RoundPolicy` asks for."""

    def __init__(self, schedule: Schedule, *, first_job: int, first_round: int) -> None:
        self._schedule: Final = schedule
        self._first_job: Final = first_job
        self._first_round: Final = first_round

    @property
    def n(self) -> int:
        return self._schedule.n

    @property
    def num_rounds(self) -> int:
        return self._first_round + self._schedule.num_rounds

    @property
    def round(self) -> int:
        return self._first_round + self._schedule.round

    def assignment(self) -> Assignment:
        own, first = self._schedule.assignment(), self._first_job
        return Assignment(
            own.busy,
            lambda worker: tuple(replace(task, job=first + task.job) for task in own[worker]),
        )

    @property
    def excused(self) -> BoolArray:
        return self._schedule.excused

    def conforms(self, responded: BoolArray) -> bool:
        return self._schedule.conforms(responded)

    def feasible(self, responded: BoolArray) -> bool:
        return self._schedule.feasible(responded)

    def decodes_well(self, responded: BoolArray, payload: Payload = "float64") -> bool:
        return self._schedule.decodes_well(responded, payload)

    def close_round(self, responded: BoolArray) -> tuple[int, ...]:
        return tuple(self._first_job + job for job in self._schedule.close_round(responded))

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        decoding = self._schedule.decoding(job - self._first_job, payload)
        terms = tuple(replace(t, round=self._first_round + t.round) for t in decoding.terms)
        return replace(decoding, job=job, terms=terms)

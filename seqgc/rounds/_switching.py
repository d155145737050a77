"""`SwitchingPolicy`, which runs all jobs and can change the scheme between two rounds.

Source: the paper, Appendix K.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import (
    Action,
    Capability,
    Close,
    Dispatch,
    Event,
    Payload,
    Restart,
    RoundRecord,
)
from seqgc.rounds._dealing import DealingPolicy
from seqgc.rounds._policy import RoundPolicy
from seqgc.rounds._repeat import PastRound
from seqgc.rounds._rule import Setting, SettingState
from seqgc.schemes import Deal, Defence, by_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a run under one setting, from its first job and round to the next segment."""

    setting: Setting
    first_job: int
    first_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The changes before the next round.

    ``setting`` is the new setting; None means no change. ``restart`` are the workers to replace,
    and ``reason`` says why, in a few words. If the backend cannot replace workers, the run
    continues with a warning. If the attribute ``needs`` of a director contains "restart", a run
    with such a backend does not begin (`seqgc.ports.DemandingPolicy`).
    """

    setting: Setting | None = None
    restart: tuple[int, ...] = ()
    reason: str = ""


class Director(Protocol):
    """An object that decides between rounds what to run next.

    It is told all events, and has no clock of its own.
    """

    def on(self, event: Event) -> None:
        """Record an event that the policy has handled.

        If the event has closed a round, `close` is called after this method.
        """

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        """Record that a round has closed."""

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        """Return the changes before the next round, or None for no change.

        ``setting`` is the present setting, and ``jobs_left`` >= 1 is the number of jobs that have
        not started. The method is called after each round, except while the run is leaving a
        setting, and except after rounds that a resumed run repeats.
        """


class SwitchingPolicy:
    """A policy that runs ``num_jobs`` >= 1 jobs, and switches schemes as its director chooses.

    The run begins with ``setting``. Each switch begins a new segment, which runs the chosen scheme
    over the jobs that have not started. Jobs and rounds are numbered through the whole run. To
    leave a scheme with delay T, the policy starts no job for T rounds. In these rounds the last
    jobs of the scheme are decoded by their deadlines, as at the end of a run. Then the next scheme
    starts. To leave a scheme with delay 0 takes no extra round. Without a director there is no
    switch.

    In a resumed run, ``again`` are the rounds that closed after its checkpoint, by number. The
    director is not asked after these rounds. Instead, the run switches as it did before.

    ``audit`` is explained at `RoundPolicy`, and ``batches`` and ``payload`` are explained at
    `Scheme.begin`. If the scheme is a `Deal`, work is dealt: each job counts as a round,
    ``bundles`` is the number of bundles of models that take turns, and there is no director.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a chosen scheme has another number of workers.

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
        again: Mapping[int, PastRound] = MappingProxyType({}),
        audit: bool = False,
        bundles: int = 1,
    ) -> None:
        self._audit, self._bundles, self._bundles_left = audit, bundles, bundles
        self._again = dict(again)
        if director is not None:
            by_rounds(setting.scheme, "a run that searches for better settings")
        self._num_jobs, self._director = require_int("num_jobs", num_jobs, least=1), director
        self._jobs = self._num_jobs  # number of jobs of the segment; reduced when it is left
        self._payload, self._batches = payload, tuple(batches)
        self._first = setting
        self._segments: list[Segment] = []
        self._started, self._rounds = 0, 0  # numbers of started jobs and of closed rounds
        self._next: Setting | None = None  # the chosen setting, until the last jobs are decoded
        self._enter(setting)
        self._policy = self._run()

    @property
    def needs(self) -> frozenset[Capability]:
        """The capabilities that the director needs of the backend (`DemandingPolicy`)."""
        return getattr(self._director, "needs", frozenset())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments since the start or the `restore`, including the present one."""
        return tuple(self._segments)

    @property
    def num_jobs(self) -> int:
        """The number of jobs of the whole run, which `end_after` may reduce."""
        return self._num_jobs

    def end_after(self, job: int) -> None:
        """End the run after ``job``. Call this method between two events.

        In a run with rounds, ``job`` must be the latest job that has started. If work is dealt,
        later jobs may have begun, and are completed as well.
        """
        if isinstance(self._policy, DealingPolicy):
            self._num_jobs = self._policy.end_after(job)
        else:
            self._num_jobs = min(self._num_jobs, job + 1)

    def go_on_with(self, bundles: int) -> None:
        """Set the number of bundles of models that are still trained.

        If work is dealt, at most this number of jobs is open at once. In a run with rounds the
        number has no effect.
        """
        self._bundles_left = max(1, bundles)
        if isinstance(self._policy, DealingPolicy):
            self._policy.in_flight = self._bundles_left

    @property
    def rounds(self) -> int:
        """The number of closed rounds."""
        return self._rounds

    @property
    def done(self) -> bool:
        """True if every round of every job is closed."""
        return self._policy.done and self._next is None

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if no event arrives before, in seconds."""
        return self._policy.wake_at

    def scheme_of(self, job: int) -> Defence:
        """Return the scheme of a job that has started.

        Raises `ParameterError` if the job does not exist or belongs to a segment before a
        `restore`. All jobs of such segments have finished.
        """
        first = self._segments[0].first_job
        if not first <= job < self._num_jobs:
            raise ParameterError("job", f"must satisfy {first} <= job < {self._num_jobs}", job)
        return next(s.setting.scheme for s in reversed(self._segments) if s.first_job <= job)

    def start(self) -> Sequence[Dispatch]:
        """Open the first round that is not closed."""
        return self._policy.start()

    def snapshot(self) -> dict[str, object]:
        """Return the state at the beginning of the open round, as JSON data.

        The state holds the present segment, but neither earlier segments nor the state of the
        director. The segment's setting is None if it equals the one with which the policy was
        created.
        """
        segment = self._segments[-1]
        policy = self._policy
        return {
            "jobs": self._num_jobs,
            "started": self._started,
            "rounds": self._rounds,
            "first_job": segment.first_job,
            "first_round": segment.first_round,
            "setting": self._as_json(segment.setting),
            "segment_jobs": self._jobs,
            "next": None if self._next is None else asdict(SettingState.of(self._next)),
            "schedule": policy.snapshot() if isinstance(policy, RoundPolicy) else None,
        }

    def restore(self, state: object) -> None:
        """Continue from a `snapshot` that was read back from JSON. Call this before `start`.

        Time limits and numbers of attempts are taken from the setting with which this policy was
        created.

        Raises
        ------
        TypeError, KeyError, ValueError
            If ``state`` is not a snapshot of such a policy.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a policy with rounds must be a mapping; got {state!r}")
        first = self._first

        def number(name: str) -> int:
            return require_int(name, state[name], least=0)

        def setting(name: str) -> Setting | None:
            if state[name] is None:
                return None
            return SettingState(**state[name]).setting(first.scheme.n).limited_by(first.rule)

        self._num_jobs = min(self._num_jobs, number("jobs"))
        self._started, self._rounds = number("started"), number("rounds")
        segment = Segment(
            setting=setting("setting") or first,
            first_job=number("first_job"),
            first_round=number("first_round"),
        )
        self._segments, self._jobs = [segment], number("segment_jobs")
        self._next = setting("next")
        self._policy = self._run(state["schedule"])

    def skip_to(self, job: int, *, round: int) -> None:
        """Begin with ``job`` after ``round`` closed rounds; only before the start."""
        self._started, self._rounds, self._segments = job, round, []
        self._enter(self._first)
        self._policy = self._run()

    def _as_json(self, setting: Setting) -> dict[str, object] | None:
        return None if setting == self._first else asdict(SettingState.of(setting))

    def on(self, event: Event) -> Sequence[Action]:
        """Handle an event; return the actions that follow from it, in order.

        Raises the same errors as `RoundPolicy.on`, or as `DealingPolicy.on` if work is dealt.
        """
        past = self._again.get(self._rounds)  # the policy may forget it
        actions = self._policy.on(event)
        if self._director is not None:
            self._director.on(event)
        closed = [action.record for action in actions if isinstance(action, Close)]
        for _ in closed:  # several dealt jobs may close at once
            self._count()
        return self._between_rounds(actions, closed[-1], past) if closed else actions

    def _between_rounds(
        self, actions: Sequence[Action], record: RoundRecord, past: PastRound | None
    ) -> Sequence[Action]:
        decision, setting = Decision(), self._segments[-1].setting
        if self._director is not None:
            self._director.close(record, setting=setting)
            jobs_left = self._num_jobs - self._started
            if self._next is None and jobs_left and past is not None:
                decision = Decision(setting=past.setting)
            elif self._next is None and jobs_left:
                chosen = self._director.choose(setting=setting, jobs_left=jobs_left)
                decision = chosen or decision
        switch_to = None if decision.setting == setting else decision.setting
        ends = self._shorten()
        begins = self._go_on(switch_to)
        closing = [action for action in actions if not isinstance(action, Dispatch)]
        restarts = [Restart(worker=each, reason=decision.reason) for each in decision.restart]
        opening = [action for action in actions if isinstance(action, Dispatch)]
        if begins or switch_to is not None or ends:  # a new policy opens the round
            before, state = self._policy, None
            if isinstance(before, RoundPolicy) and not begins:
                state = before.snapshot()
            self._policy = self._run(state)
            if isinstance(before, RoundPolicy) and isinstance(self._policy, RoundPolicy):
                self._policy.inherit(before)
            opening = [replace(a, begins_segment=begins) for a in self._policy.start()]
        return [*closing, *restarts, *opening]

    def _count(self) -> None:
        self._rounds += 1
        if self._next is None:
            segment = self._segments[-1]
            closed = self._rounds - segment.first_round
            self._started = min(segment.first_job + closed, self._num_jobs)

    def _shorten(self) -> bool:
        """Remove the segment's jobs that are beyond the end of the run.

        Return True if the policy of the segment must be created again with fewer jobs. This is not
        needed for a `DealingPolicy`, which `end_after` has told, nor for a segment that is being
        left, which starts no jobs.
        """
        left = self._num_jobs - self._segments[-1].first_job
        if self._next is not None or self._jobs <= left:
            return False
        self._jobs = left
        return not isinstance(self._policy, DealingPolicy)

    def _go_on(self, setting: Setting | None) -> bool:
        """Begin to leave the segment if the next ``setting`` is given.

        Return True if the segment's last round has closed and a new segment begins.
        """
        segment = self._segments[-1]
        if setting is not None:
            self._next, self._jobs = setting, self._started - segment.first_job
        closed = self._rounds - segment.first_round
        if self._next is None or closed < self._jobs + segment.setting.scheme.delay:
            return False
        following, self._next = self._next, None
        if begins := self._started < self._num_jobs:  # otherwise the run was ended meanwhile
            self._enter(following)
        return begins

    def _enter(self, setting: Setting) -> None:
        """Begin a segment with a setting, for all jobs that have not started."""
        due = self._first.scheme.n
        if setting.scheme.n != due:
            raise ParameterError("scheme", f"must have the run's n={due} workers", setting.scheme.n)
        segment = Segment(setting=setting, first_job=self._started, first_round=self._rounds)
        self._segments.append(segment)
        self._jobs = self._num_jobs - self._started

    def _run(self, state: object = None) -> RoundPolicy | DealingPolicy:
        """Return a policy for the rest of the segment.

        ``state`` is a snapshot of the segment's schedule; None means that the schedule begins. If
        the segment is being left, the policy has only the jobs that have started. This is correct
        because a schedule does not depend on the number of its jobs until the last one has started.
        """
        segment = self._segments[-1]
        if isinstance(deal := segment.setting.scheme, Deal):
            deal = deal.fitted(self._bundles, batch=min(self._batches, default=None))
            cuts = [deal.cut(batch) for batch in self._batches]
            closed = self._rounds - segment.first_round
            return DealingPolicy(
                deal,
                segment.setting.rule,
                num_jobs=min(self._jobs, self._num_jobs - segment.first_job) - closed,
                in_flight=deal.jobs_in_flight(self._bundles_left),
                first_job=segment.first_job + closed,
                empty=np.max(cuts, axis=0) == 0 if cuts else None,
            )
        schedule = by_rounds(segment.setting.scheme, "a segment of this run").begin(
            self._jobs, batches=self._batches, payload=self._payload
        )
        if state is not None:
            schedule.restore(state)
        return RoundPolicy(
            schedule,
            segment.setting.rule,
            first_job=segment.first_job,
            first_round=segment.first_round,
            again=self._again,
            audit=self._audit,
        )

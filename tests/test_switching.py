"""Switching schemes between rounds: no job lost, none repeated, none wrong, on virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc.errors import ParameterError, WireError, WorkerError
from seqgc.master import run
from seqgc.ports import (
    Action,
    Arrival,
    Close,
    Decoding,
    Dispatch,
    Drop,
    Event,
    Finish,
    FloatArray,
    MiniTask,
    Restart,
    RoundRecord,
    Tick,
    WeightedPoints,
)
from seqgc.rounds import (
    ClosingRule,
    Decision,
    PastRound,
    RoundPolicy,
    Segment,
    Setting,
    SwitchingPolicy,
    WaitOut,
)
from seqgc.schemes import Scheme, parse_scheme
from seqgc.search import ReplayBackend
from seqgc.testing import ChunkWorkload, ScriptedBackend
from tests.kit import left

N = 6
SPECS = [
    "uncoded",
    "gc:s=2",
    "gc-rep:s=2",
    "gc-binary:s=3",
    "sr-sgc:B=2,W=3,lam=4",
    "sr-sgc-rep:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc:B=2,W=3,lam=6",
    "m-sgc-rep:B=2,W=3,lam=2",
    "ra-sgc:s=1,q=0.5,r=2",
    "m-sgc:B=2,W=3,lam=2,late=take",
]
SCHEMES = [parse_scheme(spec, n=N) for spec in SPECS]


def setting(
    spec: str,
    *,
    mu: float = 0.0,
    wait_out: WaitOut = "feasible",
    n: int = N,
    max_attempts: int = 3,
) -> Setting:
    rule = ClosingRule(mu=mu, wait_out=wait_out, max_attempts=max_attempts)
    return Setting(scheme=parse_scheme(spec, n=n), rule=rule)


class Script:
    """Chooses by the number of times it was asked; notes what it has seen."""

    def __init__(self, choices: dict[int, Setting | Decision] | None = None) -> None:
        self._choices = choices or {}
        self.asked: list[int] = []
        self.records: list[RoundRecord] = []
        self.settings: list[Setting] = []
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:
        self.records.append(record)
        self.settings.append(setting)

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:
        assert setting == self.settings[-1]
        self.asked.append(jobs_left)
        chosen = self._choices.get(len(self.asked) - 1)
        return Decision(setting=chosen) if isinstance(chosen, Setting) else chosen


class SwitchingWorkload:
    """A `ChunkWorkload` per scheme, behind one face."""

    def __init__(self, scheme_of: Callable[[int], Scheme], *, seed: int) -> None:
        self._scheme_of, self._seed = scheme_of, seed
        self._of: dict[Scheme, ChunkWorkload] = {}
        self._scheme: dict[int, Scheme] = {}
        self.begun: list[int] = []
        self.errors: dict[int, float] = {}

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        return False

    def begin(self, job: int) -> None:
        self.begun.append(job)
        self._scheme[job] = self._scheme_of(job)

    def _workload(self, job: int) -> ChunkWorkload:
        scheme = self._scheme[job]
        return self._of.setdefault(scheme, ChunkWorkload(scheme, seed=self._seed))

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        return self._workload(mini_task.job).resolve(mini_task)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return self._workload(parts[0].weights.version).compute(parts)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        job = decoding.job
        workload = self._workload(job)
        workload.finish(decoding, gradient)
        assert job not in self.errors, f"job {job} finished twice"
        self.errors[job] = workload.errors[job]


SETTINGS = st.builds(
    Setting,
    scheme=st.sampled_from(SCHEMES),
    rule=st.builds(
        ClosingRule,
        mu=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
        wait_out=st.sampled_from(["all", "conform", "feasible"]),
    ),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    first=SETTINGS,
    choices=st.dictionaries(st.integers(0, 11), SETTINGS, max_size=6),
    num_jobs=st.integers(1, 14),
    seed=st.integers(0, 10**6),
    tail=st.sampled_from([0.01, 0.7, 3.0]),
)
def test_whatever_is_switched_to_and_when_every_job_is_done_once_in_time_and_right(
    first: Setting, choices: dict[int, Setting], num_jobs: int, seed: int, tail: float
) -> None:
    times = 0.1 + tail * np.random.default_rng(seed).pareto(0.9, size=(80, N))
    director = Script(choices)
    policy = SwitchingPolicy(first, num_jobs=num_jobs, director=director)
    workload = SwitchingWorkload(policy.scheme_of, seed=seed)
    finished: dict[int, int] = {}
    closed: list[int] = []

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Close):
            closed.append(seen.record.round)
        if isinstance(seen, Finish):
            assert seen.job not in finished, f"job {seen.job} finished twice"
            finished[seen.job] = closed[-1]
        if isinstance(seen, Dispatch):
            segment = policy.segments[-1]
            assert seen.begins_segment == (seen.round == segment.first_round > 0)
            if seen.begins_segment:
                jobs = list(range(segment.first_job))
                assert sorted(workload.errors) == workload.begun == jobs, "all is handed over"

    run(policy, ReplayBackend(times, compute=workload.compute), workload, observe=watch)
    segments = policy.segments
    assert workload.begun == list(range(num_jobs)), "jobs start in order, each once"
    assert sorted(workload.errors) == list(range(num_jobs))
    assert max(workload.errors.values()) <= 1e-10
    assert closed == list(range(len(closed))), "rounds are numbered through the run"
    assert [record.round for record in director.records] == closed
    assert len(closed) == num_jobs + sum(s.setting.scheme.delay for s in segments)
    ends = [*(s.first_job for s in segments[1:]), num_jobs]
    for segment, end in zip(segments, ends, strict=True):
        assert end > segment.first_job, "no segment is empty"
        delay = segment.setting.scheme.delay
        for job in range(segment.first_job, end):
            start = segment.first_round + job - segment.first_job
            assert start <= finished[job] <= start + delay, f"job {job} of {segment}"
    for record, row, seen in zip(director.records, times, director.settings, strict=False):
        segment = max((s for s in segments if s.first_round <= record.round), key=_begin)
        assert seen == segment.setting
        assert record.duration_s <= row.max()


def _begin(segment: Segment) -> int:
    return segment.first_round


class Known(Script):
    """Chooses by the number of the round; notes after which it has switched, and to what."""

    def __init__(self, choices: dict[int, Setting]) -> None:
        super().__init__()
        self._by_round = choices
        self.made: dict[int, Setting] = {}

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:  # noqa: ARG002
        round = self.records[-1].round
        chosen = self._by_round.get(round, setting)
        if chosen != setting:
            self.made[round] = chosen
        return Decision(setting=chosen)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    first=SETTINGS,
    choices=st.dictionaries(st.integers(0, 20), SETTINGS, max_size=6),
    cut=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
def test_a_restored_policy_switches_and_goes_on_as_the_first_did(
    first: Setting, choices: dict[int, Setting], cut: float, seed: int
) -> None:
    director, num_jobs = Known(choices), 24
    times = 0.1 + np.random.default_rng(seed).pareto(0.9, size=(80, N))
    policy = SwitchingPolicy(first, num_jobs=num_jobs, director=director)
    sent, sent_again = Tasks(), Tasks()
    states = list[str]()
    rest = partial(note, policy, states)
    run(policy, ReplayBackend(times), observe=sent, rest=rest)
    state = json.loads(states[round(cut * (len(states) - 1))])
    past = {
        record.round: PastRound(
            responded=record.responded,
            late=record.late,
            setting=director.made.get(record.round),
        )
        for record in director.records
    }
    other = SwitchingPolicy(first, num_jobs=num_jobs, director=Known({}), again=past)
    other.restore(state)
    number = other.rounds
    run(other, ReplayBackend(times), observe=sent_again)
    later = policy.segments.index(other.segments[0])
    assert other.segments == policy.segments[later:]
    # Before its own rounds a policy asks again for late answers that later ones took.
    of_rounds = {round: sent_again.of[round] for round in sent_again.of if round >= number}
    assert of_rounds == {round: sent.of[round] for round in sent.of if round >= number}


def note(policy: SwitchingPolicy, states: list[str], _: object) -> None:
    states.append(json.dumps(policy.snapshot()))


class Tasks:
    """What workers were asked for, by round: (job, slot, chunks) of each, at first."""

    def __init__(self) -> None:
        self.of: dict[int, list[list[tuple[int, int, list[int]]]]] = {}

    def __call__(self, seen: Event | Action) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0:
            self.of[seen.round] = [
                [(task.job, task.slot, task.chunks.tolist()) for task in tasks]
                for tasks in seen.assignment.values()
            ]


@pytest.mark.parametrize("spec", SPECS)
def test_without_a_switch_every_decision_is_that_of_the_round_policy(spec: str) -> None:
    times = 0.1 + np.random.default_rng(7).pareto(0.9, size=(20, N))
    records: list[list[RoundRecord]] = []
    chosen = setting(spec, mu=0.4, wait_out="conform")
    plain = RoundPolicy(chosen.scheme.start(9), ClosingRule(mu=0.4, wait_out="conform"))
    for policy in (plain, SwitchingPolicy(chosen, num_jobs=9, director=Script({3: chosen}))):
        seen: list[RoundRecord] = []

        def watch(what: Event | Action, seen: list[RoundRecord] = seen) -> None:
            if isinstance(what, Close):
                seen.append(what.record)

        run(policy, ReplayBackend(times), observe=watch)
        records.append(seen)
    assert len(records[0]) == len(records[1]) == 9 + chosen.scheme.delay
    for ours, theirs in zip(*records, strict=True):
        assert (ours.duration_s, ours.reason) == (theirs.duration_s, theirs.reason)
        assert (ours.responded == theirs.responded).all()


def test_a_scheme_without_delay_is_left_at_once_and_one_with_delay_drains_first() -> None:
    director = Script({1: setting("m-sgc:B=2,W=3,lam=6"), 4: setting("gc-rep:s=2")})
    policy = SwitchingPolicy(setting("uncoded"), num_jobs=10, director=director)
    jobs_of_round: dict[int, list[int]] = {}

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Dispatch):
            tasks = [task for row in seen.assignment.values() for task in row]
            jobs_of_round[seen.round] = sorted({task.job for task in tasks})

    run(policy, ReplayBackend(np.ones((13, N))), observe=watch)
    assert [(s.setting.scheme.spec, s.first_job, s.first_round) for s in policy.segments] == [
        ("uncoded", 0, 0),
        ("m-sgc:B=2,W=3,lam=6", 2, 2),
        ("gc-rep:s=2", 5, 8),  # three rounds of drain, in which it is not asked
    ]
    assert jobs_of_round[1] == [1]
    assert jobs_of_round[2] == [2]
    assert max(jobs_of_round[4]) == max(jobs_of_round[5]) == 4
    assert jobs_of_round[8] == [5]
    assert director.asked == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert [policy.scheme_of(job).spec.split(":")[0] for job in (0, 1, 2, 4, 5, 9)] == [
        *["uncoded"] * 2,
        *["m-sgc"] * 2,
        *["gc-rep"] * 2,
    ]
    with pytest.raises(ParameterError, match="`job` must satisfy 0 <= job < 10; got 10"):
        policy.scheme_of(10)


@pytest.mark.parametrize("spec", ["sr-sgc:B=2,W=3,lam=4", "m-sgc:B=2,W=3,lam=2"])
def test_a_run_that_ends_while_a_scheme_drains_goes_on_with_no_other(spec: str) -> None:
    director, states = Known({3: setting("gc:s=2")}), list[str]()
    policy = SwitchingPolicy(setting(spec), num_jobs=20, director=director)
    workload = SwitchingWorkload(policy.scheme_of, seed=0)

    def end(_: Callable[[], object]) -> None:
        if director.made:  # and rounds are left in which the last jobs end
            policy.end_after(workload.begun[-1])
            note(policy, states, None)

    backend = ReplayBackend(np.ones((20, N)), compute=workload.compute)
    run(policy, backend, workload, rest=end)
    assert sorted(workload.errors) == workload.begun == list(range(4))
    assert [part.setting.scheme.spec for part in policy.segments] == [spec]
    for state in (states[0], states[-1]):
        resumed = SwitchingPolicy(setting(spec), num_jobs=20, director=Known({}))
        resumed.restore(json.loads(state))
        run(resumed, ReplayBackend(np.ones((20, N))))
        assert resumed.segments == policy.segments
    assert resumed.rounds == policy.rounds


def test_a_straggler_of_an_earlier_segment_is_dropped_by_the_next() -> None:
    policy = SwitchingPolicy(
        setting("gc:s=1", n=2), num_jobs=2, director=Script({0: setting("uncoded", n=2)})
    )
    policy.start()
    policy.on(left(0, 2, at=10.0))
    policy.on(Arrival(round=0, worker=0, attempt=0, at=11.0, results={}))
    actions = policy.on(Tick(at=11.0))
    assert [type(a).__name__ for a in actions] == ["Close", "Cancel", "Finish", "Dispatch"]
    assert isinstance(actions[-1], Dispatch)
    assert actions[-1].round == 1
    policy.on(left(1, 2, at=11.0))
    late = Arrival(round=0, worker=1, attempt=0, at=12.0, results={})
    assert policy.on(late) == (Drop(event=late, reason="its round is closed"),)
    policy.on(Arrival(round=1, worker=1, attempt=0, at=12.0, results={}))
    policy.on(Arrival(round=1, worker=0, attempt=0, at=13.0, results={}))
    assert not policy.done
    policy.on(Tick(at=13.0))
    assert policy.done


@pytest.mark.parametrize(
    ("decision", "spec"),
    [
        (Decision(restart=(1, 0)), "gc:s=1"),
        (Decision(setting=setting("gc:s=1", n=2), restart=(1, 0)), "gc:s=1"),  # as it is already
        (Decision(setting=setting("uncoded", n=2), restart=(1, 0)), "uncoded"),
    ],
)
def test_workers_are_restarted_before_the_next_round_leaves(decision: Decision, spec: str) -> None:
    policy = SwitchingPolicy(setting("gc:s=1", n=2), num_jobs=2, director=Script({0: decision}))
    policy.start()
    policy.on(left(0, 2, at=10.0))
    policy.on(Arrival(round=0, worker=0, attempt=0, at=11.0, results={}))
    actions = policy.on(Tick(at=11.0))
    assert [type(a).__name__ for a in actions] == [
        *["Close", "Cancel", "Finish"],
        *["Restart", "Restart", "Dispatch"],
    ]
    assert [a.worker for a in actions if isinstance(a, Restart)] == [1, 0]
    assert policy.segments[-1].setting.scheme.spec == spec
    assert len(policy.segments) == 1 + (spec == "uncoded")


def test_a_round_that_cannot_end_is_named_by_its_number_in_the_run() -> None:
    policy = SwitchingPolicy(
        setting("gc:s=1", n=2),
        num_jobs=2,
        director=Script({0: setting("uncoded", n=2, max_attempts=1)}),
    )
    gone = {(1, 1, attempt): (0.1, "gone") for attempt in range(20)}
    with pytest.raises(WorkerError, match=r"round 1 cannot end.*worker 1: gone"):
        run(policy, ScriptedBackend(gone))


def test_a_scheme_for_other_workers_is_refused() -> None:
    policy = SwitchingPolicy(
        setting("uncoded"), num_jobs=3, director=Script({0: setting("uncoded", n=4)})
    )
    with pytest.raises(ParameterError, match="`scheme` must have the run's n=6 workers; got 4"):
        run(policy, ReplayBackend(np.ones((3, N))))


@pytest.mark.parametrize("worker", [-1, N])
def test_a_director_is_not_shown_what_the_policy_refuses(worker: int) -> None:
    director = Script()
    policy = SwitchingPolicy(setting("gc:s=2"), num_jobs=2, director=director)
    policy.start()
    with pytest.raises(WireError, match="the worker of an answer"):
        policy.on(Arrival(at=1.0, round=0, attempt=0, worker=worker, results={}))
    assert director.events == []


def test_a_run_without_jobs_is_refused() -> None:
    with pytest.raises(ParameterError, match="`num_jobs` must be an integer >= 1; got 0"):
        SwitchingPolicy(setting("uncoded"), num_jobs=0, director=Script())

"""The policy and the loop, on virtual time: decisions, retries, drops, root causes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.codes import CyclicCode
from seqgc.errors import ParameterError, ScheduleError, WorkerError
from seqgc.master import run
from seqgc.ports import (
    Action,
    Arrival,
    Cancel,
    Close,
    Decoding,
    Dispatch,
    Dispatched,
    Drop,
    Event,
    Failure,
    Finish,
    Payload,
    RoundRecord,
    Tick,
)
from seqgc.rounds import ClosingRule, RoundPolicy, WaitOut
from seqgc.schemes import GC, MSGC, Scheme, Uncoded, parse_scheme
from seqgc.search import ReplayBackend
from seqgc.testing import ChunkWorkload, ScriptedBackend
from tests.kit import SOAK, left

SCHEMES = [
    ("uncoded", 6),
    ("gc:s=2", 6),
    ("gc-rep:s=2", 6),
    ("gc-binary:s=3", 6),
    ("sr-sgc:B=2,W=3,lam=4", 6),
    ("sr-sgc:B=1,W=3,lam=5", 5),
    ("sr-sgc-rep:B=1,W=2,lam=2", 6),
    ("m-sgc:B=1,W=2,lam=2", 6),
    ("m-sgc:B=2,W=4,lam=5", 5),
    ("m-sgc:B=1,W=3,lam=0", 4),
    ("m-sgc:B=2,W=3,lam=4", 4),
    ("m-sgc-rep:B=2,W=3,lam=2", 6),
    ("m-sgc:B=1,W=2,lam=1", 1),
]
RULES: tuple[WaitOut, ...] = ("all", "conform", "feasible")


def arbitrary_times(rounds: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """From nearly constant to wild, with ties and workers that are slow for long."""
    kind = rng.integers(4)
    if kind == 0:
        times = 1 + 0.01 * rng.random((rounds, n))
    elif kind == 1:
        times = rng.pareto(0.7, size=(rounds, n)) + 0.1
    elif kind == 2:
        times = rng.choice([1.0, 2.0, 50.0], size=(rounds, n))
    else:
        times = np.where(rng.random(n) < 0.5, 1.0, 40.0) * (1 + rng.random((rounds, n)))
    return times


@pytest.mark.parametrize(("spec", "n"), SCHEMES)
@pytest.mark.parametrize("rule", RULES)
def test_over_arbitrary_delays_every_job_is_on_time_and_right(
    spec: str, n: int, rule: WaitOut
) -> None:
    scheme = parse_scheme(spec, n=n)
    for seed in range(12 if SOAK else 6):
        rng = np.random.default_rng(seed)
        num_jobs = int(rng.integers(1, 9))
        mu = float(rng.choice([0.0, 0.3, 1.0, 5.0]))
        times = arbitrary_times(num_jobs + scheme.delay, n, rng)
        workload = ChunkWorkload(scheme, seed=seed)
        backend = ReplayBackend(times, compute=workload.compute)
        closed: list[RoundRecord] = []
        finished_in: dict[int, int] = {}

        def watch(
            seen: Event | Action,
            closed: list[RoundRecord] = closed,
            finished_in: dict[int, int] = finished_in,
        ) -> None:
            if isinstance(seen, Close):
                closed.append(seen.record)
            if isinstance(seen, Finish):
                finished_in[seen.job] = closed[-1].round

        policy = RoundPolicy(scheme.start(num_jobs), ClosingRule(mu=mu, wait_out=rule))
        run(policy, backend, workload, observe=watch)
        replay = f"seed {seed}, {spec}, n={n}, {rule}, mu={mu}"
        assert sorted(workload.errors) == list(range(num_jobs)), replay
        assert max(workload.errors.values()) <= 1e-10, replay
        assert all(0 <= r - job <= scheme.delay for job, r in finished_in.items()), replay
        assert len(closed) == num_jobs + scheme.delay, replay
        for record, row in zip(closed, times, strict=True):
            assert record.duration_s <= row.max(), replay
            if record.reason != "idle":
                assert (record.responded == (row <= record.duration_s)).all(), replay


def play(
    scheme: Scheme,
    script: dict[tuple[int, int, int], float | tuple[float, str]],
    *,
    jobs: int = 2,
    rule: WaitOut = "feasible",
    timeout_s: float = 60.0,
) -> tuple[ScriptedBackend, list[Event | Action]]:
    backend, seen = ScriptedBackend(script), []
    policy = RoundPolicy(
        scheme.start(jobs), ClosingRule(mu=0.0, wait_out=rule, timeout_s=timeout_s)
    )
    run(policy, backend, observe=seen.append)
    return backend, seen


def records(seen: list[Event | Action]) -> list[RoundRecord]:
    return [s.record for s in seen if isinstance(s, Close)]


def test_late_answers_of_a_closed_round_are_dropped_and_seen() -> None:
    script = {(0, 2, 0): 1.5, (1, 0, 0): 3.0, (1, 1, 0): 3.0}
    backend, seen = play(GC(n=3, s=1), script)
    drops = [s for s in seen if isinstance(s, Drop)]
    assert [(d.event.round, d.event.worker, d.reason) for d in drops] == [
        (0, 2, "its round is closed")
    ]
    assert backend.cancelled[0] == (0, (2,))
    first, second = records(seen)
    assert first.responded.tolist() == [True, True, False]
    assert second.duration_s == pytest.approx(3.0), "the late answer must not count as an answer"


def test_second_answers_and_failures_of_old_attempts_are_dropped() -> None:
    policy = RoundPolicy(GC(n=3, s=0).start(1), ClosingRule(mu=0.0, wait_out="feasible"))
    policy.start()
    policy.on(left(0, 1, at=5.0))
    answer = Arrival(round=0, worker=1, attempt=0, at=6.0, results={})
    assert policy.on(answer) == ()
    (drop,) = policy.on(answer)
    assert isinstance(drop, Drop)
    assert drop.reason == "its worker has already answered or failed"
    failed = Failure(round=0, worker=2, attempt=0, at=6.5, reason="killed")
    (again,) = policy.on(failed)
    assert isinstance(again, Dispatch)
    assert (again.attempt, list(again.assignment)) == (1, [2])
    (drop,) = policy.on(failed)
    assert isinstance(drop, Drop)
    assert drop.reason == "its task has been sent again, or will be"


def test_time_is_measured_from_dispatch_whatever_the_clock_shows() -> None:
    policy = RoundPolicy(Uncoded(n=1).start(1), ClosingRule(mu=0.0, wait_out="all", timeout_s=9.0))
    policy.start()
    policy.on(left(0, 1, at=1e6))
    assert policy.wake_at == 1e6 + 9.0
    policy.on(Arrival(round=0, worker=0, attempt=0, at=1e6 + 2.0, results={}))
    close, finish = policy.on(Tick(at=1e6 + 2.0))
    assert isinstance(close, Close)
    assert close.record.duration_s == 2.0
    assert isinstance(finish, Finish)
    assert finish.decoding() is finish.decoding(), "observers may ask too: it is worked out once"
    assert policy.done


def test_a_round_without_work_lasts_no_time() -> None:
    scheme = MSGC(n=3, B=1, W=2, lam=3)  # no D2: the last round only repeats what was lost
    _, seen = play(scheme, {}, jobs=1)
    assert [(r.reason, r.duration_s) for r in records(seen)][-1] == ("idle", 0.0)
    assert [s.round for s in seen if isinstance(s, Dispatch)] == [0]


def test_stragglers_are_cancelled_when_their_round_closes() -> None:
    backend, seen = play(GC(n=4, s=2), {(0, 3, 0): 2.0, (0, 1, 0): 2.0}, jobs=1)
    assert backend.cancelled == [(0, (1, 3))]
    assert [s.workers for s in seen if isinstance(s, Cancel)] == [(1, 3)]


def test_an_answer_without_its_result_is_a_failure() -> None:
    scheme = Uncoded(n=2)
    workload = ChunkWorkload(scheme, seed=0)
    policy = RoundPolicy(scheme.start(1), ClosingRule(mu=0.0, wait_out="all"))
    with pytest.raises(WorkerError, match="the answer lacks the result of slot 0"):
        run(policy, ScriptedBackend(), workload)


@pytest.mark.parametrize(("spec", "settles_in"), [("gc:s=4", 0), ("m-sgc:B=1,W=2,lam=4", 1)])
def test_answers_that_would_be_decoded_badly_do_not_suffice(spec: str, settles_in: int) -> None:
    scheme, code = parse_scheme(spec, n=12), CyclicCode(12, 4)
    rng = np.random.default_rng(0)
    responded = np.ones(12, dtype=np.bool_)
    # bfloat16 makes such sets common; in float32 they are as real, and rare.
    while code.predicted_error(code.decoding_vector(responded), "bfloat16") <= 1e-2:
        responded = rng.permutation(12) >= 4
    times = np.ones((1 + scheme.delay, 12))
    times[settles_in, ~responded] = [2.0, 3.0, 4.0, 5.0]

    def closings(payload: Payload | None) -> list[RoundRecord]:
        seen: list[Event | Action] = []

        def watch(event: Event | Action) -> None:
            seen.append(event)
            if isinstance(event, Finish) and payload is not None:
                event.decoding()  # raises where it would be decoded badly

        schedule = scheme.begin(1, payload=payload)
        policy = RoundPolicy(schedule, ClosingRule(mu=0.0, wait_out="feasible"))
        run(policy, ReplayBackend(times), observe=watch)
        return records(seen)

    assert closings(None)[settles_in].duration_s == 1.0
    careful = closings("bfloat16")[settles_in]
    assert careful.duration_s > 1.0
    assert careful.reason == "wait-out"


@pytest.mark.parametrize("spec", ["gc:s=4", "sr-sgc:B=1,W=2,lam=8", "m-sgc:B=1,W=2,lam=4"])
def test_no_answers_that_are_decoded_badly_end_a_run(spec: str) -> None:
    """Though rounds wait no longer than they must, and workers that crash are given up at once."""
    scheme = parse_scheme(spec, n=12)
    for seed in range(300) if SOAK else range(10, 15):
        rng = np.random.default_rng(seed)
        late = rng.random((12 + scheme.delay, 12)) < 0.3
        crashes = late & (rng.random(late.shape) < 0.5)
        script: dict[tuple[int, int, int], float | tuple[float, str]] = {
            (round, worker, 0): (0.5, "crashed") if crashes[round, worker] else 20.0
            for round, worker in np.argwhere(late).tolist()
        }
        decodings: list[Decoding] = []

        def watch(event: Event | Action, found: list[Decoding] = decodings) -> None:
            if isinstance(event, Finish):
                found.append(event.decoding())  # raises where it would be decoded badly

        schedule = scheme.begin(12, payload="bfloat16")
        rule = ClosingRule(mu=0.5, wait_out="feasible", max_attempts=1)
        run(RoundPolicy(schedule, rule), ScriptedBackend(script), observe=watch)
        assert len(decodings) == 12, f"seed {seed}"


def test_the_replay_seam_refuses_what_it_cannot_play() -> None:
    with pytest.raises(ParameterError, match="`times` must be a matrix"):
        ReplayBackend(np.ones(3))
    policy = RoundPolicy(Uncoded(n=2).start(3), ClosingRule(mu=0.0, wait_out="all"))
    with pytest.raises(ParameterError, match="`times` must cover round 1"):
        run(policy, ReplayBackend(np.ones((1, 2))))
    with pytest.raises(ScheduleError, match="waits for ever"):
        ReplayBackend(np.ones((1, 2))).receive(math.inf)
    with pytest.raises(ParameterError, match="`max_attempts` must be an integer >= 1"):
        RoundPolicy(Uncoded(n=2).start(1), ClosingRule(mu=0.0, wait_out="all", max_attempts=0))


@pytest.mark.parametrize("audit", [False, True])
def test_a_schedule_whose_rounds_are_all_closed_asks_nobody(audit: bool) -> None:
    """As in a run that is resumed after its last round."""
    schedule = GC(n=3, s=2, family="rep").start(1)
    schedule.close_round(np.ones(3, dtype=np.bool_))
    policy = RoundPolicy(schedule, ClosingRule(), audit=audit)
    assert policy.done
    assert not policy.start()


def test_an_answer_of_the_very_instant_that_was_decided_at_is_not_before_it_by_rounding() -> None:
    rounded = 0
    for origin in np.random.default_rng(1).uniform(0, 1e4, 200).tolist():
        policy = RoundPolicy(GC(n=2, s=0).start(1), ClosingRule(mu=0.1))
        policy.start()
        policy.on(Dispatched(round=0, attempt=0, workers=(0, 1), left_at=(origin, origin)))
        policy.on(Arrival(round=0, worker=0, attempt=0, at=origin + 1.3, results={}))
        at = policy.wake_at
        rounded += at - origin < 1.1 * (origin + 1.3 - origin)
        policy.on(Tick(at=at))
        policy.on(Arrival(round=0, worker=1, attempt=0, at=at, results={}))
        policy.on(Tick(at=at))
        assert policy.done
    assert rounded > 10


def test_a_second_attempt_under_way_when_its_round_closes_may_answer_late() -> None:
    policy = RoundPolicy(parse_scheme("ra-sgc:s=0,q=0.5,r=1", n=4).start(2), ClosingRule())
    policy.start()
    policy.on(left(0, 4, at=0.0))
    failed = Failure(round=0, worker=3, attempt=0, at=0.5, reason="killed")
    assert [type(action) for action in policy.on(failed)] == [Dispatch]
    for worker in (0, 1):
        policy.on(Arrival(round=0, worker=worker, attempt=0, at=1.0, results={}))
    actions = policy.on(Tick(at=policy.wake_at))
    assert [type(action) for action in actions] == [Close, Dispatch], "nobody is cancelled"
    policy.on(left(1, 4, at=3.0))
    assert policy.on(Arrival(round=0, worker=3, attempt=1, at=3.5, results={})) == ()

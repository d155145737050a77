"""Rounds of a resumed run: closed again on the answers on which they were closed before."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Action, BoolArray, Close, Event, RoundRecord
from seqgc.rounds import ClosingRule, PastRound, RoundGate, Setting, SwitchingPolicy
from seqgc.schemes import GC, parse_scheme
from seqgc.search import ReplayBackend

N = 4
TAKING = [
    "ra-sgc:s=0,q=0.5,r=1",
    "ra-sgc:s=1,q=0.5,r=2,p=2",
    "sr-sgc:B=2,W=3,lam=2,late=take",
    "m-sgc:B=2,W=4,lam=3,late=take",
]
SPECS = ["uncoded", "gc:s=1", "sr-sgc:B=1,W=2,lam=1", "m-sgc:B=1,W=3,lam=2"]


def gate(again: str, *, timeout_s: float = 9.0) -> RoundGate:
    """Return a gate that waits for the workers marked in ``again``, such as "1101"."""
    past = PastRound(responded=mask(again))
    rule = ClosingRule(mu=0.5, timeout_s=timeout_s)
    return RoundGate(GC(n=N, s=2).start(1), rule, again=past)


def mask(text: str) -> BoolArray:
    return np.array([c == "1" for c in text])


def closed(gate: RoundGate) -> RoundRecord:
    assert gate.record is not None
    return gate.record


def test_it_closes_on_the_same_answers_whoever_else_has_answered() -> None:
    again = gate("1010")
    for worker, at in ((1, 1.0), (3, 1.1), (0, 1.2)):
        again.arrive(worker, at)
        again.tick(at)
        assert again.record is None, "two of four would suffice"
    again.tick(again.wake_at)
    assert again.wake_at == 9.0
    again.arrive(2, 5.0)
    again.tick(again.wake_at)
    record = closed(again)
    assert record.reason == "again"
    assert (record.duration_s, record.kappa_s) == (5.0, 1.0)
    np.testing.assert_array_equal(record.responded, mask("1010"))


def test_if_one_of_them_fails_it_closes_like_any_other() -> None:
    again = gate("1010")
    again.arrive(1, 1.0)
    again.arrive(3, 1.1)
    again.fail(0, 2.0)
    again.tick(2.0)
    assert closed(again).reason == "tolerance"
    np.testing.assert_array_equal(closed(again).responded, mask("0101"))


def test_answers_that_do_not_suffice_any_more_close_nothing() -> None:
    """What ran before the round may have ended otherwise this time."""
    again = gate("0001")  # one of four, where s = 2
    again.arrive(3, 1.0)
    again.tick(1.0)
    assert again.record is None
    again.arrive(0, 2.0)
    again.tick(2.0)
    np.testing.assert_array_equal(closed(again).responded, mask("1001"))


def test_if_one_of_them_does_not_answer_in_time_those_who_did_count() -> None:
    again = gate("1010")
    again.arrive(1, 1.0)
    again.arrive(0, 1.1)
    again.tick(9.0)
    assert closed(again).reason == "timeout"
    np.testing.assert_array_equal(closed(again).responded, mask("1100"))
    silent = gate("1010")
    assert silent.tick(9.0) == (0, 1, 2, 3)
    assert silent.tick(18.0) == (0, 1, 2, 3)
    with pytest.raises(WorkerError, match="0 of 4 workers answered"):
        silent.tick(27.0)


@pytest.mark.parametrize("spec", [*SPECS, *TAKING])
def test_a_restored_policy_closes_the_rounds_on_record_as_the_first_did(spec: str) -> None:
    """From a snapshot between any two events, whatever the workers' times are now."""
    for seed in range(5):
        restored_at_an_instant(spec, np.random.default_rng(seed))


def restored_at_an_instant(spec: str, rng: np.random.Generator) -> None:
    setting = Setting(scheme=parse_scheme(spec, n=N), rule=ClosingRule(wait_out="feasible"))
    jobs = 12
    times = 1 + rng.pareto(1.0, (jobs + setting.scheme.delay, N))
    first, states = list[RoundRecord](), list[tuple[int, str]]()
    whole = SwitchingPolicy(setting, num_jobs=jobs)

    def rest(_: object) -> None:
        states.append((whole.rounds, json.dumps(whole.snapshot())))

    run(whole, ReplayBackend(times), observe=records(first), rest=rest)
    cut, state = states[rng.integers(len(states))]
    known = int(rng.integers(cut, len(first) + 1))
    past = {
        record.round: PastRound(responded=record.responded, late=record.late)
        for record in first[cut:known]
    }
    policy = SwitchingPolicy(setting, num_jobs=jobs, again=past)
    policy.restore(json.loads(state))
    assert json.dumps(policy.snapshot()) == state
    second: list[RoundRecord] = []
    run(policy, ReplayBackend(times + rng.random(times.shape)), observe=records(second))
    assert [record.round for record in second] == list(range(cut, len(first)))
    for record in second[: known - cut]:
        np.testing.assert_array_equal(record.responded, first[record.round].responded)
        assert set(record.late) == set(first[record.round].late)
        assert record.reason in {"again", "idle"}


def test_a_round_that_any_answers_may_close_waits_for_no_worker() -> None:
    setting = Setting(scheme=GC(n=N, s=1), rule=ClosingRule(timeout_s=5.0))
    seen: list[RoundRecord] = []
    policy = SwitchingPolicy(setting, num_jobs=1, again={0: PastRound()})
    run(policy, ReplayBackend(np.array([[1.0, 1.0, 1.0, 99.0]])), observe=records(seen))
    assert [record.reason for record in seen] == ["tolerance"]


@pytest.mark.parametrize("spec", TAKING)
def test_the_cases_that_take_late_answers_do(spec: str) -> None:
    setting, seen = Setting(scheme=parse_scheme(spec, n=N)), list[RoundRecord]()
    for seed in range(5):
        times = 1 + np.random.default_rng(seed).pareto(1.0, (12 + setting.scheme.delay, N))
        run(SwitchingPolicy(setting, num_jobs=12), ReplayBackend(times), observe=records(seen))
    assert sum(bool(record.late) for record in seen) > 3


def records(into: list[RoundRecord]) -> Callable[[Event | Action], None]:
    def observe(seen: Event | Action) -> None:
        if isinstance(seen, Close):
            into.append(seen.record)

    return observe


@pytest.mark.parametrize(("others_at", "patience_s"), [(1.0, 10.0), (8.0, 60.0)])
def test_if_one_of_them_is_silent_and_others_suffice_it_is_asked_again_and_then_done_without(
    others_at: float, patience_s: float
) -> None:
    """Of the time limit, 1000 s, next to nothing is waited for."""
    silent = gate("1010", timeout_s=1000.0)
    for worker in (0, 1):
        silent.arrive(worker, others_at)
    assert silent.tick(1.5 * others_at) == ()
    assert silent.wake_at == patience_s
    assert silent.tick(patience_s) == (2,)
    silent.arrive(3, 1.5 * patience_s)
    assert silent.tick(2 * patience_s) == ()
    assert closed(silent).reason == "tolerance"
    np.testing.assert_array_equal(closed(silent).responded, mask("1101"))


def test_as_long_as_others_do_not_suffice_nobody_is_asked_before_the_time_limit() -> None:
    silent = gate("1010", timeout_s=1000.0)
    silent.arrive(0, 1.0)
    assert silent.tick(1.5) == ()
    assert silent.wake_at == 1000.0
    silent.arrive(3, 7.0)
    assert silent.tick(7.0) == ()
    assert silent.wake_at == 35.0


def test_one_who_is_asked_again_and_answers_counts() -> None:
    again = gate("1010", timeout_s=1000.0)
    again.arrive(0, 1.0)
    again.arrive(3, 1.0)
    again.tick(1.5)
    assert again.tick(10.0) == (2,)
    again.arrive(2, 11.0)
    again.tick(11.0)
    assert closed(again).reason == "again"
    np.testing.assert_array_equal(closed(again).responded, mask("1010"))


def test_once_a_round_closes_otherwise_what_followed_it_is_void() -> None:
    """These answers may not even suffice any more (SR-SGC, after other stragglers)."""
    rule = ClosingRule(mu=0.5, timeout_s=5.0)
    setting = Setting(scheme=GC(n=N, s=1), rule=rule)
    again = {round: PastRound(responded=mask(each)) for round, each in enumerate(["1111", "1110"])}
    times = np.array([[1.0, 1.0, 1.0, 99.0], [99.0, 1.0, 1.0, 1.0]])
    seen: list[RoundRecord] = []
    policy = SwitchingPolicy(setting, num_jobs=2, again=again)
    run(policy, ReplayBackend(times), observe=records(seen))
    assert [record.reason for record in seen] == ["timeout", "tolerance"]

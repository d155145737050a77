"""The gate, with a hand-wound clock."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.errors import ParameterError, ScheduleError, WorkerError
from seqgc.ports import BoolArray
from seqgc.rounds import ClosingRule, RoundGate, WaitOut
from seqgc.schemes import GC, MSGC


class Judge:
    """Patterns conform from ``conforming`` answers on, are feasible from ``feasible`` on, ..."""

    def __init__(self, *, conforming: int, feasible: int, n: int = 5, enough: int = 0) -> None:
        self._conforming, self._feasible, self.n = conforming, feasible, n
        self._enough = enough

    def conforms(self, responded: BoolArray) -> bool:
        return int(responded.sum()) >= self._conforming

    def feasible(self, responded: BoolArray) -> bool:
        return int(responded.sum()) >= self._feasible

    def enough(self, responded: BoolArray) -> bool:
        return int(responded.sum()) >= max(self._enough, self._feasible)


def wind(gate: RoundGate, arrivals: dict[float, list[int]], *, until: float = math.inf) -> None:
    """Let workers answer at their times; in between, wake the gate whenever it asks."""
    for at in sorted(arrivals):
        while gate.record is None and gate.wake_at < at:
            gate.tick(gate.wake_at)
        if gate.record is not None:
            return
        for worker in arrivals[at]:
            gate.arrive(worker, at)
    if gate.record is None and gate.wake_at <= until:
        gate.tick(gate.wake_at)


def gate_for(
    wait_out: WaitOut, *, mu: float = 1.0, conforming: int = 3, feasible: int = 2, n: int = 5
) -> RoundGate:
    judge = Judge(conforming=conforming, feasible=feasible, n=n)
    return RoundGate(judge, ClosingRule(mu=mu, wait_out=wait_out))


ONE_A_SECOND = {1.0: [0], 2.0: [1], 3.0: [2], 4.0: [3], 5.0: [4]}


@pytest.mark.parametrize(
    ("wait_out", "mu", "duration", "reason", "answers"),
    [
        ("all", 0.0, 5.0, "everyone", 5),
        ("conform", 0.0, 3.0, "wait-out", 3),
        ("feasible", 0.0, 2.0, "wait-out", 2),
        ("all", 1.0, 5.0, "everyone", 5),
        ("conform", 1.0, 3.0, "wait-out", 3),
        ("feasible", 1.0, 2.0, "tolerance", 2),
        ("all", 2.5, 3.5, "tolerance", 3),
        ("conform", 2.5, 3.5, "tolerance", 3),
        ("feasible", 2.5, 3.5, "tolerance", 3),
        ("feasible", 9.0, 5.0, "everyone", 5),
    ],
)
def test_each_rule_closes_at_its_own_instant(
    wait_out: WaitOut, mu: float, duration: float, reason: str, answers: int
) -> None:
    gate = gate_for(wait_out, mu=mu)
    wind(gate, ONE_A_SECOND)
    assert gate.record is not None
    assert gate.record.duration_s == duration
    assert gate.record.reason == reason
    assert gate.record.responded.sum() == answers
    assert gate.record.kappa_s == 1.0
    assert gate.record.waited_out == (duration > (1 + mu) * 1.0)
    assert not gate.record.responded.flags.writeable


def test_answers_of_one_instant_count_together() -> None:
    gate = gate_for("feasible", mu=0.0, feasible=1)
    wind(gate, {1.0: [3, 1, 4], 2.0: [0, 2]})
    assert gate.record is not None
    assert np.flatnonzero(gate.record.responded).tolist() == [1, 3, 4]


def test_an_answer_at_the_tolerance_itself_counts() -> None:
    gate = gate_for("feasible", mu=1.0)
    wind(gate, {1.0: [0], 2.0: [1, 2], 2.5: [3, 4]})
    assert gate.record is not None
    assert gate.record.responded.sum() == 3


def test_conform_never_closes_on_what_would_lose_a_job() -> None:
    gate = gate_for("conform", mu=0.0, conforming=1, feasible=4)
    wind(gate, ONE_A_SECOND)
    assert gate.record is not None
    assert gate.record.duration_s == 4.0


def test_nothing_closes_before_the_first_answer() -> None:
    gate = gate_for("feasible", feasible=0)
    assert gate.wake_at == math.inf
    gate.tick(1000.0)
    assert gate.record is None


def test_failed_workers_are_stragglers_and_nobody_waits_for_them() -> None:
    gate = gate_for("all", mu=0.0)
    gate.fail(4, 0.5)
    wind(gate, {1.0: [0], 2.0: [1], 3.0: [2], 4.0: [3]})
    assert gate.record is not None
    assert gate.record.reason == "exhausted"
    assert gate.record.duration_s == 4.0
    assert not gate.record.responded[4]


def test_a_round_that_cannot_be_saved_ends_with_an_error() -> None:
    gate = gate_for("feasible", feasible=2)
    gate.arrive(0, 1.0)
    for worker in (1, 2, 3, 4):
        gate.fail(worker, 1.5)
    with pytest.raises(WorkerError, match="round 0 cannot end: 1 of 5 workers answered"):
        gate.tick(1.5)


def test_the_time_limit_closes_what_is_feasible_and_refuses_the_rest() -> None:
    judge = Judge(conforming=5, feasible=2)
    gate = RoundGate(judge, ClosingRule(mu=0.0, wait_out="conform", timeout_s=10.0))
    wind(gate, {1.0: [0], 2.0: [1]})
    assert gate.record is None
    gate.tick(10.0)
    assert gate.record is not None
    assert (gate.record.reason, gate.record.duration_s) == ("timeout", 10.0)

    silent = RoundGate(judge, ClosingRule(mu=0.0, wait_out="conform", timeout_s=10.0))
    assert silent.wake_at == 10.0
    assert silent.tick(10.0) == (0, 1, 2, 3, 4), "are to be asked again"
    assert silent.wake_at == 20.0
    assert silent.tick(20.0) == (0, 1, 2, 3, 4), "and a third time"
    assert silent.wake_at == 30.0
    with pytest.raises(WorkerError, match="0 of 5 workers answered within 30 s, 0 failed"):
        silent.tick(30.0)


@pytest.mark.parametrize("wait_out", ["all", "conform", "feasible"])
def test_beyond_the_time_limit_it_closes_as_soon_as_no_job_is_lost(wait_out: WaitOut) -> None:
    judge = Judge(conforming=5, feasible=2)
    rule = ClosingRule(mu=0.0, wait_out=wait_out, timeout_s=10.0)
    times = np.array([3.0, 14.0, 15.0, math.inf, math.inf])
    gate = RoundGate(judge, rule)
    wind(gate, {3.0: [0], 14.0: [1], 15.0: [2]})
    for record in (gate.record, RoundGate(judge, rule).play(times)):
        assert record is not None
        assert (record.reason, record.duration_s) == ("timeout", 14.0)
        assert record.responded.tolist() == [True, True, False, False, False]


def test_who_is_needed_depends_on_who_has_failed() -> None:
    gate = RoundGate(Judge(conforming=5, feasible=3), ClosingRule())
    assert not gate.needs(4)
    gate.fail(0, 1.0)
    gate.fail(1, 1.0)
    assert gate.needs(4)
    gate.expect([1])
    assert not gate.needs(4)
    assert gate.awaited == (1, 2, 3, 4)


def test_illegal_transitions_raise_and_change_nothing() -> None:
    gate = gate_for("feasible", mu=0.0)
    gate.arrive(0, 1.0)
    with pytest.raises(ScheduleError, match="worker 0 is settled"):
        gate.arrive(0, 1.5)
    with pytest.raises(ScheduleError, match="worker 0 is settled"):
        gate.fail(0, 1.5)
    with pytest.raises(ScheduleError, match="time went back"):
        gate.arrive(1, 0.5)
    wind(gate, {2.0: [1]})
    record = gate.record
    assert record is not None
    for late in (gate.arrive, gate.fail):
        with pytest.raises(ScheduleError, match="is closed"):
            late(2, 3.0)
    with pytest.raises(ScheduleError, match="is closed"):
        gate.tick(3.0)
    assert gate.record is record
    assert record.responded.sum() == 2


@pytest.mark.parametrize(
    ("mu", "wait_out", "timeout_s", "message"),
    [
        (-0.1, "all", 1.0, "`mu` must be a finite number >= 0; got -0.1"),
        (math.nan, "all", 1.0, "`mu` must be a finite number >= 0; got nan"),
        (0.0, "any", 1.0, "`wait_out` must be one of all, conform, feasible; got 'any'"),
        (0.0, "all", 0.0, "`timeout_s` must be > 0 seconds; got 0.0"),
    ],
)
def test_a_bad_rule_is_refused(
    mu: float, wait_out: WaitOut, timeout_s: float, message: str
) -> None:
    judge = Judge(conforming=1, feasible=1)
    with pytest.raises(ParameterError) as caught:
        RoundGate(judge, ClosingRule(mu=mu, wait_out=wait_out, timeout_s=timeout_s))
    assert str(caught.value) == message


@pytest.mark.parametrize("seed", range(5))
def test_the_gate_closes_at_the_first_instant_that_its_rule_allows(seed: int) -> None:
    """Against a direct reading of the rule (docs/mathematics.md, section 6), on random times."""
    rng = np.random.default_rng(seed)
    for scheme in (GC(n=6, s=2), GC(n=6, s=2, family="rep"), MSGC(n=6, B=1, W=2, lam=2)):
        times = np.round(rng.exponential(size=6) + 0.1, 1)  # ties on purpose
        mu = float(rng.choice([0.0, 0.5, 2.0]))
        for rule in ("all", "conform", "feasible"):
            schedule = scheme.start(3)
            gate = RoundGate(schedule, ClosingRule(mu=mu, wait_out=rule))
            wind(gate, {t: np.flatnonzero(times == t).tolist() for t in set(times.tolist())})
            judge = schedule.feasible if rule == "feasible" else schedule.conforms
            deadline = min((1 + mu) * times.min(), times.max())
            instants = [deadline, *sorted(t for t in times if t > deadline)]
            if rule == "all" and not judge(times <= deadline):
                instants = [times.max()]
            expected = next(t for t in instants if judge(times <= t))
            assert gate.record is not None
            assert gate.record.duration_s == expected, f"seed {seed}, {scheme}, {rule}, {times}"
            assert (gate.record.responded == (times <= expected)).all()


@pytest.mark.parametrize("wait_out", ["all", "conform", "feasible"])
def test_a_round_played_at_once_ends_as_one_event_after_the_other(wait_out: WaitOut) -> None:
    reasons = set()
    for seed in range(300):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        times = np.round(rng.exponential(size=n) + 0.1, 1)  # ties on purpose
        conforming, feasible = rng.integers(0, n + 1, 2)
        judge = Judge(conforming=int(conforming), feasible=int(feasible), n=n)
        rule = ClosingRule(
            mu=float(rng.choice([0.0, 0.5, 2.0])),
            wait_out=wait_out,
            timeout_s=float(rng.choice([math.inf, 1.0])),
        )
        records = []
        for play in (True, False):
            gate = RoundGate(judge, rule, round=seed)
            try:
                if play:
                    gate.play(times)
                else:
                    wind(gate, {t: np.flatnonzero(times == t).tolist() for t in set(times)})
                    while gate.record is None:
                        gate.tick(gate.wake_at)
            except WorkerError as error:
                records.append(str(error))
                reasons.add("lost")
                continue
            record = gate.record
            assert record is not None
            reasons.add(record.reason)
            records.append(
                (
                    record.round,
                    record.responded.tolist(),
                    record.kappa_s,
                    record.duration_s,
                    record.reason,
                    record.waited_out,
                )
            )
        assert records[0] == records[1], f"seed {seed}"
    assert reasons >= {"everyone", "tolerance", "timeout", "lost"}
    assert ("wait-out" in reasons) == (wait_out != "all")


def test_more_answers_are_found_by_halves_not_one_by_one() -> None:
    judge, asked = Judge(conforming=200, feasible=200, n=256), []

    def feasible(responded: BoolArray) -> bool:
        asked.append(int(responded.sum()))
        return asked[-1] >= 200

    judge.feasible = feasible  # type: ignore[method-assign]
    times = 1.0 + np.random.default_rng(0).random(256)
    record = RoundGate(judge, ClosingRule()).play(times)
    assert record.responded.sum() == 200
    assert len(asked) <= 1 + 8 + 1  # at the tolerance, by bisection, and to close

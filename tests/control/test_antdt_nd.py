"""AntDT-ND: transient stragglers get less for a while, persistent ones are replaced."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.control import AntDTND, AntDTNDDirector
from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Notice, Restart, Seen
from seqgc.profiles import ByRound
from seqgc.profiles.slowdowns import SleepWindows
from seqgc.rounds import ClosingRule, Setting, SwitchingPolicy
from seqgc.search import ReplayBackend
from seqgc.virtual import VirtualBackend
from tests.control.runs import Virtual, virtual

SMALL = "antdt-nd:trans=30,per=60,act=30"
"""Windows of a tenth of the paper's, for clocks of a tenth."""


SMALLER, ROUNDS = "antdt-nd:trans=12,per=24,act=12", 330


def slept(spec: str, intensity: float, *, seed: int = 0, rounds: int = ROUNDS) -> Virtual:
    """The paper's run on 10 workers: a fifth of its rounds and clocks, a 25th of its windows."""
    sleeps = SleepWindows(
        n=10, intensity=intensity / 5, clock_s=0.316, period_s=72.0, periods=8, seed=seed
    )
    return virtual(spec, sleeps.pace(), num_jobs=rounds, batches=[640])


def test_a_persistent_straggler_is_replaced_once_and_the_run_is_fast_from_then_on() -> None:
    sleeps = SleepWindows(n=4, intensity=0.75, probability=0.0)  # worker 0 takes 4 s, others 1 s
    run = virtual(SMALL, sleeps.pace(), num_jobs=60, batches=[64])
    (when, who), *others = run.restarts
    assert (who, others) == (0, [])
    before = sum(run.round_seconds[:when])
    assert 60 <= before < 66, "as soon as it has been slow for that long"
    first_adjusted = next(start for start, shares in run.shares if shares[0] < 16)
    assert 30 <= sum(run.round_seconds[:first_adjusted]) < 34, "before that it got less"
    assert run.shares[-1][1] == [16] * 4, "the fresh one has its share"
    assert run.round_seconds[-1] == pytest.approx(1.0)
    back = next(start for start, shares in run.shares if start > when)
    assert back == when + 2, "as soon as it is known: with its second answer"


def test_while_a_fresh_worker_is_in_coming_the_others_have_its_share() -> None:
    sleeps = SleepWindows(n=4, intensity=0.75, probability=0.0)
    run = virtual(SMALL + ",back=5", sleeps.pace(), num_jobs=60, batches=[63], restart_s=4.5)
    ((when, _),) = run.restarts
    shares = dict(run.shares)
    assert shares[when] == [0, 21, 21, 21]
    gone = [start for start, each in run.shares if each[0] == 0]
    probe = min(start for start in shares if start > gone[-1])
    assert 5 <= sum(run.round_seconds[when:probe]) < 7
    assert shares[probe][0] == 1, "it is asked for a little first"
    assert run.shares[-1][1] == [16, 16, 16, 15]
    assert max(run.round_seconds[when:]) < 1.5, "nobody waits for its start"


def test_slowness_that_shares_make_up_for_is_nobodys_end() -> None:
    rates = np.array([[16.0, 4.0, 4.0, 4.0]])  # 4 s and 1 s for a quarter
    run = virtual(SMALL, ByRound(latencies_s=[[0.0]], rates=rates), num_jobs=200, batches=[65])
    assert run.restarts == []
    assert run.shares[-1][1] == [5, 20, 20, 20]


def test_a_straggler_that_recovers_has_its_share_back_at_the_next_look() -> None:
    rates = np.ones((200, 4))
    rates[:20, 3] = 4.0
    pace = ByRound(latencies_s=[[0.0]], rates=4 * rates)
    run = virtual("antdt-nd:trans=10,per=1000,act=10", pace, num_jobs=120, batches=[64])
    assert min(shares[3] for _, shares in run.shares) < 8
    assert run.shares[-1][1] == [16] * 4


def test_below_lam_nothing_is_done() -> None:
    pace = ByRound(latencies_s=[[0.0]], rates=[[5.6, 4.0, 4.0, 4.0]])
    run = virtual(SMALL, pace, num_jobs=200, batches=[64])
    assert (run.restarts, len(run.shares)) == ([], 1)
    assert virtual(SMALL + ",lam=1.2", pace, num_jobs=60, batches=[64]).shares[-1][1][0] < 16


@pytest.mark.parametrize("intensity", [0.1, 0.8])
def test_small_sleeps_cost_what_they_do_and_large_ones_hardly_more(intensity: float) -> None:
    ours, bsp = (slept(spec, intensity).seconds for spec in (SMALLER, "uncoded"))
    if intensity < 0.5:
        assert ours == pytest.approx(bsp), "nobody is half as slow again as the others"
    else:
        assert 0.40 <= ours / bsp <= 0.52


def test_with_large_sleeps_replacing_beats_dropping_beats_sharing_beats_waiting() -> None:
    # Backup workers leave out three parts of ten: for as much data it takes more rounds.
    runs = [
        (SMALLER, ROUNDS),
        ("backup:b=3", -(-ROUNDS * 10 // 7)),
        ("lb-bsp", ROUNDS),
        ("uncoded", ROUNDS),
    ]
    seconds = [slept(spec, 0.8, rounds=rounds).seconds for spec, rounds in runs]
    assert seconds == sorted(seconds)


def test_a_busy_cluster_replaces_nobody_until_it_is_no_more() -> None:
    defence, asked = AntDTND(n=4, trans=30.0, per=60.0, act=30.0), list[int]()

    def busy() -> bool:
        asked.append(len(asked))
        return len(asked) < 3

    restarts = []
    sleeps = SleepWindows(n=4, intensity=0.75, probability=0.0)
    director = AntDTNDDirector(defence, parts=64, busy=busy)
    setting = Setting(scheme=defence.first(64))
    policy = SwitchingPolicy(setting, director=director, num_jobs=80, batches=[64])
    run(
        policy,
        backend := VirtualBackend(4, sleeps.pace()),
        observe=lambda seen: restarts.append(backend.now) if isinstance(seen, Restart) else None,
    )
    assert len(restarts) == 1
    assert len(asked) == 3
    assert 120 <= restarts[0] < 130, "asked at 60, 90 and 120 s"


def test_where_workers_cannot_be_replaced_it_runs_by_shares_alone_and_says_so_once() -> None:
    times = np.array([[9.0, 1.0, 1.0, 1.0]] * 60)
    seen: list[Seen] = []
    policy = AntDTND(n=4, trans=30.0, per=60.0, act=30.0).policy(
        ClosingRule(), num_jobs=60, batches=[64]
    )
    run(policy, ReplayBackend(times), observe=seen.append)
    assert policy.done
    assert [each for each in seen if isinstance(each, Restart)] == []
    (notice,) = [each for each in seen if isinstance(each, Notice)]
    assert (notice.kind, notice.fields) == (
        "warning",
        {
            "text": "worker 0 is 1.5 times as slow as the average for 60 s: "
            "workers of ReplayBackend cannot be replaced; the run continues"
        },
    )
    assert policy.segments[-1].setting.scheme.parts[0] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("lam", 0.5, "`lam` must be a finite number >= 1"),
        ("trans", 0.0, "`trans` must be a finite number > 0"),
        ("per", -1.0, "`per` must be a finite number > 0"),
        ("act", float("inf"), "`act` must be a finite number > 0"),
        ("back", -1.0, "`back` must be a finite number >= 0"),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: float, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        AntDTND(n=2, **{field: value})

"""Clocks: each part is applied once, and on all that the slack promises, whatever happens."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc import ports
from seqgc.clocks import Barrier, ClockPolicy, Clocks, GlobalClock
from seqgc.errors import ScheduleError, WorkerError
from seqgc.master import run
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule
from seqgc.schemes import parse_scheme
from seqgc.virtual import RandomFaults, VirtualBackend
from tests.clocks.table import Table
from tests.kit import SOAK


def _table(spec: str = "", *, n: int = 3, jobs: int = 3, rule: ClosingRule | None = None) -> Table:
    clocks = parse_scheme(spec or "ssp:slack=1", n=n)
    assert isinstance(clocks, Clocks)
    table = Table(clocks, jobs, rule or ClosingRule())
    table.begin()
    return table


def _kinds(actions) -> list[str]:
    return [type(action).__name__ for action in actions]


# ---- whatever happens ---------------------------------------------------------------------------


@st.composite
def tables(draw) -> Table:
    clocks = Clocks(
        n=draw(st.integers(1, 4)),
        slack=draw(st.none() | st.integers(0, 3)),
        wpc=draw(st.integers(1, 3)),
    )
    limit_s = draw(st.sampled_from([5.0, math.inf]))
    rule = ClosingRule(timeout_s=limit_s, max_attempts=draw(st.integers(1, 3)))
    return Table(clocks, draw(st.integers(1, 7)), rule)


CHOICES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=60)


@settings(max_examples=20_000 if SOAK else 150)
@given(tables(), CHOICES)
def test_each_part_is_applied_once_whatever_happens(table: Table, choices) -> None:
    """Or the run ends, where nobody was heard for two time limits."""
    table.begin()
    heard_at = table.now
    for what, which in choices:
        if table.policy.done:
            break
        try:
            _happen(table, what, which)
        except WorkerError as error:
            if "within 3 time limits" not in str(error):
                raise
            assert table.now >= heard_at + 3 * table.rule.timeout_s - 0.1  # a step is 0.01 s
            return
        heard_at = table.now if what < 70 else heard_at  # not by what is dropped
    _go_well(table)
    table.check_end()


def _happen(table: Table, what: int, which: int) -> None:
    out, late = sorted(table.out), sorted(table.late)
    table.now += 0.01
    if what < 40 and out:
        table.answer(out[which % len(out)])
    elif what < 60 and out:
        table.fail(out[which % len(out)])
    elif what < 70 and out:
        table.fail(out[which % len(out)], flawed=True)
    elif what < 85 and late:
        drop, *_ = table.answer(late[which % len(late)])  # and what is due by now is sent
        assert isinstance(drop, ports.Drop)
    elif what < 90:
        table.resume()
    elif math.isfinite(table.policy.wake_at):
        table.tick()


def _go_well(table: Table) -> None:
    """Have everybody answer, to the end."""
    while not table.policy.done:
        if table.out:
            table.answer(min(table.out))
        else:
            table.tick()


# ---- R1: who may begin --------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "ahead"), [("bsp", 1), ("ssp:slack=1", 2), ("ssp:slack=2", 3)])
def test_a_worker_goes_on_until_it_is_the_slack_ahead(spec: str, ahead: int) -> None:
    table = _table(spec, n=2, jobs=9)
    for clock in range(ahead):
        table.answer((clock, 0, 0))
    assert not [address for address in table.out if address[1] == 0]  # it waits
    table.answer((0, 1, 0))
    assert {address for address in table.out if address[1] == 0} == {(ahead, 0, 0)}


def test_asp_waits_for_nobody() -> None:
    table = _table("asp", n=2, jobs=50)
    for clock in range(50):
        table.answer((clock, 0, 0))
    assert table.closes() == []
    assert sorted(table.out) == [(0, 1, 0)]


def test_who_begins_at_once_is_sent_off_together() -> None:
    table = _table("bsp", n=3, jobs=2)
    for worker in (2, 0, 1):
        table.answer((0, worker, 0))
    assert table.sent() == [(0, 0, {0: [0], 1: [1], 2: [2]}), (1, 0, {0: [0], 1: [1], 2: [2]})]


def test_a_clock_of_several_jobs_is_one_task() -> None:
    table = _table("ssp:slack=1,wpc=2", n=2, jobs=5)
    tasks = table.out[0, 1, 0]
    assert [(m.job, m.slot, m.chunks.tolist(), m.cover, m.place) for m in tasks] == [
        (0, 0, [1], 1, 0),
        (1, 1, [1], 1, 0),
    ]
    _go_well(table)
    assert [close.jobs for close in table.closes()] == [(0, 1), (2, 3), (4,)]
    table.check_end()


# ---- R2: what an answer brings ------------------------------------------------------------------


def test_an_answer_brings_its_updates_then_the_clocks_end_then_what_begins() -> None:
    table = _table("ssp:slack=1,wpc=2", n=2, jobs=4)
    assert _kinds(table.answer((0, 0, 0))) == ["Update", "Update", "Dispatch"]
    assert _kinds(table.answer((0, 1, 0))) == ["Update", "Update", "Close", "Dispatch"]
    assert table.policy.rounds == 1


def test_a_clocks_seconds_begin_where_the_last_ones_end() -> None:
    table = _table("ssp:slack=2", n=2, jobs=3)
    for address, at in (((0, 0, 0), 1.0), ((1, 0, 0), 2.0), ((0, 1, 0), 5.0), ((2, 0, 0), 6.0),
                        ((1, 1, 0), 7.5), ((2, 1, 0), 8.0)):  # fmt: skip
        table.answer(address, at=at)
    records = [close.record for close in table.closes()]
    assert [record.duration_s for record in records] == [5.0, 2.5, 0.5]
    assert [record.kappa_s for record in records] == [1.0, 1.0, 4.0]  # from its first task on
    assert [record.responded.all() for record in records] == [True] * 3
    assert {(r.reason, r.waited_out, r.missed) for r in records} == {("everyone", False, 0)}


# ---- R3: failures -------------------------------------------------------------------------------


def test_after_its_attempts_a_worker_hands_its_parts_over_for_good() -> None:
    table = _table("bsp", n=3, jobs=3, rule=ClosingRule(max_attempts=2))
    table.answer((0, 2, 0))
    table.fail((0, 1, 0))
    actions = table.fail((0, 1, 1))
    assert _kinds(actions) == ["Cancel", "Dispatch"]
    assert table.sent()[-1] == (0, 1, {2: [1]})  # to the next one, as another task of its clock
    table.answer((0, 0, 0))
    table.answer((0, 2, 1))
    assert table.sent()[-1] == (1, 0, {0: [0], 2: [2, 1]})  # from now on both in one
    assert table.policy.snapshot()["owners"] == [0, 2, 2]
    responded = [close.record.responded.tolist() for close in table.closes()]
    assert responded == [[True, False, True]]
    _go_well(table)
    table.check_end()


def test_who_takes_over_does_what_is_behind_first() -> None:
    table = _table("asp", n=2, jobs=4, rule=ClosingRule(max_attempts=1))
    for clock in range(3):
        table.answer((clock, 0, 0))
    assert _kinds(table.fail((0, 1, 0))) == ["Cancel"]  # worker 0 is busy
    _go_well(table)
    assert [each for each in table.sent() if each[2].get(0, [0]) != [0]] == [
        (clock, 1, {0: [1]}) for clock in range(4)
    ]
    table.check_end()


def test_parts_go_past_workers_that_fail_themselves() -> None:
    table = _table("bsp", n=4, rule=ClosingRule(max_attempts=2))
    table.fail((0, 1, 0))
    table.fail((0, 0, 0))
    table.fail((0, 0, 1))
    assert table.policy.snapshot()["owners"] == [2, 1, 2, 3]


def test_the_parts_of_workers_that_are_gone_are_spread_over_the_others() -> None:
    table = _table("bsp", n=8, jobs=20, rule=ClosingRule(max_attempts=1))
    _go_on(table, fails=lambda address: address[1] >= 3)
    owners = table.policy.snapshot()["owners"]
    assert sorted(Counter(owners).items()) == [(0, 3), (1, 3), (2, 2)]
    table.check_end()


def test_a_worker_without_a_task_tries_the_part_of_a_dead_one_though_it_failed_before() -> None:
    """Otherwise only the dead worker would be asked, after longer and longer rests."""
    table = _table("asp", n=2, jobs=1, rule=ClosingRule(max_attempts=1))
    table.answer((0, 1, 0))  # its own part is complete
    table.fail((0, 0, 0), flawed=True)
    table.fail((0, 1, 1))
    assert table.sent()[-1] == (0, 1, {0: [0]})  # its part has returned
    table.fail((0, 0, 1))
    assert table.sent()[-1] == (0, 2, {1: [0]})
    table.answer((0, 1, 2))
    table.check_end()


def test_an_answer_makes_up_for_failures() -> None:
    table = _table("asp", n=2, jobs=30, rule=ClosingRule(max_attempts=2))
    for clock in range(30):  # one failure a clock is no reason to end the run
        table.fail((clock, 0, 0))
        table.answer((clock, 0, 1))
    table.fail((0, 1, 0))
    table.fail((0, 1, 1))
    assert table.policy.snapshot()["owners"] == [0, 0]  # and worker 0 is well
    _go_well(table)
    table.check_end()


# ---- R3: return ---------------------------------------------------------------------------------


def _go_on(table: Table, *, fails) -> None:
    """Play on to the end: a task takes about a second, or fails in a hundredth if it is to."""
    due: dict[tuple[int, int, int], tuple[float, bool]] = {}
    while not table.policy.done:
        for address in sorted(table.out.keys() - due.keys()):
            lost = fails(address)
            due[address] = table.now + (0.01 if lost else 0.9 + address[1] / 50), lost
        due = {address: due[address] for address in sorted(table.out)}
        first = min(due, key=due.__getitem__, default=None)
        if first is None or table.policy.wake_at < due[first][0]:
            table.tick()
        else:
            table.now, lost = due[first]
            (table.fail if lost else table.answer)(first)


@pytest.mark.parametrize("spec", ["bsp", "ssp:slack=1", "asp"])
@pytest.mark.parametrize("outage_s", [0.05, 0.3, 1.0, 10.0])
def test_an_outage_takes_nobodys_parts_away(spec: str, outage_s: float) -> None:
    table = _table(spec, n=6, jobs=40)
    _go_on(table, fails=lambda _: 3.0 <= table.now < 3.0 + outage_s)
    table.check_end()
    assert table.policy.snapshot()["owners"] == list(range(6))
    assert table.now < 45 + 2 * outage_s


def test_who_fails_now_and_then_is_done_without_now_and_then() -> None:
    n, jobs = 16, 60
    backend = VirtualBackend(
        n,
        ByRound(latencies_s=np.ones((1, n)), rates=[[0.0]]),
        faults=RandomFaults(seed=1, fail=0.3),
    )
    policy, records = ClockPolicy(n, ClosingRule(), num_jobs=jobs), []
    run(policy, backend, observe=lambda s: records.append(s) if isinstance(s, ports.Close) else 0)
    assert len(set(policy.snapshot()["owners"])) > n / 2
    assert sum(close.record.duration_s for close in records) < 6 * jobs


def test_who_answers_again_has_its_part_again() -> None:
    table = _table("bsp", n=3, jobs=3, rule=ClosingRule(max_attempts=2))
    table.fail((0, 1, 0))
    table.fail((0, 1, 1))
    table.answer((0, 0, 0))
    assert 0 < table.policy.wake_at - table.now <= 0.2
    table.tick()
    assert table.sent()[-1] == (0, 2, {1: []})  # a greeting
    assert _kinds(table.answer((0, 1, 2))) == ["Dispatch"]  # worker 2 had not begun it
    assert table.sent()[-1] == (0, 3, {1: [1]})
    assert table.policy.snapshot()["owners"] == [0, 1, 2]
    _go_well(table)
    assert [close.record.responded.all() for close in table.closes()] == [True] * 3
    table.check_end()


def test_a_part_returns_when_nobody_else_is_at_work_on_it() -> None:
    table = _table("asp", n=2, jobs=3, rule=ClosingRule(max_attempts=1))
    table.answer((0, 0, 0))
    table.fail((0, 1, 0))
    table.answer((1, 0, 0))
    assert table.sent()[-1] == (0, 1, {0: [1]})
    table.tick()
    assert _kinds(table.answer((0, 1, 1))) == []  # well, but worker 0 has its part
    table.answer((0, 0, 1))
    assert table.sent()[-2:] == [(1, 0, {1: [1]}), (2, 0, {0: [0]})]
    _go_well(table)
    table.check_end()


def test_a_part_returns_from_who_fails_at_it() -> None:
    table = _table("bsp", n=2, jobs=2, rule=ClosingRule(max_attempts=1))
    table.fail((0, 1, 0))
    table.answer((0, 0, 0))
    table.tick()
    table.answer((0, 1, 1))
    assert _kinds(table.fail((0, 0, 1))) == ["Cancel", "Dispatch"]
    assert table.sent()[-1] == (0, 2, {1: [1]})
    _go_well(table)
    table.check_end()


@pytest.mark.parametrize("greeted", [False, True], ids=["dead", "can but answer greetings"])
def test_who_has_failed_twenty_times_hardly_disturbs(greeted: bool) -> None:
    table = _table("asp", n=2, jobs=500)
    _go_on(table, fails=lambda a: a[1] == 1 and not (greeted and not table.out[a]))
    table.check_end()
    tasks = [parts[1] for *_, parts in table.sent() if 1 in parts]
    asked = [parts for parts in tasks if parts]
    assert table.now > 450
    assert len(tasks) <= (2 * len(asked) if greeted else 20 + table.now / 30)
    assert len(asked) <= (20 + math.log2(table.now / 30) if greeted else 3)  # it rests ever longer
    assert table.policy.snapshot()["owners"] == [0, 0]


def test_who_was_down_for_long_works_again() -> None:
    down = {0: (5, 105), 1: (155, 255), 2: (305, 405)}
    table = _table("bsp", n=3, jobs=500)
    _go_on(table, fails=lambda a: down[a[1]][0] <= table.now < down[a[1]][1])
    table.check_end()
    assert table.policy.snapshot()["owners"] == [0, 1, 2]
    assert table.now < 550


def test_who_is_well_again_takes_over_from_whoever_is_left_alone() -> None:
    """All are down, and worker 1 is slow to say so: the run has not ended when 2 is well."""
    table = _table("bsp", n=3, jobs=3, rule=ClosingRule(timeout_s=60.0))
    well: list[tuple[int, int, int]] = []
    while table.now < 150 or not well:
        for address in [each for each in sorted(table.out) if each[1] == 0 or table.now < 150]:
            if address[1] != 1:
                table.fail(address)
        table.tick()
        well = [address for address in table.out if address[1] == 2]
    assert not [address for address in table.out if address[1] == 0]  # it is left alone
    table.answer(well[0])
    (address,) = [address for address in table.out if address[1] == 0]  # but now asked, at once
    table.fail(address)
    assert table.policy.snapshot()["owners"] == [2, 1, 2]


def test_who_has_many_parts_can_soon_give_them_back() -> None:
    table = _table("bsp", n=6, jobs=4)
    _go_on(table, fails=lambda address: address[1] != 3)
    table.check_end()
    assert max(len(parts) for *_, sent in table.sent() for parts in sent.values()) == 2


# ---- R4: silence --------------------------------------------------------------------------------


def test_who_is_silent_time_and_again_is_done_without() -> None:
    table = _table("asp", n=2, jobs=1, rule=ClosingRule(timeout_s=5.0, max_attempts=2))
    table.answer((0, 0, 0))
    for _ in range(2):
        table.tick()
    assert table.policy.snapshot()["owners"] == [0, 0]
    table.answer((0, 0, 1))
    table.check_end()


def _go_well_but(table: Table, *, silent) -> None:
    """Have everybody answer, to the end, but these: they never do."""
    while not table.policy.done:
        heard = [address for address in sorted(table.out) if address[1] not in silent]
        if heard:
            table.answer(heard[0])
        else:
            table.tick()


def test_who_has_not_been_silent_is_asked_before_a_run_ends() -> None:
    table = _table("bsp", n=3, jobs=2, rule=ClosingRule(timeout_s=5.0))
    _go_well_but(table, silent=[1])  # the others wait for it, and are not heard meanwhile
    table.check_end()
    assert table.policy.snapshot()["owners"] == [0, 2, 2]


def test_who_answers_a_greeting_is_heard() -> None:
    table = _table("asp", n=2, jobs=2, rule=ClosingRule(timeout_s=5.0, max_attempts=1))
    table.fail((0, 1, 0))
    while (0, 1, 1) not in table.out:
        table.tick()
    while table.now < 5.0:
        table.tick()  # worker 0 is silent, and soon the greeting
    assert (0, 0, 1) in table.out
    table.answer((0, 1, 1), at=5.05)
    while table.now < 9.9:
        table.tick()
    table.tick()  # worker 0 again; worker 1 for the first time
    _go_well(table)
    table.check_end()


def test_who_was_silent_does_one_part_a_task() -> None:
    table = _table("bsp", n=2, jobs=5, rule=ClosingRule(timeout_s=5.0, max_attempts=1))
    table.fail((0, 1, 0))
    table.answer((0, 0, 0))
    _go_on_slowly(table, dead=1)
    table.check_end()
    restarts = [a for a in table.seen if isinstance(a, ports.Restart)]
    assert [restart.worker for restart in restarts] == [0]


def _go_on_slowly(table: Table, *, dead: int) -> None:
    """A part takes 3 s, two of them more than the time limit; a worker is dead."""
    due: dict[tuple[int, int, int], float] = {}
    while not table.policy.done:
        for address, tasks in table.out.items():
            took_s = 0.01 if address[1] == dead else 3.0 * len(tasks)
            due.setdefault(address, table.now + took_s)
        first = min(table.out, key=due.__getitem__, default=None)
        if first is None or table.policy.wake_at < due[first]:
            table.tick()
        else:
            table.now = due[first]
            (table.fail if first[1] == dead else table.answer)(first)


# ---- answers with flaws -------------------------------------------------------------------------


def test_after_flaws_another_worker_is_asked_and_the_part_returns() -> None:
    table = _table("bsp", n=3, jobs=2)
    table.answer((0, 1, 0))
    assert _kinds(table.fail((0, 0, 0), flawed=True)) == ["Cancel", "Dispatch"]
    assert table.sent()[-1] == (0, 1, {1: [0]})  # another is asked, at once
    assert _kinds(table.answer((0, 1, 1))) == ["Update"]
    assert table.policy.snapshot()["owners"] == [0, 1, 2]
    table.answer((0, 2, 0))
    table.answer((1, 0, 0))  # takes it back
    assert _kinds(table.fail((1, 1, 0), flawed=True)) == ["Cancel"]
    _go_well(table)
    table.check_end()


def test_who_is_in_doubt_waits_until_another_has_tried_its_part() -> None:
    table = _table("asp", n=2, jobs=2)
    table.fail((0, 0, 0), flawed=True)  # worker 1 is busy
    table.answer((0, 1, 0))
    assert table.sent()[-1] == (0, 1, {1: [0]})
    assert _kinds(table.answer((0, 1, 1))) == ["Update", "Close", "Dispatch"]
    assert table.sent()[-1] == (1, 0, {0: [0], 1: [1]})
    _go_well(table)
    table.check_end()


@pytest.mark.parametrize("n", [2, 4])
def test_who_is_in_doubt_has_its_part_back_if_no_other_can_try_it(n: int) -> None:
    """Those who have it, or whose own has to be done before, fail from now on."""
    table = _table("asp", n=n, jobs=6)
    table.answer((0, 0, 0))
    table.fail((1, 0, 0), flawed=True)
    while not table.policy.done:
        assert table.now < 100.0
        out = sorted(table.out, key=lambda address: address[1] == 0)
        if not out:
            table.tick()
        elif out[0][1] == 0:
            table.answer(out[0], at=table.now + 1.0)
        else:
            table.fail(out[0])
    table.check_end()


def test_who_is_in_doubt_time_and_again_is_done_without() -> None:
    table, failures = _table("bsp", n=3, jobs=30), 0
    while not table.policy.done:
        address = min(table.out, default=None)
        if address is None:
            table.tick()
        elif address[1] == 1 and table.out[address]:
            failures += 1
            table.fail(address, flawed=True)
        else:
            table.answer(address)
    table.check_end()
    assert table.policy.snapshot()["owners"] == [0, 2, 2]
    assert failures == 20


def test_who_alone_does_not_fail_is_asked_again_for_what_is_in_doubt() -> None:
    table = _table("bsp", n=2, jobs=1)
    table.fail((0, 1, 0))
    assert _kinds(table.fail((0, 0, 0), flawed=True)) == ["Dispatch"]
    assert table.sent()[-1] == (0, 1, {0: [0]})


# ---- fewer jobs, and another master -------------------------------------------------------------


def test_a_restored_policy_asks_for_what_is_not_applied() -> None:
    table = _table("ssp:slack=1", n=2, jobs=3)
    table.answer((0, 0, 0))
    table.answer((0, 1, 0))
    table.answer((1, 0, 0))
    table.resume()
    assert table.sent()[-2:] == [(2, 0, {0: [0]}), (1, 0, {1: [1]})]
    while not table.policy.done:
        table.answer(max(table.out))
    table.check_end()
    assert all(close.record.responded.all() for close in table.closes())


def test_a_restored_policy_knows_who_has_whose_parts() -> None:
    table = _table("bsp", n=3, jobs=2, rule=ClosingRule(max_attempts=1))
    table.fail((0, 1, 0))
    table.fail((0, 0, 0), flawed=True)
    before = table.policy.snapshot()
    table.resume()
    assert table.policy.snapshot() == before
    assert before["owners"] == [2, 2, 2]
    assert table.sent()[-1] == (0, 0, {0: [], 1: [], 2: [2, 0]})  # two parts a task
    _go_well(table)
    table.check_end()


def test_a_restored_policy_greets_who_had_lost_its_part() -> None:
    table = _table("bsp", n=3, jobs=3, rule=ClosingRule(max_attempts=1))
    table.fail((0, 1, 0))
    table.resume()
    assert table.sent()[-1] == (0, 0, {1: [], 0: [0], 2: [2, 1]})
    table.answer((0, 2, 0))
    table.answer((0, 1, 0))
    assert table.policy.snapshot()["owners"] == [0, 1, 2]
    _go_well(table)
    table.check_end()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"completed": [0, 0]}, ValueError),
        ({"owners": [0, 1, 3]}, ValueError),
        ({"completed": [0, 0, -1]}, ValueError),
        ({"jobs": "three"}, ValueError),
    ],
)
def test_a_snapshot_of_something_else_is_refused(change, error) -> None:
    policy = ClockPolicy(3, ClosingRule(), num_jobs=3)
    with pytest.raises(error):
        policy.restore(policy.snapshot() | change)


def test_shares_that_are_not_one_a_part_are_refused() -> None:
    with pytest.raises(ValueError, match="`shares` must have shape"):
        ClockPolicy(3, ClosingRule(), num_jobs=1, shares=np.ones(2))


@dataclass(frozen=True)
class Never(Barrier):
    """Lets clock 0 begin, and no other."""

    slack = 0

    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:  # noqa: ARG002
        return clock == 0


def test_a_barrier_that_lets_nobody_begin_is_one_line() -> None:
    policy = ClockPolicy(2, ClosingRule(), num_jobs=2, barrier=Never())
    pace = ByRound(latencies_s=[[1.0, 2.0]], rates=[[0.0]])
    with pytest.raises(ScheduleError, match=r"Never\(\) lets no part begin: all wait at clock 1"):
        run(policy, VirtualBackend(2, pace))

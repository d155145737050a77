"""Dealing: under every order of arrivals, copies and failures each piece counts exactly once."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc import ports
from seqgc.errors import ParameterError, ScheduleError, WireError, WorkerError
from seqgc.rounds import ClosingRule, DealingPolicy
from seqgc.schemes import Deal
from tests.kit import SOAK

NO_LIMIT = ClosingRule()


@dataclass
class Table:
    """Plays the loop: keeps what is out, feeds events, and notes which results it would add up."""

    policy: DealingPolicy
    now: float = 0.0
    out: dict[tuple[int, int, int], tuple[ports.MiniTask, ...]] = field(default_factory=dict)
    late: dict[tuple[int, int, int], tuple[ports.MiniTask, ...]] = field(default_factory=dict)
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)
    givers: dict[tuple[int, int], int] = field(default_factory=dict)
    may_hang: bool = False
    hung: set[int] = field(default_factory=set)  # workers that never answer again
    seen: list[ports.Action] = field(default_factory=list)

    def begin(self) -> None:
        self._do(self.policy.start())

    def arrive(self, address) -> list[ports.Action]:
        tasks = self.out.pop(address, None) or self.late.pop(address, ())
        round, worker, attempt = address
        event = ports.Arrival(round=round, worker=worker, attempt=attempt, at=self.now, results={})
        actions = list(self.policy.on(event))
        if not any(isinstance(a, ports.Drop) for a in actions):
            self._count(worker, tasks)
        self._do(actions)
        return actions

    def come(self, worker) -> None:
        """Let a worker answer its greeting, and the second one that tells the round trip."""
        while greetings := [a for a, tasks in self.out.items() if a[1] == worker and not tasks]:
            self.arrive(greetings[0])

    def fail(self, address) -> list[ports.Action]:
        self.late[address] = self.out.pop(address, ())
        round, worker, attempt = address
        event = ports.Failure(
            round=round, worker=worker, attempt=attempt, at=self.now, reason="it fell"
        )
        actions = list(self.policy.on(event))
        self._do(actions)
        return actions

    def can_answer(self) -> list[tuple[int, int, int]]:
        return sorted(address for address in self.out if address[1] not in self.hung)

    def tick(self) -> None:
        assert math.isfinite(self.policy.wake_at), "nothing will ever happen"
        self.now = max(self.now, self.policy.wake_at)
        self._do(self.policy.on(ports.Tick(at=self.policy.wake_at)))

    def _count(self, worker, tasks) -> None:
        for task in tasks:
            self.taken[task.job, task.place] += 1
            self.givers[task.job, task.place] = worker

    def _do(self, actions) -> None:
        for action in actions:
            self.seen.append(action)
            match action:
                case ports.Dispatch():
                    for worker, tasks in action.assignment.items():
                        self.out[action.round, worker, action.attempt] = tasks
                    event = ports.Dispatched(
                        round=action.round,
                        attempt=action.attempt,
                        workers=tuple(action.assignment),
                        left_at=tuple(self.now for _ in action.assignment),
                    )
                    assert not self.policy.on(event)
                case ports.Cancel(round=round, workers=workers):
                    for address in [a for a in self.out if a[0] == round and a[1] in workers]:
                        self.late[address] = self.out.pop(address)
                case ports.Finish(job=job):
                    decoding = action.decoding()
                    assert decoding.job == job
                    for term in decoding.terms:
                        assert (term.round, term.weight) == (job, 1.0)
                        assert self.givers[job, term.slot] == term.worker

    def closed(self) -> list[int]:
        return [a.record.round for a in self.seen if isinstance(a, ports.Close)]


@st.composite
def runs(draw):
    n = draw(st.integers(1, 5))
    in_flight, num_jobs = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    deal = Deal(n=n, pieces=draw(st.none() | st.integers(1, 7)))
    greet = "rounds" if in_flight == 1 and draw(st.booleans()) else "once"
    limit_s = draw(st.sampled_from([5.0, math.inf]))
    policy = DealingPolicy(
        deal,
        ClosingRule(timeout_s=limit_s),
        num_jobs=num_jobs,
        in_flight=in_flight,
        greet=greet,
    )
    may_hang = math.isfinite(limit_s)  # else a run may be silent for ever
    return deal.fitted(in_flight), num_jobs, Table(policy, may_hang=may_hang)


CHOICES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=80)


@settings(max_examples=20_000 if SOAK else 60, deadline=None)
@given(runs(), CHOICES)
def test_each_piece_counts_exactly_once_whatever_happens(run_, choices):
    deal, num_jobs, table = run_
    table.begin()
    try:
        for choice, which in choices:
            disturb(table, choice, which)
        while not table.policy.done:  # then all who can answer do, or the run could not end
            table.now += 0.1
            table.arrive(min(able)) if (able := table.can_answer()) else table.tick()
    except WorkerError:
        assert choices  # nobody answered for too long, or everybody failed time and again
        return
    assert table.closed() == list(range(num_jobs))
    pieces = range(len(deal.chunk_fractions))
    assert table.taken == {(job, piece): 1 for job in range(num_jobs) for piece in pieces}


def disturb(table: Table, choice: int, which: int) -> None:
    """Let something happen: an answer, a failure, silence, time passing."""
    if table.policy.done:
        return
    table.now += (0.0, 0.1, 1.0)[which % 3]
    able = table.can_answer()
    kinds = ["arrive", "fail"] * bool(able) + ["late"] * bool(table.late)
    kinds += ["hang"] * (table.may_hang and bool(able))
    kinds += ["tick"] * math.isfinite(table.policy.wake_at)
    kind = kinds[choice % len(kinds)]
    if kind == "tick":
        table.tick()
        return
    addresses = sorted(table.late) if kind == "late" else able
    address = addresses[which % len(addresses)]
    if kind == "hang":
        table.hung.add(address[1])
    elif kind == "fail":
        table.fail(address)
    else:
        table.arrive(address)


def played(
    deal: Deal,
    *,
    speeds,
    rule=NO_LIMIT,
    dead=(),
    hangs=(),
    fails=(),
    falls=lambda _now, _worker, _is_piece: False,
    rtt_s=0.0,
    watch=None,
    **options,
):
    """Run a policy in virtual time: a piece takes ``share / speed`` seconds, and ``rtt_s``.

    Workers in ``dead`` never answer. Of the pieces, numbered as they are sent, those in ``fails``
    fail, and those in ``hangs`` are the last that their workers hear of, but for one worker. What
    ``falls`` says of a task as it is sent fails within 50 ms. ``watch`` sees the policy before each
    event.
    """
    policy = DealingPolicy(deal, rule, **options)
    table, busy_until, due = Table(policy), [0.0] * deal.n, {}
    dead, failing, sent = set(dead), set(), itertools.count()
    shares = deal.fitted(options.get("in_flight", 1)).chunk_fractions
    table.begin()
    while not policy.done:
        if watch is not None:
            watch(policy)
        for address in [a for a in table.out if a not in due]:
            worker, tasks = address[1], table.out[address]
            number = next(sent) if tasks else -1
            if number in fails:
                failing.add(address)
            if number in hangs and len(dead) < deal.n - 1:
                dead.add(worker)
            if falls(table.now, worker, bool(tasks)):
                failing.add(address)
                due[address] = table.now + 0.05
                continue
            work = sum(shares[task.place] / speeds[worker] for task in tasks)
            busy_until[worker] = max(busy_until[worker], table.now + rtt_s / 2) + work
            due[address] = math.inf if worker in dead else busy_until[worker] + rtt_s / 2
        waiting = {a: at for a, at in due.items() if a in table.out and math.isfinite(at)}
        first = min(waiting, key=lambda a: (waiting[a], a), default=None)
        if first is None or policy.wake_at < waiting[first]:
            table.tick()
            continue
        table.now = due.pop(first)
        table.fail(first) if first in failing else table.arrive(first)
    assert set(table.taken.values()) == {1}
    return table


def test_a_job_of_equal_workers_takes_its_share_of_the_work():
    table = played(Deal(n=4, pieces=4), speeds=[1.0] * 4, num_jobs=5)
    assert table.now == pytest.approx(5 / 4)
    assert not any(isinstance(a, ports.Drop) for a in table.seen)


def test_fast_workers_get_more_pieces():
    table = played(Deal(n=4, pieces=40), speeds=[1.0, 1.0, 1.0, 3.0], num_jobs=1)
    shares = Deal(n=4, pieces=40).chunk_fractions
    done = sum(shares[piece] for (_, piece), worker in table.givers.items() if worker == 3)
    assert done == pytest.approx(0.5, abs=0.05)
    assert table.now == pytest.approx(1 / 6, rel=0.1)


def test_a_dead_worker_costs_nothing_but_its_share():
    table = played(Deal(n=4, pieces=12), speeds=[1.0] * 4, dead={2}, num_jobs=10)
    assert set(table.givers.values()) == {0, 1, 3}
    assert table.now == pytest.approx(10 / 3, rel=0.1)


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize(
    ("n", "broken", "crashes"),
    [(2, {0}, 0.0), (4, {0}, 0.0), (4, {0, 1, 3}, 0.0), (2, {0}, 0.2), (4, {0, 1}, 0.2)],
)
def test_who_answers_does_all_that_the_others_lose(n, broken, crashes, in_flight):
    """Though a piece takes half the time limit, and those who lose it are free again at once.

    Also where each other task crashes with some probability.
    """
    deal, jobs, rng = Deal(n=n, pieces=8 * n), 3, np.random.default_rng(0)
    job_s = 30 / deal.chunk_fractions[0]
    table = played(
        deal,
        speeds=[1 / job_s] * n,
        rule=ClosingRule(timeout_s=60.0),
        falls=lambda _, worker, is_piece: is_piece and (worker in broken or rng.random() < crashes),
        num_jobs=jobs,
        in_flight=in_flight,
    )
    assert table.closed() == list(range(jobs))
    assert set(table.givers.values()) == set(range(n)) - broken
    assert table.now < (1.1 + 2 * crashes) * jobs * job_s / (n - len(broken))


@pytest.mark.parametrize("n", [1, 2])
def test_an_outage_that_is_shorter_than_the_time_limit_ends_no_run(n):
    """Where messages take long, so that workers have several tasks, and these fail together."""
    for begin in np.linspace(6, 8, 12):
        table = played(
            Deal(n=n, pieces=3 * n),
            speeds=[1 / (0.6 * n)] * n,
            rtt_s=1.0,
            rule=ClosingRule(timeout_s=60.0),
            falls=lambda now, *_, begin=begin: begin <= now < begin + 50,
            num_jobs=15,
        )
        assert table.closed() == list(range(15))
        assert table.now > begin + 50


def test_a_piece_and_its_copy_that_fail_together_are_tried_again_once():
    table = Table(DealingPolicy(Deal(n=2, pieces=1), ClosingRule(timeout_s=60.0), num_jobs=1))
    table.begin()
    failures = 3  # after these the next try waits
    while len(pieces := [address for address, tasks in table.out.items() if tasks]) < 2:
        if greetings := [address for address, tasks in table.out.items() if not tasks]:
            table.arrive(greetings[0])
        elif pieces and failures:
            table.fail(pieces[0])
            failures -= 1
        else:
            table.tick()
    together_at = table.now
    table.fail(pieces[0])
    table.fail(pieces[1])
    with pytest.raises(WorkerError, match="piece 0 has failed 20 times"):
        fail_all_pieces(table)
    assert table.now > together_at + 50  # as one that fails alone


def test_a_worker_is_dealt_again_what_it_lost_when_the_other_hangs():
    """Which is known after the time limit at the latest."""
    table = played(
        Deal(n=2, pieces=2),
        speeds=[1.0] * 2,
        rule=ClosingRule(timeout_s=60.0),
        dead={1},
        fails={0},
        num_jobs=3,
    )
    assert set(table.givers.values()) == {0}
    assert table.now < 70


def test_an_overdue_piece_is_copied_and_the_first_copy_counts():
    slow = played(Deal(n=4, pieces=8), speeds=[1.0, 1.0, 1.0, 0.001], num_jobs=6)
    assert slow.now < 6 / 3 * 1.5  # the first piece of the slow one alone takes 125 s
    cancels = [a for a in slow.seen if isinstance(a, ports.Cancel)]
    assert any(3 in cancel.workers for cancel in cancels)


@settings(max_examples=20_000 if SOAK else 25, deadline=None)
@given(
    st.integers(2, 5),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.05]),
    st.sets(st.integers(12, 60), max_size=4),
    st.sets(st.integers(12, 60), max_size=12),
)
def test_no_time_limit_is_needed_where_others_go_on(n, in_flight, rtt_s, hangs, fails):
    """Once it is known what a piece takes, those who hang are not waited for, whatever fails."""
    deal = Deal(n=n, pieces=10 * n)
    options = {"in_flight": in_flight, "rtt_s": rtt_s, "num_jobs": 2}
    table = played(deal, speeds=[1.0] * n, hangs=hangs, fails=fails, **options)
    assert table.closed() == [0, 1]


def test_a_piece_is_dealt_again_if_its_worker_hangs_and_its_copy_fails():
    deal, hung = Deal(n=4, pieces=12), 8
    once = sent_places(played(deal, speeds=[1.0] * 4, hangs={hung}, num_jobs=1))
    copy = once.index(once[hung], hung + 1)
    twice = sent_places(played(deal, speeds=[1.0] * 4, hangs={hung}, fails={copy}, num_jobs=1))
    assert once[: copy + 1] == twice[: copy + 1]
    assert once[hung] in twice[copy + 1 :]


def sent_places(table: Table) -> list[int]:
    dispatches = [action for action in table.seen if isinstance(action, ports.Dispatch)]
    assignments = [tasks for each in dispatches for tasks in each.assignment.values()]
    return [task.place for tasks in assignments for task in tasks]


def test_each_task_says_the_load_of_its_piece():
    deal = Deal(n=3, pieces=7)
    shares = deal.chunk_fractions
    for action in played(deal, speeds=[1.0] * 3, num_jobs=2).seen:
        if isinstance(action, ports.Dispatch):
            tasks = [action.assignment.get(worker, ()) for worker in range(3)]
            asked = [sum(shares[each.place] for each in of_worker) for of_worker in tasks]
            assert [action.load_of(worker) for worker in range(3)] == asked


@pytest.mark.parametrize(
    ("num_jobs", "in_flight", "fails"), [(600, 1, range(0, 3000, 3)), (600, 4, ())]
)
def test_a_policy_holds_no_more_after_more_jobs(num_jobs, in_flight, fails):
    """What is over is forgotten, whoever was slow, and whatever failed."""
    sizes, events = [], itertools.count()

    def watch(policy):
        if next(events) % 10 == 0:
            sizes.append(len(pickle.dumps(policy)))

    played(
        Deal(n=4, pieces=None if in_flight > 1 else 2),
        speeds=[1.0, 0.7, 0.9, 0.6],
        fails=fails,
        num_jobs=num_jobs,
        in_flight=in_flight,
        watch=watch,
    )
    third = len(sizes) // 3
    assert max(sizes[2 * third :]) < 1.1 * max(sizes[third : 2 * third])  # 1.5 if all is kept


def test_a_copy_that_comes_second_is_dropped():
    """The worker cannot be called back, because it has another piece of the job as well."""
    table = played(Deal(n=2, pieces=4), speeds=[1.0, 0.1], rtt_s=0.1, num_jobs=6)
    drops = [action for action in table.seen if isinstance(action, ports.Drop)]
    assert [drop.reason for drop in drops] == ["another copy of its piece came first"]


def test_a_worker_has_its_next_piece_before_it_has_done_the_last():
    """Nobody says how long a message takes: it is learned."""
    rtt_s = 0.1
    table = played(Deal(n=2, pieces=2), speeds=[1.0] * 2, rtt_s=rtt_s, num_jobs=20, in_flight=4)
    assert table.now < 20 / 2 + 6 * rtt_s  # not 20: once for each piece of a worker


def test_everybody_has_a_piece_before_anybody_has_two():
    """Where answers may be long on their way, as long as nobody knows what work takes."""
    options = {"speeds": [1.0] * 4, "rtt_s": 0.1, "num_jobs": 1, "greet": "rounds"}
    assert set(played(Deal(n=4, pieces=4), **options).givers.values()) == {0, 1, 2, 3}


def test_models_in_turn_keep_workers_busy_over_the_ends_of_jobs():
    speeds = [1.0, 1.0, 1.0, 0.5]
    one = played(Deal(n=4, pieces=4), speeds=speeds, num_jobs=12)
    four = played(Deal(n=4, pieces=4), speeds=speeds, num_jobs=12, in_flight=4)
    assert four.now < 0.8 * one.now
    begun, closed = set(), 0
    for action in four.seen:
        match action:
            case ports.Dispatch(assignment=assignment):
                begun |= {task.job for tasks in assignment.values() for task in tasks}
                assert max(begun, default=0) < closed + 4
            case ports.Close():
                closed += 1


def test_a_worker_stays_with_a_model_as_long_as_it_has_pieces():
    table = played(Deal(n=2, pieces=20), speeds=[1.0, 1.0], num_jobs=2, in_flight=2)
    jobs = [job for (job, _), worker in table.givers.items() if worker == 0]
    assert sum(a != b for a, b in itertools.pairwise(jobs)) <= 2


def test_every_round_greets_everybody_where_a_round_is_an_invocation():
    table = played(Deal(n=3, pieces=6), speeds=[1.0] * 3, num_jobs=4, greet="rounds")
    greetings = [
        action for action in table.seen
        if isinstance(action, ports.Dispatch) and not any(action.assignment.values())
    ]  # fmt: skip
    assert [(g.round, set(g.assignment)) for g in greetings if g.attempt == 0] == [
        (job, {0, 1, 2}) for job in range(4)
    ]
    assert len(greetings) - 4 < 5 + 3  # second ones tell the round trip, and are few


def fail_all_pieces(table: Table) -> None:
    while not table.policy.done:
        pieces = [a for a, tasks in table.out.items() if tasks]
        if pieces:
            table.fail(pieces[0])
        elif table.out:
            table.arrive(next(iter(table.out)))
        else:
            table.tick()


def test_a_piece_that_fails_everywhere_ends_the_run_with_its_cause():
    table = Table(DealingPolicy(Deal(n=3, pieces=1), NO_LIMIT, num_jobs=1))
    table.begin()
    with pytest.raises(WorkerError, match=r"job 0 .* piece 0 has failed 20 times.*: it fell"):
        fail_all_pieces(table)
    assert table.now > 20  # an outage may have been meanwhile


def test_silence_has_a_worker_replaced_and_ends_the_run_at_last():
    table = Table(DealingPolicy(Deal(n=2, pieces=2), ClosingRule(timeout_s=10), num_jobs=1))
    table.begin()
    table.arrive((0, 1, 0))
    table.tick()
    assert table.now == 10
    assert [a.worker for a in table.seen if isinstance(a, ports.Restart)] == [0, 1]
    table.tick()
    with pytest.raises(WorkerError, match=r"within 3 time limits.*silent for 10 s"):
        table.tick()
    assert table.now == 30


def test_chunks_without_data_points_are_not_dealt():
    empty = np.array([False, True, False])
    policy = DealingPolicy(Deal(n=2, pieces=3), NO_LIMIT, num_jobs=1, empty=empty)
    table = Table(policy)
    table.begin()
    while table.out and not policy.done:
        table.arrive(next(iter(table.out)))
    assert policy.done
    assert set(table.taken) == {(0, 0), (0, 2)}


def test_what_cannot_be_is_refused():
    deal = Deal(n=2)
    with pytest.raises(ParameterError, match="`greet` must be 'once', or 'rounds' with one job"):
        DealingPolicy(deal, NO_LIMIT, num_jobs=1, in_flight=2, greet="rounds")
    with pytest.raises(ParameterError, match="`pieces` must satisfy 1 <= pieces"):
        Deal(n=2, pieces=-1)
    policy = DealingPolicy(deal, NO_LIMIT, num_jobs=1)
    policy.start()
    with pytest.raises(WireError, match="0 <= worker < 2"):
        policy.on(ports.Failure(round=0, worker=2, attempt=0, at=0.0, reason="?"))
    with pytest.raises(ScheduleError, match="timetable"):
        policy.on(ports.Timetable(round=0, at=0.0, times=np.ones(2)))

"""Late answers in a resumed run: those on record are taken again, and no round dies for one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pytest

from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Action, Arrival, Close, Event, LateAnswer, RoundRecord, Task
from seqgc.rounds import ClosingRule, PastRound, RoundPolicy, WaitOut
from seqgc.schemes import Scheme, parse_scheme
from tests.kit import SOAK
from tests.rounds.crew import Crew, What

RULE = ClosingRule(timeout_s=60.0)
TAKING = [
    "ra-sgc:s=1,q=0.5,r=1",
    "ra-sgc:s=1,q=0.3,r=1,p=3",
    "ra-sgc:s=0,q=0.6,r=2",
    "m-sgc-rep:B=1,W=2,lam=1,late=take",
    "m-sgc:B=2,W=3,lam=2,late=take",
    "sr-sgc-rep:B=2,W=3,lam=2,late=take",
    "sr-sgc:B=1,W=2,lam=3,late=take",
]
"""Of six workers."""


def rounds_of(
    scheme: Scheme,
    what: What,
    *,
    jobs: int = 4,
    rule: ClosingRule = RULE,
    closed: Sequence[RoundRecord] = (),
    again: Sequence[RoundRecord] = (),
    into: list[RoundRecord] | None = None,
) -> list[RoundRecord]:
    """Return how rounds end after those that are ``closed``, and may end ``again`` as on record.

    Should one not end at all, no answer that has come may be of use still, and those that did are
    ``into``.
    """
    records, came = [] if into is None else into, list[LateAnswer]()

    def observe(seen: Event | Action) -> None:
        if isinstance(seen, Close):
            records.append(seen.record)
        elif isinstance(seen, Arrival):
            came.append((seen.round, seen.worker))

    schedule = scheme.start(jobs)
    for each in closed:
        for late in each.late:
            schedule.take_late(*late)
        schedule.close_round(each.responded)
    past = {each.round: PastRound(responded=each.responded, late=each.late) for each in again}
    policy = RoundPolicy(schedule, rule, again=past)
    try:
        run(policy, Crew(what), observe=observe)
    except WorkerError:
        assert [each for each in came if schedule.awaits(*each)] == []
        raise
    return records


def on_record(round: int, *workers: int, late: tuple[LateAnswer, ...] = ()) -> RoundRecord:
    """Return a round that these of four workers closed."""
    return RoundRecord(
        round=round,
        responded=np.isin(np.arange(4), workers),
        kappa_s=1.0,
        duration_s=1.0,
        reason="tolerance",
        waited_out=False,
        late=late,
    )


@pytest.mark.parametrize(("gone_s", "most_s"), [(-1.0, 5.0), (math.inf, 25.0)])
def test_a_late_answer_that_is_here_is_taken_when_who_is_on_record_is_gone(
    gone_s: float, most_s: float
) -> None:
    """Worker 1's answer to round 0 comes before its end this time, and round 1 needs it."""

    def what(task: Task) -> float:
        if task.round == 0:
            return {0: 1.1, 1: 1.0}.get(task.worker, math.inf)
        return gone_s if task.worker == 0 else 1.0

    scheme = parse_scheme("ra-sgc:s=1,q=0.5,r=1", n=4)
    again = [on_record(round, 0) for round in range(3)]
    _, second, *_ = rounds = rounds_of(scheme, what, again=again)
    assert len(rounds) == 5
    assert second.late == ((0, 1),)
    assert second.duration_s < most_s


@pytest.mark.parametrize(("attempts", "late_s"), [(1, -1.5), (1, -0.5), (3, -1.5), (3, -0.2)])
def test_a_late_answer_on_record_that_fails_is_not_waited_for(attempts: int, late_s: float) -> None:
    """Be it while its own round is open, so that the task may be sent again, or later."""

    def what(task: Task) -> float:
        if task.round == 0:
            return {0: 1.0, 1: late_s}.get(task.worker, math.inf)
        return 1.0

    scheme, rule = parse_scheme("ra-sgc:s=1,q=0.5,r=1", n=4), ClosingRule(max_attempts=attempts)
    again = [on_record(0, 0), on_record(1, 1, 2, 3, late=((0, 1),))]
    first, second, *rest = rounds_of(scheme, what, rule=rule, again=again)
    assert first.reason == "again"
    assert second.duration_s == 1.0
    assert len(rest) == 3


@pytest.mark.parametrize("fails", [0.0, 0.1])
@pytest.mark.parametrize("spec", TAKING)
def test_a_resumed_run_ends_for_want_of_nothing_that_is_here(spec: str, fails: float) -> None:
    """A worker of the record is gone, from some round on, and others are slow in other rounds.

    RA-SGC with two holders bears that wherever the run goes on. M-SGC and SR-SGC do not always: a
    worker that is gone for good, and whoever the record has as stragglers before, may be more than
    they promise to bear. Then a run that was never interrupted ends as well after such rounds.
    """
    scheme, jobs, same = parse_scheme(spec, n=6), 10, 0
    for seed in range(72 if SOAK else 4):
        rng = np.random.default_rng(seed)
        waits: list[WaitOut] = ["feasible", "conform", "all"]
        rule = ClosingRule(mu=float(rng.choice([0, 0.5])), wait_out=waits[seed % 3], timeout_s=30)
        first = rounds_of(scheme, times(seed), jobs=jobs, rule=rule)
        cut = int(rng.integers(len(first)))
        who, at, dies = int(rng.integers(6)), int(rng.integers(cut, len(first))), bool(seed % 2)
        gone = {who: at}
        now = times(seed + 10**6, gone=gone, gone_s=-0.1 if dies else math.inf, fails=fails)
        before, after = first[:cut], first[cut:]
        second = list[RoundRecord]()
        try:
            rounds_of(scheme, now, jobs=jobs, rule=rule, closed=before, again=after, into=second)
            same += sum(each.reason == "again" for each in second)
        except WorkerError:
            if not fails:
                assert not spec.startswith("ra-sgc:s=1"), (seed, gone)
                repeated = [each for each in second if each.reason == "again"]
                with pytest.raises(WorkerError):
                    rounds_of(scheme, now, jobs=jobs, rule=rule, closed=[*before, *repeated])
    assert same or fails, "no round closed as it had before"


def times(
    seed: int,
    *,
    gone: Mapping[int, int] = MappingProxyType({}),
    gone_s: float = math.inf,
    fails: float = 0.0,
) -> What:
    """Return tasks' seconds, the same for the same task; workers are ``gone`` from a round on."""

    def what(task: Task) -> float:
        if task.round >= gone.get(task.worker, math.inf):
            return gone_s
        rng = np.random.default_rng([seed, task.round, task.worker, task.attempt])
        seconds = float(rng.choice([0.5, 1, 1.5, 2, 3, 8], p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.1]))
        return -seconds if rng.random() < fails else seconds

    return what

"""A master that is busy or stopped for a while: whom it did not hear, it does not blame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from seqgc.backends import EventBackend, failure_of
from seqgc.clocks import ClockPolicy
from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Arrival, Close, Dispatch, Dispatched, Failure, Policy, Seen, Task, Tick
from seqgc.rounds import ClosingRule, DealingPolicy, RoundPolicy
from seqgc.schemes import Deal, Uncoded
from seqgc.shards import ShardPolicy
from seqgc.testing import HandWoundClock
from tests.kit import left

N = 4
RULE = ClosingRule(timeout_s=3.0, wait_out="all")


class Crew(EventBackend):
    """Each task takes a second, or for ever if it ``hangs``; answers are stamped when read.

    At ``away_at`` the master is stopped for ``away_s``, in its waiting or wherever it is then; and
    the workers too, if ``all_stop``.
    """

    _reads_elsewhere = False

    def __init__(
        self,
        *,
        away_at: float,
        away_s: float,
        hangs: Callable[[Task], bool] = lambda _: False,
        all_stop: bool = False,
    ) -> None:
        self.clock = HandWoundClock(0.0)
        super().__init__(N, messaging=None, clock=self.clock)
        self._away_at, self._away_s, self._hangs = away_at, away_s, hangs
        self._all_stop = all_stop
        self._out: list[tuple[float, Task]] = []
        self.restarted: list[tuple[int, float]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:  # noqa: ARG002
        left_at = []
        for task in tasks:
            self._pass(0.0)
            left_at.append(self.clock.now())
            if not self._hangs(task):
                self._out.append((left_at[-1] + 1.0, task))
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Nobody listens."""

    def restart(self, worker: int) -> None:
        self.restarted.append((worker, self.clock.now()))
        lost = [task for _, task in self._out if task.worker == worker]
        self._out = [each for each in self._out if each[1].worker != worker]
        for each in lost:
            address = each.round, each.worker, each.attempt
            failure = failure_of(address, at=self.clock.now(), reason="restarted")
            self._tell(failure, is_own=True)

    def _collect(self, timeout_s: float) -> None:
        self._out.sort(key=lambda each: each[0])
        if timeout_s:
            wait_s = self._out[0][0] - self.clock.now() if self._out else timeout_s
            if self._pass(max(0.0, min(timeout_s, wait_s))):
                return  # as epoll sees nothing once its time is over
        now = self.clock.now()
        for at, task in self._out:
            if at <= now:
                about = {"round": task.round, "worker": task.worker, "attempt": task.attempt}
                self._tell(Arrival(**about, at=now, results={}))
        self._out = [each for each in self._out if each[0] > now]

    def _pass(self, seconds: float) -> bool:
        """Let time pass; return whether the master was stopped meanwhile."""
        now = self.clock.now()
        if now + seconds < self._away_at or not self._away_s:
            self.clock.wind(seconds)
            return False
        self.clock.wind(max(0.0, self._away_at - now) + self._away_s)
        if self._all_stop:
            self._out = [(at + self._away_s, task) for at, task in self._out]
        self._away_s = 0.0
        return True

    def _end(self) -> None:
        """Nothing to release."""


POLICIES: dict[str, Callable[[], Policy]] = {
    "rounds": lambda: RoundPolicy(Uncoded(n=N).start(4), RULE),
    "deal": lambda: DealingPolicy(Deal(n=N, pieces=8), RULE, num_jobs=4, in_flight=2),
    "clocks": lambda: ClockPolicy(N, RULE, num_jobs=4),
    "shards": lambda: ShardPolicy(N, RULE, num_jobs=4),
}


@pytest.mark.parametrize("away_at", [0.5, 1.0, 1.5, 2.0, 2.7])
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_is_blamed_for_what_the_master_did_not_read(policy: str, away_at: float) -> None:
    backend, seen = Crew(away_at=away_at, away_s=7.0), list[Seen]()
    run(POLICIES[policy](), backend, observe=seen.append)
    assert not backend.restarted
    assert not [each for each in seen if isinstance(each, Failure)]
    assert sum(isinstance(each, Close) for each in seen) == 4
    times = [each.at for each in seen if isinstance(each, Arrival | Dispatched)]
    assert times == sorted(times)


@pytest.mark.parametrize("away_at", [0.5, 1.5, 2.7])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_goes_on_if_all_of_it_was_stopped(policy: str, away_at: float) -> None:
    """Nothing is there to be read then, and who is asked again has time to answer."""
    backend, seen = Crew(away_at=away_at, away_s=70.0, all_stop=True), list[Seen]()
    run(POLICIES[policy](), backend, observe=seen.append)
    assert sum(isinstance(each, Close) for each in seen) == 4


def test_a_worker_that_hangs_is_found_within_three_limits_all_the_same() -> None:
    backend = Crew(away_at=0.0, away_s=0.0, hangs=lambda task: task.worker == 2)
    with pytest.raises(WorkerError, match="worker 2 did not answer, though asked three times"):
        run(POLICIES["rounds"](), backend)
    assert backend.restarted == [(2, 3.0), (2, 6.0)]
    assert backend.clock.now() == 9.0


def test_who_is_asked_again_has_the_whole_limit_though_the_master_was_stopped_before() -> None:
    def hangs(task: Task) -> bool:
        return task.worker == 2 and not task.attempt

    backend = Crew(away_at=1.5, away_s=7.0, hangs=hangs)
    run(RoundPolicy(Uncoded(n=N).start(1), RULE), backend)
    assert backend.restarted == [(2, 8.5)]
    assert backend.clock.now() == 9.5


def test_tasks_that_leave_after_the_others_have_the_whole_limit_too() -> None:
    policy = RoundPolicy(Uncoded(n=N).start(1), RULE)
    policy.start()
    policy.on(replace(left(0, N, at=10.0), left_at=(10.0, 10.0, 15.0, 15.5)))
    assert policy.wake_at == 18.5
    (*restarts, again) = policy.on(Tick(at=18.5))
    assert len(restarts) == N
    assert isinstance(again, Dispatch)
    policy.on(left(0, N, at=18.5, attempt=1))
    assert policy.wake_at == 21.5


def test_what_is_sent_again_after_a_failure_or_takes_a_moment_moves_no_limit() -> None:
    for left_s, limit_s in ((3.2, 6.0), (5.0, 8.0)):
        policy = RoundPolicy(Uncoded(n=N).start(1), RULE)
        policy.start()
        policy.on(left(0, N, at=0.0))
        policy.on(Tick(at=3.0))
        policy.on(left(0, N, at=left_s, attempt=1))
        assert policy.wake_at == limit_s
        policy.on(Failure(round=0, worker=1, attempt=1, at=left_s + 0.1, reason="gone"))
        policy.on(Tick(at=policy.wake_at))
        policy.on(Dispatched(round=0, attempt=2, workers=(1,), left_at=(left_s + 2.5,)))
        assert policy.wake_at == limit_s

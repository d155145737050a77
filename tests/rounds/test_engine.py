"""The engine: the states of a worker's task, and the transitions that are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from seqgc import ports
from seqgc.errors import ScheduleError
from seqgc.ports import Action, Dispatch
from seqgc.rounds import ClosingRule, Engine, EngineTask, Loss, part_task


class Numbers(Engine[int]):
    """A strategy for two workers, whose work is numbered; a test sets what it does with losses."""

    def __init__(self, *, ahead: int = 1) -> None:
        super().__init__(2, ClosingRule(timeout_s=10.0), num_jobs=1)
        self.ahead = ahead
        self.given, self.answers, self.losses = 0, list[int](), list[Loss[int]]()
        self.retries = True

    @property
    def rounds(self) -> int:
        return 0

    @property
    def _goal(self) -> str:
        return "the count"

    def _next(self, worker: int) -> tuple[int, int]:  # noqa: ARG002 (anybody may do anything)
        self.given += 1
        return 0, self.given

    def _done(self, task: EngineTask[int], actions: list[Action]) -> None:  # noqa: ARG002
        assert task.work is not None
        self.answers.append(task.work)

    def _lost(self, loss: Loss[int], actions: list[Action]) -> None:
        self.losses.append(loss)
        if self.retries:
            self._retry(loss.task, loss.wait_s)
        else:
            self._release(loss.task, actions, rest_s=5.0)

    def _dispatches(self, tasks: Sequence[EngineTask[int]]) -> list[Dispatch]:
        work = {task.worker: (part_task(0, task.work or 0),) for task in tasks}
        loads, first = np.ones(2), tasks[0]
        return [Dispatch(round=first.round, attempt=first.attempt, assignment=work, loads=loads)]

    def asked(self, actions: Sequence[Action], at: float) -> list[tuple[int, int, object]]:
        """Return the tasks that actions send: worker, attempt and work; they leave at once."""
        sent = []
        for each in actions:
            if isinstance(each, Dispatch):
                workers = tuple(each.assignment)
                left_at = (at,) * len(workers)
                event = {"round": each.round, "attempt": each.attempt}
                self.on(ports.Dispatched(**event, workers=workers, left_at=left_at))
                sent += [(w, each.attempt, each.assignment[w][0].cover) for w in workers]
        return sent

    def answer(self, worker: int, attempt: int, at: float) -> Sequence[Action]:
        about = {"round": 0, "worker": worker, "attempt": attempt}
        return self.on(ports.Arrival(**about, at=at, results={}))

    def fail(self, worker: int, attempt: int, at: float) -> Sequence[Action]:
        about = {"round": 0, "worker": worker, "attempt": attempt}
        return self.on(ports.Failure(**about, at=at, reason="it fell"))


def begun() -> Numbers:
    policy = Numbers()
    assert policy.asked(policy.start(), 0.0) == [(0, 0, 1), (1, 0, 2)]
    return policy


def test_an_answer_frees_its_worker_which_gets_more_work() -> None:
    policy = begun()
    assert policy.asked(policy.answer(0, 0, 1.0), 1.0) == [(0, 1, 3)]
    assert policy.answers == [1]


def test_a_failed_task_is_sent_again_as_a_new_attempt() -> None:
    policy = begun()
    assert policy.asked(policy.fail(0, 0, 1.0), 1.0) == [(0, 1, 1)]
    actions = policy.fail(0, 1, 2.0)
    assert policy.asked(actions, 2.0) == [], "the second failure in a row waits"
    assert [loss.is_repeated for loss in policy.losses] == [False, True]
    at = policy.wake_at
    assert policy.asked(policy.on(ports.Tick(at=at)), at) == [(0, 2, 1)]


def test_a_released_worker_rests_before_it_gets_other_work() -> None:
    policy = begun()
    policy.retries = False
    cancel, *others = policy.fail(0, 0, 1.0)
    assert isinstance(cancel, ports.Cancel)
    assert others == []
    assert policy.wake_at == 6.0
    assert policy.asked(policy.on(ports.Tick(at=6.0)), 6.0) == [(0, 1, 3)]


def test_a_time_limit_is_a_failure_after_which_the_worker_is_replaced() -> None:
    policy = begun()
    policy.answer(1, 0, 9.0)
    restart, *rest = policy.on(ports.Tick(at=10.0))
    assert restart == ports.Restart(worker=0)
    assert policy.asked(rest, 10.0) == [(0, 1, 1)]
    assert "silent for 10 s" in policy.losses[0].why


@pytest.mark.parametrize("attempt", [0, 7])
def test_an_event_that_is_not_of_the_newest_task_is_dropped(attempt: int) -> None:
    policy = begun()
    policy.asked(policy.fail(0, 0, 1.0), 1.0)
    for actions in (policy.answer(0, attempt, 2.0), policy.fail(0, attempt, 2.0)):
        assert [type(action) for action in actions] == [ports.Drop]
    assert policy.answers == []
    assert len(policy.losses) == 1


def test_other_transitions_are_refused_and_change_nothing() -> None:
    policy = begun()
    (task,), actions = policy._held(0), list[Action]()
    with pytest.raises(ScheduleError, match="worker 0 has no room"):
        policy._give(0, 0, 9)
    with pytest.raises(ScheduleError, match="worker 0, round 0, attempt 0, has not failed"):
        policy._retry(task, 0.0)
    with pytest.raises(ScheduleError, match="worker 0, round 0, attempt 0, has not failed"):
        policy._release(task, actions)
    policy._call_off(task, actions)
    with pytest.raises(ScheduleError, match="worker 0 does not have it any more"):
        policy._call_off(task, actions)
    assert len(actions) == 1, "the only one that was allowed"
    assert policy.asked(policy.answer(1, 0, 1.0), 1.0) == [(0, 1, 3), (1, 1, 4)]


# ---- workers that hold several tasks -------------------------------------------------------------


def begun_ahead() -> Numbers:
    policy = Numbers(ahead=2)
    assert policy.asked(policy.start(), 0.0) == [(0, 0, 1), (1, 0, 2), (0, 1, 3), (1, 1, 4)]
    return policy


def of(policy: Numbers, worker: int) -> list[int | None]:
    return [task.work for task in policy._held(worker)]


def test_a_worker_holds_as_many_tasks_as_it_may() -> None:
    policy = begun_ahead()
    assert policy.asked(policy.answer(0, 0, 1.0), 1.0) == [(0, 2, 5)]
    assert (of(policy, 0), of(policy, 1)) == ([3, 5], [2, 4])
    with pytest.raises(ScheduleError, match="worker 0 has no room"):
        policy._give(0, 0, 9)
    assert policy.asked(policy.answer(0, 2, 2.0), 2.0) == [(0, 3, 6)]
    assert (of(policy, 0), policy.answers) == ([3, 6], [1, 5]), "answers come in any order"


def test_a_worker_gets_no_new_task_while_one_waits_and_computes_the_retried_one_last() -> None:
    policy = begun_ahead()
    policy.asked(policy.fail(0, 0, 1.0), 1.0)
    assert of(policy, 0) == [3, 1]
    assert policy.asked(policy.fail(0, 2, 2.0), 2.0) == []
    assert policy.asked(policy.answer(0, 1, 2.0), 2.0) == [], "though it holds only one"
    at = policy.wake_at
    assert policy.asked(policy.on(ports.Tick(at=at)), at) == [(0, 3, 1)]
    assert policy.asked(policy.answer(0, 3, 3.0), 3.0) == [(0, 4, 5), (0, 5, 6)]


def test_a_cancel_waits_until_the_worker_holds_no_other_task_of_the_round() -> None:
    policy = begun_ahead()
    policy.retries = False
    assert policy.fail(0, 0, 1.0) == [], "the other task is still awaited"
    cancel, *more = policy.answer(0, 1, 2.0)
    assert cancel == ports.Cancel(round=0, workers=(0,))
    assert policy.asked(more, 2.0) == [(0, 2, 5), (0, 3, 6)], "the answer ends the rest"
    first, second = policy._held(1)
    actions = list[Action]()
    policy._call_off(first, actions)
    assert actions == []
    policy._call_off(second, actions)
    assert actions == [ports.Cancel(round=0, workers=(1,))]
    assert policy.answers == [3]


def test_all_tasks_of_a_silent_worker_fail_together_and_it_is_replaced_once() -> None:
    policy = begun_ahead()
    policy.retries = False
    policy.asked(policy.answer(1, 0, 9.0), 9.0)
    policy.asked(policy.answer(1, 1, 9.0), 9.0)
    actions = policy.on(ports.Tick(at=10.0))
    assert actions == [ports.Restart(worker=0), ports.Cancel(round=0, workers=(0,))]
    assert [loss.task.work for loss in policy.losses] == [1, 3]
    assert policy._silent == {0: 1}, "one time limit has passed"

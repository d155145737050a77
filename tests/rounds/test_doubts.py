"""Answers that are not finite count when another worker agrees, or if the round needs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from seqgc.errors import WorkerError
from seqgc.ports import (
    Action,
    Arrival,
    Close,
    Dispatch,
    Dispatched,
    Doubt,
    Failure,
    Flaw,
    Park,
    Tick,
)
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme

FLAW = Flaw(kind="diverged", why="its results are not finite")


class Round:
    """The first round of a policy, played by hand: who answers when, and with what."""

    def __init__(
        self, spec: str = "gc:s=2", *, n: int = 4, again: Sequence[int] | None = None
    ) -> None:
        known = {} if again is None else {0: np.isin(np.arange(n), again)}
        rule = ClosingRule(mu=1.0, timeout_s=60.0, max_attempts=1)
        self.policy = RoundPolicy(parse_scheme(spec, n=n).start(3), rule, again=known)
        self.policy.start()
        everyone = tuple(range(n))
        self.policy.on(Dispatched(round=0, attempt=0, workers=everyone, left_at=(0.0,) * n))

    def answer(self, worker: int, at: float, *failed: str, round: int = 0) -> list[Action]:
        about = {"round": round, "worker": worker, "attempt": 0}
        arrival = Arrival(**about, at=at, results={}, flaws=dict.fromkeys(failed, FLAW))
        return list(self.policy.on(arrival))

    def tick(self) -> list[Action]:
        return list(self.policy.on(Tick(at=self.policy.wake_at)))

    def close(self) -> tuple[list[int], list[Park]]:
        """Return who had responded when the round closed, and what came with that."""
        actions = self.tick()
        (closed,) = [action for action in actions if isinstance(action, Close)]
        responded = np.flatnonzero(closed.record.responded).tolist()
        return responded, [action for action in actions if isinstance(action, Park)]


def about(action: Action) -> tuple[tuple[str, ...], list[int]]:
    assert isinstance(action, Park)
    return tuple(sorted(action.flaws)), [answer.worker for answer in action.answers]


def test_a_second_worker_that_says_so_is_believed_and_so_is_the_first() -> None:
    play = Round()
    (doubt,) = play.answer(3, 1.0, "a")
    assert isinstance(doubt, Doubt)
    doubt, park = play.answer(1, 1.5, "a")
    assert isinstance(doubt, Doubt)
    assert about(park) == (("a",), [3, 1])
    assert play.answer(0, 1.7, "a") == [], "it is known by now"
    assert play.policy.wake_at == 2.0, "the first answer was the first, believed or not"
    assert play.close() == ([0, 1, 3], [])


def test_a_doubt_about_another_model_is_no_agreement() -> None:
    play = Round()
    assert [type(action) for action in play.answer(3, 1.0, "a", "b")] == [Doubt]
    assert [type(action) for action in play.answer(2, 1.0, "c")] == [Doubt]
    _, park = play.answer(1, 1.0, "b")
    assert about(park) == (("b",), [1]), "worker 3 is still alone with its a"
    _, park = play.answer(0, 1.0, "a")
    assert about(park) == (("a",), [3, 0])
    assert play.close() == ([0, 1, 3], [])


def test_who_is_alone_is_a_straggler_and_its_task_is_not_sent_again() -> None:
    play = Round()
    actions = play.answer(2, 1.0, "a")
    for worker in (0, 1, 3):
        actions += play.answer(worker, 1.5)
    assert [type(action) for action in actions] == [Doubt]
    assert play.policy.wake_at == 1.5, "there is nobody to wait for"
    assert play.close() == ([0, 1, 3], [])


@pytest.mark.parametrize("others", [[0, 1, 3], [1]])
def test_who_is_alone_and_cannot_be_done_without_is_believed(others: list[int]) -> None:
    """In the end, be it that all others have answered or that the time is over."""
    play = Round("uncoded" if len(others) == 3 else "gc:s=2")
    play.answer(2, 1.0, "b", "a")
    for worker in others:
        play.answer(worker, 1.5)
    if len(others) == 1:
        assert play.tick() == []
        for at in (60.0, 120.0):
            assert play.policy.wake_at == at
            assert isinstance(play.tick()[-1], Dispatch), "the silent are asked again before"
        assert play.policy.wake_at == 180.0
    responded, (park,) = play.close()
    assert responded == sorted([2, *others])
    assert about(park) == (("a", "b"), [2])


def test_before_one_who_is_alone_is_believed_those_who_were_given_up_are_asked_again() -> None:
    play = Round("gc:s=1", n=3)
    gone = Failure(round=0, worker=0, attempt=0, at=0.5, reason="reset")
    assert play.policy.on(gone) == [], "two others will do"
    doubt, dispatch = play.answer(1, 1.0, "a")
    assert isinstance(doubt, Doubt)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.attempt, list(dispatch.assignment)) == (1, [0])
    play.answer(2, 1.5)
    assert play.tick() == []
    play.policy.on(Arrival(round=0, worker=0, attempt=1, at=3.0, results={}))
    assert play.close() == ([0, 2], [])


def test_where_it_does_not_help_either_the_round_cannot_end() -> None:
    play = Round("uncoded")
    play.answer(2, 1.0, "a")
    for worker in (1, 3):
        play.answer(worker, 1.0)

    def fail(worker: int) -> None:
        at = 1.5
        for attempt in range(20):
            gone = Failure(round=0, worker=worker, attempt=attempt, at=at, reason="gone")
            asked = play.policy.on(gone)
            while not asked:
                at = play.policy.wake_at
                asked = play.tick()

    with pytest.raises(WorkerError, match="first failure, worker 0: gone"):
        fail(0)


def test_a_round_that_is_closed_again_waits_for_the_second_that_says_so() -> None:
    play = Round(again=[1, 2])
    play.answer(2, 1.0, "a")
    play.answer(0, 1.0)
    play.tick()
    assert play.policy.wake_at == 60.0
    play.answer(1, 3.0, "a")
    assert play.policy.wake_at == 3.0
    assert play.close() == ([1, 2], [])


def test_a_round_that_is_closed_again_does_without_who_is_alone_now() -> None:
    play = Round(again=[1, 2])
    play.answer(2, 1.0, "a")
    for worker in (0, 1, 3):
        play.answer(worker, 1.0)
    assert play.close() == ([0, 1, 3], [])


def test_a_doubt_ends_with_its_round() -> None:
    play = Round()
    play.answer(2, 1.0, "a")
    for worker in (0, 1, 3):
        play.answer(worker, 1.0)
    actions = play.tick()
    assert any(isinstance(action, Dispatch) for action in actions)
    play.policy.on(Dispatched(round=1, attempt=0, workers=(0, 1, 2, 3), left_at=(0.0,) * 4))
    assert [type(action) for action in play.answer(1, 1.0, "a", round=1)] == [Doubt]

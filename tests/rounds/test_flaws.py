"""An answer with flaws is a failure of its worker, which counts after all if the model failed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from seqgc.errors import WorkerError
from seqgc.ports import Action, Arrival, Close, Dispatch, Dispatched, Failure, Flaw, Tick
from seqgc.rounds import ClosingRule, PastRound, RoundPolicy
from seqgc.schemes import parse_scheme

FLAWS = {"a": Flaw(kind="diverged", why="its results are not finite")}


class Round:
    """The first round of a policy, played by hand: which worker answers when, and with what."""

    def __init__(
        self, spec: str = "gc:s=2", *, n: int = 4, again: Sequence[int] | None = None
    ) -> None:
        known = {} if again is None else {0: PastRound(responded=np.isin(np.arange(n), again))}
        rule = ClosingRule(mu=1.0, timeout_s=60.0, max_attempts=1)
        self.policy = RoundPolicy(parse_scheme(spec, n=n).start(3), rule, again=known)
        self.policy.start()
        everyone = tuple(range(n))
        self.policy.on(Dispatched(round=0, attempt=0, workers=everyone, left_at=(0.0,) * n))

    def answer(self, worker: int, at: float, *, attempt: int = 0) -> list[Action]:
        arrival = Arrival(round=0, worker=worker, attempt=attempt, at=at, results={})
        return list(self.policy.on(arrival))

    def flawed(self, worker: int, at: float, *, attempt: int = 0) -> list[Action]:
        about = {"round": 0, "worker": worker, "attempt": attempt, "at": at}
        return list(self.policy.on(Failure(**about, reason="it is not finite", flaws=FLAWS)))

    def tick(self) -> list[Action]:
        return list(self.policy.on(Tick(at=self.policy.wake_at)))

    def close(self) -> list[int]:
        """Return the workers that had responded when the round closed."""
        (closed,) = [action for action in self.tick() if isinstance(action, Close)]
        return np.flatnonzero(closed.record.responded).tolist()


def test_an_answer_that_can_be_used_after_all_counts() -> None:
    play = Round()
    assert play.flawed(3, 1.0) == []
    assert play.answer(1, 1.5) == []  # the second report; the loop passes on both answers
    assert play.answer(3, 1.5) == []
    assert play.answer(0, 1.7) == []
    assert play.policy.wake_at == 2.0, "the first answer was the first, usable or not"
    assert play.close() == [0, 1, 3]


def test_a_single_worker_with_flaws_is_a_straggler_and_is_not_asked_again() -> None:
    play = Round()
    assert play.flawed(2, 1.0) == []
    for worker in (0, 1, 3):
        assert play.answer(worker, 1.5) == []
    assert play.policy.wake_at == 1.5, "there is nobody to wait for"
    assert play.close() == [0, 1, 3]


def test_a_worker_with_flaws_is_asked_again_if_the_round_needs_it() -> None:
    play = Round("uncoded")
    for worker in (0, 1, 3):
        play.answer(worker, 1.0)
    (dispatch,) = play.flawed(2, 1.5)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.attempt, list(dispatch.assignment)) == (1, [2])
    play.answer(2, 2.0, attempt=1)
    assert play.close() == [0, 1, 2, 3]


def test_workers_that_were_given_up_are_asked_again_too() -> None:
    play = Round("gc:s=1", n=3)
    gone = Failure(round=0, worker=0, attempt=0, at=0.5, reason="reset")
    assert play.policy.on(gone) == [], "two others will do"
    (dispatch,) = play.flawed(1, 1.0)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.attempt, sorted(dispatch.assignment)) == (1, [0, 1])
    play.answer(2, 1.5)
    assert play.tick() == []
    play.answer(0, 3.0, attempt=1)
    assert play.close() == [0, 2]


def test_a_round_that_needs_a_worker_with_flaws_ends_the_run_at_last() -> None:
    play, at = Round("uncoded"), 1.0
    for worker in (0, 1, 3):
        play.answer(worker, at)

    def flawed_again() -> None:
        nonlocal at
        for attempt in range(20):
            asked = play.flawed(2, at, attempt=attempt)
            while not asked:
                at = play.policy.wake_at
                asked = play.tick()

    with pytest.raises(WorkerError, match="first failure, worker 2: it is not finite"):
        flawed_again()


def test_a_round_that_is_closed_again_waits_until_the_answer_can_be_used() -> None:
    play = Round(again=[1, 2])
    play.flawed(2, 1.0)
    play.answer(0, 1.0)
    play.tick()
    assert play.policy.wake_at == 60.0
    play.answer(1, 3.0)
    play.answer(2, 3.0)
    assert play.policy.wake_at == 3.0
    assert play.close() == [1, 2]


def test_a_round_that_is_closed_again_does_without_a_single_worker_with_flaws() -> None:
    play = Round(again=[1, 2])
    play.flawed(2, 1.0)
    for worker in (0, 1, 3):
        play.answer(worker, 1.0)
    assert play.close() == [0, 1, 3]

"""Tasks of a round that fail: when they are sent again, and when a round does without a worker.

What every policy does is in `tests/policies`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import (
    Action,
    Arrival,
    Close,
    Dispatched,
    Drop,
    Event,
    Failure,
    RoundRecord,
)
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import GC, Scheme, Uncoded
from seqgc.testing import ScriptedBackend
from tests.kit import left

Address = tuple[int, int, int]
Turn = float | tuple[float, str]


class Script(dict[Address, Turn]):
    """What becomes of a task, worked out when it is sent."""

    def __init__(self, turn: Callable[[Address], Turn]) -> None:
        self._turn = turn

    def get(self, address: Address, default: object = None) -> Turn:  # type: ignore[override]  # noqa: ARG002
        return self._turn(address)


class Workers(ScriptedBackend):
    """Workers that can be replaced; their tasks go as ``turn`` says of (round, worker, attempt)."""

    def __init__(self, turn: Callable[[Address], Turn]) -> None:
        super().__init__(Script(turn))
        self.restarted: list[int] = []

    def restart(self, worker: int) -> None:
        self.restarted.append(worker)


def watched(
    scheme: Scheme,
    backend: ScriptedBackend,
    *,
    jobs: int = 1,
    timeout_s: float = 60.0,
    max_attempts: int = 3,
) -> list[Event | Action]:
    seen: list[Event | Action] = []
    rule = ClosingRule(timeout_s=timeout_s, max_attempts=max_attempts)
    run(RoundPolicy(scheme.start(jobs), rule), backend, observe=seen.append)
    return seen


def records(seen: list[Event | Action]) -> list[RoundRecord]:
    return [each.record for each in seen if isinstance(each, Close)]


# ---- failures ------------------------------------------------------------------------------------


def test_a_task_is_sent_again_at_once_and_then_after_waits_of_full_jitter() -> None:
    backend, gaps = Workers(lambda _: (0.0, "refused")), []
    sent: dict[tuple[int, int], float] = {}

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Dispatched):
            sent.update({(w, seen.attempt): seen.at - 100.0 for w in seen.workers})

    policy = RoundPolicy(Uncoded(n=300).start(1), ClosingRule(timeout_s=60.0))
    with pytest.raises(WorkerError, match="300 failed; first failure, worker 0: refused"):
        run(policy, backend, observe=watch)
    at = np.array([[sent[worker, attempt] for attempt in range(20)] for worker in range(300)])
    assert len(sent) == at.size, "20 times each"
    assert at.max() < 60.0
    gaps = np.diff(at, axis=1)
    assert (gaps[:, 0] == 0.0).all()
    for k in range(1, 8):
        bound_s = min(5.0, 0.1 * 2 ** (k - 1))
        assert gaps[:, k].max() <= bound_s
        assert gaps[:, k].min() <= 0.05 * bound_s
        assert abs(gaps[:, k].mean() - bound_s / 2) < 0.1 * bound_s
    for attempt in range(9, 20):
        assert at[:, attempt].min() >= 5.0 * (attempt - 8), "one in each twelfth of the limit"


def test_max_attempts_bounds_what_the_round_can_do_without() -> None:
    def turn(address: Address) -> Turn:
        _, worker, _ = address
        return (0.1, "killed") if worker == 2 else 30.0

    backend = Workers(turn)
    (record,) = records(watched(GC(n=3, s=1), backend))
    assert [attempt for _, worker, attempt in backend.sent if worker == 2] == [0, 1, 2]
    assert record.responded.tolist() == [True, True, False]


def test_who_was_given_up_is_asked_again_when_it_is_needed() -> None:
    """Worker 1 never answers: then worker 2 must, which fails four times, too often for a spare."""

    def turn(address: Address) -> Turn:
        _, worker, attempt = address
        return (0.1 * worker, "killed") if worker == 1 or (worker == 2 and attempt < 4) else 9.0

    backend = Workers(turn)
    (record,) = records(watched(GC(n=3, s=1), backend, max_attempts=1))
    assert record.responded.tolist() == [True, False, True]
    sent = Counter(worker for _, worker, _ in backend.sent)
    assert (sent[0], sent[2]) == (1, 5)
    assert sent[1] > 1


@pytest.mark.parametrize("fails", [1, 3, 6])
def test_who_was_given_up_is_asked_again_when_another_is_silent(fails: int) -> None:
    """Worker 1 hangs for good: at the time limit worker 2, which a spare could replace, is due."""

    def turn(address: Address) -> Turn:
        _, worker, attempt = address
        if worker == 2 and attempt < fails:
            return 0.1, "reset"
        return math.inf if worker == 1 else 1.0

    backend = Workers(turn)
    (record,) = records(watched(GC(n=3, s=1), backend, timeout_s=30.0, max_attempts=1))
    assert record.responded.tolist() == [True, False, True]
    assert 30.0 < record.duration_s < 45.0
    assert [attempt for _, worker, attempt in backend.sent if worker == 2] == [*range(fails + 1)]


# ---- silence -------------------------------------------------------------------------------------


def test_who_fails_or_answers_late_is_not_silent() -> None:
    def turn(address: Address) -> Turn:
        return {2: (0.1, "killed"), 3: 1.5}.get(address[1], 1.0)

    backend = Workers(turn)
    watched(GC(n=4, s=2), backend, jobs=30, timeout_s=4.5)
    assert backend.restarted == []


def test_while_a_task_waits_to_be_sent_again_an_answer_to_it_counts() -> None:
    policy = RoundPolicy(Uncoded(n=1).start(1), ClosingRule())
    policy.start()
    policy.on(left(0, 1, at=5.0))
    answer = Arrival(round=0, worker=0, attempt=0, at=6.0, results={})
    failed = Failure(round=0, worker=0, attempt=0, at=6.0, reason="reset")
    policy.on(failed)
    assert policy.on(replace(failed, attempt=1)) == []
    (drop,) = policy.on(replace(failed, attempt=1))
    assert isinstance(drop, Drop)
    (drop,) = policy.on(replace(answer, attempt=2))
    assert isinstance(drop, Drop)
    assert policy.wake_at > 6.0
    assert policy.on(answer) == ()
    assert policy.wake_at == 6.0

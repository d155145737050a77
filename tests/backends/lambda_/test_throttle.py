"""Full jitter, the window of re-submissions on trial, and one that cannot be submitted again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.backends.lambda_ import ThrottlePolicy
from seqgc.errors import ParameterError
from seqgc.stores import MemoryStore
from seqgc.testing.scripted import address, task
from tests.backends.lambda_.in_memory import open_backend
from tests.backends.lambda_.parts import Throttle


def test_waits_fill_the_whole_range_and_it_doubles_up_to_the_longest() -> None:
    policy = ThrottlePolicy(first_s=0.1, longest_s=1.0, seed=3)
    for refusals, bound in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (400, 1.0)):
        throttle = Throttle(policy)
        waits = [throttle.refused(k, refusals=refusals, now=50.0) - 50.0 for k in range(500)]
        assert 0 <= min(waits) < 0.02 * bound
        assert 0.98 * bound < max(waits) <= bound + 1e-9
        assert np.mean(waits) == pytest.approx(bound / 2, rel=0.1)


def test_what_the_service_asks_for_is_waited_for_first_up_to_the_longest() -> None:
    policy = ThrottlePolicy(first_s=0.1, longest_s=1.0, seed=3)
    for asked, least in ((0.0, 0.0), (0.3, 0.3), (1.0, 1.0), (3600.0, 1.0)):
        throttle = Throttle(policy)
        waits = [
            throttle.refused(k, refusals=2, now=50.0, least_s=asked) - 50.0 for k in range(500)
        ]
        assert least <= min(waits) + 1e-9 < least + 0.01
        assert least + 0.19 < max(waits) <= least + 0.2 + 1e-9, "jitter all the same"


def test_the_same_seed_waits_alike_and_another_does_not() -> None:
    def waits(seed: int) -> list[float]:
        throttle = Throttle(ThrottlePolicy(seed=seed))
        return [throttle.refused(k, refusals=1, now=0.0) for k in range(5)]

    assert waits(1) == waits(1) != waits(2)


def test_the_window_halves_with_each_refusal_and_opens_by_one_with_each_answer() -> None:
    throttle = Throttle(ThrottlePolicy(window=16))
    for tag in range(40):
        throttle.refused(tag, refusals=1, now=0.0)
    assert len(throttle.ready(now=1.0)) == 1, "a floor of one: somebody has to try"
    throttle.accepted(999)  # an answer to a first submission says that there is room again
    throttle.accepted(998)
    assert len(throttle.ready(now=1.0)) == 2
    for tag in range(100, 200):
        throttle.accepted(tag)
    assert len(throttle.ready(now=1.5)) == 16 - 3, "no wider than it was"


def test_what_is_not_refused_for_a_while_holds_up_nobody() -> None:
    throttle = Throttle(ThrottlePolicy(window=1, trial_s=2.0))
    throttle.refused(1, refusals=1, now=0.0)
    throttle.refused(2, refusals=1, now=0.0)
    (first,) = throttle.ready(now=1.0)
    assert throttle.wake_at == 3.0
    assert throttle.ready(now=2.9) == []
    assert throttle.ready(now=3.0) == [3 - first]
    assert throttle.wake_at == math.inf


def test_in_no_second_are_more_submitted_again_than_may_be() -> None:
    throttle = Throttle(ThrottlePolicy(window=64), per_s=3)
    for tag in range(4):
        throttle.refused(tag, refusals=1, now=0.0)
    first = throttle.ready(now=0.5)
    assert len(first) == 3, "of the 4 that the window has room for"
    assert (throttle.wake_at, throttle.ready(now=1.4)) == (1.5, [])
    assert throttle.ready(now=1.5) == [({*range(4)} - {*first}).pop()]


def test_what_was_forgotten_is_not_submitted() -> None:
    throttle = Throttle(ThrottlePolicy())
    throttle.refused(1, refusals=1, now=0.0)
    assert throttle.forget(1)
    assert not throttle.forget(1)
    assert (throttle.wake_at, throttle.ready(now=9.0)) == (math.inf, [])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_resubmissions", -1),
        ("first_s", 0.0),
        ("first_s", 6.0),
        ("longest_s", math.inf),
        ("window", 0),
        ("trial_s", 0.0),
        ("trial_s", math.nan),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(option: str, value: float) -> None:
    with pytest.raises(ParameterError, match="must"):
        ThrottlePolicy(**{option: value})  # type: ignore[arg-type]


def test_a_throttled_invocation_whose_weights_are_gone_is_a_failure() -> None:
    store = MemoryStore()
    ref = store.publish("w", 0, np.arange(3.0))
    backend, wire = open_backend(shared=store)
    tasks = [task(0, worker) for worker in range(2)]
    for each in tasks:
        object.__setattr__(each.items[0].parts[0], "weights", ref)
    backend.dispatch(0, tasks)
    for tag in (0, 1):
        wire.fail(tag, "HTTP 429", throttled=True)
    assert backend.receive(wire.clock.time) is None
    store.discard(ref)
    until = wire.clock.time + 100.0
    events = [backend.receive(until) for _ in range(2)]
    assert sorted(address(event) for event in events if event is not None) == [
        ("Failure", 0, 0, 0),
        ("Failure", 0, 1, 0),
    ]
    assert wire.clock.time < until, "there was nothing to wait for"
    assert backend.outstanding == 0

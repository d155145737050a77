"""What backends share: which event `receive` returns, and when it looks again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from seqgc.backends import EventBackend, event_of, failure_of
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Arrival, Failure
from seqgc.testing import HandWoundClock as Clock
from seqgc.wire import FailureMessage, ResultMessage, Subject


class ByHand(EventBackend):
    """Each look at what has come in is one step of the test's."""

    _reads_elsewhere = False

    def __init__(self, clock: Clock, *steps: Callable[[ByHand], None]) -> None:
        super().__init__(2, messaging=None, clock=clock)
        self.clock, self.steps = clock, list(steps)
        self.waited: list[float] = []
        self.ends = 0

    def _collect(self, timeout_s: float) -> None:
        self.waited.append(timeout_s)
        if self.steps:
            self.steps.pop(0)(self)

    def _end(self) -> None:
        self.ends += 1


def came(*times: float, now: float) -> Callable[[ByHand], None]:
    """The clock shows ``now``, and events with these times are there."""

    def step(backend: ByHand) -> None:
        backend.clock.wind(now - backend.clock.now())
        for at in times:
            backend._tell(failure_of((0, 1, 0), at=at, reason=f"at {at:g}"))

    return step


def time_of(event: Arrival | Failure | None) -> float | None:
    return None if event is None else event.at


def test_what_came_before_the_deadline_is_found_although_it_has_passed() -> None:
    backend = ByHand(Clock(), came(now=105.1), came(104.9, now=105.1))
    assert time_of(backend.receive(105.0)) == 104.9
    assert backend.waited == [5.0, 0.0]


def test_events_that_came_after_the_deadline_are_kept_for_later() -> None:
    backend = ByHand(Clock(), came(101.0, 105.1, now=105.1))
    assert time_of(backend.receive(105.0)) == 101.0
    assert backend.receive(105.0) is None
    assert time_of(backend.receive(105.1)) == 105.1
    assert backend.receive(105.1) is None
    assert backend.waited == [5.0, 0.0, 0.0, 0.0]


def test_what_came_while_the_master_was_stopped_in_its_waiting_may_have_kept_the_deadline() -> None:
    backend = ByHand(
        Clock(), came(101.0, now=101.0), came(now=112.0), came(112.0, 112.0, now=112.0)
    )
    assert [time_of(backend.receive(105.0)) for _ in range(3)] == [101.0, 112.0, 112.0]
    assert backend.receive(105.0) is None
    assert backend.waited == [5.0, 4.0, 0.0, 0.0, 0.0]


def test_what_came_while_the_master_was_busy_may_have_kept_the_deadline() -> None:
    backend = ByHand(
        Clock(), came(101.0, now=101.0), came(112.0, now=112.0), came(113.0, now=113.0)
    )
    assert time_of(backend.receive(105.0)) == 101.0
    backend.clock.wind(11.0)
    assert time_of(backend.receive(105.0)) == 112.0
    assert backend.receive(105.0) is None, "what has come since then did not keep it"
    assert time_of(backend.receive(113.0)) == 113.0


def test_what_is_read_as_it_wakes_from_its_waiting_may_have_kept_the_deadline() -> None:
    backend = ByHand(Clock(), came(112.0, 112.01, now=112.01))
    assert [time_of(backend.receive(105.0)) for _ in range(3)] == [112.0, 112.01, None]


class ByOthers(ByHand):
    """What comes in is read by others, who were stopped with the master."""

    _reads_elsewhere = True


def test_who_reads_for_the_master_has_a_moment_after_it_was_stopped() -> None:
    late = came(112.05, now=112.05), came(112.1, now=112.1), came(now=112.2)
    backend = ByOthers(Clock(), came(101.0, now=101.0), came(now=112.0), came(now=112.0), *late)
    times = [time_of(backend.receive(105.0)) for _ in range(4)]
    assert times == [101.0, 112.05, 112.1, None]
    assert [each for each in backend.waited if each] == [5.0, 4.0, 0.1, 0.1, 0.1]


def test_it_waits_no_longer_than_half_a_second_for_those_who_read_on_and_on() -> None:
    steps = [came(112.0 + k / 20, now=112.0 + k / 20) for k in range(100)]
    backend = ByOthers(Clock(), came(now=112.0), *steps)
    assert time_of(backend.receive(105.0)) == 112.0
    assert backend.clock.now() < 113.0


def test_what_a_restart_does_is_known_before_time_goes_on() -> None:
    def restart(backend: ByHand) -> None:
        backend._tell(failure_of((0, 0, 0), at=106.0, reason="restarted"), is_own=True)

    backend = ByHand(Clock(), came(101.0, 105.5, now=105.5), came(now=106.0))
    assert time_of(backend.receive(105.0)) == 101.0
    restart(backend)
    assert [time_of(backend.receive(105.0)) for _ in range(3)] == [105.5, 106.0, None]


def test_what_is_known_to_have_come_after_the_deadline_did_not_keep_it() -> None:
    backend = ByHand(Clock(), came(now=112.0), came(104.0, 106.0, now=112.0))
    assert time_of(backend.receive(105.0)) == 104.0
    assert backend.receive(105.0) is None
    assert time_of(backend.receive(110.0)) == 106.0


def test_what_comes_just_after_the_deadline_while_the_master_waits_did_not_keep_it() -> None:
    backend = ByHand(Clock(), came(105.001, now=105.001))
    assert backend.receive(105.0) is None
    assert time_of(backend.receive(106.0)) == 105.001


def test_it_looks_again_until_something_is_there() -> None:
    backend = ByHand(Clock(), came(now=101.0), came(now=102.0), came(102.5, now=103.0))
    assert time_of(backend.receive(math.inf)) == 102.5
    assert backend.waited == [math.inf] * 3


def test_nobody_waits_for_a_time_that_is_none() -> None:
    backend = ByHand(Clock(), came(now=101.0), came(102.0, now=102.0))
    assert backend.receive(math.nan) is None
    assert backend.waited == [0.0]


def test_closing_ends_it_every_time_and_it_refuses_what_comes_after() -> None:
    with ByHand(Clock(), came(101.0, now=101.0)) as backend:
        backend._collect(0.0)
    backend.close()  # the first may have been interrupted
    assert backend.ends == 2
    with pytest.raises(WorkerError, match="closed"):
        backend.receive(math.inf)


def test_the_workers_of_a_cancellation_are_checked() -> None:
    with pytest.raises(ParameterError, match="`worker` must satisfy 0 <= worker < 2; got 2"):
        ByHand(Clock())._check_workers([0, 2])


def test_answers_are_events() -> None:
    address = {"round": 3, "worker": 1, "attempt": 2}
    subject = Subject(**address)
    arrival = event_of(ResultMessage(subject=subject, results={}), at=7.0)
    assert isinstance(arrival, Arrival)
    assert (arrival.round, arrival.worker, arrival.attempt, arrival.at) == (3, 1, 2, 7.0)
    failure = event_of(FailureMessage(subject=subject, reason="no\nroom"), at=7.0)
    assert failure == Failure(**address, at=7.0, reason="no room")

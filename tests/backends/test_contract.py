"""What every backend promises, whatever its workers are."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path

import numpy as np
import pytest

from seqgc.errors import ParameterError, WireError, WorkerError
from seqgc.ports import PAYLOADS, Arrival, Failure, Payload, quantize, restore
from tests.backends.conftest import Open
from tests.backends.scripted import (
    address,
    eventually,
    gradient,
    next_event,
    next_events,
    part,
    task,
)

HOURS = 10_000.0


class WoundClock:
    """A clock that somebody winds."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


# ---- answers ------------------------------------------------------------------------------------


def test_every_task_is_answered_once_with_its_own_results(open_backend: Open) -> None:
    backend = open_backend(3)
    backend.dispatch(4, [task(4, worker, *["plain"] * worker) for worker in (1, 2)])
    events = sorted(next_events(backend, 2), key=lambda event: event.worker)
    assert [address(event) for event in events] == [("Arrival", 4, 1, 0), ("Arrival", 4, 2, 0)]
    expected = gradient(part())
    for event, slots in zip(events, ([0], [0, 10]), strict=True):
        assert isinstance(event, Arrival)
        assert list(event.results) == slots
        for result in event.results.values():
            assert (result.dtype, result.tobytes()) == (expected.dtype, expected.tobytes())
            assert not result.flags.writeable
    assert backend.receive(time.monotonic()) is None


def test_a_task_with_nothing_to_do_is_answered(open_backend: Open) -> None:
    backend = open_backend(1)
    empty = task(0, 0)
    backend.dispatch(0, [type(empty)(round=0, worker=0, attempt=0, items=())])
    event = next_event(backend)
    assert isinstance(event, Arrival)
    assert event.results == {}


def test_a_repeated_attempt_is_answered_too(open_backend: Open) -> None:
    backend = open_backend(1)
    for attempt in (0, 1):
        backend.dispatch(0, [task(0, 0, attempt=attempt)])
    assert sorted(address(event)[3] for event in next_events(backend, 2)) == [0, 1]


def test_events_lie_between_dispatch_and_now_and_come_in_order(open_backend: Open) -> None:
    backend = open_backend(4)
    left_at = backend.dispatch(0, [task(0, worker) for worker in range(4)])
    times = [left_at[0], *(event.at for event in next_events(backend, 4)), time.monotonic()]
    assert times == sorted(times)


class TickingClock:
    """A clock that every look at it moves on by a second."""

    def __init__(self) -> None:
        self._seconds = itertools.count(100)

    def now(self) -> float:
        return float(next(self._seconds))


def test_every_task_has_left_at_its_own_time_and_no_answer_is_earlier(open_backend: Open) -> None:
    backend = open_backend(4, clock=TickingClock())
    left_at = backend.dispatch(0, [task(0, worker) for worker in (2, 0, 3, 1)])
    assert len(set(left_at)) == 4
    assert list(left_at) == sorted(left_at)
    of_worker = dict(zip((2, 0, 3, 1), left_at, strict=True))
    for event in next_events(backend, 4):
        assert event.at > of_worker[event.worker]


def test_results_of_400_kb_arrive_as_they_are_from_all_at_once(open_backend: Open) -> None:
    backend = open_backend(4)
    backend.dispatch(0, [task(0, worker, size=50_000) for worker in range(4)])
    expected = gradient(part(size=50_000))
    for event in next_events(backend, 4):
        assert isinstance(event, Arrival)
        assert np.array_equal(event.results[0], expected)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_results_arrive_as_the_payload_format_made_them(
    open_backend: Open, payload: Payload
) -> None:
    backend = open_backend(1, payload=payload)
    backend.dispatch(0, [task(0, 0, "a", "b", size=4)])
    event = next_event(backend)
    assert isinstance(event, Arrival)
    exact = gradient(part(size=4))
    due = restore(quantize(exact, payload), exact.dtype)
    assert list(event.results) == [0, 10]
    for result in event.results.values():
        assert (result.dtype, result.tobytes()) == (due.dtype, due.tobytes())


# ---- the time of an event -----------------------------------------------------------------------


def test_an_event_that_came_after_the_deadline_is_kept_for_later(
    open_backend: Open, folder: Path
) -> None:
    clock = WoundClock()
    backend = open_backend(2, clock=clock)
    assert list(backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1, "gate b")])) == [100.0] * 2
    for name in ("a", "b"):
        eventually((folder / f"begun {name}").exists, "computing")
    clock.time = 107.0
    (folder / "go a").touch()
    first: list[Arrival | Failure | None] = []

    def came() -> bool:
        assert backend.receive(106.9) is None  # reads the answer, and stamps it
        first[:] = [backend.receive(107.0)]
        return first[0] is not None

    eventually(came, "the answer")
    clock.time = 200.0
    (folder / "go b").touch()
    assert [place(event) for event in (*first, backend.receive(math.inf))] == [
        (107.0, 0),
        (200.0, 1),
    ]


def place(event: Arrival | Failure | None) -> tuple[float, int]:
    assert isinstance(event, Arrival)
    return event.at, event.worker


def test_a_deadline_in_the_past_returns_at_once(open_backend: Open) -> None:
    backend = open_backend(1, delays=lambda *_: HOURS)
    backend.dispatch(0, [task(0, 0)])
    assert backend.receive(-math.inf) is None
    assert backend.receive(0.0) is None


def test_the_deadline_ends_the_waiting(open_backend: Open) -> None:
    backend = open_backend(1, delays=lambda *_: HOURS)
    until = backend.dispatch(0, [task(0, 0)])[0] + 0.05
    assert backend.receive(until) is None
    assert time.monotonic() >= until


# ---- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("raise", "TypeError: the loss is a string"),
        ("nan", "WireError: a result is not finite (NaN or Inf)"),
        ("matrix", "WorkerError: `compute` must return a vector"),
    ],
)
def test_an_error_in_computing_is_a_failure_and_the_worker_lives_on(
    open_backend: Open, model: str, reason: str
) -> None:
    backend = open_backend(1)
    backend.dispatch(0, [task(0, 0, "plain", model, attempt=2)])
    failure = next_event(backend)
    assert isinstance(failure, Failure)
    assert address(failure) == ("Failure", 0, 0, 2)
    assert failure.reason.startswith(reason)
    assert "\n" not in failure.reason
    backend.dispatch(1, [task(1, 0)])
    assert address(next_event(backend)) == ("Arrival", 1, 0, 0)


# ---- injected delays ----------------------------------------------------------------------------


def test_an_answer_takes_at_least_its_injected_delay(open_backend: Open) -> None:
    delays = {(0, 0): 0.06, (0, 1): 0.0, (0, 2): 0.03}
    backend = open_backend(3, delays=lambda round, worker: delays[round, worker])
    before = time.monotonic()
    backend.dispatch(0, [task(0, worker) for worker in range(3)])
    for event in next_events(backend, 3):
        assert event.at - before >= delays[0, event.worker]


def test_a_repeated_attempt_is_not_delayed(open_backend: Open) -> None:
    backend = open_backend(1, delays=lambda *_: HOURS)
    backend.dispatch(0, [task(0, 0)])
    backend.dispatch(0, [task(0, 0, attempt=1)])
    assert address(next_event(backend)) == ("Arrival", 0, 0, 1)


def test_a_waiting_answer_does_not_hold_up_the_next_task(open_backend: Open) -> None:
    backend = open_backend(1, delays=lambda round, _: HOURS if round == 0 else 0.0)
    backend.dispatch(0, [task(0, 0)])
    backend.dispatch(1, [task(1, 0)])
    assert address(next_event(backend)) == ("Arrival", 1, 0, 0)


def test_an_answer_that_nobody_cancelled_arrives_after_newer_tasks(open_backend: Open) -> None:
    backend = open_backend(1, delays=lambda round, _: 0.05 if round == 0 else 0.0)
    backend.dispatch(0, [task(0, 0)])
    backend.dispatch(1, [task(1, 0)])
    assert {event.round for event in next_events(backend, 2)} == {0, 1}


@pytest.mark.parametrize("delay_s", [-0.1, math.nan, math.inf])
def test_a_delay_that_is_no_time_is_refused(open_backend: Open, delay_s: float) -> None:
    backend = open_backend(1, delays=lambda *_: delay_s)
    with pytest.raises(ParameterError, match=r"`delays` must be finite .*round 3, worker 0"):
        backend.dispatch(3, [task(3, 0)])


# ---- cancelling ---------------------------------------------------------------------------------


def test_a_cancelled_task_is_late_or_silent_and_never_a_failure(
    open_backend: Open, folder: Path
) -> None:
    backend = open_backend(2)
    backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1)])
    eventually((folder / "begun a").exists, "round 0's computing")
    backend.cancel(0, [0, 1])
    (folder / "go a").touch()
    backend.dispatch(1, [task(1, 0), task(1, 1)])
    arrived = []
    while not {(1, 0), (1, 1)} <= set(arrived):
        kind, *at, _ = address(next_event(backend))
        assert kind == "Arrival"
        arrived.append(tuple(at))
    assert len(set(arrived)) == len(arrived), "an answer came twice"


def test_a_straggler_that_fails_once_it_is_cancelled_is_no_failure(
    open_serial: Open, folder: Path
) -> None:
    backend = open_serial(1)
    backend.dispatch(0, [task(0, 0, "gate-raise a")])
    eventually((folder / "begun a").exists, "round 0's computing")
    backend.cancel(0, [0])
    (folder / "go a").touch()
    backend.dispatch(1, [task(1, 0)])
    assert address(next_event(backend)) == ("Arrival", 1, 0, 0)  # after the other, in order
    backend.dispatch(2, [task(2, 0, "raise")])  # and what is not cancelled fails as ever
    assert address(next_event(backend)) == ("Failure", 2, 0, 0)


def test_a_round_can_be_attempted_again_after_it_was_cancelled(open_backend: Open) -> None:
    backend = open_backend(1, delays=lambda *_: HOURS)
    backend.dispatch(0, [task(0, 0)])
    backend.cancel(0, [0])
    backend.dispatch(0, [task(0, 0, attempt=1)])
    assert address(next_event(backend)) == ("Arrival", 0, 0, 1)


def test_cancelling_what_was_never_dispatched_changes_nothing(open_backend: Open) -> None:
    backend = open_backend(2)
    backend.cancel(5, [0, 1])
    backend.dispatch(5, [task(5, 0)])
    assert address(next_event(backend)) == ("Arrival", 5, 0, 0)


# ---- what workers owe that serve one task after the other, and hear of cancelling ---------------


def test_a_cancelled_answer_that_waits_for_its_time_is_never_sent(
    open_serial: Open, folder: Path
) -> None:
    backend = open_serial(1, delays=lambda round, _: (0.0, 0.5, 0.0, 0.5)[round])
    for round, model in enumerate(("gate a", "plain", "gate b")):
        backend.dispatch(round, [task(round, 0, model)])
    (folder / "go a").touch()
    eventually((folder / "begun b").exists, "round 2's computing")  # round 1 is computed, and waits
    backend.cancel(1, [0])
    backend.dispatch(3, [task(3, 0)])  # due after round 1 would have been
    (folder / "go b").touch()
    assert [event.round for event in next_events(backend, 3)] == [0, 2, 3]


def test_mini_tasks_of_a_cancelled_round_are_not_begun(open_serial: Open, folder: Path) -> None:
    backend = open_serial(1)
    backend.dispatch(0, [task(0, 0, "gate first", "gate second")])
    eventually((folder / "begun first").exists, "the first mini-task")
    backend.dispatch(1, [task(1, 0, "gate queued")])
    backend.cancel(0, [0])
    backend.cancel(1, [0])
    backend.dispatch(2, [task(2, 0)])
    (folder / "go first").touch()
    assert address(next_event(backend)) == ("Arrival", 2, 0, 0)
    assert not (folder / "begun second").exists()
    assert not (folder / "begun queued").exists()


def test_an_answer_sent_before_its_round_was_cancelled_arrives(
    open_serial: Open, folder: Path
) -> None:
    backend = open_serial(1)
    backend.dispatch(0, [task(0, 0)])
    backend.dispatch(1, [task(1, 0, "gate a")])
    eventually((folder / "begun a").exists, "round 1's computing")
    backend.cancel(0, [0])
    (folder / "go a").touch()
    assert [event.round for event in next_events(backend, 2)] == [0, 1]


# ---- misuse, and the end ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round", "worker", "rule"),
    [
        (1, 2, r"`worker` must satisfy 0 <= worker < 2; got 2"),
        (1, -1, r"`worker` must satisfy"),
        (0, 0, r"`tasks` must all be of round 0; got 1"),
    ],
)
def test_a_task_for_nobody_is_refused_and_nothing_is_sent(
    open_backend: Open, round: int, worker: int, rule: str
) -> None:
    backend = open_backend(2)
    with pytest.raises(ParameterError, match=rule):
        backend.dispatch(round, [task(round, 0), task(1, worker)])
    backend.dispatch(9, [task(9, 0)])
    assert next_event(backend).round == 9


def test_a_task_that_cannot_be_sent_stops_the_whole_dispatch(open_backend: Open) -> None:
    backend = open_backend(2)
    bad = part()
    bad.coefficients[0] = np.nan
    broken = task(0, 1)
    object.__setattr__(broken.items[0], "parts", (bad,))
    with pytest.raises(WireError, match="coefficients must be finite"):
        backend.dispatch(0, [task(0, 0), broken])
    backend.dispatch(1, [task(1, 0)])
    assert next_event(backend).round == 1


def test_closing_twice_is_closing_once_and_a_closed_backend_refuses(open_backend: Open) -> None:
    backend = open_backend(2)
    backend.dispatch(0, [task(0, 0)])
    backend.close()
    backend.close()
    for use in (
        lambda: backend.dispatch(0, []),
        lambda: backend.receive(0.0),
        lambda: backend.cancel(0, [0]),
    ):
        with pytest.raises(WorkerError, match="closed"):
            use()


def test_closing_leaves_what_computes_to_itself(open_letting_go: Open, folder: Path) -> None:
    backend = open_letting_go(3, delays=lambda _, worker: HOURS * (worker == 1))
    backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1), task(0, 2)])
    eventually((folder / "begun a").exists, "computing")
    begun = time.monotonic()
    backend.close()  # that no process or thread is left, every test sees to
    assert time.monotonic() - begun < 2.5
    (folder / "go a").touch()

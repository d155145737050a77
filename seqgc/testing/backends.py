"""`BackendContract` and `SerialBackendContract`, the tests of the contract of backends."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
import pytest

from seqgc.backends import Messaging
from seqgc.errors import ParameterError, WireError, WorkerError
from seqgc.ports import (
    PAYLOADS,
    Arrival,
    Backend,
    Clock,
    Failure,
    Flaw,
    PartialArrival,
    PartialBackend,
    Payload,
    Task,
    quantize,
    restore,
)
from seqgc.testing.scripted import (
    PATIENCE_S,
    HandWoundClock,
    Scripted,
    address,
    eventually,
    gradient,
    next_arrival,
    next_event,
    next_events,
    part,
    task,
)

__all__ = ["BackendContract", "Open", "SerialBackendContract"]

_HOURS = 10_000.0
Open: TypeAlias = Callable[..., Backend]
"""A function ``open_backend(n, Messaging(...), clock=...)`` that returns a backend of n workers."""


def _require_next(backend: Backend, round: int, *, attempt: int = 0) -> None:
    """Require that the next event is the answer to a new task of worker 0."""
    backend.dispatch(round, [task(round, 0, attempt=attempt)])
    assert address(next_event(backend)) == ("Arrival", round, 0, attempt)


def _cancelled_in_time(open_backend: Open, folder: Path, delay_s: float) -> bool:
    """Cancel an answer that is delayed by ``delay_s``; return False if the machine was too slow."""
    delays = (0.0, delay_s, 0.0, delay_s)
    backend = open_backend(1, Messaging(delays=lambda round, _: delays[round]))
    a, b = f"a{delay_s}", f"b{delay_s}"
    begun = time.monotonic()
    for round, model in enumerate((f"gate {a}", "plain", f"gate {b}")):
        backend.dispatch(round, [task(round, 0, model)])
    (folder / f"go {a}").touch()
    eventually((folder / f"begun {b}").exists, "round 2's computing")  # then round 1 is computed
    backend.cancel(1, [0])
    in_time = time.monotonic() - begun < delay_s / 2
    backend.dispatch(3, [task(3, 0)])  # due after round 1
    (folder / f"go {b}").touch()
    if in_time:
        assert [event.round for event in next_events(backend, 3)] == [0, 2, 3]
    return in_time


class BackendContract:
    """Tests of the contract of `seqgc.ports.Backend`.

    Subclass it in a test file, and define the fixture ``factory``. The fixture is a function that
    is called as ``factory(n, computation, messaging=..., clock=...)`` and returns a backend with n
    workers, ready for tasks. ``computation`` is a picklable `seqgc.worker.ComputeFactory`. The
    `Messaging` contains the delays to inject and the format of results. The clock may be None. The
    workers must have access to the temporary folder of the test. Each backend is closed when its
    test ends. To check that no process or file remains, add a fixture of your own.

    Examples
    --------
    >>> from seqgc.backends import LocalBackend
    >>> class TestLocalBackend(BackendContract):
    ...     @pytest.fixture
    ...     def factory(self):
    ...         return LocalBackend
    """

    closes_at_once: ClassVar[bool] = True
    """False if closing must wait for tasks that are still computing, as with threads."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Return the folder through which workers and the test signal to each other."""
        return tmp_path

    @pytest.fixture
    def open_backend(self, factory: Open, folder: Path) -> Iterator[Open]:
        """Yield a function that opens backends with a `Scripted` computation; close them later."""
        with ExitStack() as stack:

            def opened(
                n: int, messaging: Messaging | None = None, *, clock: Clock | None = None
            ) -> Backend:
                work = Scripted(folder=folder)
                backend = factory(n, work, messaging=messaging or Messaging(), clock=clock)
                stack.callback(backend.close)
                return backend

            yield opened

    def test_every_task_is_answered_once_with_its_own_results(self, open_backend: Open) -> None:
        backend = open_backend(3)
        idle = Task(round=4, worker=0, attempt=0, items=())
        backend.dispatch(4, [idle, task(4, 1), task(4, 2, "plain", "plain")])
        events = sorted((next_arrival(backend) for _ in range(3)), key=lambda event: event.worker)
        assert [address(event)[1:] for event in events] == [(4, worker, 0) for worker in range(3)]
        assert [list(event.results) for event in events] == [[], [0], [0, 10]]
        expected = gradient(part())
        for result in (result for event in events for result in event.results.values()):
            assert (result.dtype, result.tobytes()) == (expected.dtype, expected.tobytes())
            assert not result.flags.writeable
        assert backend.receive(time.monotonic()) is None

    def test_a_repeated_attempt_is_answered_too(self, open_backend: Open) -> None:
        backend = open_backend(1)
        for attempt in (0, 1):
            backend.dispatch(0, [task(0, 0, attempt=attempt)])
        assert sorted(address(event)[3] for event in next_events(backend, 2)) == [0, 1]

    def test_events_come_in_order_between_dispatch_and_now(self, open_backend: Open) -> None:
        backend = open_backend(4)
        left_at = backend.dispatch(0, [task(0, worker) for worker in range(4)])
        times = [left_at[0], *(event.at for event in next_events(backend, 4)), time.monotonic()]
        assert times == sorted(times)

    def test_a_task_leaves_at_its_own_time_its_answer_later(self, open_backend: Open) -> None:
        backend = open_backend(4, clock=HandWoundClock(step=1.0))
        workers = (2, 0, 3, 1)
        left_at = backend.dispatch(0, [task(0, worker) for worker in workers])
        assert list(left_at) == sorted(set(left_at))
        for _ in workers:
            event = backend.receive(math.inf)
            assert isinstance(event, Arrival)
            assert event.at > left_at[workers.index(event.worker)]

    def test_results_of_400_kb_arrive_from_all_at_once(self, open_backend: Open) -> None:
        backend = open_backend(4)
        backend.dispatch(0, [task(0, worker, size=50_000) for worker in range(4)])
        expected = gradient(part(size=50_000))
        for _ in range(4):
            assert np.array_equal(next_arrival(backend).results[0], expected)

    @pytest.mark.parametrize("payload", PAYLOADS)
    def test_results_arrive_as_the_payload_format_made_them(
        self, open_backend: Open, payload: Payload
    ) -> None:
        backend = open_backend(1, Messaging(payload=payload))
        backend.dispatch(0, [task(0, 0, "a", "b", size=4)])
        results, exact = next_arrival(backend).results, gradient(part(size=4))
        expected = restore(quantize(exact, payload), exact.dtype)
        assert list(results) == [0, 10]
        for result in results.values():
            assert (result.dtype, result.tobytes()) == (expected.dtype, expected.tobytes())

    def test_an_event_after_the_deadline_is_kept(self, open_backend: Open, folder: Path) -> None:
        clock = HandWoundClock(100.0)
        backend = open_backend(2, clock=clock)
        left_at = backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1, "gate b")])
        assert list(left_at) == [100.0, 100.0]
        for name in ("a", "b"):
            eventually((folder / f"begun {name}").exists, "computing")
        clock.wind(7.0)
        assert backend.receive(106.9) is None  # later events are stamped later
        (folder / "go a").touch()

        def received() -> object:
            assert backend.receive(106.9) is None  # reads and stamps the answer
            return backend.receive(107.0)

        first = eventually(received, "the answer")
        clock.wind(93.0)
        (folder / "go b").touch()
        events = [first, backend.receive(math.inf)]
        assert [(e.at, e.worker) for e in events if isinstance(e, Arrival)] == [(107, 0), (200, 1)]

    def test_the_deadline_ends_the_waiting_in_the_past_too(self, open_backend: Open) -> None:
        backend = open_backend(1, Messaging(delays=lambda *_: _HOURS))
        (left_at,) = backend.dispatch(0, [task(0, 0)])
        for until in (-math.inf, 0.0, left_at + 0.05):
            assert backend.receive(until) is None
        assert time.monotonic() >= until

    def test_the_waiting_ends_though_a_signal_outlasts_it(self, open_backend: Open) -> None:
        backend = open_backend(1, Messaging(delays=lambda *_: _HOURS))
        backend.dispatch(0, [task(0, 0)])
        handler = signal.signal(signal.SIGUSR1, lambda *_: time.sleep(0.2))
        here = threading.get_ident()
        timer = threading.Timer(0.1, signal.pthread_kill, (here, signal.SIGUSR1))
        timer.start()
        try:
            assert backend.receive(time.monotonic() + 0.2) is None
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, handler)

    @pytest.mark.parametrize(
        ("model", "reason"),
        [("raise", "TypeError: the loss is a string"), ("matrix", "vector")],
    )
    def test_an_error_in_computing_is_a_failure_and_the_worker_lives_on(
        self, open_backend: Open, model: str, reason: str
    ) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0, "plain", model, attempt=2)])
        failure = next_event(backend)
        assert isinstance(failure, Failure)
        assert address(failure)[1:] == (0, 0, 2)
        assert reason in failure.reason
        assert "\n" not in failure.reason
        _require_next(backend, 1)

    def test_a_result_of_no_use_names_its_model_and_why(self, open_backend: Open) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0, "plain", "nan", "flawed")])
        answer = next_arrival(backend)
        assert answer.flaws["nan"].kind == "diverged"
        assert answer.flaws["flawed"] == Flaw(kind="raised", why="the loss is a string")
        results = {slot: list(result) for slot, result in answer.results.items()}
        assert results == {0: [0.7] * 3, 10: [0.0], 20: [0.0] * 3}

    def test_an_answer_takes_at_least_its_injected_delay(self, open_backend: Open) -> None:
        delays = {(0, 0): 0.06, (0, 1): 0.0, (0, 2): 0.03}
        backend = open_backend(3, Messaging(delays=lambda round, worker: delays[round, worker]))
        begun = time.monotonic()
        backend.dispatch(0, [task(0, worker) for worker in range(3)])
        for event in next_events(backend, 3):
            assert event.at - begun >= delays[0, event.worker]

    def test_a_repeated_attempt_is_not_delayed(self, open_backend: Open) -> None:
        backend = open_backend(1, Messaging(delays=lambda *_: _HOURS))
        backend.dispatch(0, [task(0, 0)])
        _require_next(backend, 0, attempt=1)

    def test_an_answer_that_is_cancelled_or_in_time_holds_up_no_newer(
        self, open_backend: Open
    ) -> None:
        backend = open_backend(1, Messaging(delays=lambda round, _: (_HOURS, 0.05, 0.0)[round]))
        backend.dispatch(0, [task(0, 0)])
        backend.cancel(0, [0])
        for round in (1, 2):
            backend.dispatch(round, [task(round, 0)])
        assert {next_arrival(backend).round for _ in range(2)} == {1, 2}

    @pytest.mark.parametrize("delay_s", [-0.1, math.nan, math.inf])
    def test_a_delay_that_is_no_time_is_refused(self, open_backend: Open, delay_s: float) -> None:
        backend = open_backend(1, Messaging(delays=lambda *_: delay_s))
        with pytest.raises(ParameterError, match="`delays`"):
            backend.dispatch(3, [task(3, 0)])

    def test_a_cancelled_task_is_late_or_silent(self, open_backend: Open, folder: Path) -> None:
        backend = open_backend(2)
        backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1)])
        eventually((folder / "begun a").exists, "round 0's computing")
        backend.cancel(0, [0, 1])
        (folder / "go a").touch()
        backend.dispatch(1, [task(1, 0), task(1, 1)])
        arrived: list[tuple[int, int]] = []
        while not {(1, 0), (1, 1)} <= set(arrived):
            event = next_arrival(backend)
            arrived.append((event.round, event.worker))
        assert len(set(arrived)) == len(arrived), "an answer came twice"

    def test_what_was_cancelled_can_be_attempted_later(self, open_backend: Open) -> None:
        backend = open_backend(2, Messaging(delays=lambda round, _: _HOURS if round == 0 else 0.0))
        backend.dispatch(0, [task(0, 0)])
        backend.cancel(0, [0])
        _require_next(backend, 0, attempt=1)
        backend.cancel(5, [0, 1])  # never dispatched
        _require_next(backend, 5)

    @pytest.mark.parametrize(
        ("round", "worker", "argument"), [(1, 2, "worker"), (1, -1, "worker"), (0, 0, "tasks")]
    )
    def test_a_task_for_nobody_is_refused_and_nothing_is_sent(
        self, open_backend: Open, round: int, worker: int, argument: str
    ) -> None:
        backend = open_backend(2)
        with pytest.raises(ParameterError, match=f"`{argument}`"):
            backend.dispatch(round, [task(round, 0), task(1, worker)])
        _require_next(backend, 9)

    def test_a_task_that_cannot_be_sent_stops_the_whole_dispatch(self, open_backend: Open) -> None:
        backend = open_backend(2)
        broken = task(0, 1)
        broken.items[0].parts[0].coefficients[0] = np.nan
        with pytest.raises(WireError, match="finite"):
            backend.dispatch(0, [task(0, 0), broken])
        _require_next(backend, 1)

    def test_a_closed_backend_refuses_but_to_close_again(self, open_backend: Open) -> None:
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

    def test_closing_leaves_what_computes_to_itself(self, open_backend: Open, folder: Path) -> None:
        backend = open_backend(3, Messaging(delays=lambda _, worker: _HOURS * (worker == 1)))
        backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1), task(0, 2)])
        eventually((folder / "begun a").exists, "computing")
        if not self.closes_at_once:
            (folder / "go a").touch()
        begun = time.monotonic()
        backend.close()
        assert time.monotonic() - begun < PATIENCE_S / 2, (
            "closing must not wait for the computing task"
        )
        (folder / "go a").touch()

    def test_each_mini_task_is_answered_when_it_is_done(
        self, open_backend: Open, folder: Path
    ) -> None:
        backend = _partial_backend(open_backend, 2)
        backend.dispatch(0, [_in_parts(task(0, 0, "plain", "gate a", "plain")), task(0, 1)])
        first = [next_event(backend) for _ in range(2)]
        kinds = sorted((*address(each)[:1], each.worker) for each in first)
        assert kinds == [("Arrival", 1), ("PartialArrival", 0)]
        (part,) = (each for each in first if isinstance(each, PartialArrival))
        assert (part.slot, list(part.results)) == (0, [0])
        assert part.results[0].tobytes() == gradient(_POINTS).tobytes()
        (folder / "go a").touch()
        second, last = next_event(backend), next_arrival(backend)
        assert isinstance(second, PartialArrival)
        assert (second.slot, list(last.results)) == (10, [20])
        _require_next(backend, 1)

    def test_a_result_of_no_use_waits_for_the_last_answer(self, open_backend: Open) -> None:
        backend = _partial_backend(open_backend, 1)
        backend.dispatch(0, [_in_parts(task(0, 0, "nan", "flawed", "plain", "plain"))])
        part, last = next_event(backend), next_arrival(backend)
        assert isinstance(part, PartialArrival)
        assert (part.slot, sorted(last.results)) == (20, [0, 10, 30])
        assert sorted(last.flaws) == ["flawed", "nan"]

    def test_a_failure_comes_after_what_was_done_before(self, open_backend: Open) -> None:
        delays_s = {0.5: 0.02, 1.5: 0.04}  # by load
        backend = _partial_backend(
            open_backend, 1, Messaging(task_delays=lambda task: delays_s.get(task.load, 0.05))
        )
        backend.dispatch(0, [_in_parts(task(0, 0, "plain", "raise", "plain"))])
        events = [address(event)[0] for event in next_events(backend, 2)]
        assert events == ["PartialArrival", "Failure"]
        _require_next(backend, 1)

    def test_each_mini_task_takes_at_least_its_injected_delay(self, open_backend: Open) -> None:
        delays_s = {0.5: 0.03, 1.5: 0.06, 3.0: 0.09}  # by load
        backend = _partial_backend(
            open_backend, 1, Messaging(task_delays=lambda task: delays_s.get(task.load, 0.0))
        )
        begun = time.monotonic()
        backend.dispatch(0, [_in_parts(task(0, 0, "a", "b", "c"))])
        events = next_events(backend, 3)
        for event, least_s in zip(events, delays_s.values(), strict=True):
            assert event.at - begun >= least_s
        _require_next(backend, 1)  # load 0

    def test_the_rest_of_a_cancelled_task_never_comes(
        self, open_backend: Open, folder: Path
    ) -> None:
        backend = _partial_backend(open_backend, 1)
        backend.dispatch(0, [_in_parts(task(0, 0, "plain", "gate a", "plain"))])
        assert address(next_event(backend))[0] == "PartialArrival"
        eventually((folder / "begun a").exists, "the second mini-task")
        backend.cancel(0, [0])
        (folder / "go a").touch()
        _require_next(backend, 1)


_POINTS = part()


def _in_parts(whole: Task) -> Task:
    """Return a task that asks for an answer to each mini-task; the loads are 0.5, 1, 1.5."""
    loads = tuple((1 + place) / 2 for place in range(len(whole.items)))
    return replace(whole, load=sum(loads), item_loads=loads)


def _partial_backend(open_backend: Open, n: int, messaging: Messaging | None = None) -> Backend:
    """Open a backend that can answer each mini-task by itself; skip the test if it cannot."""
    backend = open_backend(n, messaging)
    if not (isinstance(backend, PartialBackend) and backend.sends_parts):
        pytest.skip("it answers whole tasks only")
    return backend


class SerialBackendContract(BackendContract):
    """The `BackendContract` for workers that take one task at a time and receive cancellations."""

    def test_a_cancelled_waiting_answer_is_not_sent(self, open_backend: Open, folder: Path) -> None:
        delays_s = (0.5, 5.0, 25.0)  # the longest is for a busy machine
        assert any(_cancelled_in_time(open_backend, folder, each) for each in delays_s)

    def test_cancelled_mini_tasks_are_not_begun(self, open_backend: Open, folder: Path) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0, "gate first", "gate second")])
        eventually((folder / "begun first").exists, "the first mini-task")
        backend.dispatch(1, [task(1, 0, "gate queued")])
        backend.cancel(0, [0])
        backend.cancel(1, [0])
        backend.dispatch(2, [task(2, 0)])
        (folder / "go first").touch()
        assert address(next_event(backend)) == ("Arrival", 2, 0, 0)
        assert [path.name for path in folder.glob("begun *")] == ["begun first"]

    def test_a_cancelled_straggler_cannot_fail(self, open_backend: Open, folder: Path) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0, "gate-raise a")])
        eventually((folder / "begun a").exists, "round 0's computing")
        backend.cancel(0, [0])
        (folder / "go a").touch()
        _require_next(backend, 1)  # answers come in order
        backend.dispatch(2, [task(2, 0, "raise")])  # a task that is not cancelled fails as usual
        assert address(next_event(backend)) == ("Failure", 2, 0, 0)

    def test_an_answer_sent_before_cancel_arrives(self, open_backend: Open, folder: Path) -> None:
        backend = open_backend(1)
        backend.dispatch(0, [task(0, 0)])
        backend.dispatch(1, [task(1, 0, "gate a")])
        eventually((folder / "begun a").exists, "round 1's computing")
        backend.cancel(0, [0])
        (folder / "go a").touch()
        assert [event.round for event in next_events(backend, 2)] == [0, 1]

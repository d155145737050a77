"""Worker processes: how they die, how they are replaced, and that none is left."""

from __future__ import annotations

import array
import fcntl
import math
import multiprocessing
import os
import resource
import signal
import termios
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.backends import LocalBackend, Messaging
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Arrival, Failure, FloatArray, PartialArrival
from seqgc.testing import HandWoundClock, eventually
from seqgc.testing.scripted import address, next_event, next_events, task
from seqgc.worker import Compute
from tests.backends.scripted import Scripted, is_running

HOURS = 10_000.0
KILLED = "worker process was killed by SIGKILL (9)"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    with LocalBackend(2, Scripted(folder=tmp_path)) as backend:
        yield backend


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    assert pid > 1
    os.kill(pid, number)


def wait_for_replacement(backend: LocalBackend, worker: int, pid: int) -> None:
    def replaced() -> bool:
        assert backend.receive(time.monotonic() + 0.01) is None
        return backend.pids[worker] != pid

    eventually(replaced, f"replacing worker {worker}")


def bytes_waiting() -> int:
    """In the sockets of this process, unread."""
    count, total = array.array("i", [0]), 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own
            if str(path.readlink()).startswith("socket:"):
                fcntl.ioctl(int(path.name), termios.FIONREAD, count)
                total += count[0]
    return total


# ---- a master that is busy, or stopped ----------------------------------------------------------


def test_an_answer_that_nobody_read_may_have_come_in_time(tmp_path: Path) -> None:
    clock = HandWoundClock(100.0)
    with LocalBackend(1, Scripted(folder=tmp_path), clock=clock) as backend:
        for round, model in enumerate(("plain", "gate a")):
            backend.dispatch(round, [task(round, 0, model)])
        eventually((tmp_path / "begun a").exists, "the next task")  # so the first answer is sent
        clock.wind(7.0)
        event = backend.receive(103.0)
        assert event is not None
        assert (address(event), event.at) == (("Arrival", 0, 0, 0), 107.0)
        assert backend.receive(103.0) is None


@pytest.mark.parametrize("begun", [False, True])
def test_so_may_one_too_long_to_be_sent_unless_it_is_read(begun: bool, tmp_path: Path) -> None:
    """Also one whose beginning was read before."""
    clock = HandWoundClock(100.0)
    with LocalBackend(1, Scripted(folder=tmp_path), clock=clock) as backend:
        backend.dispatch(0, [task(0, 0, size=1_000_000)])
        eventually(lambda: bytes_waiting() > 100_000, "the beginning of its answer")
        if begun:  # its worker sends no more meanwhile
            kill(backend.pids[0], signal.SIGSTOP)
            stat = Path(f"/proc/{backend.pids[0]}/stat")
            eventually(lambda: ") T " in stat.read_text(), "its stop")
            assert backend.receive(100.0) is None
            kill(backend.pids[0], signal.SIGCONT)
            eventually(lambda: bytes_waiting() > 100_000, "more of it")
        clock.wind(7.0)
        event = backend.receive(103.0)
        assert event is not None
        assert (address(event), event.at) == (("Arrival", 0, 0, 0), 107.0)


def test_ctrl_z_stops_the_master_alone(backend: LocalBackend) -> None:
    for pid in backend.pids:
        kill(pid, signal.SIGTSTP)
    backend.dispatch(0, [task(0, 0), task(0, 1)])
    assert {event.worker for event in next_events(backend, 2)} == {0, 1}


# ---- death --------------------------------------------------------------------------------------


def test_a_worker_killed_while_computing_fails_its_task_and_is_replaced(
    backend: LocalBackend, tmp_path: Path
) -> None:
    pid, other = backend.pids
    backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1, "gate b")])
    eventually((tmp_path / "begun a").exists, "computing")
    kill(pid)
    failure = next_event(backend)
    assert isinstance(failure, Failure)
    assert (address(failure), failure.reason) == (("Failure", 0, 0, 0), KILLED)
    assert backend.pids[0] != pid
    assert backend.pids[1] == other
    backend.dispatch(0, [task(0, 0, attempt=1)])
    (tmp_path / "go b").touch()
    arrivals = {address(event) for event in next_events(backend, 2)}
    assert arrivals == {("Arrival", 0, 0, 1), ("Arrival", 0, 1, 0)}


def test_what_a_worker_answered_before_it_was_killed_has_arrived(
    backend: LocalBackend, tmp_path: Path
) -> None:
    whole = task(0, 0, "plain", "gate a", "plain")
    backend.dispatch(0, [replace(whole, item_loads=(0.1, 0.1, 0.1))])
    part = next_event(backend)
    assert isinstance(part, PartialArrival)
    assert part.slot == 0
    eventually((tmp_path / "begun a").exists, "the second mini-task")
    kill(backend.pids[0])
    failure = next_event(backend)
    assert isinstance(failure, Failure)
    assert failure.reason == KILLED


def test_a_worker_killed_while_its_answer_waits_fails_its_task(tmp_path: Path) -> None:
    delays = {0: HOURS, 1: 0.0, 2: 0.0}
    with LocalBackend(
        1, Scripted(folder=tmp_path), messaging=Messaging(delays=lambda t, _: delays[t])
    ) as backend:
        backend.dispatch(0, [task(0, 0)])
        backend.dispatch(1, [task(1, 0)])
        assert next_event(backend).round == 1  # so round 0 is computed
        kill(backend.pids[0])
        assert address(next_event(backend)) == ("Failure", 0, 0, 0)
        backend.dispatch(2, [task(2, 0)])
        assert address(next_event(backend)) == ("Arrival", 2, 0, 0)


def test_all_tasks_of_a_killed_worker_fail_but_not_cancelled_ones(
    backend: LocalBackend, tmp_path: Path
) -> None:
    for round in range(4):
        backend.dispatch(round, [task(round, 0, "gate a")])
    eventually((tmp_path / "begun a").exists, "computing")
    backend.cancel(1, [0])
    kill(backend.pids[0])
    assert [address(event)[:2] for event in next_events(backend, 3)] == [
        ("Failure", 0),
        ("Failure", 2),
        ("Failure", 3),
    ]
    assert backend.receive(time.monotonic()) is None


def test_an_idle_worker_that_is_killed_is_replaced_without_a_word(backend: LocalBackend) -> None:
    for round in range(4):  # more often than a worker may fail to start
        pid = backend.pids[1]
        kill(pid)
        wait_for_replacement(backend, 1, pid)
        backend.dispatch(round, [task(round, 1)])  # before the new process is ready, as a rule
        assert address(next_event(backend)) == ("Arrival", round, 1, 0)


def test_an_answer_sent_just_before_death_arrives(backend: LocalBackend, tmp_path: Path) -> None:
    backend.dispatch(0, [task(0, 0)])
    backend.dispatch(1, [task(1, 0, "gate a")])
    eventually((tmp_path / "begun a").exists, "computing")  # so round 0's answer has left
    kill(backend.pids[0])
    assert [address(event)[:2] for event in next_events(backend, 2)] == [
        ("Arrival", 0),
        ("Failure", 1),
    ]


def test_a_worker_that_exits_says_with_which_code(backend: LocalBackend) -> None:
    backend.dispatch(0, [task(0, 1, "exit")])
    failure = next_event(backend)
    assert isinstance(failure, Failure)
    assert failure.reason == "worker process exited with code 7"


def test_a_worker_that_is_restarted_fails_what_it_owes_and_serves_what_comes_next(
    backend: LocalBackend, tmp_path: Path
) -> None:
    pid, other = backend.pids
    for round in range(2):
        backend.dispatch(round, [task(round, 0, "gate a"), task(round, 1)])
    eventually((tmp_path / "begun a").exists, "computing")
    backend.cancel(0, [0])
    backend.restart(0)
    backend.dispatch(2, [task(2, 0)])
    assert backend.pids[0] != pid
    assert backend.pids[1] == other
    assert not is_running(pid)
    events = next_events(backend, 4)
    (failure,) = [event for event in events if isinstance(event, Failure)]
    assert (address(failure)[1:], failure.reason) == ((1, 0, 0), "the worker was restarted")
    assert {address(event)[1:3] for event in events} == {(0, 1), (1, 1), (1, 0), (2, 0)}
    with pytest.raises(ParameterError, match="`worker` must satisfy 0 <= worker < 2; got 2"):
        backend.restart(2)


def test_a_worker_that_is_stopped_can_be_restarted(backend: LocalBackend) -> None:
    pid = backend.pids[0]
    kill(pid, signal.SIGSTOP)
    backend.dispatch(0, [task(0, 0)])
    backend.restart(0)
    assert not is_running(pid)
    assert address(next_event(backend)) == ("Failure", 0, 0, 0)
    backend.dispatch(0, [task(0, 0, attempt=1)])
    assert address(next_event(backend)) == ("Arrival", 0, 0, 1)


def test_what_a_stopped_worker_does_not_take_is_forgotten_with_its_round(
    backend: LocalBackend,
) -> None:
    kill(backend.pids[0], signal.SIGSTOP)
    tracemalloc.start()
    try:
        for round in range(40):
            backend.dispatch(round, [task(round, 0, points=LARGE // 10)])  # 1.6 MB
            backend.cancel(round, [0])
        assert tracemalloc.get_traced_memory()[0] < 4_000_000, "of the first round at most"
    finally:
        tracemalloc.stop()
        kill(backend.pids[0], signal.SIGCONT)
    backend.dispatch(99, [task(99, 0)])
    events = [next_event(backend)]
    while events[-1].round != 99:
        events.append(next_event(backend))
    assert len(events) <= 2, "the first task may have been begun"


def test_answers_that_nobody_asked_for_are_no_events(backend: LocalBackend) -> None:
    backend.dispatch(0, [task(0, 0)])
    assert address(next_event(backend)) == ("Arrival", 0, 0, 0)
    backend.dispatch(1, [task(1, 0, "gossip")])
    backend.dispatch(2, [task(2, 0)])
    assert [address(event) for event in next_events(backend, 2)] == [
        ("Arrival", 1, 0, 0),
        ("Arrival", 2, 0, 0),
    ]


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        ("of a huge length", "WireError: a frame of 18446744073709551615 bytes was announced"),
        ("of a fair length", "WireError: not a seqgc frame"),
    ],
)
def test_a_worker_that_sends_noise_is_replaced(
    backend: LocalBackend, noise: str, reason: str
) -> None:
    backend.dispatch(0, [task(0, 0, f"noise {noise}")])
    failure = next_event(backend)
    assert isinstance(failure, Failure)
    assert failure.reason.startswith(reason)
    backend.dispatch(1, [task(1, 0)])
    assert address(next_event(backend)) == ("Arrival", 1, 0, 0)


def test_a_worker_that_hangs_up_but_stays_is_killed_and_replaced(backend: LocalBackend) -> None:
    pid = backend.pids[0]
    backend.dispatch(0, [task(0, 0, "hang-up")])
    failure = next_event(backend)
    assert isinstance(failure, Failure)
    assert failure.reason == "worker process did not end by itself, and was killed"
    assert not is_running(pid)


# ---- workers that do not start ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "cause"),
    [("raise", "RuntimeError: no dataset here"), ("exit", "worker process exited with code 7")],
)
def test_workers_that_cannot_start_say_why(tmp_path: Path, plan: str, cause: str) -> None:
    with pytest.raises(WorkerError, match=rf"worker [01] does not start: {cause}"):
        LocalBackend(2, Scripted(folder=tmp_path, plan=plan))


def test_workers_that_are_never_ready_are_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"0 of 2 workers were ready within 0.2 s.*preload"):
        LocalBackend(2, Scripted(folder=tmp_path, plan="hang"), start_timeout_s=0.2)


def test_a_worker_whose_replacements_fail_is_given_up_and_says_why(tmp_path: Path) -> None:
    with LocalBackend(2, Scripted(folder=tmp_path, plan="only first")) as backend:
        (tmp_path / "no more").touch()
        backend.dispatch(0, [task(0, 0, "gate a")])
        eventually((tmp_path / "begun a").exists, "computing")
        kill(backend.pids[0])
        assert address(next_event(backend)) == ("Failure", 0, 0, 0)
        backend.dispatch(1, [task(1, 0)])  # held for a process that is never ready
        for round in (1, 2):
            failure = next_event(backend)
            assert isinstance(failure, Failure)
            assert failure.round == round
            assert failure.reason.startswith("RuntimeError: no dataset any more (")
            assert "tests/backends/scripted.py:" in failure.reason
            backend.dispatch(round + 1, [task(round + 1, 0)])
        assert backend.pids[0] == 0
        assert (tmp_path / "starts").read_text() == "x" * (2 + 3)
        backend.dispatch(9, [task(9, 1)])
        assert ("Arrival", 9, 1, 0) in {address(event) for event in next_events(backend, 2)}


# ---- payload formats ----------------------------------------------------------------------------


def test_stochastic_rounding_is_repeated_by_a_run_of_the_same_name(tmp_path: Path) -> None:
    seen = []
    for run_id in ("one", "one", "two"):
        with LocalBackend(
            1,
            Scripted(folder=tmp_path),
            messaging=Messaging(run_id=run_id, payload="bfloat16", stochastic_rounding=True),
        ) as backend:
            backend.dispatch(0, [task(0, 0, size=300)])
            event = next_event(backend)
        assert isinstance(event, Arrival)
        seen.append(event.results[0])
    assert len(np.unique(seen[0])) == 2, "one number, rounded up here and down there"
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[0], seen[2])


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(ParameterError, match="`payload` must be one of float64, float32"):
        Messaging(payload="float8")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`payload` must be given"):
        Messaging(stochastic_rounding=True)


@pytest.mark.parametrize("n", [0, -1, 2.0, True])
def test_the_number_of_workers_is_checked(tmp_path: Path, n: int) -> None:
    with pytest.raises(ParameterError, match="`n` must be an integer >= 1"):
        LocalBackend(n, Scripted(folder=tmp_path))


def test_a_computation_that_cannot_cross_processes_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"`compute` must be picklable.*when it is called"):
        LocalBackend(1, threading.Lock())  # type: ignore[arg-type]


def test_the_time_to_start_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="`start_timeout_s` must be > 0"):
        LocalBackend(1, Scripted(folder=tmp_path), start_timeout_s=math.nan)


# ---- nobody waits for anybody forever -----------------------------------------------------------

LARGE = 1_000_000  # parameters: results of 8 MB, some 40 times what a socket holds


def test_workers_that_send_while_they_are_sent_to_do_not_deadlock(backend: LocalBackend) -> None:
    for t in range(4):  # each worker cannot read round 1 before all of round 0's answer is taken
        backend.dispatch(t, [task(t, worker, size=LARGE, points=LARGE) for worker in (0, 1)])
    backend.cancel(0, [0, 1])
    waited_for = {(t, worker) for t in (1, 2, 3) for worker in (0, 1)}
    while waited_for:
        event = next_event(backend)
        assert isinstance(event, Arrival)
        assert event.results[0].size == LARGE
        waited_for.discard((event.round, event.worker))


def test_a_stopped_worker_holds_up_nobody_and_goes_on_where_it_was(backend: LocalBackend) -> None:
    kill(backend.pids[0], signal.SIGSTOP)
    try:
        for t in range(3):
            backend.dispatch(t, [task(t, worker, points=LARGE) for worker in (0, 1)])
        assert [event.worker for event in next_events(backend, 3)] == [1, 1, 1]
    finally:
        kill(backend.pids[0], signal.SIGCONT)
    assert [address(event)[1:3] for event in next_events(backend, 3)] == [(0, 0), (1, 0), (2, 0)]


def test_a_stopped_worker_does_not_keep_the_backend_from_closing(tmp_path: Path) -> None:
    backend = LocalBackend(2, Scripted(folder=tmp_path))
    pids = backend.pids
    kill(pids[0], signal.SIGSTOP)
    backend.close()
    assert not [pid for pid in pids if is_running(pid)]


# ---- the environment of workers, and what is left of them ---------------------------------------


def test_workers_have_one_blas_thread_and_the_master_keeps_its_own(backend: LocalBackend) -> None:
    before = dict(os.environ)
    backend.dispatch(0, [task(0, 0, "threads")])
    event = next_event(backend)
    assert isinstance(event, Arrival)
    assert event.results[0][0] == 1.0
    assert dict(os.environ) == before


def test_closing_ends_workers_whatever_they_do(tmp_path: Path) -> None:
    backend = LocalBackend(
        3, Scripted(folder=tmp_path), messaging=Messaging(delays=lambda _, i: HOURS * (i == 2))
    )
    pids = backend.pids
    backend.dispatch(0, [task(0, 1, "gate a"), task(0, 2)])
    eventually((tmp_path / "begun a").exists, "computing")
    assert all(is_running(pid) for pid in pids)
    backend.close()
    assert not [pid for pid in pids if is_running(pid)]


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    def use() -> int:
        with LocalBackend(2, Scripted(folder=tmp_path)) as backend:
            kill(backend.pids[0])
            backend.dispatch(0, [task(0, 1, "exit")])
            next_event(backend)
        return open_files()

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = use()
    for _ in range(3):
        use()
    # What other tests have opened may close meanwhile, and be replaced by nothing.
    eventually(lambda: open_files() <= before, "the end of all descriptors")


@dataclass(frozen=True, kw_only=True)
class Heavy:
    """A factory that carries more than a socket holds, as one with a dataset inside does."""

    data: bytes

    def __call__(self) -> Compute:
        size = float(len(self.data))
        return lambda parts: np.array([size] * len(parts))


def test_a_factory_larger_than_a_socket_holds_arrives_and_again_at_a_replacement() -> None:
    size = 8_000_000
    with LocalBackend(2, Heavy(data=bytes(size))) as backend:
        pid = backend.pids[0]
        kill(pid)
        wait_for_replacement(backend, 0, pid)
        backend.dispatch(0, [task(0, 0)])
        event = next_event(backend)
    assert isinstance(event, Arrival)
    assert event.results[0].tolist() == [size]


def test_too_few_descriptors_are_said_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 100))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    for begin in (lambda: LocalBackend(16, Scripted), workers.local(16).__enter__):
        with pytest.raises(
            ParameterError, match=r"`n` needs 112 open files, .* allows 100; got 16"
        ):
            begin()
    assert not multiprocessing.active_children()


class Counting:
    """A compute function that counts a large array up, and returns its smallest and largest."""

    def __init__(self) -> None:
        self.numbers = np.zeros(300_000)

    def __call__(self) -> Compute:
        def compute(_parts: object) -> FloatArray:
            self.numbers += 1
            return np.array([self.numbers.min(), self.numbers.max()])

        return compute


def test_workers_map_large_arrays_and_a_change_stays_in_the_process_that_made_it() -> None:
    counting = Counting()
    with LocalBackend(2, counting) as backend:
        counting.numbers += 100  # later than the workers' start

        def count(round: int, worker: int) -> list[float]:
            backend.dispatch(round, [task(round, worker)])
            return [float(each) for each in next_event(backend).results[0]]

        assert [count(0, 0), count(1, 0), count(2, 1)] == [[1, 1], [2, 2], [1, 1]]
        backend.restart(0)
        assert count(3, 0) == [1, 1]
        mappings = Path(f"/proc/{backend.pids[1]}/maps")
        if mappings.exists():
            assert "seqgc-buffers" in mappings.read_text()

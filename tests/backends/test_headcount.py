"""Fewer processes than workers: nothing fails, and whoever is absent is stood in for."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from seqgc.backends import LocalBackend, Messaging, local
from seqgc.ports import Arrival, Failure, Notice, PartialArrival
from seqgc.testing import eventually
from seqgc.testing.scripted import address, next_event, next_events, task
from tests.backends.scripted import Scripted, is_running


class Wanted:
    """The number of processes that a test wants, and the backend that has them."""

    def __init__(self, n: int, folder: Path, *, at_first: int | None = None) -> None:
        self.count = n if at_first is None else at_first
        self.backend = LocalBackend(n, Scripted(folder=folder), wanted=lambda: self.count)

    def change(self, count: int) -> None:
        """Want another number; return when the backend has seen it, and has read no answer."""
        self.count = count
        while not isinstance(notice := self.backend.receive(math.inf), Notice):
            raise AssertionError(f"{notice} came before")
        assert (notice.kind, notice.fields["present"]) == ("workers", count)

    def settle(self, pids: int) -> None:
        """Wait until there are as many processes, and all are ready."""

        def are_there() -> bool:
            assert self.backend.receive(time.monotonic() + 0.01) is None
            return sum(pid > 0 for pid in self.backend.pids) == pids

        eventually(are_there, f"{pids} processes")


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Wanted]:
    wanted = Wanted(4, tmp_path)
    with wanted.backend:
        yield wanted


def pids_of(backend: LocalBackend, round: int) -> dict[int, int]:
    """Return the process that computes a task of each worker."""
    backend.dispatch(round, [task(round, worker, "pid") for worker in range(backend.n)])
    return {e.worker: _pid(e) for e in next_events(backend, backend.n)}


def _pid(event: Arrival | Failure) -> int:
    assert isinstance(event, Arrival), event
    return int(event.results[0][0])


def test_the_processes_that_stay_compute_for_all_workers(four: Wanted) -> None:
    backend = four.backend
    before = backend.pids
    four.change(3)
    assert backend.pids == (*before[:3], 0)
    assert not is_running(before[3])
    assert pids_of(backend, 0) == dict(enumerate([*before[:3], before[0]]))
    four.change(1)
    assert set(pids_of(backend, 1).values()) == {before[0]}
    four.change(4)
    eventually(lambda: len(set(pids_of(backend, next(rounds)).values())) == 4, "all at work")
    assert backend.pids[0] == before[0]


rounds = iter(range(100, 10_000))


def test_what_a_leaving_worker_has_is_computed_by_others_and_nothing_fails(
    four: Wanted, tmp_path: Path
) -> None:
    """Both what it computes and what it has not begun."""
    backend = four.backend
    leaving = backend.pids[3]
    backend.dispatch(0, [task(0, worker, f"gate {worker}") for worker in range(4)])
    backend.dispatch(1, [task(1, 3)])
    eventually((tmp_path / "begun 3").exists, "computing")
    began = time.monotonic()
    four.change(2)
    assert time.monotonic() - began < 2.0
    assert not is_running(leaving)
    for worker in range(4):
        (tmp_path / f"go {worker}").touch()
    assert sorted(map(address, next_events(backend, 5))) == [
        *(("Arrival", 0, worker, 0) for worker in range(4)),
        ("Arrival", 1, 3, 0),
    ]


def test_a_moved_task_is_answered_again_mini_task_by_mini_task(
    four: Wanted, tmp_path: Path
) -> None:
    """The master has asked for the whole task; the loop knows which result it has already."""
    backend = four.backend
    backend.dispatch(0, [replace(task(0, 3, "plain", "gate a"), item_loads=(0.1, 0.1))])
    assert address(next_event(backend)) == ("PartialArrival", 0, 3, 0)
    eventually((tmp_path / "begun a").exists, "the second mini-task")
    four.change(2)
    (tmp_path / "go a").touch()
    again, last = next_events(backend, 2)
    assert isinstance(again, PartialArrival)
    assert isinstance(last, Arrival)
    assert (again.slot, list(last.results)) == (0, [10])


def test_a_worker_that_returns_computes_what_waits_for_a_process(
    four: Wanted, tmp_path: Path
) -> None:
    backend = four.backend
    four.change(1)
    backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1), task(0, 2, "pid"), task(0, 3, "pid")])
    eventually((tmp_path / "begun a").exists, "computing")
    four.change(4)
    pids = {event.worker: _pid(event) for event in next_events(backend, 2)}
    assert pids.keys() == {2, 3}
    assert set(pids.values()) <= set(backend.pids[1:]), "whichever of them was ready first"
    (tmp_path / "go a").touch()
    assert {address(event)[2] for event in next_events(backend, 2)} == {0, 1}, "1 was sent ahead"


def test_a_run_may_begin_with_fewer(tmp_path: Path) -> None:
    wanted = Wanted(3, tmp_path, at_first=1)
    with wanted.backend as backend:
        notice = backend.receive(math.inf)
        assert isinstance(notice, Notice)
        assert notice.fields == {"present": 1, "of": 3}
        assert [pid > 0 for pid in backend.pids] == [True, False, False]
        assert set(pids_of(backend, 0).values()) == {backend.pids[0]}
        wanted.change(3)
        wanted.settle(3)


@pytest.mark.parametrize(("asked", "counts"), [(0, 1), (-3, 1), (99, 2)])
def test_numbers_out_of_range_mean_the_nearest_one(tmp_path: Path, asked: int, counts: int) -> None:
    with Wanted(2, tmp_path, at_first=asked).backend as backend:
        assert sum(pid > 0 for pid in backend.pids) == counts


def test_a_cancel_concerns_one_of_the_workers_of_a_process(four: Wanted, tmp_path: Path) -> None:
    backend = four.backend
    four.change(1)
    backend.dispatch(0, [task(0, 0, "gate a"), *(task(0, worker) for worker in (1, 2, 3))])
    eventually((tmp_path / "begun a").exists, "computing")
    backend.cancel(0, [1, 2])
    (tmp_path / "go a").touch()
    assert [address(event)[2] for event in next_events(backend, 2)] == [0, 3]
    backend.dispatch(1, [task(1, worker) for worker in (1, 2)])
    assert {address(event) for event in next_events(backend, 2)} == {
        ("Arrival", 1, 1, 0),
        ("Arrival", 1, 2, 0),
    }


def test_the_end_of_a_process_fails_what_it_was_sent_and_the_rest_waits_for_the_next(
    four: Wanted, tmp_path: Path
) -> None:
    backend = four.backend
    four.change(1)
    backend.dispatch(0, [task(0, 2, "gate a"), *(task(0, worker) for worker in (3, 0, 1))])
    eventually((tmp_path / "begun a").exists, "computing")
    os.kill(backend.pids[0], signal.SIGKILL)
    events = next_events(backend, 4)
    failed = [event for event in events if isinstance(event, Failure)]
    assert {event.worker for event in failed} == {2, 3}
    assert {event.worker for event in events} == {0, 1, 2, 3}
    (computed,) = (event.worker for event in failed if event.model is not None)
    assert computed == 2


def test_a_worker_whose_task_waits_for_the_task_of_another_needs_no_new_process(
    four: Wanted, tmp_path: Path
) -> None:
    backend = four.backend
    four.change(1)
    pid = backend.pids[0]
    backend.dispatch(0, [task(0, 2, "gate a"), *(task(0, worker) for worker in (3, 0, 1))])
    eventually((tmp_path / "begun a").exists, "computing")
    for worker in (1, 3):  # one waits in the master, the other in the process
        assert backend.restart(worker) is None
        assert address(next_event(backend)) == ("Failure", 0, worker, 0)
    backend.dispatch(0, [task(0, worker, attempt=1) for worker in (1, 3)])
    (tmp_path / "go a").touch()
    assert {address(event) for event in next_events(backend, 4)} == {
        ("Arrival", 0, 2, 0),
        ("Arrival", 0, 0, 0),
        ("Arrival", 0, 1, 1),
        ("Arrival", 0, 3, 1),
    }
    assert backend.pids[0] == pid


def test_a_process_that_hangs_in_a_task_that_was_cancelled_is_replaced(
    four: Wanted, tmp_path: Path
) -> None:
    backend = four.backend
    four.change(1)
    pid = backend.pids[0]
    backend.dispatch(0, [task(0, 2, "gate a"), task(0, 3)])
    eventually((tmp_path / "begun a").exists, "computing")
    backend.cancel(0, [2])
    backend.restart(3)
    assert address(next_event(backend)) == ("Failure", 0, 3, 0)
    assert backend.pids[0] not in (0, pid)


def test_a_restart_names_the_task_of_a_worker_that_is_stood_in_for(
    four: Wanted, tmp_path: Path
) -> None:
    backend = four.backend
    four.change(1)
    backend.dispatch(5, [task(5, 2, "gate a")])
    eventually((tmp_path / "begun a").exists, "computing")
    computing = backend.restart(2)
    assert computing is not None
    assert (computing.round, computing.attempt) == (5, 0)
    assert address(next_event(backend)) == ("Failure", 5, 2, 0)


def test_one_that_is_stopped_leaves_all_the_same(four: Wanted) -> None:
    backend = four.backend
    os.kill(backend.pids[3], signal.SIGSTOP)
    backend.dispatch(0, [task(0, 3)])
    leaving = backend.pids[3]
    four.change(3)
    assert not is_running(leaving)
    assert address(next_event(backend)) == ("Arrival", 0, 3, 0)


@pytest.mark.parametrize("every_s", [0.0, 0.1])
def test_one_that_is_killed_while_it_leaves_is_gone_once(
    four: Wanted, tmp_path: Path, every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wish that it leave is read before its end, and its task is moved, or after it."""
    monkeypatch.setattr(local, "_ASK_EVERY_S", every_s)
    backend = four.backend
    backend.dispatch(0, [task(0, 3, "gate a")])
    eventually((tmp_path / "begun a").exists, "computing")
    assert backend.receive(time.monotonic()) is None
    os.kill(backend.pids[3], signal.SIGKILL)
    four.count = 3
    events = [backend.receive(math.inf)]
    (tmp_path / "go a").touch()
    events.append(backend.receive(math.inf))
    (notice,) = (event for event in events if isinstance(event, Notice))
    assert notice.fields["present"] == 3
    (event,) = (event for event in events if not isinstance(event, Notice | None))
    assert (event.round, event.worker) == (0, 3)
    assert backend.pids[3] == 0
    assert set(pids_of(backend, 1).values()) == set(backend.pids[:3])


def test_one_that_is_killed_while_it_returns_is_started_again(four: Wanted) -> None:
    backend = four.backend
    four.change(3)
    four.change(4)
    os.kill(pid := backend.pids[3], signal.SIGKILL)
    eventually(lambda: backend.receive(time.monotonic()) is None and backend.pids[3] != pid, "it")
    eventually(lambda: len(set(pids_of(backend, next(rounds)).values())) == 4, "all at work")


def test_going_and_coming_at_once_leaves_no_process_and_loses_nothing(
    four: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_ASK_EVERY_S", 0.0)
    backend, seen = four.backend, set[int]()
    for round in range(12):
        backend.dispatch(round, [task(round, worker) for worker in range(4)])
        four.count = (1, 4, 2, 4)[round % 4]
        assert {address(event)[:2] for event in next_events(backend, 4)} == {("Arrival", round)}
        seen |= set(backend.pids)
    now = set(backend.pids)
    assert len(seen) > 4
    eventually(lambda: not any(is_running(pid) for pid in seen - now - {0}), "the ends of all")


def test_one_that_cannot_start_again_is_reported_and_others_do_its_work(tmp_path: Path) -> None:
    count = [2]
    scripted = Scripted(folder=tmp_path, plan="only first")
    with LocalBackend(2, scripted, wanted=lambda: count[0]) as backend:
        count[0] = 1
        assert isinstance(backend.receive(math.inf), Notice)
        (tmp_path / "no more").touch()
        count[0] = 2
        assert isinstance(backend.receive(math.inf), Notice)
        warning = backend.receive(math.inf)
        assert isinstance(warning, Notice)
        assert "no dataset any more" in str(warning.fields["text"])
        backend.dispatch(0, [task(0, 1)])
        assert address(next_event(backend)) == ("Arrival", 0, 1, 0)


def test_one_that_was_given_up_stands_in_for_nobody(tmp_path: Path) -> None:
    count = [3]
    scripted = Scripted(folder=tmp_path, plan="only first")
    with LocalBackend(3, scripted, wanted=lambda: count[0]) as backend:
        (tmp_path / "no more").touch()
        os.kill(backend.pids[0], signal.SIGKILL)
        eventually(
            lambda: backend.receive(time.monotonic() + 0.01) is None and not backend.pids[0],
            "giving it up",
        )
        backend.dispatch(0, [task(0, 2, "gate a")])
        eventually((tmp_path / "begun a").exists, "computing")
        count[0] = 2
        assert isinstance(backend.receive(math.inf), Notice)
        (tmp_path / "go a").touch()
        assert address(next_event(backend)) == ("Arrival", 0, 2, 0)


def test_answers_of_a_worker_that_a_process_never_served_are_refused(tmp_path: Path) -> None:
    with LocalBackend(2, Scripted(folder=tmp_path), messaging=Messaging()) as backend:
        backend.dispatch(1, [task(1, 1, "gossip")])  # it speaks as worker 0
        failure = next_event(backend)
        assert isinstance(failure, Failure)
        assert "unexpected ResultMessage" in failure.reason

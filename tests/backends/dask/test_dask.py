"""What is the dask backend's own: clusters, processes that end, what it leaves behind."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, Security, Worker, default_client
from distributed.comm import connect

from seqgc._durable import is_marked
from seqgc.backends import Messaging, dask_
from seqgc.backends.dask_ import DaskBackend
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Arrival, Failure, FloatArray, Notice, RestartingBackend, WeightedPoints
from seqgc.testing import PATIENCE_S, HandWoundClock, eventually
from seqgc.testing.scripted import (
    address,
    gradient,
    next_arrival,
    next_event,
    next_events,
    part,
    task,
)
from tests.backends.dask import warm as warm
from tests.backends.dask.stopping import stopping
from tests.backends.scripted import Scripted
from tests.kit import SOAK


@pytest.fixture
def client() -> Iterator[Client]:
    """Somebody's own cluster of two dask workers."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_a_client_need_not_be_the_one_that_dask_uses_unless_it_is_told(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        DaskBackend(1, Scripted(folder=tmp_path), client=client) as backend,
    ):
        backend.dispatch(0, [task(0, 0)])
        assert address(next_event(backend)) == ("Arrival", 0, 0, 0)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_cluster_of_its_own_is_gone_with_the_backend(tmp_path: Path, processes: int) -> None:
    before = set(threading.enumerate())  # of which those of other tests may end meanwhile
    with DaskBackend(3, Scripted(folder=tmp_path), processes=processes) as backend:
        assert len(multiprocessing.active_children()) == processes
        backend.dispatch(0, [task(0, worker) for worker in range(3)])
        next_events(backend, 3)
    assert multiprocessing.active_children() == []
    # The thread that watched a worker's process ends when it has seen that end.
    eventually(lambda: before.issuperset(threading.enumerate()), "the end of dask's threads")


def test_nobody_without_its_keys_reaches_a_cluster_of_its_own(tmp_path: Path) -> None:
    async def reach(address: str, security: Security, *, within_s: float = 5.0) -> bool:
        arguments = security.get_connection_args("client")
        try:
            comm = await connect(address, timeout=within_s, **arguments)
        except OSError:
            return False
        await comm.close()
        return True

    with DaskBackend(1, Scripted(folder=tmp_path), processes=1) as backend:
        client = default_client()
        info = client.scheduler_info()
        (worker,) = info["workers"].values()  # what it spills is pickled: nobody else may write it
        folders = Path(worker["local_directory"]).parents
        private = [folder for folder in folders if folder.stat().st_mode & 0o077 == 0]
        (own_folder,) = (each for each in private if each.name.startswith("seqgc-dask-"))
        assert is_marked(own_folder), "or it would stay if this process were killed"
        own, others = client.security, Security.temporary()
        for there in (client.scheduler.address, *info["workers"]):
            assert there.startswith("tls://")
            assert asyncio.run(reach(there, own, within_s=PATIENCE_S))
            assert not asyncio.run(reach(there, others))
            assert not asyncio.run(reach(there.replace("tls://", "tcp://"), Security()))
        backend.dispatch(0, [task(0, 0)])
        assert isinstance(next_event(backend), Arrival)
    assert not own_folder.exists()


def test_without_cryptography_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(WorkerError, match="pip install cryptography, or give a `client`"):
        DaskBackend(1, Scripted(folder=tmp_path), processes=1)


def test_a_scheduler_that_is_started_anew_is_told_of_the_run(
    client: Client, tmp_path: Path
) -> None:
    """It knows its client again, but nothing of what the one before was told."""
    with DaskBackend(2, Scripted(folder=tmp_path), client=client) as backend:
        for round in range(3):
            (name,) = {name for names in client.run(plugins).values() for name in names}
            client.unregister_worker_plugin(name)
            assert not any(client.run(plugins).values())
            backend.dispatch(round, [task(round, worker) for worker in (0, 1)])
            arrived = {address(event) for event in next_events(backend, 2)}
            assert arrived == {("Arrival", round, worker, 0) for worker in (0, 1)}
        client.unregister_worker_plugin(name)  # which closing finds


def plugins(dask_worker: Worker) -> list[str]:
    return [name for name in dask_worker.plugins if name.startswith("seqgc-")]


def test_what_a_client_that_has_given_up_does_not_take_are_failures(tmp_path: Path) -> None:
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        client = Client(cluster, set_as_default=False)
        with DaskBackend(2, Scripted(folder=tmp_path), client=client) as backend:
            client.close()
            for round in (0, 1):
                backend.dispatch(round, [task(round, worker) for worker in (0, 1)])
                failures = next_events(backend, 2)
                assert {address(e) for e in failures} == {("Failure", round, w, 0) for w in (0, 1)}
                assert all(e.reason for e in failures if isinstance(e, Failure))


def test_it_ends_at_once_whatever_its_workers_do(tmp_path: Path) -> None:
    backend = DaskBackend(2, Scripted(folder=tmp_path), processes=1)
    backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1, "gate b")])
    backend.dispatch(1, [task(1, 0)])
    eventually((tmp_path / "begun a").exists, "computing")
    began = time.monotonic()
    backend.close()
    assert time.monotonic() - began < PATIENCE_S / 2, "its workers compute for longer"
    assert multiprocessing.active_children() == []


def test_it_ends_though_its_workers_are_stopped() -> None:
    backend = DaskBackend(1, stopping, processes=1)
    (worker,) = multiprocessing.active_children()
    backend.dispatch(0, [task(0, 0)])
    status = Path(f"/proc/{worker.pid}/status")
    eventually(lambda: "(stopped)" in status.read_text(), "the worker's stop")
    backend.close()
    assert multiprocessing.active_children() == []


def test_it_ends_though_the_workers_of_a_client_are_stopped() -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        backend = DaskBackend(1, stopping, client=client)
        (worker,) = multiprocessing.active_children()
        assert worker.pid is not None
        try:
            backend.dispatch(0, [task(0, 0)])
            status = Path(f"/proc/{worker.pid}/status")
            eventually(lambda: "(stopped)" in status.read_text(), "the worker's stop")
            backend.close()
        finally:
            os.kill(worker.pid, signal.SIGCONT)


def test_tasks_of_a_process_that_ends_fail_and_another_takes_its_place(tmp_path: Path) -> None:
    with DaskBackend(2, Scripted(folder=tmp_path), processes=1) as backend:
        backend.dispatch(0, [task(0, 0, "exit")])
        failure = next_event(backend)
        assert isinstance(failure, Failure)
        assert address(failure) == ("Failure", 0, 0, 0)
        assert re.fullmatch(r"the dask worker tls://[\d.:]+ was lost: [^\n<]+", failure.reason)
        assert failure.model == "", "its process has ended"
        backend.dispatch(0, [task(0, 0, attempt=1), task(0, 1)])  # waits for the new process
        assert {address(event) for event in next_events(backend, 2)} == {
            ("Arrival", 0, 0, 1),
            ("Arrival", 0, 1, 0),
        }


@pytest.mark.parametrize("computes", [True, False] if SOAK else [True])
def test_a_worker_that_is_restarted_owes_nothing_and_has_another_process(
    computes: bool, tmp_path: Path
) -> None:
    messaging = Messaging(delays=lambda round, _: 600.0 if round == 1 else 0.0)
    scripted = Scripted(folder=tmp_path)
    with DaskBackend(2, scripted, processes=2, messaging=messaging) as backend:
        assert isinstance(backend, RestartingBackend)
        first, other = _pids(backend, 0)
        backend.dispatch(1, [task(1, 0)])  # the answer waits for its time
        if computes:
            backend.dispatch(2, [task(2, 0, "gate a")])
            backend.dispatch(3, [task(3, 0)])
            eventually((tmp_path / "begun a").exists, "computing")
        backend.restart(0)
        backend.restart(0)  # which changes nothing: it is being done
        rounds = [1, 2, 3] if computes else [1]
        for round, event in zip(rounds, next_events(backend, len(rounds)), strict=True):
            assert isinstance(event, Failure)
            assert address(event) == ("Failure", round, 0, 0)
            assert event.reason == "the worker was restarted"
        again, still = _pids(backend, 4)  # waits for the new process
        assert (again != first, still) == (True, other)
        assert _pids(backend, 5) == (again, other), "each stays where it is"
        assert {each.pid for each in multiprocessing.active_children()} == {again, other}
        (tmp_path / "go a").touch()
        assert backend.receive(0.0) is None


def _pids(backend: DaskBackend, round: int) -> tuple[int, ...]:
    """Return the processes in which the workers compute."""
    backend.dispatch(round, [task(round, worker, "pid") for worker in range(backend.n)])
    pids = dict[int, int]()
    for event in next_events(backend, backend.n):
        assert isinstance(event, Arrival), event
        pids[event.worker] = int(event.results[0][0])
    return tuple(pids[worker] for worker in range(backend.n))


def test_a_worker_that_hangs_can_be_restarted() -> None:
    with DaskBackend(2, stopping, processes=1) as backend:
        (worker,) = multiprocessing.active_children()
        backend.dispatch(0, [task(0, 0)])
        status = Path(f"/proc/{worker.pid}/status")
        eventually(lambda: "(stopped)" in status.read_text(), "the worker's stop")
        backend.restart(0)
        assert address(next_event(backend)) == ("Failure", 0, 0, 0)
        eventually(lambda: not status.exists(), "its end")


def test_nobody_is_restarted_in_threads_and_on_the_cluster_of_somebody_else(
    tmp_path: Path, client: Client
) -> None:
    for backend in (
        DaskBackend(2, Scripted(folder=tmp_path), processes=0),
        DaskBackend(2, Scripted(folder=tmp_path), client=client),
    ):
        with backend:
            assert not isinstance(backend, RestartingBackend)


def test_a_cancelled_task_of_a_process_that_ends_is_no_failure(tmp_path: Path) -> None:
    with DaskBackend(1, Scripted(folder=tmp_path), processes=1) as backend:
        backend.dispatch(0, [task(0, 0, "gate a", "exit")])
        eventually((tmp_path / "begun a").exists, "computing")
        backend.cancel(0, [0])
        (tmp_path / "go a").touch()
        backend.dispatch(1, [task(1, 0)])
        assert address(next_event(backend)) == ("Arrival", 1, 0, 0)


def test_a_client_is_used_and_left_alone(tmp_path: Path, client: Client) -> None:
    with DaskBackend(5, Scripted(folder=tmp_path), client=client) as backend:
        backend.dispatch(0, [task(0, worker) for worker in range(5)])
        assert {event.worker for event in next_events(backend, 5)} == set(range(5))
    assert client.status == "running"
    assert client.submit(sum, [1, 2]).result() == 3
    plugins = client.run(_plugins)
    assert [name for names in plugins.values() for name in names if "seqgc" in name] == []

    def is_forgotten() -> bool:
        return not any("seqgc" in key for keys in client.has_what().values() for key in keys)

    eventually(is_forgotten, "its results' removal, of which the scheduler hears")


def _plugins(dask_worker: object) -> list[str]:
    return list(dask_worker.plugins)  # type: ignore[attr-defined]


def test_two_backends_share_a_client(tmp_path: Path, client: Client) -> None:
    with (
        DaskBackend(
            1, Scripted(folder=tmp_path), client=client, messaging=Messaging(run_id="a")
        ) as one,
        DaskBackend(
            1, Scripted(folder=tmp_path), client=client, messaging=Messaging(run_id="b")
        ) as two,
    ):
        one.dispatch(0, [task(0, 0)])
        two.dispatch(7, [task(7, 0)])
        assert (next_event(one).round, next_event(two).round) == (0, 7)


def test_a_worker_that_is_busy_holds_up_no_other(tmp_path: Path, client: Client) -> None:
    with DaskBackend(2, Scripted(folder=tmp_path), client=client) as backend:
        backend.dispatch(0, [task(0, 0, "gate a")])
        for round in (1, 2, 3):
            backend.dispatch(round, [task(round, 0), task(round, 1)])
            assert address(next_event(backend)) == ("Arrival", round, 1, 0)
        (tmp_path / "go a").touch()
        assert [event.round for event in next_events(backend, 4)] == [0, 1, 2, 3]


def test_a_task_waits_behind_no_other_while_a_dask_worker_is_idle(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, direct_to_workers=True) as client,
        DaskBackend(3, Scripted(folder=tmp_path), client=client) as backend,
    ):
        for round in (0, 1):  # short tasks, of which some are sent ahead
            backend.dispatch(round, [task(round, worker) for worker in range(3)])
            next_events(backend, 3)
        backend.dispatch(2, [task(2, 0, "gate a")])
        eventually((tmp_path / "begun a").exists, "computing")
        for round in range(3, 7):
            for worker in (1, 2):
                backend.dispatch(round, [task(round, worker)])
                assert address(next_event(backend)) == ("Arrival", round, worker, 0)
        (tmp_path / "go a").touch()
        assert address(next_event(backend)) == ("Arrival", 2, 0, 0)


def test_a_task_of_a_users_cluster_is_lost_with_its_dask_worker(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        DaskBackend(2, Scripted(folder=tmp_path), client=client) as backend,
    ):
        backend.dispatch(0, [task(0, 0, "exit")])
        failure = next_event(backend)
        assert isinstance(failure, Failure)
        assert re.fullmatch(r"the dask worker tcp://[\d.:]+ was lost: [^\n<]+", failure.reason)
        backend.dispatch(0, [task(0, 0, attempt=1), task(0, 1)])  # on a new dask worker
        assert {type(event) for event in next_events(backend, 2)} == {Arrival}


def test_without_dask_workers_tasks_wait_and_time_stands_still(tmp_path: Path) -> None:
    clock = HandWoundClock(100.0)
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        DaskBackend(
            1, Scripted(folder=tmp_path), client=client, start_timeout_s=0.2, clock=clock
        ) as backend,
    ):
        clock.wind(1.0)
        (left_at,) = backend.dispatch(0, [task(0, 0)])
        assert (left_at, next_arrival(backend).at) == (101.0, 101.0)
        cluster.scale(0)
        eventually(lambda: not client.nthreads(), "the end of the dask worker")
        backend.dispatch(1, [task(1, 0)])
        notice = backend.receive(math.inf)
        if isinstance(notice, Failure):  # it was sent before the backend knew
            backend.dispatch(1, [task(1, 0, attempt=1)])
            notice = backend.receive(math.inf)
        assert isinstance(notice, Notice)
        assert notice.kind == "warning"
        for words in ("no dask worker was available within 0.2 s", cluster.scheduler_address):
            assert words in str(notice.fields["text"])
        clock.wind(1000.0)
        cluster.scale(1)
        event = backend.receive(math.inf)
        assert isinstance(event, Arrival), "and there is no second notice"
        assert (event.round, event.at) == (1, 101.0)
        clock.wind(1.0)
        (left_at,) = backend.dispatch(2, [task(2, 0)])
        assert left_at == 102.0


def test_dask_workers_that_are_never_ready_fail_their_tasks(tmp_path: Path) -> None:
    scripted = Scripted(folder=tmp_path, plan="only first")
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        DaskBackend(1, scripted, client=client, start_timeout_s=1.0) as backend,
    ):
        (tmp_path / "no more").touch()
        backend.dispatch(0, [task(0, 0, "exit")])
        assert address(next_event(backend)) == ("Failure", 0, 0, 0)
        backend.dispatch(1, [task(1, 0)])
        failure = next_event(backend)
        assert isinstance(failure, Failure)
        assert failure.model is None


def test_an_idle_cluster_is_kept_awake_until_the_backend_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_, "_LOOK_EVERY_S", 0.05)
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        with DaskBackend(1, Scripted(folder=tmp_path), client=client):
            begun = cluster.scheduler.transition_counter  # by which dask tells that it is idle
            eventually(lambda: cluster.scheduler.transition_counter > begun + 20, "empty tasks")
        eventually(lambda: not cluster.scheduler.tasks, "the end of the last task")


def test_a_dask_worker_that_joins_later_computes_too(tmp_path: Path) -> None:
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    )
    with (
        cluster,
        Client(cluster) as client,
        DaskBackend(2, Scripted(folder=tmp_path), client=client) as backend,
    ):
        backend.dispatch(0, [task(0, 0, "gate a")])
        eventually((tmp_path / "begun a").exists, "computing")
        cluster.scale(2)
        client.wait_for_workers(2, timeout=30)
        backend.dispatch(0, [task(0, 1)])
        assert next_event(backend).worker == 1
        (tmp_path / "go a").touch()
        assert next_event(backend).worker == 0


def test_results_are_rounded_as_on_every_backend(tmp_path: Path) -> None:
    with DaskBackend(
        1,
        Scripted(folder=tmp_path),
        processes=0,
        messaging=Messaging(payload="bfloat16", stochastic_rounding=True),
    ) as backend:
        backend.dispatch(0, [task(0, 0)])
        event = next_event(backend)
    assert isinstance(event, Arrival)
    exact = gradient(part())
    assert np.abs(event.results[0] - exact).max() <= np.abs(exact).max() * 2**-7
    assert not np.array_equal(event.results[0], exact)


def test_a_factory_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="does not start: RuntimeError: no dataset here"):
        DaskBackend(1, Scripted(folder=tmp_path, plan="raise"), processes=0)
    assert multiprocessing.active_children() == []


def test_a_cluster_without_workers_is_no_cluster(tmp_path: Path) -> None:
    cluster = LocalCluster(n_workers=0, processes=False, dashboard_address=":0")
    with cluster, Client(cluster) as client:
        with pytest.raises(
            WorkerError, match=r"no dask worker was available within 0\.1 s; start one"
        ):
            DaskBackend(1, Scripted(folder=tmp_path), client=client, start_timeout_s=0.1)
        assert client.status == "running"


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"n": 0}, "`n` must be an integer >= 1"),
        ({"processes": -1}, "`processes` must be >= 0"),
        ({"start_timeout_s": 0.0}, "`start_timeout_s` must be > 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, arguments: dict[str, object], rule: str
) -> None:
    given = {"n": 1, "processes": 0} | arguments
    n = given.pop("n")
    with pytest.raises(ParameterError, match=rule):
        DaskBackend(n, Scripted(folder=tmp_path), **given)  # type: ignore[arg-type]
    assert multiprocessing.active_children() == []


def test_a_factory_that_cannot_travel_is_refused() -> None:
    with pytest.raises(ParameterError, match="`compute` must be picklable"):
        DaskBackend(1, threading.Lock(), processes=0)  # type: ignore[arg-type]


def test_tasks_of_two_threads_never_share_a_compute_function(
    tmp_path: Path, client: Client
) -> None:
    with DaskBackend(4, Identified(), client=client) as backend:
        for round in range(3):
            backend.dispatch(round, [task(round, worker) for worker in range(4)])
            events = next_events(backend, 4)
            assert all(isinstance(event, Arrival) for event in events), (tmp_path, events)


class Identified:
    """A compute factory whose functions refuse to be called by more than one thread."""

    def __call__(self) -> OneThread:
        return OneThread()


_ALL_FOUR = threading.Barrier(4)


class OneThread:
    def __init__(self) -> None:
        self._thread: int | None = None

    def __call__(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            raise RuntimeError("called by a second thread")
        with suppress(threading.BrokenBarrierError):
            _ALL_FOUR.wait(1.0)  # so that all threads are here at once
        return np.concatenate([gradient(part) for part in parts])

"""A dask cluster on this machine, or a client that somebody else owns; and what runs there.

A run's compute function is kept on every dask worker as a plugin, its `Station`. The functions that
dask calls there (`answer`, `prepare`, `forget`) find it by its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import dask
from distributed import (
    Client,
    LocalCluster,
    Nanny,
    Scheduler,
    SchedulerPlugin,
    Security,
    Status,
    Worker,
    WorkerPlugin,
    get_worker,
)

from seqgc._durable import temporary_folder
from seqgc._fault import fault_of
from seqgc.backends._main_module import without_script
from seqgc.errors import ParameterError, WorkerError, reraise_stop
from seqgc.wire import TaskMessage, decode, encode
from seqgc.worker import Compute, ComputeFactory, run_task

__all__ = ["Address", "Cluster", "Place", "Station", "Unstationed", "answer", "forget", "prepare"]

Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt

_WITHDRAW_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.1  # whether a process has been started


class Unstationed(LookupError):
    """A dask worker does not know the run: its scheduler is another than the one that was told."""


class Place(NamedTuple):
    """A dask worker: its address, and how many tasks it computes at once."""

    address: str
    threads: int


class Cluster:
    """The dask workers of one run, over which its ``n`` workers are spread.

    They are those of ``client``, which is left as it was found, or of a new cluster on this
    machine, of ``processes`` (None: as many as cores; 0: threads of this process). They must be
    there within ``start_timeout_s`` seconds; `close` undoes everything.
    """

    def __init__(
        self, n: int, *, client: Client | None, processes: int | None, start_timeout_s: float
    ) -> None:
        if processes is not None and (client is not None or processes < 0):
            rule = "must be >= 0, and left out where a client brings its own"
            raise ParameterError("processes", rule, processes)
        self._timeout_s, self._own = start_timeout_s, client is None
        self.restarts: Final = client is None and processes != 0  # its processes, with `replace`
        self._nannies: dict[str, str | None] = {}  # who starts it anew, by dask worker
        self._stack = ExitStack()
        self._bring: Callable[[], Any] = lambda: None
        try:
            self.client: Final = self._started(n, processes) if client is None else client
            try:  # a cluster of our own has started with all of them
                self.client.wait_for_workers(1, timeout=start_timeout_s)
            except TimeoutError:
                message = f"no dask worker was there within {start_timeout_s:g} s"
                raise WorkerError(f"{message}; start one, or raise `start_timeout_s`") from None
        except BaseException:
            self.close()
            raise

    def open(self, name: str, *, run_id: str, factory: ComputeFactory) -> list[Place]:
        """Bring a run's compute function to every dask worker, now and later; make it.

        Return the dask workers that there are now.

        Raises `ParameterError` if the factory cannot cross processes, and `WorkerError` with the
        cause if it cannot be made there.
        """
        plugin: WorkerPlugin = Station(name, run_id=run_id, factory=factory)
        try:
            self.client.register_plugin(plugin, name=name)
        except Exception as error:
            rule = f"must cross processes ({error})"
            raise ParameterError("compute", rule, factory, "define it in a module") from error
        self._bring = partial(self.client.register_plugin, plugin, name=name)
        if not self._own:  # one's own ends with its workers, also with one that is stopped
            self._stack.callback(self._withdraw, name)
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        self._nannies = {address: worker["nanny"] for address, worker in workers.items()}
        places = [Place(address, workers[address]["nthreads"]) for address in sorted(workers)]
        ready = [self.client.submit(prepare, name, workers=[p.address], pure=False) for p in places]
        try:
            until = time.monotonic() + self._timeout_s
            for each in ready:  # `distributed.wait` asks dask's default client, if there is one
                each.exception(timeout=max(0.0, until - time.monotonic()))
            self.client.gather(ready)
        except TimeoutError:
            message = f"not every dask worker was ready within {self._timeout_s:g} s"
            raise WorkerError(f"{message}; raise `start_timeout_s`") from None
        except Exception as error:
            raise WorkerError(f"a worker does not start: {fault_of(error)}") from None
        return places

    async def bring_again(self) -> None:
        """Bring the compute function to a scheduler that has been started anew (client's loop)."""
        with suppress(Exception):  # tasks will say what is wrong
            await self._bring()

    async def place_of(self, key: str) -> Place | None:
        """Return where a task is computed, or waits; None if it is on no dask worker."""
        tasks = await self.client.processing()
        address = next((at for at, keys in tasks.items() if key in keys), "")
        workers = await self._workers()
        return Place(address, workers[address]["nthreads"]) if address in workers else None

    async def replace(self, place: Place, *, name: str) -> Place | None:
        """Have another process take the place of a dask worker; return its own, once it is there.

        The compute function of the run of that name has been made there. None: that was not so in
        time, or nobody knows who should start it.
        """
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._replaced(place, name), self._timeout_s)
        return None

    async def _replaced(self, place: Place, name: str) -> Place | None:
        known = (await self._workers()).get(place.address)
        if known is not None:
            self._nannies[place.address] = known["nanny"]
            with suppress(Exception):  # whatever is wrong: either another process comes, or none
                await self.client.restart_workers([place.address], timeout=self._timeout_s)
        if (nanny := self._nannies.get(place.address)) is None:
            return None
        while True:
            for address, worker in (await self._workers()).items():
                if worker["nanny"] == nanny and address != place.address:
                    with suppress(Exception):  # tasks will say what is wrong
                        await self.client.submit(prepare, name, workers=[address], pure=False)
                    self._nannies[address] = nanny
                    return Place(address, worker["nthreads"])
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _workers(self) -> dict[str, dict[str, Any]]:
        scheduler: Any = self.client.scheduler
        workers: dict[str, dict[str, Any]] = (await scheduler.identity(n_workers=-1))["workers"]
        return workers

    def _withdraw(self, name: str) -> None:
        """Take a run's compute function away; a dask worker that is stopped may keep it."""
        if (scheduler := self.client.scheduler) is None:  # its owner has closed it
            return
        with suppress(Exception):  # it has gone, or has been started anew and knows nothing
            unregister = scheduler.unregister_worker_plugin
            self.client.sync(unregister, name=name, callback_timeout=_WITHDRAW_S)

    def close(self) -> None:
        """Undo everything; harmless if done already."""
        self._stack.close()

    def _started(self, n: int, processes: int | None) -> Client:
        count = min(n, os.cpu_count() or 1) if processes is None else processes
        workers = min(n, max(1, count))
        # Else in a folder of a name that all users know, where what is spilled is pickled.
        folder = self._stack.enter_context(temporary_folder("seqgc-dask-"))
        # A task that was on a worker whose process ended has failed: who repeats it is decided by
        # the round's policy, not by the cluster.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=-(-n // workers),
                processes=count > 0,
                worker_class=_Nanny if count > 0 else None,
                security=_own_keys() if count > 0 else None,  # threads have no connections
                dashboard_address="127.0.0.1:0",
                local_directory=str(folder),
                silence_logs=logging.CRITICAL,
            )
            self._stack.enter_context(cluster)
        client: Client = self._stack.enter_context(Client(cluster))
        client.register_plugin(_AnyWorker(), name="seqgc-any-worker")
        return client


class _Nanny(Nanny):
    """Starts its worker, now and should that end, without the script that the master runs."""

    async def instantiate(self) -> Status:
        with without_script():
            return await super().instantiate()


class _AnyWorker(SchedulerPlugin):
    """Tasks go to whichever dask worker comes if they may, and the one they were meant for is gone.

    dask asks whether they may only while there is another; later they wait for the lost one.
    """

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        for task in scheduler.unrunnable:
            if task.loose_restrictions:
                task.worker_restrictions = set()


def _own_keys() -> Security:
    """Return keys for a cluster's own processes: whoever reaches a scheduler has code run there."""
    try:
        keys: Security = Security.temporary()
    except ImportError as error:
        remedy = "pip install cryptography, or give a `client`"
        raise WorkerError(f"dask needs cryptography ({error}): {remedy}") from None
    return keys


# ---- on a dask worker ---------------------------------------------------------------------------


class Station(WorkerPlugin):
    """One run's compute function on a dask worker; also on workers that join later.

    It is made by the first task, in a thread that computes, not in the event loop: imports take
    seconds, in which the worker would look dead.
    """

    idempotent = True  # to a scheduler that knows it, it is not brought again

    def __init__(self, name: str, *, run_id: str, factory: ComputeFactory) -> None:
        self.name, self.run_id = name, run_id
        self._factory = factory

    def setup(self, worker: Worker) -> None:
        """Be ready to make the compute function (called by dask)."""
        del worker
        self.forgotten: set[Address] = set()
        self._lock = threading.Lock()
        self._computes = threading.local()

    def compute(self) -> Compute:
        """Return this thread's compute function; tasks of several threads must not share one."""
        if not hasattr(self._computes, "own"):
            with self._lock:
                self._computes.own = self._factory()
        own: Compute = self._computes.own
        return own


def prepare(name: str) -> None:
    """Make a run's compute function on this dask worker."""
    _station(name).compute()


def answer(name: str, frame: bytes) -> tuple[Place, bytes]:
    """Return where a task was done, and its answer's frame; an empty one if it was forgotten."""
    worker = get_worker()
    return Place(worker.address, worker.state.nthreads), _answer(_station(name), frame)


def _answer(station: Station, frame: bytes) -> bytes:
    request = decode(frame, run_id=station.run_id)
    if not isinstance(request, TaskMessage):
        raise TypeError(f"a task must be asked for, not {type(request).__name__}")
    task = request.task
    address = (task.round, task.worker, task.attempt)
    try:
        computed = run_task(task, station.compute(), cancelled=lambda: address in station.forgotten)
        if computed is None:
            return b""
        return encode(request.result(*computed), run_id=station.run_id)
    except BaseException as error:
        reraise_stop(error)
        return encode(request.failure(fault_of(error)), run_id=station.run_id)
    finally:
        station.forgotten.discard(address)


def forget(name: str, addresses: Iterable[Address], dask_worker: Worker) -> None:
    """Let tasks that run on a dask worker begin no further mini-task (runs in its event loop)."""
    station = dask_worker.plugins.get(name)
    if isinstance(station, Station):
        station.forgotten.update(addresses)


def _station(name: str) -> Station:
    station = get_worker().plugins.get(name)
    if station is None:
        raise Unstationed(f"this dask worker does not know {name}")
    if not isinstance(station, Station):
        raise TypeError(f"plugin {name} is another's")
    return station

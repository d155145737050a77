"""What runs on a dask worker: the run's compute function, kept as a plugin, and the tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TypeAlias

from distributed import Worker, WorkerPlugin, get_worker

from seqgc.wire import TaskMessage, decode, encode
from seqgc.worker import Compute, ComputeFactory, run_task

__all__ = ["Address", "Station", "answer", "forget", "prepare"]

Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt


class Station(WorkerPlugin):
    """One run's compute function on a dask worker; also on workers that join later.

    It is made by the first task, in a thread that computes, not in the event loop: imports take
    seconds, in which the worker would look dead.
    """

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


def answer(name: str, frame: bytes) -> bytes:
    """Return the frame of the answer to a task; nothing if it was forgotten on the way.

    Raises
    ------
    WireError
        If the frame is no task's.
    """
    station = _station(name)
    request = decode(frame, run_id=station.run_id)
    if not isinstance(request, TaskMessage):
        raise TypeError(f"a task must be asked for, not {type(request).__name__}")
    task = request.task
    address = (task.round, task.worker, task.attempt)
    try:
        results = run_task(task, station.compute(), cancelled=lambda: address in station.forgotten)
        if results is None:
            return b""
        return encode(request.result(results), run_id=station.run_id)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return encode(request.failure(reason), run_id=station.run_id)
    finally:
        station.forgotten.discard(address)


def forget(name: str, addresses: Iterable[Address], dask_worker: Worker) -> None:
    """Let tasks that run on a dask worker begin no further mini-task (runs in its event loop)."""
    station = dask_worker.plugins.get(name)
    if isinstance(station, Station):
        station.forgotten.update(addresses)


def _station(name: str) -> Station:
    station = get_worker().plugins[name]
    if not isinstance(station, Station):
        raise TypeError(f"plugin {name} is another's")
    return station

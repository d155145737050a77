"""A dask cluster on this machine, or a client that somebody else owns."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import Final

import dask
from distributed import Client, LocalCluster, WorkerPlugin, wait

from seqgc.backends.dask_._worker import Station, prepare
from seqgc.errors import ParameterError, WorkerError
from seqgc.worker import ComputeFactory

__all__ = ["Cluster"]


class Cluster:
    """The dask workers of one run, and what must be undone at its end.

    Parameters
    ----------
    n
        Number of seqgc's workers; they are spread over the dask workers.
    client
        Somebody's own, left as it was found; None: a new cluster on this machine, of ``processes``
        (as many as cores unless given; 0: threads of this process).
    start_timeout_s
        How long dask workers may take to be there, seconds.

    Raises
    ------
    ParameterError
        If ``processes`` is negative, or given together with a client.
    WorkerError
        If no dask worker is there in time.
    """

    def __init__(
        self, n: int, *, client: Client | None, processes: int | None, start_timeout_s: float
    ) -> None:
        if processes is not None and (client is not None or processes < 0):
            rule = "must be >= 0, and left out where a client brings its own"
            raise ParameterError("processes", rule, processes)
        self._timeout_s = start_timeout_s
        self._stack = ExitStack()
        try:
            self.client: Final = self._started(n, processes) if client is None else client
            self._await_workers()
        except BaseException:
            self.close()
            raise

    def open(self, name: str, *, run_id: str, factory: ComputeFactory) -> None:
        """Bring a run's compute function to every dask worker, now and later; make it.

        Raises
        ------
        ParameterError
            If the factory cannot cross processes.
        WorkerError
            If it cannot be made there; names the cause.
        """
        plugin: WorkerPlugin = Station(name, run_id=run_id, factory=factory)
        try:
            self.client.register_plugin(plugin, name=name)
        except Exception as error:
            rule = f"must cross processes ({error})"
            raise ParameterError("compute", rule, factory, "define it in a module") from error
        self._stack.callback(self.client.unregister_worker_plugin, name)
        ready = [
            self.client.submit(prepare, name, workers=[address], pure=False)
            for address in self.addresses()
        ]
        try:
            wait(ready, timeout=self._timeout_s)
            self.client.gather(ready)
        except TimeoutError:
            message = f"not every dask worker was ready within {self._timeout_s:g} s"
            raise WorkerError(f"{message}; raise `start_timeout_s`") from None
        except Exception as error:
            raise WorkerError(f"a worker does not start: {type(error).__name__}: {error}") from None

    def addresses(self) -> list[str]:
        """Return the dask workers' addresses now, always in the same order."""
        return sorted(self.client.scheduler_info(n_workers=-1)["workers"])

    def close(self) -> None:
        """Undo everything; harmless if done already."""
        self._stack.close()

    def _started(self, n: int, processes: int | None) -> Client:
        count = min(n, os.cpu_count() or 1) if processes is None else processes
        workers = min(n, max(1, count))
        # A task that was on a worker whose process ended has failed: who repeats it is decided by
        # the round's policy, not by the cluster.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = self._stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=-(-n // workers),
                    processes=count > 0,
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
            )
        client: Client = self._stack.enter_context(Client(cluster))
        return client

    def _await_workers(self) -> None:
        """Wait for the first dask worker; a cluster of our own has started with all of them."""
        try:
            self.client.wait_for_workers(1, timeout=self._timeout_s)
        except TimeoutError:
            message = f"no dask worker was there within {self._timeout_s:g} s"
            raise WorkerError(f"{message}; start one, or raise `start_timeout_s`") from None

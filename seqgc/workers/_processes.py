"""Workers that receive the models from the master: local processes, dask and custom backends."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

from seqgc.backends import (
    ExecutorBackend,
    LocalBackend,
    Messaging,
    require_local_files,
    start_fork_server,
)
from seqgc.backends.executors import Pool
from seqgc.errors import ParameterError
from seqgc.ports import Backend, Capability, Task, require_capabilities
from seqgc.runs.headcount import wanted_headcount
from seqgc.stores import DirectoryStore
from seqgc.worker import ComputeFactory
from seqgc.workers._base import WorkerSet, missing
from seqgc.workers._settings import LoadDelays

if TYPE_CHECKING:
    from distributed import Client

    from seqgc.training import Crew, TorchComputeFactory, TrainingPlan, Work

BackendFactory: TypeAlias = "Callable[[int, TorchComputeFactory], Backend]"
_Start: TypeAlias = Callable[[ComputeFactory], Backend]

_RECONNECT_S = 120.0
# The modules that workers use. The first `torch.vmap` of a loss would import the last one, which
# takes 0.3 s, in every worker.
_PRELOADED = ("seqgc.models.compute", "seqgc.stores", "torch.fx.experimental.symbolic_shapes")


class ProcessWorkers(WorkerSet):
    """Workers that receive the models from the master, and read weights from the run's folder."""

    def check(self, work: Work) -> None:
        require_capabilities(work.needs, can=self.can, of=self.provider)

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        from seqgc.training import Crew

        start = self._starter(self._messaging(work), work.run)
        store = DirectoryStore(work.weights)  # workers on other machines must mount this folder
        yield Crew(start=partial(start, work.compute_factory(store)), store=store)

    def forecast(self, plan: TrainingPlan) -> None:  # these workers cost nothing
        require_capabilities(plan.on(self.n).needs, can=self.can, of=self.provider)

    def start(self, compute: ComputeFactory, *, run_id: str) -> Backend:
        """Start the workers with a computation of your own, and return the backend.

        Injected delays depend on a task's round, worker and load.
        """
        delays = self._delays
        injected = None if delays is None else partial(_delay_by_load, delays)
        return self._starter(Messaging(run_id=run_id, task_delays=injected))(compute)

    @abstractmethod
    def _starter(self, messaging: Messaging, run: Path | None = None) -> _Start:
        """Return a function that starts the workers, or raise `ParameterError`.

        ``run`` is the folder of the run, if there is one.
        """


class _Local(ProcessWorkers):
    provider = "local"

    @property
    def can(self) -> frozenset[Capability]:
        return super().can | {"partial"}

    def __enter__(self) -> Self:
        require_local_files(self.n)
        # Start it now: it imports PyTorch while the master imports PyTorch.
        start_fork_server(_PRELOADED)
        return self

    def _starter(self, messaging: Messaging, run: Path | None = None) -> _Start:
        wanted = None if run is None else partial(wanted_headcount, run, most=self.n)
        return partial(LocalBackend, self.n, messaging=messaging, preload=_PRELOADED, wanted=wanted)


class _Custom(ProcessWorkers):
    provider = "custom"

    def __init__(self, n: int, make: BackendFactory) -> None:
        super().__init__(n)
        self._make = make

    @property
    def can(self) -> frozenset[Capability]:  # the backend itself says what it cannot
        return super().can | {"partial"}

    def _starter(self, messaging: Messaging, run: Path | None = None) -> _Start:  # noqa: ARG002
        return partial(self._make, self.n)


class _Dask(ProcessWorkers):
    provider = "dask"

    def __init__(self, n: int, *, scheduler: str | None, delays: LoadDelays | None) -> None:
        super().__init__(n, delays=delays)
        self._scheduler = scheduler
        self._client: Client | None = None

    @property
    def can(self) -> frozenset[Capability]:  # other programs may use a running cluster, too
        return super().can - ({"restart"} if self._scheduler is not None else set())

    def _starter(self, messaging: Messaging, run: Path | None = None) -> _Start:  # noqa: ARG002
        try:
            from seqgc.backends.dask_ import DaskBackend
        except ImportError as error:
            raise missing("dask", "dask", error) from None
        if self._scheduler is not None and self._client is None:
            self._stack.enter_context(_silent_logs())
            self._client = self._stack.enter_context(_client(self._scheduler))
        return partial(DaskBackend, self.n, messaging=messaging, client=self._client)


class _Executor(ProcessWorkers):
    provider = "executor"

    def __init__(self, n: int, pool: Pool, *, stays: bool, delays: LoadDelays | None) -> None:
        super().__init__(n, delays=delays)
        self._pool, self._stays = pool, stays

    @property
    def can(self) -> frozenset[Capability]:
        return frozenset({"stay"} if self._stays else ())

    def _starter(self, messaging: Messaging, run: Path | None = None) -> _Start:  # noqa: ARG002
        return partial(
            ExecutorBackend, self.n, pool=self._pool, stays=self._stays, messaging=messaging
        )


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def local(n: int | None = None, *, delays: LoadDelays | None = None) -> ProcessWorkers:
    """Return ``n`` worker processes of this machine, by default one for each usable core.

    To inject stragglers, pass a function ``delays(round, worker, load)`` that returns seconds, for
    example an `InjectedDelays`.

    Examples
    --------
    >>> with local(4) as w:
    ...     w.n, w.provider
    (4, 'local')
    """
    return _Local(usable_cores() if n is None else n, delays=delays)


def dask(
    n: int, *, scheduler: str | None = None, delays: LoadDelays | None = None
) -> ProcessWorkers:
    """Return ``n`` workers of a dask cluster. All machines must share the folder of the run.

    ``scheduler`` is the address of a running scheduler. By default, dask is started on this
    machine. For ``delays`` see `local`.

    Raises
    ------
    ParameterError
        When a run begins, if no scheduler answers at the address, or dask is not installed.
    """
    return _Dask(n, scheduler=scheduler, delays=delays)


def executor(
    pool: Pool, n: int, *, stays: bool = True, delays: LoadDelays | None = None
) -> ProcessWorkers:
    """Return ``n`` workers whose tasks are calls in a pool of `concurrent.futures`.

    ``pool`` is an executor that computes in other processes, which you close yourself, or a
    function that returns one. A function is called again if the pool breaks. If ``stays`` is False,
    each call may have a process of its own, and gets code and data with every task. Otherwise a
    process keeps the data of the last two runs. All machines of the pool must share the folder of
    the run. For ``delays`` see `local`.

    A task that waits in the pool can be cancelled, and a task that has begun cannot: it keeps its
    process busy. Therefore give the pool at least ``n`` processes.

    Raises
    ------
    ParameterError
        When a run begins, if the pool computes in threads of this process.

    Examples
    --------
    >>> from concurrent.futures import ProcessPoolExecutor
    >>> with ProcessPoolExecutor(4) as pool, executor(pool, 4) as w:
    ...     w.n, w.provider, sorted(w.can)
    (4, 'executor', ['stay'])
    """
    given: object = pool
    if not isinstance(given, Executor) and not callable(given):
        rule = "must be a concurrent.futures.Executor, or a function that returns one"
        raise ParameterError("pool", rule, type(pool).__name__)
    return _Executor(n, pool, stays=stays, delays=delays)


def custom(n: int, make: BackendFactory) -> ProcessWorkers:
    """Return ``n`` workers that use your own backend, which ``make(n, compute_factory)`` returns.

    The backend must round results to the number format of the run's payload.
    """
    return _Custom(n, make)


def _delay_by_load(delays: LoadDelays, task: Task) -> float:
    return delays(task.round, task.worker, task.load)


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Do not show dask's tracebacks in this block, because the run itself reports failures."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _client(address: str) -> Client:
    """Return a client of the scheduler at this address, or raise `ParameterError`."""
    from distributed import Client

    # Test the address first: a `Client` that finds no scheduler would leave a thread behind.
    async def reach() -> None:
        client = Client(address, timeout="10s", asynchronous=True)
        try:
            await client
        finally:
            await client.close()

    try:
        with ThreadPoolExecutor(1) as executor:  # the main thread of a notebook has a running loop
            executor.submit(asyncio.run, reach()).result()
    except (OSError, ValueError) as error:
        rule = f"must be the address of a running scheduler ({error})"
        raise ParameterError("dask_scheduler", rule, address) from None
    # A client that loses its scheduler tries to reconnect for this time.
    return Client(address, timeout=_RECONNECT_S)

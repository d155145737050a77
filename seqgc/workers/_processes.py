"""Workers that are sent the models: processes of this machine, a dask cluster, custom backends."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias

from seqgc.backends import LocalBackend, require_local_files, start_fork_server
from seqgc.errors import ParameterError
from seqgc.ports import Backend, Capability, require_capabilities
from seqgc.stores import DirectoryStore
from seqgc.workers._base import WorkerSet, missing
from seqgc.workers._settings import LoadDelays

if TYPE_CHECKING:
    from distributed import Client

    from seqgc.training import Crew, TorchComputeFactory, TrainingPlan, Work

BackendFactory: TypeAlias = "Callable[[int, TorchComputeFactory], Backend]"
_Start: TypeAlias = "Callable[[TorchComputeFactory], Backend]"

_RECONNECT_S = 120.0
_PRELOADED = ("seqgc.training",)


class ProcessWorkers(WorkerSet):
    """Workers that are sent the models, and read weights in a folder of this machine."""

    def check(self, work: Work) -> None:
        require_capabilities(work.needs, can=self.can, of=self.provider)

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        from seqgc.training import Crew

        start = self._reach(work)
        store = DirectoryStore(work.weights)  # also for workers elsewhere that have it mounted
        yield Crew(start=partial(start, work.compute_factory(store)), store=store)

    def forecast(self, plan: TrainingPlan) -> None:  # whatever it is, it costs nothing
        require_capabilities(plan.on(self.n).needs, can=self.can, of=self.provider)

    @abstractmethod
    def _reach(self, work: Work) -> _Start:
        """Reach what is to start them, or refuse; return what starts them."""


class _Local(ProcessWorkers):
    provider = "local"

    def __enter__(self) -> Self:
        require_local_files(self.n)
        # It imports PyTorch while the master does, not after it.
        start_fork_server(_PRELOADED)
        return self

    def _reach(self, work: Work) -> _Start:
        messaging = self._messaging(work)
        return partial(LocalBackend, self.n, messaging=messaging, preload=_PRELOADED)


class _Custom(ProcessWorkers):
    provider = "custom"

    def __init__(self, n: int, make: BackendFactory) -> None:
        super().__init__(n)
        self._make = make

    def _reach(self, work: Work) -> _Start:  # noqa: ARG002 (it is the factory's)
        return partial(self._make, self.n)


class _Dask(ProcessWorkers):
    provider = "dask"

    def __init__(self, n: int, *, scheduler: str | None, delays: LoadDelays | None) -> None:
        super().__init__(n, delays=delays)
        self._scheduler = scheduler
        self._client: Client | None = None

    @property
    def can(self) -> frozenset[Capability]:  # on a cluster that others may use, too, nothing
        return frozenset() if self._scheduler is not None else super().can

    def _reach(self, work: Work) -> _Start:
        try:
            from seqgc.backends.dask_ import DaskBackend
        except ImportError as error:
            raise missing("dask", "dask", error) from None
        if self._scheduler is not None and self._client is None:
            self._stack.enter_context(_silent_logs())
            self._client = self._stack.enter_context(_client(self._scheduler))
        messaging = self._messaging(work)
        return partial(DaskBackend, self.n, messaging=messaging, client=self._client)


def local(n: int, *, delays: LoadDelays | None = None) -> ProcessWorkers:
    """Return ``n`` worker processes of this machine.

    ``delays``, ``(round, worker, load) -> seconds``, are stragglers to inject, for example
    `InjectedDelays`.

    Examples
    --------
    >>> with local(4) as w:
    ...     w.n, w.provider
    (4, 'local')
    """
    return _Local(n, delays=delays)


def dask(
    n: int, *, scheduler: str | None = None, delays: LoadDelays | None = None
) -> ProcessWorkers:
    """Return ``n`` workers of a dask cluster; the run's folder must be the same folder for all.

    ``scheduler`` is the address of a running scheduler; without one dask starts on this machine.
    For ``delays`` see `local`.

    Raises
    ------
    ParameterError
        When a run begins, if nobody answers at the address, or dask is not installed.
    """
    return _Dask(n, scheduler=scheduler, delays=delays)


def custom(n: int, make: BackendFactory) -> ProcessWorkers:
    """Return the ``n`` workers of a backend of your own, ``make(n, compute_factory)``.

    It rounds results to the run's payload itself.
    """
    return _Custom(n, make)


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Keep dask's tracebacks off the terminal: the rounds of a run report failures."""
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
    """Return a client of the scheduler there; a `Client` that finds none leaves its thread."""
    from distributed import Client

    async def reach() -> None:
        client = Client(address, timeout="10s", asynchronous=True)
        try:
            await client
        finally:
            await client.close()

    try:
        with ThreadPoolExecutor(1) as elsewhere:  # a notebook has a loop in its thread
            elsewhere.submit(asyncio.run, reach()).result()
    except (OSError, ValueError) as error:
        rule = f"must be the address of a running scheduler ({error})"
        raise ParameterError("dask_scheduler", rule, address) from None
    # So long it looks for a scheduler that it has lost; usually rounds' time limit ends a run.
    return Client(address, timeout=_RECONNECT_S)

"""Workers of a dask cluster."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from seqgc.cli._config import RunConfig
from seqgc.cli._engine._settings import missing
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from seqgc.ports import Backend
    from seqgc.training.compute import TorchComputeFactory
    from seqgc.training.run import BackendFactory, Delays

__all__ = ["dask_workers"]


def dask_workers(
    config: RunConfig, run_id: str, delays: Delays | None, stack: ExitStack
) -> BackendFactory:
    """Return workers of the scheduler that is named, or of one of their own on this machine.

    Raises
    ------
    ParameterError
        If nobody answers at the scheduler's address, or dask is not installed.
    """
    try:
        from distributed import Client

        from seqgc.backends.dask_ import DaskBackend
    except ImportError as error:
        raise missing("dask", "dask", error) from None
    client = None
    if config.dask_scheduler is not None:
        _require_scheduler(config.dask_scheduler)
        client = stack.enter_context(Client(config.dask_scheduler))

    def open_backend(n: int, factory: TorchComputeFactory) -> Backend:
        return DaskBackend(
            n,
            factory,
            run_id=run_id,
            delays=delays,
            payload=config.payload,
            stochastic_rounding=config.stochastic_rounding,
            client=client,
        )

    return open_backend


def _require_scheduler(address: str) -> None:
    """Refuse an address at which nobody answers; a `Client` that does so leaves its thread."""
    from distributed import Client

    async def reach() -> None:
        client = Client(address, timeout="10s", asynchronous=True)
        try:
            await client
        finally:
            await client.close()

    try:
        asyncio.run(reach())
    except (OSError, ValueError) as error:
        rule = f"must be the address of a running scheduler ({error})"
        raise ParameterError("dask_scheduler", rule, address) from None

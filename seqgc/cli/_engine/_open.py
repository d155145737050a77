"""What a run needs beside its workers: started before it, ended after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqgc.cli._build import search_here
from seqgc.cli._config import RunConfig
from seqgc.cli._engine._settings import FUNCTIONS, deployment
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from seqgc.cli._engine._functions import Functions
    from seqgc.training import Remote
    from seqgc.training.run import BackendFactory, Delays

__all__ = ["Engine", "check_engine", "open_engine"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """What `train` and `record_profile` of `seqgc.training` take; both None: local processes."""

    backend: BackendFactory | None = None
    remote: Remote | None = None


def check_engine(config: RunConfig) -> None:
    """Refuse a configuration that its backend cannot have; starts nothing.

    Raises
    ------
    ParameterError
        Naming the argument: code of the user's own that functions do not have, a store out of
        reach, no deployment.
    """
    if config.dask_scheduler is not None and config.backend != "dask":
        rule = "must be left out where the backend is not dask"
        raise ParameterError("dask_scheduler", rule, config.dask_scheduler)
    if config.backend not in FUNCTIONS:
        return
    from seqgc.training.factories import import_registered, workload_of

    search_here()
    import_registered()
    workload_of(config.models, precision=config.precision)
    if config.backend == "lambda":
        deployment(config.function)
    elif config.function.store == "s3":
        rule = "must be auto, directory or inline with backend lambda-local"
        raise ParameterError("function.store", rule, "s3")


@contextmanager
def open_engine(config: RunConfig, *, name: str, delays: Delays | None) -> Iterator[Engine]:
    """Start what a run needs beside its workers, until the end of the block.

    ``name`` is the run's; it seeds stochastic rounding. Functions, and the store they share, may
    serve other masters whose runs have the same name: there this run's is made unique. ``delays``
    is not for the processes of this machine: whoever starts them injects them.
    """
    with ExitStack() as stack:
        match config.backend:
            case "local":
                yield Engine()
            case "dask":
                from seqgc.cli._engine._dask import dask_workers

                yield Engine(backend=dask_workers(config, name, delays, stack))
            case _:
                from seqgc.cli._engine._functions import remote_workers

                functions = _functions(config, stack)
                remote = remote_workers(functions, config, name=name, delays=delays, stack=stack)
                yield Engine(remote=remote)


def _functions(config: RunConfig, stack: ExitStack) -> Functions:
    if config.backend == "lambda":
        from seqgc.cli._engine._on_aws import deployed_functions

        return deployed_functions(config)
    from seqgc.cli._engine._on_this_machine import local_functions

    return local_functions(config, stack)

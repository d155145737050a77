"""What a configuration leaves open: how functions were deployed, and which store they share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.cli._config import FunctionConfig, RunConfig
from seqgc.cli._sizes import TaskSizes, registered_parameters, task_sizes
from seqgc.cost import read_prices
from seqgc.errors import ParameterError
from seqgc.schemes import parse_scheme
from seqgc.stores import StoreChoice, choose_store

if TYPE_CHECKING:
    from seqgc.deploy import Deployment
    from seqgc.wire import StoreKind

__all__ = ["FUNCTIONS", "as_deployed", "chosen_store", "deployment", "missing"]

FUNCTIONS = ("lambda", "lambda-local")
"""The backends whose workers are functions."""

_WAYS = "mount the functions' file system and give --mount, or `seqgc deploy` once more"


def as_deployed(config: RunConfig) -> FunctionConfig:
    """Return the functions' settings: those of the deployment where there is one; their store.

    Raises
    ------
    ParameterError
        If the deployment cannot be read.
    """
    if config.backend not in FUNCTIONS:
        return config.function
    store = chosen_store(config).kind
    return _settled(config).model_copy(update={"store": store})


def chosen_store(
    config: RunConfig, *, sizes: TaskSizes | None = None, deployed: bool | None = None
) -> StoreChoice:
    """Return the store of a run of functions, and why it is that.

    What is not asked for is chosen by `seqgc.stores.choose_store`: of ``inline``, the bucket if the
    functions have a way there, and the file system if the master has it mounted. Functions of this
    machine share a folder of it, which is no slower than messages (measured: as quick for weights
    of 28 KB, twice as quick for 1 MB). In a run that finds its schemes by itself sizes are not
    known; its store is what takes any, the file system if it is mounted, else the bucket.

    Parameters
    ----------
    config
        The run's.
    sizes
        Of its heaviest task; found from the names of its networks unless given.
    deployed
        Whether the functions are AWS's, and so have a bucket; as the backend says, unless given.

    Raises
    ------
    ParameterError
        If the deployment cannot be read, a network is none of those that functions know, or the
        store is out of the functions' reach.
    """
    function = _settled(config)
    reaches_s3 = config.backend != "lambda" or deployment(function).reaches_s3
    if function.store == "s3" and not reaches_s3:
        rule = "must be in the functions' reach, and these have no way to S3"
        raise ParameterError("function.store", rule, "s3", _WAYS)
    if function.store != "auto":
        return StoreChoice(kind=function.store, reason="as asked for")
    if not (config.backend == "lambda" if deployed is None else deployed):
        return StoreChoice(kind="directory", reason="a folder of this machine, in place of EFS")
    offered: dict[StoreKind, bool] = {"directory": function.mount is not None, "s3": reaches_s3}
    stores = [kind for kind, there in offered.items() if there]
    if config.probe is not None or config.retune is not None:
        if not stores:
            rule = "must be there where sizes are not known beforehand (--probe, --retune)"
            raise ParameterError("function.store", rule, "auto", _WAYS)
        reason = "takes any size: the schemes to come, and so sizes, are not known"
        return StoreChoice(kind=stores[0], reason=reason)
    known = _sizes(config) if sizes is None else sizes
    return choose_store(
        request_bytes=known.request_bytes("inline"),
        reply_bytes=known.reply_bytes,
        workers=config.workers,
        round_usd={kind: _round_usd(kind, function, config.workers, known) for kind in stores},
        limit_bytes=known.limit_bytes,
        master_outside=function.master_outside,
    )


def deployment(function: FunctionConfig) -> Deployment:
    """Return what `seqgc deploy` wrote.

    Raises
    ------
    ParameterError
        If it cannot be read, or what it takes is not installed.
    """
    try:
        from seqgc.deploy import read_deployment
    except ImportError as error:
        raise missing("lambda", "aws", error) from None
    return read_deployment(Path(function.deployment))


def missing(backend: str, extra: str, error: ImportError) -> ParameterError:
    """Return the error of a backend whose extra is not installed."""
    rule = f"needs what is not installed ({error})"
    return ParameterError("backend", rule, backend, f"pip install 'seqgc[{extra}]'")


def _settled(config: RunConfig) -> FunctionConfig:
    if config.backend != "lambda":
        return config.function
    made = deployment(config.function)
    return config.function.model_copy(
        update={
            "memory_mb": made.memory_mb,
            "timeout_s": float(made.timeout_s),
            "arch": made.architecture,
            "region": made.region,
        }
    )


@lru_cache(maxsize=8)
def _sizes(config: RunConfig) -> TaskSizes:
    scheme = parse_scheme(config.scheme, n=config.workers)
    return task_sizes(config, scheme, parameters=registered_parameters(config.models))


def _round_usd(
    kind: StoreKind, function: FunctionConfig, workers: int, sizes: TaskSizes
) -> float | None:
    """Return what a round costs beside the functions' time; None if the region has no prices."""
    try:
        prices = read_prices(function.region)
    except ParameterError:
        return None
    traffic = sizes.traffic(kind, master_outside=function.master_outside)
    usage = traffic.publication() + traffic.task().times(workers)
    return prices.bill(usage, architecture=function.arch).usd

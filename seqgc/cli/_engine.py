"""Where a run computes: processes of this machine, functions, or a dask cluster."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc.cli._build import search_here
from seqgc.cli._config import FunctionConfig, RunConfig
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Transport
    from seqgc.deploy import Deployment
    from seqgc.ports import Backend, BlobStore
    from seqgc.train import Remote
    from seqgc.train.compute import TorchComputeFactory
    from seqgc.train.run import BackendFactory
    from seqgc.wire import StoreRef

__all__ = ["Delays", "Engine", "as_deployed", "check_engine", "open_engine", "store_ref"]

Delays = Callable[[int, int], float]

_HANDLER: Final = "lambda_handlers.gradient_worker.handler.handler"
_LOCAL_REGION: Final = "us-east-1"  # the local service has none; signatures must name one
_MOST_CONNECTIONS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """What `seqgc.train.train` and `record_profile` take; both None: processes of this machine."""

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
    if config.backend not in ("lambda", "lambda-local"):
        return
    from seqgc.train.factories import import_registered, workload_of

    search_here()
    import_registered()
    workload_of(config.models, precision=config.precision)
    if config.backend == "lambda":
        _deployment(config.function)
    elif config.function.store == "s3":
        rule = "must be auto, directory or inline with backend lambda-local"
        raise ParameterError("function.store", rule, "s3")


def as_deployed(config: RunConfig) -> FunctionConfig:
    """Return the functions' settings: those of the deployment where there is one.

    Raises
    ------
    ParameterError
        If the deployment cannot be read.
    """
    function = config.function
    if config.backend != "lambda":
        return function
    made = _deployment(function)
    return function.model_copy(
        update={
            "memory_mb": made.memory_mb,
            "timeout_s": float(made.timeout_s),
            "arch": made.architecture,
            "region": made.region,
        }
    )


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
                yield Engine(backend=_dask(config, run_id=name, delays=delays, stack=stack))
            case "lambda-local":
                yield Engine(remote=_lambda_local(config, name, delays, stack))
            case "lambda":
                yield Engine(remote=_lambda(config, name, delays, stack))


# ---- dask ---------------------------------------------------------------------------------------


def _dask(
    config: RunConfig, *, run_id: str, delays: Delays | None, stack: ExitStack
) -> BackendFactory:
    try:
        from distributed import Client

        from seqgc.backends.dask_ import DaskBackend
    except ImportError as error:
        raise _missing("dask", "dask", error) from None
    client = None
    if config.dask_scheduler is not None:
        try:
            client = stack.enter_context(Client(config.dask_scheduler, timeout="10s"))
        except (OSError, ValueError) as error:
            rule = f"must be the address of a running scheduler ({error})"
            raise ParameterError("dask_scheduler", rule, config.dask_scheduler) from None

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


# ---- functions ----------------------------------------------------------------------------------


def _lambda_local(config: RunConfig, name: str, delays: Delays | None, stack: ExitStack) -> Remote:
    """Return functions on this machine; a folder stands for the file system they share."""
    from seqgc.stores import open_store
    from seqgc.wire import StoreRef

    try:
        from seqgc.backends.local_lambda import LocalLambda
    except ImportError as error:
        raise _missing("lambda-local", "lambda-local", error) from None
    function, run_id = config.function, _unique(name)
    mount = Path(
        function.mount or stack.enter_context(tempfile.TemporaryDirectory(prefix="seqgc-shared-"))
    )
    service = stack.enter_context(
        LocalLambda(
            _HANDLER,
            concurrency=function.environments or 2 * config.workers,
            timeout_s=function.timeout_s,
            memory_mb=function.memory_mb,
            mount=mount,
            environment=_environment(config),
        )
    )
    ref = StoreRef(kind="directory", location=run_id)
    if function.store == "inline":
        ref = StoreRef(kind="inline")

    def connect() -> Transport:
        from seqgc.backends.lambda_ import AsyncTransport, Boto3Transport, HttpTransport, Target

        limit = _connections(config.workers)
        if function.transport == "boto3":
            return Boto3Transport(
                service.function_name,
                timeout_s=function.timeout_s,
                connections=limit,
                region=_LOCAL_REGION,
                endpoint_url=service.endpoint_url,
                session=_session_of_nobody(),
            )
        target = Target.invoke_api(
            service.function_name, region=_LOCAL_REGION, endpoint_url=service.endpoint_url
        )
        kind = AsyncTransport if function.transport == "asyncio" else HttpTransport
        return kind(
            target,
            timeout_s=function.timeout_s,
            connections=limit,
            credentials=_session_of_nobody().get_credentials(),
        )

    shared = open_store(ref, mount=mount)
    stack.callback(_sweep, shared)
    return _remote(config, name, run_id, delays, ref, shared, connect)


def _lambda(config: RunConfig, name: str, delays: Delays | None, stack: ExitStack) -> Remote:
    """Return the functions that are deployed, to be invoked by whom botocore finds."""
    from functools import partial

    from seqgc.stores import open_store

    function, made = as_deployed(config), _deployment(config.function)
    run_id = _unique(name)
    ref = store_ref(config, run_id)
    mounted = function.mount is not None and Path(function.mount).is_dir()
    if ref.kind == "directory" and not mounted:
        rule = "must be the folder where the functions' file system is mounted"
        remedy = "mount it, or --store s3"
        raise ParameterError("function.mount", rule, function.mount, remedy)
    session = _session_of_caller(made.region)
    shared = open_store(ref, mount=function.mount, s3_client=partial(session.client, "s3"))
    stack.callback(_sweep, shared)

    def connect() -> Transport:
        from seqgc.backends.lambda_ import AsyncTransport, Boto3Transport, HttpTransport, Target

        limit = _connections(config.workers)
        if function.transport == "boto3":
            return Boto3Transport(
                made.function_name,
                qualifier=made.alias,
                timeout_s=function.timeout_s,
                connections=limit,
                session=session,
            )
        target = (
            Target.function_url(made.function_url, region=made.region)
            if function.transport == "http" and made.function_url
            else Target.invoke_api(made.function_name, region=made.region, qualifier=made.alias)
        )
        kind = AsyncTransport if function.transport == "asyncio" else HttpTransport
        return kind(
            target,
            timeout_s=function.timeout_s,
            connections=limit,
            credentials=session.get_credentials(),
        )

    return _remote(config, name, run_id, delays, ref, shared, connect)


def _remote(
    config: RunConfig,
    name: str,
    run_id: str,
    delays: Delays | None,
    ref: StoreRef,
    shared: BlobStore,
    connect: Callable[[], Transport],
) -> Remote:
    from seqgc.backends.lambda_ import LambdaBackend
    from seqgc.train import Remote
    from seqgc.train.factories import workload_of

    workload = workload_of(config.models, precision=config.precision)
    fixed = config.probe is None and config.retune is None  # else schemes change in the run

    def open_backend(n: int) -> Backend:
        return LambdaBackend(
            n,
            connect(),
            workload=workload,
            store=ref,
            shared=shared,
            run_id=run_id,
            rounding_name=name,
            code=config.scheme[:100] if fixed else "",
            delays=delays,
            payload=config.payload,
            stochastic_rounding=config.stochastic_rounding,
            warm_up_rounds=config.function.warm_up,
        )

    return Remote(open=open_backend, store=shared, grace_s=as_deployed(config).timeout_s)


def _unique(name: str) -> str:
    """Return a run's name that no other run has, of characters that every store takes."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80].lstrip(".-") or "run"
    return f"{plain}-{uuid.uuid4().hex[:12]}"


def _sweep(shared: BlobStore) -> None:
    """Remove the run's folders from a shared file system, unless a late answer lies there."""
    from seqgc.stores import DirectoryStore

    if isinstance(shared, DirectoryStore):
        shared.sweep()


def store_ref(config: RunConfig, run_id: str) -> StoreRef:
    """Return where a run's deployed functions find weights, and put large answers."""
    from seqgc.wire import StoreRef

    function, made = config.function, _deployment(config.function)
    kind = function.store
    if kind == "auto":
        kind = "s3" if function.mount is None else "directory"
    if kind == "directory":
        return StoreRef(kind=kind, location=run_id)
    if kind == "inline":
        return StoreRef(kind=kind)
    return StoreRef(kind=kind, location=f"s3://{made.bucket}/{made.prefix}/{run_id}")


def _deployment(function: FunctionConfig) -> Deployment:
    try:
        from seqgc.deploy import read_deployment
    except ImportError as error:
        raise _missing("lambda", "aws", error) from None
    return read_deployment(Path(function.deployment))


def _environment(config: RunConfig) -> dict[str, str]:
    """Return what functions on this machine must have of this process's environment.

    Modules that are named are imported by the environments' parent, once, and not by each.
    """
    modules = ["seqgc.train.factories", os.environ.get("SEQGC_FACTORIES", "")]
    if any(model.data == "digits" for model in config.models):
        modules.append("sklearn.datasets")
    given = {"OMP_NUM_THREADS": "1", "SEQGC_FACTORIES": ",".join(filter(None, modules))}
    if data := os.environ.get("SEQGC_DATA"):  # where factories find their data sets
        given["SEQGC_DATA"] = data
    return given


def _session_of_nobody() -> Session:
    """Return a session that signs as nobody: the local service does not ask who it is."""
    import boto3

    return boto3.Session(aws_access_key_id="nobody", aws_secret_access_key="nothing")


def _session_of_caller(region: str) -> Session:
    """Return a session that signs as whoever runs this: better unknown now than in mid-run."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise _missing("lambda", "aws", error) from None
    remedy = "run `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    try:
        session = boto3.Session(region_name=region)
        credentials = session.get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()  # renews what has expired, if it can
    except (BotoCoreError, ClientError) as error:
        raise ParameterError("credentials", f"must be of use ({error})", None, remedy) from None
    if credentials is None:
        raise ParameterError("credentials", "must be given or found", None, remedy)
    return session


def _connections(workers: int) -> int:
    return max(_MOST_CONNECTIONS, 4 * workers)


def _missing(backend: str, extra: str, error: ImportError) -> ParameterError:
    rule = f"needs what is not installed ({error})"
    return ParameterError("backend", rule, backend, f"pip install 'seqgc[{extra}]'")

"""Functions of a Lambda service on this machine; a folder stands for the file system they share."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc.cli._config import RunConfig
from seqgc.cli._engine._functions import Functions
from seqgc.cli._engine._settings import missing

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["local_functions"]

_HANDLER: Final = "lambda_handlers.gradient_worker.handler.handler"
_REGION: Final = "us-east-1"  # the service has none; signatures must name one


def local_functions(config: RunConfig, stack: ExitStack) -> Functions:
    """Start the service, until ``stack`` is closed.

    Raises
    ------
    ParameterError
        If something that it needs is not installed.
    """
    try:
        from seqgc.local_lambda import LocalLambda
    except ImportError as error:
        raise missing("lambda-local", "lambda-local", error) from None
    function = config.function
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
    return Functions(
        name=service.function_name,
        region=_REGION,
        session=_session_of_nobody(),
        endpoint_url=service.endpoint_url,
        mount=mount,
    )


def _environment(config: RunConfig) -> dict[str, str]:
    """Return what functions on this machine must have of this process's environment.

    Modules that are named are imported by the environments' parent, once, and not by each.
    """
    modules = ["seqgc.training.factories", os.environ.get("SEQGC_FACTORIES", "")]
    if any(model.data == "digits" for model in config.models):
        modules.append("sklearn.datasets")
    given = {"OMP_NUM_THREADS": "1", "SEQGC_FACTORIES": ",".join(filter(None, modules))}
    if data := os.environ.get("SEQGC_DATA"):  # where factories find their data sets
        given["SEQGC_DATA"] = data
    return given


def _session_of_nobody() -> Session:
    """Return a session that signs as nobody: the service does not ask who it is."""
    import boto3

    return boto3.Session(aws_access_key_id="nobody", aws_secret_access_key="nothing")

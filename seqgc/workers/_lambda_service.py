"""Functions of a Lambda service on this machine; a folder stands for the file system they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc._durable import temporary_folder
from seqgc.workers._base import missing
from seqgc.workers._delays import LoadDelays
from seqgc.workers._forecast import Reach
from seqgc.workers._functions import Functions, FunctionWorkers
from seqgc.workers._settings import FunctionSettings

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.training import Work

__all__ = ["lambda_local"]

_HANDLER: Final = "lambda_handlers.gradient_worker.handler.handler"
_REGION: Final = "us-east-1"  # the service has none; signatures must name one


class _OnThisMachine(FunctionWorkers):
    provider = "lambda-local"
    _functions: Functions | None = None

    @property
    def settings(self) -> FunctionSettings:
        return self._given

    @property
    def reach(self) -> Reach:
        return Reach(deployed=False, s3=False)

    def _connect(self, work: Work) -> Functions:  # noqa: ARG002 (for any work)
        if self._functions is None:
            self._functions = self._started()
        return self._functions

    def _started(self) -> Functions:
        try:
            from seqgc.local_lambda import DeployedAs, LocalLambda
        except ImportError as error:
            raise missing("lambda-local", "lambda-local", error) from None
        given = self._given
        if given.mount is None:
            mount = self._stack.enter_context(temporary_folder("seqgc-shared-"))
        else:
            mount = Path(given.mount)
        service = self._stack.enter_context(
            LocalLambda(
                _HANDLER,
                concurrency=given.environments or 2 * self.n,  # stragglers hold theirs
                timeout_s=given.timeout_s,
                mount=mount,
                environment=_environment(),
                deployed=DeployedAs(memory_mb=given.memory_mb, region=_REGION),
            )
        )
        return Functions(
            name=service.function_name,
            region=_REGION,
            session=_session_of_nobody(),
            endpoint_url=service.endpoint_url,
            mount=mount,
        )


def lambda_local(
    n: int, settings: FunctionSettings | None = None, *, delays: LoadDelays | None = None
) -> FunctionWorkers:
    """Return ``n`` workers that are functions of a Lambda service on this machine.

    The service, which runs the very handler that is deployed, starts with the first run and ends
    with the block.

    Parameters
    ----------
    settings
        How functions are reached; they are priced as the ones of AWS which they stand for.
    delays
        See `seqgc.workers.local`.

    Raises
    ------
    ParameterError
        When a run begins, if something that it needs is not installed.
    """
    return _OnThisMachine(n, settings, delays=delays)


def _environment() -> dict[str, str]:
    """Return what functions on this machine must have of this process's environment.

    Modules that are named are imported by the environments' parent, once, and not by each.
    """
    modules = ["seqgc.training.factories", os.environ.get("SEQGC_FACTORIES", "")]
    given = {"OMP_NUM_THREADS": "1", "SEQGC_FACTORIES": ",".join(filter(None, modules))}
    if data := os.environ.get("SEQGC_DATA"):  # where factories find their data sets
        given["SEQGC_DATA"] = data
    return given


def _session_of_nobody() -> Session:
    """Return a session that signs as nobody: the service does not ask who it is."""
    import boto3

    return boto3.Session(aws_access_key_id="nobody", aws_secret_access_key="nothing")

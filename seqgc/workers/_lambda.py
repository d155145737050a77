"""Workers that are functions on AWS Lambda, or functions of a Lambda service on this machine."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc._aws import open_session
from seqgc._durable import temporary_folder
from seqgc.deploy import Deployment, pin_version, read_deployment
from seqgc.errors import ParameterError
from seqgc.stores import data_places, find_data
from seqgc.workers._base import missing
from seqgc.workers._forecast import Reach
from seqgc.workers._functions import Functions, FunctionWorkers, own_modules
from seqgc.workers._settings import FunctionSettings, LoadDelays

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Address
    from seqgc.training import Work

_HANDLER: Final = "lambda_handlers.gradient_worker.handler.handler"
_DEPLOY: Final = "run `seqgc deploy`"
_REGION: Final = "us-east-1"  # a signature must name a region; the local service accepts any


class _Deployed(FunctionWorkers):
    provider = "lambda"

    @cached_property
    def _deployment(self) -> Deployment:
        deployment = read_deployment(Path(self._wanted.deployment))
        if not deployment.has_vpc:
            _require_no_network(self._wanted, deployment)
        return deployment

    @property
    def settings(self) -> FunctionSettings:
        deployment = self._deployment
        deployed = {
            "memory_mb": deployment.memory_mb,
            "timeout_s": float(deployment.timeout_s),
            "arch": deployment.architecture,
            "region": deployment.region,
            "snapstart": deployment.snapstart,
        }
        return self._wanted.model_copy(update=deployed)

    def _maps(self, name: str) -> bool:
        mount = self._wanted.mount
        return mount is not None and find_data(name, [f"{mount}/data"]) is not None

    @property
    def listed(self) -> Sequence[str]:
        return self._deployment.factories.split(",")

    @property
    def reach(self) -> Reach:
        return Reach(deployed=True, s3=self._deployment.reaches_s3)

    @property
    def address(self) -> Address:
        from seqgc.backends.lambda_ import Address

        wanted = self._wanted
        if wanted.master_address is None and wanted.mount is None:
            rule = "needs a master in the VPC and security group of the functions"
            remedy = (
                "run it there, with --mount or --master-address; check `seqgc doctor --resident`"
            )
            raise ParameterError("function.resident", rule, True, remedy)
        return Address.in_vpc(wanted.master_address)

    def _connect(self, work: Work) -> Functions:
        mount = self._wanted.mount
        is_candidate = mount is not None and self._wanted.store == "auto"
        is_mounted = mount is not None and Path(mount).is_dir()
        if not is_mounted and (is_candidate or self._choice(work).kind == "directory"):
            rule = "must be the folder where the functions' file system is mounted"
            remedy = "mount it, or leave it out and use --store s3"
            raise ParameterError("function.mount", rule, mount, remedy)
        deployment, session = self._deployment, _session_of_caller(self._deployment.region)
        pin = pin_version(deployment, session=session, before=work.pin)
        return Functions(
            name=deployment.function_name,
            session=session,
            version=pin["version"].rpartition(":")[2],
            pin=pin,
            mount=None if mount is None else Path(mount),
            bucket=f"s3://{deployment.bucket}/{deployment.prefix}",
        )


class _NotDeployed(FunctionWorkers):
    """Functions that are not deployed. They only have a forecast of messages and costs."""

    provider = "lambda"
    deployed = False

    def __init__(self, n: int, settings: FunctionSettings | None, *, file_system: bool) -> None:
        super().__init__(n, settings, delays=None)
        self._file_system = file_system
        if self._wanted.snapstart and self._wanted.store == "directory":
            rule = "must be another store with `snapstart`, which does not work with a file system"
            raise ParameterError("function.store", rule, self._wanted.store, "use s3 or inline")

    @property
    def settings(self) -> FunctionSettings:
        return self._wanted

    @property
    def reach(self) -> Reach:
        return Reach(deployed=True)

    @property
    def address(self) -> Address:
        from seqgc.backends.lambda_ import Address

        return Address()  # a forecast does not check that functions can reach this machine

    def _maps(self, name: str) -> bool:  # noqa: ARG002 (unknown before the deployment)
        return self._file_system

    def _connect(self, work: Work) -> Functions:  # noqa: ARG002 (always an error)
        raise ParameterError("backend", "needs functions that are deployed", "lambda", _DEPLOY)


class _OnThisMachine(FunctionWorkers):
    """Functions of a service on this machine. A local folder replaces the shared file system."""

    provider = "lambda-local"

    def __init__(
        self, n: int, settings: FunctionSettings | None, *, delays: LoadDelays | None
    ) -> None:
        super().__init__(n, settings, delays=delays)
        if (address := self._wanted.master_address) is not None:
            rule = "must be left out with backend 'lambda-local': the functions are on this machine"
            raise ParameterError("function.master_address", rule, address)

    @property
    def settings(self) -> FunctionSettings:
        return self._wanted

    @property
    def reach(self) -> Reach:
        return Reach(deployed=False, s3=False)

    @property
    def address(self) -> Address:
        from seqgc.backends.lambda_ import Address

        return Address()

    def _maps(self, name: str) -> bool:  # noqa: ARG002 (every data set is on this machine)
        return True

    def _connect(self, work: Work) -> Functions:
        modules = tuple(own_modules(work.models))
        if modules not in self._services:  # a service imports only the modules of its run
            self._services[modules] = self._start_service(modules)
        return self._services[modules]

    @cached_property
    def _services(self) -> dict[tuple[str, ...], Functions]:
        return {}

    def _start_service(self, modules: Sequence[str]) -> Functions:
        try:
            import boto3  # noqa: F401

            from seqgc.local_lambda import DeployedAs, LocalLambda
        except ImportError as error:
            raise missing("lambda-local", "lambda-local", error) from None
        wanted = self._wanted
        mount = None if wanted.mount is None else Path(wanted.mount)
        code = None if wanted.code is None else Path(wanted.code)
        if code is not None and not (code / "lambda_handlers").is_dir():
            rule = (
                "must be a folder with the code of functions, as `seqgc deploy --context` makes it"
            )
            raise ParameterError("function.code", rule, wanted.code)
        if mount is None:
            mount = self._stack.enter_context(temporary_folder("seqgc-shared-"))
        service = self._stack.enter_context(
            LocalLambda(
                _HANDLER,
                concurrency=wanted.environments or 2 * self.n,  # stragglers occupy environments
                timeout_s=wanted.timeout_s,
                mount=mount,
                environment=_environment(modules),
                deployed=DeployedAs(
                    memory_mb=wanted.memory_mb,
                    region=_REGION,
                    snapstart=wanted.snapstart,
                    code=code or Path(),
                    path=None if code is None else _path_of(code),
                ),
            )
        )
        return Functions(
            name=service.function_name,
            session=open_session(region=_REGION, keys=service.keys),
            endpoint_url=service.endpoint_url,
            mount=mount,
        )


def functions(
    n: int, settings: FunctionSettings | None = None, *, delays: LoadDelays | None = None
) -> FunctionWorkers:
    """Return ``n`` workers that are functions on AWS Lambda, which `seqgc deploy` has deployed.

    ``settings`` name the file of the deployment, the transport and the store. For ``delays`` see
    `seqgc.workers.local`; AWS also bills the time of injected delays.

    Raises
    ------
    ParameterError
        When a run begins: if the deployment cannot be read, the file system is not mounted at
        ``settings.mount``, or there are no credentials.
    """
    return _Deployed(n, settings, delays=delays)


def undeployed(
    n: int, settings: FunctionSettings | None = None, *, file_system: bool = True
) -> FunctionWorkers:
    """Return ``n`` functions with these settings that are not deployed, for forecasts.

    If ``file_system``, the forecast assumes that functions map stored data sets from their file
    system; otherwise they load them into their memory. Beginning a run with these functions raises
    `ParameterError`.
    """
    return _NotDeployed(n, settings, file_system=file_system)


def lambda_local(
    n: int, settings: FunctionSettings | None = None, *, delays: LoadDelays | None = None
) -> FunctionWorkers:
    """Return ``n`` workers that are functions of a Lambda service on this machine.

    The service runs the same handler as AWS Lambda. It starts with the first run and ends with the
    ``with`` block. Estimates and budgets use the prices of AWS. For ``delays`` see
    `seqgc.workers.local`.

    Raises
    ------
    ParameterError
        If ``settings`` have a ``master_address``, or, when a run begins, if a package is not
        installed.
    """
    return _OnThisMachine(n, settings, delays=delays)


def _require_no_network(wanted: FunctionSettings, deployment: Deployment) -> None:
    """Raise a `ParameterError` if a setting needs a VPC, which these functions do not have."""
    needing: dict[str, object] = {}
    if wanted.resident:
        needing["resident"] = True
    if wanted.store == "directory":
        needing["store"] = wanted.store
    if wanted.mount is not None:
        needing["mount"] = wanted.mount
    for name, value in needing.items():
        rule = f"needs a VPC with a file system, which the stack {deployment.stack} does not have"
        remedy = f"leave it out, or run `{deployment.vpc_command}`"
        raise ParameterError(f"function.{name}", rule, value, remedy)


def _environment(modules: Sequence[str]) -> dict[str, str]:
    """Return the environment variables of functions on this machine."""
    # The parent process of all environments imports the listed modules once.
    factories = ["seqgc.models.factories", os.environ.get("SEQGC_FACTORIES", ""), *modules]
    variables = {"OMP_NUM_THREADS": "1", "SEQGC_FACTORIES": ",".join(filter(None, factories))}
    variables["SEQGC_DATA"] = ",".join(data_places())
    return variables


def _path_of(code: Path) -> tuple[str, ...]:
    """Return the entries of ``sys.path`` after ``code`` for functions that run a build context.

    The folder ``own`` of a build context has the user's modules. The packages that an image would
    install are taken from this Python's installation.
    """
    installed = tuple({sys.prefix, sys.base_prefix, site.getusersitepackages()})
    return (str(code / "own"), *(each for each in sys.path if each.startswith(installed)))


def _session_of_caller(region: str) -> Session:
    """Return a session with the caller's credentials, or raise `ParameterError` without any."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise missing("lambda", "aws", error) from None
    remedy = "run `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    try:
        session = open_session(region=region)
        credentials = session.get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()  # renews expired credentials if possible
    except (BotoCoreError, ClientError) as error:
        raise ParameterError("credentials", f"must be valid ({error})", None, remedy) from None
    if credentials is None:
        raise ParameterError("credentials", "must be configured", None, remedy)
    return session

"""The functions that `seqgc deploy` has made, called as whoever botocore finds."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.errors import ParameterError
from seqgc.workers._base import missing
from seqgc.workers._delays import LoadDelays
from seqgc.workers._forecast import Reach
from seqgc.workers._functions import Functions, FunctionWorkers
from seqgc.workers._settings import FunctionSettings

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.deploy import Deployment
    from seqgc.training import Work

__all__ = ["functions"]


class _Deployed(FunctionWorkers):
    provider = "lambda"

    @cached_property
    def _deployment(self) -> Deployment:
        try:
            from seqgc.deploy import read_deployment
        except ImportError as error:
            raise missing("lambda", "aws", error) from None
        return read_deployment(Path(self._given.deployment))

    @property
    def settings(self) -> FunctionSettings:
        deployment = self._deployment
        deployed = {
            "memory_mb": deployment.memory_mb,
            "timeout_s": float(deployment.timeout_s),
            "arch": deployment.architecture,
            "region": deployment.region,
        }
        return self._given.model_copy(update=deployed)

    @property
    def reach(self) -> Reach:
        return Reach(deployed=True, s3=self._deployment.reaches_s3)

    def _connect(self, work: Work) -> Functions:
        mount = self._given.mount
        offered = mount is not None and self._given.store == "auto"
        if (offered or self._choice(work).kind == "directory") and not (
            mount is not None and Path(mount).is_dir()
        ):
            rule = "must be the folder where the functions' file system is mounted"
            remedy = "mount it, or leave it out and take --store s3"
            raise ParameterError("function.mount", rule, mount, remedy)
        return self.functions()

    def functions(self) -> Functions:
        """Return how they are called."""
        deployment, mount = self._deployment, self._given.mount
        return Functions(
            name=deployment.function_name,
            region=deployment.region,
            session=_session_of_caller(deployment.region),
            alias=deployment.alias,
            url=deployment.function_url,
            mount=None if mount is None else Path(mount),
            bucket=f"s3://{deployment.bucket}/{deployment.prefix}",
        )


def functions(
    n: int, settings: FunctionSettings | None = None, *, delays: LoadDelays | None = None
) -> FunctionWorkers:
    """Return ``n`` workers that are functions on AWS Lambda, as `seqgc deploy` has made them.

    Parameters
    ----------
    settings
        Where the deployment's file is, and how functions are reached.
    delays
        See `seqgc.workers.local`; the functions are paid for them.

    Raises
    ------
    ParameterError
        When a run begins: if the deployment cannot be read, the file system is not mounted where
        it is said to be, or there are no credentials.
    """
    return _Deployed(n, settings, delays=delays)


def _session_of_caller(region: str) -> Session:
    """Return a session that signs as whoever runs this: better unknown now than in mid-run."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise missing("lambda", "aws", error) from None
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

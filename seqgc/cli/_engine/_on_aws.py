"""The functions that `seqgc deploy` has made, called as whoever botocore finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.cli._config import RunConfig
from seqgc.cli._engine._functions import Functions
from seqgc.cli._engine._settings import chosen_store, deployment, missing
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["deployed_functions"]


def deployed_functions(config: RunConfig) -> Functions:
    """Return the functions, which are called by nobody yet.

    Raises
    ------
    ParameterError
        If the deployment cannot be read, their file system is not mounted where it is said to be,
        or there are no credentials.
    """
    made, mount = deployment(config.function), config.function.mount
    offered = mount is not None and config.function.store == "auto"
    if (offered or chosen_store(config).kind == "directory") and not (
        mount is not None and Path(mount).is_dir()
    ):
        rule = "must be the folder where the functions' file system is mounted"
        remedy = "mount it, or leave it out and take --store s3"
        raise ParameterError("function.mount", rule, mount, remedy)
    return Functions(
        name=made.function_name,
        region=made.region,
        session=_session_of_caller(made.region),
        alias=made.alias,
        url=made.function_url,
        mount=None if mount is None else Path(mount),
        bucket=f"s3://{made.bucket}/{made.prefix}",
    )


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

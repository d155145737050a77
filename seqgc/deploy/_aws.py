"""Sessions of boto3, and errors of AWS in one line. boto3 is imported only when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from seqgc import _aws
from seqgc.errors import ParameterError, SeqgcError, one_line

if TYPE_CHECKING:
    from boto3.session import Session

_LONGEST = 300  # characters of a message of AWS
_REMEDIES: Final = {
    "ExpiredToken": "renew the credentials: `aws sso login`",
    "ExpiredTokenException": "renew the credentials: `aws sso login`",
    "InvalidClientTokenId": "run `aws configure`, or `aws sso login`",
    "NoCredentialsError": "run `aws configure`, or `aws sso login`",
    "RequestExpired": "set this machine's clock: `sudo timedatectl set-ntp true`",
    "SignatureDoesNotMatch": "run `aws configure`, and check this machine's clock: `timedatectl`",
}


class DeployError(SeqgcError):
    """A deployment cannot be made, found or read. The message names a command that may help.

    Examples
    --------
    >>> raise DeployError("no AWS region is set", "export AWS_REGION")
    Traceback (most recent call last):
        ...
    seqgc.deploy._aws.DeployError: no AWS region is set (export AWS_REGION)
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(f"{message} ({remedy})" if remedy else message)


def open_session(*, region: str | None = None) -> Session:
    """Return a session of boto3, which finds credentials in the same places as the AWS CLI.

    The default of ``region`` is the region in ``AWS_REGION``, or else that of the AWS profile.

    Raises
    ------
    DeployError
        If boto3 is not installed, or no region is set.
    ParameterError
        If the name of the region is not valid, or the profile does not exist.
    """
    try:
        from botocore.exceptions import InvalidRegionError
        from botocore.utils import validate_region_name
    except ImportError:
        raise DeployError("boto3 is not installed", "pip install 'seqgc[aws]'") from None
    with calls("open a session"):
        session = _aws.open_session(region=region)
    if not session.region_name:
        raise DeployError("no AWS region is set", "pass --region, or export AWS_REGION")
    try:
        validate_region_name(session.region_name)
    except InvalidRegionError:
        rule = "must be the name of an AWS region, such as eu-central-1"
        raise ParameterError("region", rule, session.region_name) from None
    return session


def client_config() -> object:
    """Return a configuration for clients of boto3 with short time limits."""
    from botocore.config import Config

    return Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2})


@contextmanager
def calls(what: str, *, remedy: str = "") -> Iterator[None]:
    """Convert errors of botocore in this block into a `DeployError`.

    ``what`` names the action in this block, for example "open a session". ``remedy`` is used for
    errors without a specific remedy.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        message, specific = in_one_line(error)
        raise DeployError(f"cannot {what}: {message}", specific or remedy) from error


def in_one_line(error: Exception) -> tuple[str, str]:
    """Return the message of an error of botocore, and a remedy, which may be empty."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return one_line(error, limit=_LONGEST), _REMEDIES.get(code or type(error).__name__, "")


def describe_stack(client: Any, stack: str) -> dict[str, Any] | None:
    """Return the description of an existing stack, or None. Raises other errors of botocore.

    ``client`` is the client of CloudFormation. A deleted stack exists only under its id.
    """
    from botocore.exceptions import ClientError

    try:
        description: dict[str, Any] = client.describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "ValidationError":
            raise
        return None
    return description

"""boto3, once it is needed, and what it says when AWS refuses, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from seqgc import _aws
from seqgc.errors import ParameterError, SeqgcError, one_line

if TYPE_CHECKING:
    from boto3.session import Session

_LONGEST = 300  # characters of AWS's own words
_REMEDIES: Final = {
    "ExpiredToken": "renew the credentials: `aws sso login`",
    "ExpiredTokenException": "renew the credentials: `aws sso login`",
    "InvalidClientTokenId": "run `aws configure`, or `aws sso login`",
    "NoCredentialsError": "run `aws configure`, or `aws sso login`",
    "RequestExpired": "set this machine's clock: `sudo timedatectl set-ntp true`",
    "SignatureDoesNotMatch": "run `aws configure`, and check this machine's clock: `timedatectl`",
}


class DeployError(SeqgcError):
    """A deployment that cannot be made, found or read; says what to run.

    Examples
    --------
    >>> raise DeployError("no AWS region is known", "export AWS_REGION")
    Traceback (most recent call last):
        ...
    seqgc.deploy._aws.DeployError: no AWS region is known (export AWS_REGION)
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(f"{message} ({remedy})" if remedy else message)


def open_session(*, region: str | None = None) -> Session:
    """Return a session of boto3, which finds its credentials as the AWS CLI does.

    The region is the one given, else of the environment (``AWS_REGION``), else of the AWS profile.

    Raises
    ------
    DeployError
        If boto3 is not installed, or the region is not known.
    ParameterError
        If there cannot be a region of that name, or there is no such profile.
    """
    try:
        from botocore.exceptions import InvalidRegionError
        from botocore.utils import validate_region_name
    except ImportError:
        raise DeployError("boto3 is not installed", "pip install 'seqgc[aws]'") from None
    with calls("open a session"):
        session = _aws.open_session(region=region)
    if not session.region_name:
        raise DeployError("no AWS region is known", "pass --region, or export AWS_REGION")
    try:
        validate_region_name(session.region_name)
    except InvalidRegionError:
        rule = "must be the name of an AWS region, as eu-central-1"
        raise ParameterError("region", rule, session.region_name) from None
    return session


def client_config() -> object:
    """Return how control-plane clients are set up: soon at an end where nothing answers."""
    from botocore.config import Config

    return Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2})


@contextmanager
def calls(what: str, *, remedy: str = "") -> Iterator[None]:
    """Turn what botocore raises into a `DeployError`: what was tried, AWS's words, a remedy.

    The ``remedy`` is for what has no better one.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        message, known = in_one_line(error)
        raise DeployError(f"cannot {what}: {message}", known or remedy) from error


def in_one_line(error: Exception) -> tuple[str, str]:
    """Return what botocore's error says, and the remedy for it or nothing."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return one_line(error, limit=_LONGEST), _REMEDIES.get(code or type(error).__name__, "")

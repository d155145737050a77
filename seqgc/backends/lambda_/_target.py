"""The addresses of invocations, and their signatures (AWS Signature Version 4).

Two invocations differ only in their body and time. botocore's signer parses each request, which
takes 0.2 ms. With 256 workers, this would be a fifth of the master's work in a round. The signer in
this module does the common part once. See "Create a signed AWS API request" in AWS's IAM user
guide.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from seqgc._aws import open_session
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from botocore.credentials import Credentials, ReadOnlyCredentials

__all__ = ["Signer", "Target"]

_FUNCTION_URL = re.compile(r"[a-z0-9]+\.lambda-url\.([a-z0-9-]+)\.on\.aws")
_SERVICE = "lambda"
_METHOD = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An address that accepts invocations by HTTP POST.

    Use `invoke_api` or `function_url` to make a target.

    Examples
    --------
    >>> Target.function_url("https://abc.lambda-url.eu-west-1.on.aws/").region
    'eu-west-1'
    >>> target = Target.invoke_api("f", region="us-east-1", qualifier="live")
    >>> target.url
    'https://lambda.us-east-1.amazonaws.com/2015-03-31/functions/f/invocations?Qualifier=live'
    """

    url: str
    region: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def invoke_api(
        cls,
        function_name: str,
        *,
        region: str,
        qualifier: str | None = None,
        endpoint_url: str | None = None,
    ) -> Target:
        """Return the address of a function in the Invoke API.

        ``function_name`` is a name or an ARN. ``qualifier`` is an alias or a version; None means
        the newest, unpublished version. ``endpoint_url`` is a VPC endpoint or a service on this
        machine. None means the endpoint in ``AWS_ENDPOINT_URL_LAMBDA`` or the AWS profile, or else
        the region's public endpoint.

        Raises
        ------
        ParameterError
            If ``endpoint_url`` is not a URL, or if there is no endpoint for the region.
        """
        base = endpoint_url or _endpoint(region)
        _check_url("endpoint_url", base)
        path = f"/2015-03-31/functions/{quote(function_name, safe='')}/invocations"
        query = f"?Qualifier={quote(qualifier, safe='')}" if qualifier else ""
        headers = {
            "Content-Type": "application/json",
            "X-Amz-Invocation-Type": "RequestResponse",
            "X-Amz-Log-Type": "Tail",
        }
        return cls(url=base.rstrip("/") + path + query, region=region, headers=headers)

    @classmethod
    def function_url(cls, url: str, *, region: str | None = None) -> Target:
        """Return the target for a function URL with AWS_IAM authentication.

        Raises
        ------
        ParameterError
            If ``url`` is not a URL, or if ``region`` is None and the URL does not contain it.
        """
        host = _check_url("url", url)
        if region is None:
            match = _FUNCTION_URL.fullmatch(host)
            if match is None:
                raise ParameterError("region", "must be given if the URL does not contain it", url)
            region = match[1]
        return cls(url=url, region=region, headers={"Content-Type": "application/json"})


def _endpoint(region: str) -> str:
    """Return botocore's endpoint for Lambda, which also depends on the profile and environment."""
    from botocore.exceptions import BotoCoreError

    # With these keys, botocore does not search for credentials.
    dummy = {"aws_access_key_id": "-", "aws_secret_access_key": "-"}
    session = open_session(region=region)
    try:
        client = session.client("lambda", **dummy)
    except (BotoCoreError, ValueError) as error:  # ValueError: a configured endpoint is not a URL
        rule = f"must be given: botocore finds no endpoint for region {region!r} ({error})"
        raise ParameterError("endpoint_url", rule, None) from None
    with closing(client):
        return str(client.meta.endpoint_url)


def _check_url(argument: str, url: str) -> str:
    """Return the host of a URL, or raise `ParameterError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError(argument, "must be a URL, http:// or https://", url)
    return parts.hostname


class Signer:
    """A signer of the invocations of one target.

    ``now`` returns the seconds since the epoch (default: `time.time`). AWS accepts a difference of
    five minutes; `seqgc doctor` checks the clock. Without ``credentials``, botocore takes them from
    the environment, the profile or the machine's role. Temporary credentials are renewed. Several
    threads may use a signer.

    Raises
    ------
    ParameterError
        If there are no credentials.

    Examples
    --------
    >>> from botocore.credentials import Credentials
    >>> target = Target.function_url("https://abc.lambda-url.eu-west-1.on.aws/")
    >>> signer = Signer(target, credentials=Credentials("AKID", "secret"), now=lambda: 0.0)
    >>> sorted(signer.headers(b"{}"))
    ['Authorization', 'Content-Type', 'X-Amz-Date']
    """

    def __init__(
        self,
        target: Target,
        *,
        credentials: Credentials | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        if credentials is None:
            credentials = open_session().get_credentials()
        if credentials is None:
            remedy = "run `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise ParameterError("credentials", "must be configured", None, remedy)
        self._target, self._credentials, self._now = target, credentials, now or time.time
        parts = urlsplit(target.url)
        # All services except S3 require that the quoted path is quoted again.
        self._begin = f"POST\n{quote(parts.path or '/', safe='/~')}\n{parts.query}\n"
        self._host = parts.netloc
        self._key: tuple[str, str, bytes] = ("", "", b"")  # day, secret, and their signing key

    def headers(self, body: bytes) -> dict[str, str]:
        """Return the signed headers of an invocation with this body."""
        caller = self._credentials.get_frozen_credentials()
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now()))
        headers = {**self._target.headers, "X-Amz-Date": at}
        if caller.token:
            headers["X-Amz-Security-Token"] = caller.token
        lower = {name.lower(): value for name, value in headers.items()}
        signed = sorted([("host", self._host), *lower.items()])
        names = ";".join(name for name, _ in signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed)
        request = f"{self._begin}{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
        scope = f"{at[:8]}/{self._target.region}/{_SERVICE}/aws4_request"
        text = f"{_METHOD}\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._signing_key(at[:8], caller), text.encode(), "sha256").hex()
        headers["Authorization"] = (
            f"{_METHOD} Credential={caller.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        )
        return headers

    def _signing_key(self, day: str, caller: ReadOnlyCredentials) -> bytes:
        cached = self._key  # read it once, because another thread may replace it around midnight
        if cached[:2] != (day, caller.secret_key):
            key = f"AWS4{caller.secret_key}".encode()
            for step in (day, self._target.region, _SERVICE, "aws4_request"):
                key = hmac.digest(key, step.encode(), "sha256")
            cached = self._key = (day, caller.secret_key, key)
        return cached[2]

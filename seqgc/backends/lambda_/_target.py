"""Where invocations are posted to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from seqgc.errors import ParameterError

__all__ = ["Target"]

_FUNCTION_URL = re.compile(r"[a-z0-9]+\.lambda-url\.([a-z0-9-]+)\.on\.aws")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An address that takes invocations by HTTP POST.

    Make one by `invoke_api` or `function_url`.

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
        """Return the Invoke API's address of a function.

        Parameters
        ----------
        function_name
            Its name or ARN.
        region
            For example ``eu-west-1``.
        qualifier
            An alias or version; None: the newest, unpublished one.
        endpoint_url
            A VPC endpoint, or a service of this machine; None: what every client of AWS takes,
            from ``AWS_ENDPOINT_URL_LAMBDA``, the profile, or else the region's public one.

        Raises
        ------
        ParameterError
            If ``endpoint_url`` is no URL, or there is none for the region.
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
        """Return a function URL as a target.

        Parameters
        ----------
        url
            The function's URL; its authentication is AWS_IAM.
        region
            Where it is; None: the URL says.

        Raises
        ------
        ParameterError
            If it is no URL, or does not say its region and none is given.
        """
        host = _check_url("url", url)
        if region is None:
            found = _FUNCTION_URL.fullmatch(host)
            if found is None:
                raise ParameterError("region", "must be given where the URL does not say it", url)
            region = found[1]
        return cls(url=url, region=region, headers={"Content-Type": "application/json"})


def _endpoint(region: str) -> str:
    """Return what botocore takes: its rules are many, of partitions, profiles and variables."""
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    nobody = {"aws_access_key_id": "-", "aws_secret_access_key": "-"}  # else it looks for somebody
    try:
        client = get_session().create_client("lambda", region_name=region, **nobody)
    except (BotoCoreError, ValueError) as error:  # ValueError: what is configured is no URL
        rule = f"must be given where botocore finds none for {region!r} ({error})"
        raise ParameterError("endpoint_url", rule, None) from None
    with closing(client):
        return str(client.meta.endpoint_url)


def _check_url(argument: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ParameterError(argument, "must be a URL, http:// or https://", url)
    return parts.hostname

"""Additions to boto3: the region in ``AWS_REGION``, and no proxy for services on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = [
    "environment_region",
    "is_on_this_machine",
    "open_client",
    "open_session",
]


def environment_region() -> str | None:
    """Return the value of ``AWS_REGION``, else of ``AWS_DEFAULT_REGION``, else None.

    The tools and most SDKs of AWS read ``AWS_REGION``; botocore reads only ``AWS_DEFAULT_REGION``.
    """
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def is_on_this_machine(url: str) -> bool:
    """Return True if a URL names this machine. Requests to this machine must not use a proxy.

    Examples
    --------
    >>> is_on_this_machine("http://127.0.0.1:8000/"), is_on_this_machine("https://example.org")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost" or host.endswith(".localhost")


def open_session(*, region: str | None = None, keys: Sequence[str] = ()) -> Session:
    """Return a boto3 session in ``region``, by default in the region of `environment_region`.

    ``keys`` are an access key and its secret; with them, the session reads no AWS profile. Without
    keys, boto3 takes credentials from the environment, the AWS profile or the role of the machine.
    If there is no region, boto3 takes one from the same places.

    Raises
    ------
    ParameterError
        If ``AWS_PROFILE`` names a profile that does not exist.
    """
    import boto3
    from botocore.exceptions import ProfileNotFound
    from botocore.session import Session

    no_profile = {"profile": (None, None, None, None)}
    within = Session(session_vars=no_profile if keys else None)
    try:
        return boto3.Session(
            *keys, region_name=region or environment_region(), botocore_session=within
        )
    except ProfileNotFound as error:
        rule = "must name a profile of this user's AWS configuration"
        remedy = "`aws configure list-profiles` shows them; or unset AWS_PROFILE"
        raise ParameterError("AWS_PROFILE", rule, error.kwargs["profile"], remedy) from None


def open_client(session: Session, service: str, **options: Any) -> Any:
    """Return ``session.client(service, **options)``, without a proxy for a service on this machine.

    boto3 uses the proxy of ``HTTP_PROXY`` for every address that ``NO_PROXY`` does not list.
    """
    from botocore.config import Config

    make: Any = session.client  # the overloads of `client` require a literal name
    client = make(service, **options)
    if not is_on_this_machine(client.meta.endpoint_url):
        return client
    client.close()
    config = options.pop("config", None) or Config()
    return make(service, config=config.merge(Config(proxies={})), **options)

"""Additions to boto3: AWS_REGION, no proxy to this machine, and signatures with AWS's time.

A signature is valid for a few minutes around its time, by the clock of the service. A refusal (HTTP
403) has the time of the service, so that a caller whose clock is wrong can correct it and sign
again. No function has received the refused request. A function URL gives no reason ("Forbidden"),
so only the date decides: a caller without permission is refused at once, or the second time if its
clock is wrong too. botocore (1.44) does not correct its clock; `sign_by` adds that to a client. It
also renews temporary credentials by the clock of this machine: if that is slow, they expire first.
"""

from __future__ import annotations

import calendar
import os
import time
from collections.abc import Callable, MutableMapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = [
    "ServiceTime",
    "environment_region",
    "is_on_this_machine",
    "open_client",
    "open_session",
    "sign_by",
]

_STALE_S: Final = 240.0  # error of a clock that is corrected; AWS accepts 300 s
_MAX_TIME_S: Final = 2.0**32  # a later date is not from an AWS service
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_STAMPED, _REPEATED = "seqgc_stamp", "seqgc_repeated"


def environment_region() -> str | None:
    """Return ``AWS_REGION``, else ``AWS_DEFAULT_REGION``, else None.

    AWS's tools and most of its SDKs read the first variable; botocore reads only the second.
    """
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def is_on_this_machine(url: str) -> bool:
    """Return True if a URL is on this machine: such requests must not use a proxy.

    Examples
    --------
    >>> is_on_this_machine("http://127.0.0.1:8000/"), is_on_this_machine("https://example.org")
    (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def open_session(*, region: str | None = None, keys: Sequence[str] = ()) -> Session:
    """Return a boto3 session in the given region, else in that of `environment_region`.

    With ``keys`` (access key and secret) it reads no AWS profile. Without them boto3 looks for
    credentials, and for a region if none is known: in the environment, the AWS profile and the role
    of the machine.

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

    make: Any = session.client  # its overloads require a literal name
    client = make(service, **options)
    if not is_on_this_machine(client.meta.endpoint_url):
        return client
    client.close()
    config = options.pop("config", None) or Config()
    return make(service, config=config.merge(Config(proxies={})), **options)


class ServiceTime:
    """The time of a service: that of ``now`` (default `time.time`), corrected after a refusal.

    Several threads may share it.

    Examples
    --------
    >>> clock = ServiceTime(now=lambda: 3600.0)
    >>> clock.stamp()
    '19700101T010000Z'
    >>> refusal = {"status": 403, "date": "Thu, 01 Jan 1970 00:00:00 GMT"}
    >>> clock.corrects("19700101T010000Z", **refusal), clock.stamp()
    (True, '19700101T000000Z')
    >>> clock.corrects("19700101T000000Z", **refusal)
    False
    """

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = time.time if now is None else now
        self._behind_s = 0.0

    def stamp(self) -> str:
        """Return the time in the format of signatures."""
        return time.strftime(_STAMP, time.gmtime(self._now() + self._behind_s))

    def corrects(self, stamp: str, *, status: int, date: str | None) -> bool:
        """Correct the time after a refusal; return True if the request should be signed again.

        ``stamp`` is the time in the request, ``status`` and ``date`` (a header) are the response's.
        """
        if status != 403 or date is None:
            return False
        try:
            theirs = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()  # HTTP uses GMT
            ours = calendar.timegm(time.strptime(stamp, _STAMP))
        except (ValueError, OverflowError):
            return False
        if not 0 <= theirs < _MAX_TIME_S or abs(theirs - ours) < _STALE_S:
            return False
        self._behind_s = theirs - self._now()
        return True


def sign_by(clock: ServiceTime, client: Any) -> None:
    """Make a boto3 client sign with this time, and repeat a request refused for its time once."""
    events, service = client.meta.events, client.meta.service_model.service_id.hyphenize()
    events.register(f"before-sign.{service}", lambda request, **_: _date(clock, request))
    events.register_first(
        f"needs-retry.{service}",
        lambda response, request_dict, **_: _repeat(clock, response, request_dict["context"]),
    )


def _date(clock: ServiceTime, request: Any) -> None:
    request.context[_STAMPED] = stamp = clock.stamp()
    request.context = _Dated(request.context, timestamp=stamp)


class _Dated(dict[str, Any]):
    """The context of a request, in which botocore's signers cannot replace the time."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "timestamp":
            super().__setitem__(name, value)


def _repeat(clock: ServiceTime, response: Any, context: MutableMapping[str, Any]) -> float | None:
    """Return 0 (repeat after 0 seconds) if a wrong clock was the reason of a refusal, else None."""
    if response is None or _REPEATED in context:
        return None
    http, _ = response
    if not clock.corrects(
        context[_STAMPED], status=http.status_code, date=http.headers.get("Date")
    ):
        return None
    context[_REPEATED] = True
    return 0.0

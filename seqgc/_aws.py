"""What boto3 leaves out: AWS_REGION, no proxy to this machine, and signing by AWS's time, not ours.

A signature holds for a few minutes about its time, by the service's clock. What it refuses (HTTP
403) it dates, so a caller whose clock is wrong can put that right and sign again; no function has
seen the request. Why it was refused, a function URL does not say ("Forbidden"): the date alone
decides. A caller who may not call it is refused at once, or, if its clock is wrong too, the second
time. A clock that is set while a run goes on is noticed in the same way. botocore does none of it
(1.44), so clients of boto3's are taught by `sign_by`. Temporary credentials, though, botocore
renews by this machine's clock: by one that is slow they are used past their end, and refused.
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

_STALE_S: Final = 240.0  # by which a signature's time is off; AWS allows for 300 s
_NEVER: Final = 2.0**32  # no clock shows this: whoever says it is no service of AWS's
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_STAMPED, _REPEATED = "seqgc_stamp", "seqgc_repeated"


def environment_region() -> str | None:
    """Return ``AWS_REGION``, else ``AWS_DEFAULT_REGION``, else None.

    AWS's tools and all of its SDKs but one read the first; botocore knows the second only.
    """
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


def is_on_this_machine(url: str) -> bool:
    """Return whether a URL leads to this machine, where no request may go through a proxy.

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
    """Return a session of boto3, in the given region, else that of `environment_region`.

    A pair of ``keys`` (access key and secret) signs for it; no AWS profile is read then. Without
    them boto3 finds the credentials and, if there is no region yet, the region: in the environment,
    the AWS profile or the machine's role.

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
    """Return ``session.client(service, **options)``, without a proxy to a service of this machine.

    boto3 asks the proxy of ``HTTP_PROXY`` for every address that ``NO_PROXY`` does not list.
    """
    from botocore.config import Config

    make: Any = session.client  # boto3's overloads want a literal name
    client = make(service, **options)
    if not is_on_this_machine(client.meta.endpoint_url):
        return client
    client.close()
    config = options.pop("config", None) or Config()
    return make(service, config=config.merge(Config(proxies={})), **options)


class ServiceTime:
    """The time by a service's clock; by ``now``'s (None: `time.time`), until that proves wrong.

    Several threads may use it.

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
        """Return the time, as signatures write it."""
        return time.strftime(_STAMP, time.gmtime(self._now() + self._behind_s))

    def corrects(self, stamp: str, *, status: int, date: str | None) -> bool:
        """Take the time from a refusal; return whether what bore ``stamp`` is to be signed again.

        ``status`` and ``date``, a header, are the response's.
        """
        if status != 403 or date is None:
            return False
        try:
            theirs = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()  # HTTP's are GMT
            ours = calendar.timegm(time.strptime(stamp, _STAMP))
        except (ValueError, OverflowError):
            return False
        if not 0 <= theirs < _NEVER or abs(theirs - ours) < _STALE_S:
            return False
        self._behind_s = theirs - self._now()
        return True


def sign_by(clock: ServiceTime, client: Any) -> None:
    """Have a client of boto3's sign by that clock, and once more what is refused for its time."""
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
    """A request's context, in which botocore's signers note down their time: another one."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "timestamp":
            super().__setitem__(name, value)


def _repeat(clock: ServiceTime, response: Any, context: MutableMapping[str, Any]) -> float | None:
    """Return that a request is to be made again after 0 seconds, if a wrong clock was why."""
    if response is None or _REPEATED in context:
        return None
    http, _ = response
    if not clock.corrects(
        context[_STAMPED], status=http.status_code, date=http.headers.get("Date")
    ):
        return None
    context[_REPEATED] = True
    return 0.0

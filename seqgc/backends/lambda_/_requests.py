"""A function URL, or the Invoke API, through requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, cast

from seqgc.backends._tasks import MonotonicClock
from seqgc.backends.lambda_._errors import reply_of
from seqgc.backends.lambda_._signer import Signer
from seqgc.backends.lambda_._sockets import Sockets
from seqgc.backends.lambda_._target import Target
from seqgc.backends.lambda_._threads import CallThreads
from seqgc.backends.lambda_._transport import Reply
from seqgc.ports import Clock

if TYPE_CHECKING:
    import requests
    from botocore.credentials import Credentials

__all__ = ["HttpTransport"]

_READ_GRACE_S = 10.0  # the service says that the function's time is up; we do not guess it first


class HttpTransport:
    """Posts to a function URL (or the Invoke API) with requests, a thread each; a `Transport`.

    Requests are signed for AWS_IAM authentication. Function URLs bring no tail of the log.

    Parameters
    ----------
    target
        Where to post.
    timeout_s
        The function's own time-out, seconds; its answer is waited for a little longer.
    connections
        Most invocations at once: at least the workers and their outstanding stragglers. What
        exceeds it waits here.
    connect_timeout_s
        For a connection to be made, seconds. `close` may take as long if one hangs.
    credentials
        The caller's; None: those that botocore finds.
    clock
        What replies are stamped with; `time.monotonic` unless given.

    Raises
    ------
    ParameterError
        If ``connections`` is not positive, or there are no credentials.

    Examples
    --------
    >>> from botocore.credentials import Credentials
    >>> target = Target.function_url("https://abc.lambda-url.eu-west-1.on.aws/")
    >>> transport = HttpTransport(target, credentials=Credentials("key", "secret"))
    >>> transport.poll(0.0)
    []
    >>> transport.close()
    """

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = 900.0,
        connections: int = 1024,
        connect_timeout_s: float = 5.0,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
    ) -> None:
        sockets = Sockets()
        self._threads = CallThreads(
            self._post,
            abort=sockets.abort,
            limit=connections,
            clock=MonotonicClock() if clock is None else clock,
        )
        self._target, self._signer = target, Signer(target, credentials=credentials)
        self._timeout_s = (connect_timeout_s, timeout_s + _READ_GRACE_S)
        self._session = _session(connections, sockets)
        # Proxies and certificates, looked up once. Not per request, where requests would also look
        # for passwords (.netrc), and put them in the place of the signature.
        self._settings = self._session.merge_environment_settings(
            target.url, {}, None, os.environ.get("AWS_CA_BUNDLE"), None
        )

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``; returns at once."""
        self._threads.submit(tag, body)

    def flush(self) -> None:
        """Do nothing: threads send what was submitted."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have come, in order of time; wait for one if there is none."""
        return self._threads.poll(timeout_s)

    def close(self) -> None:
        """Abandon what is on its way, within about a second; harmless if done already."""
        self._threads.close()
        self._session.close()

    def _post(self, tag: int, body: bytes) -> Reply:
        import requests

        headers = self._signer.headers(body)
        request = requests.Request("POST", self._target.url, data=body, headers=headers)
        settings = {**self._settings, "stream": False}
        with self._session.send(
            request.prepare(), timeout=self._timeout_s, allow_redirects=False, **settings
        ) as response:
            return reply_of(
                tag,
                0.0,
                response.status_code,
                response.content,
                function_error_kind=response.headers.get("X-Amz-Function-Error", ""),
                log_tail=response.headers.get("X-Amz-Log-Result", ""),
                code=response.headers.get("X-Amzn-ErrorType", ""),
            )


def _session(connections: int, sockets: Sockets) -> requests.Session:
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # threads share them
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=connections, max_retries=0)
    manager = adapter.poolmanager
    watched = {
        scheme: sockets.watched(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
    }
    manager.pool_classes_by_scheme = cast("dict[str, type]", watched)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return session

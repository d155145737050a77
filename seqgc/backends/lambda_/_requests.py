"""A function URL, or the Invoke API, through requests."""

from __future__ import annotations

import os
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, cast

from seqgc.backends.lambda_._errors import reply_of
from seqgc.backends.lambda_._signer import Signer
from seqgc.backends.lambda_._sockets import Sockets
from seqgc.backends.lambda_._target import Target
from seqgc.backends.lambda_._threads import ThreadedTransport
from seqgc.backends.lambda_._transport import READ_GRACE_S, Reply
from seqgc.ports import Clock

if TYPE_CHECKING:
    import requests
    from botocore.credentials import Credentials

__all__ = ["HttpTransport"]


class HttpTransport(ThreadedTransport):
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
        super().__init__(connections=connections, clock=clock)
        self._target, self._signer = target, Signer(target, credentials=credentials)
        self._timeout_s = (connect_timeout_s, timeout_s + READ_GRACE_S)
        self._session = _session(connections, self._sockets)
        # Proxies and certificates, looked up once. Not per request, where requests would also look
        # for passwords (.netrc), and put them in the place of the signature.
        self._settings = self._session.merge_environment_settings(
            target.url, {}, None, os.environ.get("AWS_CA_BUNDLE"), None
        )

    def _send(self, tag: int, body: bytes) -> Reply:
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
                retry_after=response.headers.get("Retry-After", ""),
            )

    def _release(self) -> None:
        self._session.close()


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

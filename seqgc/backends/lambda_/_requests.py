"""A function URL, or the Invoke API, through requests: where there is no libcurl."""

from __future__ import annotations

import os
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, cast

from seqgc.backends.lambda_._errors import read_whole, reply_of
from seqgc.backends.lambda_._signer import Signer
from seqgc.backends.lambda_._sockets import Sockets
from seqgc.backends.lambda_._target import Target
from seqgc.backends.lambda_._threads import ThreadedTransport
from seqgc.backends.lambda_._transport import Limits, Reply
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
    limits
        Of time, connections and bytes; None: the default ones.
    credentials
        The caller's; None: those that botocore finds.
    clock
        What replies are stamped with; `time.monotonic` unless given.

    Raises
    ------
    ParameterError
        If there are no credentials.

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
        limits: Limits | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(limits, clock=clock)
        self._target, self._signer = target, Signer(target, credentials=credentials)
        self._session = _session(self._limits.connections, self._sockets)
        # Proxies and certificates, looked up once. Not per request, where requests would also look
        # for passwords (.netrc), and put them in the place of the signature.
        self._settings = self._session.merge_environment_settings(
            target.url, {}, None, os.environ.get("AWS_CA_BUNDLE"), None
        )

    def _send(self, tag: int, body: bytes) -> Reply:
        import requests

        headers = {**self._signer.headers(body), "Accept-Encoding": "identity"}
        timeout_s = (self._limits.connect_timeout_s, self._limits.answer_s)
        request = requests.Request("POST", self._target.url, data=body, headers=headers)
        settings = {**self._settings, "stream": True}
        with self._session.send(
            request.prepare(), timeout=timeout_s, allow_redirects=False, **settings
        ) as response:
            # Not `response.content`, which has no bound and decodes what it is told to.
            answer = read_whole(response.raw.read, max_bytes=self._limits.max_answer_bytes)
            return reply_of(tag, 0.0, response.status_code, answer, response.headers)

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

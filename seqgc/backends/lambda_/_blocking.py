"""Transports on HTTP libraries that block, boto3 and requests: a thread per invocation."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPResponse
from http.cookiejar import DefaultCookiePolicy
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from seqgc._aws import ServiceTime, is_on_this_machine, open_client, open_session, sign_by
from seqgc.backends._events import MonotonicClock
from seqgc.backends.lambda_._target import Signer, Target
from seqgc.backends.lambda_._threads import CallThreads
from seqgc.backends.lambda_._transport import Limits, Reply, connection_error, reply_of
from seqgc.errors import ParameterError
from seqgc.ports import Clock

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.credentials import Credentials
    from requests.adapters import HTTPAdapter
    from urllib3 import PoolManager
    from urllib3.connectionpool import HTTPConnectionPool

__all__ = ["Boto3Transport", "HttpTransport"]

_Pool: TypeAlias = "type[HTTPConnectionPool]"
_PROBE_EVERY_S = 60  # as libcurl does
_HEAD_BYTES = 1 << 20  # beside the body: heads, and the lengths of chunks
_ERROR_BYTES = 1 << 16  # of what botocore parses; the service says less


class _Sockets:
    """The open connections of urllib3 pools (requests and botocore use it); thread-safe.

    No HTTP library stops a read that another thread waits in, and an invocation may take fifteen
    minutes. Shutting the socket down does: the read ends as if the peer had hung up. Nor has any a
    bound for all that comes: their time-outs are a single read's, and what is no answer is read as
    a whole. So what they read from is `_Incoming`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()

    def watched(self, pools: Mapping[str, _Pool]) -> dict[str, _Pool]:
        """Return kinds of ``pools``, by scheme, whose connections are known here once open."""
        return {scheme: self._watched(pool) for scheme, pool in pools.items()}

    def _watched(self, pool: _Pool) -> _Pool:
        connection, limits = pool.ConnectionCls, self._limits

        def connect(self_: object) -> None:
            connection.connect(self_)  # type: ignore[arg-type]
            sock = getattr(self_, "sock", None)
            if isinstance(sock, socket.socket):
                _keep_alive(sock)
                with self._lock:
                    self._sockets.add(sock)

        class Response(HTTPResponse):
            def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
                super().__init__(sock, *arguments, **options)
                raw = self.fp.detach()
                self.fp = BufferedReader(_Incoming(raw, sock, limits))

        changed = {"connect": connect, "response_class": Response}
        kind = type(f"Watched{connection.__name__}", (connection,), changed)
        return cast("_Pool", type(f"Watched{pool.__name__}", (pool,), {"ConnectionCls": kind}))

    def abort(self) -> None:
        """End what is being read or written on every connection, now."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with suppress(OSError):  # closed meanwhile, or by the other side
                # Not TLS's own, which would wait for the thread that reads.
                socket.socket.shutdown(each, socket.SHUT_RDWR)


def _keep_alive(sock: socket.socket) -> None:
    """Have the system ask now and then: a NAT forgets who is silent for 350 s, a function may be.

    By itself it asks after two hours, also where botocore's ``tcp_keepalive`` is set.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, name):  # Linux; elsewhere the system's own
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), _PROBE_EVERY_S)


class _Incoming(RawIOBase):
    """What comes for one request, its head, its body and all between: so much, and so long."""

    def __init__(self, raw: RawIOBase, sock: socket.socket, limits: Limits) -> None:
        self._raw, self._sock = raw, sock
        self._room = limits.max_answer_bytes + _HEAD_BYTES
        self._over_at = time.monotonic() + limits.answer_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        usual, left_s = self._sock.gettimeout(), self._over_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer does not end")
        self._sock.settimeout(left_s)
        try:
            count = self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(usual)  # the connection is for other requests, too
        self._room -= count or 0
        if self._room < 0:
            raise ConnectionError("the answer is too long")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _ThreadedTransport(ABC):
    """Most of a `Transport`: ``limits.connections`` threads at most, each waiting for a reply."""

    _release: Callable[[], None]  # closes the library's client

    def __init__(self, limits: Limits | None, *, clock: Clock | None) -> None:
        self._limits = limits or Limits()
        self._sockets = _Sockets(self._limits)
        self._threads = CallThreads[Reply](
            limit=self._limits.connections,
            clock=clock or MonotonicClock(),
            abort=self._sockets.abort,
        )

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``; returns at once."""
        self._threads.submit(tag, partial(self._send, tag, body))

    def flush(self) -> None:  # noqa: B027 (nothing is the right thing for all)
        """Do nothing: threads send what was submitted."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have come, in order of time; wait for one if there is none."""
        return [
            Reply(tag=each.tag, at=each.at, error=connection_error(each.value), ran=None)
            if isinstance(each.value, Exception)
            else replace(each.value, at=each.at)
            for each in self._threads.take(timeout_s)
        ]

    def wake(self) -> None:
        """Have `poll` return, now or the next time, although no reply has come."""
        self._threads.wake()

    def close(self) -> None:
        """Abandon what is on its way, within about a second; harmless if done already."""
        self._threads.close()
        self._release()

    def _whole(self, read: Callable[[int], bytes]) -> bytes:
        """Return the body that ``read(count)`` gives pieces of, no longer than it may be."""
        most = self._limits.max_answer_bytes
        body = read(most + 1)
        while len(body) <= most and (piece := read(most + 1 - len(body))):
            body += piece
        if len(body) > most:
            raise ConnectionError(f"the answer has more than {most} bytes")
        return body

    @abstractmethod
    def _send(self, tag: int, body: bytes) -> Reply:
        """Invoke the function and wait for its answer; the reply's time is anything yet."""


class Boto3Transport(_ThreadedTransport):
    """Invokes by ``boto3.client("lambda").invoke``, in a thread each; a `Transport`.

    It is the one to begin with: credentials, endpoints, proxies and certificates are boto3's
    business. Its cost is the processor's time, a few ms per invocation: see `CurlTransport`.

    ``function_name`` may be an ARN; ``qualifier`` is an alias or version, None the newest,
    unpublished one. ``region``, ``endpoint_url`` and ``session`` are as boto3's, None what it
    finds, ``AWS_REGION`` included. Replies are stamped by ``clock`` (None: `time.monotonic`).

    Raises
    ------
    ParameterError
        If the endpoint is no URL.

    Examples
    --------
    >>> transport = Boto3Transport("seqgc-worker", region="eu-west-1")
    >>> transport.poll(0.0)
    []
    >>> transport.close()
    """

    def __init__(
        self,
        function_name: str,
        *,
        qualifier: str | None = None,
        limits: Limits | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
    ) -> None:
        from botocore.config import Config

        super().__init__(limits, clock=clock)
        config = Config(
            retries={"total_max_attempts": 1},  # who repeats an invocation decides the scheduler
            max_pool_connections=self._limits.connections,
            connect_timeout=self._limits.connect_timeout_s,
            read_timeout=self._limits.answer_s,
        )
        try:
            self._client = open_client(
                session or open_session(),
                "lambda",
                config=config,
                region_name=region,
                endpoint_url=endpoint_url,
            )
        except ValueError as error:  # boto3's own, of what is given or configured
            raise ParameterError("endpoint_url", f"must be a URL ({error})", endpoint_url) from None
        self._release = self._client.close
        sign_by(ServiceTime(), self._client)
        self._client.meta.events.register("before-parse.lambda.Invoke", _cut_error)
        self._function = {"FunctionName": function_name}
        if qualifier is not None:
            self._function["Qualifier"] = qualifier
        # botocore has no public way to reach its connections; a session of our own would have to
        # guess its proxies and certificates.
        http = self._client._endpoint.http_session
        pools = self._sockets.watched(http._pool_classes_by_scheme)
        http._pool_classes_by_scheme = http._manager.pool_classes_by_scheme = pools

    def _send(self, tag: int, body: bytes) -> Reply:
        from botocore.exceptions import ClientError

        try:
            answer = self._client.invoke(**self._function, Payload=body, LogType="Tail")
        except ClientError as error:
            refusal, meta = error.response, error.response["ResponseMetadata"]
            fields = {"Message": refusal["Error"].get("Message"), "Reason": refusal.get("Reason")}
            code = refusal["Error"].get("Code", "")
            headers = {**meta["HTTPHeaders"], "x-amzn-errortype": code}
            return reply_of(tag, 0.0, meta["HTTPStatusCode"], json.dumps(fields).encode(), headers)
        whole = self._whole(answer["Payload"].read)
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return reply_of(tag, 0.0, answer["StatusCode"], whole, headers)


def _cut_error(response_dict: dict[str, Any], **_: object) -> None:
    """Leave so much of an error's JSON that its objects, which nobody reads, take no memory."""
    body = response_dict["body"]  # else of an answer, which is a stream
    if isinstance(body, bytes) and len(body) > _ERROR_BYTES:
        response_dict["body"] = body[:_ERROR_BYTES].decode(errors="ignore").encode()


class HttpTransport(_ThreadedTransport):
    """Posts to a function URL (or the Invoke API) with requests, a thread each; a `Transport`.

    It is for where there is no libcurl. Requests are signed for AWS_IAM authentication. Function
    URLs bring no tail of the log. Arguments and errors are those of `CurlTransport`.

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
        import requests

        super().__init__(limits, clock=clock)
        self._target, self._signer = target, Signer(target, credentials=credentials)
        adapter = self._adapter()

        class Session(requests.Session):
            def get_redirect_target(self, resp: requests.Response) -> None:
                """Follow none: it would read and decode all of the answer, without a bound."""

        session = Session()
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # threads share them
        for scheme in ("http://", "https://"):
            session.mount(scheme, adapter)
        self._client, self._release = session, session.close
        # Proxies and certificates, looked up once. Not per request, where requests would also look
        # for passwords (.netrc), and put them in the place of the signature.
        self._settings = session.merge_environment_settings(
            target.url, {}, True, os.environ.get("AWS_CA_BUNDLE"), None
        )
        if is_on_this_machine(target.url):
            self._settings["proxies"] = {}

    def _adapter(self) -> HTTPAdapter:
        """Return what opens connections, all of them watched, a proxy's too."""
        from requests.adapters import HTTPAdapter

        def watch(manager: PoolManager) -> PoolManager:
            manager.pool_classes_by_scheme = pools
            return manager

        class Adapter(HTTPAdapter):
            def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
                return watch(super().proxy_manager_for(proxy, **options))

        connections = self._limits.connections
        adapter = Adapter(pool_connections=1, pool_maxsize=connections, max_retries=0)
        pools = self._sockets.watched(adapter.poolmanager.pool_classes_by_scheme)
        watch(adapter.poolmanager)
        return adapter

    def _send(self, tag: int, body: bytes) -> Reply:
        signed = self._signer.headers(body)
        status, answer, headers = self._post(signed, body)
        if self._signer.is_stale(signed, status, headers.get("date")):
            status, answer, headers = self._post(self._signer.headers(body), body)
        return reply_of(tag, 0.0, status, answer, headers)

    def _post(self, signed: Mapping[str, str], body: bytes) -> tuple[int, bytes, Mapping[str, str]]:
        """Return the status, body and headers (whatever their case) of a response."""
        import requests

        headers = {**signed, "Accept-Encoding": "identity"}
        timeout_s = (self._limits.connect_timeout_s, self._limits.answer_s)
        request = requests.Request("POST", self._target.url, data=body, headers=headers).prepare()
        with self._client.send(
            request, timeout=timeout_s, allow_redirects=False, **self._settings
        ) as response:
            # Not `response.content`, which has no bound and decodes what it is told to.
            return response.status_code, self._whole(response.raw.read), response.headers

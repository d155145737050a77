"""Transports that use boto3 or requests, which block, and the pool of threads for their calls."""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from seqgc._aws import is_on_this_machine, open_client, open_session
from seqgc.backends._events import LONGEST_WAIT_S, MonotonicClock
from seqgc.backends.lambda_._target import Signer, Target
from seqgc.backends.lambda_._transport import Limits, Reply, connection_error, reply_of
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Clock

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.credentials import Credentials

__all__ = ["Boto3Transport", "CallThreads", "Ended", "HttpTransport", "RequestsTransport"]

_Value = TypeVar("_Value")
_Call: TypeAlias = tuple[int, Callable[[], _Value]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ended(Generic[_Value]):
    """The end of the call ``tag`` at the time ``at``. ``value`` is its result or its exception."""

    tag: int
    at: float
    value: _Value | Exception


class CallThreads(Generic[_Value]):
    """A pool of at most ``limit`` threads that make calls. Threads start when they are needed.

    If ``limit`` or the system's limit of threads is reached, further calls wait for a free thread.
    A call that takes longer than ``limit_s`` seconds ends with a `TimeoutError`, and its later
    result is dropped. After each call its thread calls ``on_end``. The threads are daemons, so that
    Python can exit even if a call hangs. With `concurrent.futures` it could not.
    """

    def __init__(
        self,
        *,
        limit: int,
        clock: Clock,
        limit_s: float = math.inf,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit, self._limit_s = limit, limit_s
        self._clock, self._on_end = clock, on_end
        self._calls: queue.SimpleQueue[_Call[_Value] | None] = queue.SimpleQueue()
        self._threads = 0
        self._news = threading.Condition()  # guards the next four
        self._ended: list[Ended[_Value]] = []
        self._pending = 0  # number of calls that wait for a thread or occupy one
        self._running: dict[_Call[_Value], float] = {}  # the time of their start, oldest first
        self._woken = False
        self._closed = False

    def submit(self, tag: int, call: Callable[[], _Value]) -> None:
        """Let a thread make this call, without waiting for its end.

        Raises
        ------
        WorkerError
            If the pool is closed, or if the first thread cannot be started.
        """
        if self._closed:
            raise WorkerError("the transport is closed: make a new one")
        if self._pending >= self._threads < self._limit:
            name = f"seqgc-lambda-{self._threads}"
            try:
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            except RuntimeError as error:  # too many threads: the call waits for an existing one
                if not self._threads:
                    limit = "the limit on processes (ulimit -u)"
                    raise WorkerError(f"{error}: raise {limit}") from error
            else:
                self._threads += 1
        with self._news:
            self._pending += 1
        self._calls.put((tag, call))

    def take(self, timeout_s: float = 0.0) -> list[Ended[_Value]]:
        """Return the calls that have ended, in order of time.

        If no call has ended, wait for one, for `wake` or for ``timeout_s`` seconds.
        """
        give_up_at = time.monotonic() + min(timeout_s, LONGEST_WAIT_S)
        with self._news:
            while True:
                self._end_overdue()
                left_s = give_up_at - time.monotonic()
                if self._ended or self._woken or left_s <= 0:
                    break
                oldest = next(iter(self._running.values()), math.inf)
                self._news.wait(min(left_s, oldest + self._limit_s - time.monotonic()))
            self._woken = False
            ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        """Make the present or the next `take` return at once."""
        with self._news:
            self._woken = True
            self._news.notify()

    def close(self) -> None:
        """Abandon all calls. Idle threads end now, and busy threads when their calls end."""
        self._closed = True
        for _ in range(self._threads):
            self._calls.put(None)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        while self._running:
            call, began_at = next(iter(self._running.items()))
            if now < began_at + self._limit_s:
                return
            self._finish(call, TimeoutError(f"no answer within {self._limit_s:g} s"))

    def _finish(self, call: _Call[_Value], value: _Value | Exception) -> None:
        if self._running.pop(call, None) is not None:  # otherwise the call had timed out
            self._ended.append(Ended(tag=call[0], at=self._clock.now(), value=value))

    def _serve(self) -> None:
        while self._make(self._calls.get()):
            pass  # a waiting thread must not keep references to large calls and results

    def _make(self, call: _Call[_Value] | None) -> bool:
        """Make a call and report its end; return False at the end of the queue."""
        if call is None:
            return False
        if self._closed:
            return True
        with self._news:
            self._running[call] = time.monotonic()
        value: _Value | Exception
        try:
            value = call[1]()
        except Exception as error:
            value = error.with_traceback(None)  # a traceback would keep the call alive
        with self._news:  # so that times increase in the order of the list
            self._finish(call, value)
            self._pending -= 1
            self._news.notify()
        self._on_end()
        return True


class _ThreadedTransport(ABC):
    """The base of transports in which each invocation occupies a thread.

    There are at most ``limits.connections`` threads. If an invocation takes longer than its limits,
    the reply is an error. Its thread ends when the library returns, and so do the threads of
    invocations that `close` has abandoned.
    """

    _release: Callable[[], None]  # closes the library's client

    def __init__(self, limits: Limits | None, *, clock: Clock | None) -> None:
        self._limits = limits or Limits()
        self._threads = CallThreads[Reply](
            limit=self._limits.connections,
            limit_s=self._limits.connect_timeout_s + self._limits.answer_s,
            clock=clock or MonotonicClock(),
        )

    def submit(self, tag: int, body: bytes) -> None:
        self._threads.submit(tag, partial(self._send, tag, body))

    def flush(self) -> None:  # noqa: B027 (not abstract: no subclass needs it)
        """Do nothing, because the threads send the requests at once."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        return [
            Reply(tag=each.tag, at=each.at, error=connection_error(each.value), ran=None)
            if isinstance(each.value, Exception)
            else replace(each.value, at=each.at)
            for each in self._threads.take(timeout_s)
        ]

    def wake(self) -> None:
        self._threads.wake()

    def close(self) -> None:
        self._threads.close()
        self._release()

    def _whole(self, read: Callable[[int], bytes]) -> bytes:
        """Read a complete body with ``read(count)``; raise `ConnectionError` if it is too long."""
        most = self._limits.max_answer_bytes
        body = read(most + 1)
        while len(body) <= most and (piece := read(most + 1 - len(body))):
            body += piece
        if len(body) > most:
            raise ConnectionError(f"the answer has more than {most} bytes")
        return body

    @abstractmethod
    def _send(self, tag: int, body: bytes) -> Reply:
        """Invoke the function and return its answer. `poll` sets the time of the reply."""


class Boto3Transport(_ThreadedTransport):
    """A `Transport` that calls ``boto3.client("lambda").invoke``, each call in a thread.

    Credentials, endpoints, proxies and certificates come from boto3's configuration. An invocation
    takes a few ms of processor time; `CurlTransport` is faster.

    Parameters
    ----------
    function_name
        The name or ARN of the function.
    qualifier
        An alias or a version. None means the newest, unpublished version.
    limits
        See `Limits`; None means the defaults.
    region, endpoint_url, session
        As in boto3. None means boto3's configuration, including ``AWS_REGION``.
    clock
        Gives the times of replies; None means `time.monotonic`.

    Raises
    ------
    ParameterError
        If the endpoint is not a URL.

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
            retries={"total_max_attempts": 1},  # only the policy may repeat a task
            max_pool_connections=self._limits.connections,
            connect_timeout=self._limits.connect_timeout_s,
            read_timeout=self._limits.answer_s,
            tcp_keepalive=True,
        )
        try:
            self._client = open_client(
                session or open_session(),
                "lambda",
                config=config,
                region_name=region,
                endpoint_url=endpoint_url,
            )
        except ValueError as error:  # the argument or the configured endpoint is not valid
            raise ParameterError("endpoint_url", f"must be a URL ({error})", endpoint_url) from None
        self._release = self._client.close
        self._function = {"FunctionName": function_name}
        if qualifier is not None:
            self._function["Qualifier"] = qualifier

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
        with closing(answer["Payload"]) as payload:
            body = self._whole(payload.read)
        return reply_of(
            tag, 0.0, answer["StatusCode"], body, answer["ResponseMetadata"]["HTTPHeaders"]
        )


class RequestsTransport(_ThreadedTransport):
    """The base of transports that post with requests."""

    def __init__(self, limits: Limits | None, *, clock: Clock | None) -> None:
        from requests.adapters import HTTPAdapter

        super().__init__(limits, clock=clock)
        # The adapter is used without a session. A session would share cookies between threads,
        # follow redirects, and replace the signature by a password from .netrc.
        self._adapter = HTTPAdapter(
            pool_connections=1, pool_maxsize=self._limits.connections, max_retries=0
        )
        self._release = self._adapter.close
        self._options: dict[str, dict[str, Any]] = {}  # of requests, by URL

    def _options_of(self, url: str) -> dict[str, Any]:
        """Return the proxies, the certificates and the time limits of requests to a URL."""
        import requests

        if url in self._options:
            return self._options[url]
        with requests.Session() as session:  # the environment's proxies and certificates
            bundle = os.environ.get("AWS_CA_BUNDLE")
            options = dict(session.merge_environment_settings(url, {}, True, bundle, None))
        if is_on_this_machine(url):
            options["proxies"] = {}
        timeout_s = (self._limits.connect_timeout_s, self._limits.answer_s)
        self._options[url] = options | {"timeout": timeout_s, "stream": True}
        return self._options[url]

    def _post(self, tag: int, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Post a body and return the reply, whose time `poll` sets."""
        import requests

        headers = {**headers, "Accept-Encoding": "identity"}
        request = requests.Request("POST", url, data=body, headers=headers).prepare()
        with self._adapter.send(request, **self._options_of(url)) as response:
            # Not `response.content`, which has no size limit and decompresses the answer.
            answer = self._whole(response.raw.read)
            return reply_of(tag, 0.0, response.status_code, answer, response.headers)


class HttpTransport(RequestsTransport):
    """A `Transport` that sends invocations with requests, each in a thread.

    The target is a function URL or the Invoke API. Use this transport if libcurl is not available.
    Requests are signed for AWS_IAM authentication. Function URLs do not return the end of the log.
    For the arguments and errors see `CurlTransport`.

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

    def _send(self, tag: int, body: bytes) -> Reply:
        return self._post(tag, self._target.url, body, self._signer.headers(body))

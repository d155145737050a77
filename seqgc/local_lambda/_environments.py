"""The execution environments of one version of the function. They start when needed and stay warm.

Theory of operation
-------------------
Four kinds of process make up the emulator:

::

    caller -- control socket --> service -- channel --> parent --fork--> environment
                                    ^                                        |
                                    +-------- its own Runtime API -----------+

The *service* is one asyncio loop, which serves the Invoke API, the function URL and a Runtime API
for each environment. It never forks, because forking a process with a running event loop is unsafe.
The *parent* (`_parent`) runs AWS's own runtime client, which imports the handler, up to its first
request for an invocation. At this point it forks an environment whenever the service orders one.
The parent holds the process ids, reports each exit, and kills all environments when the channel
closes. An *environment* continues from the fork, and requests one invocation after the other from
its Runtime API.

If a process dies, the processes to its right in the picture also end. The service ends when the
caller's control socket closes. The parent ends when the service's channel closes, and it kills its
environments. If the parent is killed, the service kills the environments that it has a process id
of (`_parent_lost`), and ends.

An environment is either idle or `lent` to one request. The idle environment that was used last is
used first, so that few environments stay warm. An environment is started by its first request,
whose duration includes the start. If an environment ends during a request, it is removed when the
request ends; if it ends while it is idle, it is removed immediately. The function answers at most
``concurrency`` requests at a time. Further requests are throttled: like Lambda, the emulator has no
queue. Environments share the memory that their parent had at the fork; pages are copied when an
environment writes to them. Therefore everything possible is imported before the fork, and large
memory blocks are returned to the system as soon as they are free.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seqgc.local_lambda._http_server import JSON, HttpServer, Request, Response, json_response
from seqgc.local_lambda._parent import ORDER, REPORT
from seqgc.local_lambda._settings import KEPT_LOG_BYTES, KEY_BYTES, MAX_RESPONSE_BYTES

_API = "/2018-06-01/runtime/"
_MAX_HEAD_BYTES = 1 << 21  # the trace of an error is in a header of up to 1 MiB
_INIT_LIMIT_S = 60.0  # more than Lambda's 10 s, because many environments may share one core here
_PIPE_BYTES = 1 << 16
_STRANGERS = 4
_ACCEPTED = json_response(202, {"status": "OK"})


class Environments:
    """All environments of one version.

    ``channel`` leads to the process that forks the environments; ``on_loss`` is called if that
    process ends unexpectedly.
    """

    def __init__(self, channel: socket.socket, *, on_loss: Callable[[], None]) -> None:
        self.cold_starts = 0
        self._channel = channel
        self._on_loss = on_loss
        self._environments: dict[int, Environment] = {}
        self._idle: list[Environment] = []
        # A thread sends the orders. If this process blocked while it sends an order, and the parent
        # blocked while it sends a report, both would wait for each other.
        self._sender = ThreadPoolExecutor(1)
        asyncio.get_running_loop().add_reader(channel, self._receive)

    def __len__(self) -> int:
        return len(self._environments)

    def next_number(self) -> int:
        """Return the number of the environment that the next request will use."""
        return self._idle[-1].number if self._idle else self.cold_starts

    @contextmanager
    def lent(self) -> Iterator[Environment]:
        """Yield an idle environment, or a new environment that has not been started."""
        if self._idle:
            environment = self._idle.pop()
        else:
            environment = Environment(self.cold_starts, order=self._order)
            self.cold_starts += 1
            self._environments[environment.number] = environment
        try:
            yield environment
        finally:
            if environment.alive:
                self._idle.append(environment)
            else:
                self._forget(environment)

    def close(self) -> None:
        """Release ports and descriptors; the parent ends the processes."""
        asyncio.get_running_loop().remove_reader(self._channel)
        self._sender.shutdown(wait=False, cancel_futures=True)
        for environment in self._environments.values():
            environment.close()
        self._environments.clear()
        self._idle.clear()

    def _forget(self, environment: Environment) -> None:
        if self._environments.pop(environment.number, None) is not None:
            environment.close()

    def _order(self, number: int, port: int = 0, key: bytes = b"", *logs: int) -> None:
        self._sender.submit(self._send, ORDER.pack(number, port, key), logs)

    def _send(self, order: bytes, logs: tuple[int, ...]) -> None:
        with suppress(OSError):  # the parent has ended; `_receive` handles this
            socket.send_fds(self._channel, [order], logs)
        for log in logs:
            os.close(log)

    def _receive(self) -> None:
        """Handle one report from the parent."""
        try:
            number, pid, code = REPORT.unpack(self._channel.recv(REPORT.size))
        except (OSError, struct.error):
            self._parent_lost()
            return
        if (environment := self._environments.get(number)) is None:
            return
        if pid:
            environment.pid = pid
            return
        environment.ended(code)
        if environment in self._idle:
            self._idle.remove(environment)
            self._forget(environment)

    def _parent_lost(self) -> None:
        """Kill all environments, because their parent has ended."""
        asyncio.get_running_loop().remove_reader(self._channel)
        for environment in self._environments.values():
            if environment.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(environment.pid, signal.SIGKILL)
            environment.ended(-signal.SIGKILL)
        self._on_loss()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A request to the function. ``deadline`` is in seconds since the epoch."""

    request_id: str
    body: bytes | bytearray
    arn: str
    deadline: float
    client_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationAnswer:
    """The function's answer. If ``failed``, its body describes an error."""

    body: bytes | bytearray
    failed: bool = False
    timed_out: bool = False

    @classmethod
    def error(cls, type_: str, message: str, *, timed_out: bool = False) -> Self:
        """Return the answer of a function that failed."""
        fields = {"errorType": type_, "errorMessage": message}
        body = json.dumps(fields, separators=(",", ":")).encode()
        return cls(body=body, failed=True, timed_out=timed_out)

    @classmethod
    def exited(cls, request_id: str, code: int) -> Self:
        """Return the answer of a function whose process has ended.

        A negative ``code`` is the number of a signal.
        """
        if code < 0:
            name = signal.strsignal(-code) or str(-code)
            reason = f"Runtime exited with error: signal: {name.lower()}"
        elif code > 0:
            reason = f"Runtime exited with error: exit status {code}"
        else:
            reason = "Runtime exited without providing a reason"
        return cls.error("Runtime.ExitError", f"RequestId: {request_id} Error: {reason}")


class LogPipe:
    """A pipe from an environment's stdout and stderr, which is read continuously.

    ``writing`` is the descriptor for the environment. The code that sends it to the environment
    also closes it in this process.
    """

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._text = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reading, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._reading, _PIPE_BYTES):
                self._text += data
                del self._text[:-KEPT_LOG_BYTES]
            self._loop.remove_reader(self._reading)  # the other end is closed

    def take(self) -> bytes:
        """Return the text that was written since the last call, with line feeds as line ends.

        The runtime ends the lines of a traceback with carriage returns. CloudWatch shows these as
        line breaks, but a terminal does not.
        """
        self._read()
        text = bytes(self._text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._text.clear()
        return text

    def close(self) -> None:
        self._loop.remove_reader(self._reading)
        os.close(self._reading)


class Environment:
    """An execution environment: a process with its own Runtime API.

    An environment is started once, answers one request at a time, and is killed at the end.
    ``number`` counts cold starts from 0. ``order(number, port, key, log)`` starts the process with
    the port and key of its Runtime API and a descriptor for its log. ``order(number)`` kills it.
    """

    def __init__(self, number: int, *, order: Callable[..., None]) -> None:
        self.number = number
        self.pid = 0
        self.started = False
        self.alive = True
        self.log = LogPipe()
        self._order = order
        self._used_mb = 0
        self._key = secrets.token_bytes(KEY_BYTES)  # only this environment's process knows it
        self._server = HttpServer(
            self._respond,
            refusal=self._refusal,
            max_body_bytes=MAX_RESPONSE_BYTES,
            max_head_bytes=_MAX_HEAD_BYTES,
            strangers=_STRANGERS,
        )
        self._next: asyncio.Future[Response] | None = None  # the response that the process awaits
        self._settled = asyncio.Event()  # the process waits for the next request, or has ended
        self._over = asyncio.Event()
        self._invocation: Invocation | None = None
        self._answer: InvocationAnswer | None = None
        self._exit_code = 0

    async def start(self) -> bool:
        """Start the process. Return False if it ended before it was ready for a request."""
        self.started = True
        self._order(self.number, await self._server.start(), self._key, self.log.writing)
        try:
            async with asyncio.timeout(_INIT_LIMIT_S):
                await self._settled.wait()
        except TimeoutError:
            await self.end()
        return self.alive

    def begin(self, invocation: Invocation) -> None:
        """Give the process a request."""
        self._invocation = invocation
        if self.alive:
            self._settled.clear()
        event, self._next = self._next, None  # so that a large body is freed
        if event is not None and not event.done():
            event.set_result(_event(invocation))

    async def answer(self, request_id: str) -> InvocationAnswer:
        """Wait until the process has answered or ended, and return its answer."""
        await self._settled.wait()
        answer, self._answer, self._invocation = self._answer, None, None
        return answer or InvocationAnswer.exited(request_id, self._exit_code)

    async def end(self) -> None:
        """Kill the process, and wait for its end."""
        if self.alive:
            self._order(self.number)
        await self._over.wait()

    def ended(self, code: int) -> None:
        """Record that the process has ended."""
        self.alive = False
        self._exit_code = code
        self._server.close()
        self._settled.set()
        self._over.set()

    def memory_mb(self) -> int:
        """Return the peak memory of the process in MB, or 0 if the system does not report it."""
        with suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{self.pid}/status").read_bytes()
            self._used_mb = int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) >> 10
        return self._used_mb

    def close(self) -> None:
        """Release ports and descriptors."""
        self._server.close()
        self.log.close()

    def _refusal(self, request: Request) -> Response | None:
        """Return an error response if the path does not begin with this environment's key."""
        _, key, *_ = (*request.path.split("/", 2), "")
        is_own = hmac.compare_digest(key.encode(), self._key.hex().encode())
        return None if is_own else _complaint(403, "Forbidden", "another process's Runtime API")

    async def _respond(self, request: Request) -> Response:
        match request.method, *request.path.partition(_API)[2].split("/"):
            case "GET", "invocation", "next":
                self._next = asyncio.get_running_loop().create_future()
                self._settled.set()
                return await self._next
            case "POST", "invocation", request_id, ("response" | "error") as kind:
                return self._take(request_id, request.body, failed=kind == "error")
            case "GET", "restore", "next":  # the snapshot is the fork, which is over
                return json_response(200, {})
            case "POST", ("init" | "restore"), "error":
                self._answer = InvocationAnswer(body=request.body or b"", failed=True)
                return _ACCEPTED
        return Response(status=404)

    def _take(self, request_id: str, body: bytearray | None, *, failed: bool) -> Response:
        current = self._invocation
        if current is None or current.request_id != request_id or self._answer is not None:
            return _complaint(400, "InvalidRequestID", "Invalid request ID")
        if body is None:
            self._answer = InvocationAnswer.error(
                "Function.ResponseSizeTooLarge",
                "Response payload size exceeded maximum allowed payload size "
                f"({MAX_RESPONSE_BYTES} bytes).",
            )
            return _complaint(413, "RequestEntityTooLarge", "Exceeded maximum allowed payload size")
        self._answer = InvocationAnswer(body=body, failed=failed)
        return _ACCEPTED


def _event(invocation: Invocation) -> Response:
    """Return the response to ``/next``, which contains an invocation."""
    root = invocation.request_id.replace("-", "")[:24]
    trace = f"Root=1-{int(invocation.deadline):08x}-{root};Sampled=0"
    headers = [
        *JSON,
        ("Lambda-Runtime-Aws-Request-Id", invocation.request_id),
        ("Lambda-Runtime-Deadline-Ms", str(round(1e3 * invocation.deadline))),
        ("Lambda-Runtime-Invoked-Function-Arn", invocation.arn),
        ("Lambda-Runtime-Trace-Id", trace),
    ]
    if invocation.client_context:
        headers.append(("Lambda-Runtime-Client-Context", invocation.client_context))
    return Response(headers=headers, body=invocation.body)


def _complaint(status: int, type_: str, message: str) -> Response:
    return json_response(status, {"errorType": type_, "errorMessage": message})

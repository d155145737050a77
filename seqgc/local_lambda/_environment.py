"""One execution environment, as the service sees it: a Runtime API of its own, and a process."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seqgc.local_lambda._function_settings import KEPT_LOG_BYTES, KEY_BYTES, MAX_RESPONSE_BYTES
from seqgc.local_lambda._http_server import JSON, HttpServer, Request, Response, json_response

__all__ = ["Environment", "Invocation", "InvocationAnswer"]

_API = "/2018-06-01/runtime/"
_MAX_HEAD_BYTES = 1 << 21  # an error's trace travels in a header of up to 1 MiB
_INIT_LIMIT_S = 60.0  # Lambda has 10 s, but no hundred environments that start on one core
_PIPE_BYTES = 1 << 16
_STRANGERS = 4
_ACCEPTED = json_response(202, {"status": "OK"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What a function is asked, and by when (seconds since the epoch) it must have answered."""

    request_id: str
    body: bytes | bytearray
    arn: str
    deadline: float
    client_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationAnswer:
    """A function's answer; ``failed`` if it is an error's body."""

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
        """Return the answer of a function whose process ended; a negative code is a signal's."""
        if code < 0:
            name = signal.strsignal(-code) or str(-code)
            how = f"Runtime exited with error: signal: {name.lower()}"
        elif code > 0:
            how = f"Runtime exited with error: exit status {code}"
        else:
            how = "Runtime exited without providing a reason"
        return cls.error("Runtime.ExitError", f"RequestId: {request_id} Error: {how}")


class LogPipe:
    """The reading end of an environment's stdout and stderr; reads as it is written to.

    ``writing`` is the other end, for the environment; whoever sends it there closes it here.
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
        """Return what has been written and not yet taken, with ordinary line ends.

        The runtime ends the lines of a traceback with carriage returns, which CloudWatch shows as
        lines and a terminal does not.
        """
        self._read()
        text = bytes(self._text).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._text.clear()
        return text

    def close(self) -> None:
        """Release the reading end."""
        self._loop.remove_reader(self._reading)
        os.close(self._reading)


class Environment:
    """An environment: started once, asked one thing at a time, killed in the end.

    ``number`` counts cold starts from 0. ``order`` has the process begin, of a number, port and
    key of the Runtime API and a descriptor for the log, or of the number alone end, whatever it is
    doing.
    """

    def __init__(self, number: int, *, order: Callable[..., None]) -> None:
        self.number = number
        self.pid = 0
        self.started = False
        self.alive = True
        self.log = LogPipe()
        self._order = order
        self._used_mb = 0
        self._key = secrets.token_bytes(KEY_BYTES)  # which this process alone is told
        self._server = HttpServer(
            self._respond,
            refusal=self._refusal,
            max_body_bytes=MAX_RESPONSE_BYTES,
            max_head_bytes=_MAX_HEAD_BYTES,
            strangers=_STRANGERS,
        )
        self._next: asyncio.Future[Response] | None = None  # what the process waits for
        self._settled = asyncio.Event()  # waits for the next request, or has ended
        self._over = asyncio.Event()
        self._invocation: Invocation | None = None
        self._answer: InvocationAnswer | None = None
        self._exit_code = 0

    async def start(self) -> bool:
        """Start the process; False if it has ended before it asked for a request."""
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
        event, self._next = self._next, None  # nothing here keeps what may be megabytes
        if event is not None and not event.done():
            event.set_result(_event(invocation))

    async def answer(self, request_id: str) -> InvocationAnswer:
        """Return the process's answer once it wants the next request, or else how it has ended."""
        await self._settled.wait()
        answer, self._answer, self._invocation = self._answer, None, None
        return answer or InvocationAnswer.exited(request_id, self._exit_code)

    async def end(self) -> None:
        """Kill the process, whatever it is doing, and wait for its end."""
        if self.alive:
            self._order(self.number)
        await self._over.wait()

    def ended(self, code: int) -> None:
        """Take note that the process has ended."""
        self.alive = False
        self._exit_code = code
        self._server.close()
        self._settled.set()
        self._over.set()

    def memory_mb(self) -> int:
        """Return the most memory the process has had, in MB; 0 where the system does not say."""
        with suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{self.pid}/status").read_bytes()
            self._used_mb = int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) >> 10
        return self._used_mb

    def close(self) -> None:
        """Release ports and descriptors."""
        self._server.close()
        self.log.close()

    def _refusal(self, request: Request) -> Response | None:
        """Return what all others are told that find the port: the key is the path's beginning."""
        _, key, *_ = (*request.path.split("/", 2), "")
        known = hmac.compare_digest(key.encode(), self._key.hex().encode())
        return None if known else _complaint(403, "Forbidden", "another process's Runtime API")

    async def _respond(self, request: Request) -> Response:
        """Answer the Runtime API."""
        match request.method, *request.path.partition(_API)[2].split("/"):
            case "GET", "invocation", "next":
                self._next = asyncio.get_running_loop().create_future()
                self._settled.set()
                return await self._next
            case "POST", "invocation", request_id, ("response" | "error") as kind:
                return self._take(request_id, request.body, failed=kind == "error")
            case "POST", "init", "error":
                self._answer = InvocationAnswer(body=request.body or b"", failed=True)
                return _ACCEPTED
        return Response(status=404)

    def _take(self, request_id: str, body: bytearray | None, *, failed: bool) -> Response:
        due = self._invocation
        if due is None or due.request_id != request_id or self._answer is not None:
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
    """Return the response to /next that holds a request."""
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

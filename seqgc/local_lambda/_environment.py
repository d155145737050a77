"""One execution environment, as the service sees it: a Runtime API of its own, and a process."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seqgc.local_lambda import _error_bodies
from seqgc.local_lambda._function_settings import MAX_RESPONSE_BYTES
from seqgc.local_lambda._http_server import HttpServer, Request, Response
from seqgc.local_lambda._logs import LogPipe

__all__ = ["Environment", "Invocation", "InvocationAnswer"]

_API = "/2018-06-01/runtime/"
_MAX_HEAD_BYTES = 1 << 21  # an error's trace travels in a header of up to 1 MiB
_ACCEPTED = Response(
    status=202, headers=(("Content-Type", "application/json"),), body=b'{"status":"OK"}\n'
)


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


class Environment:
    """An environment: started once, asked one thing at a time, killed in the end.

    Parameters
    ----------
    number
        Counted from 0 in the order of cold starts.
    kill
        Ends the process, at once and whatever it is doing.
    """

    def __init__(self, number: int, *, kill: Callable[[int], None]) -> None:
        self.number = number
        self.pid = 0
        self.started = False
        self.alive = True
        self.log = LogPipe()
        self._kill = kill
        self._init_s: float | None = None  # until it is reported with the first request
        self._used_mb = 0
        self._began = time.perf_counter()
        self._server = HttpServer(
            self._respond, max_body_bytes=MAX_RESPONSE_BYTES, max_head_bytes=_MAX_HEAD_BYTES
        )
        self._next: asyncio.Future[Response] | None = None  # what the process waits for
        self._settled = asyncio.Event()  # waits for the next request, or has ended
        self._over = asyncio.Event()
        self._invocation: Invocation | None = None
        self._answer: InvocationAnswer | None = None
        self._exit_code = 0

    async def open(self) -> dict[str, str]:
        """Open the Runtime API; return the variables that the process needs to find it."""
        self.started = True
        await self._server.start()
        day = time.strftime("%Y/%m/%d", time.gmtime())
        return {
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.port}",
            "AWS_LAMBDA_LOG_STREAM_NAME": f"{day}/[$LATEST]{self.number:032x}",
        }

    async def ready(self) -> bool:
        """Wait until the process asks for its first request; False if it ended before."""
        await self._settled.wait()
        self._init_s = time.perf_counter() - self._began
        return self.alive

    def take_init_s(self) -> float | None:
        """Return how long the start took, in seconds, to the first who asks."""
        init_s, self._init_s = self._init_s, None
        return init_s

    def begin(self, invocation: Invocation) -> None:
        """Give the process a request."""
        self._invocation, self._answer = invocation, None
        if self.alive:
            self._settled.clear()
        waiting, self._next = self._next, None  # nothing here keeps what may be megabytes
        if waiting is not None and not waiting.done():
            waiting.set_result(_event(invocation))

    async def settled(self, request_id: str) -> InvocationAnswer:
        """Wait until the process wants the next request, or has ended; return its answer."""
        await self._settled.wait()
        self._invocation = None
        return self.take_answer(request_id)

    def take_answer(self, request_id: str) -> InvocationAnswer:
        """Return what the process has answered, or else, as it has ended, how."""
        answer, self._answer = self._answer, None
        if answer is not None:
            return answer
        body = _error_bodies.exited(request_id, self._exit_code)
        return InvocationAnswer(body=body, failed=True)

    async def end(self) -> None:
        """Kill the process, whatever it is doing, and wait for its end."""
        if self.alive:
            self._kill(self.number)
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

    async def _respond(self, request: Request) -> Response:
        """Answer the Runtime API."""
        if not request.path.startswith(_API):
            return Response(status=404)
        match request.method, request.path.removeprefix(_API).split("/"):
            case "GET", ["invocation", "next"]:
                self._next = asyncio.get_running_loop().create_future()
                self._settled.set()
                return await self._next
            case "POST", ["invocation", request_id, "response"]:
                return self._take(request_id, request, failed=False)
            case "POST", ["invocation", request_id, "error"]:
                return self._take(request_id, request, failed=True)
            case "POST", ["init", "error"]:
                self._answer = InvocationAnswer(body=request.body or b"", failed=True)
                return _ACCEPTED
        return Response(status=404)

    def _take(self, request_id: str, request: Request, *, failed: bool) -> Response:
        due = self._invocation
        if due is None or due.request_id != request_id or self._answer is not None:
            return _complaint(400, "InvalidRequestID", "Invalid request ID")
        if request.body is None:
            self._answer = InvocationAnswer(body=_error_bodies.too_large(), failed=True)
            return _complaint(413, "RequestEntityTooLarge", "Exceeded maximum allowed payload size")
        self._answer = InvocationAnswer(body=request.body, failed=failed)
        return _ACCEPTED


def _event(invocation: Invocation) -> Response:
    """Return the response to /next that holds a request."""
    headers = [
        ("Content-Type", "application/json"),
        ("Lambda-Runtime-Aws-Request-Id", invocation.request_id),
        ("Lambda-Runtime-Deadline-Ms", str(round(1e3 * invocation.deadline))),
        ("Lambda-Runtime-Invoked-Function-Arn", invocation.arn),
        ("Lambda-Runtime-Trace-Id", _trace_id(invocation)),
    ]
    if invocation.client_context:
        headers.append(("Lambda-Runtime-Client-Context", invocation.client_context))
    return Response(headers=headers, body=invocation.body)


def _trace_id(invocation: Invocation) -> str:
    root = invocation.request_id.replace("-", "")[:24]
    return f"Root=1-{int(invocation.deadline):08x}-{root};Sampled=0"


def _complaint(status: int, type_: str, message: str) -> Response:
    body = json.dumps({"errorType": type_, "errorMessage": message}).encode()
    return Response(status=status, headers=(("Content-Type", "application/json"),), body=body)

"""An imitation of AWS Lambda MicroVMs on this machine, for tests of `seqgc.backends.lambda_`.

The service answers six calls of the API ``lambda-microvms`` of 2025-09-09. A MicroVM is a process
that runs the same server as a MicroVM on AWS, behind a proxy that requires the headers of a token.
A suspended MicroVM is a stopped process (SIGSTOP). There are no images: each launch starts the
process, and calls the hooks of a build. Requests are not signed. There are no limits of time.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, Self

__all__ = ["LocalMicrovms"]

_CALL: Final = re.compile(r"/2025-09-09/microvms(?:/([^/]+))?(?:/([^/]+))?")
_CALLS: Final = {
    ("POST", "auth-token"): "CreateMicrovmAuthToken",
    ("POST", "suspend"): "SuspendMicrovm",
    ("POST", "resume"): "ResumeMicrovm",
    ("GET", None): "GetMicrovm",
    ("DELETE", None): "TerminateMicrovm",
}
_HOOKS: Final = "/aws/lambda-microvms/runtime/v1/"
_START_S: Final = 60.0


class _Refusal(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class _LocalMicrovm:
    """A MicroVM: a process, its state and its tokens."""

    def __init__(
        self, url: str, run: Mapping[str, Any], environment: dict[str, str], hooks: Sequence[str]
    ) -> None:
        self.identifier = f"microvm-{secrets.token_hex(8)}"
        self.state, self.tokens = "PENDING", dict[str, tuple[float, list[int]]]()
        self._url, self._run, self._began_at = url, run, time.time()
        self._hooks = hooks
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lambda_handlers.gradient_worker.microvm_server"],
            env={**environment, "PORT": str(self._port)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._lock = threading.Lock()  # guards the state
        self._starting = threading.Thread(target=self._start)
        self._starting.start()

    def describe(self) -> dict[str, Any]:
        reason = {"stateReason": "Ready hook invocation timed out"}
        return {
            "microvmId": self.identifier,
            "state": self.state,
            "endpoint": f"{self._url}/{self.identifier}",
            "imageArn": self._run["imageIdentifier"],
            "imageVersion": self._run.get("imageVersion", "1.0"),
            "maximumDurationInSeconds": self._run["maximumDurationInSeconds"],
            "idlePolicy": self._run["idlePolicy"],
            "startedAt": self._began_at,
            **(reason if self.state == "TERMINATED" else {}),
        }

    def token(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        if wanted["expirationInMinutes"] > 60:
            raise _Refusal(400, "ValidationException", "expirationInMinutes must be at most 60")
        token, until = (
            secrets.token_urlsafe(),
            time.monotonic() + 60 * wanted["expirationInMinutes"],
        )
        self.tokens[token] = until, [each["port"] for each in wanted["allowedPorts"]]
        return {"authToken": {"X-aws-proxy-auth": token}}

    def suspend(self) -> None:
        with self._lock:
            self._require("RUNNING")
            self._hook("suspend")
            os.kill(self._process.pid, signal.SIGSTOP)
            self.state = "SUSPENDED"

    def resume(self) -> None:
        with self._lock:
            self._require("SUSPENDED")
            os.kill(self._process.pid, signal.SIGCONT)
            self._hook("resume")
            self.state = "RUNNING"

    def terminate(self) -> None:
        with self._lock:
            self.state = "TERMINATED"
        self._process.kill()  # also ends a stopped process
        self._process.wait()
        self._starting.join()

    def pass_on(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Pass a request to the process: return the status, the function's error, and the body."""
        until, ports = self.tokens.get(headers.get("x-aws-proxy-auth", ""), (0.0, []))
        if time.monotonic() >= until or int(headers.get("x-aws-proxy-port", "8080")) not in ports:
            raise _Refusal(403, "AccessDeniedException", "Access to port denied")
        with suppress(_Refusal):  # it is running already
            self.resume()
        try:
            return self._ask(path, body)
        except OSError:
            raise _Refusal(502, "BadGateway", "the MicroVM does not answer") from None

    def _require(self, state: str) -> None:
        if self.state != state:
            message = f"the MicroVM is {self.state}, not {state}"
            raise _Refusal(409, "ConflictException", message)

    def _start(self) -> None:
        give_up_at, state = time.monotonic() + _START_S, "TERMINATED"
        while self._process.poll() is None and time.monotonic() < give_up_at:
            with suppress(OSError):
                for name in (*self._hooks, "run"):
                    self._hook(name)
                state = "RUNNING"
                break
            time.sleep(0.02)
        with self._lock:
            self.state = state if self.state == "PENDING" else self.state

    def _hook(self, name: str) -> None:
        payload = {"microvmId": self.identifier, "runHookPayload": self._run.get("runHookPayload")}
        if self._ask(_HOOKS + name, json.dumps(payload).encode())[0] != 200:
            raise OSError(f"the hook {name} failed")

    def _ask(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        connection = HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.getheader("X-Amz-Function-Error", ""), answer.read()
        finally:
            connection.close()


class LocalMicrovms(ThreadingHTTPServer):
    """A running imitation of the service. Leaving the ``with`` block ends all its MicroVMs.

    ``environment`` has environment variables of the MicroVMs, in addition to this process's own.
    If ``imports`` is True, each MicroVM imports PyTorch and all other modules before it runs.
    Otherwise it starts sooner, and imports a module when a task first needs it. The first
    ``throttled`` calls of each operation are refused as throttled. ``calls`` counts all calls.
    ``microvms`` has the MicroVMs by their identifiers.

    Examples
    --------
    >>> with LocalMicrovms() as service:
    ...     service.endpoint_url.startswith("http://127.0.0.1:")
    True
    """

    image: ClassVar[str] = "arn:aws:lambda:us-east-1:123456789012:microvm-image:seqgc-worker"

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        imports: bool = True,
        throttled: int = 0,
    ) -> None:
        self._environment, self._throttled = {**os.environ, **(environment or {})}, throttled
        self._hooks = ("ready", "validate") if imports else ("validate",)
        self.microvms: Final = dict[str, _LocalMicrovm]()
        self.calls: Final = Counter[str]()
        super().__init__(("127.0.0.1", 0), _Requests)
        self.endpoint_url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, which ends with the request."""
        target, name = self.process_request_thread, "seqgc-lambda-microvm"
        arguments = request, client_address
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()

    def close(self) -> None:
        """End all MicroVMs and the service."""
        for each in self.microvms.values():
            each.terminate()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, match: re.Match[str], given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a call of the API."""
        identifier, verb = match.groups()
        name = "RunMicrovm" if identifier is None else _CALLS.get((method, verb), "")
        self.calls[name] += 1
        if self.calls[name] <= self._throttled:
            raise _Refusal(429, "ThrottlingException", "Rate exceeded")
        if name == "RunMicrovm":
            if given["imageIdentifier"] != self.image:
                raise _Refusal(404, "ResourceNotFoundException", "there is no such image")
            microvm = _LocalMicrovm(self.endpoint_url, given, self._environment, self._hooks)
            self.microvms[microvm.identifier] = microvm
            return microvm.describe()
        if (found := self.microvms.get(identifier)) is None:
            raise _Refusal(404, "ResourceNotFoundException", f"there is no MicroVM {identifier}")
        answers: dict[str, Callable[[], dict[str, Any] | None]] = {
            "GetMicrovm": found.describe,
            "CreateMicrovmAuthToken": lambda: found.token(given),
            "SuspendMicrovm": found.suspend,
            "ResumeMicrovm": found.resume,
            "TerminateMicrovm": found.terminate,
        }
        return answers[name]() or {}


class _Requests(BaseHTTPRequestHandler):
    server: LocalMicrovms

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, kind, error = 200, "", ""
        try:
            if match := _CALL.fullmatch(self.path):
                answer = self.server.call(self.command, match, json.loads(body or b"{}"))
                content = json.dumps(answer).encode()
            else:
                _, identifier, path = self.path.split("/", 2)
                lower = {name.lower(): value for name, value in self.headers.items()}
                microvm = self.server.microvms[identifier]
                status, error, content = microvm.pass_on(f"/{path}", lower, body)
        except _Refusal as refusal:
            status, kind = refusal.status, refusal.kind
            content = json.dumps({"message": str(refusal)}).encode()
        headers = {"X-Amz-Function-Error": error, "x-amzn-ErrorType": kind}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None: ...

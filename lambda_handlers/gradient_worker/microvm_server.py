"""The program in an AWS Lambda MicroVM: an HTTP server around `seqgc.worker.FunctionWorker`.

``POST /`` has an envelope (see `seqgc.wire`) as its body, and so has the response. Lambda calls the
hooks. ``ready`` comes before the snapshot of the image, and ``run`` and ``resume`` after a restore;
what must be done then is the same as for functions (`lambda_handlers.gradient_worker._snapshot`).
``run`` also drops the workers from before the snapshot, with their connections. The environment
variables are those of `lambda_handlers.gradient_worker.setup`, and ``PORT`` (default 8080).
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, LifoQueue
from typing import Final

from lambda_handlers.gradient_worker._snapshot import after_restore, before_snapshot
from lambda_handlers.gradient_worker.setup import make_worker
from seqgc.errors import WireError, one_line, reraise_stop
from seqgc.worker import FACTORIES, FunctionWorker

__all__ = ["HOOKS", "MicrovmServer", "serve"]

HOOKS: Final = "/aws/lambda-microvms/runtime/v1/"
_MOST_BYTES: Final = 1 << 26  # of a request
_AT_ONCE: Final = 8  # tasks that are computed; a straggler must not delay other tasks
_log = logging.getLogger(__name__)


class MicrovmServer(ThreadingHTTPServer):
    """A server on ``port`` of ``host``; 0 means any free port.

    Each task has a worker of its own, which computes further tasks when it is idle. If ``at_once``
    tasks are being computed, a request gets the status 429 and is not begun.
    """

    daemon_threads = True

    def __init__(
        self,
        port: int,
        environment: Mapping[str, str],
        *,
        host: str = "0.0.0.0",
        at_once: int = _AT_ONCE,
    ) -> None:
        self._environment = environment
        self._idle = LifoQueue[FunctionWorker]()
        self._idle.put(make_worker(environment))
        self._places = threading.Semaphore(at_once)
        super().__init__((host, port), _Requests)

    def answer(self, body: bytes) -> tuple[int, dict[str, str], Mapping[str, object]]:
        """Compute a task; return the status, the headers and the JSON object of the response."""
        if not self._places.acquire(blocking=False):
            return 429, {}, {"Message": "as many tasks as are allowed are being computed"}
        try:
            worker = self._worker()
            try:
                return 200, {}, worker.serve(body).reply
            finally:
                self._idle.put(worker)
        except WireError as error:
            return 400, {}, {"Message": one_line(error)}
        except BaseException as error:
            reraise_stop(error)
            fields = {"errorType": type(error).__name__, "errorMessage": one_line(error)}
            return 200, {"X-Amz-Function-Error": "Unhandled"}, fields
        finally:
            self._places.release()

    def hook(self, name: str) -> int:
        """Carry out a hook and return the status of the response."""
        if name == "ready":
            before_snapshot(FACTORIES)
        if name == "run":
            while not self._idle.empty():
                self._idle.get_nowait()
        if name in ("run", "resume"):
            after_restore()
        known = ("ready", "validate", "run", "resume", "suspend", "terminate")
        return 200 if name in known else 404

    def _worker(self) -> FunctionWorker:
        try:
            return self._idle.get_nowait()
        except Empty:
            return make_worker(self._environment)


class _Requests(BaseHTTPRequestHandler):
    server: MicrovmServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > _MOST_BYTES:
            self.close_connection = True
            message = f"a request must have a Content-Length of at most {_MOST_BYTES} bytes"
            return self._write(413, {}, {"Message": message})
        body = self.rfile.read(int(size))
        if self.path.startswith(HOOKS):
            return self._write(self.server.hook(self.path.removeprefix(HOOKS)), {}, {})
        if self.path != "/":
            return self._write(404, {}, {"Message": f"no such path: {self.path[:80]}"})
        return self._write(*self.server.answer(body))

    def _write(self, status: int, headers: Mapping[str, str], fields: Mapping[str, object]) -> None:
        body = json.dumps(fields, separators=(",", ":")).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _log.info(format, *args)


def serve(environment: Mapping[str, str]) -> None:
    """Serve tasks and hooks until the process ends."""
    with MicrovmServer(int(environment.get("PORT", "8080")), environment) as server:
        server.serve_forever()


if __name__ == "__main__":
    serve(os.environ)

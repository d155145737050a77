"""The process that environments are forked from: it imports the handler once, computes nothing.

It owns its children: it forks one when asked, kills one when asked, says which have ended, and
kills all of them when the service is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

from seqgc.local_lambda._function_settings import KEY_BYTES, ServiceSettings

__all__ = ["ORDER", "REPORT", "Parent"]

# Messages are short and all alike: what handles them touches few pages, each of which an
# environment would keep a copy of.
# Environment, port and key of its Runtime API (with its log); port 0: kill it.
ORDER = struct.Struct(f"<ii{KEY_BYTES}s")
REPORT = struct.Struct("<iii")  # environment, its process id, 0; or, ended: 0, its exit code

# The compiled half of awslambdaric's client. It reads the address of its Runtime API when it is
# loaded, so every environment loads it itself; without it, all else can be loaded before.
_COMPILED = "runtime_client"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 1 << 16


class Parent:
    """Runs in the process itself; `run` returns when the service has gone and all have ended."""

    def __init__(self, channel: socket.socket, settings: ServiceSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._numbers: dict[int, int] = {}  # environment by process id
        self._wake, self._waker = socket.socketpair()

    def run(self) -> None:
        """Preload, then serve."""
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only for the wake-up below
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._preload()
        _return_memory_early()
        try:
            with contextlib.suppress(OSError):
                self._serve()
        finally:
            for pid in tuple(self._numbers):
                _kill(pid)
            for pid in tuple(self._numbers):
                os.waitpid(pid, 0)

    def _preload(self) -> None:
        """Import what environments need; what fails here fails there too, and is reported there."""
        module = self._settings.handler.rpartition(".")[0].replace("/", ".")
        with (
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            sys.modules[_COMPILED] = None  # type: ignore[assignment]
            for name in ("awslambdaric.__main__", module):
                with contextlib.suppress(Exception, SystemExit):
                    importlib.import_module(name)
            del sys.modules[_COMPILED]
            if "numpy" in sys.modules:  # which puts this off: 12 ms for every environment
                importlib.import_module("numpy.random")
        gc.collect()
        gc.freeze()  # what is here is never garbage, and its pages stay shared

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake in ready:
                    with contextlib.suppress(BlockingIOError):
                        self._wake.recv(4096)
                    self._reap()
                if self._channel in ready and not self._obey(selector):
                    return

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._channel.sendall(REPORT.pack(self._numbers.pop(pid), 0, code))

    def _obey(self, selector: selectors.BaseSelector) -> bool:
        """Take one order; False if there will be none any more."""
        order, descriptors, _, _ = socket.recv_fds(self._channel, ORDER.size, 1)
        if not order:
            return False
        number, port, key = ORDER.unpack(order)
        if port == 0:
            for pid in [pid for pid, each in self._numbers.items() if each == number]:
                _kill(pid)
            return True
        (log,) = descriptors
        try:
            pid = os.fork()
        except OSError:  # too many processes, or too little memory
            self._channel.sendall(REPORT.pack(number, 0, 1))
        else:
            if pid == 0:
                selector.close()
                self._become(log, number, port, key.hex())
            with contextlib.suppress(OSError):  # done by the child already, which may have ended
                os.setpgid(pid, pid)
            self._numbers[pid] = number
            self._channel.sendall(REPORT.pack(number, pid, 0))
        os.close(log)
        return True

    def _become(self, log: int, number: int, port: int, key: str) -> NoReturn:
        """Be an environment, in a process group of its own, until its runtime ends."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._channel, self._wake, self._waker):
                end.close()
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            os.close(log)
            stream = time.strftime(f"%Y/%m/%d/[$LATEST]{number:032x}", time.gmtime())
            os.environ["AWS_LAMBDA_LOG_STREAM_NAME"] = stream
            _reseed()
            code = _run_runtime(self._settings.handler, f"127.0.0.1:{port}", key)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _run_runtime(handler: str, address: str, key: str) -> int:
    """Run AWS's runtime client; return its exit code.

    All that it asks for begins with the key, which neither the handler's variables nor its child
    processes have.
    """
    from awslambdaric import __main__ as runtime
    from awslambdaric import lambda_runtime_client as client

    os.environ["AWS_LAMBDA_RUNTIME_API"] = f"{address}/{key}"
    client.runtime_client = compiled = importlib.import_module(_COMPILED)
    compiled.initialize_client(client._user_agent())
    os.environ["AWS_LAMBDA_RUNTIME_API"] = address  # for the half that is not compiled
    call = client.BaseLambdaRuntimeClient.call_rapid
    client.BaseLambdaRuntimeClient.call_rapid = lambda self, method, endpoint, *rest: call(
        self, method, f"/{key}{endpoint}", *rest
    )
    try:
        runtime.main(["bootstrap", handler])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _return_memory_early() -> None:
    """Have large memory be the system's again as soon as it is free (glibc; else nothing happens).

    Otherwise each of hundreds of environments keeps what its longest request once needed.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(parameter, _LARGE_BYTES)


def _reseed() -> None:
    """Give the environment random numbers of its own, as a fresh process has; Python's has them."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

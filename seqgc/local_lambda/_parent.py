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
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from seqgc.local_lambda._fork_channel import receive, send
from seqgc.local_lambda._function_settings import ServiceSettings

__all__ = ["Parent"]

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
            with contextlib.suppress(OSError, EOFError):
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
            number = self._numbers.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            send(self._channel, {"ended": number, "code": code})

    def _obey(self, selector: selectors.BaseSelector) -> bool:
        message, descriptors = receive(self._channel)
        if message is None:
            return False
        if "kill" in message:
            for pid, number in tuple(self._numbers.items()):
                if number == message["kill"]:
                    _kill(pid)
            return True
        try:
            pid = os.fork()
        except OSError:  # too many processes, or too little memory
            os.close(descriptors[0])
            send(self._channel, {"ended": message["fork"], "code": 1})
            return True
        if pid == 0:
            selector.close()
            self._become(descriptors[0], message["environment"])
        with contextlib.suppress(OSError):  # done already by the child, which may even have ended
            os.setpgid(pid, pid)
        self._numbers[pid] = message["fork"]
        os.close(descriptors[0])
        send(self._channel, {"forked": message["fork"], "pid": pid})
        return True

    def _become(self, log: int, environment: Mapping[str, str]) -> NoReturn:
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
            os.environ.update(environment)
            _reseed()
            code = _run_runtime(self._settings.handler)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _run_runtime(handler: str) -> int:
    """Run AWS's runtime client; return its exit code."""
    from awslambdaric import __main__ as runtime
    from awslambdaric import lambda_runtime_client as client

    client.runtime_client = compiled = importlib.import_module(_COMPILED)
    compiled.initialize_client(client._user_agent())
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

"""The process that environments are forked from; it imports the handler once and computes nothing.

The parent forks an environment on order, kills one on order, reports each that has ended, and kills
all of them when the service has gone.

AWS's runtime client does the same in every environment until it asks for its first invocation: it
sets up logging and imports the handler. The parent runs it to this point and forks there, as
SnapStart begins environments from a snapshot. Output printed until then begins the log of each
environment. If the handler cannot be imported, the parent undoes what the client did. Each
environment then runs the client from its beginning, and reports the failure itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import logging
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from typing import NoReturn

from seqgc.local_lambda._settings import KEPT_LOG_BYTES, KEY_BYTES, ServiceSettings

# Messages are short and of fixed size, so that handling them touches few pages of memory: an
# environment keeps a copy of every page that changes.
# The number of an environment, port and key of its Runtime API; port 0: kill the environment.
ORDER = struct.Struct(f"<ii{KEY_BYTES}s")
# The number of an environment, its process id, and 0; or if it has ended, 0 and its exit code.
REPORT = struct.Struct("<iii")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 1 << 16
# The compiled half of awslambdaric's client reads the address of its Runtime API when it is loaded.
# Therefore each environment loads it itself, and the parent loads everything else.
_COMPILED = "runtime_client"
_ADDRESS = "AWS_LAMBDA_RUNTIME_API"
_NOWHERE = "127.0.0.1:0"  # the address while there is no Runtime API


def main() -> NoReturn:
    """Run the parent of a version; the only argument is the descriptor of its channel."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with closing(Connection(os.dup(channel.fileno()))) as first:
        try:
            settings: ServiceSettings = first.recv()
        except (OSError, EOFError):  # the service ended before it had sent the settings
            sys.exit()
    sys.path[:] = settings.search
    Parent(channel, settings).run()


class _OverError(BaseException):
    """The channel has closed: no more orders will come."""


class Parent:
    """The state of the parent process, which ends after the service and all environments."""

    def __init__(self, channel: socket.socket, settings: ServiceSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._numbers: dict[int, int] = {}  # environment by process id
        self._wake, self._waker = os.pipe()

    def run(self) -> NoReturn:
        """Obey orders until the channel closes; in an environment, run until its runtime ends."""
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the signal only wakes `_serve` up
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        _return_memory_early()
        code = 1
        try:
            run_runtime(self._settings.handler, self._serve)
            code = 0
        except _OverError:
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        for pid in self._numbers:  # empty in an environment
            _kill(pid)
        for pid in self._numbers:
            os.waitpid(pid, 0)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _serve(self) -> tuple[str, str]:
        """Obey orders; return only in an environment, with the address and key of its API."""
        poll = select.poll()
        for descriptor in (self._channel.fileno(), self._wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif api := self._obey():
                    return api

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self._report(self._numbers.pop(pid), 0, code)

    def _obey(self) -> tuple[str, str] | None:
        """Obey one order; in a new environment, return its Runtime API."""
        try:
            order, descriptors, _, _ = socket.recv_fds(self._channel, ORDER.size, 1)
        except OSError:
            order = b""
        if not order:
            raise _OverError
        number, port, key = ORDER.unpack(order)
        if port == 0:
            for pid in [pid for pid, each in self._numbers.items() if each == number]:
                _kill(pid)
            return None
        (log,) = descriptors
        try:
            pid = os.fork()
        except OSError:  # too many processes, or too little memory
            self._report(number, 0, 1)
        else:
            if pid == 0:
                self._become(log, number)
                return f"127.0.0.1:{port}", key.hex()
            with contextlib.suppress(OSError):  # the child does so too, and may have ended
                os.setpgid(pid, pid)
            self._numbers[pid] = number
            self._report(number, pid, 0)
        os.close(log)
        return None

    def _report(self, *report: int) -> None:
        try:
            self._channel.sendall(REPORT.pack(*report))
        except OSError:
            raise _OverError from None

    def _become(self, log: int, number: int) -> None:
        """Turn this process into an environment, with its own process group and log."""
        self._numbers.clear()
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._channel.detach(), self._wake, self._waker):
            os.close(end)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
        stream = time.strftime(f"%Y/%m/%d/[$LATEST]{number:032x}", time.gmtime())
        os.environ["AWS_LAMBDA_LOG_STREAM_NAME"] = stream


def _return_memory_early() -> None:
    """Make malloc return large blocks to the system as soon as they are free (glibc only).

    Otherwise each environment keeps as much memory as its largest request needed.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(parameter, _LARGE_BYTES)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def run_runtime(handler: str, fork: Callable[[], tuple[str, str]]) -> None:
    """Run AWS's runtime: in the parent until ``fork`` raises, in an environment until it ends.

    ``fork`` is called once. It returns only in environments, with the address and the key of a
    Runtime API. All requests to this API begin with the key, which neither the handler's variables
    nor its child processes have.
    """
    os.environ[_ADDRESS] = _NOWHERE
    sys.modules[_COMPILED] = None  # type: ignore[assignment]
    from awslambdaric import __main__ as runtime
    from awslambdaric.lambda_runtime_client import BaseLambdaRuntimeClient as Client

    del sys.modules[_COMPILED]
    compiled = importlib.util.find_spec(_COMPILED)  # here, so that no environment searches for it
    arguments = ["bootstrap", handler]
    wait, handlers = Client.wait_next_invocation, logging.root.handlers[:]
    out, err = sys.stdout, sys.stderr
    reached = False

    def become_environment() -> None:
        nonlocal reached
        reached, Client.wait_next_invocation = True, wait
        if (
            "numpy" in sys.modules
        ):  # NumPy imports it lazily, which would cost each environment 12 ms
            importlib.import_module("numpy.random")
        gc.collect()
        gc.freeze()  # garbage collection then leaves these pages alone, and they stay shared
        _connect(compiled, *fork())

    with tempfile.TemporaryFile() as printed:
        stop = _redirect(printed.fileno())

        def first_wait(client: object) -> object:
            stop()
            printed.seek(0)
            output = printed.read(KEPT_LOG_BYTES)
            printed.close()
            become_environment()
            os.write(1, output)
            return wait(client)

        Client.wait_next_invocation = first_wait
        try:
            runtime.main(arguments)
        except BaseException:
            if reached:
                raise
            stop()
        else:
            return
    sys.stdout, sys.stderr = out, err
    logging.root.handlers[:] = handlers
    become_environment()
    runtime.main(arguments)


def _redirect(file: int) -> Callable[[], None]:
    """Redirect stdout and stderr to a file; return a function that ends this."""
    copies = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]

    def stop() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in copies:
            os.dup2(copy, descriptor)
            os.close(copy)

    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, _ in copies:
        os.dup2(file, descriptor)
    return stop


def _connect(compiled: ModuleSpec | None, address: str, key: str) -> None:
    """Connect the runtime client to an environment's own Runtime API."""
    from awslambdaric import lambda_runtime_client as client

    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # Python's generator is seeded again at a fork, NumPy's is not
    os.environ[_ADDRESS] = f"{address}/{key}"
    if compiled is None:
        raise ImportError(f"awslambdaric lacks its compiled module {_COMPILED}; install it again")
    client.runtime_client = module = importlib.util.module_from_spec(compiled)
    module.initialize_client(client._user_agent())
    os.environ[_ADDRESS] = address  # for the half that is not compiled
    call = client.BaseLambdaRuntimeClient.call_rapid
    client.BaseLambdaRuntimeClient.call_rapid = lambda self, method, endpoint, *rest: call(
        self, method, f"/{key}{endpoint}", *rest
    )


if __name__ == "__main__":
    main()

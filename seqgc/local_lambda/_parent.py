"""The parent process, from which environments are forked.

The parent imports the handler once and computes nothing. When the service orders it, the parent
forks or kills an environment. It reports each environment that has ended. If the service ends, the
parent kills all environments.

In every environment, AWS's runtime client first sets up logging and imports the handler, and then
requests its first invocation. The parent runs the client up to this request and forks there. Output
that was printed before the fork is at the beginning of each environment's log. If the handler
cannot be imported, the parent undoes the changes of the client. Each environment then runs the
client from the beginning, and reports the failure itself.

With SnapStart, the client runs the function's hooks before the snapshot, and asks for the restored
snapshot before it asks for an invocation. The parent forks at that first question. Every
environment has the random state of the fork, as every restored snapshot has that of the snapshot,
and then runs the hooks after the restore. A hook that fails before the snapshot fails in every
environment; Lambda, in contrast, does not publish such a version.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import logging
import os
import random
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
from functools import partial
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from typing import NoReturn

from seqgc.local_lambda._settings import KEPT_LOG_BYTES, KEY_BYTES, ServiceSettings

# Messages are short and have a fixed size, so that few pages of memory change: each environment
# keeps a copy of every page that changes.
# An order: the number of an environment, the port (0 to kill the environment) and key of its API.
ORDER = struct.Struct(f"<ii{KEY_BYTES}s")
# A report: the number of an environment, then (process id, 0), or after its end (0, exit code).
REPORT = struct.Struct("<iii")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 1 << 16
# The compiled part of awslambdaric's client reads the address of its Runtime API when it is loaded.
# Therefore each environment loads this part itself, and the parent loads everything else.
_COMPILED = "runtime_client"
_ADDRESS = "AWS_LAMBDA_RUNTIME_API"
_NOWHERE = "127.0.0.1:0"  # the address before there is a Runtime API


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
    """The exception that ends the parent after its channel has closed."""


class Parent:
    """The parent process. It ends after the service and all environments have ended."""

    def __init__(self, channel: socket.socket, settings: ServiceSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._numbers: dict[int, int] = {}  # environment by process id
        self._wake, self._waker = os.pipe()

    def run(self) -> NoReturn:
        """Carry out orders until the channel closes. In an environment, run the runtime client."""
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the signal only wakes `_serve` up
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        _return_memory_early()
        code = 1
        try:
            deployed = self._settings.deployed
            run_runtime(self._settings.handler, self._serve, snapstart=deployed.snapstart)
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
        """Carry out orders. In a new environment, return the address and key of its Runtime API."""
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
        """Carry out one order. In a new environment, return its Runtime API, else None."""
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
            with contextlib.suppress(OSError):  # the child also does this, and may have ended
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
        if not self._settings.deployed.snapstart:
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


def run_runtime(
    handler: str, fork: Callable[[], tuple[str, str]], *, snapstart: bool = False
) -> None:
    """Run AWS's runtime client, and call ``fork`` once before its first request for an invocation.

    If ``snapstart``, call ``fork`` before the client asks for the restored snapshot instead, after
    the hooks before the snapshot. In the parent, ``fork`` does not return, but raises an error at
    the end. In an environment, it returns the address and the key of a Runtime API. The paths of
    all requests to this API begin with the key, which neither the handler's variables nor its child
    processes have.
    """
    os.environ[_ADDRESS] = _NOWHERE
    sys.modules[_COMPILED] = None  # type: ignore[assignment]
    from awslambdaric import __main__ as runtime
    from awslambdaric.lambda_runtime_client import BaseLambdaRuntimeClient as Client

    del sys.modules[_COMPILED]
    compiled = importlib.util.find_spec(_COMPILED)  # search once, not in each environment
    arguments = ["bootstrap", handler]
    first_question = "restore_next" if snapstart else "wait_next_invocation"
    wait, handlers = getattr(Client, first_question), logging.root.handlers[:]
    hooks = _remembered_hooks() if snapstart else []
    out, err = sys.stdout, sys.stderr
    reached = False

    def become_environment() -> None:
        nonlocal reached
        reached = True
        setattr(Client, first_question, wait)
        _connect(compiled, *_forked(fork, snapstart=snapstart))

    with tempfile.TemporaryFile() as printed:
        stop = _redirect(printed.fileno())

        def first_wait(client: Client) -> object:
            stop()
            printed.seek(0)
            output = printed.read(KEPT_LOG_BYTES)
            printed.close()
            try:
                become_environment()
            except BaseException as error:
                client.post_init_error = partial(_raise, error)  # else it reports a failed hook
                raise
            os.write(1, output)
            client.lambda_runtime_address = os.environ[_ADDRESS]
            return wait(client)

        setattr(Client, first_question, first_wait)
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
    if hooks:
        importlib.import_module("snapshot_restore_py").get_before_snapshot()[:] = hooks
    runtime.main(arguments)


def _forked(fork: Callable[[], tuple[str, str]], *, snapstart: bool) -> tuple[str, str]:
    """Call ``fork`` and return its result. Environments of a snapshot keep its random state."""
    generator = None
    if "numpy" in sys.modules:  # NumPy imports this lazily, in 12 ms for each environment
        generator = importlib.import_module("numpy.random")
    gc.collect()
    gc.freeze()  # later garbage collections do not change these pages, so they stay shared
    state = random.getstate()
    api = fork()
    if snapstart:
        random.setstate(state)  # a fork seeds Python's generator again
    elif generator is not None:
        generator.seed()  # a fork does not seed NumPy's
    return api


def _raise(error: BaseException, *_: object) -> NoReturn:
    raise error


def _remembered_hooks() -> list[object]:
    """Return a list that gets the hooks before the snapshot when the runtime client runs them.

    The client forgets each hook before it runs it, so that a failed hook would not fail again.
    """
    from awslambdaric import lambda_runtime_hooks_runner as runner
    from snapshot_restore_py import get_before_snapshot

    hooks: list[object] = []
    run = runner.run_before_snapshot

    def remember_and_run() -> None:
        hooks[:] = get_before_snapshot()
        run()

    runner.run_before_snapshot = remember_and_run
    return hooks


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

    os.environ[_ADDRESS] = f"{address}/{key}"
    if compiled is None:
        raise ImportError(f"awslambdaric lacks its compiled module {_COMPILED}; install it again")
    client.runtime_client = module = importlib.util.module_from_spec(compiled)
    module.initialize_client(client._user_agent())
    os.environ[_ADDRESS] = address  # for the part of the client that is not compiled
    call = client.BaseLambdaRuntimeClient.call_rapid
    client.BaseLambdaRuntimeClient.call_rapid = lambda self, method, endpoint, *rest: call(
        self, method, f"/{key}{endpoint}", *rest
    )


if __name__ == "__main__":
    main()

"""The process that environments are forked from: it imports the handler once, computes nothing.

It owns its children: it forks one when asked, kills one when asked, says which have ended, and
kills all of them when the service is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import closing
from multiprocessing.connection import Connection
from typing import NoReturn

from seqgc.local_lambda._function_settings import KEY_BYTES, ServiceSettings
from seqgc.local_lambda._runtime import run_runtime

__all__ = ["ORDER", "REPORT", "Parent", "main"]

# Messages are short and all alike: what handles them touches few pages, each of which an
# environment would keep a copy of.
# Environment, port and key of its Runtime API (with its log); port 0: kill it.
ORDER = struct.Struct(f"<ii{KEY_BYTES}s")
REPORT = struct.Struct("<iii")  # environment, its process id, 0; or, ended: 0, its exit code

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 1 << 16


def main() -> NoReturn:
    """Be the parent of a version; the descriptor of its channel is the only argument."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    with closing(Connection(os.dup(channel.fileno()))) as first:
        try:
            settings: ServiceSettings = first.recv()
        except (OSError, EOFError):  # the service has ended before it had said more
            sys.exit()
    sys.path[:] = settings.search
    Parent(channel, settings).run()


class _OverError(BaseException):
    """There will be no more orders."""


class Parent:
    """Runs in the process itself, which ends when the service has gone and all have ended."""

    def __init__(self, channel: socket.socket, settings: ServiceSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._numbers: dict[int, int] = {}  # environment by process id
        self._wake, self._waker = os.pipe()

    def run(self) -> NoReturn:
        """Run until there are no more orders, or be an environment until its runtime ends."""
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only for the wake-up below
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
        for pid in self._numbers:  # of which an environment has none
            _kill(pid)
        for pid in self._numbers:
            os.waitpid(pid, 0)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _serve(self) -> tuple[str, str]:
        """Obey; return in environments only, the address and the key of their Runtime API."""
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
        """Take one order; return, in the environment that it asks for, its Runtime API."""
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
            with contextlib.suppress(OSError):  # done by the child already, which may have ended
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
        """Be an environment, in a process group of its own, that writes to its own log."""
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
    """Have large memory be the system's again as soon as it is free (glibc; else nothing happens).

    Otherwise each of hundreds of environments keeps what its longest request once needed.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(parameter, _LARGE_BYTES)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

"""Worker processes, from their start to their end, and the process that they are forked from.

That one imports what they need once, and computes nothing. Forking it is quick, and shares its
memory; forking the master would hang workers as soon as the master has run a torch operation. It is
multiprocessing's own fork server: one per master process, started with the first worker, gone when
the master and all workers are. Should other code of the master's have started it before, its
environment and preloaded modules are that code's.

multiprocessing keeps the fork server's socket in a temporary folder, ``pymp-*``, which the master
removes when its interpreter ends; after SIGTERM or SIGKILL it does not end that way. The fork
server outlives master and workers, and ends in an orderly way then. It imports this module, finds
the folder's name in its environment, and removes what a master that was killed could not. If both
are killed, the next master of this user removes it (`mark_in_use`).
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import (
    current_process,
    forkserver,
    get_context,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Final

from seqgc._durable import is_marked, mark_in_use
from seqgc.backends._channel import Channel
from seqgc.backends._child import main
from seqgc.backends._main_module import without_script
from seqgc.backends._sightings import Sightings
from seqgc.errors import ParameterError, WorkerError
from seqgc.wire import MAX_FRAME_BYTES

__all__ = ["WorkerProcess", "fork_process", "set_preload", "start_fork_server"]

_CONTEXT = get_context("forkserver")
_FOLDER: Final = "SEQGC_FORK_SERVER_FOLDER"
_MASTER_ENDS_S: Final = 1.0  # that a master which is killed may take, from its sockets to its end

# One thread per worker: with two, BLAS is 10 to 50 times slower when workers outnumber the cores.
_ONE_THREAD = {
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


# Where what the master asks for is read: a worker, and what the worker is to do.
_ASKED: Final = {reduction.recvfds.__code__, spawn._main.__code__}


def _hush(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show what nobody has caught here or in a worker, unless a worker's start was broken off.

    A master that is stopped or killed then has written only a part of what it asks for, or nothing.
    The fork server, which ends now, leaves the folder to the master if that lives on.
    """
    last = deque(traceback.walk_tb(trace), maxlen=1)
    in_start = any(frame.f_code in _ASKED for frame, _ in last)
    if not (in_start and kind.__name__ in {"EOFError", "UnpicklingError"}):
        sys.__excepthook__(kind, error, trace)
    give_up_at = time.monotonic() + _MASTER_ENDS_S
    while (lives := os.getppid() == _master) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    if lives:
        atexit.unregister(shutil.rmtree)


# Another process that the master starts at the same moment finds the variable, too: the command
# says which one is the fork server. Workers are forked, and end without calling what is registered.
_folder, _master = os.environ.pop(_FOLDER, ""), os.getppid()
if _folder and any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    sys.excepthook = _hush


class WorkerProcess:
    """A running process of worker ``worker``; after its end, another one takes its place."""

    def __init__(self, worker: int, *, run_id: str, factory: bytes, sightings: Sightings) -> None:
        self.worker = worker
        self.ready = False
        self.problem = ""  # why it never became ready, in its own words
        ours, theirs = socket.socketpair()
        try:
            self._process = fork_process(
                main,
                (theirs, worker, run_id, max(MAX_FRAME_BYTES, len(factory)), sightings),
                name=f"seqgc-worker-{worker}",
            )
        except ParameterError:
            ours.close()
            raise
        except (OSError, EOFError) as error:
            ours.close()
            raise WorkerError(
                f"worker {worker} did not start ({type(error).__name__}: {error}); too many open "
                "files, or a preloaded module that fails to import",
                worker=worker,
            ) from error
        finally:
            theirs.close()  # or its end would never look closed to us
        self.channel = Channel(ours, max_bytes=MAX_FRAME_BYTES)
        self.pid = self._process.pid or 0
        self.sentinel = self._process.sentinel  # a descriptor: readable when the process has ended
        # Not as an argument: starting a process blocks until it has read those, and a large one,
        # cut short by Ctrl-C, is a traceback in the child.
        self.channel.push(factory)

    def terminate(self) -> None:
        """Ask the process to end, without waiting for it."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process at once, even one that is stopped."""
        self._process.kill()

    def bury(self, *, grace_s: float = 1.0) -> str:
        """Release everything of a process that is ending; say how it ended.

        One that has not ended after ``grace_s`` seconds is killed.
        """
        self._process.join(grace_s)
        if self._process.exitcode is None:
            self.problem = self.problem or "worker process did not end by itself, and was killed"
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0
        self.channel.close()
        self._process.close()
        if self.problem or code >= 0:
            return self.problem or f"worker process exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "a signal"
        return f"worker process was killed by {name} ({-code})"


def set_preload(modules: Sequence[str]) -> None:
    """Name what the fork server imports when it starts; if it runs already, workers import it."""
    _CONTEXT.set_forkserver_preload([__name__, *modules])


def start_fork_server(preload: Sequence[str]) -> None:
    """Let the fork server import ``preload`` from now on, beside the master, unless it runs."""
    set_preload(preload)
    _ensure_running()


def fork_process(
    target: Callable[..., object], args: tuple[object, ...], *, name: str
) -> ForkServerProcess:
    """Return a running process that calls ``target(*args)``, forked from the fork server.

    It imports what these are of, and never the script that the master runs.
    """
    if current_process().daemon:
        rule = "cannot be started in a daemonic process (of multiprocessing.Pool, for instance)"
        remedy = "take a process that is none: concurrent.futures.ProcessPoolExecutor has them"
        raise ParameterError("workers", rule, current_process().name, remedy)
    _ensure_running()
    # A daemon: the interpreter ends it should nobody have done so.
    process = _CONTEXT.Process(target=target, args=args, name=name, daemon=True)
    with without_script():
        process.start()
    return process


def _ensure_running() -> None:
    """Start the fork server unless it runs: single-threaded BLAS, deaf to Ctrl-C.

    Environment and signal mask are what workers inherit, so they never see a Ctrl-C, not even while
    they start; the master's own are as before when this returns. `ParameterError` if the name of
    the folder for temporary files is too long for a socket's.
    """
    # First, because starting it unblocks SIGINT (CPython's resource_tracker.py, ensure_running).
    resource_tracker.ensure_running()
    folder = util.get_temp_dir()  # an earlier fork server may have taken it along
    Path(folder).mkdir(mode=0o700, exist_ok=True)
    if not is_marked(Path(folder)):
        mark_in_use(Path(folder))  # until this process ends
    changes = _ONE_THREAD | {_FOLDER: folder}
    before = {name: os.environ[name] for name in changes if name in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ.update(changes)
        forkserver.ensure_running()
    except ChildProcessError:  # the fork server is a child of another
        rule = "cannot be started in a process forked from one that has started workers"
        remedy = "have it made by spawn: multiprocessing.get_context('spawn')"
        raise ParameterError("workers", rule, current_process().name, remedy) from None
    except OSError as error:
        if error.errno is not None:
            raise
        rule = "must be a folder with a shorter name: sockets are made in it"
        remedy = f"{error}; set TMPDIR=/tmp, for instance"
        raise ParameterError("TMPDIR", rule, tempfile.gettempdir(), remedy) from error
    finally:
        for name in changes:
            os.environ.pop(name, None)
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

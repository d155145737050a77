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
import math
import mmap
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import (
    current_process,
    forkserver,
    get_context,
    parent_process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, cast

from seqgc._by_value import loads
from seqgc._durable import is_marked, mark_in_use
from seqgc._fault import fault_of
from seqgc.backends._channel import Channel
from seqgc.backends._events import LONGEST_WAIT_S
from seqgc.errors import ParameterError, WireError, WorkerError, reraise_stop
from seqgc.ports import Computing
from seqgc.wire import MAX_FRAME_BYTES, InvokeMessage, ReadyMessage, TaskMessage, encode
from seqgc.worker import PROGRESS, Compute, ComputeFactory, TaskServer, WorkerProgress, run_task

__all__ = [
    "Sightings",
    "WorkerProcess",
    "fork_process",
    "main",
    "set_preload",
    "start_fork_server",
    "without_script",
]

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
    """Print an uncaught exception, unless it shows only that the start of a worker was cut short.

    That happens if the master is stopped or killed while it writes its request. The fork server
    ends then. If the master still runs, the master removes the folder.
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


def main(
    end: socket.socket, worker: int, run_id: str, max_bytes: int, sightings: Sightings
) -> None:
    """Serve tasks until the master is gone; its first frame is a pickled `ComputeFactory`."""
    for number in (signal.SIGINT, signal.SIGTSTP):  # of the terminal, to the master and its workers
        signal.signal(number, signal.SIG_IGN)  # stopping is the master's decision
    threading.Thread(target=_die_with_master, daemon=True).start()
    master = _Conversation(Channel(end, max_bytes=max_bytes))
    frames: list[bytearray] = []
    while not frames:
        if master.ended:
            return
        frames += master.receive(math.inf)  # one: it sends no other before it hears from us
    try:
        # Not from the wire: the master's own object over its own socket pair, as multiprocessing
        # passes arguments itself, but unpickled here, where a module that cannot be imported is a
        # cause that can be told.
        compute: Compute = cast("ComputeFactory", loads(frames.pop()))()
    except BaseException as error:
        reraise_stop(error)
        ready = ReadyMessage(worker=worker, problem=fault_of(error))
        master.send(encode(ready, run_id=run_id, sealed=False))
        raise SystemExit(1) from None  # the master knows: no traceback on the terminal
    sightings.watch(worker)
    master.send(encode(ReadyMessage(worker=worker), run_id=run_id, sealed=False))

    def answer(message: TaskMessage | InvokeMessage, cancelled: Callable[[], bool]) -> bytes | None:
        if isinstance(message, InvokeMessage):
            raise WireError("a process is sent no invocation")
        PROGRESS.begin(message.task.round, message.task.attempt)
        try:
            computed = run_task(message.task, compute, cancelled=cancelled)
        finally:
            PROGRESS.end()
        if computed is None:
            return None
        return encode(message.result(*computed), run_id=run_id, sealed=False)

    TaskServer(master, answer, run_id=run_id, sealed=False).serve()


def _die_with_master() -> None:
    """Exit once the master is gone, even in the middle of a computation."""
    if (master := parent_process()) is not None:
        master.join()
        os._exit(1)


class _Conversation:
    """The channel to the master, waiting as long as it takes (see `_channel` why that ends)."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def ended(self) -> bool:
        return self._channel.ended

    def receive(self, timeout_s: float) -> Sequence[bytearray]:
        self._wait(select.POLLIN, timeout_s)
        return self._channel.pull()

    def send(self, frame: bytes) -> None:
        self._channel.push(frame)
        while self._channel.unsent:
            self._wait(select.POLLOUT)
            self._channel.flush()

    def _wait(self, what: int, timeout_s: float = math.inf) -> None:
        poll = select.poll()
        poll.register(self._channel, what)
        poll.poll(min(timeout_s, LONGEST_WAIT_S) * 1000)


_lock = threading.Lock()
_blocks = 0  # that are open, of all threads


class _Fileless(ModuleType):
    """Another module's names, but for its file and its spec."""

    def __init__(self, script: ModuleType) -> None:
        super().__init__(script.__name__)  # its spec is None
        self._script = script

    def __getattr__(self, name: str) -> object:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(self._script, name)


@contextmanager
def without_script() -> Iterator[None]:
    """Have processes that are started in the block import no script; blocks may overlap.

    Examples
    --------
    >>> with without_script():
    ...     hasattr(sys.modules["__main__"], "__file__")
    False
    """
    global _blocks  # noqa: PLW0603 (as is what it counts for, sys.modules)
    with _lock:
        _blocks += 1
        if _blocks == 1:
            sys.modules["__main__"] = _Fileless(sys.modules["__main__"])
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            stand_in = sys.modules["__main__"]
            if _blocks == 0 and isinstance(stand_in, _Fileless):
                sys.modules["__main__"] = stand_in._script


class Sightings:
    """Memory shared with ``n`` worker processes, each of which writes into its own part.

    It is pickled only as an argument of such a process, which then calls `watch`.
    """

    def __init__(self, n: int) -> None:
        size = n * WorkerProgress.BYTES
        if hasattr(os, "memfd_create"):  # in a file, a full disk would end the writer
            self._file = os.memfd_create("seqgc-sightings")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        os.ftruncate(self._file, size)
        self._open(size)

    def _open(self, size: int) -> None:
        self._size = size
        self._memory = mmap.mmap(self._file, size)

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(self._file), self._size)

    def watch(self, worker: int) -> None:
        """Make this process record its tasks, as this worker."""
        PROGRESS.attach(self._part(worker))

    def computing(self, worker: int) -> Computing | None:
        """Return what a worker's process computes, or computed at its end; None if it is idle."""
        if self._size == 0 or (seen := WorkerProgress.read(self._part(worker))) is None:
            return None
        now = time.monotonic()
        return Computing(
            round=seen.round,
            attempt=seen.attempt,
            model=seen.model,
            is_stuck=now - seen.model_began_at >= (now - seen.began_at) / 2,
        )

    def clear(self, worker: int) -> None:
        """Forget what a worker's process was computing, before another process takes its place."""
        self._memory[worker * WorkerProgress.BYTES] = 0

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        if self._size:
            self._size = 0
            self._memory.close()
            os.close(self._file)

    def _part(self, worker: int) -> memoryview:
        start = worker * WorkerProgress.BYTES
        return memoryview(self._memory)[start : start + WorkerProgress.BYTES]


def _received(descriptor: object, size: int) -> Sightings:
    """Return the same memory in a process that has received its descriptor."""
    sightings = Sightings.__new__(Sightings)
    sightings._file = descriptor.detach()  # type: ignore[attr-defined]
    sightings._open(size)
    return sightings

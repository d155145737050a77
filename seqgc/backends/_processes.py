"""Worker processes, from their start to their end, and the fork server that starts them.

The fork server imports the modules that workers need once, and computes nothing. Forking it is
quick, and workers share its memory. (If workers were forked from the master, they would hang if the
master had run a torch operation before.) It is the fork server of multiprocessing: there is one for
each master process, which is started with the first worker, and ends when the master and all
workers have ended. If other code in the master process started it before, that code has determined
its environment and its preloaded modules.

multiprocessing keeps the socket of the fork server in a temporary folder, ``pymp-*``. The master
removes the folder when its interpreter ends, but not after SIGTERM or SIGKILL. The fork server ends
later than the master and the workers, and usually is not killed. It imports this module, finds the
name of the folder in its environment, and removes the folder if the master has not done this. If
both are killed, the next master of this user removes the folder (`mark_in_use`).
"""

from __future__ import annotations

import atexit
import itertools
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

from seqgc._by_value import Parcel
from seqgc._durable import is_marked, mark_in_use
from seqgc._fault import fault_of
from seqgc.backends._channel import Channel
from seqgc.backends._events import LONGEST_WAIT_S
from seqgc.errors import ParameterError, WireError, WorkerError, reraise_stop
from seqgc.ports import Computing
from seqgc.wire import MAX_FRAME_BYTES, InvokeMessage, ReadyMessage, TaskMessage, encode
from seqgc.worker import PROGRESS, Compute, ComputeFactory, TaskServer, WorkerProgress, answers

__all__ = [
    "SharedBuffers",
    "Sightings",
    "WorkerProcess",
    "follow_master",
    "fork_process",
    "main",
    "set_preload",
    "start_fork_server",
    "without_script",
]

_CONTEXT = get_context("forkserver")
_FOLDER: Final = "SEQGC_FORK_SERVER_FOLDER"
_ALIGNED: Final = 64  # bytes: the alignment of torch's and numpy's own memory
_MASTER_ENDS_S: Final = 1.0  # time from the end of a killed master's sockets to the master's end

# One thread per worker: with two, BLAS is 10 to 50 times slower when workers outnumber the cores.
_ONE_THREAD = {
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


# The functions that read the master's requests: for a new worker, and for the worker's arguments.
_ASKED: Final = {reduction.recvfds.__code__, spawn._main.__code__}


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught exception, unless it only shows that the master ended during a request.

    If the master is stopped or killed while it requests a worker, the fork server ends with such an
    exception. If the master still runs, the master removes the folder.
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


# Another process that the master starts at the same moment has the variable too; the command line
# shows which process is the fork server. Forked workers end without calling atexit functions.
_folder, _master = os.environ.pop(_FOLDER, ""), os.getppid()
if _folder and any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    sys.excepthook = _print_exception


class WorkerProcess:
    """A running process of worker ``worker``; a later process may replace it.

    It computes every task that it is sent, also tasks of other workers.
    """

    def __init__(
        self,
        worker: int,
        *,
        run_id: str,
        factory: bytes | bytearray,
        buffers: SharedBuffers,
        sightings: Sightings,
    ) -> None:
        self.worker = worker
        self.ready = False
        self.problem = ""  # the worker's message if it could not become ready
        ours, theirs = socket.socketpair()
        try:
            self._process = fork_process(
                main,
                (theirs, worker, run_id, max(MAX_FRAME_BYTES, len(factory)), buffers, sightings),
                name=f"seqgc-worker-{worker}",
            )
        except ParameterError:
            ours.close()
            raise
        except (OSError, EOFError) as error:
            ours.close()
            raise WorkerError(
                f"worker {worker} did not start ({type(error).__name__}: {error}); possible causes "
                "are too many open files, or a preloaded module that cannot be imported",
                worker=worker,
            ) from error
        finally:
            theirs.close()  # otherwise the end of the process would not close the connection
        self.channel = Channel(ours, max_bytes=MAX_FRAME_BYTES)
        self.pid = self._process.pid or 0
        self.sentinel = self._process.sentinel  # a descriptor: readable when the process has ended
        # The factory is not an argument of the process: the start blocks until the process has read
        # its arguments, and Ctrl-C during a large argument would print a traceback in the child.
        self.channel.push(factory)

    def terminate(self) -> None:
        """Ask the process to end, without waiting for it."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process at once, even one that is stopped."""
        self._process.kill()

    def bury(self, *, grace_s: float = 1.0) -> str:
        """Wait for the end of a process, release its resources, and return how it ended.

        If the process has not ended after ``grace_s`` seconds, it is killed.
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
    """Set the modules that the fork server imports when it starts.

    If it is already running, each worker imports them.
    """
    _CONTEXT.set_forkserver_preload([__name__, *modules])


def start_fork_server(preload: Sequence[str]) -> None:
    """Start the fork server unless it runs; it imports ``preload`` while the master continues."""
    set_preload(preload)
    _ensure_running()


def fork_process(
    target: Callable[..., object], args: tuple[object, ...], *, name: str
) -> ForkServerProcess:
    """Return a running process that calls ``target(*args)``, forked from the fork server.

    The process imports the modules of target and arguments, but never the script that the master
    runs.
    """
    if current_process().daemon:
        rule = "cannot be started in a daemonic process (of multiprocessing.Pool, for instance)"
        remedy = "use another process, for example of concurrent.futures.ProcessPoolExecutor"
        raise ParameterError("workers", rule, current_process().name, remedy)
    _ensure_running()
    # A daemon, so that the interpreter ends it if nothing else has.
    process = _CONTEXT.Process(target=target, args=args, name=name, daemon=True)
    with without_script():
        process.start()
    return process


def _ensure_running() -> None:
    """Start the fork server unless it is running, with single-threaded BLAS and SIGINT blocked.

    Workers inherit its environment and signal mask, so that they ignore Ctrl-C even while they
    start. The environment and the mask of the master are restored.

    Raises
    ------
    ParameterError
        If the name of the folder for temporary files is too long for a socket, or if this process
        was forked from a process that has a fork server.
    """
    # First, because starting it unblocks SIGINT (CPython's resource_tracker.py, ensure_running).
    resource_tracker.ensure_running()
    folder = util.get_temp_dir()  # an earlier fork server may have removed it
    Path(folder).mkdir(mode=0o700, exist_ok=True)
    if not is_marked(Path(folder)):
        mark_in_use(Path(folder))  # until this process ends
    changes = _ONE_THREAD | {_FOLDER: folder}
    before = {name: os.environ[name] for name in changes if name in os.environ}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ.update(changes)
        forkserver.ensure_running()
    except ChildProcessError:  # the fork server is a child of another process
        rule = "cannot be started in a process forked from one that has started workers"
        remedy = "start that process by spawn: multiprocessing.get_context('spawn')"
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
    end: socket.socket,
    worker: int,
    run_id: str,
    max_bytes: int,
    buffers: SharedBuffers,
    sightings: Sightings,
) -> None:
    """Serve tasks until the master has ended; its first frame is a pickled `ComputeFactory`.

    ``buffers`` are the large arrays of the factory. The process records its present task in
    ``sightings``.
    """
    follow_master()
    master = _Conversation(Channel(end, max_bytes=max_bytes))
    frames: list[bytearray] = []
    while not frames:
        if master.ended:
            return
        frames += master.receive(math.inf)  # one frame: the master then waits for an answer
    try:
        # Unpickling is safe: the object comes from the master over its own socket pair, just as
        # multiprocessing passes arguments. Here, an import error can be reported to the master.
        parcel = Parcel(frames.pop(), buffers.mapped())
        compute: Compute = cast("ComputeFactory", parcel.open())()
        del parcel
    except BaseException as error:
        reraise_stop(error)
        ready = ReadyMessage(worker=worker, problem=fault_of(error))
        master.send(encode(ready, run_id=run_id, sealed=False))
        raise SystemExit(1) from None  # the master reports the error: print no traceback
    sightings.watch(worker)
    master.send(encode(ReadyMessage(worker=worker), run_id=run_id, sealed=False))

    def answer(
        message: TaskMessage | InvokeMessage, cancelled: Callable[[], bool]
    ) -> Iterator[tuple[float, bytes]]:
        if isinstance(message, InvokeMessage):
            raise WireError("a local process accepts tasks only, but was sent an invocation")
        task = message.task
        PROGRESS.begin(task.round, task.worker, task.attempt)
        try:
            for result in answers(message, compute, cancelled=cancelled):
                yield message.delay_of(result), encode(result, run_id=run_id, sealed=False)
        finally:
            PROGRESS.end()

    TaskServer(master, answer, run_id=run_id, sealed=False).serve()


def follow_master() -> None:
    """Let this process end when its master ends, and not at Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTSTP):  # a terminal sends them to workers, too
        signal.signal(number, signal.SIG_IGN)  # the master decides when workers end
    threading.Thread(target=_die_with_master, daemon=True).start()


def _die_with_master() -> None:
    """Exit as soon as the master has ended, even in the middle of a computation."""
    if (master := parent_process()) is not None:
        master.join()
        os._exit(1)


class _Conversation:
    """The channel to the master, with calls that wait; `_channel` explains why they end."""

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
_blocks = 0  # number of open blocks `without_script` in all threads


class _Fileless(ModuleType):
    """A stand-in for a module, with its names but without its file and its spec."""

    def __init__(self, script: ModuleType) -> None:
        super().__init__(script.__name__)  # its spec is None
        self._script = script

    def __getattr__(self, name: str) -> object:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(self._script, name)


@contextmanager
def without_script() -> Iterator[None]:
    """Keep processes that are started in this block from importing the script of the master.

    Blocks may overlap.

    Examples
    --------
    >>> with without_script():
    ...     hasattr(sys.modules["__main__"], "__file__")
    False
    """
    global _blocks  # noqa: PLW0603 (sys.modules is global, too)
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
    """Memory shared with ``n`` worker processes, each of which records its present task.

    The object is pickled only as an argument of a worker process, which then calls `watch`.
    """

    def __init__(self, n: int) -> None:
        size = n * WorkerProgress.BYTES
        self._file = _nameless_file("seqgc-sightings")
        os.ftruncate(self._file, size)
        self._open(size)

    def _open(self, size: int) -> None:
        self._size = size
        self._memory = mmap.mmap(self._file, size)

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(self._file), self._size)

    def watch(self, worker: int) -> None:
        """Make this process record its tasks in the part of this worker."""
        PROGRESS.attach(self._part(worker))

    def computing(self, worker: int) -> tuple[int, Computing, float] | None:
        """Return the task that a worker's process computes, or computed when it ended.

        The first number is the worker of the task, and the last one the seconds since the process
        began the task. The result is None if the process is idle.
        """
        if self._size == 0 or (seen := WorkerProgress.read(self._part(worker))) is None:
            return None
        now = time.monotonic()
        busy_s = now - seen.began_at
        computing = Computing(
            round=seen.round,
            attempt=seen.attempt,
            model=seen.model,
            is_stuck=now - seen.model_began_at >= busy_s / 2,
        )
        return seen.worker, computing, busy_s

    def clear(self, worker: int) -> None:
        """Forget the task of a worker's process before the worker gets a new process."""
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


class SharedBuffers:
    """Buffers that are written once to a file without a name, and mapped by worker processes.

    Every process sees the buffers as they were written: if a process changes them, the other
    processes do not see the changes. The system removes the file when no process has it open or
    mapped. The object is pickled only as an argument of such a process.
    """

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        lengths = [-(-each.nbytes // _ALIGNED) * _ALIGNED for each in buffers]
        starts = [
            end - length for end, length in zip(itertools.accumulate(lengths), lengths, strict=True)
        ]
        self._pieces = [(start, each.nbytes) for start, each in zip(starts, buffers, strict=True)]
        self._file: int | None = None
        if not buffers:
            return
        self._file = _nameless_file("seqgc-buffers")
        with open(self._file, "wb", closefd=False) as file:
            for start, each in zip(starts, buffers, strict=True):
                file.seek(start)
                file.write(each)

    def __reduce__(self) -> tuple[object, ...]:
        file = None if self._file is None else reduction.DupFd(self._file)
        return _received_buffers, (file, self._pieces)

    def mapped(self) -> list[memoryview]:
        """Map the buffers into this process, and return them; the file is closed afterwards."""
        if self._file is None:
            return []
        memory = memoryview(mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY))
        self.close()
        return [memory[start : start + size] for start, size in self._pieces]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _received_buffers(descriptor: object, pieces: list[tuple[int, int]]) -> SharedBuffers:
    """Return the same buffers in a process that has received the file's descriptor."""
    buffers = SharedBuffers([])
    buffers._pieces = pieces
    if descriptor is not None:
        buffers._file = descriptor.detach()  # type: ignore[attr-defined]
    return buffers


def _nameless_file(label: str) -> int:
    """Return the descriptor of a new file in memory, or of a deleted file on disk."""
    if hasattr(os, "memfd_create"):  # if the disk is full, writing to mapped memory ends a process
        return os.memfd_create(label)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

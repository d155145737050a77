"""Masters in no time: processes that are forked from one that has imported all that they need.

``seqgc train`` takes some seconds to import PyTorch, as do its fork server and the local service's
parent of environments. Here each of them is a process of its own as ever, with its own descriptors,
session and signals, but it is forked where it would be executed. It is killed by real signals.

The nursery reads one order a line from its standard input, a JSON object, and answers each with
another when the master has ended and everything that it had started as well: whatever outlives its
parent becomes the nursery's own child (``PR_SET_CHILD_SUBREAPER``), and is waited for. See `Order`,
and for how long `Patience`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pty
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
_MOST_S = 60.0  # that a master may sleep or work; what it has started, a quarter of that
_LOOK_S = 0.2  # from one look at who sleeps to the next
_SOON_S = 0.02  # from one look at whether a master has been hit to the next
_HIT_AT = 32  # where it says so, behind the number of its calls
_LOADED = (
    *("seqgc.cli", "seqgc.training.run", "seqgc.workers", "seqgc.backends.lambda_", "boto3"),
    *("seqgc.local_lambda.service", "seqgc.local_lambda._parent", "tests.kit", "_strptime"),
    *("numpy.ctypeslib", "numpy.ma", "numpy.random", "encodings.idna", "rich._emoji_codes"),
)
_SETS_UP = "seqgc.backends._processes"
_COMPILED = "runtime_client"  # reads its address when it is loaded: every environment does


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a master is to do, and what is to happen to it.

    Its command line, its folder; the number of a signal that it gets after ``after_s`` seconds, or
    just before, in the midst of, or after (``when``) the ``call``-th call that makes its files
    last. It gets it ``times``: at once, or the second ``gap_s`` seconds later. ``err``: where it
    says how far it is; ``terminal``: a terminal, which is closed instead of a signal.
    """

    argv: list[str]
    folder: str
    number: int = 0
    times: int = 1
    gap_s: float = 0.0
    after_s: float | None = None
    call: int | None = None
    when: float = 0.0
    err: str | None = None
    terminal: bool = False


class Calls:
    """Stands for ``os``: counts the calls made of it, and lets the master be hit there."""

    def __init__(self, order: Order, counted: int) -> None:
        self._order, self._counted, self.count = order, counted, 0

    def write(self, descriptor: int, data: memoryview) -> int:
        if self._hits() and 1 / 3 < self._order.when < 2 / 3:
            written = os.write(descriptor, data[: 1 + len(data) // 2])
            self.count += 1
            self._hit()
            return written
        return self._called(os.write, descriptor, data)  # type: ignore[no-any-return]

    def fsync(self, descriptor: int) -> None:
        self._called(os.fsync, descriptor)

    def replace(self, *paths: Any, **folders: Any) -> None:
        self._called(os.replace, *paths, **folders)

    def _called(self, call: Any, *arguments: Any, **named: Any) -> Any:
        hits, late = self._hits(), self._order.when >= 2 / 3
        self.count += 1
        if hits and not late:
            self._hit()
        result = call(*arguments, **named)
        if hits and late:
            self._hit()
        return result

    def _hits(self) -> bool:
        return self._order.number > 0 and self.count == self._order.call

    def _hit(self) -> None:
        os.pwrite(self._counted, f"{time.time():.6f}".encode(), _HIT_AT)
        for _ in range(1 if self._order.gap_s else self._order.times):
            os.kill(os.getpid(), self._order.number)


def serve() -> None:
    """Obey orders until there are none."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        orders = [Order(**each) for each in json.loads(line)]
        answers = [obey(*orders)] if len(orders) == 1 else obey_all(orders)
        print(json.dumps(answers), flush=True)


class Master:
    """A process that has been forked for an order."""

    def __init__(self, order: Order) -> None:
        self.order, self.status = order, None
        self._said, self._counted = os.memfd_create("said"), os.memfd_create("counted")
        self._leader, terminal = pty.openpty() if order.terminal else (-1, -1)
        self.pid = os.fork()
        if self.pid == 0:
            _become_master(order, terminal, self._said, self._counted)
        self._began, self._hit_at = time.time(), 0.0
        if terminal >= 0:
            os.close(terminal)

    @property
    def hit_at(self) -> float:
        """When it was hit, by whomever, in seconds of `time.time`; 0 if it has not been."""
        return self._hit_at or float(os.pread(self._counted, 20, _HIT_AT) or 0)

    def hit(self) -> None:
        """Send it what is to be sent, or close its terminal."""
        self._hit_at = time.time()
        if self.order.terminal:
            os.close(self._leader)
            self._leader = -1
            return
        for _ in range(1 if self.order.gap_s else self.order.times):
            os.kill(self.pid, self.order.number)

    def hit_again(self, patience: Patience) -> None:
        """Wait until it has been hit, and then so long as is ordered; hit it once more."""
        while self.status is None and not self.hit_at and not patience.is_over():
            self.status = _wait(self.pid, _SOON_S)
        if self.status is None and self.hit_at:
            self.status = _wait(self.pid, self.hit_at + self.order.gap_s - time.time())
        if self.status is None:
            os.kill(self.pid, self.order.number)

    def answer(self, *, stuck: bool = False) -> dict[str, object]:
        """Return how it has ended, now; kill it if it has not."""
        ended = time.time()
        if self._leader >= 0:
            os.close(self._leader)
        if stuck:
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        left = _reap(Patience(_MOST_S / 4))  # they say what they have to say as well
        answer = {
            "status": self.status,
            "stuck": stuck,
            "seconds": ended - self._began,
            "hit_at": self.hit_at,
            "seconds_to_end": ended - (self.hit_at or ended),
            "said": os.pread(self._said, 1 << 20, 0).decode(errors="replace")[-2000:],
            "calls": int(os.pread(self._counted, 20, 0).strip(b"\0") or 0),
            "left": left,
        }
        os.close(self._said)
        os.close(self._counted)
        return answer


def obey(order: Order) -> dict[str, object]:
    """Have a master live; return its exit status, seconds, last words, and who outlived it."""
    master = Master(order)
    if order.after_s is not None:
        master.status = _wait(master.pid, order.after_s)
        if master.status is None:
            master.hit()
    if order.gap_s:
        master.hit_again(Patience(_MOST_S))
    if master.status is None:
        patience = Patience(_MOST_S)
        while (status := _wait(master.pid, _LOOK_S)) is None and not patience.is_over():
            pass
        master.status = status
    return master.answer(stuck=master.status is None)


def obey_all(orders: list[Order]) -> list[dict[str, object]]:
    """Have masters live at once; one that is to be hit is, when it is the only one left."""
    masters = {(master := Master(order)).pid: master for order in orders}
    left = dict(masters)
    patience = Patience(_MOST_S)
    while left and not patience.is_over():
        for pid, master in list(left.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                master.status = os.waitstatus_to_exitcode(status)
                del left[pid]
                if len(left) == 1 and next(iter(left.values())).order.number:
                    next(iter(left.values())).hit()
        if left:
            signal.sigtimedwait({signal.SIGCHLD}, _LOOK_S)
    for master in left.values():
        os.kill(master.pid, signal.SIGKILL)
    return [master.answer() for master in masters.values()]


def _wait(pid: int, seconds: float) -> int | None:
    """Return a child's exit status; None if it has not ended by then."""
    give_up_at = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        left = give_up_at - time.monotonic()
        if left <= 0 or signal.sigtimedwait({signal.SIGCHLD}, left) is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if ended else None


def _reap(patience: Patience) -> list[str]:
    """Wait for all children; kill those that are there when it is over, and name them."""
    left: list[str] = []
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return left
        if ended:
            continue
        if signal.sigtimedwait({signal.SIGCHLD}, _LOOK_S) is None and patience.is_over():
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for pid in map(int, children):
                with suppress(OSError):
                    left.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
                    os.kill(pid, signal.SIGKILL)
            patience = Patience(1.0)


class Patience:
    """So many seconds for all whom the nursery has started, whatever else the machine does.

    They are over once all of these have slept for so long, or used as much processor time. While
    one of them waits for a processor or a disk, nobody's time passes.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slept_s, self._worked_s = 0.0, _work_s()
        self._looked_at = time.monotonic()

    def is_over(self) -> bool:
        """Look at who sleeps; to be asked often."""
        now = time.monotonic()
        if all(state not in "RD" for state, _ in _tasks()):
            self._slept_s += min(now - self._looked_at, _LOOK_S)
        self._looked_at = now
        return max(self._slept_s, _work_s() - self._worked_s) > self._seconds


def _tasks() -> Iterator[tuple[str, float]]:
    """Yield the state, and the processor's seconds so far, of each thread of all descendants."""
    tick_s, family = 1 / os.sysconf("SC_CLK_TCK"), ["self"]
    for pid in family:
        with suppress(OSError):  # it has ended meanwhile
            for task in Path(f"/proc/{pid}/task").iterdir():
                family += (task / "children").read_text().split()
                if pid != "self":
                    state, *fields = (task / "stat").read_text().rpartition(")")[2].split()
                    yield state, tick_s * (int(fields[10]) + int(fields[11]))


def _work_s() -> float:
    return sum(seconds for _, seconds in _tasks())


def _become_master(order: Order, terminal: int, said: int, counted: int) -> NoReturn:
    """Be what ``seqgc`` is after its imports, to the interpreter's own end."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # which nohup has ignored
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    err = said
    if order.err is not None:  # what is there would be overwritten, for which there is room
        err = os.open(order.err, os.O_WRONLY | os.O_APPEND)
    if terminal >= 0:
        os.close(os.open(os.ttyname(terminal), os.O_RDWR))  # it controls the session from now on
        nowhere = err = terminal
    for descriptor, to in enumerate((nowhere, nowhere if terminal >= 0 else said, err)):
        os.dup2(to, descriptor)
    os.closerange(3, counted)
    os.closerange(counted + 1, 64)
    os.chdir(order.folder)
    os.environ["TMPDIR"] = order.folder
    tempfile.tempdir = None
    sys.argv = ["seqgc", *order.argv]
    from seqgc.__main__ import run
    from seqgc.local_lambda import service
    from tests.kit import system_calls

    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]
    util.spawnv_passfds = _forked
    mock.patch.object(service.subprocess, "Popen", ForkedService).start()
    calls = Calls(order, counted)
    with system_calls(calls):
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            status = run()
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:  # all that the interpreter's end does, but for its memory
            os.pwrite(counted, str(calls.count).encode(), 0)
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(status)


def _forked(_path: bytes, args: list[str], passed: list[int]) -> int:
    """Do what `multiprocessing.util.spawnv_passfds` does, without executing an interpreter."""
    pid = os.fork()
    if pid == 0:
        _be_alone({*passed, 0, 1, 2})
        sys.orig_argv = list(map(os.fsdecode, args))
        sys.modules.pop(_SETS_UP, None)  # a fork server imports it anew, and hushes its workers
        _as_a_program(lambda: exec(args[-1], {}))
    return pid


class ForkedService:
    """Does what `subprocess.Popen` does for the local service, without executing an interpreter."""

    def __init__(
        self, command: list[str], *, cwd: Path, env: dict[str, str], pass_fds: tuple[int], **_: Any
    ) -> None:
        self.pid, self._status = os.fork(), None
        if self.pid:
            return

        def serve() -> None:
            os.setsid()
            _be_alone({*pass_fds, 1, 2})
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, 0)
            os.dup2(nowhere, 1)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = command[2:]
            for name in [n for n in sys.modules if n.startswith("lambda_handlers")]:
                del sys.modules[name]
            runpy.run_module(
                "seqgc.local_lambda._service_process", run_name="__main__", alter_sys=True
            )

        _as_a_program(serve)

    def wait(self, timeout: float | None = None) -> int:
        import subprocess

        if self._status is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                import select

                if not select.select([pidfd], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("service", timeout or 0.0)
            finally:
                os.close(pidfd)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def poll(self) -> int | None:
        return self._status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _as_a_program(do: Callable[[], object]) -> NoReturn:
    """Do what a program does, to the interpreter's own end, and say what it has not caught."""
    try:
        do()
    except SystemExit:
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        os._exit(0)


def _be_alone(kept: set[int]) -> None:
    """Have no descriptors and no handlers but those that a program has which is executed."""
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(entry) not in kept:
            with suppress(OSError):
                os.close(int(entry))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            plain = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, plain)
    signal.set_wakeup_fd(-1)
    atexit._clear()
    util._finalizer_registry.clear()


def _load() -> None:
    """Import all that masters and those whom they start need."""
    for name in _LOADED:
        importlib.import_module(name)
    sys.modules[_COMPILED] = None  # type: ignore[assignment]
    importlib.import_module("awslambdaric.__main__")
    del sys.modules[_COMPILED]
    importlib.import_module("lambda_handlers.gradient_worker.handler")
    importlib.import_module("tests.masters.toys")
    with redirect_stdout(io.StringIO()):  # the verbs are made into commands, once
        importlib.import_module("seqgc.cli").main(["train", "--help"])
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    _load()
    serve()

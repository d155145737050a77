"""However the master ends, soon nothing of its session runs: no worker, no helper process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from seqgc._durable import temporary_folder
from seqgc.testing import PATIENCE_S, eventually
from tests.backends.master_process import WORKERS
from tests.backends.scripted import is_running, running_in_session
from tests.kit import Handler, interrupts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The master's folder for temporary files; its name is short, sockets must fit."""
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def master(
    folder: Path, what: str, *, temporary: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a master in a session of its own; whatever is left of that session is killed."""
    environment = {} if temporary is None else {"TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "tests.backends.master_process", str(folder), what]
    with (
        interrupts(),
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:  # nothing here may fail, and hide what did
            for pid in running_in_session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def worker_pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


def nothing_runs_in(session: int) -> None:
    eventually(lambda: not running_in_session(session), f"the end of session {session}")


@pytest.mark.parametrize("here", [signal.default_int_handler, signal.SIG_IGN])
def test_ctrl_c_stops_everything_at_once_and_only_the_master_complains(
    tmp_path: Path, here: Handler
) -> None:
    with interrupts(here), master(tmp_path, "waits") as process:
        pids = worker_pids(process)
        assert sum(map(is_running, pids)) == WORKERS
        os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does
        _, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGINT
        assert not [pid for pid in pids if is_running(pid)]
        assert complaint.count("Traceback") == 1
        assert complaint.rstrip().endswith("KeyboardInterrupt")
        nothing_runs_in(process.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_and_their_folder_vanish_with_a_master_that_is_killed(
    tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    with master(tmp_path, "waits", temporary=temporary) as process:
        assert sum(map(is_running, worker_pids(process))) == WORKERS
        assert [path.name[:5] for path in temporary.iterdir()] == ["pymp-"]
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number
        nothing_runs_in(process.pid)
    assert list(temporary.iterdir()) == []


def test_what_is_left_where_all_processes_are_killed_goes_with_the_next_master(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with master(tmp_path, "waits", temporary=temporary) as process:
        assert worker_pids(process)
        with temporary_folder("seqgc-tls-"):
            assert len(list(temporary.iterdir())) == 2, "the master lives"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
        nothing_runs_in(process.pid)
    assert [path.name[:5] for path in temporary.iterdir()] == ["pymp-"]
    with temporary_folder("seqgc-tls-"):
        pass
    assert list(temporary.iterdir()) == []


def test_a_folder_whose_name_is_too_long_for_sockets_is_named(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 10)
    long.mkdir()
    with master(tmp_path, "waits", temporary=long) as process:
        _, complaint = process.communicate(timeout=PATIENCE_S)
    last = complaint.splitlines()[-1]
    assert "`TMPDIR` must be a folder with a shorter name" in last
    assert f"got '{long}' (AF_UNIX path too long; set TMPDIR=/tmp" in last
    assert list(long.iterdir()) == []


def test_workers_vanish_with_a_master_that_forgets_to_close(tmp_path: Path) -> None:
    with master(tmp_path, "forgets") as process:
        assert len(worker_pids(process)) == WORKERS
        assert process.wait(PATIENCE_S) == 0
        nothing_runs_in(process.pid)


BROKEN_OFF = """
import os
import socket
from multiprocessing import forkserver
from seqgc.backends import start_fork_server

start_fork_server([])
for first in (b"", b"\\x80\\x04"):
    sentinel, start = forkserver.connect_to_new_process([])
    os.write(start, first)
    os.close(start)
    os.read(sentinel, 1)  # until the process has ended

address = forkserver._forkserver._forkserver_address
server = os.pidfd_open(forkserver._forkserver._forkserver_pid)
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(address)
os.waitid(os.P_PIDFD, server, os.WEXITED)
"""


def test_a_worker_whose_start_is_broken_off_says_nothing(temporary: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BROKEN_OFF],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert ended.stderr == ""


ENDED = """
import os
import signal
import socket
from multiprocessing import forkserver
from seqgc.backends import start_fork_server

start_fork_server([])
asked = socket.socket(socket.AF_UNIX)
asked.connect(forkserver._forkserver._forkserver_address)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_master_that_is_killed_while_it_asks_for_a_worker_vanishes(
    temporary: Path,
) -> None:
    # It returns when nobody has the standard error any more.
    ended = subprocess.run(
        [sys.executable, "-c", ENDED],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, "")
    eventually(lambda: not list(temporary.iterdir()), "the end of the folder")

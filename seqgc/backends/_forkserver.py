"""The process that workers are forked from: it imports what they need once, and computes nothing.

Forking it is quick, and shares its memory; forking the master would hang workers as soon as the
master has run a torch operation. It is multiprocessing's own fork server: one per master process,
started with the first worker, gone when the master and all workers are. Should other code of the
master's have started it before, its environment and preloaded modules are that code's.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_context, resource_tracker, util
from pathlib import Path
from types import ModuleType

from seqgc.backends import _leftovers

__all__ = ["CONTEXT", "ensure_running", "main_script_hidden", "set_preload", "start_fork_server"]

CONTEXT = get_context("forkserver")

# One thread per worker: with two, BLAS is 10 to 50 times slower when workers outnumber the cores.
_ONE_THREAD = {
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}


def set_preload(modules: Sequence[str]) -> None:
    """Name what the fork server imports when it starts; if it runs already, workers import it."""
    own = (_leftovers.__name__, "seqgc.backends._child")
    CONTEXT.set_forkserver_preload([*own, *modules])


def start_fork_server(preload: Sequence[str]) -> None:
    """Let the fork server import ``preload`` from now on, beside the master, unless it runs."""
    set_preload(preload)
    ensure_running()


def ensure_running() -> None:
    """Start the fork server unless it runs: single-threaded BLAS, deaf to Ctrl-C.

    Environment and signal mask are what workers inherit, so they never see a Ctrl-C, not even while
    they start; the master's own are as before when this returns.
    """
    # First, because starting it unblocks SIGINT (CPython's resource_tracker.py, ensure_running).
    resource_tracker.ensure_running()
    # The folder of its socket; an earlier fork server may have taken it along (see `_leftovers`).
    folder = {_leftovers.FOLDER: util.get_temp_dir()}
    Path(folder[_leftovers.FOLDER]).mkdir(mode=0o700, exist_ok=True)
    with _environment(_ONE_THREAD | folder), _blocked(signal.SIGINT):
        forkserver.ensure_running()


@contextmanager
def main_script_hidden() -> Iterator[None]:
    """Keep processes started meanwhile from running the master's script once more.

    multiprocessing has every child import the parent's ``__main__``, for what may be defined there:
    slow, once per worker, and fatal for a script without ``if __name__ == "__main__"``.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

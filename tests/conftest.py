"""What every test shares: reproducible examples, recorded profiles, and nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from seqgc.backends import start_fork_server
from seqgc.codes import code_class, code_kinds, forget_code
from seqgc.schemes import forget_scheme, registered
from seqgc.testing import eventually
from tests.kit import children

# The same examples in every run; `--hypothesis-profile explore` looks for new ones.
settings.register_profile(
    "fixed", deadline=None, derandomize=True, max_examples=50, print_blob=True
)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("fixed")

# Without this, the first progress bar starts a thread that stays. `torch.fx` makes one if it can.
with suppress(ImportError):
    from tqdm import tqdm

    tqdm.monitor_interval = 0

# No test asks AWS for its prices; those of the price list name a stand-in.
os.environ["SEQGC_PRICE_LIST"] = ""

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "profiles"
GRACE_S = 5.0  # for what a test stopped but did not wait for


def pytest_collection_finish() -> None:
    """Have one fork server for all tests of a process that import PyTorch, and start it now.

    A process has one. If the first test that needs it asks for nothing to be imported there, then
    every worker of every later run imports PyTorch by itself, which takes a second of each.
    """
    if "seqgc.training" in sys.modules:
        start_fork_server(["seqgc.training"])


@pytest.fixture(scope="session")
def recorded_profiles() -> Path:
    """The folder of recorded delay profiles; without it the test is skipped."""
    if not RECORDED.is_dir():
        pytest.skip("no recorded delay profiles in ../shared/profiles")
    return RECORDED


@pytest.fixture
def plugins_are_forgotten() -> Iterator[None]:
    """Forget, after the test, the schemes and codes that it or a plug-in of it registers."""
    schemes, codes, modules = set(registered()), set(code_kinds()), set(sys.modules)
    yield
    brought = set[str]()
    for kind in set(code_kinds()) - codes:  # and with each its name as a scheme
        brought.add(code_class(kind).__module__)
        forget_code(kind)
    for name in registered().keys() - schemes:
        brought.add(registered()[name].kind.__module__)
        forget_scheme(name)
    for module in brought - modules:
        sys.modules.pop(module, None)  # imported again, it registers again


# ---- no process or thread stays behind ----------------------------------------------------------


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Yield live children and their commands, for multiprocessing's helpers their own children.

    The helpers (resource tracker, also loky's, fork server) live as long as the interpreter.
    """
    for child in children(pid):
        with suppress(OSError):
            command = _command(child)
            if "multiprocessing.forkserver" in command:
                yield from ((worker, "forked by the fork server") for worker in children(child))
            elif ".resource_tracker" not in command and not _is_zombie(child):
                yield child, command


def _alive() -> dict[str, str]:
    """Everything that runs beside the main thread: identity → description.

    The daemon threads of a Lambda transport are left out: they outlive it until their calls end. So
    is the thread in which dask serialises large messages: it lasts as long as the process.
    """
    threads = {
        f"thread {t.ident}": t.name
        for t in threading.enumerate()
        if not (t.daemon and t.name.startswith(("seqgc-lambda-", "Dask-Offload")))
    }
    managed = {f"process {p.pid}": p.name for p in multiprocessing.active_children()}
    return {f"process {pid}": what for pid, what in _descendants(os.getpid())} | managed | threads


def _check_nothing_left(before: dict[str, str]) -> None:
    left: dict[str, str] = {}

    def nothing_is_left() -> bool:
        left.clear()
        left.update((key, what) for key, what in _alive().items() if key not in before)
        return not left

    try:
        eventually(nothing_is_left, "the end of everything", within_s=GRACE_S)
    except AssertionError:
        pytest.fail("left behind: " + "; ".join(f"{k} ({w})" for k, w in left.items()))


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test after which a process or thread runs that did not run before it."""
    before = _alive()
    yield
    _check_nothing_left(before)


@pytest.fixture(autouse=True, scope="session")
def nothing_outlives_the_session() -> Iterator[None]:
    """The same for what wider fixtures started."""
    before = _alive()
    yield
    _check_nothing_left(before)


@pytest.fixture
def traced() -> Iterator[None]:
    """Let `tests.census.Census` know what this process allocates."""
    tracemalloc.start(1)
    yield
    tracemalloc.stop()

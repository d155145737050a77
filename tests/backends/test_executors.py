"""A pool of `concurrent.futures` is a backend, whoever made it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from seqgc import workers
from seqgc.backends import ExecutorBackend
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Arrival, Backend, Capability, Failure
from seqgc.testing import BackendContract, Scripted
from seqgc.testing.scripted import next_event, task
from seqgc.training import TrainingPlan, train
from seqgc.workers import WorkerSet
from tests.kit import children
from tests.training.reference import make_model

PROCESSES = 4


def _wait_for_all(barrier: Any) -> None:
    barrier.wait(60)


def warm(pool: Executor) -> Executor:
    """Start all processes of a pool, so that no test does."""
    with multiprocessing.Manager() as manager:
        barrier = manager.Barrier(PROCESSES)
        for call in [pool.submit(_wait_for_all, barrier) for _ in range(PROCESSES)]:
            call.result()
    return pool


@pytest.fixture(scope="module")
def process_pool() -> Iterator[Executor]:
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        yield warm(pool)


@pytest.fixture(scope="module")
def loky_pool() -> Iterator[Executor]:
    loky = pytest.importorskip("loky")
    with loky.ProcessPoolExecutor(PROCESSES) as pool:
        yield warm(pool)


@pytest.fixture(scope="module")
def ray_pool() -> Iterator[Executor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token to the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray = pytest.importorskip("ray")
        from examples.ray_pool import RayPool

        ray.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
        try:
            yield RayPool()
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def lithops_pool() -> Iterator[Executor]:
    lithops = pytest.importorskip("lithops")
    from examples.lithops_pool import LithopsPool

    config = {
        "lithops": {
            "backend": "localhost",
            "storage": "localhost",
            "telemetry": False,
            "data_cleaner": False,
        },
        "localhost": {"runtime": sys.executable, "worker_processes": PROCESSES},
    }
    with lithops.FunctionExecutor(config=config) as functions:
        with LithopsPool(functions, most=PROCESSES) as pool:
            yield pool
        functions.clean()
    for child in children(os.getpid()):  # else its cleaner may outlive the session
        if b"lithops.scripts.cleaner" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGTERM)


class TestProcessPool(BackendContract):
    @pytest.fixture
    def factory(self, process_pool: Executor) -> Callable[..., Backend]:
        return partial(ExecutorBackend, pool=process_pool)


class TestLoky(BackendContract):
    @pytest.fixture
    def factory(self, loky_pool: Executor) -> Callable[..., Backend]:
        return partial(ExecutorBackend, pool=loky_pool)


class TestRay(BackendContract):
    @pytest.fixture
    def factory(self, ray_pool: Executor) -> Callable[..., Backend]:
        return partial(ExecutorBackend, pool=ray_pool)

    @pytest.fixture(autouse=True)
    def nothing_is_left_behind(self) -> None:
        """Ray starts and ends its processes when it likes."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of its cleaner
class TestLithops(BackendContract):
    @pytest.fixture
    def factory(self, lithops_pool: Executor) -> Callable[..., Backend]:
        return partial(ExecutorBackend, pool=lithops_pool, stays=False)

    @pytest.fixture(autouse=True)
    def nothing_is_left_behind(self) -> None:
        """Lithops ends its processes when it likes."""


# ---- what the contract does not ask --------------------------------------------------------------


def end_process(_: object) -> None:
    os._exit(3)


def test_a_broken_pool_is_a_failure_of_every_task_in_one_line(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as pool:
        backend = ExecutorBackend(2, Scripted(folder=tmp_path), pool=pool)
        backend.dispatch(0, [task(0, 0, "gate a"), task(0, 1)])
        pool.submit(end_process, None)
        (tmp_path / "go a").touch()
        events = [next_event(backend) for _ in range(2)]
        backend.dispatch(1, [task(1, 0)])
        events.append(next_event(backend))
        backend.close()
    failures = [event for event in events if isinstance(event, Failure)]
    assert failures
    assert failures[-1].round == 1
    assert all(each.final and "\n" not in each.reason for each in failures)
    assert "BrokenProcessPool" in failures[-1].reason


def test_a_function_gives_a_new_pool_when_the_old_one_breaks(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pools = list[Executor]()

        def pool() -> Executor:
            pools.append(stack.enter_context(ProcessPoolExecutor(1)))
            return pools[-1]

        backend = stack.enter_context(ExecutorBackend(1, Scripted(folder=tmp_path), pool=pool))
        pools[0].submit(end_process, None)
        for attempt in range(20):
            backend.dispatch(0, [task(0, 0, attempt=attempt)])
            if isinstance(event := next_event(backend), Arrival):
                break
            assert isinstance(event, Failure)
            assert not event.final
        assert attempt > 0
        assert len(pools) == 2


def test_threads_of_this_process_are_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ParameterError, match=r"pool.*ThreadPool"):
        ExecutorBackend(1, Scripted(folder=tmp_path), pool=pool)
    with pytest.raises(ParameterError, match=r"pool.*'int'"):
        workers.executor(3, 2)


def test_a_pool_that_is_busy_or_cannot_make_the_computation_is_named(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(WorkerError, match="ZeroDivisionError"):
            ExecutorBackend(1, partial(divmod, 1, 0), pool=pool)
        busy = pool.submit(_wait_for_file, tmp_path / "go")
        with pytest.raises(WorkerError, match=r"within 0\.2 s"):
            ExecutorBackend(1, Scripted(folder=tmp_path), pool=pool, start_timeout_s=0.2)
        (tmp_path / "go").touch()
        busy.result()


def _wait_for_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("stays", [True, False])
def test_a_model_is_trained_in_a_pool_to_the_weights_of_local_workers(
    stays: bool, process_pool: Executor, tmp_path: Path
) -> None:
    plan = TrainingPlan(models=[make_model()], scheme="gc-rep:s=1", steps=3, vectorize=1)
    pool = workers.executor(process_pool, 2, stays=stays)
    with workers.local(2) as local, pool:
        one, other = (
            train(plan, each, run=tmp_path / each.provider).modules["net"].state_dict()
            for each in (local, pool)
        )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_table_of_abilities_is_that_of_the_code() -> None:
    pool = ThreadPoolExecutor(1)
    kinds: dict[str, WorkerSet] = {
        "workers.local(n)": workers.local(2),
        "workers.dask(n)": workers.dask(2),
        "workers.dask(n, scheduler=...)": workers.dask(2, scheduler="tcp://here:1"),
        "workers.executor(pool, n)": workers.executor(pool, 2),
        "workers.executor(pool, n, stays=False)": workers.executor(pool, 2, stays=False),
        "workers.functions(n)": workers.undeployed(2),
        "workers.functions(n), resident": workers.undeployed(
            2, workers.FunctionSettings(resident=True)
        ),
    }
    page = (Path(__file__).parents[2] / "docs" / "workers.md").read_text(encoding="utf-8")
    abilities = get_args(Capability)
    rows = [f"| workers | {' | '.join(f'`{each}`' for each in abilities)} |"]
    rows.append("|" + "---|" * (1 + len(abilities)))
    for name, kind in kinds.items():
        code, _, more = name.partition("), ")
        shown = f"`{code})`, {more}" if more else f"`{name}`"
        marks = ("yes" if each in kind.can else "" for each in abilities)
        rows.append(f"| {shown} | {' | '.join(marks)} |")
    table = "\n".join(rows)
    assert table in page, f"docs/workers.md must have this table:\n{table}"

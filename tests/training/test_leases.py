"""Functions that stay, as a run and its budget see them: each run's own, and what they came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.costs import Budget, FunctionSetup, Meter, Usage, estimate_run, read_prices
from seqgc.errors import BudgetError
from seqgc.ports import Backend, Leases
from seqgc.runs.journal import read_journal
from seqgc.training import Crew, TrainingPlan, Work, resume, train
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed

N = 2
FUNCTION = FunctionSetup(memory_mb=1024, timeout_s=150.0)
PRICES = read_prices()
LEASE_USD, ENDED_USD = (
    PRICES.bill(Usage(requests=1, gb_seconds=seconds), architecture="arm64").usd
    for seconds in (FUNCTION.longest_s, 10.0)
)


class Staying:
    """Workers whose functions stay, or would if they were not replayed, for 10 s each."""

    n, provider = N, "staying"

    def __init__(self) -> None:
        times = np.random.default_rng(0).uniform(0.1, 0.2, size=(20, N))
        self._crew = workers.custom(N, replayed(times))
        self.leases: list[Leases] = []

    def check(self, work: Work) -> None:
        self._crew.check(work)

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        leases = Leases(longest_s=FUNCTION.longest_s)
        self.leases.append(leases)
        with self._crew.open(work) as crew:
            start = partial(_started, crew.start, leases)
            yield Crew(start=start, store=crew.store, leases=leases)


def _started(start: Callable[[], Backend], leases: Leases) -> Backend:
    for tag in range(N):
        leases.admit()
        leases.begin(tag, at=0.0)
    backend = start()
    close = backend.close

    def closing() -> None:
        close()
        for tag in range(N):
            leases.end(tag, at=10.0)

    backend.close = closing  # type: ignore[method-assign]
    return backend


def limited(max_usd: float) -> Budget:
    meter = Meter(function=FUNCTION, resident=True)
    return Budget(max_usd, meter=meter, prices=PRICES, architecture="arm64")


def plan() -> TrainingPlan:
    return TrainingPlan(models=[make_model("m")], scheme="gc:s=1", steps=1)


def test_two_runs_on_the_same_workers_have_budgets_of_their_own(tmp_path: Path) -> None:
    crew = Staying()
    first, second = (limited(2.5 * LEASE_USD) for _ in range(2))
    for name, budget in (("first", first), ("second", second)):
        train(plan(), crew, run=tmp_path / name, observers=[budget])
        assert budget.committed_usd == pytest.approx(N * ENDED_USD)
    train(plan(), crew, run=tmp_path / "free")  # nobody's budget keeps its functions out
    with pytest.raises(BudgetError, match="stopped before another resident function"):
        train(plan(), crew, run=tmp_path / "dear", observers=[limited(LEASE_USD)])
    assert [leases.count for leases in crew.leases] == [N, N, N, 1]


def test_a_resumed_run_is_charged_what_its_functions_came_to_and_no_leases(tmp_path: Path) -> None:
    run, crew = tmp_path / "run", Staying()
    train(plan(), crew, run=run, observers=[limited(1.0)])
    entries, _ = read_journal(run / "journal.jsonl")
    assert entries[-1].fields["memories"]["Budget"]["open_usd"] == 0.0
    again = limited(1.0)
    resume(run, plan(), crew, observers=[again])
    assert again.committed_usd == pytest.approx(2 * N * ENDED_USD)
    bill = estimate_run(run, function=FUNCTION, resident=True)
    assert bill.likely == bill.at_most == Usage(requests=2 * N, gb_seconds=2 * N * 10.0)

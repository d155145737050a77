"""Workers that share a store with the master, and a budget: the run's side of both."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqgc import workers
from seqgc.backends import LocalBackend, Messaging
from seqgc.costs import Budget, FunctionSetup, Meter, read_prices
from seqgc.errors import BudgetError
from seqgc.ports import Backend, Dispatch, Observer, Seen
from seqgc.stores import DirectoryStore
from seqgc.training import Crew, Model, TrainingPlan, Work, train

GENERATOR = torch.Generator().manual_seed(0)
POINTS = torch.utils.data.TensorDataset(
    torch.randn(12, 3, generator=GENERATOR), torch.randn(12, 1, generator=GENERATOR)
)


def model() -> Model:
    module = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(module.weight, 0.5)
    torch.nn.init.zeros_(module.bias)
    return Model(
        name="line",
        module=module,
        loss=torch.nn.MSELoss(),
        dataset=POINTS,
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        batch_size=6,
    )


class Remote:
    """Workers that share a store with the master, and that nobody can call back."""

    n, provider = 2, "remote"

    def __init__(self, store: DirectoryStore, *, grace_s: float) -> None:
        self._store, self._grace_s = store, grace_s

    def check(self, work: Work) -> None:
        assert work.precision == "float64"

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        def start() -> Backend:
            factory = work.compute_factory(self._store)
            return LocalBackend(
                self.n, factory, messaging=Messaging(run_id="remote"), preload=("seqgc.training",)
            )

        yield Crew(start=start, store=self._store, grace_s=self._grace_s)


def plan(*, scheme: str, steps: int) -> TrainingPlan:
    return TrainingPlan(models=[model()], scheme=scheme, steps=steps, precision="float64")


def train_here(run: Path, *, scheme: str, steps: int, observers: Sequence[Observer] = ()) -> None:
    with workers.local(2) as w:
        train(plan(scheme=scheme, steps=steps), w, run=run, observers=observers)


def trained(run: Path) -> torch.Tensor:
    tensors = load_file(run / "checkpoints" / "line.safetensors")
    return torch.cat([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize(("grace_s", "kept"), [(0.0, 1), (1000.0, 4)])
def test_old_weights_are_kept_for_stragglers_and_gone_at_the_end(
    tmp_path: Path, grace_s: float, kept: int
) -> None:
    shared = tmp_path / "shared"
    files: list[int] = []

    def count(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            files.append(len(list(shared.glob("*.npy"))))

    given = Remote(DirectoryStore(shared), grace_s=grace_s)
    steps = plan(scheme="gc:s=1", steps=5)
    result = train(steps, given, run=tmp_path / "run", observers=[count])
    assert result.jobs == 5
    assert max(files) == kept
    assert list(shared.glob("*.npy")) == []
    train_here(tmp_path / "local", scheme="gc:s=1", steps=5)
    torch.testing.assert_close(trained(tmp_path / "run"), trained(tmp_path / "local"))


def test_a_budget_ends_a_run_with_what_it_has_trained(tmp_path: Path) -> None:
    # A round costs at most 2 * 20 s (10 of them a cold start) * 1 GB * $0.0000133334
    # + 2 * $0.0000002 = $0.000533736.
    meter = Meter(function=FunctionSetup(memory_mb=1024, timeout_s=10.0))
    prices = read_prices("us-east-1")
    budget = Budget(0.0005339, meter=meter, prices=prices, architecture="arm64")
    run = tmp_path / "run"
    with pytest.raises(BudgetError, match="stopped before round 1, which") as stopped:
        train_here(run, scheme="gc:s=0", steps=3, observers=[budget])
    assert 0 < stopped.value.spent_usd < 0.0005339
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "dispatch"] == [0]
    assert events[-1]["outcome"] == f"stopped: {stopped.value}"
    train_here(tmp_path / "one", scheme="gc:s=0", steps=1)
    torch.testing.assert_close(trained(run), trained(tmp_path / "one"))

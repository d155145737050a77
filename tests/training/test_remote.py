"""Workers that share a store with the master, and a budget: the run's side of both."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqgc.backends import LocalBackend
from seqgc.cost import Budget, FunctionSetup, PriceModel, Traffic, read_prices
from seqgc.errors import BudgetError, ParameterError
from seqgc.ports import Action, Backend, Dispatch, Event
from seqgc.schemes import GC
from seqgc.stores import DirectoryStore
from seqgc.training import Model, Remote, TorchComputeFactory, train

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


def remote(store: DirectoryStore, *, grace_s: float) -> Remote:
    def open_workers(n: int) -> Backend:
        factory = TorchComputeFactory(models=[model()], store=store, precision="float64")
        return LocalBackend(n, factory, run_id="remote", preload=("seqgc.training",))

    return Remote(open=open_workers, store=store, grace_s=grace_s)


def trained(run: Path) -> torch.Tensor:
    tensors = load_file(run / "checkpoints" / "line.safetensors")
    return torch.cat([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize(("grace_s", "kept"), [(0.0, 1), (1000.0, 4)])
def test_old_weights_are_kept_for_stragglers_and_gone_at_the_end(
    tmp_path: Path, grace_s: float, kept: int
) -> None:
    shared = tmp_path / "shared"
    files: list[int] = []

    def count(seen: Event | Action) -> None:
        if isinstance(seen, Dispatch):
            files.append(len(list(shared.glob("*.npy"))))

    result = train(
        [model()],
        scheme=GC(n=2, s=1),
        steps=5,
        run=tmp_path / "run",
        precision="float64",
        remote=remote(DirectoryStore(shared), grace_s=grace_s),
        observe=count,
    )
    assert result.jobs == 5
    assert max(files) == kept
    assert list(shared.glob("*.npy")) == []
    train([model()], scheme=GC(n=2, s=1), steps=5, run=tmp_path / "local", precision="float64")
    torch.testing.assert_close(trained(tmp_path / "run"), trained(tmp_path / "local"))


def test_a_run_has_one_kind_of_workers(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="`backend` must be left out"):
        train(
            [model()],
            scheme=GC(n=2, s=1),
            steps=1,
            run=tmp_path / "run",
            backend=LocalBackend,
            remote=remote(DirectoryStore(tmp_path / "shared"), grace_s=0.0),
        )
    assert not (tmp_path / "run").exists()


def test_a_budget_ends_a_run_with_what_it_has_trained(tmp_path: Path) -> None:
    # A round costs at most 2 * 20 s (10 of them a cold start) * 1 GB * $0.0000133334
    # + 2 * $0.0000002 = $0.000533736.
    prices = PriceModel(
        read_prices("us-east-1"),
        architecture="arm64",
        function=FunctionSetup(memory_mb=1024, timeout_s=10.0),
        traffic=Traffic(where="inline", weights_bytes=0, result_bytes=0),
    )
    run = tmp_path / "run"
    with pytest.raises(BudgetError, match="stopped before round 1: ") as stopped:
        train(
            [model()],
            scheme=GC(n=2, s=0),
            steps=3,
            run=run,
            precision="float64",
            budget=Budget(0.0005339, model=prices),
        )
    assert 0 < stopped.value.spent_usd < 0.0005339
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "dispatch"] == [0]
    assert events[-1]["outcome"] == f"stopped: {stopped.value}"
    train([model()], scheme=GC(n=2, s=0), steps=1, run=tmp_path / "one", precision="float64")
    torch.testing.assert_close(trained(run), trained(tmp_path / "one"))

"""A user's own loop gets the gradients of a plain backward pass, from workers."""

from __future__ import annotations

import copy
import difflib
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc import gradients, read_run, workers
from seqgc.errors import ModelError, ParameterError
from seqgc.ports import Arrival, Seen
from seqgc.training import Dropout, Workers, dropout_masks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCHEMES = ["uncoded", "gc:s=1", "deal", "bsp", "lb-bsp"]


@pytest.fixture(scope="module")
def crew() -> Iterator[Workers]:
    with workers.local(2) as crew:
        yield crew


@pytest.fixture
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((60, 5), generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(3, (60,), generator=generator))


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def same(one: nn.Module, other: nn.Module) -> None:
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-12)


def test_a_plain_loop_becomes_a_coded_one_by_a_diff_of_8_lines() -> None:
    files = [EXAMPLES / name for name in ("loop_plain.py", "loop_coded.py")]
    texts = [path.read_text(encoding="utf-8").splitlines() for path in files]
    changes = [line for line in difflib.ndiff(*texts) if line[0] in "+-"]
    assert len(changes) <= 8
    plain, coded = (runpy.run_path(str(path)) for path in files)
    assert coded["g"].counts.rounds == 20
    same(plain["model"], coded["model"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_are_added_as_by_torch(scheme: str, crew: Workers, data: TensorDataset) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double())
    plain, coded = net(), net()
    for model in (plain, coded):
        model[0].bias.requires_grad_(False)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (plain, coded)]
    x, y = data.tensors
    with gradients(coded, loss, data, workers=crew, scheme=scheme) as g:
        for step in range(4):
            for optimizer in optimizers:
                optimizer.zero_grad()
            for indices in ([step], [5, 9, 9, step, 31]):  # accumulated, of unlike sizes
                value = loss(plain(x[indices]), y[indices])
                (0.5 * value).backward()
                torch.testing.assert_close(g.backward(indices, scale=0.5), value.detach())
            for optimizer in optimizers:
                optimizer.step()
        assert g.counts.rounds == 8
    same(plain, coded)
    assert coded[0].bias.grad is None


def test_a_loop_says_how_far_it_is(crew: Workers, data: TensorDataset) -> None:
    with gradients(net(), nn.CrossEntropyLoss(), data, workers=crew, scheme="gc:s=1") as g:
        assert repr(g).startswith("<Gradients: scheme gc:s=1; workers 2; rounds 0;")
        g.backward(range(8))
        assert "; rounds 1;" in repr(g)


def test_several_models_share_a_job(crew: Workers, data: TensorDataset) -> None:
    models, x, y = [net(1), nn.Linear(5, 3).double()], *data.tensors
    twins, loss = copy.deepcopy(models), nn.CrossEntropyLoss()
    with gradients(models, loss, data, workers=crew, scheme="gc-rep:s=1") as g:
        values = g.backward(torch.arange(20))
        assert g.counts.rounds == 1
    for model, twin, value in zip(models, twins, values, strict=True):
        mean = loss(twin(x[:20]), y[:20])
        mean.backward()
        torch.testing.assert_close(value, mean.detach())
        same(model, twin)


def test_dropout_has_the_masks_of_its_points(crew: Workers, data: TensorDataset) -> None:
    coded, loss, x = nn.Sequential(net(), Dropout(0.5)), nn.MSELoss(), data.tensors[0]
    plain, targets = copy.deepcopy(coded), TensorDataset(x, x[:, :3])
    points = np.array([7, 60 + 7, 120 + 3])  # two items, in epochs 0, 1 and 2
    with gradients(coded, loss, targets, workers=crew, scheme="gc-rep:s=1", seed=4) as g:
        g.backward(points)
    with dropout_masks(plain, points, seed=4):
        loss(plain(x[points % 60]), x[points % 60, :3]).backward()
    same(plain, coded)


def test_what_would_differ_from_torch_in_silence_is_refused(
    crew: Workers, data: TensorDataset
) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(3).double().eval())
    model[1].running_mean += 1
    loss = nn.CrossEntropyLoss()
    with pytest.warns(UserWarning, match="BatchNorm1d"):
        g = gradients(model, loss, data, workers=crew, scheme="uncoded", batch_size=9)
    with g:
        g.backward([0])

        def refuses(what: str, indices: Any = (0,)) -> None:
            before = [p.grad.clone() for p in model.parameters()]
            with pytest.raises(ParameterError, match=what):
                g.backward(indices)
            grads = [p.grad for p in model.parameters()]
            assert all(map(torch.equal, before, grads))

        model[0].eval()
        refuses("mode.*'0'")
        model[0].train()
        model[1].running_mean += 1
        refuses("running_mean")
        model[1].running_mean -= 1
        model[0][0].weight.requires_grad_(False)
        refuses("its parameters")
        model[0][0].weight.requires_grad_(True)
        for indices in ([], [-1], [60], [0.5], [[1]], range(10)):
            refuses("indices", indices)
        with pytest.raises(ParameterError, match="scale"):
            g.backward([0], scale=float("nan"))
        g.backward([0])
    with pytest.raises(ParameterError, match="closed"):
        g.backward([0])


class Scaled(nn.Module):
    """A model with a scale, a mask that is no buffer, and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale, self.mask = net(), 1.0, torch.ones(3, dtype=torch.float64)
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = self.net(x) * self.mask
        return self.cache * self.scale


def test_what_workers_have_a_copy_of_must_not_change(crew: Workers, data: TensorDataset) -> None:
    model, loss = Scaled(), nn.CrossEntropyLoss(weight=torch.ones(3).double())
    x, y = data.tensors
    with gradients(model, loss, data, workers=crew, scheme="uncoded") as g:
        for owner, name, other, what in (
            (model, "scale", 3.0, "'scale' of model"),
            (model, "mask", model.mask / 2, "'mask' of model"),
            (model.net, "1", nn.ReLU(), "submodule 'net.1'"),
            (model.net, "forward", lambda x: x[:, :3], "'forward' of submodule 'net'"),
            (loss, "label_smoothing", 0.5, "loss.*'label_smoothing'"),
            (loss, "weight", torch.arange(3).double(), "loss.*'_buffers'"),
            (data, "tensors", (x + 1, y), "data.*point"),
        ):
            before = getattr(owner, name)
            setattr(owner, name, other)
            with pytest.raises(ParameterError, match=what):
                g.backward([0])
            setattr(owner, name, before)
            vars(owner).pop("forward", None)
        with (
            model.net[0].register_forward_hook(lambda *args: 2 * args[-1]),
            pytest.raises(ParameterError, match=r"'_forward_hooks' of submodule 'net\.0'"),
        ):
            g.backward([0])
        with torch.autocast("cpu"), pytest.raises(ParameterError, match="autocast"):
            g.backward([0])
        weight = model.net[0].weight
        before = weight.data
        for other in (before.float(), before[:1]):
            weight.data = other
            with pytest.raises(ParameterError, match="its parameters"):
                g.backward([0])
        weight.data = before
        assert all(p.grad is None for p in model.parameters())
        model(x)  # as in a validation: the cache does not matter
        g.backward([0])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"scheme": "sr-sgc:B=1,W=2,lam=1"}, "scheme.*1 rounds later"),
        ({"scheme": "ssp:slack=1"}, "scheme.*stale"),
        ({"scheme": "gc-rep:s=2"}, "s"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "loss.*mean"),
        ({"loss": nn.functional.cross_entropy}, "loss.*one value for each"),
        ({"model": nn.Sequential(net(), nn.BatchNorm1d(3).double())}, "BatchNorm1d"),
        ({"model": nn.Sequential(net(), nn.Dropout())}, "Dropout"),
        ({"model": net().half()}, "float16"),
        ({"model": []}, "model"),
        ({"model": nn.Linear(5, 3, device="meta")}, "meta"),
        ({"batch_size": 61}, "batch_size"),
        ({"run": Path(__file__).parent}, "run"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else next(iter(value)),
)
def test_what_cannot_be_exact_is_refused_before_workers_start(
    changed: dict[str, Any], words: str, crew: Workers, data: TensorDataset
) -> None:
    usual = {"model": net(), "loss": nn.CrossEntropyLoss(), "data": data, "scheme": "uncoded"}
    with pytest.raises(ParameterError, match=words):
        gradients(workers=crew, **(usual | changed))


class Picky(nn.Module):
    """A layer that raises an error at an input of 100, and ends the first process at one of 200."""

    def __init__(self, ended: Path) -> None:
        super().__init__()
        self.ended = ended

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = float(x.detach().abs().max())
        if largest == 100:
            raise ValueError("too large")
        if largest == 200 and not self.ended.exists():
            self.ended.touch()
            os._exit(3)
        return x


class Rare:
    """Points of which only the last ones are unusual, between those that a check reads."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.data[index % 60]
        return {991: 100, 992: 200}.get(index, 1) * torch.ones_like(x) if index > 990 else x, y


def test_a_failed_call_changes_nothing_and_another_one_may_follow(
    crew: Workers, data: TensorDataset, tmp_path: Path
) -> None:
    (x, y), loss = data.tensors, nn.CrossEntropyLoss()
    model, twin = nn.Sequential(Picky(tmp_path / "ended"), net()), net()
    with gradients(model, loss, Rare(data), workers=crew, scheme="gc-rep:s=1") as g:
        with pytest.raises(ModelError, match="too large"):
            g.backward([0, 991])
        assert all(p.grad is None for p in model.parameters())
        value = g.backward([0, 1])
        model[1][0].weight.data[:] = torch.nan
        with pytest.raises(ModelError, match="not finite"):
            g.backward([0, 1])
    mean = loss(twin(x[:2]), y[:2])
    mean.backward()
    torch.testing.assert_close(value, mean.detach())
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-12)


def test_a_worker_that_dies_is_replaced(crew: Workers, data: TensorDataset, tmp_path: Path) -> None:
    model = nn.Sequential(Picky(tmp_path / "ended"), net())
    with gradients(model, nn.CrossEntropyLoss(), Rare(data), workers=crew, scheme="uncoded") as g:
        g.backward([0, 992])
        g.backward([0, 992])
    assert g.counts.failures == 1
    assert g.counts.rounds == 2


def test_its_rounds_can_be_read_as_a_run(
    crew: Workers, data: TensorDataset, tmp_path: Path
) -> None:
    with gradients(
        net(), nn.CrossEntropyLoss(), data, workers=crew, scheme="uncoded", run=tmp_path / "run"
    ) as g:
        for _ in range(3):
            g.backward(range(10))
    run = read_run(tmp_path / "run")
    assert (run.scheme, run.workers, run.outcome) == ("uncoded", 2, "finished")
    assert run.answers()["outcome"].tolist() == ["used"] * 6
    assert len(run.rounds()["duration_s"]) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_no_process_is_left_after_an_error(error: type[BaseException], data: TensorDataset) -> None:
    def stop(seen: Seen) -> None:
        if isinstance(seen, Arrival):
            raise error

    # `tests/conftest.py` looks for processes and threads after each test.
    with (
        pytest.raises(error),
        workers.local(2) as crew,
        gradients(
            net(), nn.CrossEntropyLoss(), data, workers=crew, scheme="uncoded", observers=[stop]
        ) as g,
    ):
        g.backward([0, 1])

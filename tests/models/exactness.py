"""Cases of the table "Exact or refused" in ``docs/training.md``, each under the text of its row.

A case that is `Exact` is trained by coded results of workers and by plain PyTorch, on the same
batches; one that is `Refused` or `Warned` says so before a run. To add a row to the table, add its
case to `CASES`: `tests/models/test_exactness.py` walks the rows.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import Dataset, TensorDataset, default_collate

from seqgc.errors import ParameterError
from seqgc.stores import DirectoryStore, MemoryStore
from seqgc.training import (
    Dropout,
    Model,
    TorchCompute,
    TorchComputeFactory,
    TorchWorkload,
    TrainingPlan,
    batch_indices,
    dropout_masks,
    evaluate,
)
from tests.training.reference import SGD, Chunks, flat, run_coded

STEPS, BATCH, POINTS = 4, 16, 40
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
BOTH = ("float64", "float32")
FLOAT32 = ("float32",)
SQUARES = nn.MSELoss()


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """A model as a user has it; ``options`` are further arguments of `Model`."""

    module: Callable[[], nn.Module]
    data: object = None
    loss: Callable[..., Tensor] = SQUARES
    optimizer: Callable[..., torch.optim.Optimizer] = SGD
    precisions: Sequence[str] = FLOAT32
    options: dict[str, Any] = field(default_factory=dict)

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The text of the table's second column."""

    @abstractmethod
    def check(self, folder: Path) -> None:
        """Fail if the verdict is not so; weights may be written to a folder."""

    def dataset(self) -> Any:
        return VECTORS if self.data is None else self.data

    def model(self, **more: Any) -> Model:
        torch.manual_seed(0)
        return Model(
            name="net",
            module=self.module(),
            loss=self.loss,
            dataset=self.dataset(),
            optimizer=self.optimizer,
            batch_size=BATCH,
            **self.options | more,
        )

    def start(self, precision: str) -> Model:
        """Do what is done before a run."""
        model = self.model()
        TorchWorkload([model], scheme=Chunks(), store=MemoryStore(), precision=precision)
        return model


class Exact(Case):
    """Weights after a few steps are those of plain PyTorch."""

    verdict = "exact"

    def check(self, folder: Path) -> None:
        for precision in self.precisions:
            dtype = getattr(torch, precision)
            expected = self.plain(dtype)
            module = self.coded(precision, DirectoryStore(folder / precision))
            weights, began = flat(expected), flat(self.model().module)
            error = np.abs(flat(module) - weights).max() / np.abs(weights).max()
            assert error < TOLERANCE[precision], precision
            assert np.abs(weights - began).max() > 1e-3, "nothing was learned"
            seen = evaluate(module, loss=self.loss, dataset=self.dataset()).loss
            mean = self.mean(expected.eval(), range(POINTS), dtype)
            assert seen == pytest.approx(mean.item(), rel=TOLERANCE[precision])

    def plain(self, dtype: torch.dtype) -> nn.Module:
        """Train without workers."""
        module = copy.deepcopy(self.model().module).to(dtype)
        optimizer = self.optimizer([p for p in module.parameters() if p.requires_grad])
        for step in range(STEPS):
            items = batch_indices(POINTS, batch_size=BATCH, seed=0, step=step)
            epochs = np.arange(step * BATCH, (step + 1) * BATCH) // POINTS
            for p in module.parameters():
                p.grad = None
            with dropout_masks(module, epochs * POINTS + items, seed=0):
                self.mean(module, items, dtype).backward()
            optimizer.step()
        return module

    def mean(self, module: nn.Module, points: Sequence[int], dtype: torch.dtype) -> Tensor:
        x, y = self.batch(points, dtype)
        loss = self.loss
        if isinstance(loss, nn.Module):  # which may have class weights
            loss = copy.deepcopy(loss).to(dtype)
        returned = loss(module(x), y)
        if isinstance(returned, tuple):  # values and weights
            return returned[0].sum() / returned[1].sum()
        return returned.mean()

    def batch(self, points: Sequence[int], dtype: torch.dtype) -> tuple[Any, Any]:
        items = [self.dataset()[int(point)] for point in points]
        x, y = (_cast(part, dtype) for part in default_collate(items))
        return x, y

    def coded(self, precision: str, store: DirectoryStore) -> nn.Module:
        """Train by random codes, with results of a compute function that was pickled."""
        model, scheme, threads = self.model(), Chunks(), torch.get_num_threads()
        workload = TorchWorkload([model], scheme=scheme, store=store, precision=precision)
        try:
            compute = TorchComputeFactory(models=[model], store=store, precision=precision)()
        finally:
            torch.set_num_threads(threads)
        on_functions = TorchCompute([model.objective], store=store, precision=precision)

        def both(parts: tuple[Any, ...]) -> Any:
            result = compute(parts)
            np.testing.assert_array_equal(result, on_functions(parts))
            return result

        run_coded(workload, both, jobs=STEPS, scheme=scheme)
        return workload.module("net")


@dataclass(frozen=True, kw_only=True)
class Refused(Case):
    """Raised before a run, in one line that matches ``says``."""

    says: str
    verdict = "refused"

    def check(self, folder: Path) -> None:  # noqa: ARG002 (nothing is written)
        for precision in self.precisions:
            with pytest.raises(ParameterError, match=self.says) as caught:
                self.start(precision)
            assert "\n" not in str(caught.value)
            assert caught.value.remedy


@dataclass(frozen=True, kw_only=True)
class Warned(Case):
    """Told before a run, in one line that matches ``says``; float64 needs no warning."""

    says: str
    verdict = "warned"

    def check(self, folder: Path) -> None:  # noqa: ARG002 (nothing is written)
        for precision, count in (("float32", 1), ("float64", 0)):
            plan = TrainingPlan(
                models=[self.start(precision)], scheme="uncoded", steps=1, precision=precision
            )
            warnings = plan.on(2).shortcomings()
            assert len(warnings) == count
            for warning in warnings:
                assert re.search(self.says, warning), warning
                assert "\n" not in warning


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a batch of nested values, its floating-point numbers in a dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _cast(each, dtype) for key, each in value.items()}
    parts = [_cast(each, dtype) for each in value]
    return type(value)(*parts) if isinstance(value, Pair) else parts


# ---- data and modules ----------------------------------------------------------------------------

_random = torch.Generator().manual_seed(0)
X, Y = torch.randn(POINTS, 4, generator=_random), torch.randn(POINTS, 2, generator=_random)
LABELS = torch.randint(4, (POINTS,), generator=_random)
WORDS = torch.randint(5, (POINTS, 6), generator=_random)
BYTES = torch.randint(256, (POINTS, 4), generator=_random, dtype=torch.uint8)
VECTORS = TensorDataset(X, Y)
SECONDS = 1_700_000_000.0
Pair = namedtuple("Pair", ["one", "other"])


class Net(nn.Module):
    """A module whose forward is a function of itself and its input."""

    def __init__(self, function: Callable[[Any, Any], object], **parts: nn.Module) -> None:
        super().__init__()
        self.function, self.last = function, nn.Linear(4, 2)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: object) -> object:
        return self.function(self, x)


def net(
    function: Callable[[Any, Any], object] = lambda m, x: m.last(x),
    **parts: Callable[[], nn.Module],
) -> Callable[[], nn.Module]:
    return lambda: Net(function, **{name: make() for name, make in parts.items()})


def of_words(**options: Any) -> Callable[[], nn.Module]:
    return net(lambda m, x: m.last(m.words(x).mean(1)), words=lambda: nn.Embedding(5, 4, **options))


def forces(m: Any, x: Tensor) -> Tensor:
    """Return the derivative of an energy with respect to the input."""
    x = x.clone().requires_grad_(True)
    energy = m.last(torch.tanh(m.hidden(x))).pow(2).sum()
    return torch.autograd.grad(energy, x, create_graph=True)[0][:, :2]


def with_module_hooks() -> nn.Module:
    module = Net(lambda m, x: m.last(m.hidden(x)), hidden=nn.Linear(4, 4))
    module.last.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    module.last.register_forward_hook(lambda _module, _args, output: 2 * output)
    module.last.register_full_backward_hook(lambda _module, inputs, _outputs: (3 * inputs[0],))
    return module


def with_parameter_hook() -> nn.Module:
    module = nn.Linear(4, 2)
    module.weight.register_hook(lambda gradient: 2 * gradient)
    return module


def partly_detached(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        fixed = m.hidden(x)
    return m.last(fixed) + m.last(x).detach()


def without_graph(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return m.last(x)


class UnitGradient(torch.autograd.Function):
    """The identity, whose backward pass makes the batch's gradient one of norm 1."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override] # noqa: ARG004
        return gradient / gradient.norm()


class Doubled(TensorDataset):
    """Tensors of which an item is more than a row."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, y = super().__getitem__(index)
        return 2 * x, y


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Data that differ from read to read."""

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index] + torch.randn(4), Y[index]


def other_parameters() -> Callable[..., torch.optim.Optimizer]:
    """Return a factory of optimizers for a module of its own."""
    own = nn.Linear(4, 2)
    return lambda _: torch.optim.SGD(own.parameters(), lr=0.1)


class Waves(nn.Linear):
    """A layer with a complex buffer."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("turn", torch.tensor(1j))


def nested(m: Any, x: dict[str, Any]) -> dict[str, object]:
    first, pair = x["first"], x["pair"]
    return {"one": m.last(first), "more": [m.last(pair.one + pair.other)]}


def nested_loss(output: dict[str, Any], target: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
    one, more = target[0], target[1]["more"]
    return ((output["one"] - one) ** 2).mean(1) + ((output["more"][0] - more) ** 2).mean(1)


NESTED = [
    ({"first": X[i], "pair": Pair(X[i], WORDS[i, :4])}, (Y[i], {"more": -Y[i]}))
    for i in range(POINTS)
]


def images(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), layer(), nn.Flatten(),
        nn.Linear(36, 2),
    )  # fmt: skip


def seen(layer: nn.Module) -> nn.Module:
    """Return a layer in eval mode, with statistics of data."""
    layer(torch.randn(8, 4, 3, 3) + 1)
    return layer.eval()


def sequences(module: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return net(lambda m, x: m.last(m.steps(x[..., None] * torch.ones(4))[0][:, -1]), steps=module)


def tied_by_data() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight.data = module[0].weight.data
    return module


def scripted() -> nn.Module:
    return torch.jit.script(nn.Linear(4, 2))


def weighted_by_hand(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    values = nn.functional.cross_entropy(output, target % 2, reduction="none")
    weights = (target % 5).to(values.dtype)
    return values * weights, weights


class Hardest(nn.CrossEntropyLoss):
    """A mean over the harder half of the points."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        values = nn.functional.cross_entropy(output, target, reduction="none")
        return values if self.reduction == "none" else values.topk(len(values) // 2).values.mean()


class Scaled(nn.MSELoss):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


# ---- the cases -----------------------------------------------------------------------------------

CASES: dict[str, Case] = {
    "GroupNorm, LayerNorm, InstanceNorm": Exact(
        module=images(lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4))),
        precisions=BOTH,
    ),
    "batch norm in eval mode, with statistics of data": Exact(
        module=images(lambda: seen(nn.BatchNorm2d(4))), precisions=BOTH
    ),
    "batch norm in training mode": Refused(
        module=images(lambda: nn.BatchNorm2d(4)), precisions=BOTH, says="each point on its own"
    ),
    "recurrent networks and attention, batch first": Exact(
        module=sequences(lambda: nn.LSTM(4, 4, batch_first=True)), precisions=BOTH
    ),
    "attention over the batch axis": Refused(
        module=net(
            lambda m, x: m.last(m.mix(x)),
            mix=lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        ),
        data=TensorDataset(X[:, None].expand(-1, 3, -1), Y[:, None].expand(-1, 3, -1)),
        says="batch_first=True",
    ),
    "a forward pass that fails on a batch of one point, e.g. `squeeze()`": Refused(
        module=net(lambda m, x: m.last(x.squeeze()).softmax(1)), says="a batch of one point"
    ),
    "a loss that compares the points of a batch": Refused(
        module=net(),
        loss=lambda o, y: ((o - o.mean(0) - y) ** 2).mean(1),
        says="compare the points",
    ),
    "`CrossEntropyLoss` with `ignore_index`, `weight`, `label_smoothing`": Exact(
        module=net(),
        data=TensorDataset(X, torch.where(LABELS == 3, -100, LABELS % 2)),
        loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), label_smoothing=0.1),
        precisions=BOTH,
    ),
    "the other losses of `torch.nn` with a mean over points": Exact(
        module=net(lambda m, x: m.last(x).log_softmax(1)),
        data=TensorDataset(X, LABELS[:, None].expand(-1, 2) / 10),
        loss=nn.KLDivLoss(reduction="batchmean"),
        precisions=BOTH,
    ),
    "a function that returns `(values, weights)`": Exact(
        module=net(),
        data=TensorDataset(X, LABELS),
        loss=weighted_by_hand,
        precisions=BOTH,
    ),
    "a subclass of a torch loss with another mean": Refused(
        module=net(), data=TensorDataset(X, LABELS % 2), loss=Hardest(), says="from Hardest"
    ),
    "`CTCLoss`": Refused(
        module=net(), loss=nn.CTCLoss(), says="must be a mean over the data points"
    ),
    "a loss with trainable parameters": Refused(
        module=net(), loss=Scaled(), says="must have no trainable parameters"
    ),
    'a loss that adds up its points, `reduction="sum"`': Refused(
        module=net(), loss=nn.MSELoss(reduction="sum"), says="must be a mean over the data points"
    ),
    "parameters that some batches, or all, do not use": Exact(
        module=net(unused=lambda: nn.Linear(3, 3)),
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        precisions=BOTH,
    ),
    "an optimizer of other parameters than the model's": Refused(
        module=net(), optimizer=other_parameters(), says="must hold only the parameters"
    ),
    "`seqgc.training.Dropout`": Exact(
        module=net(lambda m, x: m.last(m.drop(x)), drop=lambda: Dropout(0.4)), precisions=BOTH
    ),
    "`torch.nn.Dropout` in training mode, other random numbers in forward": Refused(
        module=net(lambda m, x: m.last(m.drop(x)), drop=lambda: nn.Dropout(0.1)),
        says="random numbers.*Dropout 'drop'",
    ),
    "data that differ from read to read": Refused(
        module=net(), data=Noisy(), says="AugmentedDataset"
    ),
    "nothing can be learned: forward under `no_grad`": Refused(
        module=net(without_graph), precisions=BOTH, says="no gradient reaches any"
    ),
    "nothing can be learned: a loss through numpy, `argmax` or `detach`": Refused(
        module=net(),
        loss=lambda o, y: torch.tensor((o.detach().numpy() - y.numpy()) ** 2),
        says="must be differentiable",
    ),
    "a part of the network under `no_grad`": Exact(
        module=net(partly_detached, hidden=lambda: nn.Linear(4, 4).requires_grad_(False)),
        precisions=BOTH,
    ),
    "`Embedding`, dense or sparse": Exact(
        module=of_words(sparse=True), data=TensorDataset(WORDS, Y), precisions=BOTH
    ),
    "`Embedding(max_norm=...)`": Refused(
        module=of_words(max_norm=100.0), data=TensorDataset(WORDS, Y), says="change its parameters"
    ),
    "another forward pass that changes parameters": Refused(
        module=net(
            lambda m, x: m.last(F.embedding(x, m.words.weight, max_norm=0.1).mean(1)),
            words=lambda: nn.Embedding(5, 4),
        ),
        data=TensorDataset(WORDS, Y),
        says=r"change its parameters.*words\.weight",
    ),
    "`Embedding(scale_grad_by_freq=True)`": Refused(
        module=of_words(scale_grad_by_freq=True),
        data=TensorDataset(WORDS, Y),
        precisions=BOTH,
        says="sum of its points' gradients.*Embedding 'words'",
    ),
    "a backward pass that normalises over the batch": Refused(
        module=net(lambda m, x: UnitGradient.apply(m.last(x))),
        precisions=BOTH,
        says="sum of its points' gradients",
    ),
    "hooks of modules": Exact(module=with_module_hooks, precisions=BOTH),
    "hooks on parameters": Refused(
        module=with_parameter_hook, precisions=BOTH, says="must have no hooks.*weight of model"
    ),
    "`x.float() / 255` of uint8 inputs": Exact(
        module=net(lambda m, x: m.last(x.float() / 255)), data=TensorDataset(BYTES, Y)
    ),
    "`one_hot(x).float()`, `torch.zeros(n, h)` in forward": Exact(
        module=net(lambda m, x: m.last(F.one_hot(x, 4).float()) + torch.zeros(len(x), 2)),
        data=TensorDataset(LABELS, Y),
    ),
    '`.float()` in forward with `precision="float64"`': Refused(
        module=net(lambda m, x: m.last(x.float() / 255)),
        data=TensorDataset(BYTES, Y),
        precisions=("float64",),
        says=r"must compute in float64.*in place of \.float\(\)",
    ),
    '`.double()` in forward with `precision="float32"`': Refused(
        module=net(lambda m, x: m.last(x.double())),
        says=r"must compute in float32.*in place of \.double\(\)",
    ),
    "a network that takes gradients in forward (forces, physics-informed)": Exact(
        module=net(forces, hidden=lambda: nn.Linear(4, 4)), precisions=BOTH
    ),
    "float64 inputs that float32 can tell apart": Exact(
        module=net(), data=TensorDataset(X.double() + 1e-9, Y.double()), precisions=BOTH
    ),
    "float64 inputs that become equal in float32": Refused(
        module=net(lambda m, x: m.last(x.expand(-1, 4))),
        data=TensorDataset(SECONDS + torch.arange(POINTS, dtype=torch.float64)[:, None], Y),
        says="16 different inputs become 1",
    ),
    "float64 inputs that lose over 0.1 % of their range in float32": Warned(
        module=net(),
        data=TensorDataset(
            torch.cat(
                [
                    X[:, :3].double(),
                    SECONDS + 600 * torch.arange(POINTS, dtype=torch.float64)[:, None],
                ],
                1,
            ),
            Y,
        ),
        says="inputs of model 'net' lose .* of their range .*precision='float64'",
    ),
    "integers beyond 2^24 that forward turns into float32": Warned(
        module=net(lambda m, x: m.last(x.to(m.last.weight.dtype))),
        data=TensorDataset(int(SECONDS) + 100 * BYTES.long(), Y),
        says="integers up to .* as float32.*precision='float64'",
    ),
    'a module in float64 with `precision="float32"`': Warned(
        module=lambda: nn.Linear(4, 2).double(), says="weight and 1 more of model 'net': rounded"
    ),
    "complex parameters or buffers": Refused(
        module=Waves, precisions=BOTH, says="must have real parameters and buffers.*turn"
    ),
    "dictionaries, tuples and lists as inputs, outputs and targets": Exact(
        module=net(nested), data=NESTED, loss=nested_loss, precisions=BOTH
    ),
    "items that are not pairs `(x, y)`": Refused(
        module=net(), data=TensorDataset(X, Y, Y), precisions=BOTH, says=r"pairs \(x, y\).*length 3"
    ),
    "items of different lengths": Refused(
        module=net(), data=[(X[i, : 1 + i % 3], Y[i]) for i in range(POINTS)], says="pad_sequence"
    ),
    "a subclass of `TensorDataset` with its own `__getitem__`": Exact(
        module=net(), data=Doubled(X, Y), precisions=BOTH
    ),
    "`parametrizations.weight_norm`, `parametrizations.orthogonal`": Exact(
        module=lambda: nn.Sequential(
            parametrizations.orthogonal(nn.Linear(4, 4)),
            nn.Tanh(),
            parametrizations.weight_norm(nn.Linear(4, 2)),
        ),
        precisions=BOTH,
    ),
    "`parametrizations.spectral_norm` in eval mode": Exact(
        module=lambda: parametrizations.spectral_norm(nn.Linear(4, 2)).eval(), precisions=BOTH
    ),
    "`spectral_norm` in training mode": Refused(
        module=lambda: parametrizations.spectral_norm(nn.Linear(4, 2)),
        precisions=BOTH,
        says="must not change from call to call.*spectral_norm",
    ),
    "`torch.nn.utils.weight_norm`, the old one": Refused(
        module=lambda: nn.utils.weight_norm(nn.Linear(4, 2)),
        precisions=BOTH,
        says=r"must not have an attribute.*parametrizations\.weight_norm",
    ),
    "scripted and traced modules": Refused(
        module=scripted, precisions=BOTH, says="must not be scripted or traced"
    ),
    "parameters tied by `.data`": Refused(
        module=tied_by_data, precisions=BOTH, says="same memory.*0.weight and 1.weight"
    ),
    '`device="meta"`': Refused(
        module=lambda: nn.Linear(4, 2, device="meta"), precisions=BOTH, says="`meta`.*weight"
    ),
    "`SparseAdam`": Refused(
        module=of_words(sparse=True),
        data=TensorDataset(WORDS, Y),
        optimizer=torch.optim.SparseAdam,
        says="must take dense gradients.*Adam",
    ),
    "`LBFGS`, which computes the loss again in each step": Refused(
        module=net(), optimizer=partial(torch.optim.LBFGS, lr=0.1), says="not from a closure"
    ),
}
"""By the text of a row's first column."""

"""Losses whose mean is not one over points, and parameters without a gradient: as in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Decoding, MiniTask, WeightedPoints, quantize, restore
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.stores import MemoryStore
from seqgc.training import (
    Model,
    ResultLayout,
    TorchCompute,
    TorchWorkload,
    batch_indices,
    evaluate,
)
from tests.training.reference import flat, make_model

N, STEPS, BATCH = 6, 4, 12
SPECS = ["gc:s=2", "uncoded", "m-sgc:B=1,W=2,lam=2", "gc-binary:s=3", "backup:b=0"]
CLASS_WEIGHTS = torch.tensor([0.3, 5.0, 1.0, 0.0])
Mean = Callable[[Tensor, Tensor], Tensor]


def classes(*shape: int, unset: float = 0.3, ignore: int = -100) -> TensorDataset:
    """Points of 5 numbers for each of their targets, which are one of 4 classes, or unset."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(4, (40, *shape), generator=generator)
    y[torch.rand(y.shape, generator=generator) < unset] = ignore
    return TensorDataset(torch.randn((40, *shape, 5), generator=generator), y)


def numbers(*, positive: bool = False) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    y = torch.randn((40, 4), generator=generator)
    y = y.softmax(1) if positive else y
    return TensorDataset(torch.randn((40, 5), generator=generator), y)


class Tokens(nn.Module):
    """A linear layer for each token, classes on axis 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).movedim(-1, 1)


class LogTokens(Tokens):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(1)


def token_pair(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(output, target, reduction="none"), target != -100


def own_mean(output: Tensor, target: Tensor) -> Tensor:
    values, weights = token_pair(output, target)
    return values.sum() / weights.sum()


class Focal(nn.CrossEntropyLoss):
    """A subclass that multiplies a loss, whatever the reduction."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return 2 * super().forward(output, target)


LOSSES: dict[str, tuple[object, TensorDataset, Mean | None]] = {
    "unset labels": (nn.CrossEntropyLoss(), classes(), None),
    "padded tokens": (nn.CrossEntropyLoss(), classes(7), None),
    "another ignore_index": (nn.CrossEntropyLoss(ignore_index=3), classes(unset=0), None),
    "class weights": (nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), classes(unset=0), None),
    "class weights of padded tokens": (nn.CrossEntropyLoss(CLASS_WEIGHTS), classes(3), None),
    "label smoothing": (
        nn.CrossEntropyLoss(CLASS_WEIGHTS, label_smoothing=0.2, ignore_index=2),
        classes(unset=0),
        None,
    ),
    "probabilities": (nn.CrossEntropyLoss(CLASS_WEIGHTS), numbers(positive=True), None),
    "negative log-likelihood": (nn.NLLLoss(CLASS_WEIGHTS, ignore_index=1), classes(unset=0), None),
    "pos_weight": (nn.BCEWithLogitsLoss(pos_weight=CLASS_WEIGHTS), numbers(positive=True), None),
    "weight of each output": (nn.BCEWithLogitsLoss(CLASS_WEIGHTS), numbers(positive=True), None),
    "mse": (nn.MSELoss(), numbers(), None),
    "l1": (nn.L1Loss(), numbers(), None),
    "huber": (nn.HuberLoss(delta=0.2), numbers(), None),
    "divergence, batchmean": (nn.KLDivLoss(reduction="batchmean"), numbers(positive=True), None),
    "divergence, mean": (nn.KLDivLoss(), numbers(positive=True), None),
    "a subclass": (Focal(), classes(), None),
    "a pair of one's own": (token_pair, classes(7), own_mean),
}


def model_of(name: str, **others: object) -> tuple[Model, Mean]:
    loss, data, mean = LOSSES[name]
    torch.manual_seed(0)
    is_log = isinstance(loss, nn.NLLLoss | nn.KLDivLoss)
    module = LogTokens() if is_log else Tokens()
    adam = partial(torch.optim.Adam, lr=0.05)
    given = {"loss": loss, "optimizer": adam, "batch_size": BATCH, "dataset": data, **others}
    return make_model(module=module, **given), mean or loss


def plainly(model: Model, mean: Mean, dtype: torch.dtype, steps: int = STEPS) -> nn.Module:
    """An ordinary loop of torch."""
    module = copy.deepcopy(model.module).to(dtype)
    mean = mean.to(dtype) if isinstance(mean, nn.Module) else mean
    optimizer = model.optimizer(list(module.parameters()))
    for step in range(steps):
        size = len(model.dataset)
        points = batch_indices(size, batch_size=model.batch_size, seed=model.seed, step=step)
        x, y = (column[torch.tensor(points)] for column in model.dataset.tensors)
        optimizer.zero_grad()
        loss = mean(module(x.to(dtype)), y.to(dtype) if y.is_floating_point() else y)
        loss.backward()
        optimizer.step()
    return module


def coded(
    model: Model,
    spec: str,
    *,
    precision: str = "float64",
    steps: int = STEPS,
) -> TorchWorkload:
    """Train on delays with stragglers."""
    scheme, store = parse_scheme(spec, n=N), MemoryStore()
    others = [replace(model, name=f"other{i}") for i in range(scheme.delay)]  # to take turns with
    models, jobs = [model, *others], steps * (1 + scheme.delay)
    workload = TorchWorkload(models, scheme=scheme, store=store, precision=precision)
    compute = TorchCompute([each.objective for each in models], store=store, precision=precision)
    schedule = scheme.start(jobs)
    delays = 1 + np.random.default_rng(3).pareto(1.1, size=(schedule.num_rounds, N))
    policy = RoundPolicy(schedule, ClosingRule(mu=0.2))
    run(policy, ReplayBackend(delays, compute=compute), workload)
    workload.flush()
    return workload


@pytest.mark.filterwarnings("ignore:reduction. .mean. divides:UserWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_training_is_that_of_the_loss_in_torch(name: str) -> None:
    model, mean = model_of(name)
    own = copy.deepcopy(mean)
    expected = flat(plainly(model, own, torch.float64))
    specs = SPECS[list(LOSSES).index(name) % 2 :: 2]
    for spec in specs:
        trained = flat(coded(model, spec).module("net"))
        np.testing.assert_allclose(trained, expected, rtol=0, atol=1e-10, err_msg=spec)


@pytest.mark.parametrize("name", ["padded tokens", "class weights", "pos_weight"])
def test_in_float32_it_is_as_close_as_that_allows(name: str) -> None:
    model, mean = model_of(name, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    expected = flat(plainly(model, copy.deepcopy(mean), torch.float32))
    trained = flat(coded(model, "gc:s=2", precision="float32").module("net"))
    np.testing.assert_allclose(trained, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("payload", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e5])
def test_results_in_16_bits_are_divided_by_the_same_weight(payload: str, scale: float) -> None:
    model, _ = model_of("class weights of padded tokens")
    layout = ResultLayout([p.numel() for p in model.module.parameters()])
    store = MemoryStore()
    ref = store.publish("net", 0, np.concatenate([[scale], np.zeros(layout.parameters - 1)]))
    compute = TorchCompute([model.objective], store=store)
    points = np.arange(9)
    part = WeightedPoints(
        model="net", weights=ref, points=points, coefficients=np.linspace(-0.7, 1.3, 9) / 9
    )
    result = compute((part,))
    pieces = np.split(result, np.cumsum(layout.pieces)[:-1])
    arrived = np.concatenate([restore(quantize(each, payload), np.float32) for each in pieces])
    sums, exact = layout.read(arrived).sums, layout.read(result).sums
    y = model.dataset.tensors[1][:9].numpy()
    weights = np.where(y == -100, 0, CLASS_WEIGHTS.numpy()[np.maximum(y, 0)]).mean(1)
    due = part.coefficients @ weights / part.coefficients.sum()
    assert exact.divisor == pytest.approx(due, rel=1e-6)
    assert sums.divisor == pytest.approx(due, rel=1e-6)
    assert layout.read(arrived).received.all()


def test_weights_of_1_change_no_bit_of_a_gradient() -> None:
    plain = partial(F.cross_entropy, reduction="none")
    data = classes(unset=0)
    one, _ = model_of("unset labels", dataset=data)
    other = make_model(
        module=one.module, loss=plain, dataset=data, optimizer=one.optimizer, batch_size=BATCH
    )
    for spec in ("gc:s=2", "gc-rep:s=1"):
        trained = [coded(each, spec, precision="float32").module("net") for each in (one, other)]
        np.testing.assert_array_equal(*map(flat, trained))


def test_a_batch_without_a_label_has_a_gradient_of_0_and_no_loss() -> None:
    x, y = classes(unset=1.0).tensors
    model, mean = model_of("unset labels", dataset=TensorDataset(x, y))
    assert set(y.tolist()) == {-100}
    workload = coded(model, "gc:s=2")
    assert [np.isnan(entry.loss) for entry in workload.metrics] == [True] * STEPS
    assert workload.parked == {}
    np.testing.assert_array_equal(
        flat(workload.module("net")), flat(plainly(model, mean, torch.float64))
    )


def test_the_loss_of_each_job_is_torchs() -> None:
    model, mean = model_of("class weights of padded tokens")
    losses = [entry.loss for entry in coded(model, "gc:s=2").metrics]
    own = copy.deepcopy(mean).double()
    for step, loss in enumerate(losses):
        module = plainly(model, copy.deepcopy(mean), torch.float64, steps=step)
        points = batch_indices(40, batch_size=BATCH, seed=model.seed, step=step)
        x, y = (column[torch.tensor(points)] for column in model.dataset.tensors)
        assert loss == pytest.approx(own(module(x.double()), y).item(), rel=1e-9)


def test_what_a_job_is_made_without_leaves_a_mean_over_the_rest() -> None:
    """The same holds without weights: a gradient lacks the share of the lost points."""
    model, mean = model_of("unset labels", optimizer=partial(torch.optim.SGD, lr=1.0))
    scheme, store = parse_scheme("backup:b=1", n=3), MemoryStore()
    workload = TorchWorkload([model], scheme=scheme, store=store, precision="float64")
    compute = TorchCompute([model.objective], store=store, precision="float64")
    workload.begin(0)
    two = MiniTask(job=0, slot=0, chunks=np.array([0, 2]), coefficients=np.ones(2))
    parts = workload.resolve(two)
    workload.finish(Decoding(job=0, terms=(), lost=(1,)), compute(parts))
    x, y = (column[torch.tensor(parts[0].points)] for column in model.dataset.tensors)
    module = copy.deepcopy(model.module).double()
    before = flat(module).copy()
    (mean(module(x.double()), y) * 2 / 3).backward()
    gradient = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    np.testing.assert_allclose(flat(workload.module("net")), before - gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (7,)])
def test_an_evaluation_counts_the_targets_that_the_loss_counts(shape: tuple[int, ...]) -> None:
    x, y = classes(*shape).tensors
    x, y = (torch.cat([each] * 30) for each in (x, y))  # of more than one batch
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 5.0, 1.0, 2.0]))
    torch.manual_seed(0)
    module = Tokens()
    seen = evaluate(module, loss=loss, dataset=TensorDataset(x, y))
    output = module(x)
    assert seen.loss == pytest.approx(loss(output, y).item(), rel=1e-5)
    right = (output.argmax(1) == y)[y != -100].double().mean().item()
    assert seen.accuracy == pytest.approx(right)


def test_an_evaluation_without_a_label_has_neither_loss_nor_accuracy() -> None:
    seen = evaluate(Tokens(), loss=nn.CrossEntropyLoss(), dataset=classes(unset=1.0))
    assert np.isnan(seen.loss)
    assert np.isnan(seen.accuracy)


class Hardest(nn.CrossEntropyLoss):
    """A subclass whose mean is over the hardest half of the points."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        values = F.cross_entropy(output, target, reduction="none")
        return values if self.reduction == "none" else values.topk(len(values) // 2).values.mean()


def test_a_subclass_whose_mean_is_another_is_refused() -> None:
    model, _ = model_of("unset labels", loss=Hardest())
    with pytest.raises(ParameterError, match="from Hardest"):
        TorchWorkload([model], scheme=parse_scheme("uncoded", n=2), store=MemoryStore())


class Scaled(nn.MSELoss):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize(
    ("loss", "rule"),
    [
        (nn.CTCLoss(), "CTCLoss with reduction='mean'"),
        (nn.MSELoss(reduction="sum"), "MSELoss with reduction='sum'"),
        (Scaled(), "Scaled with scale"),
    ],
)
def test_a_loss_that_cannot_be_taken_point_by_point_is_named(loss: nn.Module, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule) as caught:
        make_model(loss=loss)
    assert caught.value.argument == "loss"


@pytest.mark.parametrize(
    ("pair", "got"),
    [
        (lambda output, _: (output.mean(1), output[:, 0]), "require"),
        (lambda output, _: (output.mean(1), torch.ones(3, 2)), r"\(\(3,\), \(3, 2\)\)"),
        (lambda output, _: (output.mean(1),), "'Tensor'"),
        (lambda output, _: (output.mean(1), 1.0), "'float'"),
    ],
)
def test_weights_that_are_none_are_refused(pair: object, got: str) -> None:
    model, _ = model_of("mse")
    store = MemoryStore()
    odd = make_model(module=model.module, dataset=model.dataset, loss=pair)
    part = WeightedPoints(
        model="net",
        weights=store.publish("net", 0, flat(model.module)),
        points=np.arange(3),
        coefficients=np.ones(3),
    )
    with pytest.raises(Exception, match=got):
        TorchCompute([odd.objective], store=store)((part,))


# ---- parameters without a gradient ---------------------------------------------------------------


class Heads(nn.Module):
    """A trunk, a head that is never used, and an expert for points with a large first number."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.unused, self.expert = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        output = self.trunk(x)
        if (chosen := x[:, 0] > 1.4).any():
            output = output.index_add(0, chosen.nonzero()[:, 0], self.expert(x[chosen]))
        return output


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.5),
    "adamw": partial(torch.optim.AdamW, lr=0.05, weight_decay=0.5),
}


@pytest.mark.parametrize("spec", ["uncoded", "gc:s=2", "gc-binary:s=3", "ra-sgc:s=1,q=0.5,r=2,p=2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_that_a_batch_does_not_use_are_skipped(spec: str, optimizer: str) -> None:
    torch.manual_seed(0)
    model = make_model(
        module=Heads(),
        dataset=classes(unset=0),
        optimizer=OPTIMIZERS[optimizer],
        batch_size=BATCH,
    )
    steps = 6
    uses = [
        bool((model.dataset.tensors[0][torch.tensor(points)][:, 0] > 1.4).any())
        for points in (batch_indices(40, batch_size=BATCH, seed=0, step=s) for s in range(steps))
    ]
    assert set(uses) == {False, True}
    module = coded(model, spec, steps=steps).module("net")
    expected = plainly(model, nn.CrossEntropyLoss(), torch.float64, steps=steps)
    np.testing.assert_allclose(flat(module), flat(expected), rtol=0, atol=1e-10)
    assert torch.equal(module.unused.weight, model.module.unused.weight.double())

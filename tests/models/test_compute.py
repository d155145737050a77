"""A worker's result is the coefficient-weighted sum of plain gradients, in one backward pass."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import FloatArray, WeightedPoints, WeightRef
from seqgc.stores import MemoryStore
from seqgc.training import Objective, ResultLayout, TorchCompute, make_module
from tests.training.reference import blobs, flat

per_point = partial(F.cross_entropy, reduction="none")


def objective(module: nn.Module | None = None, **changed: object) -> Objective:
    arguments = {"name": "net", "loss": per_point, "dataset": blobs(), **changed}
    return Objective(module=module or make_module("mlp", seed=0), **arguments)


def part(
    of: Objective,
    store: MemoryStore,
    points: list[int],
    coefficients: list[float],
    version: int = 0,
) -> WeightedPoints:
    weights = np.concatenate(
        [p.detach().double().numpy().ravel() for p in of.module.parameters() if p.requires_grad]
    )
    return WeightedPoints(
        model=of.name,
        weights=store.publish(of.name, version, weights + version),
        points=np.array(points, dtype=np.intp),
        coefficients=np.array(coefficients, dtype=float),
    )


def layout(of: Objective) -> ResultLayout:
    return ResultLayout([p.numel() for p in of.module.parameters() if p.requires_grad])


def gradient_and_loss(result: FloatArray, *objectives: Objective) -> FloatArray:
    """Return the first P + 1 numbers of the result of each part."""
    ends = np.cumsum([layout(each).size for each in objectives])
    assert len(result) == ends[-1]
    parts = zip(np.split(result, ends[:-1]), objectives, strict=True)
    return np.concatenate([part[: layout(each).parameters + 1] for part, each in parts])


def directly(of: Objective, points: list[int], coefficients: list[float]) -> FloatArray:
    """Compute the same with autograd, by one backward pass for each point."""
    module = copy.deepcopy(of.module).double()
    parameters = [p for p in module.parameters() if p.requires_grad]
    total = np.zeros(sum(p.numel() for p in parameters) + 1)
    for point, coefficient in zip(points, coefficients, strict=True):
        x, y = of.dataset[point]
        x = torch.as_tensor(x)
        x = x.double() if x.is_floating_point() else x
        loss = of.loss(module(x[None]), torch.as_tensor(y)[None]).mean()
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        vector = [g.to_dense().numpy().ravel() for g in gradients]
        total += coefficient * np.concatenate([*vector, [loss.item()]])
    return total


@given(coded=st.lists(st.tuples(st.integers(0, 39), st.floats(-100, 100)), min_size=1, max_size=20))
def test_a_result_is_the_weighted_sum_of_the_points_gradients_and_losses(
    coded: list[tuple[int, float]],
) -> None:
    points, coefficients = [p for p, _ in coded], [c for _, c in coded]
    net, store = objective(), MemoryStore()
    compute = TorchCompute([net], store=store, precision="float64")
    result = compute((part(net, store, points, coefficients),))
    np.testing.assert_allclose(
        gradient_and_loss(result, net), directly(net, points, coefficients), rtol=0, atol=1e-9
    )


def test_a_bundle_takes_one_forward_and_one_backward_pass_a_part() -> None:
    passes: list[str] = []

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_module("mlp", seed=0)

        def forward(self, x: Tensor) -> Tensor:
            passes.append("forward")
            output = self.net(x)
            output.register_hook(lambda _: passes.append("backward"))
            return output

    store = MemoryStore()
    a, b = objective(Counted(), name="a"), objective(make_module("mlp", seed=1), name="b")
    compute = TorchCompute([a, b], store=store, precision="float64")
    points, coefficients = [3, 1, 4, 1, 5], [0.5, -2.0, 0.25, 3.0, 1.0]
    parts = (
        part(a, store, points, coefficients),
        part(b, store, [], []),
        part(b, store, points[:2], coefficients[:2]),
    )
    result = compute(parts)
    assert passes == ["forward", "backward"]
    expected = [
        directly(objective(a.module.net), points, coefficients),
        np.zeros(flat(b.module).size + 1),
        directly(b, points[:2], coefficients[:2]),
    ]
    inner = objective(a.module.net)
    np.testing.assert_allclose(
        gradient_and_loss(result, inner, b, b), np.concatenate(expected), rtol=0, atol=1e-12
    )


def test_a_mini_task_without_points_computes_nothing() -> None:
    net, store = objective(), MemoryStore()
    empty = part(net, store, [], [])
    store.discard(empty.weights)  # not even the weights are needed
    result = TorchCompute([net], store=store)((empty,))
    assert result.tolist() == [0.0] * layout(net).size


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_precision_is_that_of_inputs_computation_and_result(precision: str) -> None:
    seen: list[torch.dtype] = []

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.extend([x.dtype, self.weight.dtype])
            return super().forward(x)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.extend([output.dtype, target.dtype])
        return (output - target) ** 2

    data = TensorDataset(torch.ones(4, 2, dtype=torch.float16), torch.ones(4, 1))
    net, store = objective(Noting(2, 1), loss=loss, dataset=data), MemoryStore()
    result = TorchCompute([net], store=store, precision=precision)((part(net, store, [2], [1.0]),))
    assert set(seen) == {getattr(torch, precision)}
    assert result.dtype == precision


class Words(Dataset[tuple[list[int], int]]):
    """Items as plain Python numbers."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([index % 5, index % 3, 4]), index % 2


@pytest.mark.parametrize("sparse", [False, True])
def test_embeddings_of_integer_inputs_work_with_dense_and_sparse_gradients(sparse: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(6, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 2))
    net, store = objective(module, dataset=Words()), MemoryStore()
    points, coefficients = [0, 7, 11], [1.0, -0.5, 2.0]
    compute = TorchCompute([net], store=store, precision="float64")
    result = compute((part(net, store, points, coefficients),))
    np.testing.assert_allclose(
        gradient_and_loss(result, net), directly(net, points, coefficients), rtol=0, atol=1e-12
    )


def test_frozen_parameters_are_left_out_and_unused_ones_have_no_gradient() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(64, 8).requires_grad_(False)
            self.used, self.unused = nn.Linear(8, 10), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.frozen(x.flatten(1)))

    torch.manual_seed(0)
    net, store = objective(Partial()), MemoryStore()
    compute = TorchCompute([net], store=store, precision="float64")
    result = compute((part(net, store, [5, 6], [1.0, 1.0]),))
    assert not result[90:102].any()
    assert layout(net).read(result).received.tolist() == [True, True, False, False]
    np.testing.assert_allclose(
        gradient_and_loss(result, net), directly(net, [5, 6], [1.0, 1.0]), rtol=0, atol=1e-12
    )


def test_a_tied_parameter_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(64, 64, bias=False)
            self.two = nn.Linear(64, 64, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x.flatten(1)))

    torch.manual_seed(0)
    net, store = objective(Tied()), MemoryStore()
    result = TorchCompute([net], store=store, precision="float64")((part(net, store, [1], [1.0]),))
    assert layout(net).parameters == 64 * 64
    np.testing.assert_allclose(
        gradient_and_loss(result, net), directly(net, [1], [1.0]), rtol=0, atol=1e-10
    )


def test_losses_of_many_targets_a_point_are_averaged_within_the_point() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(5, 3), torch.randn(5, 4))
    net = objective(nn.Linear(3, 4), loss=nn.MSELoss(reduction="none"), dataset=data)
    store = MemoryStore()
    result = TorchCompute([net], store=store, precision="float64")(
        (part(net, store, list(range(5)), [0.2] * 5),)
    )
    module = copy.deepcopy(net.module).double()
    mean = nn.MSELoss()(module(data.tensors[0].double()), data.tensors[1].double())
    mean.backward()
    gradient = [p.grad.numpy().ravel() for p in module.parameters()]
    expected = np.concatenate([*gradient, [mean.item()]])
    np.testing.assert_allclose(gradient_and_loss(result, net), expected, atol=1e-12)


def test_weights_are_fetched_once_a_version_and_the_right_ones_are_used() -> None:
    fetched: list[int] = []

    class Noting(MemoryStore):
        def fetch(self, ref: WeightRef) -> FloatArray:
            fetched.append(ref.version)
            return super().fetch(ref)

    net, store = objective(nn.Linear(1, 1, bias=False)), Noting()
    data = TensorDataset(torch.ones(1, 1), torch.zeros(1, 1))
    net = objective(net.module, loss=nn.MSELoss(reduction="none"), dataset=data)
    parts = [part(net, store, [0], [1.0], version=v) for v in range(3)]
    compute = TorchCompute([net], store=store, precision="float64", cached_weights=2)
    weight = net.module.weight.item()
    for version in (0, 1, 0, 1, 2, 1, 0):
        loss = compute((parts[version],))[1]
        assert loss == pytest.approx((weight + version) ** 2)
    assert fetched == [0, 1, 2, 0]  # 0 was the one least recently used when 2 came


def test_missing_weights_and_unknown_models_are_named() -> None:
    net, store = objective(), MemoryStore()
    compute = TorchCompute([net], store=store)
    task = part(net, store, [0], [1.0])
    store.discard(task.weights)
    with pytest.raises(StoreError, match="'net', version 0"):
        compute((task,))
    with pytest.raises(ParameterError, match="`model` must be one of net; got 'other'"):
        compute((part(objective(name="other"), store, [0], [1.0]),))


def test_weights_of_another_size_are_refused_and_do_not_linger() -> None:
    net, store = objective(nn.Linear(1, 1, bias=False)), MemoryStore()
    wide = objective(nn.Linear(2, 1, bias=False))
    data = TensorDataset(torch.ones(1, 1), torch.zeros(1, 1))
    net = objective(net.module, loss=nn.MSELoss(reduction="none"), dataset=data)
    compute = TorchCompute([net], store=store, precision="float64")
    with pytest.raises(ParameterError, match=r"must have shape \(1,\); got \(2,\)"):
        compute((part(wide, store, [0], [1.0], version=7),))
    loss = compute((part(net, store, [0], [1.0]),))[1]
    assert loss == pytest.approx(net.module.weight.item() ** 2)


def test_computing_leaves_the_module_it_was_given_alone() -> None:
    net, store = objective(), MemoryStore()
    before = flat(net.module)
    TorchCompute([net], store=store)((part(net, store, [0], [1.0], version=3),))
    np.testing.assert_array_equal(flat(net.module), before)
    assert all(p.grad is None for p in net.module.parameters())

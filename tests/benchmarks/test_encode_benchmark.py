"""A coded result against a plain gradient, on the same points, in one run: coding costs no pass."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc.ports import FloatArray, WeightedPoints
from seqgc.stores import MemoryStore
from seqgc.training import Objective, TorchCompute, digits, make_module

REPEATS, MOST_ROUNDS = 31, 5


def like_mnist(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((size, 1, 28, 28), generator=generator)
    return TensorDataset(x, torch.randint(10, (size,), generator=generator))


class Plain:
    """The gradient of the mean loss, as a worker without a code would make and return it."""

    def __init__(self, module: nn.Module, dataset: TensorDataset) -> None:
        self._module, self._dataset = copy.deepcopy(module), dataset
        self._loss = nn.CrossEntropyLoss()

    def __call__(self, points: np.ndarray) -> FloatArray:
        x, y = (column[torch.tensor(points)] for column in self._dataset.tensors)
        self._module.zero_grad(set_to_none=True)
        self._loss(self._module(x), y).backward()
        gradient: FloatArray = torch.cat(
            [p.grad.reshape(-1) for p in self._module.parameters()]
        ).numpy()
        return gradient


def ratio_of(coded: Callable[[], object], plain: Callable[[], object]) -> float:
    """Return the ratio of median seconds; the two take turns, first one, then the other ahead."""
    seconds: dict[Callable[[], object], list[float]] = {coded: [], plain: []}
    for turn in range(REPEATS):
        for work in (coded, plain) if turn % 2 else (plain, coded):
            start = time.perf_counter()
            work()
            seconds[work].append(time.perf_counter() - start)
    return statistics.median(seconds[coded]) / statistics.median(seconds[plain])


@pytest.mark.parametrize("num_points", [16, 64, 256])
@pytest.mark.parametrize("name", ["paper-cnn", "mlp"])
def test_a_coded_result_costs_no_more_than_a_plain_gradient(name: str, num_points: int) -> None:
    torch.set_num_threads(1)
    module = make_module(name, seed=0)
    dataset = like_mnist(1024) if name == "paper-cnn" else digits(seed=0).train
    loss = nn.CrossEntropyLoss(reduction="none")
    store = MemoryStore()
    compute = TorchCompute(
        [Objective(name="net", module=module, loss=loss, dataset=dataset)], store=store
    )
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    rng = np.random.default_rng(0)
    part = WeightedPoints(
        model="net",
        weights=store.publish("net", 0, weights),
        points=rng.permutation(1024)[:num_points],
        coefficients=np.full(num_points, 1 / num_points),
    )
    plain = Plain(module, dataset)
    gradient = compute((part,))[: len(weights)]
    np.testing.assert_allclose(gradient, plain(part.points), rtol=0, atol=1e-5)
    ratios = []
    while len(ratios) < MOST_ROUNDS and min(ratios, default=2.0) > 1.05:
        ratios.append(ratio_of(lambda: compute((part,)), lambda: plain(part.points)))
    print(f"\n{name}, {num_points} points: coded / plain {min(ratios):.3f}, rounds {len(ratios)}")
    assert min(ratios) <= 1.05

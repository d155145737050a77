"""Processor time of models that are computed together, beside models computed one by one.

Weights are read from memory. In a run, a worker also reads them from the run's store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from seqgc.models.group_sizes import choose_group_sizes
from seqgc.ports import WeightedPoints
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, make_module
from tests.training.reference import flat, make_model

MODELS, TASKS, REPEATS = 64, 6, 4
DATA = TensorDataset(torch.randn(500, 1, 8, 8), torch.arange(500) % 10)
WIDTHS = {"mlp": 64, "digits-cnn": 8}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def models_of(network: str, width: int, count: int) -> list[Model]:
    return [
        make_model(
            f"m{i}", module=make_module(network, seed=i, args={"width": width}), dataset=DATA
        )
        for i in range(count)
    ]


def tasks(
    models: Sequence[Model], store: MemoryStore, *, points: int
) -> list[tuple[WeightedPoints, ...]]:
    """Return a task for each of a few versions of the weights, as the rounds of a run have them."""
    rng = np.random.default_rng(0)
    return [
        tuple(
            WeightedPoints(
                model=model.name,
                weights=store.publish(model.name, version, flat(model.module) * (1 + version / 64)),
                points=rng.integers(len(DATA), size=points),
                coefficients=np.full(points, 1 / points),
            )
            for model in models
        )
        for version in range(TASKS)
    ]


def ratio(models: Sequence[Model], *, points: int) -> tuple[float, int]:
    """Return the processor time in groups over the time one by one, and the size of a group."""
    choice = choose_group_sizes([models], points=lambda _: points, precision="float32")
    objectives, store = [model.objective for model in models], MemoryStore()
    alone = TorchCompute(objectives, store=store, cached_weights=len(models))
    together = TorchCompute(
        objectives, store=store, cached_weights=len(models), group_sizes=choice.sizes
    )
    taken: dict[TorchCompute, list[float]] = {alone: [], together: []}
    some = tasks(models, store, points=points)
    for _ in range(REPEATS):
        for compute, seconds in taken.items():
            for (
                task
            ) in some:  # a worker computes only one way, and finds its own data in the caches
                began = time.thread_time()
                compute(task)
                seconds.append(time.thread_time() - began)
    one_by_one, in_groups = (min(seconds) for seconds in taken.values())
    size = choice.sizes.get("m0", 1)
    print(
        f"\n{len(models)} models, {points} points: {1e3 * one_by_one:.2f} ms one by one, "
        f"{1e3 * in_groups:.2f} ms in groups of {size}: {in_groups / one_by_one:.3f}"
    )
    return in_groups / one_by_one, size


@pytest.mark.parametrize(("network", "most"), [("mlp", 0.15), ("digits-cnn", 0.25)])
def test_a_task_of_64_small_models_takes_a_fraction_of_the_time(network: str, most: float) -> None:
    models = models_of(network, WIDTHS[network], MODELS)
    assert ratio(models, points=8)[0] <= most


@pytest.mark.parametrize("points", [8, 64, 256])
@pytest.mark.parametrize("count", [4, 16])
@pytest.mark.parametrize("network", WIDTHS)
def test_the_measured_number_never_costs_time(network: str, count: int, points: int) -> None:
    models = models_of(network, 2 * WIDTHS[network], count)
    share, size = ratio(models, points=points)
    assert size == 1 or share <= 1.05, "with 1 both ways are the same"

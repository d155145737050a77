"""The trial of a model before a run, beside gradients of the points that it looks at."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc.ports import MiniTask
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, TorchWorkload, make_module
from tests.training.reference import Chunks

REPEATS, POINTS = 5, 6


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the least processor time of a few calls."""
    took = []
    for _ in range(REPEATS):
        begun = time.process_time()
        call()
        took.append(time.process_time() - begun)
    return min(took)


def test_a_trial_takes_the_time_of_a_few_gradients() -> None:
    images = torch.randn(60, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = Model(
        name="net",
        module=make_module("paper-cnn", seed=0),
        loss=nn.CrossEntropyLoss(),
        dataset=TensorDataset(images, torch.arange(60) % 10),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=POINTS,
    )
    store, threads = MemoryStore(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start_s = processor_seconds(lambda: TorchWorkload([model], scheme=Chunks(), store=store))
        workload = TorchWorkload([model], scheme=Chunks(), store=store)
        workload.begin(0)
        task = MiniTask(job=0, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        parts, compute = workload.resolve(task), TorchCompute([model.objective], store=store)
        gradient_s = processor_seconds(lambda: compute(parts))
    finally:
        torch.set_num_threads(threads)
    print(f"\ntrial {start_s:.3f} s, {start_s / gradient_s:.0f} gradients of {POINTS} points")
    assert start_s / gradient_s <= 60  # 8 sums over these points, 6 over one, and comparisons
    assert start_s < 0.5

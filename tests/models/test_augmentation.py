"""Augmented items follow from the seed, the epoch and the item, whoever reads them."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from seqgc.errors import ParameterError
from seqgc.ports import MiniTask
from seqgc.stores import MemoryStore
from seqgc.training import AugmentedDataset, TorchCompute, TorchWorkload, batch_indices
from tests.kit import decoded
from tests.training.reference import Chunks, blobs, flat, make_model, train_alone

SIZE, BATCH, STEPS = 24, 10, 7  # batches go from one epoch into the next


def noisy(x: object) -> object:
    """Draw from every generator that transforms draw from."""
    drawn = torch.randn(1, 8, 8) + float(np.random.rand()) + random.random()  # noqa: NPY002
    return x + 0.3 * drawn


def augmented(seed: int = 5) -> AugmentedDataset:
    return AugmentedDataset(blobs(SIZE), transform=noisy, seed=seed)


def test_an_item_differs_by_seed_epoch_and_item_and_by_nothing_else() -> None:
    data, other = augmented(), augmented(seed=6)
    before = torch.get_rng_state(), random.getstate(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1)
    items = [data[index][0] for index in (3, 3 + SIZE, 4)] + [other[3][0]]
    assert len({item.numpy().tobytes() for item in items}) == 4
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[3 + SIZE][0], items[1])
    assert int(data[3 + SIZE][1]) == int(blobs(SIZE)[3][1])
    torch.manual_seed(1)
    state = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    data[7]
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1:] == (random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
    assert len(list(data)) == SIZE
    torch.set_rng_state(before[0])


def test_training_takes_each_epochs_items_and_equals_a_plain_loop() -> None:
    """The plain loop is over a data set in which all epochs of the augmented one stand."""
    data, store = augmented(), MemoryStore()
    model = make_model(dataset=data, batch_size=BATCH)
    workload = TorchWorkload([model], scheme=Chunks(), store=store, precision="float64")
    compute = TorchCompute([model.objective], store=store, precision="float64")
    taken: list[int] = []
    for job in range(STEPS):
        workload.begin(job)
        whole = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        parts = workload.resolve(whole)
        taken += parts[0].points.tolist()
        workload.finish(decoded(job), compute(parts))
    workload.flush()
    assert [index // SIZE for index in taken] == [at // SIZE for at in range(STEPS * BATCH)]
    drawn = [batch_indices(SIZE, batch_size=BATCH, seed=0, step=s).tolist() for s in range(STEPS)]
    assert [index % SIZE for index in taken] == [item for each in drawn for item in each]
    x, y = zip(*(data[index] for index in taken), strict=True)
    laid_out = TensorDataset(torch.stack(x), torch.stack(y))
    alone = make_model(dataset=laid_out, batch_size=BATCH)
    plain = InOrder(alone)
    module, losses = train_alone(plain, steps=STEPS, dtype=torch.float64)
    assert np.allclose(flat(workload.module("net")), flat(module), rtol=0, atol=1e-12)
    assert [each.loss for each in workload.metrics] == pytest.approx(losses, abs=1e-12)
    assert len({*taken}) == STEPS * BATCH


class InOrder:
    """A model for the plain loop whose data stand in the order in which they are taken."""

    def __init__(self, model: object) -> None:
        self._model = model
        x, y = model.dataset.tensors
        order = [
            int(at)
            for step in range(STEPS)
            for at in batch_indices(len(x), batch_size=BATCH, seed=0, step=step)
        ]
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        self.dataset = TensorDataset(x[back], y[back])

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


def test_a_transform_that_draws_elsewhere_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    data = AugmentedDataset(
        blobs(SIZE), transform=lambda x: x + torch.randn(1, 8, 8, generator=generator)
    )
    with pytest.raises(ParameterError, match="must give the same item on every read"):
        TorchWorkload([make_model(dataset=data)], scheme=Chunks(), store=MemoryStore())
    with pytest.raises(ParameterError, match="must be a function x -> x"):
        AugmentedDataset(blobs(SIZE), transform=3)


class HalfWidth(torch.nn.Module):
    """A module that computes in bfloat16, and whose output is as wide as its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = self.layer(x.flatten(1))
        return output.to(self.layer.weight.dtype)


def test_a_module_may_compute_in_bfloat16_where_workers_hold_float32() -> None:
    torch.manual_seed(0)
    model, store = make_model(module=HalfWidth()), MemoryStore()
    workload = TorchWorkload([model], scheme=Chunks(), store=store)
    compute = TorchCompute([model.objective], store=store)
    for job in range(3):
        workload.begin(job)
        whole = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        workload.finish(decoded(job), compute(workload.resolve(whole)))
    workload.flush()
    module, _ = train_alone(model, steps=3, dtype=torch.float32)
    assert np.allclose(flat(workload.module("net")), flat(module), rtol=0, atol=2e-3)
    wide = make_model(module=torch.nn.Sequential(torch.nn.Flatten(), model.module.layer))
    module, _ = train_alone(wide, steps=3, dtype=torch.float32)
    assert not np.array_equal(flat(workload.module("net")), flat(module))

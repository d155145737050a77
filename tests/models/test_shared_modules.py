"""Models of one structure share a module and a trial; other differences tell structures apart."""

from __future__ import annotations

import pickle
from dataclasses import replace
from multiprocessing import RawValue

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError
from seqgc.models.model import structure_of
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, TorchComputeFactory, TorchWorkload, make_module
from tests.models.test_compute import part
from tests.training.reference import Chunks, blobs, make_model


class Net(nn.Module):
    """A network whose seed draws its weights, and nothing else."""

    calls = RawValue("i")  # in the child of a trial as well

    def __init__(self, seed: int = 0, *, scale: float = 1.0, width: int = 64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(10, width, generator=generator) / 8)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("kept", torch.zeros(3))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        self.calls.value += 1
        return self.scale * x.flatten(1) @ self.weight.T


class Noisy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


def changed(**values: Tensor) -> Net:
    net = Net()
    with torch.no_grad():
        for name, value in values.items():
            getattr(net, name).copy_(value)
    return net


def tied() -> nn.Module:
    one = nn.Linear(4, 4)
    return nn.Sequential(one, one)


def with_hook() -> Net:
    net = Net()
    net.register_forward_hook(print)
    return net


def with_teacher(seed: int) -> Net:
    net = Net()
    net.teachers = [nn.Linear(64, 10)]  # in a list, so that it is not trained
    for p in net.teachers[0].parameters():
        p.data.fill_(seed)
    return net


def in_columns() -> Net:
    net = Net()
    net.weight = nn.Parameter(net.weight.detach().T.contiguous().T)
    return net


OTHERS = {
    "a buffer": changed(kept=torch.ones(3)),
    "a frozen parameter": changed(frozen=torch.zeros(3)),
    "an attribute": Net(scale=2.0),
    "its mode": Net().eval(),
    "a shape": Net(width=65),
    "a dtype": Net().double(),
    "strides": in_columns(),
    "a hook": with_hook(),
    "what is frozen": Net().requires_grad_(False),
    "its class": Noisy(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_modules_that_may_differ_at_the_same_weights_have_other_structures(name: str) -> None:
    assert structure_of(OTHERS[name]) not in {structure_of(Net()), None}


def test_modules_that_differ_by_their_weights_alone_have_one_structure() -> None:
    assert structure_of(Net(1)) == structure_of(Net(2)) is not None
    for name in ("mlp", "digits-cnn"):
        assert (
            structure_of(make_module(name, seed=1))
            == structure_of(make_module(name, seed=2))
            is not None
        )
    assert structure_of(with_teacher(1)) == structure_of(with_teacher(1))
    assert structure_of(with_teacher(1)) != structure_of(with_teacher(2))
    assert structure_of(tied()) == structure_of(tied())
    assert structure_of(tied()) != structure_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))


def test_a_module_that_cannot_be_pickled_has_no_structure() -> None:
    net = Net()
    net.own = lambda x: x
    assert structure_of(net) is None
    net = Net()
    net.weight.note = "read by whoever likes"
    assert structure_of(net) is None
    net = Net()
    net.weight.register_hook(lambda gradient: gradient)
    assert structure_of(net) is None
    net = Net()
    net.weight.register_post_accumulate_grad_hook(print)
    assert structure_of(net) is None


def workload(models: list[Model]) -> TorchWorkload:
    return TorchWorkload(models, scheme=Chunks(), store=MemoryStore())


def grid(count: int, kind: type[Net] = Net) -> list[Model]:
    data = blobs()
    return [make_model(f"m{i}", module=kind(i), dataset=data, seed=i) for i in range(count)]


def test_models_of_one_structure_are_tried_once() -> None:
    def calls(count: int) -> int:
        Net.calls.value = 0
        workload(grid(count))
        return Net.calls.value

    assert calls(30) == calls(1) > 0


def test_an_unsound_model_is_found_among_sound_ones() -> None:
    sound, noisy = grid(3), grid(1, Noisy)[0]
    with pytest.raises(
        ParameterError, match=r"must not draw random numbers .*Noisy of model 'bad'"
    ):
        workload([*sound, replace(noisy, name="bad")])
    mixing = replace(sound[0], name="bad", loss=lambda out, y: (out - out.mean(0)).sum(1) + y)
    with pytest.raises(ParameterError, match="`loss` must not compare the points"):
        workload([*sound, mixing])
    other = replace(sound[0], name="bad", dataset=[(torch.ones(1, 8, 8), 10)] * 3)  # no such class
    with pytest.raises(ParameterError, match="`module` must take the dataset's points"):
        workload([*sound, other])


def test_a_worker_has_one_module_for_each_structure_and_the_same_bits() -> None:
    models, store = grid(20), MemoryStore()
    sent = [
        len(pickle.dumps(TorchComputeFactory(models=some, store=store)))
        for some in (models[:1], models)
    ]
    assert sent[1] - sent[0] < 19 * 4 * 10 * 64  # the bytes of their weights, which are not sent
    shared = TorchCompute(
        [replace(m.objective, module=models[0].module) for m in models], store=store
    )
    alone = TorchCompute([m.objective for m in models], store=store)
    parts = [part(m.objective, store, [i, i + 1], [1.0, -0.5]) for i, m in enumerate(models)]
    for chosen in (parts, parts[::-1], parts[3:5] + parts[3:4]):
        np.testing.assert_array_equal(shared(tuple(chosen)), alone(tuple(chosen)))

"""An optimizer factory is given parameters, with their names if it asks; others are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from seqgc.config._tables import checked
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, MiniTask
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, TorchWorkload, TrainingPlan, batch_indices
from tests.cli.inside import make_models
from tests.kit import decoded
from tests.training.inside import fingerprint
from tests.training.reference import Chunks, flat, make_model

STEPS = 6
Named = Sequence[tuple[str, nn.Parameter]]


def grouped(named_parameters: Named, *, lr: float = 0.05, decay: float = 0.3) -> torch.optim.AdamW:
    """Decay weights and no biases."""
    biases = [each for each in named_parameters if each[0].endswith("bias")]
    weights = [each for each in named_parameters if not each[0].endswith("bias")]
    groups = [{"params": weights, "weight_decay": decay}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


def last_only(named_parameters: Named) -> torch.optim.SGD:
    """Train the last layer alone."""
    last = [p for name, p in named_parameters if name.startswith("3.")]
    return torch.optim.SGD(last, lr=0.1, momentum=0.9)


def begun(model: Model) -> tuple[TorchWorkload, TorchCompute]:
    store = MemoryStore()
    workload = TorchWorkload([model], scheme=Chunks(), store=store, precision="float64")
    return workload, TorchCompute([model.objective], store=store, precision="float64")


def go_on(workload: TorchWorkload, compute: TorchCompute, jobs: range) -> FloatArray:
    for job in jobs:
        workload.begin(job)
        whole = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        workload.finish(decoded(job), compute(workload.resolve(whole)))
    return flat(workload.module("net"))


def plain(model: Model, make: Callable[[Named], torch.optim.Optimizer]) -> FloatArray:
    """Return the weights that a loop without workers ends in."""
    module, loss = copy.deepcopy(model.module).double(), nn.CrossEntropyLoss()
    optimizer = make(list(module.named_parameters()))
    for step in range(STEPS):
        points = batch_indices(len(model.dataset), batch_size=16, seed=model.seed, step=step)
        x, y = (column[torch.tensor(points)] for column in model.dataset.tensors)
        module.zero_grad()
        loss(module(x.double()), y).backward()
        if model.gradient_clip_val is not None:
            clip_grad_norm_(module.parameters(), model.gradient_clip_val)
        optimizer.step()
    return flat(module)


@pytest.mark.parametrize("make", [grouped, partial(grouped, lr=0.01), last_only])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_parameters_are_grouped_by_name_or_left_out_as_in_a_plain_loop(
    make: Callable[[Named], torch.optim.Optimizer], clip: float | None
) -> None:
    model = make_model(optimizer=make, gradient_clip_val=clip)
    workload, compute = begun(model)
    half = go_on(workload, compute, range(STEPS // 2))
    state = workload.snapshot()
    trained = go_on(workload, compute, range(STEPS // 2, STEPS))
    np.testing.assert_allclose(trained, plain(model, make), rtol=0, atol=1e-12)
    assert not np.allclose(trained, half)
    again, compute = begun(model)
    again.restore(*state)
    assert np.array_equal(go_on(again, compute, range(STEPS // 2, STEPS)), trained)


def test_an_optimizer_of_the_modules_own_parameters_is_refused() -> None:
    model = make_model()
    module = model.module
    foreign = make_model(
        module=module, optimizer=lambda _: torch.optim.SGD(module.parameters(), lr=1.0)
    )
    with pytest.raises(ParameterError, match=r"SGD with 4 others, such as '1\.weight'") as caught:
        begun(foreign)
    assert caught.value.argument == "optimizer"
    assert "named_parameters" in str(caught.value)
    one = nn.Parameter(torch.ones(3))
    with pytest.raises(ParameterError, match="SGD with 1 others'"):
        begun(make_model(optimizer=lambda given: torch.optim.SGD([*given, one], lr=1.0)))


def test_a_file_names_a_factory_that_asks_for_names() -> None:
    own = {"optimizer": f"{__name__}:grouped", "lr": 0.02, "optimizer_args": {"decay": 0.2}}
    (model,) = make_models(checked({"models": [{"name": "net", "module": "mlp", **own}]}))
    same = make_model(module=model.module, optimizer=partial(grouped, lr=0.02, decay=0.2))
    other = make_model(module=model.module, optimizer=partial(grouped, lr=0.02, decay=0.1))
    plans = [TrainingPlan(models=[m], scheme="uncoded", steps=1) for m in (model, same, other)]
    seen = [fingerprint(plan.on(2), config="") for plan in plans]
    settings = [each["net: optimizer's settings"] for each in seen]
    assert settings[0] == settings[1] != settings[2]
    begun(model)

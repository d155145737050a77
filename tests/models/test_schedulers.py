"""Clipping and learning-rate schedules are those of a plain loop, and outlast their master."""

from __future__ import annotations

import copy
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

from seqgc.config._tables import checked
from seqgc.errors import ParameterError
from seqgc.ports import MiniTask
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, TorchWorkload, TrainingPlan, batch_indices, train
from tests.cli.inside import make_models
from tests.kit import decoded
from tests.training.reference import Chunks, flat, make_model, mean_loss
from tests.training.test_resume import crew

STEPS = 9
ADAMW = partial(torch.optim.AdamW, lr=0.01, betas=(0.8, 0.95))
SGD = partial(torch.optim.SGD, lr=0.2, momentum=0.9)


def warm_up(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    first = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    then = lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    return lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[3])


def late_steps(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    """Schedulers of which the second begins when the run has been resumed."""
    first = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    then = lr_scheduler.MultiStepLR(optimizer, milestones=[1, 1, 2])
    return lr_scheduler.SequentialLR(optimizer, [first, then], milestones=[6])


SCHEDULERS = {
    "one-cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=STEPS),
    "warm-up": warm_up,
    "steps": partial(lr_scheduler.MultiStepLR, milestones=[2, 2, 5], gamma=0.5),
    "late-steps": late_steps,
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3),
}


def model(name: str, scheduler: object, clip: float | None, by: str, optimizer: object) -> Model:
    return replace(
        make_model(name, optimizer=optimizer),
        scheduler=scheduler,
        gradient_clip_val=clip,
        gradient_clip_algorithm=by,
    )


def models_of(name: str) -> list[Model]:
    by_norm = SGD if name == "cyclic" else ADAMW
    return [
        model(f"{name}-norm", SCHEDULERS[name], 0.5, "norm", by_norm),
        model(f"{name}-value", SCHEDULERS[name], 1e-3, "value", SGD),
    ]


def plain(model: Model) -> np.ndarray:
    """Return the weights that a loop without workers ends in."""
    module = copy.deepcopy(model.module).double()
    optimizer = model.optimizer(list(module.parameters()))
    scheduler = model.scheduler(optimizer)
    clip = clip_grad_norm_ if model.gradient_clip_algorithm == "norm" else clip_grad_value_
    for step in range(STEPS):
        points = batch_indices(len(model.dataset), batch_size=16, seed=model.seed, step=step)
        x, y = (column[torch.tensor(points)] for column in model.dataset.tensors)
        optimizer.zero_grad()
        mean_loss(model, module(x.double()), y).backward()
        clip(module.parameters(), model.gradient_clip_val)
        optimizer.step()
        scheduler.step()
    return flat(module)


def begun(models: list[Model]) -> tuple[TorchWorkload, TorchCompute]:
    store = MemoryStore()
    workload = TorchWorkload(models, scheme=Chunks(), store=store, precision="float64")
    return workload, TorchCompute([m.objective for m in models], store=store, precision="float64")


def go_on(workload: TorchWorkload, compute: TorchCompute, jobs: range) -> None:
    for job in jobs:
        workload.begin(job)
        whole = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        workload.finish(decoded(job), compute(workload.resolve(whole)))


def test_the_steps_are_those_of_a_plain_loop_and_of_a_resumed_run() -> None:
    models = [model for name in SCHEDULERS for model in models_of(name)]
    half, jobs = 5 * len(models) + 3, STEPS * len(models)
    workload, compute = begun(models)
    go_on(workload, compute, range(half))
    state = workload.snapshot()
    go_on(workload, compute, range(half, jobs))
    workload.flush()
    again, compute = begun(models)
    again.restore(*state)
    go_on(again, compute, range(half, jobs))
    again.flush()
    for model in models:
        weights = flat(workload.module(model.name))
        assert np.allclose(weights, plain(model), rtol=0, atol=1e-12)
        assert np.array_equal(weights, flat(again.module(model.name)))


class Rates:
    def __init__(self) -> None:
        self.told: list[float] = []

    def on_step(self, model: str, step: int, loss: float, metrics: dict[str, float]) -> None:  # noqa: ARG002
        self.told.append(metrics["lr"])


def test_callbacks_are_told_the_rate_with_which_the_step_was_taken() -> None:
    halved = replace(make_model(optimizer=SGD), scheduler=SCHEDULERS["steps"])
    store, rates = MemoryStore(), Rates()
    workload = TorchWorkload(
        [halved], scheme=Chunks(), store=store, precision="float64", callbacks=[rates]
    )
    go_on(workload, TorchCompute([halved.objective], store=store, precision="float64"), range(6))
    workload.flush()
    assert rates.told == pytest.approx([0.2, 0.2, 0.05, 0.05, 0.05, 0.025])  # at 2 twice, at 5


def lambdas() -> Callable[[torch.optim.Optimizer], object]:
    class Odd:
        def __init__(self) -> None:
            self.what = object()

        def __call__(self, _: int) -> float:
            return 1.0

    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, Odd())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scheduler": lambda _: None}, "`scheduler` must be a factory, optimizer -> "),
        ({"scheduler": partial(lr_scheduler.StepLR, size=3)}, "unexpected keyword argument 'size'"),
        (
            {"scheduler": partial(lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=STEPS - 1)},
            "`scheduler` must last for the 9 steps of the run; got 'total_steps=8'",
        ),
        ({"scheduler": lambdas()}, "a checkpoint can"),
        ({"scheduler": lr_scheduler.ReduceLROnPlateau}, "must not depend on a metric"),
        ({"gradient_clip_val": 0.0}, "`gradient_clip_val` must be a finite number > 0"),
        ({"gradient_clip_algorithm": "nrom"}, "must be one of norm, value"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    changes: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match=says):
        train(
            TrainingPlan(models=[replace(make_model(), **changes)], scheme="gc:s=2", steps=STEPS),
            crew(),
            run=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


OF_A_FILE = """
steps = 9
models = [{name = "a", module = "mlp", lr = 0.02, gradient_clip_val = 0.5, %s}]
"""


def of_a_file(settings: str) -> Model:
    (model,) = make_models(checked(tomllib.loads(OF_A_FILE % settings)))
    return model


def test_a_file_names_any_argument_and_a_schedule_knows_the_run() -> None:
    model = of_a_file(
        'optimizer = "adamW", optimizer_args = {betas = [0.8, 0.9], amsgrad = true}, '
        'scheduler = "OneCycleLR", scheduler_args = {pct_start = 0.2}'
    )
    expected = {"lr": 0.02, "betas": (0.8, 0.9), "amsgrad": True}
    assert (model.optimizer.func, model.optimizer.keywords) == (torch.optim.AdamW, expected)
    assert model.scheduler.func is lr_scheduler.OneCycleLR
    assert model.scheduler.keywords == {"max_lr": 0.02, "total_steps": 9, "pct_start": 0.2}
    assert (model.gradient_clip_val, model.gradient_clip_algorithm) == (0.5, "norm")
    own = of_a_file(f'optimizer = "{__name__}:own", scheduler = "{__name__}:warm_up"')
    assert own.optimizer.keywords == {"lr": 0.02}
    assert own.scheduler.func is sys.modules[__name__].warm_up


@pytest.mark.parametrize(
    ("settings", "known"),
    [
        ('scheduler = "cosineannealinglr"', {"T_max": 9}),
        ('scheduler = "polynomiallr"', {"total_iters": 9}),
        ('scheduler = "polynomiallr", scheduler_args = {total_iters = 4}', {"total_iters": 4}),
        (
            'scheduler = "onecyclelr", scheduler_args = {epochs = 3, steps_per_epoch = 3}',
            {"max_lr": 0.02, "epochs": 3, "steps_per_epoch": 3},
        ),
    ],
)
def test_what_the_run_knows_is_implied_unless_given(
    settings: str, known: dict[str, object]
) -> None:
    assert of_a_file(settings).scheduler.keywords == known


def own(parameters: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=2 * lr)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('optimizer_args = {beta = 1}', "must be arguments of adam, which .* got 'beta' "),
        ('scheduler = "steplr", scheduler_args = {gama = 1}', "did you mean 'gamma'"),
    ],
)  # fmt: skip
def test_an_argument_that_there_is_not_is_refused(settings: str, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        of_a_file(settings)

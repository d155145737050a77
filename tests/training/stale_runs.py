"""What the tests of runs whose workers go on by themselves have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from seqgc import workers
from seqgc.ports import Backend, FloatArray
from seqgc.profiles import ByRound
from seqgc.training import (
    Model,
    TrainingPlan,
    TrainResult,
    Updates,
)
from seqgc.virtual import Faults, VirtualBackend
from tests.training.reference import flat, make_model, train_alone
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)

N = 4
ADAM = partial(torch.optim.Adam, lr=1e-2)
CLOCK, LATE = Updates(apply="clock"), Updates(apply="clock", refresh="late")


def virtual(seed: int = 0, *, rounds: int = 40, faults: Faults | None = None) -> workers.WorkerSet:
    """Workers of this process, in virtual time, whose times are those of stragglers."""
    times = 1 + np.minimum(np.random.default_rng(seed).pareto(1.0, (rounds, N)), 9)
    return workers.custom(N, partial(backend_of, times=times, faults=faults))


def backend_of(
    n: int, factory: Callable[[], object], *, times: FloatArray, faults: Faults | None
) -> Backend:
    threads = torch.get_num_threads()
    compute = factory()
    torch.set_num_threads(threads)
    pace = ByRound(latencies_s=times, rates=[[0.0] * n])
    return VirtualBackend(n, pace, compute=compute, faults=faults)


def weight(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """A loss whose gradient is the same on any weights: where a run ends says what it applied."""
    return output.sum(dim=1) / 100


def straight_model(name: str = "net", *, seed: int = 0, batch_size: int = 10) -> Model:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    return make_model(name, seed=seed, module=module, loss=weight, batch_size=batch_size)


def applied_once(result: TrainResult, plan: TrainingPlan) -> None:
    """Every part of every batch has been applied, and none twice."""
    for model in plan.models:
        alone, _ = train_alone(model, steps=plan.steps, dtype=torch.float64)
        found = flat(result.modules[model.name])
        np.testing.assert_allclose(found, flat(alone), rtol=0, atol=1e-10, err_msg=model.name)

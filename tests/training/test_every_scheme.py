"""Training through the one loop equals plain training, for every scheme, on any delays."""

from __future__ import annotations

from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch

from seqgc.master import run
from seqgc.ports import FloatArray
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, TorchWorkload
from tests.kit import SOAK
from tests.training.reference import flat, make_model, train_alone

N, STEPS = 6, 5
SPECS = [
    "uncoded",
    "gc:s=2",
    "gc-rep:s=2",
    "gc-binary:s=3",
    "sr-sgc:B=1,W=2,lam=2",
    "sr-sgc-rep:B=1,W=2,lam=3",
    "m-sgc:B=1,W=2,lam=2",
    "m-sgc:B=2,W=3,lam=6",
    "m-sgc-rep:B=2,W=3,lam=1",
    "ra-sgc:s=0,q=0.5,r=2",
    "ra-sgc:s=1,q=0.5,r=2,p=2",
    "m-sgc:B=2,W=3,lam=2,late=take",
    "sr-sgc:B=2,W=3,lam=2,late=take",
]


def heavy_tailed(rounds: int, *, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 1 + rng.pareto(1.1, size=(rounds, N))


@cache
def models() -> list[Model]:
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    return [
        make_model(f"m{i}", seed=i, optimizer=optimizer, batch_size=[16, 5, 64, 1][i])
        for i in range(4)
    ]


@cache
def expected(index: int) -> FloatArray:
    alone, _ = train_alone(models()[index], steps=STEPS, dtype=torch.float64)
    return flat(alone)


BOTH = list(product(SPECS, ["all", "conform", "feasible"]))


# Every second: each scheme comes with one rule at least, and each rule with half of them.
@pytest.mark.parametrize(("spec", "wait_out"), BOTH if SOAK else BOTH[::2])
def test_four_models_end_with_the_weights_of_plain_training(spec: str, wait_out: str) -> None:
    scheme, store = parse_scheme(spec, n=N), MemoryStore()
    workload = TorchWorkload(models(), scheme=scheme, store=store, precision="float64")
    compute = TorchCompute([m.objective for m in models()], store=store, precision="float64")
    schedule = scheme.start(4 * STEPS)
    policy = RoundPolicy(schedule, ClosingRule(mu=0.2, wait_out=wait_out))
    delays = heavy_tailed(schedule.num_rounds, seed=SPECS.index(spec))
    run(policy, ReplayBackend(delays, compute=compute), workload)
    workload.flush()
    assert len(workload.metrics) == 4 * STEPS
    for index, model in enumerate(models()):
        trained = flat(workload.module(model.name))
        np.testing.assert_allclose(trained, expected(index), rtol=0, atol=1e-8, err_msg=model.name)

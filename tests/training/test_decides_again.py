"""Whoever is told what a live run's policy was told decides what it decided, for every defence."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc import workers
from seqgc.ports import Seen
from seqgc.rounds import PolicyDefence, RunPolicy, SwitchingPolicy, policy_of
from seqgc.training import TrainingPlan, train
from tests.backends.dask import warm as warm
from tests.kit import SOAK
from tests.shards.applied import again, decided
from tests.training.reference import make_model

N, MODELS, STEPS, BATCH = 4, 2, 8, 16
DEFENCES = (
    "bsp",
    "a-bsp:wpc=2",
    "ssp:slack=1",
    "asp",
    "asp-dds:M=2",
    "balanced:shares=1-2-2-3",
    "lb-bsp",
    "antdt-nd:trans=0.05,per=0.2,act=0.05",
    "antdt-nd-asp:M=2,lam=1.2,per=0.2,act=0.05",
    "antdt-dd",
    "backup:b=1",
    "gc-rep:s=1",
    "gc:s=1",
    "sr-sgc:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "ra-sgc:s=1,q=0.5,r=2",
    "deal",
)
CREWS = {"local": workers.local, "dask": workers.dask}
ON_DASK = ("asp", "lb-bsp", "backup:b=1", "asp-dds:M=2", "ssp:slack=1")[: 5 if SOAK else 3]
"""One of each kind: its processes take long to start."""


def in_turns(round: int, worker: int, _load: float) -> float:
    """The third worker is slow in all that it does, the others now and then."""
    return 0.03 if worker == 2 else 0.02 * (worker == round % N)


@pytest.mark.parametrize(
    ("crew", "spec"),
    [*(("local", spec) for spec in DEFENCES), *(("dask", spec) for spec in ON_DASK)],
)
def test_told_the_same_it_decides_the_same(crew: str, spec: str, tmp_path: Path) -> None:
    seen: list[Seen] = []
    models = [make_model(f"net{k}", batch_size=BATCH) for k in range(MODELS)]
    plan = TrainingPlan(models=models, scheme=spec, jobs_per_round=1, steps=STEPS)
    with CREWS[crew](N, delays=in_turns) as made:
        result = train(plan, made, run=tmp_path / "run", observers=[seen.append])
    assert result.jobs == MODELS * STEPS
    setting = plan.on(N).setting
    another: RunPolicy
    jobs, batches = plan.on(N).num_jobs, [BATCH] * MODELS
    if isinstance(setting.scheme, PolicyDefence):
        another = policy_of(setting, num_jobs=jobs, batches=batches, payload=plan.payload)
    else:
        another = SwitchingPolicy(
            setting, num_jobs=jobs, batches=batches, payload=plan.payload, bundles=MODELS
        )
    assert again(another, seen) == decided(seen)

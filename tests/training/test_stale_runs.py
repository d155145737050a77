"""Whole runs whose workers go on by themselves: trained, recorded, refused, gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqgc import read_run, workers
from seqgc.errors import ParameterError
from seqgc.ports import Seen, Update
from seqgc.report import run_page
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.training import (
    Adaptation,
    Callback,
    Stop,
    TrainingPlan,
    Updates,
    train,
)
from seqgc.virtual import RandomFaults
from tests.training.reference import flat, make_model, train_alone
from tests.training.stale_runs import (
    ADAM,
    CLOCK,
    LATE,
    N,
    applied_once,
    backend_of,
    straight_model,
    virtual,
    weight,
)
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)


@pytest.mark.parametrize(
    "spec",
    [
        "bsp", "a-bsp:wpc=2", "ssp:slack=1", "ssp:slack=2,wpc=2", "asp", "asp-dds:M=3",
        "antdt-nd-asp:M=3,lam=1.1,per=4.0,act=1.0",
    ],
)  # fmt: skip
def test_every_part_of_every_batch_is_applied_once(spec: str, tmp_path: Path) -> None:
    seen: Counter[tuple[int, int]] = Counter()

    def count(each: Seen) -> None:
        if isinstance(each, Update) and (part := each.decoding().part) is not None:
            seen[each.job, part.index] += 1

    models = [straight_model("a"), straight_model("b", seed=1, batch_size=3)]
    plan = TrainingPlan(models=models, scheme=spec, jobs_per_round=1, steps=5, precision="float64")
    result = train(plan, virtual(), run=tmp_path / "run", observers=[count])
    applied_once(result, plan)
    assert seen == Counter({(job, part): 1 for job in range(10) for part in range(N)})
    clocks = 5 if "wpc" in spec else 10
    assert (result.jobs, result.counts.rounds, result.scheme) == (10, clocks, spec)


@pytest.mark.parametrize("updates", [None, Updates()], ids=["clock", "update"])
def test_a_barrier_makes_plain_training(updates: Updates | None, tmp_path: Path) -> None:
    models = [make_model(f"m{i}", seed=i, batch_size=[16, 7][i]) for i in range(2)]
    plan = TrainingPlan(
        models=models, scheme="bsp", jobs_per_round=1, steps=4, precision="float64", updates=updates
    )
    result = train(plan, virtual(), run=tmp_path / "run")
    for model in models:
        alone, _ = train_alone(model, steps=4, dtype=torch.float64)
        found = flat(result.modules[model.name])
        np.testing.assert_allclose(found, flat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("jobs_per_round", [1, 2])
def test_a_run_that_reads_as_late_as_may_be_has_the_same_bits_whoever_is_slow(
    jobs_per_round: int, tmp_path: Path
) -> None:
    models = [make_model(f"m{i}", seed=i, optimizer=ADAM) for i in range(2)]
    setting = Setting(scheme=parse_scheme("ssp:slack=1", n=N), jobs_per_round=jobs_per_round)
    plan = TrainingPlan(models=models, scheme=setting, steps=6, precision="float64", updates=LATE)
    one, other = (train(plan, virtual(seed), run=tmp_path / str(seed)) for seed in (0, 1))
    for model in models:
        found = flat(one.modules[model.name])
        np.testing.assert_array_equal(found, flat(other.modules[model.name]))
        late, _ = train_alone(model, steps=6, dtype=torch.float64, steps_late=jobs_per_round == 2)
        np.testing.assert_allclose(found, flat(late), rtol=0, atol=1e-8)


def test_a_stale_run_is_recorded_and_can_be_looked_at(tmp_path: Path) -> None:
    plan = TrainingPlan(models=[make_model()], scheme="ssp:slack=1", steps=6)
    result = train(plan, virtual(), run=tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.scheme, run.workers, run.outcome, run.gaps) == ("ssp:slack=1", N, "finished", ())
    assert run.rounds()["round"].tolist() == list(range(6))
    assert result.counts.rounds == 6
    assert run.jobs()["job"].tolist() == list(range(6))
    answers = run.answers()
    assert len(answers["round"]) == 6 * N
    assert set(answers["outcome"]) == {"used"}
    assert run.models()["loss"].shape == (6,)
    assert "ssp:slack=1" in run_page({"run": run}).html()


def test_a_run_ends_early_when_nobody_is_left_to_train(tmp_path: Path) -> None:
    class AfterTwo(Callback):
        def on_step(self, _: str, step: int, *__: object) -> Stop | None:
            return Stop.RUN if step == 2 else None

    plan = TrainingPlan(models=[make_model()], scheme="ssp:slack=1", steps=50)
    result = train(plan, virtual(), run=tmp_path / "run", callbacks=[AfterTwo()])
    assert result.jobs < 8
    assert result.parked["net"].step == 2


@pytest.mark.parametrize("spec", ["ssp:slack=1", "asp-dds:M=2"])
def test_a_model_that_diverges_is_parked_and_the_others_are_none_the_worse(
    spec: str, tmp_path: Path
) -> None:
    sound = straight_model("sound")
    wild = make_model("wild", optimizer=partial(torch.optim.SGD, lr=1e200))
    plan = TrainingPlan(
        models=[wild, sound], scheme=spec, jobs_per_round=1, steps=6, precision="float64"
    )
    result = train(plan, virtual(), run=tmp_path / "run")
    assert result.failed.keys() == {"wild"}
    assert result.failed["wild"].kind == "diverged"
    applied_once(
        replace(result, modules={"sound": result.modules["sound"]}), replace(plan, models=[sound])
    )


# ---- failures -----------------------------------------------------------------------------------


def test_failures_take_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    plan = TrainingPlan(
        models=[straight_model()], scheme="ssp:slack=1", steps=8, precision="float64"
    )
    result = train(
        plan, virtual(faults=RandomFaults(fail=0.2, die=0.1, seed=0)), run=tmp_path / "run"
    )
    assert result.counts.failures >= 3
    applied_once(result, plan)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("ssp:slack=1", {"audit": True}, "`scheme` must have rounds for an audit"),
        ("asp", {"adaptation": Adaptation(probe=2, alpha=1.0)}, "must have rounds for --probe"),
        ("ssp:slack=1", {"stale": True}, "`stale` must be left out with ssp:slack=1"),
        ("gc:s=1", {"updates": CLOCK}, "`updates` must be left out with gc:s=1"),
        ("asp", {"updates": LATE}, "`refresh` must be always"),
        (
            "asp-dds:M=2,resume=shard",
            {"updates": CLOCK},
            r"`apply` must be update .*got 'clock' \(take resume=part\)",
        ),
        (
            "ssp:slack=1",
            {"models": [make_model(optimizer=ADAM)]},
            r'Adam. \(.*apply="clock", or --apply clock\)',
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_starts(
    scheme: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    plan = TrainingPlan(
        **{"models": [make_model()], "scheme": scheme, "steps": 2} | options  # type: ignore[arg-type]
    )
    with pytest.raises(ParameterError, match=message) as refused:
        train(plan, virtual(), run=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_old_updates_weigh_less_where_that_is_asked_for(tmp_path: Path) -> None:
    """The slowest worker's part of the first batch comes when others have done three more."""
    times = np.ones((9, N))
    times[0, 0] = 3.5
    crew = workers.custom(N, partial(backend_of, times=times, faults=None))
    weights: list[float] = []

    def look(seen: Seen) -> None:
        if isinstance(seen, Update):
            (term,) = seen.decoding().terms
            weights.append(term.weight)

    plan = TrainingPlan(models=[make_model()], scheme="asp", steps=4, updates=Updates(aware=True))
    train(plan, crew, run=tmp_path / "run", observers=[look])
    # nine updates came before worker 0's first, two clocks and a quarter of them
    assert Counter(weights) == {1.0: 15, 1 / 3: 1}
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "run"


class Mortal(nn.Module):
    """Kills the worker's process that computes it as often as there are files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)
        self.folder = str(folder)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for file in Path(self.folder).iterdir() if parent_process() else ():
            with suppress(FileNotFoundError):  # another worker was first
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x.flatten(1))


@pytest.mark.parametrize("spec", ["ssp:slack=1", "asp-dds:M=2"])
def test_workers_that_are_killed_take_nothing_and_repeat_nothing(spec: str, tmp_path: Path) -> None:
    (tmp_path / "kills").mkdir()
    for name in "ab":
        (tmp_path / "kills" / name).touch()
    model = make_model(module=Mortal(tmp_path / "kills"), loss=weight)
    plan = TrainingPlan(models=[model], scheme=spec, steps=6, precision="float64")
    with workers.local(3) as crew:
        result = train(plan, crew, run=tmp_path / "run")
    assert result.counts.failures == 2
    applied_once(result, plan)

"""A callback ends the run while jobs are under way: these are done, and nothing is done twice."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seqgc.runs import read_run
from seqgc.training import TrainingPlan, resume, train
from seqgc.training.callbacks import Callback, Stop
from tests.training.reference import make_model
from tests.training.test_resume import (
    CopyAt,
    crew,
    outcome,
    whole_checkpoints,  # noqa: F401 (used by itself)
)

SPECS = ["uncoded", "m-sgc:B=1,W=2,lam=2", "deal", "deal:pieces=9", "backup:b=2"]
STEPS, NAMES = 6, [f"m{i}" for i in range(4)]


class EndAt(Callback):
    def __init__(self, model: str, step: int) -> None:
        self._at = model, step

    def on_step(self, model: str, step: int, *_: object) -> Stop | None:
        return Stop.RUN if (model, step) == self._at else None


def plan(spec: str) -> TrainingPlan:
    models = [make_model(name, seed=i) for i, name in enumerate(NAMES)]
    return TrainingPlan(
        models=models, scheme=spec, jobs_per_round=1, steps=STEPS, checkpoint_every_s=1e-9
    )


def steps_of(run: Path) -> dict[str, list[list[str]]]:
    rows = outcome(run)[1][1:]
    return {name: [row[2:] for row in rows if row[1] == name] for name in NAMES}


@cache
def whole(spec: str) -> dict[str, list[list[str]]]:
    with TemporaryDirectory() as folder:
        train(plan(spec), crew(), run=Path(folder, "run"))
        return steps_of(Path(folder, "run"))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("model", "step"), [("m0", 1), ("m2", 3)])
def test_a_run_that_a_callback_ends_has_done_what_had_begun(
    spec: str, model: str, step: int, tmp_path: Path
) -> None:
    watch, callback = CopyAt(tmp_path / "run", set(range(25, 400, 75))), EndAt(model, step)
    result = train(
        plan(spec), crew(), run=tmp_path / "run", observers=[watch], callbacks=[callback]
    )
    check(result.run, spec, model, step)
    for copy in watch.copies:
        check(resume(copy, plan(spec), crew(), callbacks=[callback]).run, spec, model, step)


def check(run: Path, spec: str, model: str, step: int) -> None:
    recorded, steps, exact = read_run(run), steps_of(run), spec != "backup:b=2"
    assert recorded.outcome == "finished"
    assert not [gap for gap in recorded.gaps if "cannot be read" in gap]
    assert step <= len(steps[model]) < STEPS
    for name in NAMES if exact else []:
        assert steps[name] == whole(spec)[name][: len(steps[name])], name

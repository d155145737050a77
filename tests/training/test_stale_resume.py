"""Runs whose workers go on by themselves are broken off, and gone on with: each part once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqgc import read_run
from seqgc.errors import ParameterError
from seqgc.ports import Seen
from seqgc.training import (
    TrainingPlan,
    resume,
    train,
)
from tests.kit import SOAK
from tests.training.reference import flat, make_model
from tests.training.stale_runs import (
    ADAM,
    LATE,
    applied_once,
    straight_model,
    virtual,
)
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)


@pytest.mark.parametrize(
    "spec", ["ssp:slack=2", "asp-dds:M=2", "antdt-nd-asp:M=2,lam=1.1,per=4,act=1"]
)
def test_a_run_that_is_broken_off_applies_every_part_once(spec: str, tmp_path: Path) -> None:
    """Whatever had been applied after the checkpoint, and whatever was under way."""
    models = [straight_model("a"), straight_model("b", seed=1)]
    plan = TrainingPlan(
        models=models,
        scheme=spec,
        jobs_per_round=1,
        steps=4,
        precision="float64",
        checkpoint_every_s=1e-9,
    )
    crash = CopyAt(tmp_path / "run", set(range(25, 200, 3 if SOAK else 41)))
    applied_once(train(plan, virtual(), run=tmp_path / "run", observers=[crash]), plan)
    assert len(crash.copies) >= 2
    for copy in crash.copies:
        had_checkpoint = bool(list(copy.glob("checkpoints/[0-9]*")))
        result = resume(copy, plan, virtual(1))
        applied_once(result, plan)
        run = read_run(copy)
        assert run.outcome == "finished"
        assert run.rounds()["round"].tolist() == list(range(8))
        said = " ".join(run.notices()["text"])
        assert ("newer weights, and applied once" in said) == had_checkpoint
        rows = (copy / "metrics.csv").read_text().splitlines()[1:]
        steps = Counter(tuple(row.split(",")[1:4]) for row in rows)
        assert steps == Counter({(str(job), "ab"[job % 2], str(job // 2)): 1 for job in range(8)})


def test_a_run_that_reads_as_late_as_may_be_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    plan = TrainingPlan(
        models=[make_model(optimizer=ADAM)],
        scheme="ssp:slack=1",
        jobs_per_round=1,
        steps=6,
        updates=LATE,
        checkpoint_every_s=1e-9,
    )
    crash = CopyAt(tmp_path / "run", set(range(20, 100, 3 if SOAK else 29)))
    whole = train(plan, virtual(), run=tmp_path / "run", observers=[crash])
    assert len(crash.copies) >= 2
    for copy in crash.copies:
        result = resume(copy, plan, virtual(1))
        np.testing.assert_array_equal(flat(result.modules["net"]), flat(whole.modules["net"]))
        assert "newer weights" not in " ".join(read_run(copy).notices()["text"])


def test_a_run_that_fails_in_the_midst_of_an_update_goes_on_from_before_it(tmp_path: Path) -> None:
    """Its last checkpoint is none that the policy took for further than the weights are."""
    for instant in range(8, 60, 1 if SOAK else 17):
        seen = 0

        def stumble(_: Seen, instant: int = instant) -> None:
            nonlocal seen
            seen += 1
            if seen == instant:
                raise OSError("no space left for anything")

        plan = TrainingPlan(
            models=[straight_model()], scheme="asp", steps=5, precision="float64",
            checkpoint_every_s=1e-9,
        )  # fmt: skip
        run = tmp_path / str(instant)
        with pytest.raises(OSError, match="no space"):
            train(plan, virtual(), run=run, observers=[stumble])
        applied_once(resume(run, plan, virtual(1)), plan)


def test_a_checkpoint_of_another_defence_is_refused(tmp_path: Path) -> None:
    rounds = TrainingPlan(models=[make_model()], scheme="gc:s=1", steps=3)
    clocks = replace(rounds, scheme="ssp:slack=1")
    for plan, other in ((rounds, clocks), (clocks, rounds)):
        run = tmp_path / str(plan.scheme)
        train(plan, virtual(), run=run)
        with pytest.raises(ParameterError, match="changed since: scheme"):
            resume(run, other, virtual())
        with pytest.raises(ParameterError, match="`scheme` must stay as it was"):
            resume(run, other, virtual(), accept_changes=True)

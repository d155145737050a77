"""What a run says of a slowdown of all workers: on record, on stderr, and when it is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.cli.progress import run_progress
from seqgc.errors import BudgetError
from seqgc.ports import Dispatch, Seen
from seqgc.training import TrainingPlan, resume, train
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed

N, STEPS, SLOW = 6, 60, 30  # 30 rounds of which are slow


def crew() -> workers.WorkerSet:
    times = 1 + 0.2 * np.random.default_rng(1).random((STEPS, N))
    times[SLOW:] *= 20
    return workers.custom(N, replayed(times))


def plan() -> TrainingPlan:
    return TrainingPlan(models=[make_model()], scheme="gc:s=1", steps=STEPS, checkpoint_every_s=1e9)


def slowdowns(run: Path) -> list[dict[str, object]]:
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] in {"slowdown", "recovered"}]


def test_it_is_one_line_on_record_and_one_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_progress("gc:s=1", total=STEPS) as progress:
        train(plan(), crew(), run=tmp_path / "run", observers=[progress])
    (line,) = slowdowns(tmp_path / "run")
    assert (line["event"], line["since"], line["round"]) == ("slowdown", SLOW, SLOW + 7)
    said = [text for text in capsys.readouterr().err.splitlines() if "before" in text]
    times = line["times"]
    assert said == [f"since round {SLOW} all workers take {times:.3g} times as long as before"]


@pytest.mark.parametrize("after", [SLOW + 4, SLOW + 15])
def test_a_resumed_run_knows_what_was_usual_and_what_was_said(tmp_path: Path, after: int) -> None:
    def stop(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == after:  # nothing is lost there
            raise BudgetError("enough", round=after, spent_usd=0.0)

    with pytest.raises(BudgetError):
        train(plan(), crew(), run=tmp_path / "run", observers=[stop])
    resume(tmp_path / "run", plan(), crew())
    (line,) = slowdowns(tmp_path / "run")
    assert (line["since"], line["round"]) == (SLOW, SLOW + 7)

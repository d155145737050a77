"""Predicted run times, beside the times that runs took."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import LAMBDA_CNN, write_profile
from seqgc.runs import Prediction, past_predictions, read_predictions, read_run
from tests.cli.kit import TRAIN, Out
from tests.runs.logs import write_run

SECONDS = [[1.0, 2.0]] * 5
PREDICTED = {"event": "prediction", "scheme": "uncoded", "predicted_s": 11.0}


def test_a_prediction_is_held_against_the_time_that_the_run_took(tmp_path: Path) -> None:
    (found,) = read_predictions(write_run(tmp_path, SECONDS, notices=[PREDICTED]))
    assert found == Prediction(source="plan", scheme="uncoded", predicted_s=11.0, took_s=10.0)
    assert found.error == pytest.approx(0.1)
    assert "11.0 s" in found.words
    assert "10.0 s" in found.words


def test_a_search_during_the_run_predicts_the_rest(tmp_path: Path) -> None:
    search = {"event": "search", "to": "gc:s=1", "predicted_s": {"from": 9.0, "to": 8.0}}
    failed = {"event": "search", "outcome": "failed", "reason": "alpha"}
    found = read_predictions(write_run(tmp_path, SECONDS, notices=[search, failed]))
    assert [(each.source, each.scheme, each.predicted_s) for each in found] == [
        ("search", "gc:s=1", 8.0)
    ]


def test_a_run_that_was_resumed_took_the_time_of_both_masters(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SECONDS, notices=[PREDICTED])
    log = (run / "events.jsonl").read_text().splitlines()
    again = write_run(tmp_path / "again", SECONDS)
    later = (again / "events.jsonl").read_text().splitlines()
    resumed = {**json.loads(later[0]), "event": "resume"}
    text = "\n".join([*log[:-1], json.dumps(resumed), *later[1:]])
    (run / "events.jsonl").write_text(text + "\n")
    (found,) = read_predictions(run)
    assert found.took_s == pytest.approx(20.0)
    (run / "events.jsonl").write_text("\n".join(log[:-1]) + "\n")
    (found,) = read_predictions(run)
    assert found.took_s is None


def test_past_runs_say_how_far_predictions_were_off(tmp_path: Path) -> None:
    assert past_predictions(tmp_path / "absent") is None
    for name, predicted_s in (("a", 9.0), ("b", 11.0), ("c", 12.0)):
        notice = PREDICTED | {"predicted_s": predicted_s}
        write_run(tmp_path / name, SECONDS, notices=[notice])
    write_run(tmp_path / "without", SECONDS)
    (tmp_path / "no run").mkdir()
    found = past_predictions(tmp_path)
    assert found is not None
    assert found.runs == 3
    assert sorted(found.errors) == pytest.approx([-0.1, 0.1, 0.2])
    assert "+10 %" in found.words


def test_train_ends_with_what_was_predicted_and_what_it_took(tmp_path: Path, capsys: Out) -> None:
    run = tmp_path / "run"
    more = ["--scheme", "uncoded", "-n", "2", "--run", str(run), "--predicted-round-s", "0.5"]
    assert main([*TRAIN, *more, "--json"]) == 0
    (fact,) = json.loads(capsys.readouterr().out)["predictions"]
    rounds = len(read_run(run).rounds()["round"])
    assert fact["predicted_s"] == pytest.approx(0.5 * rounds)
    assert 0 < fact["took_s"] < 60
    assert main(["explain", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == [fact]


def test_tune_hands_its_prediction_to_train(tmp_path: Path, capsys: Out) -> None:
    profile = LAMBDA_CNN.profile(12, workers=4, rng=np.random.default_rng(0))
    write_profile(profile, path=tmp_path / "p.npz")
    words = ["tune", str(tmp_path / "p.npz"), "--schemes", "gc-rep", "--top", "1"]
    assert main(words) == 0
    command = capsys.readouterr().out.split("To train with the first one:")[1].split()
    predicted = float(command[command.index("--predicted-round-s") + 1])
    bundle = int(command[command.index("--jobs-per-round") + 1])
    assert main([*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert predicted * facts["jobs"] / bundle == pytest.approx(facts["best"]["runtime_s"], rel=1e-3)


def test_compare_says_how_past_predictions_were_off(tmp_path: Path, capsys: Out) -> None:
    write_run(tmp_path / "runs" / "a", SECONDS, notices=[PREDICTED])
    words = ["compare", "lambda-cnn:workers=4,rounds=4", "--defence", "uncoded", "--seeds", "1"]
    words += ["--lr", "8", "--runs", str(tmp_path / "runs")]
    assert main(words) == 0
    assert "+10 %" in capsys.readouterr().out

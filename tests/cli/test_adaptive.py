"""``seqgc train --probe`` and ``--retune`` as a user types them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from statistics import median

import pytest

from seqgc.cli import main
from seqgc.testing import eventually
from seqgc.training import run as run_module
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]
SMALL = ["-n", "4", "--models", "2", "--batch-size", "20", "--module", "mlp"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


BackgroundTuner = run_module.BackgroundTuner


class AwaitedTuner:
    """The search in the background, whose answer the run waits for: rounds do not race with it."""

    def __init__(self) -> None:
        self._tuner = BackgroundTuner()
        self._is_asked = False

    def submit(self, question: object) -> None:
        self._tuner.submit(question)
        self._is_asked = True

    def result(self) -> object | None:
        if not self._is_asked:
            return None
        self._is_asked = False
        return eventually(self._tuner.result, "an answer")

    def close(self) -> None:
        self._tuner.close()


@pytest.fixture(autouse=True)
def searches_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "BackgroundTuner", AwaitedTuner)


def stragglers(path: Path) -> None:
    """A profile in which one worker in turn takes 25 times as long: coding wins clearly."""
    rows = [[0.5 if (r + w) % 4 == 0 else 0.02 for w in range(4)] for r in range(8)]
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))


def test_a_probing_run_switches_on_what_it_saw_and_takes_every_step(capsys: Out) -> None:
    stragglers(Path("slow.csv"))
    delays = ["--delays", "slow.csv", "--delay-scale", "1", "--delay-alpha", "0.01"]
    line = ["train", *SMALL, *delays, "--steps", "12", "--probe", "4", "--run", "r", "--json"]
    assert main(line) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["jobs"] == 24
    assert (report["scheme"], report["schemes"][0], len(report["schemes"])) == (
        *("uncoded", "uncoded"),
        2,
    )
    log = [json.loads(text) for text in Path("r/events.jsonl").read_text().splitlines()]
    assert sorted(entry["job"] for entry in log if entry["event"] == "decode") == list(range(24))
    (switch,) = [entry for entry in log if entry["event"] == "switch"]
    assert switch["round"] == switch["job"] >= 4, "uncoded has no delay to drain"
    assert switch["from"] == "uncoded, mu=0, feasible"
    assert switch["to"].startswith(report["schemes"][1])
    assert switch["predicted_s"]["to"] < switch["predicted_s"]["from"]
    assert {"event", "at_s", *report["switches"][0]} == switch.keys()
    assert f"switch before round {switch['round']}: uncoded" in err
    closes = [entry["duration_s"] for entry in log if entry["event"] == "close"]
    uncoded, coded = closes[: switch["round"]], closes[switch["round"] + 1 :]
    assert median(coded) < 0.9 * median(uncoded), "a round no longer waits for the slow worker"
    saved = tomllib.loads(Path("r/config.toml").read_text())
    assert (saved["scheme"], saved["probe"], saved["delays"]["alpha"]) == ("uncoded", 4, 0.01)


def test_retuning_without_a_probe_begins_with_the_scheme_given(capsys: Out) -> None:
    options = ["--scheme", "gc-rep:s=1", "--retune", "3", "--alpha", "0", "--steps", "4"]
    assert main(["train", *SMALL, *options, "--run", "r", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schemes"][0] == "gc-rep:s=1"
    assert report["jobs"] == 8
    log = [json.loads(text) for text in Path("r/events.jsonl").read_text().splitlines()]
    searches = [entry for entry in log if entry["event"] == "search"]
    assert len(searches) == 2, "after three rounds of eight, and after six"
    assert searches[0]["from"].startswith("gc-rep:s=1")


BAD = {
    "train --probe 0 --alpha 1": "`probe` should be greater than or equal to 1; got 0",
    "train --retune 0 --alpha 1": "`retune` should be greater than or equal to 1; got 0",
    "train --probe 5": "`alpha` must be a finite number >= 0, in seconds per unit of load",
    "train --retune 5": "(measure it with `seqgc profile`, at several loads)",
    "train --probe 5 --alpha -1": "`alpha` should be greater than or equal to 0",
    "train --probe 5 --alpha 1 --scheme gc-rep:s=1": "`scheme` must be left out, or 'uncoded'",
    "train --probe 5 --alpha 1 --stale": "`stale` must be off",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(line: str, capsys: Out) -> None:
    assert BAD[line] in refused(capsys, *line.split())

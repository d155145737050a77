"""The whole training loop of `examples/cnn.toml`, on processes and on functions, from one file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqgc.cli import main

FILE = Path(__file__).resolve().parents[2] / "examples" / "cnn.toml"


def trained(run: Path) -> dict[str, tuple[dict[str, torch.Tensor], list[list[str]]]]:
    """Return, by model, all tensors that it ended with, the best included, and its losses."""
    rows = list(csv.reader((run / "metrics.csv").read_text().splitlines()))[1:]
    return {
        name: (
            {
                f"{path.name}: {key}": tensor
                for path in sorted(run.glob(f"checkpoints/{name}*.safetensors"))
                for key, tensor in load_file(path).items()
            },
            [row[3:] for row in rows if row[2] == name],
        )
        for name in {row[2] for row in rows}
    }


def equal(one: object, other: object) -> bool:
    (tensors, losses), (others, theirs) = one, other  # type: ignore[misc]
    same = tensors.keys() == others.keys() and all(
        torch.equal(tensors[key], others[key]) for key in tensors
    )
    return same and losses == theirs


def test_seven_learning_rates_get_the_bits_of_a_run_without_the_eighth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.read_text()
    without = tmp_path / "without.toml"
    without.write_text(text.replace(", 1e6]", "]"))
    reports = {}
    for name, arguments, status in (
        ("local", [str(FILE)], 1),
        ("functions", [str(FILE), "--backend", "lambda-local"], 1),
        ("seven", [str(without)], 0),
    ):
        run = str(tmp_path / name)
        small = ["--workers", "2", "--steps", "8"]
        assert main(["train", *arguments, *small, "--run", run, "--json"]) == status, name
        reports[name] = json.loads(capsys.readouterr().out)
    parked = reports["local"]["parked"]
    (wild,) = [name for name, each in parked.items() if each["kind"] == "diverged"]
    assert wild.endswith("1000000.0")
    stopped = {name for name, each in parked.items() if each["kind"] == "stopped early"}
    assert stopped
    assert set(reports["seven"]["parked"]) == stopped
    seven, local, functions = (trained(tmp_path / n) for n in ("seven", "local", "functions"))
    assert len(seven) == 7
    assert local.keys() == functions.keys() == {*seven, wild}
    for name, outcome in seven.items():
        assert any("best" in key for key in outcome[0])
        assert equal(outcome, local[name]), name
        assert equal(outcome, functions[name]), name

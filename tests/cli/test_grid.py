"""``[grid]``: a file that multiplies one model, and what becomes of one that cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.config._tables import checked, read_run_config
from seqgc.errors import ParameterError
from tests.cli.inside import make_plan
from tests.cli.kit import Out, weights
from tests.cli.refused import refused


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


BASE = """
scheme = "gc-rep:s=1"
workers = 2
steps = 2
precision = "float64"
[[models]]
name = "net"
module = "mlp"
optimizer = "sgd"
loss_args = { label_smoothing = 0.0 }
batch_size = 64
"""
GRID = f"{BASE}[grid]\nlr = [0.01, 0.3]\nmodule_args.width = [8, 32]\n"


def test_a_grid_is_the_models_that_could_have_been_written_one_by_one() -> None:
    base = {"name": "net", "module": "mlp"}
    axes = {"lr": [0.01, 0.3], "optimizer": ["sgd", "adam"], "seed": 3}
    models = checked({"models": [base], "grid": axes}).models
    points = [
        (lr, kind, seed) for lr in (0.01, 0.3) for kind in ("sgd", "adam") for seed in (0, 1, 2)
    ]
    assert [(m.lr, m.optimizer, m.seed) for m in models] == points
    assert {m.module for m in models} == {"mlp"}
    assert models[7].name == "net-lr_0.3-optimizer_sgd-seed_1"
    assert [m.name for m in checked({"grid": {"seed": [4]}}).models] == ["seed_4"]


def test_arguments_of_a_network_and_of_others_are_axes() -> None:
    base = {"name": "net", "module": "mlp", "loss_args": {"ignore_index": -1}}
    axes = {
        "module_args": {"width": [8, 16]},
        "loss_args": {"label_smoothing": [0.0, 0.1]},
        "optimizer_args": {"betas": [[0.9, 0.99]]},
    }
    models = checked({"models": [base], "grid": axes}).models
    points = [(width, smoothing) for width in (8, 16) for smoothing in (0.0, 0.1)]
    assert [(m.module_args["width"], m.loss_args["label_smoothing"]) for m in models] == points
    assert {m.loss_args["ignore_index"] for m in models} == {-1}
    assert models[1].name == "net-width_8-label_smoothing_0.1-betas_0"
    alike = {"module_args": {"size": [1]}, "data_args": {"size": [2]}}
    (model,) = checked({"grid": alike}).models
    assert model.name == "module_args.size_1-data_args.size_2"


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ("", ["`grid`", "must have at least one axis"]),
        ("lr = []", ["`grid.lr`", "at least one value"]),
        ("seed = 0", ["`grid.seed`", "an integer >= 1"]),
        ("lr = [0.1, 0.2]\nseed = 600", ["`grid`", "1000", "1200"]),
        ("seed = 1_000_000", ["`grid.seed`", "1000", "1000000"]),
        ("optimizer_args = [{betas = [0.9, 0.99]}, 3]", ["`grid.optimizer_args`", "dict"]),
        ("learning_rate = [0.1]", ["`grid.learning_rate`", "is not an axis", "lr"]),
        ("name = ['a']", ["`grid.name`", "is not an axis"]),
        ("lr = 0.1", ["`grid.lr`", "list"]),
        ("lr = [0.1, 0.1]", ["`grid.lr`", "distinct"]),
        ("lr = [0.1, true]", ["`grid.lr`", "a number, not true or false", "True"]),
        ("lr = [0.1, nan]", ["`grid.lr`", "finite"]),
        ("lr = [0.1, -1]", ["`grid.lr`", "greater than 0", "-1"]),
        ("loss = ['mse', 'msee']", ["`loss`", "net-loss_msee", "mse'?"]),
        ("module_args.width = 8", ["`grid.module_args.width`", "list"]),
        ("module_args.depth = [1, 2]", ["`module_args`", "of mlp, which are width", "'depth'"]),
        ("module_args.width.size = [1]", ["`grid.module_args.width`", "list"]),
        ("optimizer.adam = [1]", ["`grid.optimizer`", "list"]),
        ("loss_args.label_smoothing = [0.1]", ["`loss_args.label_smoothing`", "left out"]),
        ("module = ['mlp']", ["`module`", "must be left out"]),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_is_done(
    axes: str, words: list[str], capsys: Out
) -> None:
    Path("run.toml").write_text(f"{BASE}[grid]\n{axes}\n")
    told = refused(capsys, "train", "run.toml")
    assert all(word in told for word in words), told


def test_flags_and_models_that_a_grid_would_overrule_are_refused(capsys: Out) -> None:
    Path("run.toml").write_text(GRID)
    assert "`lr`" in refused(capsys, "train", "run.toml", "--lr", "0.1")
    assert "`models`" in refused(capsys, "train", "run.toml", "--models", "3")
    with pytest.raises(ParameterError, match="2 models"):
        checked({"models": [{"name": "a"}, {"name": "b"}], "grid": {"seed": 2}})
    with pytest.raises(ParameterError, match="did you mean 'grid'"):
        checked({"models": [{"name": "a"}], "gird": {"seed": 2}})


def test_models_are_trained_in_bundles_unless_the_number_is_given() -> None:
    def bundle(**more: object) -> int:
        values = {"scheme": "uncoded", "grid": {"module": ["mlp"], "seed": 12}, **more}
        values |= {"workers": 4}
        config = checked({name: value for name, value in values.items() if value is not None})
        return make_plan(config).on(4).setting.jobs_per_round

    assert bundle() == 12
    assert bundle(scheme=None) == 3  # some, for pieces of one while others are computed
    assert bundle(models=[{"name": name, "module": "mlp"} for name in "abc"], grid=None) == 3
    assert bundle(jobs_per_round=3) == 3
    assert bundle(grid={"module": ["mlp"], "seed": 41}, scheme="m-sgc:B=1,W=2,lam=1") == 21
    assert bundle(scheme="m-sgc:B=1,W=2,lam=1") == 6  # as many bundles as its delay asks for
    assert bundle(scheme="uncoded", retune=5, alpha=0.1) == 3  # some, for schemes that have a delay
    assert bundle(grid={"module": ["paper-cnn"], "seed": 4}) == 2  # of 270 thousand parameters


def test_a_grid_is_trained_ranked_and_resumed(capsys: Out) -> None:
    Path("run.toml").write_text(GRID)
    assert main(["train", "run.toml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 2  # of four models each
    assert main(["train", "run.toml", "--run", "run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    losses = {model["name"]: model["loss"] for model in facts["models"]}
    assert list(losses) == [f"net-lr_{lr}-width_{w}" for lr in (0.01, 0.3) for w in (8, 32)]
    assert facts["ranking"] == sorted(losses, key=losses.__getitem__)
    assert facts["ranking"] != list(losses)  # the larger steps have come further
    assert read_run_config(Path("run"))["jobs_per_round"] == 4
    trained = weights("run")
    assert main(["resume", "run"]) == 0
    shown = capsys.readouterr().out
    assert (weights("run") == trained).all()
    assert sorted(losses, key=shown.index) == facts["ranking"]

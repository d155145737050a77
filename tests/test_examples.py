"""Each example is one file that a plug-in needs, and every verb takes it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from seqgc import read_run, workers
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, ProfileMeta, read_profile, write_profile
from seqgc.rounds import Setting
from seqgc.schemes import load_plugins, parse_scheme
from seqgc.search import Rehearsal, replay
from seqgc.testing import check_defence, check_scheme
from seqgc.training import TrainingPlan, Validation, train
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed

pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PLUGINS = {
    "examples.stochastic": "sgc:d=2,s=1",
    "examples.heterogeneous": "het:s=1,fast=2,ratio=2",
    "examples.thin": "gc-thin:s=1",
}
DEFENCES = {"examples.sampling": "psp:beta=1", "examples.ksync": "k-sync:k=2"}


@pytest.mark.parametrize("module", PLUGINS)
def test_a_plugin_is_one_file_of_at_most_150_lines(module: str) -> None:
    path = EXAMPLES.parent / (module.replace(".", "/") + ".py")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """The file of a recording of 4 workers, 3 rounds long."""
    times = [[1.0, 1.1, 4.0, 1.2], [1.0, 1.3, 1.1, 5.0], [6.0, 1.0, 1.2, 1.1]]
    delays = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))
    write_profile(delays, path=tmp_path / "workers.npz")
    return str(tmp_path / "workers.npz")


@pytest.mark.parametrize(("module", "spec"), DEFENCES.items())
def test_a_defence_is_explained_replayed_compared_and_trained(
    module: str,
    spec: str,
    profile: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    source = (EXAMPLES / f"{module.partition('.')[2]}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 100

    def answer(*arguments: str) -> dict[str, object]:
        assert main([*arguments, "--plugin", module, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    shown = answer("scheme", spec, "-n", "4")
    assert (shown["scheme"], shown["kind"], shown["staleness"]) == (spec, "stale", None)
    replayed = answer("replay", profile, "--defence", spec)
    assert len(replayed["round_seconds"]) == 3
    both = ["--defence", spec, "--defence", "uncoded"]
    rows = answer("compare", profile, *both, "--seeds", "1", "--lr", "4")
    by_name = {row["defence"]: row for row in rows["rows"]}
    assert by_name[spec]["seconds_per_clock"] < by_name["uncoded"]["seconds_per_clock"]
    assert by_name[spec]["staleness_mean"] > 0
    trained = answer(
        "train", "--scheme", spec, "-n", "4", "--models", "2", "--steps", "2",
        "--optimizer", "sgd", "--run", str(tmp_path / "run"),
    )  # fmt: skip
    assert (trained["scheme"], trained["jobs"]) == (spec, 2)
    answers = read_run(tmp_path / "run").answers()
    assert len(answers["worker"]) >= 8, "all parts, and answers that came too late"
    check_defence(parse_scheme(spec, n=4))


def test_a_defence_with_partial_answers_is_exact_and_taken_by_every_verb(
    profile: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    source = (EXAMPLES / "multimessage.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150

    def answer(*arguments: str) -> dict[str, object]:
        assert main([*arguments, "--plugin", "examples.multimessage", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    shown = answer("scheme", "uc-mmc:r=2", "-n", "4")
    assert (shown["scheme"], shown["kind"], shown["staleness"]) == ("uc-mmc", "exact", 0)
    # Row 0: chunks 0, 1 and 3 are there after at most 1.2 s. Chunk 2 is the second of worker 1.
    seconds = answer("replay", profile, "--defence", "uc-mmc:r=2", "--base-load", "0.25")
    assert seconds["round_seconds"] == pytest.approx([1.1 + 0.5 / 4, 1.1 + 0.5 / 4, 1.1 + 0.5 / 4])
    both = ["--defence", "uc-mmc:r=2", "--defence", "uncoded"]
    rows = answer("compare", profile, *both, "--seeds", "1", "--lr", "4")
    by_name = {row["defence"]: row for row in rows["rows"]}
    seconds_of = {name: row["seconds_per_clock"] for name, row in by_name.items()}
    assert seconds_of["uc-mmc"] < seconds_of["uncoded"]
    trained = answer(
        "train", "--scheme", "uc-mmc:r=2", "-n", "4", "--models", "2", "--steps", "2",
        "--optimizer", "sgd", "--run", str(tmp_path / "run"),
    )  # fmt: skip
    assert (trained["scheme"], trained["jobs"]) == ("uc-mmc", 2)
    assert set(read_run(tmp_path / "run").parts()["round"]) == {0, 1}
    with pytest.raises(ParameterError, match=r"\(uc-mmc\), n=4"):
        parse_scheme("uc-mmc:r=5", n=4)
    check_defence(parse_scheme("uc-mmc:r=2", n=4))


def test_a_sample_of_all_is_the_slowest_and_of_none_is_nobody(profile: str) -> None:
    """Wang et al. 2017: what is sampled lies between the two that know of all and of none."""
    load_plugins(["examples.sampling"])
    on = Rehearsal(profile=read_profile(profile), num_jobs=9, repeat=True)
    of = {
        spec: replay(Setting(scheme=parse_scheme(spec, n=4)), on).round_seconds.tolist()
        for spec in ("psp:beta=3", "ssp:slack=1", "psp:beta=0", "asp", "psp:beta=2")
    }
    assert of["psp:beta=3"] == of["ssp:slack=1"]
    assert of["psp:beta=0"] == of["asp"]
    assert of["psp:beta=2"] not in (of["asp"], of["ssp:slack=1"])


@pytest.mark.parametrize("wrong", ["beta=4", "beta=-1", "beta=1,slack=-1", "beta=1,seed=-1"])
def test_a_sample_of_whom_there_is_not_is_refused(wrong: str) -> None:
    load_plugins(["examples.sampling"])
    with pytest.raises(ParameterError, match=r"\(PSP\)"):
        parse_scheme(f"psp:{wrong}", n=4)


@pytest.mark.parametrize(("module", "spec"), PLUGINS.items())
def test_every_verb_takes_it(
    module: str,
    spec: str,
    profile: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)

    def answer(*arguments: str) -> dict[str, object]:
        assert main([*arguments, "--plugin", module, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    shown = answer("scheme", spec, "-n", "4")
    assert (shown["scheme"], shown["n"]) == (spec, 4)
    replayed = answer("replay", profile, "--scheme", spec)
    assert len(replayed["round_seconds"]) == 3
    name = spec.partition(":")[0]
    exact = parse_scheme(spec, n=4).exact
    asked = [] if exact else ["--inexact"]
    tuned = answer("tune", profile, "--schemes", f"{name},uncoded", *asked)
    rows = tuned["ranking"] if exact else tuned["inexact"]
    assert name in {row["scheme"].partition(":")[0] for row in rows}
    assert all((row["error"] is None) == exact for row in rows)
    trained = answer(
        "train", "--scheme", spec, "-n", "4", "--models", "2", "--steps", "2",
        "--run", str(tmp_path / "run"),
    )  # fmt: skip
    assert trained["jobs"] == 2
    check_scheme(parse_scheme(spec, n=4), patterns=5)


def test_an_approximation_never_wins_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    profile = tmp_path / "workers.npz"
    times = [[1.0, 1.1, 4.0, 1.2], [1.0, 1.3, 1.1, 5.0]]
    delays = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))
    write_profile(delays, path=profile)
    verb = ["tune", str(profile), "--plugin", "examples.stochastic", "--json"]
    assert main(verb) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["inexact"]
    assert not any(row["scheme"].startswith("sgc") for row in found["ranking"])
    assert main([*verb, "--schemes", "sgc"]) == 2
    refusal = capsys.readouterr().err
    assert "`schemes` must admit an exact candidate" in refusal
    assert refusal.count("\n") == 1


def test_optuna_asks_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="needs optuna, which no extra of seqgc's installs")
    from examples.optuna_search import search

    monkeypatch.chdir(tmp_path)
    study = search(batches=2, trials=2, steps=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4
    assert len({trial.value for trial in study.trials}) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 2  # each has trained two models


class Told:
    """Stands for TensorBoard's writer and MLflow's client, which no extra of seqgc's installs."""

    said: ClassVar[list[tuple[str, str, float, int]]] = []
    ended: ClassVar[list[str]] = []

    def __init__(self, folder: str = "") -> None:
        self.name = folder.rpartition("/")[2]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.said.append((self.name, name, value, step))

    def close(self) -> None:
        self.ended.append(self.name)

    def get_experiment_by_name(self, name: str) -> None:
        assert name == "seqgc"

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, where: str, *, run_name: str) -> SimpleNamespace:
        assert where == "seqgc"
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_metric(self, run: str, name: str, value: float, *, step: int) -> None:
        self.said.append((run, name, value, step))

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)


@pytest.mark.parametrize("callback", ["tensorboard_log:TensorBoard", "mlflow_log:MLflow"])
def test_losses_reach_other_peoples_boards(
    callback: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = SimpleNamespace(SummaryWriter=Told, MlflowClient=Told)
    for module in ("torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setattr(Told, "said", [])
    monkeypatch.setattr(Told, "ended", [])
    module, _, name = callback.partition(":")
    monkeypatch.delitem(sys.modules, f"examples.{module}", raising=False)
    board = getattr(import_module(f"examples.{module}"), name)()
    crew = workers.custom(2, replayed(np.ones((3, 2))))
    model = replace(make_model(), validation=Validation(every_n_steps=3))
    plan = TrainingPlan(models=[model], scheme="uncoded", steps=3)
    train(plan, crew, run=tmp_path / "run", callbacks=[board])
    losses = read_run(tmp_path / "run").models()["loss"]
    told = [(step, value) for _, name, value, step in Told.said if name == "loss"]
    assert told == list(enumerate(losses.tolist(), start=1))
    assert (model.name, "validation/loss", 3) in [(who, what, at) for who, what, _, at in Told.said]
    assert Told.ended == [model.name]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--plugin", "examples.absent"], "`plugin` must be importable (ModuleNotFoundError"),
        ([], "`scheme` must be one of"),
    ],
)
def test_a_plugin_that_is_not_there_is_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scheme", "absent:s=1", "-n", "4", *arguments]) == 2
    refusal = capsys.readouterr().err
    assert complaint in refusal
    assert refusal.count("\n") == 1

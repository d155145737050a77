"""A run goes on with what it was begun with; whatever else is refused, and said."""

from __future__ import annotations

import importlib.util
import linecache
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import tomli_w
import torch
from pydantic import BaseModel

from seqgc import workers
from seqgc.cli import main
from seqgc.config._tables import ModelConfig, RunConfig
from seqgc.errors import ParameterError
from seqgc.models.evaluation import Validation
from seqgc.models.model import Recipe
from seqgc.ports import Seen
from seqgc.rounds import ClosingRule, Setting
from seqgc.runs.journal import read_journal
from seqgc.runs.snapshots import SnapshotFolder
from seqgc.schemes import parse_scheme
from seqgc.training import Adaptation, Crew, Model, TrainingPlan, Work, resume, train
from seqgc.training.stale import Updates
from seqgc.workers import DelaySettings, FunctionSettings
from tests.kit import SOAK
from tests.training.inside import RunState, changes, fingerprint
from tests.training.reference import blobs, make_model
from tests.training.test_adaptive import replayed
from tests.training.test_resume import N, crew, times


def plan(**changes: object) -> TrainingPlan:
    begun = TrainingPlan(
        models=[make_model("m0"), make_model("m1")], scheme="gc-rep:s=1", jobs_per_round=1, steps=2
    )
    return replace(begun, **changes)


def refusal(run: Path, changed: TrainingPlan) -> str:
    with pytest.raises(ParameterError, match=r"changed since: .*--accept-changes") as info:
        resume(run, changed, crew())
    return str(info.value)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(plan(), crew(), run=tmp_path_factory.mktemp("begun") / "run").run


# ---- each field of a plan, and of what it is made of ---------------------------------------------

SCHEME = parse_scheme("gc-rep:s=1", n=N)
PLANS: Mapping[str, Mapping[str, object]] = {
    "models": {"models": [make_model("m0"), make_model("m2")]},
    "scheme": {"scheme": "gc-rep:s=2"},
    "jobs_per_round": {"jobs_per_round": 2},
    "steps": {"steps": 3},
    "precision": {"precision": "float64", "payload": "float64"},
    "payload": {"payload": "float16"},
    "stochastic_rounding": {"payload": "float16", "stochastic_rounding": True},
    "stale": {"stale": True},
    "adaptation": {"adaptation": Adaptation(probe=3, alpha=0.0)},
    "checkpoint_every_s": {"checkpoint_every_s": 1.0},
    "max_norm": {"max_norm": 1e9},
    "on_failure": {"on_failure": "stop"},
    "audit": {"audit": True},
    "updates": {"scheme": "bsp", "updates": Updates(apply="clock")},
    "vectorize": {"vectorize": 2},
}
SETTINGS: Mapping[str, Setting] = {
    "scheme": Setting(scheme=parse_scheme("gc:s=1", n=N), rule=ClosingRule(timeout_s=60.0)),
    "jobs_per_round": Setting(scheme=SCHEME, jobs_per_round=2),
}
RULES: Mapping[str, object] = {
    "mu": 0.5,
    "wait_out": "all",
    "timeout_s": 61.0,
    "max_attempts": 4,
}
MODELS: Mapping[str, object] = {
    "name": "another",
    "module": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
    "loss": torch.nn.CrossEntropyLoss(label_smoothing=0.1),
    "dataset": blobs(seed=5),
    "optimizer": partial(torch.optim.SGD, lr=0.2),
    "batch_size": 17,
    "seed": 1,
    "test_dataset": blobs(seed=6),
    "recipe": Recipe(module="mlp", data="digits", loss="mse"),
    "scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=2),
    "gradient_clip_val": 0.5,
    "gradient_clip_algorithm": "value",
    "validation": Validation(every_n_steps=2),
    "save_every_n_steps": 2,
    "autocast": "bfloat16",
}


def test_every_field_is_here() -> None:
    """One that is added to a plan must be refused when it changes, or be thought about here."""
    others = {"rule", "predicted_round_s"}  # a prediction changes nothing
    assert {*PLANS, *others} == {f.name for f in fields(TrainingPlan)}
    assert {*SETTINGS, "rule"} == {f.name for f in fields(Setting)}
    assert set(RULES) == {f.name for f in fields(ClosingRule)}
    assert set(MODELS) == {f.name for f in fields(Model)}


@pytest.mark.parametrize("name", PLANS)
def test_a_field_of_the_plan_that_changed_is_refused(name: str, run: Path) -> None:
    assert f" {name} (was " in refusal(run, plan(**PLANS[name]))


@pytest.mark.parametrize("name", [*SETTINGS, *RULES])
def test_a_field_of_the_setting_that_changed_is_refused(name: str, run: Path) -> None:
    if name in RULES:
        changed = plan(rule=replace(ClosingRule(timeout_s=60.0), **{name: RULES[name]}))
    else:
        changed = plan(scheme=SETTINGS[name], jobs_per_round=None)
    assert f" {name} (was " in refusal(run, changed)


def test_a_number_of_jobs_that_the_plan_leaves_open_stays_as_it_was(run: Path) -> None:
    """The run began with one model a round; the default would be both."""
    assert plan(jobs_per_round=None).on(N).setting.jobs_per_round == 2
    assert resume(run, plan(jobs_per_round=None), crew()).jobs == 4


def test_a_number_of_pieces_that_the_plan_leaves_open_stays_as_it_was(tmp_path: Path) -> None:
    """Another version of seqgc may choose another number."""
    begun = plan(scheme=f"deal:pieces={4 * N}", jobs_per_round=None)
    train(begun, crew(), run=tmp_path / "run")
    open_ = replace(begun, scheme="deal")
    assert open_.on(N).setting.scheme != begun.on(N).setting.scheme
    assert resume(tmp_path / "run", open_, crew()).jobs == 4
    other = replace(begun, scheme=f"deal:pieces={3 * N}")
    assert f"pieces={4 * N}" in refusal(tmp_path / "run", other)


@pytest.mark.parametrize("name", MODELS)
def test_a_field_of_a_model_that_changed_is_refused(name: str, run: Path) -> None:
    model = replace(make_model("m1"), **{name: MODELS[name]})
    shown = "models" if name == "name" else f"m1: {name}"
    shown += "'s settings" if name == "optimizer" else ""
    assert f"{shown} (was " in refusal(run, plan(models=[make_model("m0"), model]))


def test_settings_of_an_optimizers_groups_are_told_apart() -> None:
    """They come back with its state: others would have no effect."""

    def groups(rate: float | None, parted: int) -> object:
        def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            first, rest = parameters[:parted], parameters[parted:]
            own = {} if rate is None else {"lr": rate}
            return torch.optim.SGD([{"params": first, **own}, {"params": rest}], lr=0.1)

        return make

    def settings(rate: float | None, parted: int) -> str:
        made = plan(models=[make_model(optimizer=groups(rate, parted))])
        return fingerprint(made.on(N), config="")["net: optimizer's settings"]

    assert settings(0.5, 1) == settings(0.5, 1)
    assert len({settings(0.5, 1), settings(0.001, 1), settings(0.5, 2), settings(None, 1)}) == 4


@pytest.mark.parametrize("package", ["seqgc", "torch", "numpy"])
def test_another_version_is_refused(
    package: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[package], "__version__", "0.0.1")  # for another one, installed
    assert f" {package} (was " in refusal(run, plan())
    assert "is 0.0.1)" in refusal(run, plan())


def test_other_workers_are_refused(run: Path) -> None:
    more = workers.custom(N - 1, replayed(times()[:, : N - 1]))
    with pytest.raises(ParameterError, match=r"`workers` must be 6, .*; got 5 .*--workers 5"):
        resume(run, plan(scheme="gc:s=1"), more)


def test_what_changed_can_be_accepted_and_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    run = train(plan(), crew(), run=tmp_path / "run").run
    changed = plan(max_norm=1e9, checkpoint_every_s=5.0)
    resume(run, changed, crew(), accept_changes=True, observers=[listen])
    assert said == [
        "changed: checkpoint_every_s (was 60.0, is 5.0)",
        "changed: max_norm (was None, is 1000000000.0)",
    ]
    resume(run, changed, crew(), observers=[listen])  # from now on it is what was begun
    assert len(said) == 2


def test_what_a_checkpoint_says_was_so_reaches_no_terminal_but_as_a_line(tmp_path: Path) -> None:
    said: list[str] = []

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    run = train(plan(), crew(), run=tmp_path / "run").run
    folder = SnapshotFolder(run / "checkpoints", RunState)
    found, _ = folder.newest()
    found.state.journal.fingerprint["numpy"] += " \x1b[31m\nFORGED"
    folder.write(found)
    resume(run, plan(), crew(), accept_changes=True, observers=[listen])
    assert " FORGED, is " in said[0]
    assert said[0].isprintable()


class Published:
    """Workers whose code has published versions, of which ``now`` is deployed."""

    n, provider = N, "replay"

    def __init__(self, now: str) -> None:
        self.now, self.ran = now, list[str]()

    def check(self, work: Work) -> None: ...

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        with crew().open(work) as opened:
            pin = work.pin or {"version": self.now}
            self.ran.append(pin["version"])
            yield replace(opened, pin=pin)


def test_a_run_is_held_to_the_version_that_it_records_until_another_is_accepted(
    tmp_path: Path,
) -> None:
    said, functions = list[str](), Published("f:1")

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    run = train(plan(), functions, run=tmp_path / "run").run
    functions.now = "f:2"
    resume(run, plan(), functions, observers=[listen])
    assert (functions.ran, said) == (["f:1", "f:1"], [])
    resume(run, plan(), functions, observers=[listen], accept_changes=True)
    assert said == ["the functions have changed: version (was f:1, is f:2)"]
    functions.now = "f:3"
    resume(run, plan(), functions, observers=[listen])
    assert (functions.ran[2:], len(said)) == (["f:2", "f:2"], 1)
    entries, _ = read_journal(run / "journal.jsonl")
    pins = [entry.fields["version"] for entry in entries if entry.kind == "pin"]
    assert pins == ["f:1", "f:2"]


# ---- code ----------------------------------------------------------------------------------------

SOURCE = """
import functools, torch

RATE = 0.1

def scaled(x):
    return 2 * x

class Block(torch.nn.Module):
    def forward(self, x):
        return scaled(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.block = torch.nn.Linear(2, 2), Block()
        with torch.no_grad():
            self.line.weight.fill_(0.5), self.line.bias.fill_(0.0)

    def forward(self, x):
        return self.block(self.line(x))

class Points:
    def __len__(self):
        return 200
    def __getitem__(self, i):
        return torch.tensor([i / 100, 1.0]), i % 2

def make_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=RATE)

def make_loss(output, target):
    return torch.nn.functional.cross_entropy(output, target, reduction="none")
"""


def own_model(folder: Path, source: str, name: str) -> Model:
    """A model of a module of its own file, as it is imported anew."""
    file = folder / "mine.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    return Model(
        name="own",
        module=mine.Net(),
        loss=mine.make_loss,
        dataset=mine.Points(),
        optimizer=mine.make_optimizer,
        batch_size=12,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return 2 * x", "return 2.0 * x + 0"),  # of a helper
        ("return scaled(x)", "return scaled(1 * x)"),  # of a part
        ("self.block(self.line(x))", "self.line(self.block(x))"),
        ("i / 100", "i / 101"),
        ("i % 2", "(i + 1) % 2"),
        ("RATE = 0.1", "RATE = 0.2"),
        ('reduction="none")', 'reduction="none") * 1'),
    ],
)
def test_code_that_changed_is_refused(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"mine_{os.getpid()}"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of the second in which it was written

    def of(source: str) -> TrainingPlan:
        return TrainingPlan(models=[own_model(tmp_path, source, name)], scheme="uncoded", steps=1)

    run = train(of(SOURCE), crew(), run=tmp_path / "run").run
    resume(run, of(SOURCE), crew())
    assert " own: " in refusal(run, of(SOURCE.replace(before, after)))


def test_one_byte_of_data_that_changed_is_refused(tmp_path: Path) -> None:
    begun = blobs(500)
    run = train(plan(models=[make_model("m", dataset=begun)]), crew(), run=tmp_path / "run").run
    for at in range(0, 500, 7 if SOAK else 97):
        changed = blobs(500)
        changed.tensors[0][at, 0, 3, 3] += 2**-20
        found = refusal(run, plan(models=[make_model("m", dataset=changed)]))
        assert "m: dataset (was 500 points " in found


def test_data_that_many_models_share_and_that_changed_are_named_once(tmp_path: Path) -> None:
    def of(data: object) -> TrainingPlan:
        return plan(models=[make_model(f"m{i}", dataset=data, seed=0) for i in range(4)], steps=1)

    run = train(of(blobs(40)), crew(), run=tmp_path / "run").run
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    found = refusal(run, of(blobs(41)))
    assert "m0: dataset and of 3 more (was 40 points " in found
    assert "got '1 changes'" in found
    assert len(found) < 400
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {p: b for p, b in after.items() if "masters" not in p.parts} == {
        p: b for p, b in before.items() if "masters" not in p.parts
    }


# ---- each field of the configuration -------------------------------------------------------------

BEGUN: Mapping[str, object] = {
    "scheme": "gc-rep:s=1",
    "workers": 4,
    "steps": 1,
    "delays": {"source": "lambda-cnn", "scale": 0.001},
    # An optimizer that takes all options that there are.
    "models": [{"name": each, "module": "mlp", "optimizer": "rmsprop"} for each in "ab"],
}
CONFIGURATION: Mapping[str, object] = {
    "scheme": "gc-rep:s=3",
    "workers": 8,
    "steps": 2,
    "mu": 0.5,
    "wait_out": "all",
    "timeout_s": 61.0,
    "max_attempts": 4,
    "max_norm": 1e9,
    "on_failure": "stop",
    "audit": True,
    "jobs_per_round": 1,
    "vectorize": 2,
    "stale": True,
    "apply": "clock",
    "refresh": "needed",
    "aware": True,
    "probe": 3,
    "retune": 3,
    "alpha": 1.0,
    "precision": "float64",
    "payload": "float16",
    "stochastic_rounding": True,
    "backend": "lambda-local",
    "dask_scheduler": "tcp://127.0.0.1:1",
    "checkpoint_every_s": 61.0,
    "predicted_round_s": 2.0,
    "max_usd": 2.0,
    "plugins": ["json"],
    "callbacks": ["seqgc.training:Callback"],
    "function.transport": "http",
    "function.store": "inline",
    "function.mount": "/tmp",
    "function.resident": True,
    "function.master_address": "10.0.0.1",
    "function.master": "inside",
    "function.deployment": "other.toml",
    "function.code": "/tmp",
    "function.environments": 9,
    "function.memory_mb": 128,
    "function.timeout_s": 61.0,
    "function.arch": "x86_64",
    "function.region": "us-west-2",
    "function.expected_s": 2.0,
    "function.warm_up": 2,
    "function.snapstart": True,
    "delays.source": "other.npz",
    "delays.scale": 0.2,
    "delays.seed": 1,
    "delays.alpha": 2.0,
    "delays.base_load": 0.2,
    "models.name": "c",
    "models.module": "digits-cnn",
    "models.data": "others",
    "models.loss": "mse",
    "models.module_args": {"width": 5},
    "models.data_args": {"seed": 5},
    "models.loss_args": {"label_smoothing": 0.1},
    "models.optimizer": "sgd",
    "models.lr": 0.1,
    "models.momentum": 0.1,
    "models.weight_decay": 0.1,
    "models.optimizer_args": {"eps": 0.1},
    "models.scheduler": "onecyclelr",
    "models.scheduler_args": {"gamma": 0.5},
    "models.gradient_clip_val": 0.5,
    "models.gradient_clip_algorithm": "value",
    "models.validation": {"every_n_steps": 2},
    "models.save_every_n_steps": 2,
    "models.autocast": "bfloat16",
    "models.batch_size": 64,
    "models.seed": 1,
}
TABLES: Mapping[str, type[BaseModel]] = {
    "function": FunctionSettings,
    "delays": DelaySettings,
    "models": ModelConfig,
}


def test_every_field_of_the_configuration_is_here() -> None:
    known = {name for name in RunConfig.model_fields if name not in TABLES}
    known |= {f"{table}.{name}" for table, kind in TABLES.items() for name in kind.model_fields}
    assert set(CONFIGURATION) == known


REFUSED_ANYWAY = {
    "workers",
    "apply",
    "refresh",
    "aware",
    "dask_scheduler",
    "function.code",
    "probe",
    "stochastic_rounding",
    "function.resident",
    "delays.source",
    "models.data",
    "models.scheduler_args",
}
"""What the rest of the configuration does not go with, or what is not there."""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configured")
    (folder / "begun.toml").write_text(tomli_w.dumps(BEGUN))
    assert main(["train", str(folder / "begun.toml"), "--run", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("path", CONFIGURATION)
def test_a_field_of_the_configuration_that_changed_is_refused(
    path: str, configured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = configured / "config.toml"
    begun = file.read_text()
    values = tomllib.loads(begun)
    table, _, name = path.rpartition(".")
    entry = values[table][0] if table == "models" else values[table] if table else values
    assert entry.get(name) != CONFIGURATION[path]
    entry[name] = CONFIGURATION[path]
    file.write_text(tomli_w.dumps(values))
    try:
        assert main(["resume", str(configured)]) == 2
    finally:
        file.write_text(begun)
    err = capsys.readouterr().err
    value = CONFIGURATION[path]
    words = [name, str(value), *(value if isinstance(value, dict) else [])]
    assert any(word in err for word in words)
    assert err.count("\n") == 1
    assert "changed since" in err or path in REFUSED_ANYWAY


def test_a_field_that_changed_can_be_accepted(configured: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(configured, run)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("max_attempts = 3", "max_attempts = 5"))
    assert main(["resume", str(run)]) == 2
    assert main(["resume", str(run), "--accept-changes"]) == 0
    assert "max_attempts (was 3, is 5)" in (run / "events.jsonl").read_text()
    assert main(["resume", str(run)]) == 0


def test_a_class_of_a_notebooks_cell_is_known_by_its_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # a kernel's has no file

    def after_cell(result: str) -> dict[str, str]:
        text = f"class Net(Linear):\n    def forward(self, x):\n        return {result}\n"
        linecache.cache[result] = (len(text), None, text.splitlines(keepends=True), result)
        names = {"__name__": "__main__", "Linear": torch.nn.Linear}
        exec(compile(text, result, "exec"), names)
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Flatten(), names["Net"](64, 10))  # type: ignore[operator]
        plan = TrainingPlan(models=[make_model("net", module=module)], scheme="uncoded", steps=1)
        return fingerprint(plan.on(2), config="")

    before = after_cell("x.tanh()")
    assert after_cell("x.tanh()") == before
    (change,) = changes(before, after_cell("x.relu()"))
    assert change.startswith("net: module (")

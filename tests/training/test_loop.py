"""Callbacks, validation, early stopping, weights that are kept: what follows a model's steps."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from threadpoolctl import threadpool_info, threadpool_limits
from torch.optim import lr_scheduler

from seqgc.config._tables import checked
from seqgc.errors import BudgetError, CallbackError, ParameterError
from seqgc.ports import Dispatch, MiniTask, Seen
from seqgc.stores import MemoryStore
from seqgc.training import (
    Callback,
    Model,
    Stop,
    TorchCompute,
    TorchWorkload,
    TrainingPlan,
    TrainResult,
    Validation,
    evaluate,
    resume,
    train,
)
from tests.cli.inside import make_callbacks, make_models
from tests.kit import decoded
from tests.training.reference import SGD, Chunks, blobs, flat, make_model
from tests.training.test_resume import crew

STEPS = 9
HELD_OUT = blobs(30, seed=9)


def errors(output: torch.Tensor, target: torch.Tensor) -> float:
    assert len(output) == len(HELD_OUT), "all points at once"
    return float((output.argmax(1) != target).sum())


def validated(model: Model, **rules: object) -> Model:
    options = {"every_n_steps": 2, "dataset": HELD_OUT, "metrics": {"errors": errors}} | rules
    return replace(model, validation=Validation(**options))


class Diary(Callback):
    """Notes what it hears, and returns what it is told to at a model's step."""

    def __init__(self, stops: Mapping[tuple[str, str, int], object] | None = None) -> None:
        self.stops = stops or {}
        self.heard: list[tuple[object, ...]] = []

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> object:
        self.heard.append(("step", model, step, loss, dict(metrics)))
        return self.stops.get(("step", model, step))

    def on_validation(self, model: str, step: int, metrics: Mapping[str, float]) -> object:
        self.heard.append(("validation", model, step, dict(metrics)))
        return self.stops.get(("validation", model, step))


def begun(models: list[Model], *callbacks: object) -> tuple[TorchWorkload, TorchCompute]:
    store = MemoryStore()
    workload = TorchWorkload(
        models, scheme=Chunks(), store=store, precision="float64", callbacks=callbacks
    )
    return workload, TorchCompute([m.objective for m in models], store=store, precision="float64")


def go_on(workload: TorchWorkload, compute: TorchCompute, jobs: range) -> None:
    for job in jobs:
        workload.begin(job)
        whole = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        workload.finish(decoded(job), compute(workload.resolve(whole)))
        if job == jobs[-1]:
            workload.flush()


def test_a_callback_hears_of_every_step_and_validation_in_order() -> None:
    models = [validated(make_model("a")), replace(make_model("b"), gradient_clip_val=0.1)]
    diary = Diary()
    workload, compute = begun(models, diary)
    go_on(workload, compute, range(2 * STEPS))
    of = {name: [each for each in diary.heard if each[1] == name] for name in "ab"}
    steps = [("step", step) for step in range(1, STEPS + 1)]
    assert [(each[0], each[2]) for each in of["b"]] == steps
    expected = [e for s in steps for e in (s, ("validation", s[1]))[: 1 + (s[1] % 2 == 0)]]
    assert [(each[0], each[2]) for each in of["a"]] == expected
    losses = [(each.model, each.step + 1, each.loss) for each in workload.metrics]
    assert losses == [each[1:4] for each in sorted(diary.heard, key=lambda e: (e[2], e[1]))
                      if each[0] == "step"]  # fmt: skip
    assert all(each[4] == {"lr": 0.1} for each in of["a"] if each[0] == "step")
    assert all(each[4]["gradient_norm"] > 0.1 for each in of["b"])
    last = of["a"][-2]  # after step 8 of 9
    assert set(last[3]) == {"loss", "accuracy", "errors"}
    assert last[3]["errors"] == pytest.approx(30 * (1 - last[3]["accuracy"]))


@pytest.mark.parametrize("patience", [1, 2])
def test_a_model_is_stopped_after_its_patience_and_the_best_weights_are_kept(
    patience: int,
) -> None:
    """The learning rate is so large that the loss on data held out grows after a while."""
    rates = {"wild": 0.9, "calm": 0.01}
    models = [
        validated(
            make_model(name, optimizer=partial(torch.optim.SGD, lr=rate)),
            every_n_steps=1,
            patience=patience,
        )
        for name, rate in rates.items()
    ]
    diary, alone = Diary(), Diary()
    workload, compute = begun(models, diary)
    go_on(workload, compute, range(2 * 30))
    losses = [each[3]["loss"] for each in diary.heard if each[:2] == ("validation", "wild")]
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + patience < 30
    parked = workload.parked["wild"]
    assert (parked.kind, parked.step) == ("stopped early", best + patience)
    assert f"{patience} validations ago" in parked.why
    kept, weights = workload.best()["wild"]
    assert (kept.step, kept.metrics["loss"]) == (best, losses[best - 1])
    module = workload.module("wild")
    module.load_state_dict(weights)
    again = evaluate(module, loss=models[0].loss, dataset=HELD_OUT)
    assert again.loss == losses[best - 1]
    workload, compute = begun(models[1:], alone)
    go_on(workload, compute, range(30))
    assert alone.heard == [each for each in diary.heard if each[1] == "calm"]


@pytest.mark.parametrize("half", [9, 17, 25])
def test_a_restored_workload_decides_as_it_would_have(half: int) -> None:
    plateau = partial(lr_scheduler.ReduceLROnPlateau, factor=0.5, patience=0)
    fast = partial(torch.optim.SGD, lr=0.9)
    models = [
        replace(
            validated(make_model("a", optimizer=fast), every_n_steps=1, patience=4),
            scheduler=plateau,
        ),
        validated(make_model("b", seed=1), monitor="errors", min_delta=1.0, patience=2),
    ]
    diary, later = Diary(), Diary()
    workload, compute = begun(models, diary)
    go_on(workload, compute, range(half - 1))  # to its end, so that nothing is in flight
    state = workload.snapshot()
    before = len(diary.heard)
    go_on(workload, compute, range(half - 1, 60))
    again, compute = begun(models, later)
    again.restore(*state)
    go_on(again, compute, range(half - 1, 60))
    assert later.heard == diary.heard[before:]
    assert dict(again.parked) == dict(workload.parked)
    assert len({each[4]["lr"] for each in diary.heard if each[:2] == ("step", "a")}) > 1
    for name in "ab":
        (one, ours), (other, theirs) = workload.best()[name], again.best()[name]
        assert one == other
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        assert np.array_equal(flat(workload.module(name)), flat(again.module(name)))


@pytest.mark.parametrize("what", ["step", "validation"])
def test_a_callback_stops_a_model_or_the_run(what: str) -> None:
    models = [validated(make_model(name)) for name in "ab"]
    workload, compute = begun(models, Diary({(what, "a", 4): Stop.MODEL}), Diary())
    go_on(workload, compute, range(2 * STEPS))
    assert [(n, p.step, p.kind) for n, p in workload.parked.items()] == [("a", 4, "stopped early")]
    workload, compute = begun(models, Diary({(what, "b", 4): Stop.RUN}), Diary())
    go_on(workload, compute, range(2 * STEPS))
    assert {n: p.step for n, p in workload.parked.items()} == {"a": 4, "b": 4}


def test_a_metric_that_raises_later_parks_its_model() -> None:
    calls = iter(range(100))

    def fragile(_output: torch.Tensor, _target: torch.Tensor) -> float:
        return 1 / (2 - next(calls))

    models = [make_model("a"), validated(make_model("b"), metrics={"fragile": fragile})]
    workload, compute = begun(models)
    go_on(workload, compute, range(2 * STEPS))
    ((name, parked),) = workload.parked.items()
    assert (name, parked.kind, parked.step) == ("b", "raised", 4)
    assert "ZeroDivisionError" in parked.why
    assert f"{Path(__file__).name}:" in parked.why


# ---- a run ---------------------------------------------------------------------------------------


def plan(models: list[Model]) -> TrainingPlan:
    return TrainingPlan(
        models=models, scheme="gc:s=2", jobs_per_round=1, steps=STEPS, checkpoint_every_s=1e-3
    )


class Failing(Diary):
    """Raises when it first hears of a step, and hears of all else."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: list[Path] = []
        self.results: list[TrainResult] = []
        self.before = 0

    def state_dict(self) -> dict[str, int]:
        return {"heard": self.before + len(self.heard)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.before = state["heard"]

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> object:
        if (model, step) == ("a", 5):
            raise OSError("no such logger")
        return super().on_step(model, step, loss, metrics)

    def on_checkpoint(self, path: Path) -> None:
        assert (path / "state.json").exists()
        self.checkpoints.append(path)

    def on_end(self, result: TrainResult) -> None:
        self.results.append(result)


class Counting(Callback):
    """Notes how many threads there are for linear algebra, and for PyTorch."""

    def __init__(self) -> None:
        self.counts: list[list[int]] = []

    def on_step(self, *_: object) -> None:
        blas = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
        self.counts.append([torch.get_num_threads(), *blas])


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_computes_in_one_thread_and_gives_back_those_of_its_process(
    fails: bool, tmp_path: Path
) -> None:
    counting, also = Counting(), [Failing()] * fails
    expected = pytest.raises(CallbackError) if fails else nullcontext()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(limits=3, user_api="blas"):
            with expected:
                train(
                    plan([make_model("a")]),
                    crew(),
                    run=tmp_path / "run",
                    callbacks=[counting, *also],
                )
            counting.on_step()
    finally:
        torch.set_num_threads(1)
    *during, after = counting.counts
    assert during
    assert {number for counts in during for number in counts} == {1}
    assert after == [2, *[3] * (len(after) - 1)]
    assert len(after) > 1


def test_a_callback_that_raises_ends_the_run_in_one_line_and_it_can_go_on(tmp_path: Path) -> None:
    models = [replace(validated(make_model("a")), save_every_n_steps=3), make_model("b")]
    failing, run = Failing(), tmp_path / "run"
    with pytest.raises(CallbackError) as caught:
        train(plan(models), crew(), run=run, callbacks=[failing])
    said = str(caught.value)
    assert "callback Failing.on_step raised OSError: no such logger" in said
    assert "\n" not in said
    second = Failing()
    second.on_step = super(Failing, second).on_step  # type: ignore[method-assign]
    with pytest.raises(ParameterError, match=r"callbacks with a state \(was Failing, is \)"):
        resume(run, plan(models), crew(), callbacks=[Diary()])
    result = resume(run, plan(models), crew(), callbacks=[second])
    whole = train(plan(models), crew(), run=tmp_path / "whole", callbacks=[third := Diary()])
    again = {each[1:3]: each for each in second.heard if each[0] == "step"}
    assert again.items() <= {e[1:3]: e for e in third.heard if e[0] == "step"}.items()
    assert ("a", STEPS) in again
    assert ("a", 1) not in again
    assert 0 < second.before < len(third.heard) == second.before + len(second.heard)
    assert second.results == [result]
    assert second.checkpoints[-1].name == str(2 * STEPS)
    assert set(result.modules) == {"a", "b"}
    for name, module in result.modules.items():
        assert np.array_equal(flat(module), flat(whole.modules[name]))
    assert result.best == whole.best
    assert sorted(each.name for each in run.glob("saved/*/*")) == [
        f"step-{step}.safetensors" for step in (3, 6, 9)
    ]
    best = "checkpoints/a.best.safetensors"
    for file in (best, "checkpoints/a.safetensors", "saved/a/step-9.safetensors"):
        ours, theirs = load_file(run / file), load_file(whole.run / file)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    lines = [json.loads(line) for line in (whole.run / "events.jsonl").read_text().splitlines()]
    told = [(e["model"], e["step"], e["metrics"]) for e in lines if e["event"] == "validation"]
    assert told == [each[1:] for each in third.heard if each[0] == "validation"]


@pytest.mark.parametrize("round", range(2, 2 * STEPS, 5))
def test_a_step_that_is_made_as_the_run_ends_is_followed_by_all_that_is_due(
    round: int, tmp_path: Path
) -> None:
    """The gradients of the round before are handed over when the budget refuses the next tasks."""

    def refuse(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == round:
            raise BudgetError("enough", round=round, spent_usd=0.0)

    models = [replace(validated(make_model(each)), save_every_n_steps=1) for each in "ab"]
    run = tmp_path / "run"
    with pytest.raises(BudgetError):
        train(plan(models), crew(), run=run, observers=[refuse])
    resume(run, plan(models), crew())
    saved = [path.relative_to(run / "saved") for path in run.glob("saved/*/*")]
    steps = range(1, STEPS + 1)
    assert sorted(saved) == sorted(Path(m, f"step-{s}.safetensors") for m in "ab" for s in steps)
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    told = [(line["step"], line["model"]) for line in lines if line["event"] == "validation"]
    assert told == [(step, model) for step in range(2, STEPS + 1, 2) for model in "ab"]


def test_an_observer_that_raises_as_the_run_ends_keeps_no_weights_back(tmp_path: Path) -> None:
    def refuse(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == 2:
            raise BudgetError("enough", round=2, spent_usd=0.0)
        if getattr(seen, "kind", "") == "validation":
            raise RuntimeError("there is no such step")

    models, run = [validated(make_model("a"))], tmp_path / "run"
    with pytest.raises(RuntimeError, match="no such step"):
        train(plan(models), crew(), run=run, observers=[refuse])
    assert (run / "checkpoints" / "a.safetensors").exists()


class Misspelt:
    def on_steps(self, model: str, step: int, loss: float, metrics: object) -> None:
        pass


class Short:
    def on_step(self, model: str, step: int) -> None:
        pass


def raising(_output: torch.Tensor, _target: torch.Tensor) -> float:
    raise LookupError("no class")


def vector(output: torch.Tensor, _target: torch.Tensor) -> object:
    return output


@pytest.mark.parametrize(
    ("callback", "rules", "says"),
    [
        (Misspelt(), {}, r"got 'Misspelt.on_steps' \(did you mean 'on_step'\?\)"),
        (Short(), {}, r"must take on_step\(model: str, step: int, loss: float, metrics: .*Short"),
        (Diary, {}, r"must be objects, not classes; got 'Diary' \(give Diary\(\)\)"),
        (print, {}, "must have one of on_step, on_validation, on_checkpoint, on_end"),
        (Diary(), {"metrics": {"m": raising}}, r"\(LookupError: no class\); got 'm'"),
        (Diary(), {"metrics": {"m": vector}}, "`metrics` must return a number"),
        (Diary(), {"metrics": {"loss": vector}}, "`metrics` must not be named .*; got 'loss'"),
        (Diary(), {"monitor": "eror"}, "must be one of loss, accuracy, errors; got 'eror' "),
        (Diary(), {"patience": 0}, "`patience` must be an integer >= 1"),
        (Diary(), {"mode": "low"}, "`mode` must be one of min, max"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line_and_nothing_is_written(
    callback: object, rules: dict[str, object], says: str, tmp_path: Path
) -> None:
    def begin() -> None:
        models = [validated(make_model("a", optimizer=SGD), **rules)]
        train(plan(models), crew(), run=tmp_path / "run", callbacks=[callback])

    with pytest.raises(ParameterError, match=says) as caught:
        begin()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_what_a_callback_returns_is_a_stop_or_nothing() -> None:
    workload, compute = begun([make_model("a")], Diary({("step", "a", 2): "stop"}))
    go_on(workload, compute, range(3))
    with pytest.raises(CallbackError, match=r"Diary.on_step must return .*; got 'stop'"):
        workload.after_step.callbacks.require_none_failed()


OF_A_FILE = f"""
callbacks = ["{__name__}:Diary"]
[[models]]
name = "a"
module = "mlp"
save_every_n_steps = 5
[models.validation]
every_n_steps = 2
data = "{__name__}:held_out"
metrics = {{ errors = "{__name__}:errors" }}
monitor = "errors"
patience = 3
[[models]]
name = "b"
module = "mlp"
"""


def held_out() -> object:
    return HELD_OUT


def test_a_file_says_all_of_it() -> None:
    config = checked(tomllib.loads(OF_A_FILE))
    one, other = make_models(config)
    rules = one.validation
    assert rules.dataset.tensors is sys.modules[__name__].HELD_OUT.tensors
    metric = sys.modules[__name__].errors
    assert dict(rules.metrics) == {"errors": metric}
    assert (rules.every_n_steps, rules.monitor, rules.mode, rules.patience) == (
        2,
        "errors",
        "min",
        3,
    )
    assert one.save_every_n_steps == 5
    assert other.validation is None
    same = make_models(checked(tomllib.loads(OF_A_FILE) | {"models": [
        tomllib.loads(OF_A_FILE)["models"][0] | {"name": name} for name in "ab"
    ]}))  # fmt: skip
    assert same[0].validation is same[1].validation, "which is tried once, before a run"
    assert [type(each).__name__ for each in make_callbacks(config)] == ["Diary"]


@pytest.mark.parametrize(
    ("line", "wrong", "says"),
    [
        ("callbacks", "nowhere:Diary", "`callbacks` must be an importable package.module:function"),
        ("errors", "errors", "`metrics` must be an importable package.module:function"),
        ("data", f"{__name__}:heldout", "`validation.data` must be an importable"),
    ],
)
def test_a_function_that_there_is_not_is_refused(line: str, wrong: str, says: str) -> None:
    right = {"callbacks": "Diary", "errors": "errors", "data": "held_out"}[line]
    text = OF_A_FILE.replace(f"{__name__}:{right}", wrong)
    assert text != OF_A_FILE
    with pytest.raises(ParameterError, match=says):
        make_models(checked(tomllib.loads(text)))

"""Models of one's own are trained in virtual time as they would be live."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from seqgc.comparison import PacedWorkers, TorchTrainees, Trial, compare, trained
from seqgc.errors import ModelError, ParameterError
from seqgc.profiles import LAMBDA_CNN, latency_pace
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, replay
from seqgc.training import Model, TrainingPlan, Updates, evaluate
from tests.training.reference import blobs, make_model, train_alone

N, ALPHA, STEPS = 4, 3.0, 12
PROFILE = LAMBDA_CNN.profile(12, workers=N, rng=np.random.default_rng(4))
REHEARSAL = Rehearsal(profile=PROFILE, alpha=ALPHA)
ADAM = partial(torch.optim.Adam, lr=0.02)
MODELS = make_model("a", seed=1), make_model("b", seed=2, optimizer=ADAM, batch_size=10)
TRIAL = Trial(target=2.0, lrs=(1.0,), seeds=1, most=STEPS)


def plan_of(*models: Model, updates: Updates | None = None) -> TrainingPlan:
    return TrainingPlan(
        models=models, scheme="uncoded", steps=STEPS, precision="float64", updates=updates
    )


def loss_after(model: Model, steps: int) -> float:
    module, _ = train_alone(model, steps=steps, dtype=torch.float64)
    return evaluate(module, loss=model.loss, dataset=model.test_dataset or model.dataset).loss


def plain_steps(*models: Model) -> int:
    """How many steps of a plain torch loop it takes until all are at the target."""
    reached = (max(loss_after(model, step) for model in models) for step in range(STEPS + 1))
    return next(step for step, loss in enumerate(reached) if loss <= TRIAL.target)


@pytest.mark.parametrize("spec", ["uncoded", "gc:s=1", "gc-rep:s=1"])
@pytest.mark.parametrize("k", [1, 2])
def test_exact_defences_have_the_losses_of_a_plain_torch_loop(spec: str, k: int) -> None:
    setting = Setting(scheme=parse_scheme(spec, n=N), jobs_per_round=k)
    workers = PacedWorkers(
        pace=latency_pace(PROFILE, alpha=ALPHA, jobs_per_round=k), kind="function"
    )
    trainees = TorchTrainees(plan=plan_of(*MODELS))
    run = trained(setting, workers, [(trainees, 1.0)], target=0.0, most=3)[0]
    curve = run.curve
    whole = curve.losses[np.flatnonzero(curve.clocks % 2 == 0)]  # after a step of both
    expected = [max(loss_after(model, step) for model in MODELS) for step in (1, 2, 3)]
    np.testing.assert_allclose(whole, expected, rtol=1e-6)
    assert not any(run.work.staleness)


def test_the_steps_are_those_of_plain_training_and_the_seconds_those_of_replay() -> None:
    (row,) = compare(REHEARSAL, ["gc-rep:s=1"], trial=replace(TRIAL, plan=plan_of(*MODELS))).rows
    steps = plain_steps(*MODELS)
    assert 0 < steps < STEPS
    assert (row.clocks_to_target, row.jobs_per_round) == (steps, 2)
    setting = Setting(scheme=parse_scheme("gc-rep:s=1", n=N), jobs_per_round=2)
    timed = replace(REHEARSAL, num_jobs=2 * steps, repeat=True)
    assert row.seconds_to_target == pytest.approx(replay(setting, timed).runtime_s, rel=1e-9)


@pytest.mark.parametrize("spec", ["asp", "ssp:slack=1", "asp-dds:M=1", "backup:b=1", "lb-bsp"])
def test_every_kind_of_defence_is_trained_by_any_optimizer_the_same_way_twice(spec: str) -> None:
    trial = replace(TRIAL, plan=plan_of(*MODELS))
    first, second = (compare(REHEARSAL, [spec], trial=trial) for _ in range(2))
    (row,) = first.rows
    assert first.rows == second.rows
    assert row.clocks_to_target is not None
    assert (row.staleness_max > 0.1) == (row.kind == "stale")
    assert (first.models, first.trial.what) == (2, "a, b")


def test_updates_are_applied_as_the_plan_says() -> None:
    setting = Setting(scheme=parse_scheme("asp", n=N))
    as_they_come = TorchTrainees(plan=plan_of(MODELS[1], updates=Updates(apply="update")))
    with pytest.raises(ParameterError, match="`optimizer`"):  # Adam cannot take them so
        as_they_come.check(setting)
    trial = replace(TRIAL, plan=as_they_come.plan)
    with pytest.raises(ParameterError, match="`optimizer`"):
        compare(REHEARSAL, ["asp"], trial=trial)
    TorchTrainees(plan=plan_of(*MODELS)).check(setting)


def test_another_seed_is_other_batches_and_a_rate_is_a_factor_of_the_model_s_own() -> None:
    setting = Setting(scheme=parse_scheme("uncoded", n=N))
    workers = PacedWorkers(pace=latency_pace(PROFILE, alpha=ALPHA), kind="function")

    def losses(model: Model, *, seed: int, lr: float) -> list[float]:
        trainees = TorchTrainees(plan=plan_of(model), seed=seed)
        run = trained(setting, workers, [(trainees, lr)], target=0, most=3)[0]
        return run.curve.losses.tolist()

    usual = losses(MODELS[0], seed=0, lr=1.0)
    assert losses(MODELS[0], seed=0, lr=1.0) == usual
    assert losses(MODELS[0], seed=1, lr=1.0) != usual
    doubled = replace(MODELS[0], optimizer=partial(torch.optim.SGD, lr=0.2))
    assert losses(MODELS[0], seed=0, lr=2.0) == losses(doubled, seed=0, lr=1.0) != usual


class Raising(torch.nn.Module):
    """Raises in training on fewer points than ``least``, if the marked one is among them."""

    def __init__(self, error: BaseException, *, least: int = 1000) -> None:
        super().__init__()
        self.layer, self.error, self.least = torch.nn.Linear(64, 10), error, least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) < self.least and (x > MARK - 1).any():
            raise self.error
        return self.layer(x.flatten(1))


MARK, MARKED = 50.0, blobs()
MARKED.tensors[0][37] = MARK  # not among the few that a model is tried out on


@pytest.mark.parametrize("error", [RuntimeError("no more"), SystemExit("no more")], ids=repr)
def test_a_model_that_fails_whatever_the_rate_ends_the_comparison_with_its_name(
    error: BaseException,
) -> None:
    plan = plan_of(MODELS[0], make_model("bad", module=Raising(error), dataset=MARKED))
    trial = replace(TRIAL, target=0.5, lrs=(1.0, 2.0), plan=plan)
    with pytest.raises(ModelError, match=r"bad .*no more"):
        compare(REHEARSAL, ["uncoded", "asp"], trial=trial)


def test_a_model_that_fails_with_a_defence_is_named_in_its_row() -> None:
    few = Raising(RuntimeError("too few"), least=16)  # a whole batch is not
    plan = plan_of(make_model("bad", module=few, dataset=MARKED))
    trial = replace(TRIAL, plan=plan, target=1e-3)  # so that all points are drawn before
    exact, stale = sorted(
        compare(REHEARSAL, ["uncoded", "asp"], trial=trial).rows, key=lambda row: row.kind
    )
    assert exact.failed == ""
    assert stale.failed.startswith("bad: ")
    assert "too few" in stale.failed
    assert stale.seconds_to_target is None


def test_a_rate_with_which_a_model_diverges_is_one_with_which_nothing_is_reached() -> None:
    trial = replace(TRIAL, lrs=(1e30, 1.0), plan=plan_of(*MODELS))
    for spec in ("uncoded", "asp", "backup:b=1"):
        found = compare(REHEARSAL, [spec], trial=trial)
        assert (found.lr, found.rows[0].best_lr) == (1.0, 1.0)
    with pytest.raises(ModelError, match="a "):
        compare(REHEARSAL, ["uncoded"], trial=replace(trial, lrs=(1e30,)))


def test_a_schedule_that_is_over_before_the_trial_is_refused() -> None:
    cycle = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=6)
    plan = plan_of(make_model("a", scheduler=cycle))
    with pytest.raises(ParameterError, match="steps"):
        compare(REHEARSAL, ["uncoded"], trial=replace(TRIAL, plan=plan))
    compare(REHEARSAL, ["uncoded"], trial=replace(TRIAL, most=6, plan=plan))


def test_usual_defences_are_those_that_the_plan_s_updates_are_for() -> None:
    late = Updates(apply="clock", refresh="late")
    trial = replace(TRIAL, plan=plan_of(MODELS[0], updates=late))
    names = {row.defence for row in compare(REHEARSAL, trial=trial).rows}
    assert "asp" not in names  # nothing bounds how late its weights are
    assert {"ssp:slack=1", "uncoded"} <= names


def test_the_target_is_of_the_test_data_if_there_is_any() -> None:
    tested = make_model("a", seed=1, test_dataset=blobs(seed=9))
    setting = Setting(scheme=parse_scheme("uncoded", n=N))
    workers = PacedWorkers(pace=latency_pace(PROFILE, alpha=ALPHA), kind="function")
    trainees = TorchTrainees(plan=plan_of(tested))
    curve = trained(setting, workers, [(trainees, 1.0)], target=0.0, most=1)[0].curve
    assert curve.losses[-1] == pytest.approx(loss_after(tested, 1), rel=1e-6)
    assert curve.losses[-1] != pytest.approx(loss_after(MODELS[0], 1), rel=1e-3)


def test_there_are_as_many_models_as_are_trained() -> None:
    trial = replace(TRIAL, plan=plan_of(*MODELS))
    with pytest.raises(ParameterError, match="`models` must be left out, or 2"):
        compare(REHEARSAL, ["uncoded"], models=3, trial=trial)

"""What may change under a run that goes on with --accept-changes, and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from seqgc import workers
from seqgc.errors import ParameterError
from seqgc.ports import Arrival, Backend, Notice, Seen
from seqgc.rounds import ClosingRule
from seqgc.training import (
    Adaptation,
    Callback,
    TrainingPlan,
    Validation,
    make_module,
    resume,
    train,
)
from seqgc.training.stale import Updates
from tests.kit import interrupts
from tests.training.reference import blobs, make_model
from tests.training.stale_runs import virtual
from tests.training.test_adaptive import HandDriven
from tests.training.test_resume import N, crew, digests, outcome, plan


class BrokenOffError(Exception):
    pass


def broken_off(run: Path, begun: TrainingPlan, *, answers: int) -> Path:
    """Leave a run whose checkpoint holds so many answers of a round that is not closed."""
    left = [answers + 1]

    def listen(seen: Seen) -> None:
        if isinstance(seen, Arrival) and seen.round == 5:
            left[0] -= 1
            if not left[0]:
                raise BrokenOffError

    with pytest.raises(BrokenOffError):
        train(begun, crew(), run=run, observers=[listen])
    return run


def interrupted(run: Path) -> tuple[Path, TrainingPlan]:
    """Leave a run whose workers go on by themselves, in its sixth clock."""
    begun = TrainingPlan(
        models=[make_model()], scheme="ssp:slack=1", steps=8, updates=Updates(apply="clock")
    )

    def interrupt(seen: Seen) -> None:
        if isinstance(seen, Arrival) and seen.round == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with interrupts(), pytest.raises(KeyboardInterrupt):
        train(begun, virtual(), run=run, observers=[interrupt])
    return run, begun


def files(run: Path) -> Mapping[Path, bytes]:
    """Return all that is written of a run, but that a master has been there."""
    paths = [path for path in run.rglob("*") if path.is_file() and path.parent.name != "masters"]
    return {path.relative_to(run): path.read_bytes() for path in paths}


def refusal(run: Path, changed: TrainingPlan, *, n: int = N) -> str:
    """Return in which words a change is refused, before anything is started or written."""

    def started(_n: int, _compute: object) -> Backend:
        raise AssertionError

    before = files(run)
    with pytest.raises(ParameterError) as info:
        resume(run, changed, workers.custom(n, started), accept_changes=True)
    assert files(run) == before
    text = str(info.value)
    assert len(text) <= 290
    assert "\n" not in text
    assert "RUN/checkpoints" in text
    return text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which a round is under way."""
    return broken_off(tmp_path_factory.mktemp("begun") / "run", plan("uncoded"), answers=2)


def changed(**models: object) -> TrainingPlan:
    """Return the plan with every model's fields changed."""
    begun = plan("uncoded")
    return replace(begun, models=[replace(model, **models) for model in begun.models])


# ---- what results are computed from --------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("uncoded", {"dataset": blobs(seed=7)}),
        ("gc:s=1", {"seed": 9}),
        ("gc-rep:s=1", {"batch_size": 16}),
    ],
)
def test_a_gradient_is_of_one_batch(spec: str, what: Mapping[str, object], tmp_path: Path) -> None:
    """Results of another batch that a checkpoint holds are not added to those of this one."""
    begun, ended = plan(spec), []
    now = replace(begun, models=[replace(model, **what) for model in begun.models])
    for answers in (0, 3):
        run = broken_off(tmp_path / str(answers) / "run", begun, answers=answers)
        resume(run, now, crew(), accept_changes=True)
        ended.append(digests(run))
    assert ended[0] == ended[1]


def test_what_was_accepted_is_known_if_no_checkpoint_followed(tmp_path: Path) -> None:
    """A master that was killed at once has left results of before under a journal of now."""
    begun, now = plan("uncoded"), changed(dataset=blobs(seed=7))
    run, left = broken_off(tmp_path / "run", begun, answers=3), tmp_path / "left" / "run"

    def kill(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "resume":
            shutil.copytree(run, left)

    resume(run, now, crew(), accept_changes=True, observers=[kill])
    resume(left, now, crew())
    assert digests(left) == digests(run)


def test_what_is_dropped_is_said(tmp_path: Path) -> None:
    said: list[str] = []

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    run = broken_off(tmp_path / "run", plan("uncoded"), answers=1)
    resume(run, changed(seed=9), crew(), accept_changes=True, observers=[listen])
    assert any("results of the open round are dropped, and computed again" in each for each in said)


def test_results_of_rounds_that_are_closed_are_not_mixed_with_others(tmp_path: Path) -> None:
    spec = "m-sgc:B=1,W=2,lam=2"
    run = broken_off(tmp_path / "run", plan(spec), answers=2)
    begun = plan(spec)
    other = replace(begun, models=[replace(model, seed=9) for model in begun.models])
    said = refusal(run, other)
    assert said.startswith("`m0: seed` must stay as long as checkpoint 5 has results")
    whole = train(begun, crew(), run=tmp_path / "whole" / "run").run
    resume(run, replace(begun, checkpoint_every_s=7.0), crew(), accept_changes=True)
    assert outcome(run) == outcome(whole)


def test_parts_that_are_added_up_are_of_one_batch(tmp_path: Path) -> None:
    run, begun = interrupted(tmp_path / "run")
    other = replace(begun, models=[make_model(seed=9)])
    assert " must stay as long as checkpoint" in refusal(run, other, n=virtual().n)


def test_batches_keep_their_size_once_points_are_lost_that_come_again(tmp_path: Path) -> None:
    run = broken_off(tmp_path / "run", plan("backup:b=2"), answers=2)
    begun = plan("backup:b=2")
    other = replace(begun, models=[replace(model, batch_size=2) for model in begun.models])
    said = refusal(run, other)
    assert said.startswith("`m0: batch_size` must stay as long as checkpoint 5 has results")
    resume(run, replace(begun, max_norm=1e9), crew(), accept_changes=True)


# ---- what never changes --------------------------------------------------------------------------

TINY = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))


def half_fixed(*, seed: int, head: int = 0) -> torch.nn.Module:
    """Return a network of which only the head is trained."""
    body, last = make_module("mlp", seed=seed), torch.nn.Linear(10, 10)
    torch.nn.init.constant_(last.weight, head)
    return torch.nn.Sequential(body.requires_grad_(False), last)


REFUSED: Mapping[str, Callable[[], TrainingPlan]] = {
    "scheme": lambda: plan("gc-rep:s=1"),
    "jobs_per_round": lambda: plan("uncoded", jobs_per_round=2),
    "precision": lambda: plan("uncoded", precision="float64"),
    "payload": lambda: plan("uncoded", payload="float16"),
    "stale": lambda: plan("uncoded", stale=True),
    "adaptation": lambda: plan("uncoded", adaptation=Adaptation(probe=3, alpha=0.0)),
    "models": lambda: replace(plan("uncoded"), models=plan("uncoded").models[:2]),
    "m0: module": lambda: changed(module=TINY),
    "m0: optimizer's settings": lambda: changed(optimizer=partial(torch.optim.SGD, lr=0.5)),
    "m0: scheduler's settings": lambda: changed(
        scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=2)
    ),
    "steps": lambda: plan("uncoded", steps=9),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_checkpoint_is_built_on_is_refused(name: str, run: Path) -> None:
    said = refusal(run, REFUSED[name]())
    assert said.startswith(f"`{name}` must ")
    assert "; got " in said


def test_the_fixed_weights_are_those_that_the_others_were_trained_with(tmp_path: Path) -> None:
    """Workers would compute with other ones than the trained network has."""

    def made(module: torch.nn.Module) -> TrainingPlan:
        return TrainingPlan(models=[make_model(module=module)], scheme="uncoded", steps=8)

    run = broken_off(tmp_path / "run", begun := made(half_fixed(seed=0)), answers=2)
    said = refusal(run, made(half_fixed(seed=1)))
    assert "`net: initial weights` must have the fixed weights that the checkpoint has" in said
    whole = train(begun, crew(), run=tmp_path / "whole" / "run").run
    resume(run, made(half_fixed(seed=0, head=1)), crew(), accept_changes=True)
    assert digests(run) == digests(whole)


def test_other_workers_are_refused(run: Path) -> None:
    with pytest.raises(ParameterError, match="`workers` must be 6, as in this run; got 8"):
        resume(run, plan("uncoded"), workers.custom(8, lambda *_: None), accept_changes=True)


# ---- what may change -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "now",
    [
        plan("uncoded", max_norm=1e9, on_failure="stop", every_s=5.0),
        changed(gradient_clip_val=1e9),
        changed(test_dataset=blobs(seed=6), save_every_n_steps=2),
    ],
)
def test_what_is_done_beside_gradients_may_change(now: TrainingPlan, tmp_path: Path) -> None:
    run = broken_off(tmp_path / "run", plan("uncoded"), answers=2)
    whole = train(plan("uncoded"), crew(), run=tmp_path / "whole" / "run").run
    resume(run, now, crew(), accept_changes=True)
    assert outcome(run) == outcome(whole)


def test_limits_are_those_of_what_was_switched_to(tmp_path: Path) -> None:
    """It was found with the limits of before, and is on record with them."""

    def made(timeout_s: float) -> TrainingPlan:
        rule = ClosingRule(timeout_s=timeout_s)
        adaptation = Adaptation(probe=3, retune=3, alpha=0.1)
        return plan("uncoded", rule=rule, steps=6, adaptation=adaptation)

    def stop(seen: Seen) -> None:
        if isinstance(seen, Arrival) and seen.round == 8:
            raise BrokenOffError

    run, tuner = tmp_path / "run", HandDriven()
    with pytest.raises(BrokenOffError):
        train(made(60.0), crew(), run=run, tuner=HandDriven("gc-rep:s=2"), observers=[stop])
    assert len(resume(run, made(90.0), crew(), tuner=tuner, accept_changes=True).schemes) == 2
    assert {each.current.rule.timeout_s for each in tuner.questions} == {90.0}


@pytest.mark.parametrize("monitor", ["loss", "loudest"])
def test_another_metric_may_be_followed(monitor: str, tmp_path: Path) -> None:
    """One that was not measured before has no best before."""

    def loudest(output: torch.Tensor, _target: torch.Tensor) -> float:
        return float(output.abs().max())

    before = Validation(every_n_steps=1)
    now = Validation(every_n_steps=1, metrics={"loudest": loudest}, monitor=monitor, mode="max")
    run = broken_off(tmp_path / "run", changed(validation=before), answers=2)
    result = resume(run, changed(validation=now), crew(), accept_changes=True)
    assert not result.parked
    assert monitor in result.best["m0"].metrics


@pytest.mark.parametrize("change", [{"mode": "max"}, {"dataset": blobs(seed=7)}, {"patience": 9}])
def test_a_best_is_compared_with_values_of_its_own_kind(
    change: Mapping[str, object], tmp_path: Path
) -> None:
    """What says only when to stop leaves it as it is."""
    said, before = list[str](), Validation(every_n_steps=1, dataset=blobs(seed=6))

    def listen(seen: Seen) -> None:
        if isinstance(seen, Notice) and seen.kind == "warning":
            said.append(str(seen.fields["text"]))

    run = broken_off(tmp_path / "run", changed(validation=before), answers=2)
    now = changed(validation=replace(before, **change))
    result = resume(run, now, crew(), accept_changes=True, observers=[listen])
    drops = "patience" not in change
    assert any(text.startswith("m0: its best validation is dropped") for text in said) == drops
    assert result.best["m0"].step > 2 * drops  # as many as `m0` had taken


def test_what_is_accepted_is_on_record_once_the_checkpoint_fits(tmp_path: Path) -> None:
    """Where it does not, the run goes on with what it was begun with, as if nobody had tried."""

    class Counting(Callback):
        """Its state has a name that it may not have had before."""

        def __init__(self, state: Mapping[str, object]) -> None:
            self._state = state

        def state_dict(self) -> Mapping[str, object]:
            return self._state

        def load_state_dict(self, state: Mapping[str, object]) -> None:
            if state.keys() != self._state.keys():
                raise KeyError("count")

    run, begun = tmp_path / "run", plan("uncoded")
    train(begun, crew(), run=run, callbacks=[Counting({"count": 1})])
    before = (run / "journal.jsonl").read_text()
    with pytest.raises(ParameterError, match="must take back the state"):
        resume(
            run, replace(begun, max_norm=1e9), crew(), accept_changes=True,
            callbacks=[Counting({"counts": 1})],
        )  # fmt: skip
    assert "begin" not in (run / "journal.jsonl").read_text().removeprefix(before)
    resume(run, begun, crew(), callbacks=[Counting({"count": 1})])

"""An optimizer or scheduler whose state no checkpoint can hold, or that does not take it back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from seqgc.errors import StoreError
from seqgc.training import Model, TrainingPlan, TrainResult, resume, train
from tests.training.reference import make_model
from tests.training.test_diverged import crew, others

STEPS = 4


class Odd(torch.optim.SGD):
    """One that has a state which no file can hold, from its first step on."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.state["history"] = deque([1.0])


class Late(torch.optim.SGD):
    """One whose state raises once it has made its last step."""

    error: BaseException = ValueError("no state")
    steps = 0

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.steps += 1

    def state_dict(self) -> dict[str, object]:
        if self.steps == STEPS:
            raise self.error
        return super().state_dict()


class Leaving(Late):
    error = SystemExit(0)


class Stern(torch.optim.SGD):
    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        raise TypeError(f"no {next(iter(state_dict))}")


class Timed(torch.optim.lr_scheduler.StepLR):
    def state_dict(self) -> dict[str, object]:
        late = {"clock": object()} if self.last_epoch >= STEPS else {}
        return super().state_dict() | late


def of(kind: type[torch.optim.SGD]) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: kind(parameters, lr=0.1)


def timed(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return Timed(optimizer, step_size=3)


PLAIN = make_model("m1", seed=1, optimizer=of(torch.optim.SGD))


def plan(last: Model, *, every_s: float = 60.0) -> TrainingPlan:
    models = [make_model("m0", seed=0), last]
    return TrainingPlan(
        models=models, scheme="uncoded", jobs_per_round=1, steps=STEPS, checkpoint_every_s=every_s
    )


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(plan(PLAIN), crew(), run=tmp_path_factory.mktemp("fine") / "run")


LATE = replace(PLAIN, optimizer=of(Late))


@pytest.mark.parametrize(
    ("last", "says", "steps", "every_s"),
    [
        (replace(PLAIN, optimizer=of(Odd)), "its step raised ParameterError: `optimizer.", 0, 1e-9),
        (LATE, "state raised ValueError: no state", STEPS, 1e-9),
        (LATE, "state raised ValueError: no state", STEPS, 60.0),
        (replace(PLAIN, optimizer=of(Leaving)), "state raised SystemExit: 0", STEPS, 60.0),
        (
            replace(PLAIN, scheduler=timed),
            "state raised ParameterError: `scheduler.clock`",
            STEPS,
            1e-9,
        ),
    ],
    ids=["odd", "late", "late, at the end", "leaving, at the end", "scheduler"],
)
def test_it_is_parked_and_all_else_is_trained_and_kept(
    last: Model, says: str, steps: int, every_s: float, fine: TrainResult, tmp_path: Path
) -> None:
    """Its trained weights are there, too: those that it had before the state was asked for."""
    run = tmp_path / "run"
    bad = train(plan(last, every_s=every_s), crew(), run=run)
    parked = bad.parked["m1"]
    assert (parked.kind, parked.step) == ("raised", steps)
    assert says in parked.why
    assert others(bad, "m1") == others(fine, "m1")
    assert (run / "checkpoints" / "m1.safetensors").exists()
    again = resume(run, plan(last, every_s=every_s), crew())
    assert again.parked == bad.parked
    assert others(again, "m1") == others(fine, "m1")


def test_a_state_that_is_not_taken_back_is_refused_in_one_line(tmp_path: Path) -> None:
    stern = plan(replace(PLAIN, optimizer=of(Stern)))
    train(stern, crew(), run=tmp_path / "run")
    with pytest.raises(
        StoreError, match=r"does not fit the models of the plan: TypeError: no state \(.*, in load_"
    ):
        resume(tmp_path / "run", stern, crew())

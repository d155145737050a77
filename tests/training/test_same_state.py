"""What a checkpoint says of a run is what a resumed run begins with, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqgc import workers
from seqgc.errors import CallbackError, ParameterError
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.training import Callback, Crew, Validation, Work, resume, train
from tests.training.inside import RunState
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed
from tests.training.test_resume import N, crew, outcome, plan, times

begun = partial(plan, "uncoded", steps=2)


def changed(known: object, leaf: Callable[[object], object]) -> object:
    """Return what a run knows with ``leaf(value)`` in place of each value that has no parts."""
    match known:
        case list() | tuple():
            values = [changed(each, leaf) for each in known]
            return known._make(values) if hasattr(known, "_make") else type(known)(values)
        case dict():
            return {key: changed(each, leaf) for key, each in known.items()}
    if is_dataclass(known) and not isinstance(known, type):
        each = {f.name: changed(getattr(known, f.name), leaf) for f in fields(known)}
        return replace(known, **each)
    return leaf(known)


def in_order(value: object) -> object:
    """Return a set as a list, because the order of a set depends on how it was made."""
    return sorted(value) if isinstance(value, set | frozenset) else value


@given(st.from_type(RunState))
@settings(max_examples=6, suppress_health_check=list(HealthCheck))
def test_what_a_run_knows_is_read_as_written_also_where_a_number_is_not_finite(
    tmp_path_factory: pytest.TempPathFactory, state: RunState
) -> None:
    """As JSON knows no NaN and no infinity."""
    folder = SnapshotFolder(tmp_path_factory.mktemp("state"), RunState)
    for number in (math.nan, math.inf, -math.inf, 0.1):
        odd = changed(state, lambda value, number=number: number if type(value) is float else value)
        assert isinstance(odd, RunState)
        folder.write(Snapshot(rounds=3, state=odd, files={}))
        read = folder.newest()[0].state
        assert repr(changed(read, in_order)) == repr(changed(odd, in_order))


def test_a_run_whose_own_metric_is_not_finite_is_resumed(tmp_path: Path) -> None:
    rules = Validation(every_n_steps=1, metrics={"odd": lambda *_: math.nan})
    plain = begun()
    odd = replace(plain, models=[replace(model, validation=rules) for model in plain.models])
    run = train(odd, crew(), run=tmp_path / "run").run
    assert SnapshotFolder(run / "checkpoints", RunState).newest()[1] == []
    before, again = outcome(run), resume(run, odd, crew())
    assert outcome(run) == before
    assert math.isnan(again.best["m0"].metrics["odd"])


class Rounding(torch.optim.Optimizer):
    """Momentum in bfloat16, nested as an optimizer of one's own may have it."""

    def __init__(self, params: Iterable[torch.Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            (old,) = state.setdefault("slow", {}).get("velocity", (torch.zeros_like(parameter),))
            velocity = (0.9 * old + parameter.grad).to(torch.bfloat16)
            state["slow"]["velocity"] = (velocity,)
            parameter.sub_(0.1 * velocity)


class EndsAfter(Callback):
    """Ends the run once so many steps have been made."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def on_step(self, _model: str, step: int, *_: object) -> None:
        if step == self._steps:
            raise RuntimeError("my disk is full")


@pytest.mark.parametrize("optimizer", [Rounding, partial(torch.optim.NAdam, lr=0.01)])
def test_an_optimizers_state_keeps_its_formats_whatever_the_weights_have(
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer], tmp_path: Path
) -> None:
    """NAdam has a float32 beside weights in float64."""
    model = make_model("m0", seed=0, optimizer=optimizer)
    one = replace(plan("uncoded", steps=8), models=[model], precision="float64")
    whole = train(one, crew(), run=tmp_path / "whole")
    with pytest.raises(CallbackError, match="full"):
        train(one, crew(), run=tmp_path / "half", callbacks=[EndsAfter(4)])
    again = resume(tmp_path / "half", one, crew())
    weights = (each.modules["m0"].state_dict() for each in (again, whole))
    assert all(torch.equal(*both) for both in zip(*(w.values() for w in weights), strict=True))


class Heard(workers.WorkerSet):
    """Workers that note the name of the run that they are opened for."""

    provider = "custom"

    def __init__(self) -> None:
        super().__init__(N)
        self._crew = workers.custom(N, replayed(times()))
        self.name = ""

    def check(self, work: Work) -> None:
        self._crew.check(work)

    def forecast(self, _: object) -> None: ...

    def open(self, work: Work) -> AbstractContextManager[Crew]:
        self.name = work.name
        return self._crew.open(work)


def name_of(run: Path) -> str:
    """Return the name by which a run is resumed from that folder."""
    heard = Heard()
    resume(run, begun(), heard)
    return heard.name


def test_rounding_is_seeded_by_the_name_that_the_folder_had_when_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, renamed = Heard(), tmp_path / "other"
    train(begun(), heard, run=tmp_path / "first").run.rename(renamed)
    assert heard.name == name_of(renamed) == name_of(renamed) == "first"
    monkeypatch.chdir(renamed)
    assert name_of(Path()) == "first"


def test_the_root_is_no_run() -> None:
    with pytest.raises(ParameterError, match="has no name"):
        resume("/", begun(), crew())

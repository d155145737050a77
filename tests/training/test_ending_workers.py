"""A model that ends or hangs its worker's process, live; and one that would end the master."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from functools import partial
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import seqgc
from seqgc import workers
from seqgc.backends import LocalBackend
from seqgc.errors import ParameterError
from seqgc.ports import Computing, Failure, FloatArray, Task, WeightedPoints, WorkItem
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.stores import MemoryStore
from seqgc.testing.scripted import eventually, next_event, part
from seqgc.training import Model, TorchWorkload, TrainingPlan, TrainResult
from seqgc.worker import PROGRESS, Compute
from tests.kit import SOAK
from tests.training.reference import Chunks, make_model
from tests.training.test_diverged import logged, others

STEPS, SEED = 2, 1


class Deadly(nn.Linear):
    """A layer that does this in a worker's process once a step has been taken."""

    def __init__(self, how: str) -> None:
        super().__init__(64, 10)
        self._how = how
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if parent_process() is not None and bool(self.bias.detach().any()):
            end(self._how)
        return super().forward(x.flatten(1))


class Fatal(nn.Linear):
    """A layer that does this wherever it is called."""

    def __init__(self, how: str) -> None:
        super().__init__(64, 10)
        self._how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end(self._how)
        return super().forward(x.flatten(1))


def end(how: str) -> None:
    match how:
        case "exit":
            os._exit(7)
        case "fault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(600.0)
        case "interrupt":
            raise KeyboardInterrupt


def run(how: str, folder: Path, *, workers_: int = 2) -> TrainResult:
    torch.manual_seed(0)
    models = [make_model(f"m{i}", seed=i) for i in range(3)]
    models[1] = make_model("m1", seed=SEED, module=Deadly(how))
    rule = ClosingRule(timeout_s=10.0 if how == "hang" else 60.0)
    setting = Setting(scheme=parse_scheme("uncoded", n=workers_), jobs_per_round=3, rule=rule)
    plan = TrainingPlan(models=models, scheme=setting, steps=STEPS)
    return seqgc.train(plan, workers.local(workers_), run=folder)


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return run("nothing", tmp_path_factory.mktemp("fine") / "run")


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("fault", "crashed", "killed by SIGSEGV (11) while it computed model 'm1', 3 times"),
        pytest.param(
            "hang",
            "hung",
            "exceeded the time limit 2 times",
            marks=pytest.mark.skipif(not SOAK, reason="waits for two time limits, 20 s"),
        ),
        ("interrupt", "raised", "KeyboardInterrupt ("),
    ],
)
def test_it_is_parked_by_name_and_the_others_get_the_same_bits(
    how: str, kind: str, says: str, fine: TrainResult, tmp_path: Path
) -> None:
    result = run(how, tmp_path / "run")
    assert list(result.failed) == ["m1"]
    parked = result.failed["m1"]
    assert (parked.kind, parked.step) == (kind, 1)
    assert says in parked.why
    assert others(result, "m1") == others(fine, "m1")
    assert ("m1" in result.evaluations) == (kind == "raised"), "nor does the master compute it"
    if how == "hang":
        assert any("'m1'" in str(each) for each in logged(result.run, "warning"))


def hang_at(folder: Path) -> Compute:
    """Return what computes parts of two models, of which the second one takes for ever."""

    def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
        for each in parts:
            PROGRESS.enter(each.model)
            if each.model == "b":
                (folder / "b").touch()
                end("hang")
        return np.zeros(1)

    return compute


def test_a_worker_that_is_restarted_is_known_by_the_model_at_which_it_hung(tmp_path: Path) -> None:
    item = WorkItem(slot=0, parts=(part("a"), part("b")))
    with LocalBackend(1, partial(hang_at, tmp_path)) as backend:
        backend.dispatch(3, [Task(round=3, worker=0, attempt=2, items=(item,))])
        eventually((tmp_path / "b").exists, "the second part")
        computing = backend.restart(0)
        assert isinstance(computing, Computing)
        assert (computing.round, computing.attempt, computing.model) == (3, 2, "b")
        failure = next_event(backend)
        assert isinstance(failure, Failure)
        assert failure.model is None, "a restart is no death"
        assert backend.restart(0) is None, "it has nothing to do"


def workload(model: Model) -> TorchWorkload:
    return TorchWorkload([make_model("m0"), model], scheme=Chunks(), store=MemoryStore())


@pytest.mark.parametrize(
    ("how", "says"),
    [("exit", "status 7"), ("kill", "SIGKILL"), ("interrupt", "KeyboardInterrupt")],
)
def test_what_would_end_the_master_is_refused_by_name(how: str, says: str) -> None:
    with pytest.raises(ParameterError, match=rf"{says}.*'bad'"):
        workload(make_model("bad", module=Fatal(how)))


def test_the_trial_of_built_in_parts_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a child was forked"))
    workload(make_model("good"))

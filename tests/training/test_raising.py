"""A model whose own code raises is parked, with the file and the line; the others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from seqgc.errors import ModelError, ParameterError
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.stores import MemoryStore
from seqgc.training import (
    Callback,
    Model,
    TorchCompute,
    TorchWorkload,
    TrainingPlan,
    TrainResult,
    batch_indices,
    resume,
    train,
)
from tests.training.reference import Chunks, blobs, flat, make_model, run_coded
from tests.training.test_diverged import N, crew, others

STEPS, POINTS, SEED = 3, 1000, 3


TORN = int(batch_indices(POINTS, batch_size=16, seed=SEED, step=1)[5])
"""A data point of the second step, which no trial before a run looks at."""


def marked() -> TensorDataset:
    """Data of which one point, of the second step, is out of the ordinary."""
    data = blobs(POINTS)
    data.tensors[0][TORN] = 1e6
    return data


class Moody(nn.Linear):
    """A layer whose forward raises where it is trained on the marked point."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and bool((x == 1e6).any()):
            raise RuntimeError("had enough")
        return super().forward(x.flatten(1))


class Torn(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Data of which one point, of the second step, cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self._data, self._error = blobs(POINTS), error

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == TORN:
            raise self._error
        return self._data[index]


class Picky(nn.CrossEntropyLoss):
    """A loss that raises where a model is trained on the marked point."""

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if output.requires_grad and output.detach().abs().max() > 1e3:
            raise ValueError("no such label")
        return super().forward(output, target)


BROKEN: dict[str, tuple[Callable[[], Model], str, str]] = {
    "forward": (
        lambda: make_model("m3", seed=SEED, module=Moody(64, 10), dataset=marked()),
        "RuntimeError: had enough",
        "forward",
    ),
    "dataset": (
        lambda: make_model("m3", seed=SEED, dataset=Torn(OSError("the point cannot be read"))),
        "OSError: the point cannot be read",
        "__getitem__",
    ),
    "dataset ends": (
        lambda: make_model("m3", seed=SEED, dataset=Torn(SystemExit("no licence"))),
        "SystemExit: no licence",
        "__getitem__",
    ),
    "loss": (
        lambda: make_model("m3", seed=SEED, dataset=marked(), loss=Picky()),
        "ValueError: no such label",
        "forward",
    ),
}


def plan(last: Model, spec: str = "gc-rep:s=1", *, bundle: int = 2) -> TrainingPlan:
    models = [*(make_model(f"m{i}", seed=i) for i in range(3)), last]
    setting = Setting(scheme=parse_scheme(spec, n=N), jobs_per_round=bundle)
    return TrainingPlan(models=models, scheme=setting, steps=STEPS)


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A run in which nothing raises."""
    run = tmp_path_factory.mktemp("fine") / "run"
    return train(plan(make_model("m3", seed=SEED)), crew(), run=run)


@pytest.mark.parametrize("where", BROKEN)
def test_it_is_parked_where_it_raised_and_the_others_get_the_same_bits(
    where: str, fine: TrainResult, tmp_path: Path
) -> None:
    broken, says, function = BROKEN[where]
    bad = train(plan(broken()), crew(), run=tmp_path / "bad")
    assert list(bad.parked) == ["m3"]
    parked = bad.parked["m3"]
    assert (parked.kind, parked.step, parked.failed) == ("raised", 1, True)
    assert parked.why.startswith(f"{says} ({__file__}:")
    assert parked.why.endswith(f", in {function})")
    assert others(bad, "m3") == others(fine, "m3")
    assert ("m3" in bad.evaluations) == ("dataset" not in where), "as far as it can be evaluated"
    assert not bad.unevaluated


def test_a_run_of_nothing_else_ends_and_says_why(tmp_path: Path) -> None:
    alone = TrainingPlan(models=[BROKEN["forward"][0]()], scheme="gc:s=1", steps=STEPS)
    with pytest.raises(ModelError, match=r"^m3 raised after 1 step: RuntimeError: had enough \("):
        train(alone, crew(), run=tmp_path / "run")


class Spoilt(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Test data, one point of which cannot be read; those that are tried before a run can."""

    def __init__(self, error: BaseException) -> None:
        self._data, self._error = blobs(POINTS), error

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == POINTS - 2:
            raise self._error
        return self._data[index]


@pytest.mark.parametrize("error", [OSError("torn"), SystemExit(0), BaseException("of another")])
def test_test_data_that_raise_cost_no_other_model_its_evaluation(
    error: BaseException, tmp_path: Path
) -> None:
    spoilt = make_model("m3", seed=SEED, test_dataset=Spoilt(error))
    bad = train(plan(spoilt), crew(), run=tmp_path / "bad")
    assert list(bad.evaluations) == ["m0", "m1", "m2"]
    ((name, why),) = bad.unevaluated.items()
    assert name == "m3"
    assert why.startswith(f"{type(error).__name__}: {error} ({__file__}:")
    assert not bad.failed, "it has been trained"
    assert "m3" in bad.modules


def test_data_that_cannot_be_read_leave_nothing(tmp_path: Path) -> None:
    class Cut(Spoilt):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return super().__getitem__(index - 1)  # the last one raises, which is looked at

    cut = make_model("m3", test_dataset=Cut(SystemExit(0)))
    with pytest.raises(ParameterError, match=r"`dataset` must have points that can be read \(Sys"):
        train(plan(cut), crew(), run=tmp_path / "run")
    assert not any(tmp_path.iterdir())


def test_who_interrupts_the_end_hears_where_the_results_are(tmp_path: Path) -> None:
    run = tmp_path / "run"

    class Impatient(Callback):
        def on_end(self, result: TrainResult) -> None:  # noqa: ARG002 (it is not looked at)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        train(plan(make_model("m3")), crew(), run=run, callbacks=[Impatient()])
    assert raised.value.__notes__ == [
        f"training is complete and saved; show the result with: seqgc resume {run}"
    ]
    assert len(resume(run, plan(make_model("m3")), crew()).evaluations) == 4


class Flaky(nn.CrossEntropyLoss):
    """A loss that raises in one worker, once a step has been taken, and never again."""

    raises = False

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if Flaky.raises:
            Flaky.raises = False
            raise OSError("the network is away")
        return super().forward(output, target)


def test_what_one_worker_raises_once_is_its_own_failure(
    fine: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Arming(Callback):
        def on_step(self, model: str, step: int, loss: float, metrics: object) -> None:  # noqa: ARG002
            if (model, step) == ("m3", 1):
                monkeypatch.setattr(Flaky, "raises", True)

    flaky = plan(make_model("m3", seed=SEED, loss=Flaky()))
    bad = train(flaky, crew(), run=tmp_path / "bad", callbacks=[Arming()])
    assert bad.parked == {}
    assert bad.counts.failures == 1
    assert others(bad, "none") == others(fine, "none")


class Weak(torch.optim.SGD):
    """An optimizer that raises halfway through its second step."""

    steps = 0
    error: BaseException = ArithmeticError("out of breath")

    def step(self, closure: None = None) -> None:
        super().step(closure)
        self.steps += 1
        if self.steps == 2:
            raise self.error


class Ending(Weak):
    """One that ends the program instead."""

    error = SystemExit(0)


class Leave(SystemExit):
    """What a command line's parser may raise, for instance."""


class Leaving(Weak):
    error = Leave(0)


class Odd(Weak):
    """One that raises what is no `Exception`."""

    error = BaseException("of another kind")


def weak(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Weak(parameters, lr=0.1)


def tired(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    def factor(step: int) -> float:
        return 1 / (step < 2)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


STEPPING = {
    "optimizer": (lambda model: replace(model, optimizer=weak), "ArithmeticError: out of breath"),
    "end": (lambda model: replace(model, optimizer=partial(Ending, lr=0.1)), "SystemExit: 0"),
    "leave": (lambda model: replace(model, optimizer=partial(Leaving, lr=0.1)), "Leave: 0"),
    "other": (
        lambda model: replace(model, optimizer=partial(Odd, lr=0.1)),
        "BaseException: of another kind",
    ),
    "scheduler": (lambda model: replace(model, scheduler=tired), "ZeroDivisionError: division by"),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("where", STEPPING)
def test_a_step_that_raises_is_not_made(where: str, late: bool) -> None:
    """The model keeps the weights of the step before, in which nothing of this one stays."""
    change, says = STEPPING[where]
    models = [change(make_model("a")), make_model("b", seed=1)]
    delay = 2 if late else 0
    workload = loop_of(models, jobs=6, delay=delay)
    ((name, parked),) = workload.parked.items()
    assert (name, parked.kind, parked.step) == ("a", "raised", 1)
    assert parked.why.startswith(f"its step raised {says}")
    assert f"({__file__}:" in parked.why
    taken = sum(entry.model == "b" for entry in workload.metrics)
    assert taken == 4 - late  # one more, in the other's turn
    for name, jobs in (("a", 1), ("b", 2 * taken)):
        alone = loop_of([make_model("a"), make_model("b", seed=1)], jobs=jobs, delay=delay)
        weights = flat(workload.module(name)), flat(alone.module(name))
        assert np.allclose(*weights, rtol=0, atol=1e-12), name  # each job has a code of its own


def loop_of(models: list[Model], *, jobs: int, delay: int) -> TorchWorkload:
    """Train without workers."""
    store, scheme = MemoryStore(), Chunks(delay=delay)
    workload = TorchWorkload(models, scheme=scheme, store=store, stale=True, precision="float64")
    compute = TorchCompute([m.objective for m in models], store=store, precision="float64")
    run_coded(workload, compute, jobs=jobs, scheme=scheme)
    return workload

"""Wrong objects from Python: each is refused in one line, before anything is begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc.errors import CallbackError, ParameterError
from seqgc.stores import MemoryStore
from seqgc.training import Callback, Model, Stop, TorchWorkload, TrainingPlan, Validation, grid
from tests.training.reference import Chunks, make_model
from tests.training.test_loop import begun, go_on

NARROW = TensorDataset(torch.ones(8, 3), torch.zeros(8, dtype=torch.long))


class Points:
    """Data whose points are whatever a function says."""

    def __init__(self, point: Callable[[int], object]) -> None:
        self._point = point

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> object:
        return self._point(index)


def leave(*_: object) -> object:
    raise SystemExit(3)


class Leaving(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        raise SystemExit(3)


def start(model: object = None, **options: object) -> None:
    TorchWorkload([model or make_model()], scheme=Chunks(), store=MemoryStore(), **options)


def of(**changes: object) -> Model:
    return replace(make_model(), **changes)


def validated(**rules: object) -> Model:
    return of(validation=Validation(every_n_steps=1, **rules))


class Hidden(Callback):
    @property
    def on_validation(self) -> object:  # type: ignore[override]
        raise LookupError("not yet")


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "points that are none": (
        lambda: start(of(dataset=Points(lambda _: torch.zeros(1)))),
        r"`dataset` must give pairs \(x, y\).*got 'items of type Tensor of length 1 in Points'",
    ),
    "a point that ends the process": (
        lambda: start(of(dataset=Points(leave))),
        r"`dataset` must give points \(x, y\) .*SystemExit: 3",
    ),
    "a module that ends the process": (
        lambda: start(of(module=Leaving(64, 10))),
        r"must take the dataset's points.*SystemExit: 3 \(.*test_refused.py:\d+, in forward\)",
    ),
    "test data that are none": (lambda: of(test_dataset=3), "`test_dataset` must be map-style"),
    "test data of another shape": (
        lambda: start(of(test_dataset=NARROW)),
        "`test_dataset` must have points that the module and the loss take .*got 'net'",
    ),
    "validation data that are none": (
        lambda: validated(dataset=3),
        "`validation.dataset` must be map-style",
    ),
    "validation data of another shape": (
        lambda: start(validated(dataset=NARROW)),
        "`validation` must .*; got 'net'",
    ),
    "a validation that is none": (lambda: of(validation=3), "must be a seqgc.Validation; got 3"),
    "metrics without names": (lambda: validated(metrics=[print]), "`metrics` must be a dict"),
    "a metric whose name is empty": (
        lambda: validated(metrics={" ": print}),
        "`metrics` must have names .*; got ' '",
    ),
    "a metric that returns text": (
        lambda: start(validated(metrics={"m": lambda *_: "1.5"})),
        "`metrics` must return a number .*it returned text.*; got 'm'",
    ),
    "a monitor that is no name": (lambda: start(validated(monitor=3)), "`monitor` must be one of"),
    "a metric that returns nothing": (
        lambda: start(validated(metrics={"m": lambda *_: None})),
        "`metrics` must return a number .*NoneType.*; got 'm'",
    ),
    "a clipping that is no number": (
        lambda: of(gradient_clip_val="1"),
        "`gradient_clip_val` must be a finite number > 0; got '1'",
    ),
    "callbacks that are one": (
        lambda: start(callbacks=Callback()),
        "`callbacks` must be a list of objects",
    ),
    "a callback whose property raises": (
        lambda: start(callbacks=[Hidden()]),
        "must have methods that can be inspected; got 'Hidden' .LookupError: not yet",
    ),
    "models that are one": (
        lambda: TrainingPlan(models=make_model(), scheme="gc:s=1", steps=1),  # type: ignore[arg-type]
        "`models` must be a list of models",
    ),
    "a model that is none": (
        lambda: TrainingPlan(models=[3], scheme="gc:s=1", steps=1),  # type: ignore[list-item]
        "`models` must each be a Model; got 3",
    ),
    "a name of another file": (
        lambda: start(make_model("flight")),
        "`models` must not be named `flight` or end in .*got 'flight'",
    ),
    "a name of another model's file": (lambda: start(make_model("a.best")), "got 'a.best'"),
    "a name of another model's data queue": (
        lambda: start(make_model("a.queue")),
        "end in `.best`, `.optimizer`, `.queue`: .*got 'a.queue'",
    ),
    "a grid of nothing that makes": (
        lambda: grid(3, {"lr": [0.1]}),  # type: ignore[arg-type]
        "`make` must be a function",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_it_is_one_line(what: str) -> None:
    make, says = CASES[what]
    with pytest.raises(ParameterError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


class Quitter(Callback):
    def on_step(self, model: str, step: int, loss: float, metrics: object) -> Stop | None:  # noqa: ARG002
        raise SystemExit(7)


def test_a_callback_that_ends_the_process_has_raised() -> None:
    workload, compute = begun([make_model()], Quitter())
    go_on(workload, compute, range(2))
    with pytest.raises(CallbackError, match=r"Quitter.on_step raised SystemExit"):
        workload.after_step.callbacks.require_none_failed()


def test_a_value_of_many_lines_is_shown_in_one() -> None:
    assert "\n" not in str(ParameterError("x", "must be a number", torch.ones(3, 3)))

"""The best validation of a model, and the validation after which it is stopped."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import pytest

from seqgc.models.evaluation import Validator
from seqgc.training import Validation
from tests.training.reference import blobs, make_model

NAN = math.nan


@pytest.mark.parametrize(
    ("rules", "told", "best", "stopped"),
    [
        ({}, [3.0, 2.0, 4.0, 1.0, 5.0, 6.0], 4, 6),
        ({}, [3.0, 3.0, 3.0], 1, 3),  # as good is no better
        ({"mode": "max"}, [3.0, 5.0, 4.0, 6.0, 2.0, 1.0], 4, 6),
        ({"min_delta": 1.0}, [5.0, 4.5, 3.9, 3.5, 3.0], 3, 5),
        ({"mode": "max", "min_delta": 1.0}, [5.0, 5.5, 6.1, 6.5, 7.0], 3, 5),
        ({}, [NAN, 2.0, NAN, 3.0], 2, 4),
        ({}, [NAN, math.inf], None, 2),
    ],
)
def test_the_best_is_by_what_is_monitored_its_mode_and_its_delta(
    rules: dict[str, object], told: list[float], best: int | None, stopped: int
) -> None:
    values, model = iter(told), make_model()
    scripted = Validation(
        every_n_steps=1,
        dataset=blobs(4),
        metrics={"scripted": lambda *_: next(values)},
        monitor="scripted",
        patience=2,
        **rules,  # type: ignore[arg-type]
    )
    validator = Validator(model, scripted)
    for step in count(1):
        assert validator.validate(model.module, step=step)["scripted"] is told[step - 1]
        if verdict := validator.verdict:
            break
    assert step == stopped
    assert (validator.state.best.step if validator.state.best else None) == best
    assert verdict.startswith("scripted was ")
    assert ("not finite" in verdict) == (best is None)


def test_data_are_the_models_own_unless_given() -> None:
    rules = Validation(every_n_steps=1, metrics={"size": lambda output, _: float(len(output))})
    alone, tested = make_model(), replace(make_model(), test_dataset=blobs(7))
    for model, given, size in ((alone, None, 40), (tested, None, 7), (tested, blobs(5), 5)):
        assert replace(rules, dataset=given).of(model.module, model)["size"] == size

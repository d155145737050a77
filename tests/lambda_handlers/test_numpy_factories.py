"""The workloads that need numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lambda_handlers.gradient_worker.numpy_factories import (
    constant,
    least_squares,
    least_squares_data,
    weight_decay,
)
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, WeightedPoints, WeightRef

SETTINGS = {"points": 12, "features": 3, "seed": 5}
COEFFICIENTS = np.array([0.5, -2.0, 0.25])


def part(model: str = "m") -> WeightedPoints:
    ref = WeightRef(model=model, version=0, digest="0" * 64, dtype="float64", size=3)
    return WeightedPoints(
        model=model, weights=ref, points=np.array([1, 4, 11]), coefficients=COEFFICIENTS
    )


def weights_of(ref: WeightRef) -> FloatArray:
    return np.array([0.1, -0.2, 0.3]) * (1 + len(ref.model))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-4)])
def test_least_squares_is_the_gradient_of_its_loss(dtype: str, tolerance: float) -> None:
    x, y = least_squares_data(points=12, features=3, seed=5)
    compute = least_squares(SETTINGS | {"dtype": dtype}, weights_of)

    def loss(w: FloatArray) -> float:
        residuals = (x @ w - y)[[1, 4, 11]]
        return float(COEFFICIENTS @ residuals**2 / 2)

    for each in (part("m"), part("other")):
        w = weights_of(each.weights)
        slopes = [
            (loss(w + step) - loss(w - step)) / 2e-3 for step in 1e-3 * np.eye(3)
        ]  # exact for a parabola
        np.testing.assert_allclose(compute((each,)), slopes, rtol=tolerance)
        assert compute((each,)).dtype == dtype
    both = compute((part("m"), part("other")))
    assert both.tolist() == [*compute((part("m"),)), *compute((part("other"),))]


def test_data_depend_on_the_seed_alone() -> None:
    one, same, other = (
        least_squares_data(points=4, features=2, seed=seed)[0].tolist() for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_constant_needs_no_weights_and_is_linear_in_the_coefficients() -> None:
    def refuse(_: WeightRef) -> FloatArray:
        raise AssertionError("fetched")

    result = constant({"size": 4, "dtype": "float32"}, refuse)((part(),))
    assert result.dtype == np.float32
    assert result.tolist() == [-1.25] * 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weight_decay_is_the_weights_times_the_coefficients(dtype: str) -> None:
    result = weight_decay({"dtype": dtype}, weights_of)((part(), part("ab")))
    assert result.dtype == dtype
    expected = np.concatenate([weights_of(part(m).weights) * -1.25 for m in ("m", "ab")])
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("factory", "settings", "rule"),
    [
        (least_squares, {}, "`points` must be an integer >= 1; got None"),
        (least_squares, SETTINGS | {"points": 0}, "`points` must be an integer >= 1; got 0"),
        (least_squares, SETTINGS | {"features": True}, "`features` must be an integer >= 1"),
        (least_squares, SETTINGS | {"seed": -1}, "`seed` must be an integer >= 0"),
        (least_squares, SETTINGS | {"points": 2**30}, "`points` times `features` must be at most"),
        (least_squares, SETTINGS | {"dtype": "float16"}, "`dtype` must be one of float32, float64"),
        (least_squares, SETTINGS | {"lr": 1}, "`settings` must be among points, features"),
        (constant, {"size": 2**40}, "`size` must be at most"),
        (constant, {"size": "1"}, "`size` must be an integer"),
        (weight_decay, {"size": 1}, "`settings` must be among dtype"),
    ],
)
def test_a_setting_that_breaks_its_rule_is_named(
    factory: Any, settings: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        factory(settings, weights_of)
    assert rule in str(caught.value)

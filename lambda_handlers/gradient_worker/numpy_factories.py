"""Workloads that need only numpy, for trials, measurements and small models.

``least-squares`` computes the gradient of ``(x·w - y)**2 / 2`` on data drawn with a seed.
``constant`` computes a vector of ones times the sum of the coefficients, without weights.
``weight-decay`` computes the gradient of ``|w|**2 / 2`` times the sum of the coefficients, for
weights of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, WeightedPoints
from seqgc.wire import Json
from seqgc.worker import Compute, FetchWeights, register

__all__ = ["constant", "least_squares", "least_squares_data", "weight_decay"]

_DTYPES = ("float32", "float64")
_MOST_NUMBERS = 1 << 27  # 1 GB of float64; the settings in a message must not exhaust the memory


def least_squares_data(*, points: int, features: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return x (points, features) and y (points,), which are standard normal and float64.

    Equal seeds give equal data.

    Examples
    --------
    >>> x, y = least_squares_data(points=4, features=2, seed=0)
    >>> x.shape, y.shape
    ((4, 2), (4,))
    """
    rng = np.random.default_rng(seed)
    return rng.standard_normal((points, features)), rng.standard_normal(points)


@register("least-squares")
def least_squares(settings: Mapping[str, Json], fetch_weights: FetchWeights) -> Compute:
    """Return a function that computes gradients of ``sum_p c_p (x_p·w - y_p)**2 / 2``.

    The gradient of a part has the shape (features,). The settings are ``points``, ``features`` and
    ``seed`` (see `least_squares_data`), and ``dtype``, the type of weights and results: float32 or
    float64 (the default).

    Raises
    ------
    ParameterError
        If a setting is not valid.
    """
    values = _known(settings, "points", "features", "seed", "dtype")
    points, features = (
        require_int(name, values.get(name), least=1) for name in ("points", "features")
    )
    if points * features > _MOST_NUMBERS:
        rule = f"times `features` must be at most {_MOST_NUMBERS}"
        raise ParameterError("points", rule, points * features)
    dtype = _dtype(values)
    seed = require_int("seed", values.get("seed"), least=0)
    drawn = least_squares_data(points=points, features=features, seed=seed)
    x, y = (each.astype(dtype) for each in drawn)

    def gradient(part: WeightedPoints) -> FloatArray:
        rows, coefficients = x[part.points], part.coefficients.astype(dtype)
        residuals = rows @ fetch_weights(part.weights).astype(dtype, copy=False) - y[part.points]
        result: FloatArray = (coefficients * residuals) @ rows
        return result

    return _each(gradient)


@register("constant")
def constant(settings: Mapping[str, Json], fetch_weights: FetchWeights) -> Compute:  # noqa: ARG001
    """Return a function that computes vectors without weights.

    The vector of a part has the shape (size,), and all its numbers are the sum of the part's
    coefficients. The settings are ``size`` and ``dtype``: float32 or float64 (the default).

    Raises
    ------
    ParameterError
        If a setting is not valid.
    """
    values = _known(settings, "size", "dtype")
    size, dtype = require_int("size", values.get("size"), least=0), _dtype(values)
    if size > _MOST_NUMBERS:
        raise ParameterError("size", f"must be at most {_MOST_NUMBERS}", size)
    return _each(lambda part: np.full(size, part.coefficients.sum(), dtype))


@register("weight-decay")
def weight_decay(settings: Mapping[str, Json], fetch_weights: FetchWeights) -> Compute:
    """Return a function that computes gradients of ``sum_p c_p |w|**2 / 2``.

    The gradient is the weights times the sum of the coefficients. The only setting is ``dtype``,
    the type of the results: float32 or float64 (the default).

    Raises
    ------
    ParameterError
        If a setting is not valid.
    """
    dtype = _dtype(_known(settings, "dtype"))

    def gradient(part: WeightedPoints) -> FloatArray:
        weights: FloatArray = fetch_weights(part.weights).astype(dtype, copy=False)
        return weights * float(part.coefficients.sum())  # a Python float keeps the dtype

    return _each(gradient)


def _each(gradient: Callable[[WeightedPoints], FloatArray]) -> Compute:
    def compute(parts: tuple[WeightedPoints, ...], /) -> FloatArray:
        return np.concatenate([gradient(part) for part in parts])

    return compute


def _known(settings: Mapping[str, Json], *names: str) -> Mapping[str, Json]:
    if unknown := sorted(set(settings) - set(names)):
        raise ParameterError("settings", f"must be among {', '.join(names)}", unknown)
    return settings


def _dtype(settings: Mapping[str, Json]) -> np.dtype[np.float32] | np.dtype[np.float64]:
    name = settings.get("dtype", "float64")
    if name not in _DTYPES:
        raise ParameterError("dtype", f"must be one of {', '.join(_DTYPES)}", name)
    return np.dtype(np.float32) if name == "float32" else np.dtype(np.float64)

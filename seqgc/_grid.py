"""Grids: all combinations of the values of several quantities, each combination with a name.

An *axis* is a quantity that varies; a *point* has one value of each axis. Points are ordered like
nested loops, with the last axis as the innermost loop. The name of a point lists its axes and
values, for example ``lr_0.01-seed_2``. Files of weights have this name, so characters that are
not letters, digits, ``.``, ``-`` or ``_`` are replaced by ``_``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final, TypeAlias

from seqgc.errors import ParameterError, did_you_mean, require_int

__all__ = ["MOST_MODELS", "Point", "grid_points"]

MOST_MODELS: Final = 1000
"""Largest number of models of a run."""

Point: TypeAlias = dict[str, object]

_COUNTED: Final = "seed"
_UNNAMED = re.compile(r"[^A-Za-z0-9_.-]+")


def grid_points(axes: object, *, known: Collection[str] | None) -> dict[str, Point]:
    """Return the points of a grid, each under its name.

    ``axes`` maps each axis to a list of values. For ``seed`` the number of values is enough: ``4``
    means ``[0, 1, 2, 3]``. If ``known`` is not None, it lists all axes that are allowed. In a
    point's name, an axis ``table.key`` is called ``key``, unless another axis also ends in ``key``.

    Raises
    ------
    ParameterError
        If an axis is unknown, has no values or the same value twice, or if there are more than
        `MOST_MODELS` points.

    Examples
    --------
    >>> points = grid_points({"lr": [0.01, 0.03], "seed": 2}, known=["lr", "seed"])
    >>> list(points)
    ['lr_0.01-seed_0', 'lr_0.01-seed_1', 'lr_0.03-seed_0', 'lr_0.03-seed_1']
    >>> points["lr_0.03-seed_0"]
    {'lr': 0.03, 'seed': 0}
    """
    if not isinstance(axes, Mapping) or not axes:
        rule = "must have at least one axis, for example lr = [0.01, 0.03]"
        raise ParameterError("grid", rule, axes)
    values = {axis: _values(axis, given, known) for axis, given in axes.items()}
    if (count := prod(map(len, values.values()))) > MOST_MODELS:
        rule = f"must have at most {MOST_MODELS} models (the product of the lengths of its axes)"
        raise ParameterError("grid", rule, count, "train it in several runs")
    keys = {axis: axis.rpartition(".")[2] for axis in values}
    counts = Counter(keys.values())
    labels = {axis: key if counts[key] == 1 else axis for axis, key in keys.items()}
    words = [_words(axis, labels[axis], column) for axis, column in values.items()]
    names = ["-".join(point) for point in product(*words)]
    return {
        name: dict(zip(values, point, strict=True))
        for name, point in zip(names, product(*values.values()), strict=True)
    }


def _values(axis: object, given: object, known: Collection[str] | None) -> Sequence[object]:
    name = f"grid.{axis}"
    if known is not None and axis not in known:
        rule = f"is not an axis; the axes are {', '.join(known)}"
        raise ParameterError(name, rule, given, did_you_mean(str(axis), known))
    if axis == _COUNTED and isinstance(given, int) and not isinstance(given, bool):
        return range(require_int(name, given, least=1, most=MOST_MODELS))
    if isinstance(given, str) or not isinstance(given, Sequence):
        also = ", or the number of seeds" if axis == _COUNTED else ""
        remedy = "a setting that all models share belongs outside the grid"
        raise ParameterError(name, f"must be a list of values{also}", given, remedy)
    if not given:
        raise ParameterError(name, "must have at least one value", given)
    return given


def _words(axis: str, label: str, values: Sequence[object]) -> list[str]:
    """Return the part of a point's name that each value gives; they must differ."""
    texts = [f"{label}_{_UNNAMED.sub('_', _text(value, at))}" for at, value in enumerate(values)]
    if len(set(texts)) < len(texts):
        raise ParameterError(f"grid.{axis}", "must have values with distinct names", list(values))
    return texts


def _text(value: object, at: int) -> str:
    """Return a plain value as text, the name of a class or function, or otherwise the index."""
    if isinstance(value, str | int | float):
        return str(value)
    return getattr(value, "__name__", str(at))

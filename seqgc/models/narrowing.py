"""A search, before a run, for numbers that the run's precision cannot represent.

Floating-point inputs, targets and weights are rounded to the run's precision before the network
uses them. The rounding is expected, and usually does not matter. But in float32, time stamps in
seconds since 1970 have a resolution of 128 s, so that points with different time stamps may become
equal. The same happens to large integers that the network converts to float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from seqgc.errors import ParameterError, reraise_stop
from seqgc.models.datasets import collate, leaves_of, sample_points, stacked
from seqgc.models.model import Model
from seqgc.models.objectives import LocalModule
from seqgc.models.precision import Precision, torch_dtype
from seqgc.ports import FloatArray

__all__ = ["narrowing", "require_distinct"]

_POINTS: Final = 16  # number of examined points
_MOST_LOST: Final = 1e-3  # rounding error relative to the range of a column
_CONSTANT: Final = 1e-12  # relative differences up to this value are rounding errors of float64
_EXACT: Final = 2**24  # float32 represents all integers up to this value
_LONG: Final = (torch.int32, torch.int64)
_REMEDY: Final = "subtract an offset from them in the dataset, or take precision='float64'"


def require_distinct(model: Model, precision: Precision) -> None:
    """Raise `ParameterError` if points that differ in float64 are equal in the run's precision.

    The error is also raised if a number becomes infinite. A few points of the dataset are examined.
    """
    for name, leaves in _parts(model):
        if not any(_is_narrowed(leaf, precision) for leaf in leaves):
            continue
        wide = np.concatenate([_columns(leaf) for leaf in leaves], axis=1)
        narrow = np.concatenate([_columns(_narrowed(leaf, precision)) for leaf in leaves], axis=1)
        wide_count, narrow_count = _count_distinct(wide), _count_distinct(narrow)
        got = f"{name} up to {np.abs(wide).max():.6g} in model {model.name!r}"
        if (np.isfinite(wide) & ~np.isfinite(narrow)).any():
            rule = f"must have numbers that {precision}, the run's precision, can hold"
            raise ParameterError("dataset", rule, got, "take precision='float64'")
        if narrow_count < wide_count:
            rule = (
                f"must have points that differ in {precision}, the run's precision, as they do in "
                f"float64 ({wide_count} different {name} become {narrow_count})"
            )
            raise ParameterError("dataset", rule, got, _REMEDY)


def narrowing(model: Model, precision: Precision) -> list[str]:
    """Return warnings about data with large rounding errors, and about weights in float64.

    A rounding error is large if it is above 0.1 % of the range of a column of data.
    """
    warnings = []
    for name, leaves in _parts(model):
        wide = [leaf for leaf in leaves if _is_narrowed(leaf, precision)]
        lost = max((_lost(leaf, _narrowed(leaf, precision)) for leaf in wide), default=0.0)
        if lost > _MOST_LOST:
            warnings.append(
                f"{name} of model {model.name!r} lose {lost:.2g} of their range when they are "
                f"rounded from float64 to {precision}: {_REMEDY}"
            )
    tensors = (*model.module.named_parameters(), *model.module.named_buffers())
    names = [each for each, tensor in tensors if _is_narrowed(tensor, precision)]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.append(
            f"{names[0]}{more} of model {model.name!r}: rounded from float64 to {precision}, the "
            "run's precision; take precision='float64' to train the module as it is"
        )
    return warnings + _integer_warnings(model, precision)


def _integer_warnings(model: Model, precision: Precision) -> list[str]:
    """Return a warning if the module converts large integers to floats with large errors."""
    points = sample_points(model.dataset, _POINTS)
    x, _ = stacked(model.dataset, points)
    integers = [leaf for leaf in leaves_of(x) if not leaf.is_floating_point() and leaf.numel()]
    if not any(int(leaf.abs().max()) > _EXACT for leaf in integers if leaf.dtype in _LONG):
        return []
    module = LocalModule(model.module, torch_dtype(precision)).call
    x, _ = collate(model.dataset, points, dtype=torch_dtype(precision))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _CastWatch() as watch:
        try:
            module(x)
        except BaseException as error:  # the trial of the model reports it
            reraise_stop(error)
    if watch.lost <= _MOST_LOST:
        return []
    warning = (
        f"inputs of model {model.name!r} are integers up to {watch.largest:.6g}, which lose "
        f"{watch.lost:.2g} of their range in forward, as {watch.dtype}: subtract an offset from "
        "them in the dataset, or cast them to self.weight.dtype and take precision='float64'"
    )
    return [warning]


def _parts(model: Model) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the inputs and the targets of a few points, in the dtypes of the dataset."""
    x, y = stacked(model.dataset, sample_points(model.dataset, _POINTS))
    for name, part in (("inputs", x), ("targets", y)):
        yield name, [leaf for leaf in leaves_of(part) if not leaf.is_complex() and leaf.ndim]


def _is_narrowed(tensor: Tensor, precision: Precision) -> bool:
    return tensor.dtype == torch.float64 and precision == "float32"


def _narrowed(tensor: Tensor, precision: Precision) -> Tensor:
    return tensor.to(torch_dtype(precision)) if tensor.is_floating_point() else tensor


def _columns(tensor: Tensor) -> FloatArray:
    """Return the numbers of m points as a matrix (m, numbers of a point) in float64."""
    columns: FloatArray = tensor.detach().double().reshape(len(tensor), -1).numpy()
    return columns


def _count_distinct(columns: FloatArray) -> int:
    """Return the number of rows that differ by more than rounding errors of float64."""
    units = _CONSTANT * np.abs(columns).max(axis=0)
    return len(np.unique(np.round(columns / np.where(units > 0, units, 1.0)), axis=0))


def _lost(wide: Tensor, narrow: Tensor) -> float:
    """Return the largest rounding error of a column, relative to the range of the column."""
    exact, rounded = _columns(wide), _columns(narrow)
    finite = np.isfinite(exact).all(axis=0) & np.isfinite(rounded).all(axis=0)
    exact, rounded = exact[:, finite], rounded[:, finite]
    if not exact.size:
        return 0.0
    spread = exact.max(axis=0) - exact.min(axis=0)
    varies = spread > _CONSTANT * np.abs(exact).max(axis=0)
    errors = np.abs(rounded - exact).max(axis=0)[varies] / spread[varies]
    return float(errors.max(initial=0.0))


class _CastWatch(TorchFunctionMode):
    """A watch for conversions of integer tensors to floats, which records the largest loss."""

    def __init__(self) -> None:
        super().__init__()
        self.lost, self.largest, self.dtype = 0.0, 0.0, ""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call a function of torch, and compare its result with its first argument."""
        result = func(*args, **(kwargs or {}))
        first = args[0] if args else None
        if (
            isinstance(first, Tensor)
            and isinstance(result, Tensor)
            and first.dtype in _LONG
            and result.is_floating_point()
            and result.shape == first.shape
            and first.ndim > 0
            and torch.equal(result, first.to(result.dtype))
        ):
            lost = _lost(first, result)
            if lost > self.lost:
                self.lost, self.largest = lost, float(first.abs().max())
                self.dtype = str(result.dtype).removeprefix("torch.")
        return result

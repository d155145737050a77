"""Numbers that a run's precision cannot hold, found before the run.

Floating-point inputs, targets and weights become the run's precision before the network uses them.
Their rounding is expected, and seldom matters. But time stamps in seconds since 1970 are 128 s
apart in float32, so that a column of them loses what tells its points apart. It is the same with
large integers that the network itself turns into float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from seqgc.errors import ParameterError, reraise_stop
from seqgc.models.compute import LocalModule
from seqgc.models.datasets import collate, leaves_of, stacked
from seqgc.models.model import Model
from seqgc.models.precision import Precision, torch_dtype
from seqgc.ports import FloatArray

__all__ = ["narrowing", "require_distinct"]

_POINTS: Final = 16
_MOST_LOST: Final = 1e-3
_FLAT: Final = 1e-12
_EXACT: Final = 2**24  # float32 holds all integers up to this one
_LONG: Final = (torch.int32, torch.int64)
_REMEDY: Final = "subtract an offset from them in the dataset, or take precision='float64'"


def require_distinct(model: Model, precision: Precision) -> None:
    """Refuse float64 data whose points differ, and are the same in the run's precision.

    Raises
    ------
    ParameterError
        If some of a few points of the dataset become one, or a number becomes infinite.
    """
    for name, leaves in _parts(model):
        if not any(_is_narrowed(leaf, precision) for leaf in leaves):
            continue
        wide = np.concatenate([_columns(leaf) for leaf in leaves], axis=1)
        narrow = np.concatenate([_columns(_narrowed(leaf, precision)) for leaf in leaves], axis=1)
        before, after = _distinct(wide), _distinct(narrow)
        got = f"{name} up to {np.abs(wide).max():.6g} in model {model.name!r}"
        if (np.isfinite(wide) & ~np.isfinite(narrow)).any():
            rule = f"must have numbers that {precision}, the run's precision, can hold"
            raise ParameterError("dataset", rule, got, "take precision='float64'")
        if after < before:
            rule = (
                f"must have points that differ in {precision}, the run's precision, as they do in "
                f"float64 ({before} different {name} become {after})"
            )
            raise ParameterError("dataset", rule, got, _REMEDY)


def narrowing(model: Model, precision: Precision) -> list[str]:
    """Return what is worth a warning: numbers that lose more than rounding, weights in float64.

    A column of data loses more than rounding if its rounding error is above 0.1 % of its range.
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
    return warnings + _integers(model, precision)


def _integers(model: Model, precision: Precision) -> list[str]:
    """Return a warning if the module turns large integers into floats that cannot hold them."""
    x, _ = stacked(model.dataset, _some(model))
    integers = [leaf for leaf in leaves_of(x) if not leaf.is_floating_point() and leaf.numel()]
    if not any(int(leaf.abs().max()) > _EXACT for leaf in integers if leaf.dtype in _LONG):
        return []
    module = LocalModule(model.module, torch_dtype(precision)).call
    x, _ = collate(model.dataset, _some(model), dtype=torch_dtype(precision))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _CastWatch() as watch:
        try:
            module(x)
        except BaseException as error:  # the trial refuses it
            reraise_stop(error)
    if watch.lost <= _MOST_LOST:
        return []
    warning = (
        f"inputs of model {model.name!r} are integers up to {watch.largest:.6g}, which lose "
        f"{watch.lost:.2g} of their range in forward, as {watch.dtype}: subtract an offset from "
        "them in the dataset, or cast them to self.weight.dtype and take precision='float64'"
    )
    return [warning]


def _some(model: Model) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.unique(np.linspace(0, len(model.dataset) - 1, _POINTS).astype(np.intp))


def _parts(model: Model) -> Iterator[tuple[str, list[Tensor]]]:
    """Return a few points' inputs and targets, as the dataset has them."""
    x, y = stacked(model.dataset, _some(model))
    for name, part in (("inputs", x), ("targets", y)):
        yield name, [leaf for leaf in leaves_of(part) if not leaf.is_complex() and leaf.ndim]


def _is_narrowed(tensor: Tensor, precision: Precision) -> bool:
    return tensor.dtype == torch.float64 and precision == "float32"


def _narrowed(tensor: Tensor, precision: Precision) -> Tensor:
    return tensor.to(torch_dtype(precision)) if tensor.is_floating_point() else tensor


def _columns(tensor: Tensor) -> FloatArray:
    """Return the numbers of m points, (m, any), in float64."""
    columns: FloatArray = tensor.detach().double().reshape(len(tensor), -1).numpy()
    return columns


def _distinct(columns: FloatArray) -> int:
    """Return how many of some rows differ by more than the rounding of float64."""
    units = _FLAT * np.abs(columns).max(axis=0)
    return len(np.unique(np.round(columns / np.where(units > 0, units, 1.0)), axis=0))


def _lost(wide: Tensor, narrow: Tensor) -> float:
    """Return the largest rounding error of a column, as a part of the column's range."""
    before, after = _columns(wide), _columns(narrow)
    finite = np.isfinite(before).all(axis=0) & np.isfinite(after).all(axis=0)
    before, after = before[:, finite], after[:, finite]
    if not before.size:
        return 0.0
    spread = before.max(axis=0) - before.min(axis=0)
    varies = spread > _FLAT * np.abs(before).max(axis=0)  # else it is constant but for rounding
    errors = np.abs(after - before).max(axis=0)[varies] / spread[varies]
    return float(errors.max(initial=0.0))


class _CastWatch(TorchFunctionMode):
    """Finds integer tensors that are turned into floats which cannot hold them."""

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
        """Call a function of torch, and compare what it returns with its first argument."""
        result = func(*args, **(kwargs or {}))
        given = args[0] if args else None
        if (
            isinstance(given, Tensor)
            and isinstance(result, Tensor)
            and given.dtype in _LONG
            and result.is_floating_point()
            and result.shape == given.shape
            and given.ndim > 0
            and torch.equal(result, given.to(result.dtype))
        ):
            lost = _lost(given, result)
            if lost > self.lost:
                self.lost, self.largest = lost, float(given.abs().max())
                self.dtype = str(result.dtype).removeprefix("torch.")
        return result

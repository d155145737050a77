"""The state of objects that workers have a copy of, and whether it has changed since."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.models.datasets import PointDataset, collate, leaves_of, sample_points

__all__ = ["CopiedData", "CopiedState"]

_PLAIN: Final = (bool, int, float, complex, str, bytes, types.NoneType, torch.dtype, torch.device)
_FUNCTIONS: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type,
)
# The attributes of a module that are no state of its forward pass, or that others compare.
_LEFT_OUT: Final = ("_parameters", "_modules", "_non_persistent_buffers_set")
_SAMPLES: Final = 16


class CopiedState:
    """The state that a module or a loss had when it was copied, without its parameters.

    The state consists of the classes of all submodules, and of their attributes that are numbers,
    texts, functions, tensors, or containers of such values: hooks, rates, buffers. Other objects
    are not compared, and neither are attributes that the forward pass creates.
    """

    def __init__(self, value: object) -> None:
        self._value: Final = value
        self._before: Final = {name: _state(part) for name, part in _parts(value)}

    def change(self) -> str | None:
        """Return in words what has changed since, or None."""
        now = dict(_parts(self._value))
        for name in {**self._before, **now}:
            where = f"submodule {name!r}" if name else ""
            if name not in now or name not in self._before:
                return where
            before, after = self._before[name], _state(now[name])
            if before[""] != after[""]:
                return where or "the class"
            for attribute in {**before, **after}:
                if _differ(before, after, attribute, type(now[name])):
                    return f"attribute {attribute!r}{' of ' if where else ''}{where}"
        return None


class CopiedData:
    """A sample of the points that a data set had when it was copied."""

    def __init__(self, data: PointDataset, dtype: torch.dtype) -> None:
        self._data, self._dtype = data, dtype
        self._points: Final = sample_points(data, _SAMPLES).tolist()
        self._before: Final = [self._read(point) for point in self._points]
        self._checks = 0

    def change(self) -> str | None:
        """Read one point of the sample again; return in words that it has changed, or None."""
        place = self._checks % len(self._points)
        self._checks += 1
        before, after = self._before[place], self._read(self._points[place])
        if len(before) == len(after) and all(map(_same_tensors, before, after)):
            return None
        return f"point {self._points[place]}"

    def _read(self, point: int) -> list[Tensor]:
        leaves = leaves_of(collate(self._data, np.array([point]), dtype=self._dtype))
        return [leaf.detach().clone() for leaf in leaves]


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, nn.Module):
        yield from value.named_modules()
    else:
        yield "", value


def _state(part: object) -> dict[str, object]:
    """Return the attributes that can be compared, and the class under the name ''."""
    if isinstance(part, partial):
        return {"": _comparable(part)}
    state = {
        name: _comparable(value)
        for name, value in getattr(part, "__dict__", {}).items()
        if name not in _LEFT_OUT and "state_dict" not in name
    }
    return {**state, "": type(part)}


def _comparable(value: object) -> object:
    """Return a copy of a value that can be compared, or `_OTHER`."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return _OTHER if isinstance(value, nn.Parameter) else _Held(value.detach().clone())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(_comparable, value))
    if isinstance(value, Mapping):
        return tuple((_comparable(key), _comparable(each)) for key, each in value.items())
    if isinstance(value, partial):
        return _comparable((value.func, value.args, value.keywords))
    return value if isinstance(value, _FUNCTIONS) else _OTHER


class _Held:
    """A tensor that equals another one with the same numbers."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Final = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and _same_tensors(self.tensor, other.tensor)


_OTHER: Final = object()


def _same_tensors(one: Tensor, other: Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    )


def _differ(
    before: Mapping[str, Any], after: Mapping[str, Any], attribute: str, kind: type
) -> bool:
    """Return True if an attribute differs so that it may change a forward pass."""
    if attribute not in before:  # new: it counts if it hides one of the class
        return hasattr(kind, attribute)
    old, new = before[attribute], after.get(attribute, _OTHER)
    # In tuples, so that a NaN equals itself. A cache, which was None, may be filled.
    filled = old is None and (new is _OTHER or isinstance(new, _Held | tuple))
    return (old,) != (new,) and not filled

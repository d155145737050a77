"""Conversion of nested state to JSON and named tensors, and back, for checkpoints.

The state is that of an optimizer, or of a job for which the master has received results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain, count

import torch

from seqgc import master
from seqgc.errors import ParameterError, one_line
from seqgc.master import HeldJob, PackedJob

__all__ = ["pack", "pack_held", "unpack", "unpack_held"]


def pack(value: object, tensors: dict[str, torch.Tensor], *, name: str) -> object:
    """Convert a value to JSON types. Each tensor is copied to ``tensors`` and replaced by its name.

    `unpack` restores a `Counter` as a `Counter`, and another subclass of list, tuple or dict as its
    base class. ``name`` is the name of the value, from which names of tensors are made.

    Raises
    ------
    ParameterError
        If the value contains anything but dense tensors, numbers, text, None, lists, tuples and
        dictionaries.
    """
    match value:
        case torch.Tensor() if value.layout == torch.strided and not value.is_quantized:
            unused = _unused(name, tensors)
            tensors[unused] = value.detach().clone().contiguous()
            return {"tensor": unused}
        case dict() if all(isinstance(key, str | int | float | None) for key in value):
            items = [[key, pack(v, tensors, name=f"{name}.{key}")] for key, v in value.items()]
            return {"counter" if isinstance(value, Counter) else "dict": items}
        case list() | tuple():
            packed = [pack(v, tensors, name=f"{name}.{i}") for i, v in enumerate(value)]
            return {"list" if isinstance(value, list) else "tuple": packed}
        case None | bool() | int() | float() | str():
            return value
    rule = "must contain only dense tensors, numbers and text, with text or numbers as keys"
    raise ParameterError(name, rule, type(value).__name__)


def unpack(packed: object, tensors: Mapping[str, torch.Tensor]) -> object:
    """Restore a value that `pack` has converted."""
    match packed:
        case {"tensor": str(name)}:
            return tensors[name]
        case {"dict": list(items)}:
            return {key: unpack(value, tensors) for key, value in items}
        case {"counter": list(items)}:
            return Counter({key: unpack(value, tensors) for key, value in items})
        case {"list": list(values)}:
            return [unpack(value, tensors) for value in values]
        case {"tuple": list(values)}:
            return tuple(unpack(value, tensors) for value in values)
    return packed


def _unused(name: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return an unused name for a tensor that is also valid in a file; keys may be any text."""
    stem = one_line(name)
    names = chain([stem], (f"{stem} ({number})" for number in count(2)))
    return next(each for each in names if each not in tensors)


def pack_held(job: HeldJob, tensors: dict[str, torch.Tensor]) -> PackedJob:
    """Convert a job with received results to JSON types, and add its vectors to ``tensors``."""
    packed, vectors = master.pack_held(job)
    tensors |= {name: torch.from_numpy(vector) for name, vector in vectors.items()}
    return packed


def unpack_held(packed: PackedJob, tensors: Mapping[str, torch.Tensor]) -> HeldJob:
    """Restore a job that `pack_held` has converted."""
    names = packed.names
    return master.unpack_held(packed, {name: tensors[name].numpy() for name in names})

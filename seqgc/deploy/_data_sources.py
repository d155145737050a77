"""Data sets as people have them: .npz, .safetensors, or a folder of .npy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from zipfile import ZipFile, ZipInfo

import numpy as np

from seqgc._bounded import open_bounded
from seqgc.errors import ParameterError, one_line
from seqgc.stores import StoredArray, read_head

__all__ = ["arrays_of", "check_arrays"]

_Array: TypeAlias = np.ndarray[Any, Any]

_NAMES: Final = {"x_train": "x", "y_train": "y", "X": "x", "X_train": "x", "X_test": "x_test"}
_FORMS: Final = "x and y, perhaps x_test and y_test: .npz, .safetensors, or a folder of .npy"
_MOST_BYTES: Final = 1 << 62  # of a file: as many as there are


def arrays_of(source: Path) -> Iterator[tuple[str, _Array]]:
    """Yield the arrays of a source, by our names, one after the other.

    Raises
    ------
    ParameterError
        If it is no source, or has other arrays, or one that cannot be read.
    """
    seen = set[str]()
    try:
        for given, array in _given(source):
            name = _NAMES.get(given, given)
            if name not in ("x", "y", "x_test", "y_test") or name in seen:
                rule = f"must have {_FORMS}"
                raise ParameterError("path", rule, f"{source}: {given}")
            seen.add(name)
            yield name, array
    except Exception as error:  # of damaged files numpy and zipfile raise all sorts
        if isinstance(error, ParameterError):
            raise
        rule = f"must have {_FORMS} ({one_line(error)})"
        raise ParameterError("path", rule, str(source)) from error


def _given(source: Path) -> Iterator[tuple[str, _Array]]:
    if source.is_dir():
        for path in sorted(source.glob("*.npy")):
            with open_bounded(path, most_bytes=_MOST_BYTES) as file:
                head = read_head(file, file_bytes=os.fstat(file.fileno()).st_size)
                yield path.stem, head.mapped(file, "r")
    elif source.suffix == ".npz":
        with open_bounded(source, most_bytes=_MOST_BYTES) as file, ZipFile(file) as archive:
            for member in archive.infolist():
                yield member.filename.removesuffix(".npy"), _unpacked(archive, member)
    elif source.suffix == ".safetensors":
        yield from _tensors(source)
    else:
        raise ValueError("it is none of these" if source.exists() else "it is not there")


def _unpacked(archive: ZipFile, member: ZipInfo) -> _Array:
    """Return an array of an archive, for which memory is taken only if its numbers may be there."""
    with archive.open(member) as file:
        read_head(file, file_bytes=member.file_size)
    with archive.open(member) as file:
        array: _Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _tensors(source: Path) -> Iterator[tuple[str, _Array]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        rule = "needs safetensors, which is not installed"
        raise ParameterError("path", rule, str(source), "pip install safetensors") from None
    try:
        with (
            open_bounded(source, most_bytes=_MOST_BYTES) as file,  # a pipe would be waited for
            # By its handle: what has that name a moment later is another file, or a pipe.
            safe_open(f"/dev/fd/{file.fileno()}", framework="numpy") as tensors,
        ):
            for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                yield name, tensors.get_tensor(name)
    except (SafetensorError, TypeError) as error:  # TypeError: bfloat16, which numpy has not
        raise ValueError(one_line(error)) from error


def check_arrays(arrays: Mapping[str, StoredArray], source: Path) -> None:
    """Refuse arrays of a source that are no data set, by what was written of them."""
    for part in ("", "_test"):
        x, y = (arrays.get(f"{key}{part}") for key in ("x", "y"))
        if x is None and y is None and part:
            continue
        if x is None or y is None:
            there = ", ".join(arrays) or "none"
            raise ParameterError("path", f"must have {_FORMS}", f"{source}: {there}")
        if x.shape[0] != y.shape[0] or x.shape[0] == 0:
            rule = f"must have as many rows in x{part} as in y{part}, and at least one"
            raise ParameterError("path", rule, f"{source}: {x.shape[0]} and {y.shape[0]}")
        for key, each in (("x", x), ("y", y)):
            if each.shape[1:] != arrays[key].shape[1:] or each.dtype != arrays[key].dtype:
                rule = f"must have {key}{part} of the same form as {key}"
                raise ParameterError("path", rule, f"{source}: {each.dtype} {each.shape}")

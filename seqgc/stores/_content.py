"""Checks that all stores share: of names, versions, arrays and digests."""

from __future__ import annotations

import hashlib

import numpy as np

from seqgc.errors import ParameterError, require_int, require_name
from seqgc.ports import FloatArray, WeightRef

__all__ = ["check_address", "check_blob", "check_key", "refer", "refuse_other_content"]

_DTYPES = ("float16", "float32", "float64")


def check_address(model: str, version: int) -> None:
    """Refuse a name that could leave the store's folder, and a version that is not a count."""
    require_name("model", model, most=100)
    require_int("version", version, least=0)


def check_key(key: str) -> None:
    """Refuse a blob's key that could leave the store's folder."""
    require_name("key", key, most=200)


def check_blob(data: bytes | memoryview, *, digest: str, size_bytes: int) -> None:
    """Raise `ValueError` if bytes have another length or SHA-256."""
    if len(data) != size_bytes:
        raise ValueError(f"has {len(data)} bytes where {size_bytes} are due")
    if (actual := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"has digest {actual[:12]}… where {digest[:12]}… is due")


def refer(model: str, version: int, params: FloatArray) -> tuple[WeightRef, FloatArray]:
    """Return the reference to ``params`` (size,), and a read-only little-endian copy of them.

    Raises
    ------
    ParameterError
        If an argument cannot be stored.
    """
    check_address(model, version)
    array = np.asarray(params)
    if array.ndim != 1 or array.dtype.name not in _DTYPES:
        got = f"shape {array.shape}, {array.dtype}"
        raise ParameterError("params", f"must be a vector of {', '.join(_DTYPES)}", got)
    copy = array.astype(array.dtype.newbyteorder("<"), copy=True)
    copy.flags.writeable = False
    ref = WeightRef(
        model=model,
        version=int(version),
        digest=hashlib.sha256(copy.data).hexdigest(),
        dtype=copy.dtype.name,
        size=copy.size,
    )
    return ref, copy


def refuse_other_content(ref: WeightRef, *, stays: str = "") -> ParameterError:
    """Return the error of a version that is published again with other content."""
    rule = f"must be new, or published with the same content (model {ref.model!r})"
    remedy = "versions are immutable: publish under the next number" + (
        stays and f"; {stays} stays"
    )
    return ParameterError("version", rule, ref.version, remedy)

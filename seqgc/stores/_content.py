"""What every store shares: which names, versions and arrays it takes, and their digest."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, WeightRef

__all__ = [
    "check_address",
    "check_blob",
    "check_key",
    "check_params",
    "digest_of",
    "refer",
    "refuse_other_content",
]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_DTYPES = ("float16", "float32", "float64")


def check_address(model: str, version: int) -> None:
    """Refuse a name that could leave the store's folder, and a version that is not a count.

    Raises
    ------
    ParameterError
        If ``model`` could, or ``version`` is not an integer >= 0.
    """
    if not isinstance(model, str) or not _NAME.fullmatch(model):
        rule = "must be 1 to 100 letters, digits, '_', '-' or '.', and not begin with '-' or '.'"
        raise ParameterError("model", rule, model)
    require_int("version", version, least=0)


def check_key(key: str) -> None:
    """Refuse a blob's key that could leave the store's folder.

    Raises
    ------
    ParameterError
        If ``key`` could.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        rule = "must be 1 to 200 letters, digits, '_', '-' or '.', and not begin with '-' or '.'"
        raise ParameterError("key", rule, key)


def check_blob(data: bytes, *, digest: str, size_bytes: int) -> None:
    """Refuse bytes that are not those of this length and SHA-256.

    Raises
    ------
    ValueError
        If they are not.
    """
    if len(data) != size_bytes:
        raise ValueError(f"has {len(data)} bytes where {size_bytes} are due")
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"has digest {found[:12]}… where {digest[:12]}… is due")


def check_params(params: FloatArray) -> FloatArray:
    """Return a read-only little-endian copy of a parameter vector, shape (size,).

    Raises
    ------
    ParameterError
        If it is not a vector of float16, float32 or float64.
    """
    array = np.asarray(params)
    if array.ndim != 1 or array.dtype.name not in _DTYPES:
        got = f"shape {array.shape}, {array.dtype}"
        raise ParameterError("params", f"must be a vector of {', '.join(_DTYPES)}", got)
    copy = array.astype(array.dtype.newbyteorder("<"), copy=True)
    copy.flags.writeable = False
    return copy


def digest_of(params: FloatArray) -> str:
    """Return the SHA-256 of the little-endian bytes of ``params``, hexadecimal."""
    return hashlib.sha256(params.data).hexdigest()


def refer(model: str, version: int, params: FloatArray) -> WeightRef:
    """Return the reference to ``params``, which `check_params` has returned."""
    return WeightRef(
        model=model,
        version=int(version),
        digest=digest_of(params),
        dtype=params.dtype.name,
        size=params.size,
    )


def refuse_other_content(ref: WeightRef, *, stays: str = "") -> ParameterError:
    """Return the error of a version that is published again with other content."""
    rule = f"must be new, or published with the same content (model {ref.model!r})"
    remedy = "versions are immutable: publish under the next number" + (
        stays and f"; {stays} stays"
    )
    return ParameterError("version", rule, ref.version, remedy)

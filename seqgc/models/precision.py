"""The floating-point formats in which models are computed: the precision, and autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, TypeAlias, get_args

import torch

from seqgc.errors import ParameterError, refusing

__all__ = ["Autocast", "Precision", "autocasting", "require_autocast", "torch_dtype"]

Autocast: TypeAlias = Literal["off", "bfloat16"]

_CONTEXTS: Final[dict[Autocast, Callable[[], AbstractContextManager[object]]]] = {
    "off": nullcontext,
    "bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def autocasting(autocast: Autocast) -> AbstractContextManager[object]:
    """Return the context in which forward passes and losses are computed."""
    return _CONTEXTS[autocast]()


def require_autocast(autocast: Autocast, *, precision: str | None = None) -> None:
    """Raise `ParameterError` if autocast is unknown, or not supported here or for the precision."""
    if autocast not in get_args(Autocast):
        rule = f"must be one of {', '.join(get_args(Autocast))}"
        raise ParameterError("autocast", rule, autocast)
    if autocast == "off":
        return
    if precision == "float64":
        rule = "must be off with precision float64, because torch's autocast ignores float64"
        raise ParameterError("autocast", rule, autocast, "take precision float32")
    one = torch.ones(2, 2)
    with refusing("autocast", "must be supported by torch on this processor ({})", autocast):
        with autocasting(autocast):
            dtype = (one @ one).dtype
        if dtype != torch.bfloat16:
            raise TypeError(f"products stay in {dtype}")


_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}

Precision: TypeAlias = Literal["float32", "float64"]


def torch_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of this name, or raise `ParameterError`."""
    if precision not in _DTYPES:
        raise ParameterError("precision", f"must be one of {', '.join(_DTYPES)}", precision)
    return _DTYPES[precision]

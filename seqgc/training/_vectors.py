"""A module's trainable parameters as one flat vector, in and out."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, Payload, payload_format

__all__ = ["ParameterVector", "Precision", "chosen_payload", "torch_dtype"]

Precision: TypeAlias = Literal["float32", "float64"]

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


def torch_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the name; ParameterError for any other name."""
    if precision not in _DTYPES:
        raise ParameterError("precision", f"must be one of {', '.join(_DTYPES)}", precision)
    return _DTYPES[precision]


def chosen_payload(
    precision: Precision, payload: Payload | None, *, stochastic_rounding: bool
) -> Payload:
    """Return the format in which results travel: the precision unless given.

    Raises
    ------
    ParameterError
        If it is wider than the precision, which would send bits that say nothing; or as wide, with
        nothing to round stochastically.

    Examples
    --------
    >>> chosen_payload("float32", None, stochastic_rounding=False)
    'float32'
    """
    torch_dtype(precision)
    chosen: Payload = precision if payload is None else payload
    bits, precision_bits = payload_format(chosen).bits, payload_format(precision).bits
    if bits > precision_bits:
        raise ParameterError(
            "payload", f"must not be wider than the precision, {precision}", chosen
        )
    if stochastic_rounding and bits == precision_bits:
        rule = f"must be off where nothing is rounded: precision and payload are {precision}"
        remedy = "give a narrower `payload`"
        raise ParameterError("stochastic_rounding", rule, stochastic_rounding, remedy)
    return chosen


class ParameterVector:
    """The trainable parameters of a CPU module, in the order of ``module.parameters()``.

    Frozen parameters are left out; a tied parameter counts once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.tensors: Final = tuple(p for p in module.parameters() if p.requires_grad)
        self.size: Final = sum(p.numel() for p in self.tensors)

    def read(self) -> FloatArray:
        """Return a copy of the parameters, (size,), read-only."""
        vector: FloatArray = torch.cat([p.detach().reshape(-1) for p in self.tensors]).numpy()
        vector.setflags(write=False)
        return vector

    def write(self, vector: FloatArray) -> None:
        """Overwrite the parameters with ``vector`` (size,); the one copy that this costs."""
        for p, piece in zip(self.tensors, self._split(vector), strict=True):
            # Through numpy's view: any strides, any read-only source, no temporary.
            p.detach().numpy()[...] = piece.reshape(p.shape)

    def set_gradient(self, vector: FloatArray) -> None:
        """Make ``vector`` (size,), which must be writable, the parameters' gradient, uncopied."""
        for p, piece in zip(self.tensors, self._split(vector), strict=True):
            p.grad = torch.from_numpy(piece).view(p.shape)

    def read_gradient(self, out: FloatArray) -> None:
        """Write the parameters' gradient into ``out`` (size,); zero where there is none."""
        torch.cat([_gradient(p).reshape(-1) for p in self.tensors], out=torch.from_numpy(out))

    def clear_gradient(self) -> None:
        """Forget the parameters' gradient."""
        for p in self.tensors:
            p.grad = None

    def _split(self, vector: FloatArray) -> list[FloatArray]:
        if vector.shape != (self.size,):
            raise ParameterError("vector", f"must have shape ({self.size},)", vector.shape)
        return np.split(vector, np.cumsum([p.numel() for p in self.tensors])[:-1])


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    # nn.Embedding(sparse=True) yields sparse gradients; a code combines dense vectors.
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad

"""A module's trainable parameters as one flat vector, in and out."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray

__all__ = ["ParameterVector", "Precision", "torch_dtype"]

Precision: TypeAlias = Literal["float32", "float64"]

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


def torch_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the name; ParameterError for any other name."""
    if precision not in _DTYPES:
        raise ParameterError("precision", f"must be one of {', '.join(_DTYPES)}", precision)
    return _DTYPES[precision]


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
        for p, piece in self._pieces(vector):
            # Through numpy's view: any strides, any read-only source, no temporary.
            p.detach().numpy()[...] = piece.reshape(p.shape)

    def set_gradient(self, vector: FloatArray) -> None:
        """Make ``vector`` (size,), which must be writable, the parameters' gradient, uncopied."""
        for p, piece in self._pieces(vector):
            p.grad = torch.from_numpy(piece).view(p.shape)

    def read_gradient(self, out: FloatArray) -> None:
        """Write the parameters' gradient into ``out`` (size,); zero where there is none."""
        torch.cat([_gradient(p).reshape(-1) for p in self.tensors], out=torch.from_numpy(out))

    def clear_gradient(self) -> None:
        """Forget the parameters' gradient."""
        for p in self.tensors:
            p.grad = None

    def _pieces(self, vector: FloatArray) -> zip[tuple[nn.Parameter, FloatArray]]:
        if vector.shape != (self.size,):
            raise ParameterError("vector", f"must have shape ({self.size},)", vector.shape)
        ends = np.cumsum([p.numel() for p in self.tensors])
        return zip(self.tensors, np.split(vector, ends[:-1]), strict=True)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    # nn.Embedding(sparse=True) yields sparse gradients; a code combines dense vectors.
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad

"""The master's state of one model: its weights, its optimizer, and the versions published."""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import Final

from torch import nn

from seqgc.ports import FloatArray, WeightRef, WeightStore
from seqgc.training._eager import without_compiler
from seqgc.training._vectors import ParameterVector, Precision, torch_dtype
from seqgc.training.model import Model, make_optimizer

__all__ = ["Learner"]


class Learner:
    """One model in training; its module is a copy, in the run's precision, on the CPU."""

    def __init__(self, model: Model, *, store: WeightStore, precision: Precision) -> None:
        self.model: Final = model
        dtype = torch_dtype(precision)
        self.module: Final[nn.Module] = copy.deepcopy(model.module).to(device="cpu", dtype=dtype)
        self._parameters = ParameterVector(self.module)
        with without_compiler():
            self._optimizer = make_optimizer(model, self._parameters.tensors)
        self._store = store
        self._steps = 0
        self._published: list[WeightRef] = []

    @property
    def result_size(self) -> int:
        """Length of the model's part of a gradient: its parameters, then the loss."""
        return self._parameters.size + 1

    def apply(self, gradient: FloatArray) -> None:
        """Take one optimizer step along ``gradient`` (P,), in the run's precision and writable."""
        self._parameters.set_gradient(gradient)
        with without_compiler():
            self._optimizer.step()
        self._parameters.clear_gradient()
        self._steps += 1

    def publish(self) -> WeightRef:
        """Return a reference to the present weights, whose version is the number of steps taken."""
        if not self._published or self._published[-1].version != self._steps:
            weights = self._parameters.read()
            self._published.append(self._store.publish(self.model.name, self._steps, weights))
        return self._published[-1]

    def keep(self, needed: Set[WeightRef]) -> None:
        """Discard the published versions that are not ``needed``."""
        for ref in [ref for ref in self._published if ref not in needed]:
            self._store.discard(ref)
            self._published.remove(ref)

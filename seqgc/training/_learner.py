"""The master's state of one model: its weights, its optimizer, and the versions published.

Every optimizer imports ``torch._dynamo`` when it is made and when it steps, to tell it what not to
compile (`torch.optim.optimizer`, `torch._compile`): more than a second of processor time, longer
than a short run's first rounds, for nobody, as nothing is compiled here. Meanwhile a module stands
in that lets everything through, and hands over to the real one as soon as anybody asks for more.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Final, ParamSpec, TypeVar, cast

import torch
from torch import nn
from torch.optim import Optimizer

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, WeightRef, WeightStore
from seqgc.training._packing import pack, unpack
from seqgc.training.model import Model, ParameterVector, Precision, torch_dtype

__all__ = ["Learner", "LearnerState", "without_compiler"]

_COMPILER: Final = "torch._dynamo"
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnerState:
    """What training has made of one model: for checkpoints."""

    steps: int
    weights: Mapping[str, torch.Tensor]  # and buffers
    optimizer: Mapping[str, torch.Tensor]
    settings: str  # of the optimizer: JSON of what `pack` returns


class Learner:
    """One model in training; its module is a copy, in the run's precision, on the CPU."""

    def __init__(self, model: Model, *, store: WeightStore, precision: Precision) -> None:
        self.model: Final = model
        dtype = torch_dtype(precision)
        self.module: Final[nn.Module] = copy.deepcopy(model.module).to(device="cpu", dtype=dtype)
        self._parameters = ParameterVector(self.module)
        self.result_size: Final = self._parameters.size + 1  # then the loss
        with without_compiler():
            self._optimizer = _make_optimizer(model, self._parameters.tensors)
        self._store = store
        self.steps = 0
        self._published: list[WeightRef] = []

    def apply(self, gradient: FloatArray) -> None:
        """Take one optimizer step along ``gradient`` (P,), in the run's precision and writable."""
        self._parameters.set_gradient(gradient)
        with without_compiler():
            self._optimizer.step()
        self._parameters.clear_gradient()
        self.steps += 1

    def publish(self) -> WeightRef:
        """Return a reference to the present weights, whose version is the number of steps taken."""
        if not self._published or self._published[-1].version != self.steps:
            weights = self._parameters.read()
            self._published.append(self._store.publish(self.model.name, self.steps, weights))
        return self._published[-1]

    def snapshot(self) -> LearnerState:
        """Return copies of all that training has made of the model."""
        optimizer: dict[str, torch.Tensor] = {}
        with without_compiler():
            state = self._optimizer.state_dict()
        settings = json.dumps(pack(state, optimizer, name="optimizer"))
        weights = {name: t.clone().contiguous() for name, t in self.module.state_dict().items()}
        return LearnerState(
            steps=self.steps, weights=weights, optimizer=optimizer, settings=settings
        )

    def restore(self, state: LearnerState) -> None:
        """Be as the learner of which this is a snapshot, with no version published."""
        self.module.load_state_dict(state.weights)
        packed = unpack(json.loads(state.settings), state.optimizer)
        with without_compiler():
            self._optimizer.load_state_dict(cast("dict[str, object]", packed))
        self.steps = state.steps

    def version(self, ref: WeightRef) -> FloatArray:
        """Return the weights (P,) of a version that is published."""
        is_present = ref.version == self.steps
        return self._parameters.read() if is_present else self._store.fetch(ref)

    def republish(self, version: int, weights: FloatArray) -> WeightRef:
        """Publish a version of before again; versions come in order."""
        if not self._published or self._published[-1].version != version:
            self._published.append(self._store.publish(self.model.name, version, weights))
        return self._published[-1]

    def keep(self, needed: Set[WeightRef]) -> None:
        """Discard the published versions that are not ``needed``."""
        for ref in [ref for ref in self._published if ref not in needed]:
            self._store.discard(ref)
            self._published.remove(ref)


def _make_optimizer(model: Model, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """Return the model's optimizer over ``parameters``, if it steps from one gradient."""
    try:
        optimizer: object = model.optimizer(list(parameters))
    except (TypeError, ValueError) as error:
        rule = f"must make an optimizer of the model's parameters ({error})"
        raise ParameterError("optimizer", rule, model.optimizer) from error
    if not isinstance(optimizer, Optimizer):
        rule = "must be a factory, parameters -> torch.optim.Optimizer"
        remedy = "e.g. functools.partial(torch.optim.SGD, lr=0.1)"
        raise ParameterError("optimizer", rule, optimizer, remedy)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ParameterError(
            "optimizer",
            "must step from one gradient, not from a closure that computes the loss again: "
            "gradients come from the workers, one a job",
            type(optimizer).__name__,
            "use a first-order optimizer, e.g. torch.optim.SGD or torch.optim.Adam",
        )
    return optimizer


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let optimizers be made and step without importing the compiler, unless it is there."""
    if _COMPILER in sys.modules:
        yield
        return
    stand_in = _NoCompiler(_COMPILER)
    sys.modules[_COMPILER] = stand_in
    setattr(torch, "_dynamo", stand_in)  # noqa: B010 (unknown to type checkers)
    try:
        yield
    finally:
        stand_in.leave()


class _NoCompiler(ModuleType):
    """What an optimizer calls of the compiler, doing nothing."""

    def graph_break(self) -> None:
        pass

    def disable(self, fn: Callable[_P, _T], *options: object, **more: object) -> Callable[_P, _T]:
        """Return ``fn``, which torch keeps for good: hidden from a compiler that comes later."""

        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            real = sys.modules.get(_COMPILER, self)
            if isinstance(real, _NoCompiler):
                return fn(*args, **kwargs)
            hidden: Callable[_P, _T] = real.disable(fn, *options, **more)
            return hidden(*args, **kwargs)

        return call

    def leave(self) -> None:
        """Make way for the real module."""
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
            delattr(torch, "_dynamo")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # what the import system looks for
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(_COMPILER), name)

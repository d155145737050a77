"""Weighted sums over a few data points of a model, computed before a run as a worker will.

`ModelTrial` is the one place where the checks before a run (`seqgc.training._soundness`) meet the
code of workers. It hands out gradients, losses and outputs, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, refusing, reraise_stop
from seqgc.ports import FloatArray, IntArray, WeightedPoints, WeightRef
from seqgc.training._autocast import autocasting
from seqgc.training._points import (
    collate,
    leaves_of,
    loss_in,
    map_tensors,
    point_losses,
    require_mean,
)
from seqgc.training.compute import LocalModule, LocalObjective
from seqgc.training.dropout import dropout_masks
from seqgc.training.model import Model, Precision, torch_dtype

__all__ = ["ModelTrial", "TrialSum"]

_CASTS: Final = {"float32": (".double()", "float64"), "float64": (".float()", "float32")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialSum:
    """A weighted sum over data points, and what the module returned.

    ``gradients`` are those of the trainable parameters, flat, one array each; ``loss`` (1,) and
    ``weight`` (1,) are the sums of the points' losses and of their weights in the mean.
    ``outputs`` are the tensors that the module returned; they are ``differentiable`` if one of them
    depends on a parameter. ``eps`` is the distance from 1 to the next number in the coarsest dtype
    of forward and loss.
    """

    gradients: Sequence[FloatArray]
    loss: FloatArray
    weight: FloatArray
    outputs: Sequence[FloatArray]
    differentiable: bool
    eps: float

    @property
    def numbers(self) -> list[FloatArray]:
        """The gradients, then the loss and the weight."""
        return [*self.gradients, self.loss, self.weight]


class ModelTrial:
    """A worker's copy of a model, in the run's precision, and its results at any weights."""

    def __init__(self, model: Model, precision: Precision) -> None:
        self.model: Final = model
        with refusing("module", "must be copied by copy.deepcopy ({})", _named(model)):
            local = LocalModule(model.module, torch_dtype(precision))
        self._objective: Final = LocalObjective(model.objective, local)
        self._parameters: Final = local.parameters
        self._precision: Final = precision
        self.module: Final[nn.Module] = local.call
        self._weights: Final = WeightRef(
            model=model.name, version=0, digest="", dtype=precision, size=local.parameters.size
        )

    def sum_of(self, points: IntArray, coefficients: FloatArray) -> TrialSum:
        """Return the sum of ``points`` (m,), each times its coefficient (m,).

        Raises
        ------
        ParameterError
            If the module or the loss raises, or the loss has no value for each point.
        """
        try:
            return self._sum_of(points, coefficients)
        except ParameterError:
            raise
        except BaseException as error:  # the user's own code: whatever it raises
            reraise_stop(error)
            fault, got = fault_of(error), _named(self.model)
            if _dtypes_meet(error):
                cast, other = _CASTS[self._precision]
                rule = f"must compute in {self._precision}, the run's precision ({fault})"
                remedy = (
                    f"write .to(self.weight.dtype) in place of {cast}, make constants buffers "
                    f"(register_buffer), or take precision={other!r}"
                )
                raise ParameterError("module", rule, got, remedy) from error
            rule = "must take the dataset's points, and the loss its outputs"
            raise ParameterError("module", rule, got, f"{fault}{_calls(error)}") from error

    def _sum_of(self, points: IntArray, coefficients: FloatArray) -> TrialSum:
        part = WeightedPoints(
            model=self.model.name, weights=self._weights, points=points, coefficients=coefficients
        )
        layout = self._parameters.layout
        result = np.empty(layout.size, dtype=self._precision)
        outputs: list[object] = []
        with (
            _DtypeWatch(torch.finfo(torch_dtype(self._precision)).eps) as watch,
            ExitStack() as hooks,
        ):
            for handle in (
                self.module.register_forward_pre_hook(lambda *_: watch.begin()),
                self.module.register_forward_hook(lambda *args: outputs.append(args[-1])),
            ):
                hooks.callback(handle.remove)
            # Opened without Dropout layers as well: it refuses one that is no submodule.
            hooks.enter_context(dropout_masks(self.module, points, seed=self.model.seed))
            self._objective.compute(part, out=result)
        ends = np.cumsum([p.numel() for p in self._parameters.tensors])
        gradients = np.split(result[: ends[-1]], ends[:-1])
        leaves, sums = leaves_of(outputs), layout.read(result).sums
        return TrialSum(
            gradients=gradients,
            loss=np.array([sums.loss]),
            weight=np.array([sums.weight]),
            outputs=[_as_array(leaf) for leaf in leaves],
            differentiable=any(leaf.requires_grad for leaf in leaves),
            eps=watch.eps,
        )

    def require_mean(self, points: IntArray) -> None:
        """Refuse a torch loss whose mean is another one than that of its points' losses."""
        dtype = torch_dtype(self._precision)
        x, y = collate(self.model.dataset, points, dtype=dtype)
        loss = loss_in(self.model.loss, dtype)
        masks = dropout_masks(self.module, points, seed=self.model.seed)
        with autocasting(self.model.autocast), masks:
            output = map_tensors(self.module(x), Tensor.detach)
            require_mean(loss, point_losses(loss, output, y, count=len(points)), output, y)

    @property
    def receives_gradient(self) -> bool:
        """Whether any trainable parameter received a gradient in the last sum."""
        return any(p.grad is not None for p in self._parameters.tensors)

    def moved(self, points: IntArray, coefficients: FloatArray, *, by: float) -> TrialSum:
        """Return the sum after each weight was changed by a fraction ``by`` of itself, up or down.

        The weights are put back.
        """
        weights = self._parameters.read()
        self.nudge(by)
        try:
            return self.sum_of(points, coefficients)
        finally:
            self._parameters.write(weights)

    def nudge(self, by: float) -> None:
        """Change each trainable weight by a fraction ``by`` of itself, up or down."""
        weights = self._parameters.read()
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=weights.size)
        self._parameters.write((weights * (1 + by * signs)).astype(weights.dtype))

    def shake(self, scale: float) -> None:
        """Add normal noise of that standard deviation to all parameters."""
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.module.parameters():
                if p.is_floating_point():
                    p.add_(torch.randn(p.shape, generator=generator).to(p.dtype), alpha=scale)


def _named(model: Model) -> str:
    return f"{type(model.module).__name__} of model {model.name!r}"


def _dtypes_meet(error: BaseException) -> bool:
    """Say whether torch raised because float32 and float64 met in one operation."""
    if not isinstance(error, RuntimeError):
        return False
    said = str(error).lower()
    return "float" in said and "double" in said


def _calls(error: BaseException) -> str:
    """Return how the module and the loss are called, if that is what was wrong."""
    if not isinstance(error, TypeError | KeyError | AttributeError):
        return ""
    return "; forward is called with x of an item (x, y), the loss with the output and y"


def _as_array(tensor: Tensor) -> FloatArray:
    tensor = tensor.detach()
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    array: FloatArray = real.to_dense().double().numpy()
    return array


class _DtypeWatch(TorchFunctionMode):
    """Finds the coarsest floating-point dtype that operations return, once it has begun.

    ``eps`` is the distance from 1 to the next number of that dtype.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self._began = False

    def begin(self) -> None:
        """Watch from now on: the batch is there, and in the run's precision."""
        self._began = True

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call a function of torch, and look at what it returns."""
        result = func(*args, **(kwargs or {}))
        if (
            self._began
            and isinstance(result, Tensor)
            and (result.is_floating_point() or result.is_complex())
        ):
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
        return result

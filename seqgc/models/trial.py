"""A trial of a model: the workers' own code on a few points, first in a forked child."""

from __future__ import annotations

import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, refusing, reraise_stop
from seqgc.models.compute import LocalModule, LocalObjective
from seqgc.models.datasets import collate, leaves_of, map_tensors
from seqgc.models.dropout import dropout_masks
from seqgc.models.losses import loss_in, point_losses, require_mean
from seqgc.models.model import Model
from seqgc.models.precision import Precision, autocasting, torch_dtype
from seqgc.ports import FloatArray, IntArray, WeightedPoints, WeightRef

__all__ = ["ModelTrial", "TrialSum", "try_first"]

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


_LIMIT_S: Final = 20.0  # a longer trial is made by the master, which can be interrupted
_SILENT, _TO_REPEAT, _INTERRUPTED = b"s", b"r", b"i"
_TRUSTED: Final = frozenset({"builtins", "functools", "numpy", "seqgc", "torch", "torchvision"})


def try_first(model: Model, trial: Callable[[Model], None]) -> None:
    """Call ``trial(model)``; if the model has code of the user's own, in a child process first.

    Warns if the child is not done within a time limit. Errors of the trial are passed on.

    Raises
    ------
    ParameterError
        If the trial ends the child, or the model's code raises a `KeyboardInterrupt` there.
    """
    if sys.platform == "linux" and _has_own_code(model):
        said, status = _in_child(lambda: trial(model))
        if said == _SILENT:
            return
        if said == _INTERRUPTED:
            raise _deadly(model, "its code raised KeyboardInterrupt")
        if not said and status is not None:
            raise _deadly(model, _end_of(status))
        if not said:
            text = f"model {model.name!r} is still being tried after {_LIMIT_S:g} s"
            warnings.warn(
                f"{text}; it is now tried in this process: if this does not end, its code hangs",
                stacklevel=2,
            )
    trial(model)


def _has_own_code(model: Model) -> bool:
    """Return True if any part of the model is defined outside the trusted packages."""
    return any(_package(part) not in _TRUSTED for part in _parts_of(model))


def _parts_of(model: Model) -> Iterator[object]:
    yield from model.module.modules()
    yield getattr(model.loss, "func", model.loss)
    datasets: list[object] = [model.dataset, model.test_dataset]
    while datasets:
        if (dataset := datasets.pop()) is not None:
            yield dataset
            datasets.append(getattr(dataset, "dataset", None))  # of a subset, or an augmented one


def _package(part: object) -> str:
    kind = part if hasattr(part, "__qualname__") else type(part)
    return str(kind.__module__).partition(".")[0]


def _deadly(model: Model, how: str) -> ParameterError:
    rule = "must not end the process that computes it"
    remedy = "call it on a few data points yourself: `python -X faulthandler` shows where it ends"
    return ParameterError("module", f"{rule} ({how} when it was tried)", model.name, remedy)


def _end_of(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"a child process exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"a child process was killed by {name}"


def _in_child(call: Callable[[], None]) -> tuple[bytes, int | None]:
    """Call a function in a child process; return the child's report and its wait status.

    The report is empty if the child ended without one, or was not done in time. In the latter case
    the child is killed, and the status is None.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # or the child's copy might be written as well
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads
        child = os.fork()
    if child == 0:
        _answer(call, writer)
    os.close(writer)
    said, status = b"", None
    try:
        if select.select([reader], [], [], _LIMIT_S)[0]:
            said = os.read(reader, 1)
            _, status = os.waitpid(child, 0)
    finally:
        os.close(reader)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return said, status


def _answer(call: Callable[[], None], writer: int) -> None:
    """Act as the child: report how the call went, and exit without the master's clean-up."""
    said = _TO_REPEAT
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        signal.alarm(2 * int(_LIMIT_S))  # should the master be killed meanwhile
        torch.set_num_threads(1)  # the master's other threads are not here
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call()
        said = _TO_REPEAT if told else _SILENT
        sys.stdout.flush()
    except KeyboardInterrupt:
        said = _INTERRUPTED
    except BaseException:
        pass
    finally:
        os.write(writer, said)
        os._exit(0)

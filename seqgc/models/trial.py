"""The trial of a model before a run, in which the workers' code computes a few data points.

`ModelTrial` computes the results that `seqgc.models.soundness` compares. The user's code may hang,
or kill its process. Therefore `try_first` first tries a model with such code in a child process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, refusing, reraise_stop
from seqgc.models.datasets import collate, leaves_of, map_tensors
from seqgc.models.dropout import dropout_masks
from seqgc.models.losses import loss_in, point_losses, require_mean
from seqgc.models.model import Model
from seqgc.models.objectives import LocalModule, LocalObjective
from seqgc.models.precision import Precision, autocasting, torch_dtype
from seqgc.ports import FloatArray, IntArray, WeightedPoints, WeightRef

__all__ = ["ModelTrial", "TrialSum", "try_first"]

_CASTS: Final = {"float32": (".double()", "float64"), "float64": (".float()", "float32")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialSum:
    """A weighted sum over data points, and the outputs of the module.

    ``gradients`` has a flat array for each trainable parameter. ``loss`` (1,) and ``weight`` (1,)
    are the sums of the points' losses and of their weights in the mean. ``outputs`` are the tensors
    that the module returned; ``differentiable`` is True if one of them depends on a parameter.
    ``eps`` is the distance from 1 to the next number in the coarsest dtype of forward and loss.
    """

    gradients: Sequence[FloatArray]
    loss: FloatArray
    weight: FloatArray
    outputs: Sequence[FloatArray]
    differentiable: bool
    eps: float

    @property
    def numbers(self) -> list[FloatArray]:
        """The gradients, followed by the loss and the weight."""
        return [*self.gradients, self.loss, self.weight]


class ModelTrial:
    """A copy of a model as on a worker, in the run's precision, whose weights can be changed."""

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
        """Return the sum over ``points`` (m,), each multiplied by its coefficient (m,)."""
        try:
            return self._sum_of(points, coefficients)
        except ParameterError:
            raise
        except BaseException as error:  # the user's code may raise anything
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
            rule = "must take the dataset's points, and the loss must take the module's outputs"
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
            self.module.register_forward_pre_hook(lambda *_: watch.begin()),
            self.module.register_forward_hook(lambda *args: outputs.append(args[-1])),
        ):
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
        """Raise `ParameterError` if the mean of the points' losses differs from torch's mean."""
        dtype = torch_dtype(self._precision)
        x, y = collate(self.model.dataset, points, dtype=dtype)
        loss = loss_in(self.model.loss, dtype)
        masks = dropout_masks(self.module, points, seed=self.model.seed)
        with autocasting(self.model.autocast), masks:
            output = map_tensors(self.module(x), Tensor.detach)
            require_mean(loss, point_losses(loss, output, y, count=len(points)), output, y)

    @property
    def receives_gradient(self) -> bool:
        """True if a trainable parameter received a gradient in the last sum."""
        return any(p.grad is not None for p in self._parameters.tensors)

    def moved(self, points: IntArray, coefficients: FloatArray, *, by: float) -> TrialSum:
        """Return the sum of `sum_of` with weights changed by `nudge`, and restore the weights."""
        weights = self._parameters.read()
        self.nudge(by)
        try:
            return self.sum_of(points, coefficients)
        finally:
            self._parameters.write(weights)

    def nudge(self, by: float) -> None:
        """Change each trainable weight by a fraction ``by`` of its value, up or down at random."""
        weights = self._parameters.read()
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=weights.size)
        self._parameters.write((weights * (1 + by * signs)).astype(weights.dtype))

    def shake(self, scale: float) -> None:
        """Add normal noise with the standard deviation ``scale`` to all parameters."""
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in self.module.parameters():
                if p.is_floating_point():
                    p.add_(torch.randn(p.shape, generator=generator).to(p.dtype), alpha=scale)


def _named(model: Model) -> str:
    return f"{type(model.module).__name__} of model {model.name!r}"


def _dtypes_meet(error: BaseException) -> bool:
    """Return True if torch raised the error because an operation mixed float32 and float64."""
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return "float" in text and "double" in text


def _calls(error: BaseException) -> str:
    """Return how module and loss are called if the error may come from a wrong call, or ""."""
    if not isinstance(error, TypeError | KeyError | AttributeError):
        return ""
    return "; forward is called with x of an item (x, y), the loss with the output and y"


def _as_array(tensor: Tensor) -> FloatArray:
    tensor = tensor.detach()
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    array: FloatArray = real.to_dense().double().numpy()
    return array


class _DtypeWatch(TorchFunctionMode):
    """A watch for the coarsest floating-point dtype that operations return after `begin`.

    ``eps`` is the distance from 1 to the next number of this dtype.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self._began = False

    def begin(self) -> None:
        """Start to watch; call this after the batch was converted to the run's precision."""
        self._began = True

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call a function of torch, and record the dtype of its result."""
        result = func(*args, **(kwargs or {}))
        if (
            self._began
            and isinstance(result, Tensor)
            and (result.is_floating_point() or result.is_complex())
        ):
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
        return result


# ---- trial in a child process --------------------------------------------------------------------

_LIMIT_S: Final = 20.0  # the master repeats a longer trial, because the user can interrupt it
_PASSED, _TO_REPEAT, _INTERRUPTED = b"s", b"r", b"i"
_TRUSTED: Final = frozenset({"builtins", "functools", "numpy", "seqgc", "torch", "torchvision"})


def try_first(model: Model, trial: Callable[[Model], None]) -> None:
    """Call ``trial(model)``; if the model has the user's code, first in a child process.

    If the trial in the child raises an error or warns, it is repeated in this process, so that the
    caller gets the error or warning. If it does not end within a time limit, it is also repeated
    here, with a warning.

    Raises
    ------
    ParameterError
        If the trial ends the child, or the model's code raises a `KeyboardInterrupt` in the child.
    """
    if sys.platform == "linux" and any(_package(each) not in _TRUSTED for each in _parts(model)):
        report, status = _in_child(lambda: trial(model))
        if report == _PASSED:
            return
        if report == _INTERRUPTED:
            raise _deadly(model, "its code raised KeyboardInterrupt")
        if not report and status is not None:
            raise _deadly(model, _end_of(status))
        if not report:
            warnings.warn(
                f"the trial of model {model.name!r} has not ended after {_LIMIT_S:g} s; it is "
                "repeated in this process: if it does not end, the model's code hangs",
                stacklevel=2,
            )
    trial(model)


def _parts(model: Model) -> Iterator[object]:
    yield from model.module.modules()
    yield getattr(model.loss, "func", model.loss)
    datasets: list[object] = [model.dataset, model.test_dataset]
    while datasets:
        if (dataset := datasets.pop()) is not None:
            yield dataset
            datasets.append(getattr(dataset, "dataset", None))  # of a Subset or AugmentedDataset


def _package(part: object) -> str:
    kind = part if hasattr(part, "__qualname__") else type(part)
    return str(kind.__module__).partition(".")[0]


def _deadly(model: Model, how: str) -> ParameterError:
    rule = f"must not end the process that computes it ({how} when it was tried)"
    remedy = "call it on a few data points: `python -X faulthandler` shows where the process ends"
    return ParameterError("module", rule, model.name, remedy)


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

    The report is empty if the child ended without one. If the child exceeds the time limit, it is
    killed, the report is empty and the status is None.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # otherwise the child might write its copy of the buffer
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
        child = os.fork()
    if child == 0:
        _report(call, writer)
    os.close(writer)
    report, status = b"", None
    try:
        if select.select([reader], [], [], _LIMIT_S)[0]:
            report = os.read(reader, 1)
            _, status = os.waitpid(child, 0)
    finally:
        os.close(reader)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return report, status


def _report(call: Callable[[], None], writer: int) -> None:
    """Call the function in the child, write the report, and exit without the master's clean-up."""
    report = _TO_REPEAT
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        signal.alarm(2 * int(_LIMIT_S))  # ends the child if the master is killed
        torch.set_num_threads(1)  # the master's other threads do not exist in the child
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        report = _TO_REPEAT if caught else _PASSED
        sys.stdout.flush()
    except KeyboardInterrupt:
        report = _INTERRUPTED
    except BaseException:
        pass
    finally:
        os.write(writer, report)
        os._exit(0)

"""Measures of a model: its loss, accuracy and metrics on a dataset, after a run and during it.

`evaluate` measures a module. A `Validation` contains the rules for measuring a model during
training, for the choice of the best weights, and for stopping early. The master validates a model
after a fixed number of the model's own steps, without workers. Therefore the results depend only on
the model's steps. They are in checkpoints, so that a resumed run makes the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from seqgc._fault import fault_of
from seqgc.errors import (
    ParameterError,
    did_you_mean,
    refusing,
    require_int,
    require_number,
    reraise_stop,
)
from seqgc.models.datasets import (
    PointDataset,
    cast_floats,
    collate,
    leaves_of,
    map_tensors,
    require_points,
)
from seqgc.models.losses import Loss, loss_in, per_point_loss, point_losses
from seqgc.models.precision import Autocast, autocasting

if TYPE_CHECKING:
    from seqgc.models.model import Model

__all__ = [
    "Best",
    "Evaluation",
    "Metric",
    "Validation",
    "ValidationState",
    "Validator",
    "evaluate",
    "require_valid",
]

Mode: TypeAlias = Literal["min", "max"]
_EVALUATION_BATCH = 1024

Metric: TypeAlias = Callable[[Any, Any], float]
"""``(output, target) -> float``, called once with all points of a dataset."""

_NONE: Final[Mapping[str, Metric]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The mean loss over a dataset, the accuracy, and the user's ``metrics``.

    The mean is weighted by the weights of the loss. ``accuracy`` is the fraction of targets that
    are classified correctly, without targets that the loss ignores. It is None if the points have
    no classes.
    """

    loss: float
    accuracy: float | None
    metrics: dict[str, float] = field(default_factory=dict)


def evaluate(
    module: nn.Module,
    *,
    loss: Loss,
    dataset: PointDataset,
    metrics: Mapping[str, Metric] = _NONE,
    autocast: Autocast = "off",
) -> Evaluation:
    """Evaluate ``module`` in eval mode on all points of ``dataset``, and restore its modes.

    If targets are integers and outputs have one more axis, the points have classes. The scores of
    the classes lie along axis 1, or along the last axis if only this fits the shape of the targets;
    the predicted class has the highest score. Targets whose weight in the loss is 0 do not count.
    ``metrics`` are called with the outputs and targets of all points, stacked along the first axis.
    ``autocast`` is the autocast of a `Model`; outputs are cast to the dtype of the weights before
    they are passed to metrics. No graph is recorded, unless the module computes gradients in its
    forward pass.

    Raises
    ------
    ParameterError
        If the dataset is empty, the loss does not return a value for each point, or a metric raises
        an error or does not return a number.

    Examples
    --------
    >>> import torch
    >>> from seqgc.training import evaluate
    >>> points = torch.utils.data.TensorDataset(
    ...     torch.tensor([[0.0, 9.0], [9.0, 0.0]]), torch.tensor([1, 1])
    ... )
    >>> evaluate(torch.nn.Identity(), loss=torch.nn.CrossEntropyLoss(), dataset=points).accuracy
    0.5
    """
    size = len(dataset)
    if size < 1:
        raise ParameterError("dataset", "must hold at least one data point", size)
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    loss = loss_in(per_point_loss(loss), dtype)
    total, weight, hits, counted = 0.0, 0.0, 0.0, 0.0
    outputs: list[object] = []
    targets: list[object] = []
    with ExitStack() as modes, torch.no_grad():
        for part in module.modules():  # some parts may be frozen in eval mode
            modes.callback(setattr, part, "training", part.training)
        module.eval()
        for start in range(0, size, _EVALUATION_BATCH):
            points = np.arange(start, min(start + _EVALUATION_BATCH, size))
            x, y = collate(dataset, points, dtype=dtype)
            with autocasting(autocast):
                output = _output(module, x)
                losses = point_losses(loss, output, y, count=len(points))
            batch_sums = [*losses.sums, *_hits(output, y, losses.of_targets)]
            total, weight, hits, counted = np.add([total, weight, hits, counted], batch_sums)
            if metrics:
                outputs.append(cast_floats(output, dtype) if autocast != "off" else output)
                targets.append(y)
        values = {name: _measure(name, metrics[name], outputs, targets) for name in metrics}
    mean = float(total / weight) if weight else math.nan
    accuracy = float(hits / counted) if counted else math.nan
    return Evaluation(loss=mean, accuracy=None if math.isnan(hits) else accuracy, metrics=values)


def _output(module: nn.Module, x: object) -> Any:
    try:
        return module(x)
    except RuntimeError:
        # A module that computes gradients in its forward pass cannot do so under no_grad.
        with torch.enable_grad():
            return map_tensors(module(x), Tensor.detach)


def _concatenate(values: Sequence[object]) -> Any:
    columns = iter([torch.cat(column) for column in zip(*map(leaves_of, values), strict=True)])
    return map_tensors(values[0], lambda _: next(columns))


def _measure(name: str, metric: Metric, outputs: list[object], targets: list[object]) -> float:
    with refusing("metrics", "must return a number of (output, target) ({})", name):
        value: object = metric(_concatenate(outputs), _concatenate(targets))
        if isinstance(value, str):  # float() would accept it
            raise TypeError("it returned text")
        return float(cast("float", value))


def _hits(output: object, target: object, weights: Tensor | None) -> tuple[float, float]:
    """Return the number of correctly classified targets, and the number of counted targets.

    Scores of classes lie along axis 1, as in torch's losses, or along the last axis, as in the
    output of most language models. A target whose weight is 0 does not count, because the loss
    ignores it. If the points have no classes, both numbers are NaN.
    """
    if (
        not isinstance(output, Tensor)
        or not isinstance(target, Tensor)
        or output.ndim != target.ndim + 1
        or target.is_floating_point()
    ):
        return math.nan, math.nan
    if target.shape == (*output.shape[:1], *output.shape[2:]):
        axis = 1
    elif target.shape == output.shape[:-1]:
        axis = -1
    else:
        return math.nan, math.nan
    counts = torch.ones_like(target, dtype=torch.bool)
    if weights is not None and weights.ndim <= target.ndim:
        counts &= (weights != 0).reshape(*weights.shape, *[1] * (target.ndim - weights.ndim))
    right = (output.argmax(axis) == target) & counts
    return float(right.sum()), float(counts.sum())


# ---- validation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """The rules by which a model is validated while it is trained.

    After every ``every_n_steps`` steps, three kinds of values are computed on ``dataset``: the
    model's loss, its accuracy if the points have classes, and the ``metrics``. These are functions
    ``(output, target) -> float`` by name, each of which is called once with the whole dataset. The
    default dataset is the model's ``test_dataset``, or its ``dataset`` if it has no test dataset.
    ``monitor`` is the name of the value by which validations are compared; the best value is the
    smallest if ``mode`` is ``"min"``, and the largest if it is ``"max"``. The weights with the best
    value are stored. If ``patience`` is given, the model is stopped early after ``patience``
    successive validations that do not improve the best value by more than ``min_delta``.

    Examples
    --------
    >>> def errors(output, target):
    ...     return float((output.argmax(1) != target).sum())
    >>> Validation(every_n_steps=10, metrics={"errors": errors}, monitor="errors", patience=3).mode
    'min'
    """

    every_n_steps: int
    dataset: PointDataset | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    monitor: str = "loss"
    mode: Mode = "min"
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        require_int("every_n_steps", self.every_n_steps, least=1)
        if self.patience is not None:
            require_int("patience", self.patience, least=1)
        require_number("min_delta", self.min_delta, least=0)
        if self.mode not in get_args(Mode):
            raise ParameterError("mode", f"must be one of {', '.join(get_args(Mode))}", self.mode)
        if self.dataset is not None:
            require_points("validation.dataset", self.dataset)
        metrics: Mapping[str, object] = self.metrics
        if not isinstance(metrics, Mapping):
            raise ParameterError("metrics", "must be a dict of functions by name", metrics)
        for name, metric in metrics.items():
            if not isinstance(name, str) or not name.strip():
                raise ParameterError("metrics", "must have names that are text and not empty", name)
            if name in {"loss", "accuracy"}:
                rule = "must not be named loss or accuracy: these two are built in"
                raise ParameterError("metrics", rule, name)
            if not callable(metric):
                rule = f"must be functions (output, target) -> float, but {name} cannot be called"
                raise ParameterError("metrics", rule, metric)
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))

    def points(self, model: Model) -> PointDataset:
        """Return the dataset on which a model is validated."""
        if self.dataset is not None:
            return self.dataset
        return model.dataset if model.test_dataset is None else model.test_dataset

    def of(self, module: nn.Module, model: Model) -> dict[str, float]:
        """Return the loss, accuracy and metrics of ``module``, a copy of the model's module."""
        result = evaluate(
            module,
            loss=model.loss,
            dataset=self.points(model),
            metrics=self.metrics,
            autocast=model.autocast,
        )
        accuracy = {} if result.accuracy is None else {"accuracy": result.accuracy}
        return {"loss": result.loss, **accuracy, **result.metrics}


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best validation of a model: the number of steps before it, and all of its metrics."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationState:
    """The state of a model's validations in a checkpoint, next to the best weights."""

    best: Best | None = None
    worse: int = 0  # validations since the best


class Validator:
    """The validations of one model: its best weights, and the decision to stop early."""

    def __init__(self, model: Model, rules: Validation) -> None:
        self._model, self._rules = model, rules
        self.state: ValidationState = ValidationState()
        self.weights: Mapping[str, torch.Tensor] = {}  # the best weights and buffers

    def restore(self, state: ValidationState, weights: Mapping[str, torch.Tensor]) -> None:
        """Continue from the state and the best weights of a checkpoint."""
        self.state, self.weights = state, weights

    def is_due(self, step: int) -> bool:
        """Return True if the model must be validated after ``step`` steps."""
        return step % self._rules.every_n_steps == 0

    def validate(self, module: nn.Module, *, step: int) -> dict[str, float]:
        """Validate the model after ``step`` steps, and return its metrics."""
        metrics = self._rules.of(module, self._model)
        state, value = self.state, metrics[self._rules.monitor]
        if self._is_better(value):
            best = Best(step=step, metrics=metrics)
            self.state = ValidationState(best=best)
            self.weights = {k: t.clone().contiguous() for k, t in module.state_dict().items()}
        else:
            self.state = ValidationState(best=state.best, worse=state.worse + 1)
        return metrics

    def monitored(self, metrics: Mapping[str, float]) -> float:
        """Return the value of the metric that the validation monitors."""
        return metrics[self._rules.monitor]

    @property
    def verdict(self) -> str:
        """The reason to stop the model early, in one line; empty if it must not be stopped."""
        patience, best, worse = self._rules.patience, self.state.best, self.state.worse
        if patience is None or worse < patience:
            return ""
        monitor = self._rules.monitor
        if best is None:
            return f"{monitor} was not finite in {worse} validations"
        value = f"{best.metrics[monitor]:.6g} after {best.step} steps"
        return f"{monitor} was best, {value}, {worse} validations ago"

    def _is_better(self, value: float) -> bool:
        if self.state.best is None:
            return math.isfinite(value)
        sign = 1 if self._rules.mode == "min" else -1
        best = self.state.best.metrics[self._rules.monitor]
        return sign * value < sign * best - self._rules.min_delta


def require_valid(models: Sequence[Model]) -> None:
    """Validate one untrained model for each `Validation`, to raise errors before the run."""
    for model in {id(each.validation): each for each in reversed(models)}.values():
        if (rules := model.validation) is None:
            continue
        try:
            metrics = rules.of(model.module, model)
        except ParameterError:
            raise
        except BaseException as error:  # from the user's module, loss or data
            reraise_stop(error)
            rule = "must have a dataset whose points the module and the loss can take"
            raise ParameterError("validation", rule, model.name, fault_of(error)) from error
        if rules.monitor not in metrics:
            rule = f"must be one of {', '.join(metrics)}"
            remedy = did_you_mean(str(rules.monitor), metrics)
            raise ParameterError("monitor", rule, rules.monitor, remedy)

"""`Validation`: how good a model is while it is trained, which weights were best, and when to stop.

A model is validated on the master, on its weights after every so many of its own steps; no worker
takes part. So what comes of it, the best weights and an early end included, depends on the model's
steps alone, and is in checkpoints: a resumed run decides as the first one would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import nn

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, did_you_mean, require_int, require_number, reraise_stop
from seqgc.models.evaluation import Metric, evaluate
from seqgc.models.points import PointDataset, require_points

if TYPE_CHECKING:
    from seqgc.models.model import Model

__all__ = ["Best", "Validation", "ValidationState", "Validator", "require_valid"]

Mode: TypeAlias = Literal["min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Validation:
    """What a model is validated on, how often, and what follows.

    After every ``every_n_steps`` steps its loss on ``dataset`` (its ``test_dataset`` unless given)
    is taken, its accuracy if its points have classes, and its own ``metrics``: by name, functions
    ``(output, target) -> float`` of all of the data set at once. The weights after which
    ``monitor``, one of these, is best (``mode``: least, ``"min"``, or greatest, ``"max"``) are
    kept. With a ``patience`` the model is stopped early once so many validations in a row have not
    been better than the best before by more than ``min_delta``.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

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
            raise ParameterError("metrics", "must be functions by name, a dict", metrics)
        for name, metric in metrics.items():
            if not isinstance(name, str) or not name.strip():
                raise ParameterError("metrics", "must have texts for names, none empty", name)
            if name in {"loss", "accuracy"}:
                rule = "must have names of their own: loss and accuracy are there already"
                raise ParameterError("metrics", rule, name)
            if not callable(metric):
                rule = f"must be functions (output, target) -> float; {name} is none"
                raise ParameterError("metrics", rule, metric)
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))

    def points(self, model: Model) -> PointDataset:
        """Return what a model is validated on."""
        if self.dataset is not None:
            return self.dataset
        return model.dataset if model.test_dataset is None else model.test_dataset

    def of(self, module: nn.Module, model: Model) -> dict[str, float]:
        """Return the metrics of a module, in the place of the model's own, by name.

        Whatever a metric raises is raised.
        """
        seen = evaluate(
            module,
            loss=model.loss,
            dataset=self.points(model),
            metrics=self.metrics,
            autocast=model.autocast,
        )
        accuracy = {} if seen.accuracy is None else {"accuracy": seen.accuracy}
        return {"loss": seen.loss, **accuracy, **seen.metrics}


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best validation of a model: after how many steps, and all of its metrics."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationState:
    """What the validations of a model have come to: for checkpoints, beside the best weights."""

    best: Best | None = None
    worse: int = 0  # validations since the best


class Validator:
    """Follows the validations of one model."""

    def __init__(self, model: Model, rules: Validation) -> None:
        self._model, self._rules = model, rules
        self.state: ValidationState = ValidationState()
        self.weights: Mapping[str, torch.Tensor] = {}  # the best, and buffers

    def restore(self, state: ValidationState, weights: Mapping[str, torch.Tensor]) -> None:
        """Go on from a checkpoint's."""
        self.state, self.weights = state, weights

    def is_due(self, step: int) -> bool:
        """Say whether the model is to be validated after so many steps."""
        return step % self._rules.every_n_steps == 0

    def validate(self, module: nn.Module, *, step: int) -> dict[str, float]:
        """Return the metrics after so many steps; raises whatever a metric raises."""
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
        """Return the metric that is followed."""
        return metrics[self._rules.monitor]

    @property
    def verdict(self) -> str:
        """Why the model is to be stopped early, in one line; nothing if it is not."""
        patience, best, worse = self._rules.patience, self.state.best, self.state.worse
        if patience is None or worse < patience:
            return ""
        of = self._rules.monitor
        if best is None:
            return f"{of} was not finite in {worse} validations"
        value = f"{best.metrics[of]:.6g} after {best.step} steps"
        return f"{of} was best, {value}, {worse} validations ago"

    def _is_better(self, value: float) -> bool:
        if self.state.best is None:
            return math.isfinite(value)
        sign = 1 if self._rules.mode == "min" else -1
        before = self.state.best.metrics[self._rules.monitor]
        return sign * value < sign * before - self._rules.min_delta


def require_valid(models: Sequence[Model]) -> None:
    """Validate a model of each `Validation` once, untrained: what is wrong shows before a run.

    Raises
    ------
    ParameterError
        If a metric raises, does not return a number, or is monitored and not there; or the module
        cannot take the data.
    """
    tried = {id(each.validation): each for each in reversed(models)}
    for model in tried.values():
        if (rules := model.validation) is None:
            continue
        try:
            metrics = rules.of(model.module, model)
        except ParameterError:
            raise
        except BaseException as error:  # of the user's own module, loss or data
            reraise_stop(error)
            rule = "must be on points that the module and the loss take"
            raise ParameterError("validation", rule, model.name, fault_of(error)) from error
        if rules.monitor not in metrics:
            rule = f"must be one of {', '.join(metrics)}"
            known = did_you_mean(str(rules.monitor), metrics)
            raise ParameterError("monitor", rule, rules.monitor, known)

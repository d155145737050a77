"""The optimizer of one model: its steps, its learning-rate scheduler, its state in checkpoints.

`Stepper` clips gradients, takes steps and saves the state. `move_together` takes the steps of many
equal optimizers at once. The functions after it check optimizers and schedulers before a run.
`require_additive` checks that an optimizer can apply a gradient part by part, which stale updates
require.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, cast

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adadelta, Adam, Adamax, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from seqgc.errors import ParameterError, refusing
from seqgc.models.model import Model, OptimizerFactory, ParameterVector, are_in
from seqgc.models.results import ModelResult
from seqgc.ports import FloatArray
from seqgc.runs.packing import pack, unpack

__all__ = ["Stepper", "call_optimizer_factory", "move_together", "require_additive"]

_NAMED: Final = "named_parameters"
_JOINT: Final = {SGD, Adam, AdamW, Adamax, RMSprop, Adadelta}
"""The optimizers that give the same bits on a CPU with ``foreach=True`` and ``foreach=False``."""
_TORCH_SCHEDULERS: Final = LRScheduler.__module__
_OF_TENSORS: Final = {"params", "param_names"}
_OTHER_WAYS: Final = "fused", "capturable", "differentiable"  # to take a step
_TOLERANCE: Final = 1e-6  # relative to a step; between rounding errors and weight decay


class Stepper:
    """The optimizer and the learning-rate scheduler of a model, for its ``parameters``."""

    def __init__(self, model: Model, parameters: ParameterVector) -> None:
        self._model, self._parameters = model, parameters
        self._optimizer = _make_optimizer(model, parameters)
        self._scheduler = _make_scheduler(model, self._optimizer)
        self._joint: _JointOptimizer | None = None  # if given, it has the optimizer's state

    def require_steps(self, steps: int) -> None:
        """Raise `ParameterError` if the schedule of the learning rate ends before ``steps``."""
        last = getattr(self._scheduler, "total_steps", None)
        if last is not None and last < steps:
            rule = f"must last for the {steps} steps of the run"
            raise ParameterError("scheduler", rule, f"total_steps={last}", f"total_steps={steps}")

    def set(self, result: ModelResult) -> None:
        """Set the gradient for `move` to the gradient of ``result``, which must be writable."""
        self._parameters.set_gradient(result.gradient, result.received)

    def clip(self, result: ModelResult) -> dict[str, float]:
        """Clip the gradient of ``result`` in place by the model's limit, if it has one.

        If the gradient is clipped by its norm, return the ``gradient_norm`` before clipping.
        """
        limit, metrics = self._model.gradient_clip_val, dict[str, float]()
        if limit is None:
            return metrics
        self.set(result)
        if self._model.gradient_clip_algorithm == "value":
            clip_grad_value_(self._parameters.tensors, limit)
        else:
            metrics["gradient_norm"] = float(clip_grad_norm_(self._parameters.tensors, limit))
        self._parameters.clear_gradient()
        return metrics

    def move(self) -> None:
        """Change the weights by one step of the optimizer."""
        self.part()
        self._optimizer.step()
        self._parameters.clear_gradient()

    def part(self) -> None:
        """Take the optimizer's state back if a joint optimizer has it (`move_together`)."""
        if self._joint is not None:
            self._joint.part()

    def _places(self, received: Sequence[bool]) -> dict[int, tuple[int, int]]:
        """Return the places in the gradient of the ``received`` parameters (K,), by identity."""
        tensors = self._parameters.tensors
        places = pairwise(accumulate((p.numel() for p in tensors), initial=0))
        listed = zip(tensors, places, received, strict=True)
        return {id(p): place for p, place, has_gradient in listed if has_gradient}

    @property
    def settings(self) -> tuple[type[Optimizer], str] | None:
        """The class and the settings of an optimizer that `move_together` can take, or None."""
        optimizer, own = self._optimizer, vars(self._optimizer)
        kind, step = type(optimizer), own.get("step")
        if kind not in _JOINT or (step and getattr(step, "__wrapped__", 0) is not kind.step):
            return None  # a scheduler wraps the method `step`; other code may replace it
        if own["_optimizer_step_pre_hooks"] or own["_optimizer_step_post_hooks"]:
            return None
        if self._scheduler is not None and type(self._scheduler).__module__ != _TORCH_SCHEDULERS:
            return None  # the user's own scheduler may read or change the optimizer's state
        groups = [_settings_of(group) for group in optimizer.param_groups]
        for group in groups:
            if any(group.get(way) for way in _OTHER_WAYS):
                return None
            if any(isinstance(value, torch.Tensor) for value in group.values()):
                return None
        return kind, repr(groups)

    @property
    def is_scheduled(self) -> bool:
        """True if the learning rate has a scheduler."""
        return self._scheduler is not None

    def end(self) -> dict[str, float]:
        """End a step by stepping the scheduler, and return the step's learning rate ``lr``."""
        metrics = {"lr": float(self._optimizer.param_groups[0]["lr"])}
        if self._scheduler is not None and not isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step()
        return metrics

    def validated(self, monitored: float) -> None:
        """Pass the new value of the monitored metric to a scheduler that depends on it."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(monitored)

    def snapshot(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Return the state of optimizer and scheduler as JSON, and the tensors named in it."""
        self.part()
        tensors: dict[str, torch.Tensor] = {}
        packed = {"optimizer": pack(self._optimizer.state_dict(), tensors, name="optimizer")}
        if self._scheduler is not None:
            packed["scheduler"] = pack(self._scheduler.state_dict(), tensors, name="scheduler")
        return json.dumps(packed), tensors

    def restore(self, settings: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the state that `snapshot` returned."""
        self.part()
        packed = json.loads(settings)
        state = unpack(packed["optimizer"], tensors)
        self._optimizer.load_state_dict(cast("dict[str, object]", state))
        restore_dtypes(self._optimizer, state)
        if self._scheduler is not None:
            state = unpack(packed["scheduler"], tensors)
            self._scheduler.load_state_dict(cast("dict[str, object]", state))


def move_together(steppers: Sequence[Stepper], results: Sequence[ModelResult]) -> None:
    """Take one step of each model's optimizer, with the same bits as by `Stepper.move`.

    All steppers must have equal `Stepper.settings`. ``results`` has the gradient for each stepper.
    A joint optimizer with the parameters and the states of all optimizers takes the step. It keeps
    the states until a stepper or another group of steppers needs them.
    """
    received = [result.received.tolist() for result in results]
    joint = steppers[0]._joint
    if joint is None or not joint.has(steppers, received):
        for each in steppers:
            each.part()
        joint = _JointOptimizer(steppers, received)
    joint.move([result.gradient for result in results])


class _JointOptimizer:
    """One optimizer with the parameters and the states of the optimizers of ``steppers``.

    It has the parameters that received a gradient: ``received`` (models, K). A step has a fixed
    cost for each parameter; therefore parameters that are neighbours in memory become one
    parameter. All optimizers in `_JOINT` change every number by itself, so that this does not
    affect any bit.
    """

    def __init__(self, steppers: Sequence[Stepper], received: Sequence[Sequence[bool]]) -> None:
        self._steppers, self._received = tuple(steppers), list(received)
        self._runs = list[_Run]()
        joined = list[dict[str, object]]()
        for groups in zip(*(each._optimizer.param_groups for each in steppers), strict=True):
            runs = list[_Run]()
            for model, group in enumerate(groups):
                of_model, state = steppers[model], steppers[model]._optimizer.state
                places = of_model._places(self._received[model])
                for p in group["params"]:
                    if id(p) not in places:
                        continue
                    own = state.pop(p, {})
                    if not runs or not runs[-1].can_add(p, own):
                        runs.append(_Run())
                    runs[-1].add(p, own, of_model, (model, *places[id(p)]))
            joined.append(_settings_of(groups[0]) | {"params": [run.join() for run in runs]})
            self._runs += runs
        make = cast("Callable[..., Optimizer]", type(steppers[0]._optimizer))
        self._optimizer = make(joined, foreach=True)
        for run in self._runs:
            if state_of_run := run.joint_state():
                self._optimizer.state[run.joint] = state_of_run
        for each in steppers:
            each._joint = self

    def has(self, steppers: Sequence[Stepper], received: Sequence[Sequence[bool]]) -> bool:
        same = self._steppers == tuple(steppers) and self._received == received
        return same and all(run.is_whole for run in self._runs)

    def move(self, gradients: Sequence[FloatArray]) -> None:
        """Take a step along the ``gradients`` of the models."""
        settings = self._steppers[0]._optimizer.param_groups  # a scheduler may have changed them
        for group, now in zip(self._optimizer.param_groups, settings, strict=True):
            group.update(_settings_of(now) | {"foreach": True})
        for run in self._runs:
            pieces = [gradients[model][start:stop] for model, start, stop in run.places]
            gradient = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            run.joint.grad = torch.from_numpy(gradient).view(run.joint.shape)
        self._optimizer.step()
        for run in self._runs:
            run.joint.grad = None
        for each in self._steppers:  # otherwise a scheduler warns that no step was taken
            vars(each._optimizer)["_opt_called"] = True

    def part(self) -> None:
        """Give each optimizer its state back."""
        for run in self._runs:
            run.part(self._optimizer.state.get(run.joint, {}))
        for each in self._steppers:
            each._joint = None


class _Run:
    """Parameters that are neighbours in memory, with equal numbers in their optimizers' states."""

    def __init__(self) -> None:
        self.places = list[tuple[int, int, int]]()  # model, and start and stop in its gradient
        self._parameters = list[tuple[nn.Parameter, Stepper]]()
        self._states = list[dict[str, object]]()

    def can_add(self, p: nn.Parameter, state: Mapping[str, object]) -> bool:
        last, states = self._parameters[-1][0], (self._states[0], state)
        return (
            min(last.dim(), p.dim()) > 0
            and p.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
            and p.storage_offset() == last.storage_offset() + last.numel()
            and last.is_contiguous()
            and p.is_contiguous()
            and _numbers(states[0], self._parameters[0][0]) == _numbers(states[1], p)
        )

    def add(
        self,
        p: nn.Parameter,
        state: dict[str, object],
        stepper: Stepper,
        place: tuple[int, int, int],
    ) -> None:
        self._parameters.append((p, stepper))
        self._states.append(state)
        model, start, stop = place
        if self.places and self.places[-1][::2] == (model, start):
            start = self.places.pop()[1]
        self.places.append((model, start, stop))

    def join(self) -> nn.Parameter:
        """Return the parameters as one."""
        self.joint = self._parameters[0][0]
        if len(self._parameters) > 1:
            size = sum(p.numel() for p, _ in self._parameters)
            self.joint = nn.Parameter(self.joint.detach().as_strided((size,), (1,)))
        return self.joint

    @property
    def is_whole(self) -> bool:
        """True unless one of the parameters has got other memory (see `are_in`)."""
        parameters = [p for p, _ in self._parameters]
        return len(parameters) == 1 or are_in(parameters, self.joint)

    def joint_state(self) -> dict[str, object]:
        states, self._states = self._states, []
        if len(states) == 1:
            return states[0]
        joint = dict[str, object]()
        for name, first in states[0].items():
            joint[name] = first
            if isinstance(first, torch.Tensor) and first.dim():
                values = [cast("torch.Tensor", state[name]) for state in states]
                joint[name] = torch.cat([value.flatten() for value in values])
        return joint

    def part(self, state: dict[str, object]) -> None:
        """Give each parameter its part of the joint ``state``."""
        sizes = [p.numel() for p, _ in self._parameters]
        states = [dict(state) for _ in sizes]
        for name, value in state.items() if len(sizes) > 1 else ():
            if not isinstance(value, torch.Tensor):
                continue
            pieces = value.split_with_sizes(sizes) if value.dim() else [value] * len(sizes)
            for (p, _), own, piece in zip(self._parameters, states, pieces, strict=True):
                own[name] = (piece.view(p.shape) if value.dim() else piece).clone()
        for (p, stepper), own in zip(self._parameters, states, strict=True):
            if own:
                stepper._optimizer.state[p] = own


def _numbers(state: Mapping[str, object], p: nn.Parameter) -> dict[str, object]:
    """Return the values in a parameter's state.

    A tensor with axes is represented by True if it has the shape of the parameter.
    """
    return {
        name: (value.shape == p.shape if value.dim() else value.item())
        if isinstance(value, torch.Tensor)
        else value
        for name, value in state.items()
    }


def _settings_of(group: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in group.items() if name not in _OF_TENSORS}


def _make_scheduler(model: Model, optimizer: Optimizer) -> LRScheduler | None:
    if model.scheduler is None:
        return None
    rule = "must make a learning-rate scheduler of the model's optimizer ({})"
    with refusing("scheduler", rule, repr(model.scheduler)):
        scheduler: object = model.scheduler(optimizer)
    if not isinstance(scheduler, LRScheduler):
        rule = "must be a factory, optimizer -> torch.optim.lr_scheduler.LRScheduler"
        remedy = "e.g. functools.partial(torch.optim.lr_scheduler.StepLR, step_size=10)"
        raise ParameterError("scheduler", rule, scheduler, remedy)
    if isinstance(scheduler, ReduceLROnPlateau) and model.validation is None:
        rule = "must not depend on a metric if the model has no validation"
        raise ParameterError("scheduler", rule, type(scheduler).__name__, "give a `validation`")
    _require_storable("scheduler", scheduler)
    return scheduler


def call_optimizer_factory(
    factory: OptimizerFactory, parameters: Sequence[tuple[str, nn.Parameter]]
) -> object:
    """Call an optimizer factory with the pairs (name, parameter), and return its result.

    A factory with an argument ``named_parameters`` is called with a list of the pairs, any other
    factory with a list of the parameters.
    """
    try:
        takes_names = _NAMED in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable written in C has no signature
        takes_names = False
    if takes_names:
        return factory(**{_NAMED: list(parameters)})
    return factory([parameter for _, parameter in parameters])


def _make_optimizer(model: Model, parameters: ParameterVector) -> Optimizer:
    """Return the model's optimizer; raise `ParameterError` if a run cannot use it."""
    rule = "must make an optimizer of the model's parameters ({})"
    with refusing("optimizer", rule, repr(model.optimizer)):
        named = list(zip(parameters.names, parameters.tensors, strict=True))
        optimizer: object = call_optimizer_factory(model.optimizer, named)
    if not isinstance(optimizer, Optimizer):
        rule = "must be a factory, parameters -> torch.optim.Optimizer"
        remedy = "e.g. functools.partial(torch.optim.SGD, lr=0.1)"
        raise ParameterError("optimizer", rule, optimizer, remedy)
    _require_own_parameters(optimizer, parameters, model)
    if isinstance(optimizer, torch.optim.SparseAdam):
        rule = "must take dense gradients, since workers' results are combined as dense vectors"
        remedy = "use torch.optim.Adam, which also moves rows that a batch does not use"
        raise ParameterError("optimizer", rule, "SparseAdam", remedy)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ParameterError(
            "optimizer",
            "must step from one gradient, not from a closure that computes the loss again: "
            "the workers return one gradient for each step",
            type(optimizer).__name__,
            "use a first-order optimizer, e.g. torch.optim.SGD or torch.optim.Adam",
        )
    _require_storable("optimizer", optimizer)
    return optimizer


def _require_own_parameters(
    optimizer: Optimizer, parameters: ParameterVector, model: Model
) -> None:
    """Raise `ParameterError` if the optimizer has parameters that its factory did not get."""
    ids = set(map(id, parameters.tensors))
    held = [each for group in optimizer.param_groups for each in group["params"]]
    foreign = [each for each in held if id(each) not in ids]
    if foreign:
        named = ((name, each) for name, each in model.module.named_parameters())
        names = [name for name, each in named if any(each is other for other in foreign)]
        raise ParameterError(
            "optimizer",
            "must hold only the parameters that its factory is given, because the run trains a "
            "copy of the module",
            f"{type(optimizer).__name__} with {len(foreign)} others"
            + (f", such as {names[0]!r} of the original module" if names else ""),
            "to group parameters by name, give the factory an argument `named_parameters`, a list "
            "of pairs (name, parameter)",
        )


def restore_dtypes(optimizer: Optimizer, saved: object) -> None:
    """Give each tensor of the optimizer's state the dtype with which it was saved.

    `Optimizer.load_state_dict` casts all tensors except ``step`` to the dtype of their parameter.
    """
    match saved:
        case {"state": dict(states), "param_groups": list(groups)}:
            names = [name for group in groups for name in group["params"]]
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            for name, parameter in zip(names, parameters, strict=True):
                if name in states and parameter in optimizer.state:
                    state = _with_saved_dtype(optimizer.state[parameter], states[name])
                    optimizer.state[parameter] = state


def _with_saved_dtype(loaded: object, saved: object) -> object:
    match loaded, saved:
        case torch.Tensor(), torch.Tensor() if loaded.dtype != saved.dtype:
            return saved.to(loaded.device)
        case dict(), dict():
            return {k: _with_saved_dtype(each, saved.get(k)) for k, each in loaded.items()}
        case list() | tuple(), list() | tuple() if len(loaded) == len(saved):
            values = [_with_saved_dtype(*both) for both in zip(loaded, saved, strict=True)]
            return tuple(values) if isinstance(loaded, tuple) else values
    return loaded


def _require_storable(name: str, thing: Optimizer | LRScheduler) -> None:
    with refusing(name, "must have a state that a checkpoint can hold ({})", type(thing).__name__):
        pack(thing.state_dict(), {}, name=name)


def require_additive(models: Sequence[Model], *, remedy: str) -> None:
    """Raise `ParameterError` if a model cannot apply a gradient part by part.

    Steps with the parts of a gradient must change the weights in the same way as one step with the
    sum of the parts. The message contains ``remedy``.
    """
    for model in models:
        if model.gradient_clip_val is not None:
            rule = "must be left out if each part of a gradient is applied when it arrives"
            raise ParameterError("gradient_clip_val", rule, model.gradient_clip_val, remedy)
        with refusing("optimizer", "must take a step ({})", repr(model.optimizer)):
            name, at_once = _displacements(model, [3.0])
            _, in_parts = _displacements(model, [1.0, 2.0])
        largest = max(float(each.abs().max()) for each in at_once)
        for one, other in zip(at_once, in_parts, strict=True):
            if not torch.allclose(one, other, rtol=0, atol=_TOLERANCE * largest + 1e-14):
                rule = "must be plain SGD (no momentum, no weight decay), because each part of a "
                rule += "batch takes a step as soon as it arrives, and the steps of the parts must "
                rule += "add up to the step of the whole batch"
                raise ParameterError("optimizer", rule, name, remedy)


def _displacements(model: Model, gradients: Sequence[float]) -> tuple[str, list[torch.Tensor]]:
    """Return the optimizer's name, and the change of small parameters after one step per gradient.

    The parameters have the model's shapes, limited to 2 along each axis, and are filled with 1. All
    elements of a gradient are equal to the number in ``gradients``.
    """
    shapes = {tuple(min(2, d) for d in p.shape) for p in ParameterVector(model.module).tensors}
    parameters = [nn.Parameter(torch.ones(shape, dtype=torch.float64)) for shape in sorted(shapes)]
    optimizer = model.optimizer(parameters)
    for gradient in gradients:
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return type(optimizer).__name__, [p.detach() - 1.0 for p in parameters]

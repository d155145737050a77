"""Callbacks: the user's functions that are called during a run, and may stop a model or the run.

They are called on the master, in the thread that called `train`: after each step of a model, before
the model's next job begins. At the same step of a model, a callback always gets the same arguments,
whatever the workers do. Its decisions are therefore as reproducible as the callback itself. The
order between the steps of different models is not defined.

If a callback raises an error, the run ends with a checkpoint from which it can be resumed. The
error is raised only when the loop is at rest, so that no step is incomplete. The resumed run takes
the steps after the checkpoint again, and calls the callbacks for them again.

The state of a callback is in checkpoints if it has torch's two methods, ``state_dict()`` and
``load_state_dict(state)``. It is stored as JSON and tensors, not pickled, so that reading a
checkpoint runs no code.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import torch

from seqgc._durable import make_folder
from seqgc._fault import fault_of
from seqgc.errors import CallbackError, ParameterError, did_you_mean, one_line, reraise_stop
from seqgc.runs.checkpoints import save_state
from seqgc.runs.packing import pack, unpack
from seqgc.training.learner import Learner
from seqgc.training.results import Parking

if TYPE_CHECKING:
    from seqgc.training.results import TrainResult

__all__ = [
    "AfterStep",
    "Callback",
    "CallbackList",
    "CallbackState",
    "Saving",
    "StepOutput",
    "Stop",
    "Validated",
    "stateful",
]


class Stop(Enum):
    """The value that a callback returns to stop training; the weights stay as they are."""

    MODEL = "model"
    """Stop the model that the callback was called for."""
    RUN = "run"
    """Stop all models."""


class Callback:
    """The methods of a callback, which do nothing unless they are overridden.

    A callback need not be derived from this class, and may have only some of the methods. If it
    also has ``state_dict()`` and ``load_state_dict(state)``, its state is restored when a run is
    resumed. The state may contain numbers, text, None and tensors, in lists, tuples and dicts.

    Examples
    --------
    >>> class UntilGood(Callback):
    ...     def on_validation(self, model, step, metrics):
    ...         return Stop.MODEL if metrics["accuracy"] > 0.9 else None
    """

    def on_step(
        self, model: str, step: int, loss: float, metrics: Mapping[str, float]
    ) -> Stop | None:
        """Handle a step of a model; ``step`` counts from 1.

        ``loss`` is the mean loss on the batch, before the step. ``metrics`` has the learning rate
        ``lr``, and ``gradient_norm`` if gradients are clipped by their norm.
        """

    def on_validation(self, model: str, step: int, metrics: Mapping[str, float]) -> Stop | None:
        """Handle a validation after ``step`` steps; ``metrics`` has the ``loss`` and the user's."""

    def on_checkpoint(self, path: Path) -> Stop | None:
        """Handle a new checkpoint of the run, which is complete in the folder ``path``."""

    def on_end(self, result: TrainResult) -> None:
        """Handle the result of a run that has not failed, after all files have been written."""


_CALLS: Final[Mapping[str, tuple[object, ...]]] = {
    "on_step": ("model", 1, 0.0, {}),
    "on_validation": ("model", 1, {}),
    "on_checkpoint": (Path(),),
    "on_end": (None,),
}


_STATE: Final = ("state_dict", "load_state_dict")


class _Stateful(Protocol):
    def state_dict(self) -> object: ...
    def load_state_dict(self, state: object, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackState:
    """The state of a callback without its tensors, for checkpoints."""

    name: str
    state: str  # JSON of what `pack` returns


class CallbackList:
    """All callbacks of a run in order, with the first error that one of them raised.

    Raises
    ------
    ParameterError
        If a callback has none of the methods, has a method with other parameters or a similar name,
        or has a state that cannot be stored in a checkpoint.
    """

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
            raise ParameterError("callbacks", "must be a list of objects", callbacks)
        for callback in callbacks:
            try:
                _check(callback)
            except ParameterError:
                raise
            except BaseException as error:  # a property may raise anything
                reraise_stop(error)
                rule = "must have methods that can be inspected"
                raise _fault(type(callback).__name__, rule, error) from error
        self._callbacks = tuple(callbacks)
        self._failure: CallbackError | None = None
        try:
            self.snapshot({})
        except CallbackError as error:  # nothing has been begun
            rule = "must have states that a checkpoint can hold"
            raise ParameterError("callbacks", rule, error.callback, error.fault) from error

    def call(self, method: str, *arguments: object) -> Stop | None:
        """Call a method of all callbacks until one fails; return the strongest `Stop` or None."""
        stops: set[Stop] = set()
        for callback in self._callbacks:
            if self._failure is not None:
                break
            function = getattr(callback, method, None)
            if function is None:
                continue
            name = f"{type(callback).__name__}.{method}"
            try:
                answer = function(*arguments)
            except BaseException as error:
                reraise_stop(error)
                self._failure = CallbackError(name, f"raised {_why(error)}")
                self._failure.__cause__ = error
                continue
            if isinstance(answer, Stop):
                stops.add(answer)
            elif answer is not None:
                fault = f"must return None, Stop.MODEL or Stop.RUN; got {answer!r:.120}"
                self._failure = CallbackError(name, one_line(fault))
        return next((stop for stop in (Stop.RUN, Stop.MODEL) if stop in stops), None)

    def snapshot(self, tensors: dict[str, torch.Tensor]) -> list[CallbackState]:
        """Return the states of the callbacks that have one; add their tensors to ``tensors``.

        Raises
        ------
        CallbackError
            If a callback raises, or its state cannot be stored. Also if a callback has failed
            before, because the callbacks after it have not been called for this step.
        """
        states = []
        for name, callback in stateful(self._callbacks).items():
            self.require_none_failed()
            try:
                packed = pack(callback.state_dict(), tensors, name=f"callback.{name}")
                states.append(CallbackState(name=name, state=json.dumps(packed)))
            except BaseException as error:
                reraise_stop(error)
                fault = f"must return a state that a checkpoint can hold ({_why(error)})"
                self._failure = CallbackError(f"{name}.state_dict", fault)
                raise self._failure from error
        return states

    def restore(self, states: Sequence[CallbackState], tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the states of callbacks; a callback without a state in ``states`` is not changed.

        Raises
        ------
        ParameterError
            If a callback raises.
        """
        by_name = stateful(self._callbacks)
        for each in states:
            if each.name in by_name:
                try:
                    by_name[each.name].load_state_dict(unpack(json.loads(each.state), tensors))
                except BaseException as error:
                    reraise_stop(error)
                    rule = "must take back the state of the run that is resumed"
                    raise _fault(f"{each.name}.load_state_dict", rule, error) from error

    def require_none_failed(self) -> None:
        """Raise the first error of a callback as a `CallbackError` that names the callback."""
        if self._failure is not None:
            raise self._failure

    def disable(self) -> None:
        """Remove all callbacks, so that none is called."""
        self._callbacks = ()


def stateful(callbacks: Sequence[object]) -> dict[str, _Stateful]:
    """Return the callbacks that have a state, by name: ``Class``, ``Class 2`` and so on."""
    by_name, counts = dict[str, _Stateful](), Counter[str]()
    for callback in callbacks:
        if all(callable(getattr(callback, method, None)) for method in _STATE):
            kind = type(callback).__name__
            counts[kind] += 1
            name = kind if counts[kind] == 1 else f"{kind} {counts[kind]}"
            by_name[name] = cast("_Stateful", callback)
    return by_name


def _fault(name: str, rule: str, error: BaseException) -> ParameterError:
    return ParameterError("callbacks", rule, name, _why(error))


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, ParameterError) else fault_of(error)


def _check(callback: object) -> None:
    kind = callback.__name__ if inspect.isclass(callback) else type(callback).__name__
    if inspect.isclass(callback):
        rule = "must be objects, not classes"
        raise ParameterError("callbacks", rule, kind, f"give {kind}()")
    named = [name for name in dir(callback) if name.startswith("on_")]
    for name in named:
        if name not in _CALLS:
            rule = f"must have no methods on_... but {', '.join(_CALLS)}"
            raise ParameterError("callbacks", rule, f"{kind}.{name}", did_you_mean(name, _CALLS))
        try:
            inspect.signature(getattr(callback, name)).bind(*_CALLS[name])
        except (TypeError, ValueError) as error:
            like = str(inspect.signature(getattr(Callback(), name))).partition(" ->")[0]
            rule = f"must take {name}{like.replace(chr(39), '')} ({error})"
            raise ParameterError("callbacks", rule, f"{kind}.{name}") from None
    if not named:
        raise ParameterError("callbacks", f"must have one of {', '.join(_CALLS)}", kind)
    has = [method for method in _STATE if hasattr(callback, method)]
    if len(has) == 1:
        rule = f"must have both {' and '.join(_STATE)}, or neither"
        raise ParameterError("callbacks", rule, f"{kind}.{has[0]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """The validation of a model after ``step`` steps."""

    model: str
    step: int
    metrics: Mapping[str, float]

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the entry in the event log."""
        return {"model": self.model, "step": self.step, "metrics": dict(self.metrics)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saving:
    """A model's weights after ``step`` steps, which must be written to a file."""

    model: str
    step: int
    weights: Mapping[str, torch.Tensor]

    def write(self, folder: Path) -> None:
        """Write the weights to ``folder/MODEL/step-N.safetensors``; raises `OSError`."""
        if not (folder / self.model).exists():
            make_folder(folder / self.model)
        save_state(folder / self.model / f"step-{self.step}.safetensors", self.weights)


StepOutput: TypeAlias = Validated | Saving


class _Park(Protocol):
    def __call__(
        self, names: Sequence[str], *, why: str, kind: Parking = "stopped early"
    ) -> None: ...


class AfterStep:
    """The work after each step: saving weights, validation and callbacks.

    It raises no errors, because it runs between two steps: if a metric raises an error, its model
    is parked, and if a callback raises one, the error is stored in ``callbacks``. Outputs for files
    wait in ``outputs``. ``names`` are all models, and ``park`` stops the training of some of them.
    """

    def __init__(self, callbacks: Sequence[object], *, names: Sequence[str], park: _Park) -> None:
        self.callbacks: Final = CallbackList(callbacks)
        self.outputs: list[StepOutput] = []
        self._names, self._park = names, park

    def run(self, learner: Learner, *, loss: float, metrics: Mapping[str, float]) -> None:
        """Do the work after a step with this ``loss`` and these ``metrics``."""
        name, step, every = learner.model.name, learner.steps, learner.model.save_every_n_steps
        if every is not None and step % every == 0:
            self.outputs.append(Saving(model=name, step=step, weights=learner.weights()))
        self.apply_stop(self.callbacks.call("on_step", name, step, loss, metrics), name)
        if (validator := learner.validator) is None or not validator.is_due(step):
            return
        try:
            validated = learner.validate()
        except BaseException as error:  # from the user's own metric
            reraise_stop(error)
            why = f"its validation raised {fault_of(error.__cause__ or error)}"
            self._park([name], kind="raised", why=why)
            return
        self.outputs.append(Validated(model=name, step=step, metrics=validated))
        self.apply_stop(self.callbacks.call("on_validation", name, step, validated), name)
        if why := validator.verdict:
            self._park([name], why=why)

    def apply_stop(self, stop: Stop | None, model: str = "") -> None:
        """Park ``model``; if ``stop`` is for the run, or there is no ``model``, park all models."""
        if stop is Stop.MODEL and model:
            self._park([model], why="a callback stopped it")
        elif stop is not None:
            self._park(self._names, why="a callback stopped the run")

"""Callbacks: objects of the user that are called during a run, and may stop a model or the run.

All callbacks are called on the master, in the thread that called `train`. The calls for a step of a
model follow the step directly: unless gradients are applied late, they come before the next job of
the model begins. The order between the steps of different models is not defined.

If two runs of a model have the same bits, its callbacks get the same arguments at every step. Their
decisions are then as reproducible as the code of the callbacks.

If a callback raises an error, the run ends as soon as the loop is at rest, so that no step is
incomplete. The run can be resumed. If no callback has a state, a last checkpoint is written. If a
callback has a state, no last checkpoint is written, because the callbacks after the failed one have
not been called; the run then continues from the previous checkpoint. A resumed run takes the steps
after its checkpoint again, and also calls the callbacks for these steps again.

The state of a callback is in checkpoints if the callback has torch's two methods, ``state_dict()``
and ``load_state_dict(state)``. The state is stored as JSON and tensors, and not pickled. Therefore
reading a checkpoint runs no code.
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
    """The value that a callback returns to stop training. A stopped model keeps its weights."""

    MODEL = "model"
    """Stop the model that the callback was called for."""
    RUN = "run"
    """Stop all models."""


class Callback:
    """The methods of a callback, which do nothing unless they are overridden.

    A callback need not be derived from this class, and may have only some of the methods. If a
    callback also has ``state_dict()`` and ``load_state_dict(state)``, its state is restored when a
    run is resumed. The state may contain numbers, text, None and tensors, in lists, tuples and
    dicts.

    Examples
    --------
    >>> class UntilGood(Callback):
    ...     def on_validation(self, model, step, metrics):
    ...         return Stop.MODEL if metrics["accuracy"] > 0.9 else None
    """

    def on_step(
        self, model: str, step: int, loss: float, metrics: Mapping[str, float]
    ) -> Stop | None:
        """Handle a step that a model has taken. The first step has the number 1.

        ``loss`` is the mean loss on the batch, at the weights for which the step's gradient was
        computed. ``metrics`` has the learning rate of the step, ``lr``. If gradients are clipped by
        their norm, it also has ``gradient_norm``, the norm before clipping.
        """

    def on_validation(self, model: str, step: int, metrics: Mapping[str, float]) -> Stop | None:
        """Handle a validation of a model after ``step`` steps.

        ``metrics`` has the ``loss`` and the metrics that the user has defined.
        """

    def on_checkpoint(self, path: Path) -> Stop | None:
        """Handle a new checkpoint of the run. All its files are in the folder ``path``."""

    def on_end(self, result: TrainResult) -> None:
        """Handle the result of a run that did not fail. All its files have been written."""


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
    state: str  # the packed state (`pack`), as JSON


class CallbackList:
    """All callbacks of a run in order, and the first error that a callback has raised.

    Raises
    ------
    ParameterError
        If ``callbacks`` is not a list of objects. If a callback has none of the methods of
        `Callback`, a method whose parameters differ, or another method named ``on_...``. If the
        state of a callback cannot be stored in a checkpoint.
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
        """Call a method of all callbacks in order, until one fails.

        Return `Stop.RUN` if a callback has returned it, otherwise `Stop.MODEL` if a callback has
        returned it, and otherwise None. After a failure, all further calls do nothing.
        """
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
        """Return the state of each callback that has one; add the states' tensors to ``tensors``.

        Raises
        ------
        CallbackError
            If ``state_dict()`` raises an error or returns a state that cannot be stored. If at
            least one callback has a state, also if any callback has failed before: the callbacks
            after the failed one have not been called for the last step.
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
        """Restore the states of callbacks. Callbacks that ``states`` does not name do not change.

        Raises
        ------
        ParameterError
            If a callback's ``load_state_dict`` raises an error.
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
        """If a callback has failed, raise the first `CallbackError`, which names the callback."""
        if self._failure is not None:
            raise self._failure

    def disable(self) -> None:
        """Remove all callbacks, so that no callback is called any more."""
        self._callbacks = ()


def stateful(callbacks: Sequence[object]) -> dict[str, _Stateful]:
    """Return the callbacks that have a state, by name.

    The name is the name of the class. The second callback of a class ``A`` is named ``A 2``.
    """
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
            rule = f"must have no on_... methods other than {', '.join(_CALLS)}"
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
        """The fields of the validation's entry in the event log."""
        return {"model": self.model, "step": self.step, "metrics": dict(self.metrics)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saving:
    """A model's weights after ``step`` steps, which wait to be written to a file."""

    model: str
    step: int
    weights: Mapping[str, torch.Tensor]

    def write(self, folder: Path) -> None:
        """Write the weights to ``folder/MODEL/step-N.safetensors``.

        Raises `OSError` if the file cannot be written.
        """
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

    `run` raises no error of a metric or a callback, because the steps of other models may still be
    due. If a metric raises an error, its model is parked. If a callback raises an error,
    ``callbacks`` stores it. Weights and validations that must be written wait in ``outputs``.
    ``names`` has the names of all models. ``park`` is called with the names of the models whose
    training must stop.
    """

    def __init__(self, callbacks: Sequence[object], *, names: Sequence[str], park: _Park) -> None:
        self.callbacks: Final = CallbackList(callbacks)
        self.outputs: list[StepOutput] = []
        self._names, self._park = names, park

    def run(self, learner: Learner, *, loss: float, metrics: Mapping[str, float]) -> None:
        """Do the work after a step of ``learner``; callbacks get ``loss`` and ``metrics``."""
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
        """Park the models that ``stop`` stops: none for None, all for `Stop.RUN`.

        `Stop.MODEL` stops ``model``, or all models if ``model`` is empty.
        """
        if stop is Stop.MODEL and model:
            self._park([model], why="a callback stopped it")
        elif stop is not None:
            self._park(self._names, why="a callback stopped the run")

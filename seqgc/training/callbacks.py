"""Callbacks: what a user has called while a run goes on, and what they may stop.

They are called on the master, in the thread that called `train`, and in the order of each model's
steps: when a model has taken a step, before its next job begins. What they are told of a model, and
when in that model's life, is the same whatever the workers do, so what they decide is as
reproducible as they are. Between the steps of different models no order is promised.

A callback that raises ends the run, with a checkpoint from which it can be resumed: no step is left
half done, so what it raised is kept until the loop is at rest. Steps that were taken after the
checkpoint from which a run is resumed are taken again, and callbacks hear of them again.

What a callback remembers is in checkpoints if it has torch's two methods, ``state_dict()`` and
``load_state_dict(state)``. It is kept as models are, as JSON and tensors: nothing is pickled, so
that reading a checkpoint runs nobody's code.
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
    "Aftermath",
    "Callback",
    "CallbackList",
    "CallbackState",
    "News",
    "Saving",
    "Stop",
    "Validated",
    "stateful",
]


class Stop(Enum):
    """What a callback returns to have something trained no further; its weights stay."""

    MODEL = "model"
    """The model that it was called for."""
    RUN = "run"
    """All models."""


class Callback:
    """What may be called of a callback; every method does nothing unless it is overridden.

    A callback need not be derived from it, and need not have all of the methods. One that has
    ``state_dict()`` and ``load_state_dict(state)`` besides gets its state back when a run is
    resumed: numbers, text, None and tensors, in lists, tuples and dicts.

    Examples
    --------
    >>> class UntilGood(Callback):
    ...     def on_validation(self, model, step, metrics):
    ...         return Stop.MODEL if metrics["accuracy"] > 0.9 else None
    """

    def on_step(
        self, model: str, step: int, loss: float, metrics: Mapping[str, float]
    ) -> Stop | None:
        """Hear that a model has taken its ``step``-th step, from 1, on a batch of this mean loss.

        The loss is that before the step; ``metrics`` are the learning rate ``lr``, and where
        gradients are clipped by their norm the ``gradient_norm`` that this one had.
        """

    def on_validation(self, model: str, step: int, metrics: Mapping[str, float]) -> Stop | None:
        """Hear what a model's validation after ``step`` steps has come to: ``loss`` and all."""

    def on_checkpoint(self, path: Path) -> Stop | None:
        """Hear that a checkpoint of the run is on the disk, whole, in that folder."""

    def on_end(self, result: TrainResult) -> None:
        """Hear what the run came to, if nothing has failed it; all files are written."""


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
    """What a callback remembers, apart from tensors: for checkpoints."""

    name: str
    state: str  # JSON of what `pack` returns


class CallbackList:
    """Calls all callbacks, in their order, and keeps what the first one raises.

    Raises
    ------
    ParameterError
        If one has none of the methods, one that is called otherwise, or one of a similar name; or
        a state that no checkpoint can hold.
    """

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
            raise ParameterError("callbacks", "must be a list of objects", callbacks)
        for callback in callbacks:
            try:
                _check(callback)
            except ParameterError:
                raise
            except BaseException as error:  # of anybody's property
                reraise_stop(error)
                rule = "must have methods that can be looked at"
                raise _fault(type(callback).__name__, rule, error) from error
        self._callbacks = tuple(callbacks)
        self._failure: CallbackError | None = None
        try:
            self.snapshot({})
        except CallbackError as error:  # nothing has been begun
            rule = "must have states that a checkpoint can hold"
            raise ParameterError("callbacks", rule, error.callback, error.fault) from error

    def call(self, method: str, *arguments: object) -> Stop | None:
        """Return the furthest-reaching stop of all; whoever comes after a failure is not called."""
        said: set[Stop] = set()
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
                said.add(answer)
            elif answer is not None:
                fault = f"must return None, Stop.MODEL or Stop.RUN; got {answer!r:.120}"
                self._failure = CallbackError(name, one_line(fault))
        return next((stop for stop in (Stop.RUN, Stop.MODEL) if stop in said), None)

    def snapshot(self, tensors: dict[str, torch.Tensor]) -> list[CallbackState]:
        """Return the states of those that have one; their tensors go into ``tensors``.

        CallbackError if one raises, or has what cannot be kept, which is a failure like any other;
        or if one has failed before: not all of them have heard of the step that it failed at.
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
        """Give callbacks back what they remembered; those that had no state begin anew.

        ParameterError if one raises.
        """
        there = stateful(self._callbacks)
        for each in states:
            if each.name in there:
                try:
                    there[each.name].load_state_dict(unpack(json.loads(each.state), tensors))
                except BaseException as error:
                    reraise_stop(error)
                    rule = "must take back the state of the run that is resumed"
                    raise _fault(f"{each.name}.load_state_dict", rule, error) from error

    def require_none_failed(self) -> None:
        """Raise what a callback has raised, as a `CallbackError` that names it."""
        if self._failure is not None:
            raise self._failure

    def mute(self) -> None:
        """Call none of them any more."""
        self._callbacks = ()


def stateful(callbacks: Sequence[object]) -> dict[str, _Stateful]:
    """Return the callbacks that have a state, by their class, and by number from the second on."""
    found, seen = dict[str, _Stateful](), Counter[str]()
    for callback in callbacks:
        if all(callable(getattr(callback, method, None)) for method in _STATE):
            kind = type(callback).__name__
            seen[kind] += 1
            name = kind if seen[kind] == 1 else f"{kind} {seen[kind]}"
            found[name] = cast("_Stateful", callback)
    return found


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
    """A model has been validated."""

    model: str
    step: int  # how many it had taken
    metrics: Mapping[str, float]

    @property
    def fields(self) -> dict[str, object]:
        """What the event log has of it."""
        return {"model": self.model, "step": self.step, "metrics": dict(self.metrics)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saving:
    """A model's weights are to be kept."""

    model: str
    step: int
    weights: Mapping[str, torch.Tensor]

    def write(self, folder: Path) -> None:
        """Write the weights to ``folder/MODEL/step-N.safetensors``; raises `OSError`."""
        if not (folder / self.model).exists():
            make_folder(folder / self.model)
        save_state(folder / self.model / f"step-{self.step}.safetensors", self.weights)


News: TypeAlias = Validated | Saving


class _Park(Protocol):
    def __call__(
        self, names: Sequence[str], *, why: str, kind: Parking = "stopped early"
    ) -> None: ...


class Aftermath:
    """Does what is due after each step; ``park`` leaves models, of all the ``names``, as they are.

    It runs between two steps, so nothing in it may raise: what a metric raises parks its model,
    what a callback raises is kept in ``callbacks``. What belongs on the disk waits in ``news``.
    """

    def __init__(self, callbacks: Sequence[object], *, names: Sequence[str], park: _Park) -> None:
        self.callbacks: Final = CallbackList(callbacks)
        self.news: list[News] = []
        self._names, self._park = names, park

    def follow(self, learner: Learner, *, loss: float, about: Mapping[str, float]) -> None:
        """Do what is due now that a model has taken a step, of which ``about`` tells."""
        name, step, every = learner.model.name, learner.steps, learner.model.save_every_n_steps
        if every is not None and step % every == 0:
            self.news.append(Saving(model=name, step=step, weights=learner.weights()))
        self.obey(self.callbacks.call("on_step", name, step, loss, about), name)
        if (validator := learner.validator) is None or not validator.is_due(step):
            return
        try:
            metrics = learner.validate()
        except BaseException as error:  # of one's own metric
            reraise_stop(error)
            why = f"its validation raised {fault_of(error.__cause__ or error)}"
            self._park([name], kind="raised", why=why)
            return
        self.news.append(Validated(model=name, step=step, metrics=metrics))
        self.obey(self.callbacks.call("on_validation", name, step, metrics), name)
        if why := validator.verdict:
            self._park([name], why=why)

    def obey(self, stop: Stop | None, model: str = "") -> None:
        """Stop what a callback has stopped; a run is stopped if there is no ``model`` to stop."""
        if stop is Stop.MODEL and model:
            self._park([model], why="a callback stopped it")
        elif stop is not None:
            self._park(self._names, why="a callback stopped the run")

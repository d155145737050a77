"""Callbacks: what a user has called while a run goes on, and what they may stop.

They are called on the master, in the thread that called `train`, and in the order of each model's
steps: when a model has taken a step, before its next job begins. What they are told of a model, and
when in that model's life, is the same whatever the workers do, so what they decide is as
reproducible as they are. Between the steps of different models no order is promised.

A callback that raises ends the run, with a checkpoint from which it can be resumed: no step is left
half done, so what it raised is kept until the loop is at rest. Steps that were taken after the
checkpoint from which a run is resumed are taken again, and callbacks hear of them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, did_you_mean

if TYPE_CHECKING:
    from seqgc.training.run import TrainResult

__all__ = ["Callback", "CallbackList", "Stop"]


class Stop(Enum):
    """What a callback returns to have something trained no further; its weights stay."""

    MODEL = "model"
    """The model that it was called for."""
    RUN = "run"
    """All models."""


class Callback:
    """What may be called of a callback; every method does nothing unless it is overridden.

    A callback need not be derived from it, and need not have all of the methods.

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


class CallbackList:
    """Calls all callbacks, in their order, and keeps what the first one raises.

    Raises
    ------
    ParameterError
        If one has none of the methods, one that is called otherwise, or one of a similar name.
    """

    def __init__(self, callbacks: Sequence[object] = ()) -> None:
        for callback in callbacks:
            _check(callback)
        self._callbacks = tuple(callbacks)
        self._failure: ParameterError | None = None

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
            except Exception as error:
                self._failure = ParameterError("callbacks", "must not raise", name, fault_of(error))
                self._failure.__cause__ = error
                continue
            if isinstance(answer, Stop):
                said.add(answer)
            elif answer is not None:
                rule = f"must return None, Stop.MODEL or Stop.RUN, {name} too"
                self._failure = ParameterError("callbacks", rule, answer)
        return next((stop for stop in (Stop.RUN, Stop.MODEL) if stop in said), None)

    def require_none_failed(self) -> None:
        """Raise what a callback has raised, a `ParameterError` that names it."""
        if self._failure is not None:
            raise self._failure

    def mute(self) -> None:
        """Call none of them any more."""
        self._callbacks = ()


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

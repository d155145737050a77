"""What follows a model's step: callbacks, validation, weights to keep, and perhaps its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch

from seqgc._durable import make_folder
from seqgc._fault import fault_of
from seqgc.errors import reraise_stop
from seqgc.training._learner import Learner
from seqgc.training.callbacks import CallbackList, Stop
from seqgc.training.checkpoints import save_state
from seqgc.training.parked import Parking

__all__ = ["Aftermath", "News", "Saving", "Validated"]


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

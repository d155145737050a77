"""How far training came, and when: what every training in virtual time keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np

from seqgc.ports import FloatArray, WeightedPoints, Workload
from seqgc.rounds import Setting

__all__ = ["Curve", "EnoughError", "LossWatch", "Trainees", "TrialWorkload"]


class EnoughError(Exception):
    """Ends a run: its models have all come to the target, or it takes too long, or one failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """How far training was after how much data: ``clocks`` and ``losses`` (points,), of the worst.

    A clock is a batch of one model; ``at_s`` (points,) is when it was applied. ``failed`` says
    which model ended the run, and why, if one did.
    """

    clocks: FloatArray
    losses: FloatArray
    at_s: FloatArray
    failed: str = ""

    def reaches(self, target: float) -> int | None:
        """Return the first point at which the loss is at most ``target``; None: never."""
        found = np.flatnonzero(self.losses <= target)
        return int(found[0]) if len(found) else None

    def point(self, index: int) -> tuple[float, float]:
        """Return when a point was, seconds, and after how many clocks."""
        return float(self.at_s[index]), float(self.clocks[index])


class LossWatch:
    """Looks at the losses of all models each time that another clock of data is applied.

    ``loss`` returns that of the worst model. Once it is at most ``target``, or after ``until_s``,
    `EnoughError` ends the run; ``now`` is to be set to what says the time.
    """

    def __init__(self, loss: Callable[[], float], *, target: float, until_s: float) -> None:
        self.now: Callable[[], float] = lambda: 0.0
        self._loss, self._target, self._until_s = loss, target, until_s
        self._applied = 0.0  # clocks of data, of all models
        self._points: list[tuple[float, float, float]] = []  # clocks, loss, seconds
        self._failed = ""

    def apply(self, clocks: float) -> None:
        """Note that so much data has been applied."""
        before = math.floor(self._applied + 1e-9)
        self._applied += clocks
        if math.floor(self._applied + 1e-9) == before:
            return
        worst, now = self._loss(), self.now()
        self._points.append((self._applied, worst, now))
        if worst <= self._target or now >= self._until_s:
            raise EnoughError

    def fail(self, model: str, why: str) -> NoReturn:
        """End the run: a model has failed."""
        self._failed = f"{model}: {why}"
        raise EnoughError

    def curve(self) -> Curve:
        """Return what the run came to."""
        clocks, losses, at_s = np.array(self._points).reshape(-1, 3).T
        return Curve(clocks=clocks, losses=losses, at_s=at_s, failed=self._failed)


class TrialWorkload(Workload, Protocol):
    """A workload whose results are computed at once, and whose losses are watched.

    ``staleness`` are, of each mini-task asked for and each of its models, the clocks whose updates
    its weights lack.
    """

    @property
    def watch(self) -> LossWatch: ...

    @property
    def staleness(self) -> Sequence[float]: ...

    def compute(self, parts: tuple[WeightedPoints, ...], /) -> FloatArray: ...


class Trainees(Protocol):
    """Models that are trained, on batches drawn with some seed."""

    @property
    def models(self) -> int:
        """How many there are."""

    def check(self, setting: Setting) -> None:
        """Refuse a defence that they cannot be trained by, with `ParameterError`."""

    def workload(
        self, setting: Setting, *, lr: float, target: float, until_s: float, most: int
    ) -> TrialWorkload:
        """Return a training from the start, of ``most`` steps of each model."""

    def loss(self) -> float:
        """Return the loss of the worst before any step."""

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        """Return the steps that exact gradients take until all are at the target.

        Infinite: more than ``most``. `ModelError`: one has failed before.
        """

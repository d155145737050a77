"""Apps on tables (`seqgc.tables.App`), which are run in virtual time in the same way as live."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqgc.comparison._training import LossWatch, PacedWorkers, Race, WorkloadTrial, trained
from seqgc.errors import ModelError, ParameterError
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints
from seqgc.profiles import ByRound
from seqgc.rounds import Setting
from seqgc.schemes import Uncoded
from seqgc.stores import MemoryStore
from seqgc.tables import (
    App,
    TableWorker,
    TableWorkload,
    first_tables,
    measured,
    require_fit,
)

__all__ = ["AppTrainees"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AppTrainees:
    """An app, run with a ``seed`` on ``n`` workers; a learning rate multiplies its own step size.

    The loss is the app's objective. A clock is a pass over all items. Exact defences that cut the
    items into one chunk for each worker need as many clocks as ``uncoded``. Other exact defences
    are run themselves, because every chunk begins with the tables of the clock before.
    """

    app: App
    n: int
    seed: int = 0

    @property
    def models(self) -> int:
        return 1

    def check(self, setting: Setting) -> None:
        if setting.jobs_per_round > 1:
            rule = "must be 1 for an app, which is a single program"
            raise ParameterError("jobs_per_round", rule, setting.jobs_per_round)
        require_fit(self.app, setting.scheme)

    def runs(
        self,
        setting: Setting,
        trainings: Sequence[tuple[AppTrainees, float]],
        *,
        target: float,
        most: int,  # noqa: ARG002 (the loop ends after them)
        race: Race,
    ) -> Iterator[AppTrial]:
        for number, (trainees, rate) in enumerate(trainings):
            rated = replace(trainees, app=trainees._rated(rate))
            yield AppTrial(rated, setting, target=target, race=race, number=number)

    def loss(self) -> float:
        return measured(self.app, *first_tables(self.app, seed=self.seed))

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        return self._steps(Setting(scheme=Uncoded(n=self.n)), lr=lr, target=target, most=most)

    def steps_of(
        self, setting: Setting, exact: float, *, lr: float, target: float, most: int
    ) -> float:
        items = self.app.items
        if np.array_equal(setting.scheme.cut(items), Uncoded(n=self.n).cut(items)):
            return exact
        try:
            return self._steps(setting, lr=lr, target=target, most=most)
        except ModelError:
            return math.inf

    def _steps(self, setting: Setting, *, lr: float, target: float, most: int) -> float:
        pace = ByRound(latencies_s=np.zeros((1, self.n)), rates=np.ones((1, self.n)))
        workers = PacedWorkers(pace=pace, kind="resident")
        curve = trained(setting, workers, [(self, lr)], target=target, most=most)[0].curve
        if curve.failed:
            name, _, why = curve.failed.partition(": ")
            raise ModelError({name: why})
        at = curve.reaches(target)
        return math.inf if at is None else round(curve.clocks[at])

    def _rated(self, factor: float) -> App:
        if factor == 1:
            return self.app
        rated: Any = getattr(self.app, "rated", None)
        if rated is None:
            rule = f"must be 1: {type(self.app).__name__} has no method `rated`, so no step size"
            raise ParameterError("lr", rule, factor)
        app: App = rated(factor)
        return app


class AppTrial(WorkloadTrial[TableWorkload]):
    """A run of an app whose objective is recorded; a `TrialTrainings`.

    If the app raises an error, or its changes are not finite, the run ends before the target.
    """

    def __init__(
        self, of: AppTrainees, setting: Setting, *, target: float, race: Race, number: int
    ) -> None:
        app, items, store = of.app, of.app.items, MemoryStore()
        self._app = app
        self._layout, vector = first_tables(app, seed=of.seed)
        self._inner = TableWorkload(vector, setting.scheme, items=items, store=store)
        self.compute = TableWorker(
            app=app,
            shapes=self._layout.shapes,
            store=store,
            starts=self._inner.starts,
            seed=of.seed,
            passes=1,
        )()
        self._in_parts, self._applied = setting.scheme.kind == "stale", 0.0
        self.watch = LossWatch(self._losses, target=target, race=race, numbers=(number,))
        self.staleness: list[float] = []

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        if self._in_parts:
            self.staleness.append(max(0.0, mini_task.job - self._applied))
        return self._inner.resolve(mini_task)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self._inner.finish(decoding, gradient)
        self._applied += decoding.share
        self.watch.apply(decoding.share)

    def _losses(self) -> FloatArray:
        return np.array([measured(self._app, self._layout, self._inner.vector)])

"""Torch models, which are trained in virtual time in the same way as by `seqgc.train`.

Batches, steps, schedulers and staleness are the same as in a live run, but the time of each answer
comes from the virtual clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from seqgc._fault import fault_of
from seqgc.comparison._training import LossWatch, PacedWorkers, Race, WorkloadTrial, trained
from seqgc.errors import ModelError, ParameterError, reraise_stop
from seqgc.models.model import OptimizerFactory
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints
from seqgc.profiles import ByRound
from seqgc.rounds import PolicyDefence, Setting
from seqgc.schemes import Defence, Uncoded
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchCompute, TrainingPlan, Updates, evaluate
from seqgc.training.plan import PlannedRun
from seqgc.training.workload import ModelsWorkload

__all__ = ["TorchTrainees"]

_STREAM = 1_000_003  # distance between the seeds of batches, so that all models' seeds differ


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchTrainees:
    """The models of a ``plan``, trained on batches that depend on ``seed`` >= 0.

    For seed 0, the batches are the models' own. ``lr`` is a factor of each model's own learning
    rate. Losses are means over a model's test data, or over its training data if it has no test
    data.
    """

    plan: TrainingPlan
    seed: int = 0

    @property
    def models(self) -> int:
        return len(self.plan.models)

    def runs(
        self,
        setting: Setting,
        trainings: Sequence[tuple[TorchTrainees, float]],
        *,
        target: float,
        most: int,
        race: Race,
    ) -> Iterator[TorchTrial]:
        for number, (trainees, rate) in enumerate(trainings):
            plan = trainees._plan(setting, lr=rate, most=most)
            trial = TorchTrial(plan, setting, target=target, race=race, number=number)
            trial.require_steps(most)
            yield trial

    def loss(self) -> float:
        setting = Setting(scheme=Uncoded(n=1), jobs_per_round=self.models)
        plan = self._plan(setting, lr=1.0, most=1)
        return TorchTrial(plan, setting, target=math.inf, race=Race()).loss()

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        setting = Setting(scheme=Uncoded(n=1), jobs_per_round=self.models)
        pace = ByRound(latencies_s=np.zeros((1, 1)), rates=np.ones((1, 1)))
        alone = PacedWorkers(pace=pace, kind="resident")
        curve = trained(setting, alone, [(self, lr)], target=target, most=most)[0].curve
        if curve.failed:
            name, _, why = curve.failed.partition(": ")
            raise ModelError({name: why})
        at = curve.reaches(target)
        return math.inf if at is None else round(curve.clocks[at] / self.models)

    def check(self, setting: Setting) -> None:
        self._plan(setting, lr=1.0, most=1).on(setting.scheme.n)

    def steps_of(self, setting: Setting, exact: float, **_: float) -> float:  # noqa: ARG002
        """Return ``exact``, because all exact defences compute the same gradients."""
        return exact

    def _plan(self, setting: Setting, *, lr: float, most: int) -> TrainingPlan:
        models = [self._model(model, lr) for model in self.plan.models]
        return TrainingPlan(
            models=models,
            scheme=setting,
            steps=most,
            precision=self.plan.precision,
            updates=self._updates(setting.scheme, models),
        )

    def _model(self, model: Model, lr: float) -> Model:
        return replace(
            model,
            optimizer=_Rated(model.optimizer, lr),
            seed=model.seed + _STREAM * self.seed,
            validation=None,
            save_every_n_steps=None,
        )

    def _updates(self, defence: Defence, models: Sequence[Model]) -> Updates | None:
        """Return the plan's updates, or the default for the defence and the optimizers.

        The default applies each part of a batch at once if the optimizers support this.
        """
        if not isinstance(defence, PolicyDefence) or defence.kind != "stale":
            return None
        if self.plan.updates is not None:
            return self.plan.updates
        usual = Updates()
        try:
            usual.require_fit(models, defence)
        except ParameterError:
            return Updates(apply="clock")
        return usual


class TorchTrial(WorkloadTrial[ModelsWorkload]):
    """A training of torch models whose losses are recorded; a `TrialTrainings`.

    If a model diverges, or its code raises an error, the training ends before the target.
    """

    def __init__(
        self, plan: TrainingPlan, setting: Setting, *, target: float, race: Race, number: int = 0
    ) -> None:
        store, self._models = MemoryStore(), plan.models
        self._inner = PlannedRun(plan=plan, setting=setting).workload(store=store)
        self.compute = TorchCompute(
            [model.objective for model in plan.models],
            store=store,
            precision=plan.precision,
            cached_weights=0,  # the store is in memory
        )
        self._in_parts = setting.scheme.kind == "stale"
        self._bundle = setting.jobs_per_round
        self._applied = [0.0] * len(plan.models)  # steps of each, as shares of a batch
        self._losses: dict[int, tuple[float, float]] = {}  # by model: steps and loss
        self.watch = LossWatch(
            lambda: np.array([self.loss()]), target=target, race=race, numbers=(number,)
        )
        self.staleness: list[float] = []

    def require_steps(self, steps: int) -> None:
        """Raise `ParameterError` if a learning-rate schedule ends before ``steps`` steps."""
        self._inner.require_steps(steps)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        job = mini_task.job
        if self._in_parts:
            step = job * self._bundle // len(self._models)
            self.staleness += [max(0.0, step - self._applied[i]) for i in self._members(job)]
        return self._inner.resolve(mini_task)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self._inner.finish(decoding, gradient)
        for name, parked in self._inner.parked.items():
            self.watch.fail(name, parked.why)
        for index in self._members(decoding.job):
            self._applied[index] += decoding.share
        self.watch.apply(decoding.share * self._bundle)

    def _members(self, job: int) -> range:
        first = job * self._bundle % len(self._models)
        return range(first, first + self._bundle)

    def loss(self) -> float:
        """Return the current loss of the worst model."""
        return max(self._loss_of(index) for index in range(len(self._models)))

    def _loss_of(self, index: int) -> float:
        model, applied = self._models[index], self._applied[index]
        after, loss = self._losses.get(index, (math.nan, math.nan))
        if after != applied:
            try:
                scores = evaluate(
                    self._inner.module(model.name),
                    loss=model.loss,
                    dataset=model.test_dataset or model.dataset,
                    autocast=model.autocast,
                )
            except BaseException as error:  # raised by the user's code
                reraise_stop(error)
                self.watch.fail(model.name, f"its evaluation raised {fault_of(error)}")
            loss = scores.loss
            self._losses[index] = applied, loss
        return loss


@dataclass(frozen=True, slots=True)
class _Rated:
    """An optimizer factory that multiplies the learning rates of another factory by ``factor``."""

    make: OptimizerFactory
    factor: float

    def __call__(self, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = self.make(parameters)
        for group in optimizer.param_groups:
            group["lr"] *= self.factor
        return optimizer

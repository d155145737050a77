"""`ModelsWorkload`: what training several models in turns has in common, whatever defends it.

It knows the models: whose turn a job is, what each has learned, who is parked and why, what follows
a step. When a gradient reaches the weights, and which weights a task reads, is a subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import nn

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, StoreError, one_line, reraise_stop
from seqgc.ports import (
    Decoding,
    FloatArray,
    MiniTask,
    ResultForm,
    WeightedPoints,
    WeightRef,
    WeightStore,
)
from seqgc.training._aftermath import Aftermath
from seqgc.training._forms import one_of_each
from seqgc.training._jobs import JobPlan, Share
from seqgc.training._learner import Learner, LearnerState, Tensors
from seqgc.training._result import LossSums, ModelResult
from seqgc.training._soundness import require_sound
from seqgc.training._survival import try_first
from seqgc.training._turns import TurnsState
from seqgc.training._work import batch_sizes
from seqgc.training.callbacks import CallbackState
from seqgc.training.metrics import JobMetrics
from seqgc.training.model import Precision, torch_dtype
from seqgc.training.parked import Parked, Parking
from seqgc.training.validation import Best, require_valid

__all__ = ["FLIGHT", "ModelsWorkload", "PartsState", "WorkloadState"]

FLIGHT: Final = "flight.safetensors"
"""The file of a checkpoint that holds what belongs to no model alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsState:
    """What is known of a job whose parts are applied by themselves, apart from tensors."""

    of: int  # how many parts it has; 0: not known yet
    losses: dict[int, list[LossSums]]  # by part that is in: what each model's loss has of it
    sums: list[tuple[int, int]]  # of parts that wait for others to be added up (`TreeSum`)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """What a workload knows, apart from tensors: for checkpoints."""

    begun: int  # jobs
    unapplied: list[int]  # jobs whose gradients have not been applied, in order
    in_flight: dict[int, list[int]]  # the versions of weights that a job uses, one a model
    models: list[LearnerState]
    turns: TurnsState
    parked: dict[str, Parked]
    idle_from: dict[str, int]  # the first job without a parked model
    callbacks: list[CallbackState]
    parts: dict[int, PartsState] = field(default_factory=dict)  # by job that has begun


class ModelsWorkload(ABC):
    """Trains the models of a ``plan``, job by job; a `seqgc.ports.Workload`.

    The models' modules are copied. Raises `ParameterError` if a model's gradient is not a sum over
    chunks, or its validation cannot be made.
    """

    def __init__(
        self,
        plan: JobPlan,
        *,
        store: WeightStore,
        precision: Precision,
        callbacks: Sequence[object],
    ) -> None:
        torch_dtype(precision)
        self._plan: Final = plan
        for model in one_of_each(plan.models):
            try_first(model, partial(require_sound, precision=precision))
        require_valid(plan.models)
        self._precision: Final = precision
        self._learners = [Learner(m, store=store, precision=precision) for m in plan.models]
        self._by_name = {learner.model.name: learner for learner in self._learners}
        self._begun = 0
        self.metrics: list[JobMetrics] = []  # of finished jobs, in their order, until taken
        self.aftermath: Final = Aftermath(callbacks, names=self.names, park=self.park)
        self._parked: dict[str, Parked] = {}
        self._idle_from: dict[str, int] = {}

    # ---- what a subclass decides ----------------------------------------------------------------

    @abstractmethod
    def needs(self, job: int, finished: int) -> bool: ...

    @abstractmethod
    def begin(self, job: int) -> None: ...

    @abstractmethod
    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]: ...

    @abstractmethod
    def finish(self, decoding: Decoding, gradient: FloatArray) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """End the run: apply every gradient that is left, in order, and discard all weights.

        ScheduleError if a job has begun and not finished; nothing is applied then.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Discard all weights, whatever has not been decoded; harmless if done already."""

    @abstractmethod
    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        """Return copies of all that training has made, and the tensors by file and name."""

    @abstractmethod
    def _restore_jobs(self, state: WorkloadState, flight: Tensors) -> None:
        """Know the jobs of a snapshot that have begun and are not over; the models are known."""

    # ---- the models -----------------------------------------------------------------------------

    def take_metrics(self) -> list[JobMetrics]:
        """Return `metrics`, which are forgotten here."""
        taken, self.metrics = self.metrics, []
        return taken

    def best(self) -> dict[str, tuple[Best, Tensors]]:
        """Return, by model, the best validation and the weights then, where there was one."""
        followed = [(m.model.name, m.validator) for m in self._learners if m.validator is not None]
        return {name: (v.state.best, v.weights) for name, v in followed if v.state.best is not None}

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes of the models' batches, each once."""
        return batch_sizes(self._plan.models)

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, in the order in which they take turns."""
        return tuple(model.name for model in self._plan.models)

    @property
    def unremoved(self) -> str:
        """Why weights that nobody needs could not be removed, the first time; empty: all could."""
        return next((each.unremoved for each in self._learners if each.unremoved), "")

    def require_steps(self, steps: int) -> None:
        """Refuse a model whose learning-rate schedule is over before so many steps."""
        for learner in self._learners:
            learner.stepper.require_steps(steps)

    def result_form(self, job: int) -> ResultForm:
        """Return the form of a job's results: one model after the other, in the run's precision."""
        layouts = [each.layout for each in self._bundle(job)]
        starts = np.cumsum([0, *(each.size for each in layouts)]).tolist()
        marks = [
            slice(start + each.marks.start, start + each.marks.stop)
            for start, each in zip(starts, layouts, strict=False)
        ]
        return ResultForm(np.dtype(self._precision), starts[-1], tuple(marks))

    def module(self, name: str) -> nn.Module:
        """Return a model's module as trained so far; it is the run's own, to be read only."""
        return self._learner(name).module

    def _learner(self, name: str) -> Learner:
        if name not in self._by_name:
            raise ParameterError("name", f"must be one of {', '.join(self.names)}", name)
        return self._by_name[name]

    def park(self, names: Sequence[str], *, why: str, kind: Parking = "stopped early") -> None:
        """Leave these models as they are: none of their gradients is applied any more.

        In jobs that begin from now on nothing is computed for them. Those in flight stay as they
        were asked for, since all results of a job are to be made alike. A model that is parked
        stays parked, for the reason that it was parked for at first. ``why`` is one line.
        """
        for name in names:
            steps = self._learner(name).steps
            if name not in self._parked:
                self._parked[name] = Parked(kind=kind, why=one_line(why), step=steps)
                self._idle_from[name] = self._begun
                self._plan.park(name)

    def unused(self, job: int) -> list[slice]:
        """Return which parts of a job's results, and of its gradient, are of parked models."""
        bundle = self._bundle(job)
        ends = np.cumsum([each.layout.size for each in bundle]).tolist()
        return [
            slice(end - each.layout.size, end)
            for each, end in zip(bundle, ends, strict=True)
            if each.model.name in self._parked
        ]

    @property
    def num_jobs(self) -> int | None:
        """How many jobs there are in all; None as long as there is somebody for more of them."""
        return self._plan.turns.num_jobs

    @property
    def bundles_left(self) -> int:
        """How many bundles have a model that is not parked."""
        return self._plan.bundles_left

    @property
    def parked(self) -> Mapping[str, Parked]:
        """The models that are trained no further, in the order in which they were parked."""
        return MappingProxyType(self._parked)

    # ---- what has come of a job -----------------------------------------------------------------

    def _vector(self, job: int, gradient: FloatArray) -> FloatArray:
        """Return a decoded gradient in the run's precision; refuse one of another size."""
        dtype, size, _ = self.result_form(job)
        if gradient.shape != (size,):
            rule = f"of job {job} must have shape ({size},)"
            raise ParameterError("gradient", rule, gradient.shape)
        return np.array(gradient, dtype=dtype)

    def _results(self, job: int, gradient: FloatArray) -> list[tuple[Learner, ModelResult]]:
        """Return each model of a job with its result; gradients are views where possible."""
        bundle = self._bundle(job)
        ends = np.cumsum([learner.layout.size for learner in bundle])
        vectors = np.split(gradient, ends[:-1])
        return [(m, m.layout.read(each)) for m, each in zip(bundle, vectors, strict=True)]

    def _park_overflown(self, results: Sequence[tuple[Learner, ModelResult]]) -> None:
        overflown = [m.model.name for m, result in results if not result.is_finite]
        self.park(overflown, kind="diverged", why="the sum of its finite results overflows")

    def _note(self, job: int, losses: Sequence[float]) -> None:
        """Keep the metrics of a finished job, whose models' losses these are."""
        step = self._plan.turns[job].step or 0
        self.metrics += [
            JobMetrics(job=job, model=learner.model.name, step=step, loss=float(loss))
            for learner, loss in zip(self._bundle(job), losses, strict=True)
            if learner.model.name not in self._parked
        ]

    def _park_raised(self, learner: Learner, error: BaseException, what: str = "its step") -> None:
        """Park a model whose own optimizer or scheduler has raised."""
        reraise_stop(error)
        why = f"{what} raised {fault_of(error)}"
        self.park([learner.model.name], kind="raised", why=why)

    def _step(self, learner: Learner, result: ModelResult, *, loss: float) -> None:
        try:
            about = learner.apply(result)
        except BaseException as error:
            self._park_raised(learner, error)
        else:
            self.aftermath.follow(learner, loss=loss, about=about)

    def _share(self, index: int, job: int, weights: WeightRef) -> Share:
        learner = self._learners[index]
        idle = self._idle_from.get(learner.model.name, job + 1) <= job
        return self._plan.share(
            index,
            job=job,
            weights=weights,
            queue=learner.queue,
            pieces=learner.layout.pieces,
            idle=idle,
        )

    def _bundle(self, job: int) -> list[Learner]:
        return [self._learners[index] for index in self._plan.bundle(job)]

    # ---- checkpoints ----------------------------------------------------------------------------

    def _snapshot(
        self,
        flight: dict[str, torch.Tensor],
        *,
        unapplied: list[int],
        in_flight: Mapping[int, Sequence[Share]],
        parts: dict[int, PartsState],
    ) -> tuple[WorkloadState, dict[str, Tensors]]:
        """Return a snapshot of the models, and of these jobs, to whose tensors theirs are added."""
        for job, shares in in_flight.items():
            for learner, share in zip(self._bundle(job), shares, strict=True):
                name = _version_name(learner, share.weights.version)
                if name not in flight:
                    flight[name] = torch.from_numpy(np.array(learner.version(share.weights)))
        files: dict[str, Tensors] = {FLIGHT: flight}
        models = []
        for learner in self._learners:
            try:
                learned, of_it = learner.snapshot()
            except BaseException as error:  # of the user's own optimizer or scheduler
                self._park_raised(learner, error, "its optimizer's or scheduler's state")
                learned, of_it = learner.snapshot(forgetful=True)
            models.append(learned)
            files |= of_it
        versions = {j: [s.weights.version for s in each] for j, each in in_flight.items()}
        state = WorkloadState(
            begun=self._begun,
            unapplied=unapplied,
            in_flight=versions,
            models=models,
            callbacks=self.aftermath.callbacks.snapshot(flight),
            parked=dict(self._parked),
            idle_from=dict(self._idle_from),
            turns=self._plan.turns.snapshot(),
            parts=parts,
        )
        return state, files

    def restore(self, state: WorkloadState, files: Mapping[str, Tensors]) -> None:
        """Be as the workload of which this is a snapshot; publishes the weights in flight again.

        Raises
        ------
        StoreError
            If it is of other models.
        ParameterError
            If a callback does not take its state back.
        """
        try:
            for learner, learned in zip(self._learners, state.models, strict=True):
                learner.restore(learned, files)
            self._begun = state.begun
            self._parked, self._idle_from = dict(state.parked), dict(state.idle_from)
            self._plan.turns.restore(state.turns)
            for name in state.parked:
                self._plan.park(name)
            self._restore_jobs(state, files[FLIGHT])
        except (OSError, StoreError):
            raise
        except BaseException as error:  # also of the user's own optimizer or scheduler
            reraise_stop(error)
            message = f"the checkpoint is of other models: {fault_of(error)}"
            raise StoreError(message) from error
        self.aftermath.callbacks.restore(state.callbacks, files[FLIGHT])

    def _restored(self, job: int, versions: Sequence[int], flight: Tensors) -> tuple[Share, ...]:
        """Publish the weights of a job in flight again; return its models' shares."""
        shares = []
        for index, version in zip(self._plan.bundle(job), versions, strict=True):
            learner = self._learners[index]
            vector = flight[_version_name(learner, version)].numpy()
            shares.append(self._share(index, job, learner.republish(version, vector)))
        return tuple(shares)


def _version_name(learner: Learner, version: int) -> str:
    return f"weights.{learner.model.name}.{version}"

"""The workload of a training run: it fixes each job's batch and weights, and applies gradients.

`ModelsWorkload` has the models. `TorchWorkload` trains them with whole gradients, and
`seqgc.training.stale.StaleWorkload` with gradients that arrive in parts.
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
from seqgc.errors import ParameterError, ScheduleError, StoreError, one_line, reraise_stop
from seqgc.models.evaluation import Best, require_valid
from seqgc.models.model import Model, distinct_models
from seqgc.models.precision import Precision, torch_dtype
from seqgc.models.results import LossSums, ModelResult, ResultLayout
from seqgc.models.soundness import require_sound
from seqgc.models.trial import try_first
from seqgc.ports import (
    BoolArray,
    Decoding,
    FloatArray,
    MiniTask,
    ResultForm,
    WeightedPoints,
    WeightRef,
    WeightStore,
)
from seqgc.runs.metrics import JobMetrics
from seqgc.training.callbacks import AfterStep, CallbackState
from seqgc.training.jobs import ChunkedScheme, JobPlan, Share, Turn, TurnsState
from seqgc.training.learner import Learner, LearnerState, Tensors, apply_all
from seqgc.training.published import PublishedWeights
from seqgc.training.results import Parked, Parking
from seqgc.training.work import batch_sizes

__all__ = [
    "FLIGHT",
    "ModelsWorkload",
    "PartsState",
    "TorchWorkload",
    "WorkloadState",
    "joined_form",
    "split_results",
    "try_models",
]

FLIGHT: Final = "flight.safetensors"
"""The file of a checkpoint for tensors that belong to jobs in flight or to callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsState:
    """The state of a job whose gradient arrives in parts, without tensors, for checkpoints."""

    of: int  # number of parts; 0 if it is not yet known
    losses: dict[int, list[LossSums]]  # by part that has arrived: each model's loss over the part
    sums: list[tuple[int, int]]  # the nodes of the job's `TreeSum`
    # Each model's loss over the points that had been used when the run was resumed with another
    # number of workers. Empty if no points had been used.
    earlier: list[LossSums] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """The state of a workload without its tensors, for checkpoints."""

    begun: int  # number of jobs that have begun
    unapplied: list[int]  # jobs whose gradients have not been applied, in order
    in_flight: dict[int, list[int]]  # by job: the version of the weights that its tasks read
    models: list[LearnerState]
    turns: TurnsState
    parked: dict[str, Parked]
    idle_from: dict[str, int]  # for each parked model, the first job that does not compute it
    callbacks: list[CallbackState]
    parts: dict[int, PartsState] = field(default_factory=dict)  # by job that has begun
    # Jobs that are computed again, although their losses are recorded (`seqgc.training.resizing`).
    noted: list[int] = field(default_factory=list)


def joined_form(layouts: Sequence[ResultLayout], precision: Precision) -> ResultForm:
    """Return the form of a result in which the results of several models are joined."""
    starts = np.cumsum([0, *(each.size for each in layouts)]).tolist()
    marks = [
        slice(start + each.marks.start, start + each.marks.stop)
        for start, each in zip(starts, layouts, strict=False)
    ]
    return ResultForm(np.dtype(precision), starts[-1], tuple(marks))


def split_results(layouts: Sequence[ResultLayout], gradient: FloatArray) -> list[ModelResult]:
    """Return the result of each model in a joined one. Gradients are views where possible."""
    ends = np.cumsum([layout.size for layout in layouts])
    vectors = np.split(gradient, ends[:-1])
    return [layout.read(each) for layout, each in zip(layouts, vectors, strict=True)]


def try_models(models: Sequence[Model], *, precision: Precision) -> None:
    """Raise `ParameterError` if a model cannot be trained by several workers.

    The model's gradient must be a sum over chunks, and its validation must work.
    """
    for model in distinct_models(models):
        try_first(model, partial(require_sound, precision=precision))
    require_valid(models)


class ModelsWorkload(ABC):
    """A `seqgc.ports.Workload` that trains copies of the models of a ``plan``, job by job.

    ``tried`` is True if `try_models` has checked the models already.

    Raises
    ------
    ParameterError
        If a model's gradient is not a sum over chunks, or its validation fails.
    """

    def __init__(
        self,
        plan: JobPlan,
        *,
        store: WeightStore,
        precision: Precision,
        callbacks: Sequence[object],
        tried: bool,
    ) -> None:
        torch_dtype(precision)
        self._plan: Final = plan
        if not tried:
            try_models(plan.models, precision=precision)
        self._precision: Final = precision
        self._learners = [Learner(m, precision=precision) for m in plan.models]
        self._published: Final = [
            PublishedWeights([self._learners[i] for i in plan.members(bundle)], store=store)
            for bundle in range(plan.num_bundles)
        ]
        self._spans: Final = [span for bundle in self._published for span in bundle.spans]
        self._by_name = {learner.model.name: learner for learner in self._learners}
        self._begun = 0
        self.metrics: list[JobMetrics] = []  # of finished jobs, in order, until `take_metrics`
        self.after_step: Final = AfterStep(callbacks, names=self.names, park=self.park)
        self._parked: dict[str, Parked] = {}
        self._idle_from: dict[str, int] = {}
        self._noted = set[int]()  # jobs that are computed again, whose losses are recorded

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
        """End the run: apply the remaining gradients, in order, and discard all published weights.

        Raises
        ------
        ScheduleError
            If a job has begun but not finished. In this case no gradient is applied.
        """

    @abstractmethod
    def discard_weights(self) -> None:
        """Discard all published weights, even of jobs in flight. Further calls do no harm."""

    @abstractmethod
    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        """Return a copy of the state, and copies of its tensors by file and name."""

    @abstractmethod
    def _restore_jobs(self, state: WorkloadState, flight: Tensors) -> None:
        """Restore the unfinished jobs of a snapshot, whose models have already been restored."""

    # ---- the models -----------------------------------------------------------------------------

    def take_metrics(self) -> list[JobMetrics]:
        """Return the metrics of finished jobs since the last call."""
        taken, self.metrics = self.metrics, []
        return taken

    def best(self) -> dict[str, tuple[Best, Tensors]]:
        """Return the best validation of each model, and its weights, by the model's name.

        Models without a validation are left out.
        """
        followed = [(m.model.name, m.validator) for m in self._learners if m.validator is not None]
        return {name: (v.state.best, v.weights) for name, v in followed if v.state.best is not None}

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The distinct sizes of the models' batches."""
        return batch_sizes(self._plan.models)

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, in the order in which they take turns."""
        return tuple(model.name for model in self._plan.models)

    @property
    def unremoved(self) -> str:
        """The reason why old weights could not be removed; empty if there was no failure."""
        return next((each.unremoved for each in self._published if each.unremoved), "")

    def require_steps(self, steps: int) -> None:
        """Raise `ParameterError` if a learning-rate schedule ends before ``steps`` steps."""
        for learner in self._learners:
            learner.stepper.require_steps(steps)

    def result_form(self, job: int) -> ResultForm:
        """Return the form of a job's results, in which the results of its models are joined."""
        return joined_form([each.layout for each in self._bundle(job)], self._precision)

    def module(self, name: str) -> nn.Module:
        """Return a model's module as trained so far. It is not a copy, so do not change it."""
        return self._learner(name).module

    def _learner(self, name: str) -> Learner:
        if name not in self._by_name:
            raise ParameterError("name", f"must be one of {', '.join(self.names)}", name)
        return self._by_name[name]

    def park(self, names: Sequence[str], *, why: str, kind: Parking = "stopped early") -> None:
        """Stop the training of these models: no further gradient is applied to them.

        Jobs that begin from now on do not compute these models. Jobs in flight still compute them,
        because all results of a job must have the same form. If a model is already parked, its
        first reason remains. ``why`` is a text of one line.
        """
        for name in names:
            steps = self._learner(name).steps
            if name not in self._parked:
                self._parked[name] = Parked(kind=kind, why=one_line(why), step=steps)
                self._idle_from[name] = self._begun
                self._plan.park(name)

    def unused(self, job: int) -> list[slice]:
        """Return the slices of a job's results and gradient that belong to parked models."""
        bundle = self._bundle(job)
        ends = np.cumsum([each.layout.size for each in bundle]).tolist()
        return [
            slice(end - each.layout.size, end)
            for each, end in zip(bundle, ends, strict=True)
            if each.model.name in self._parked
        ]

    @property
    def num_jobs(self) -> int | None:
        """The number of jobs of the run; None as long as a model may need more jobs."""
        return self._plan.turns.num_jobs

    @property
    def bundles_left(self) -> int:
        """The number of bundles with a model that is not parked."""
        return self._plan.bundles_left

    @property
    def parked(self) -> Mapping[str, Parked]:
        """The parked models, in the order in which they were parked."""
        return MappingProxyType(self._parked)

    # ---- results of a job -----------------------------------------------------------------------

    def _vector(self, job: int, gradient: FloatArray) -> FloatArray:
        """Check the size of a decoded gradient, and return it in the run's precision."""
        dtype, size, _ = self.result_form(job)
        if gradient.shape != (size,):
            rule = f"of job {job} must have shape ({size},)"
            raise ParameterError("gradient", rule, gradient.shape)
        return np.array(gradient, dtype=dtype)

    def _results(self, job: int, gradient: FloatArray) -> list[tuple[Learner, ModelResult]]:
        """Return each model of a job with its result. Gradients are views where possible."""
        bundle = self._bundle(job)
        results = split_results([learner.layout for learner in bundle], gradient)
        return list(zip(bundle, results, strict=True))

    def _park_overflown(self, results: Sequence[tuple[Learner, ModelResult]]) -> None:
        overflown = [m.model.name for m, result in results if not result.is_finite]
        self.park(overflown, kind="diverged", why="the sum of its finite results overflows")

    def _note(self, job: int, losses: Sequence[float]) -> None:
        """Add the losses of a finished job's models to ``metrics``, unless they are recorded."""
        if job in self._noted:
            self._noted.remove(job)
            return
        step = self._plan.turns[job].step or 0
        self.metrics += [
            JobMetrics(job=job, model=learner.model.name, step=step, loss=float(loss))
            for learner, loss in zip(self._bundle(job), losses, strict=True)
            if learner.model.name not in self._parked
        ]

    def _park_raised(self, learner: Learner, error: BaseException, what: str = "its step") -> None:
        """Park a model whose optimizer or scheduler has raised an error."""
        reraise_stop(error)
        why = f"{what} raised {fault_of(error)}"
        self.park([learner.model.name], kind="raised", why=why)

    def _step_all(
        self, results: Sequence[tuple[Learner, ModelResult]], losses: Sequence[float]
    ) -> None:
        """Take a step of each model that is not parked; then do the work after the steps."""
        steps = [
            (learner, result, loss)
            for (learner, result), loss in zip(results, losses, strict=True)
            if learner.model.name not in self._parked
        ]
        outcomes = apply_all([each[0] for each in steps], [each[1] for each in steps])
        for (learner, _, loss), outcome in zip(steps, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._park_raised(learner, outcome)
            else:
                self.after_step.run(learner, loss=loss, metrics=outcome)

    def _move_out(self) -> None:
        """Give each module its own memory, so that a user can save a single module."""
        for published in self._published:
            published.move_out()

    def _published_of(self, job: int) -> PublishedWeights:
        return self._published[self._plan.turns[job].bundle]

    def _shares(
        self, job: int, weights: WeightRef, *, used: Sequence[BoolArray] = ()
    ) -> tuple[Share, ...]:
        """Return a share for each model of a job; all read the same version of weights.

        ``used`` has a mask (batch_size,) for each model, of the points that the share must not
        contain. It is empty if all points are needed.
        """
        bundle = self._plan.bundle(job)
        without: Sequence[BoolArray | None] = used or [None] * len(bundle)
        return tuple(
            self._share(index, job, weights, each)
            for index, each in zip(bundle, without, strict=True)
        )

    def _share(self, index: int, job: int, weights: WeightRef, used: BoolArray | None) -> Share:
        learner = self._learners[index]
        idle = self._idle_from.get(learner.model.name, job + 1) <= job
        return self._plan.share(
            index,
            job=job,
            weights=weights,
            span=self._spans[index],
            queue=learner.queue,
            pieces=learner.layout.pieces,
            idle=idle,
            used=used,
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
        """Return a snapshot of the models and of these jobs.

        ``flight`` has the tensors of the jobs. The weights that jobs in flight read are added.
        """
        refs = {j: {share.weights: None for share in shares} for j, shares in in_flight.items()}
        for job, versions in refs.items():
            for ref in versions:
                if (name := _version_name(ref.model, ref.version)) not in flight:
                    vector = self._published_of(job).version(ref)
                    flight[name] = torch.from_numpy(np.array(vector))
        files: dict[str, Tensors] = {FLIGHT: flight}
        models = []
        for learner in self._learners:
            try:
                learner_state, learner_files = learner.snapshot()
            except BaseException as error:  # from the user's own optimizer or scheduler
                self._park_raised(learner, error, "its optimizer's or scheduler's state")
                learner_state, learner_files = learner.snapshot(forgetful=True)
            models.append(learner_state)
            files |= learner_files
        state = WorkloadState(
            begun=self._begun,
            unapplied=unapplied,
            in_flight={j: [ref.version for ref in versions] for j, versions in refs.items()},
            models=models,
            callbacks=self.after_step.callbacks.snapshot(flight),
            parked=dict(self._parked),
            idle_from=dict(self._idle_from),
            turns=self._plan.turns.snapshot(),
            parts=parts,
            noted=sorted(self._noted),
        )
        return state, files

    def restore(self, state: WorkloadState, files: Mapping[str, Tensors]) -> None:
        """Restore a snapshot, and publish the weights of the jobs in flight again.

        Raises
        ------
        StoreError
            If the snapshot does not fit the models, or weights cannot be published.
        ParameterError
            If a callback cannot restore its state.
        """
        try:
            for learner, learner_state in zip(self._learners, state.models, strict=True):
                learner.restore(learner_state, files)
            self._begun = state.begun
            self._parked, self._idle_from = dict(state.parked), dict(state.idle_from)
            self._noted = set(state.noted)
            self._plan.turns.restore(state.turns)
            for name in state.parked:
                self._plan.park(name)
            self._restore_jobs(state, files[FLIGHT])
        except (OSError, StoreError):
            raise
        except BaseException as error:  # also from the user's own optimizer or scheduler
            reraise_stop(error)
            message = f"the checkpoint does not fit the models of the plan: {fault_of(error)}"
            raise StoreError(message) from error
        self.after_step.callbacks.restore(state.callbacks, files[FLIGHT])

    def _restored(self, job: int, versions: Sequence[int], flight: Tensors) -> tuple[Share, ...]:
        """Publish the weights of a job in flight again; return the shares of its models."""
        (version,), first = versions, self._bundle(job)[0]
        vector = flight[_version_name(first.model.name, version)].numpy()
        return self._shares(job, self._published_of(job).republish(version, vector))


def _version_name(model: str, version: int) -> str:
    return f"weights.{model}.{version}"


class TorchWorkload(ModelsWorkload):
    """A `seqgc.ports.Workload` that trains several models at once, by a scheme.

    The models form B bundles of at most ``jobs_per_round`` models. As long as all bundles are
    active, job ``t`` is step number ``t // B`` of every model of bundle ``t mod B``. A bundle ends
    when it has taken all its ``steps`` (None: no limit), or when all its models are parked. Its
    turns then go to the other bundles (`seqgc.training.jobs`).

    Let T be the scheme's delay, in rounds. If ``B >= T + 1``, the weights of a job contain the
    gradients of all earlier jobs of its models. If there are fewer bundles (``stale``), gradients
    are applied exactly T rounds late, whatever the stragglers do: the weights of job ``t`` contain
    the gradients of its models' jobs up to ``t - T - 1``.

    If a gradient is decoded without some chunks (`Decoding.lost`), the points of these chunks are
    drawn again at the end of the model's epoch. If gradients are late, the points are not drawn
    again, because the next batch has already been drawn.

    ``scheme`` defines the chunks and the delay. Workers find the weights in ``store``. Versions of
    weights that no task needs are discarded. ``precision`` is the precision of weights, computation
    and results. ``stale`` allows fewer than T + 1 bundles. ``callbacks`` are called for steps and
    validations (see `seqgc.training.Callback`). Unless ``tried`` is True, `try_models` first checks
    the models. Their modules are copied.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a model's gradient is not a sum over chunks, for example
        because of batch statistics, the dropout layers of torch, or random augmentation. If an
        optimizer needs a closure.
    ScheduleError
        If a method is called in the wrong order. The call then changes nothing.

    Examples
    --------
    One job, from its start to its gradient, without any worker:

    >>> import functools, numpy as np, torch
    >>> from seqgc.ports import Decoding, MiniTask
    >>> from seqgc.schemes import parse_scheme
    >>> from seqgc.stores import MemoryStore
    >>> from seqgc.training import TorchCompute, TorchWorkload, registered_model
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> model, store = registered_model("net", module="mlp", optimizer=sgd), MemoryStore()
    >>> workload = TorchWorkload([model], scheme=parse_scheme("uncoded", n=2), store=store)
    >>> compute = TorchCompute([model.objective], store=store)
    >>> workload.begin(0)
    >>> both = MiniTask(job=0, slot=0, chunks=np.array([0, 1]), coefficients=np.ones(2))
    >>> workload.finish(Decoding(job=0, terms=()), compute(workload.resolve(both)))
    >>> workload.flush()
    >>> [(entry.job, entry.model, entry.step) for entry in workload.metrics]
    [(0, 'net', 0)]
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        scheme: ChunkedScheme,
        store: WeightStore,
        precision: Precision = "float32",
        jobs_per_round: int = 1,
        stale: bool = False,
        callbacks: Sequence[object] = (),
        steps: int | None = None,
        tried: bool = False,
    ) -> None:
        plan = JobPlan(
            models, scheme=scheme, jobs_per_round=jobs_per_round, stale=stale, steps=steps
        )
        super().__init__(plan, store=store, precision=precision, callbacks=callbacks, tried=tried)
        self._in_flight: dict[int, tuple[Share, ...]] = {}
        self._unapplied: dict[int, FloatArray | None] = {}  # None until decoded; in order of job

    def switch(self, scheme: ChunkedScheme) -> None:
        """Use another scheme for later jobs. All jobs that have begun must have finished."""
        if late := [job for job, gradient in self._unapplied.items() if gradient is None]:
            raise ScheduleError(f"the scheme cannot change: job {late[0]} has not finished")
        self._plan.adopt(scheme)

    def needs(self, job: int, finished: int) -> bool:
        """Return True if ``job`` can only begin when the gradient of ``finished`` is passed on.

        The gradient is needed in two cases:

        - The turn of ``job`` is not decided, and may depend on the gradient: a turn becomes idle if
          the last gradient of the next bundle is missing. If work is dealt, a turn depends on all
          jobs that are certain to be decoded.
        - The models of ``job`` have taken part in ``finished``, so that the weights of ``job`` must
          contain the gradient.

        The weights of a job are fixed when it begins. Therefore a job that has begun needs no
        gradient.
        """
        awaited, horizon = self._plan.turns.awaited, self._plan.horizon(job)
        if job not in self._plan.turns:
            if self._plan.deals and finished <= horizon:
                return True
            if not self._plan.deals and horizon < awaited in self._unapplied:
                return finished == awaited
        turn = self._turn(job)
        if turn.step is None or finished > horizon or finished not in self._unapplied:
            return False
        earlier = self._plan.turns[finished]
        return earlier.step is not None and earlier.bundle == turn.bundle

    def begin(self, job: int) -> None:
        """Fix the weights and the batch of ``job``. Jobs must begin in order, without gaps."""
        if job != self._begun:
            raise ScheduleError(f"job {job} cannot begin: the next job is {self._begun}")
        self._turn(job)
        self._apply([j for j in self._unapplied if self.needs(job, j)])
        oldest = job + 1 - self._plan.jobs_read
        self._in_flight = {j: shares for j, shares in self._in_flight.items() if j >= oldest}
        self._in_flight[job] = self._shares(job, self._published_of(job).publish())
        self._unapplied[job], self._begun = None, job + 1
        self._plan.turns.forget(self._in_flight.keys() | self._unapplied.keys())
        self._discard_unused()

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the data points of a mini-task, separately for each model of the job."""
        if mini_task.job not in self._in_flight:
            raise ScheduleError(f"job {mini_task.job} is not in flight: {self._begun} have begun")
        shares = self._in_flight[mini_task.job]
        return tuple(share.resolve(mini_task.chunks, mini_task.coefficients) for share in shares)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Take the ``gradient`` of a decoded job. Unless gradients are late, apply it at once."""
        job = decoding.job
        if job not in self._unapplied or self._unapplied[job] is not None:
            raise ScheduleError(f"job {job} cannot finish: it has not begun, or finished before")
        kept = self._unapplied[job] = self._vector(job, gradient)
        if (step := self._plan.turns[job].step) is None:  # an idle turn: zeros
            del self._unapplied[job]
            return
        self._plan.handed_over = job
        results = self._results(job, kept)
        self._park_overflown(results)
        losses = [result.sums.mean for _, result in results]
        self._note(job, losses)
        if not self._plan.is_late:  # every earlier gradient of these models has been applied
            self._settle(job, step, lost=decoding.lost)
            del self._unapplied[job]
            self._step_all(results, losses)
        self._plan.handed_over = None

    def flush(self) -> None:
        for job in [job for job in self._unapplied if self._plan.turns[job].step is None]:
            del self._unapplied[job]  # idle turns
        self._apply(list(self._unapplied))
        self._move_out()
        self.discard_weights()

    def discard_weights(self) -> None:
        self._in_flight.clear()
        self._discard_unused()

    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        flight = {
            f"gradient.{job}": torch.from_numpy(gradient.copy())
            for job, gradient in self._unapplied.items()
            if gradient is not None
        }
        # A finished job is not sent again, and its batch has left the data queue.
        in_flight = {j: each for j, each in self._in_flight.items() if j in self._unapplied}
        return self._snapshot(
            flight, unapplied=list(self._unapplied), in_flight=in_flight, parts={}
        )

    def _restore_jobs(self, state: WorkloadState, flight: Tensors) -> None:
        for job, versions in state.in_flight.items():
            self._in_flight[job] = self._restored(job, versions, flight)
        for job in state.unapplied:
            gradient = flight.get(f"gradient.{job}")
            self._unapplied[job] = None if gradient is None else gradient.numpy()

    def _turn(self, job: int) -> Turn:
        """Return the turn of a job. The first call for the next job decides its turn."""
        turns, horizon = self._plan.turns, self._plan.horizon(job)
        if job not in turns:
            for bundle in turns.stopped(horizon):
                turns.leave(bundle)
            # Dealt work may be decoded early by chance, which must not influence a turn.
            rule = all if self._plan.deals else any
            turns.take(
                job, may_follow=lambda last: rule((last <= horizon, last not in self._unapplied))
            )
        return turns[job]

    def _settle(self, job: int, step: int, *, lost: Sequence[int]) -> None:
        """End a step in the data queues, which draw the points of the ``lost`` chunks again."""
        for index in self._plan.bundle(job):
            learner = self._learners[index]
            if learner.model.name not in self._parked:
                learner.queue.settle(step, lost=self._plan.positions(index, lost))

    def _apply(self, jobs: list[int]) -> None:
        if late := [job for job in jobs if self._unapplied[job] is None]:
            raise ScheduleError(f"job {late[0]} has not been decoded by its deadline")
        for job in jobs:
            gradient = self._unapplied.pop(job)
            if gradient is not None:
                results = self._results(job, gradient)
                self._step_all(results, [result.sums.mean for _, result in results])

    def _discard_unused(self) -> None:
        needed = {share.weights for shares in self._in_flight.values() for share in shares}
        for published in self._published:
            published.keep(needed)

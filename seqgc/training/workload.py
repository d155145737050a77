"""The workload of the loop: models, whose batches become results and steps."""

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
from seqgc.models.results import LossSums, ModelResult
from seqgc.models.soundness import require_sound
from seqgc.models.trial import try_first
from seqgc.ports import (
    Decoding,
    FloatArray,
    MiniTask,
    ResultForm,
    WeightedPoints,
    WeightRef,
    WeightStore,
)
from seqgc.runs.metrics import JobMetrics
from seqgc.training.callbacks import Aftermath, CallbackState
from seqgc.training.jobs import ChunkedScheme, JobPlan, Share, Turn, TurnsState
from seqgc.training.learner import Learner, LearnerState, Tensors
from seqgc.training.results import Parked, Parking
from seqgc.training.work import batch_sizes

__all__ = ["FLIGHT", "ModelsWorkload", "PartsState", "TorchWorkload", "WorkloadState"]

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
        for model in distinct_models(plan.models):
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


class TorchWorkload(ModelsWorkload):
    """Trains several models at once, job by job; a `seqgc.ports.Workload`.

    The M models are taken in M / k bundles of ``k = jobs_per_round``. Job ``t`` is one step of
    every model of bundle ``t mod M/k``, their step ``t // (M/k)``, as long as no bundle is done:
    one that has taken all its ``steps`` (None: there is no end), or whose models are all parked,
    gives its turns to the others (`seqgc.training.jobs`). The job's weights hold exactly the
    gradients of its models' jobs up to ``t - T - 1``, T being the scheme's delay: the jobs that are
    sure to be decoded. With ``M/k >= T + 1`` those are all of its models' earlier jobs. With fewer
    bundles gradients are applied exactly T rounds late, whatever the stragglers do.

    Points of chunks that a job is made without (`Decoding.lost`) come again at the end of their
    model's epoch; with gradients that are late they do not, as the next batch has been drawn then.

    ``scheme`` says how batches are cut into chunks, and the delay; ``store`` is where workers find
    the weights, and loses the versions that no task of use needs; ``precision`` is that of
    weights, computation and results; ``stale`` allows ``M/k < T + 1``. ``callbacks`` hear of steps
    and validations (see `seqgc.training.Callback`). The models' modules are copied.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a model's gradient is not a sum over chunks: batch
        statistics, dropout, random augmentation, an optimizer that needs a closure.
    ScheduleError
        By a method that is called out of turn; nothing has changed then.

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
    ) -> None:
        plan = JobPlan(
            models, scheme=scheme, jobs_per_round=jobs_per_round, stale=stale, steps=steps
        )
        super().__init__(plan, store=store, precision=precision, callbacks=callbacks)
        self._in_flight: dict[int, tuple[Share, ...]] = {}
        self._unapplied: dict[int, FloatArray | None] = {}  # None until decoded; in order of job

    def switch(self, scheme: ChunkedScheme) -> None:
        """Let the jobs that begin from now on be another scheme's; every earlier one has finished.

        As no earlier job is in flight then, what a job's weights hold is as certain as before.
        """
        if late := [job for job, gradient in self._unapplied.items() if gradient is None]:
            raise ScheduleError(f"the scheme cannot change: job {late[0]} has not finished")
        self._plan.adopt(scheme)

    def needs(self, job: int, finished: int) -> bool:
        """Say whether ``job`` cannot begin before the earlier job ``finished`` is handed over.

        Weights are fixed when a job begins: from then on nothing more is needed for its sake. A
        turn that would be idle is not decided as long as what its bundle waits for may be handed
        over; where work is dealt, none before all is that is sure to be decoded.
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
        """Fix the weights and the batch of ``job``; jobs begin in order, without gaps."""
        if job != self._begun:
            raise ScheduleError(f"job {job} cannot begin: the next job is {self._begun}")
        self._turn(job)
        self._apply([j for j in self._unapplied if self.needs(job, j)])
        oldest = job + 1 - self._plan.jobs_read
        self._in_flight = {j: shares for j, shares in self._in_flight.items() if j >= oldest}
        self._in_flight[job] = tuple(
            self._share(index, job, self._learners[index].publish())
            for index in self._plan.bundle(job)
        )
        self._unapplied[job], self._begun = None, job + 1
        self._plan.turns.forget(self._in_flight.keys() | self._unapplied.keys())
        self._discard_weights()

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the data points of a mini-task, one part per model of its job's bundle."""
        if mini_task.job not in self._in_flight:
            raise ScheduleError(f"job {mini_task.job} is not in flight: {self._begun} have begun")
        shares = self._in_flight[mini_task.job]
        return tuple(share.resolve(mini_task.chunks, mini_task.coefficients) for share in shares)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Keep a decoded job's ``gradient``, as long as `result_form` says, until it is due."""
        job = decoding.job
        if job not in self._unapplied or self._unapplied[job] is not None:
            raise ScheduleError(f"job {job} cannot finish: it has not begun, or finished before")
        kept = self._unapplied[job] = self._vector(job, gradient)
        if (step := self._plan.turns[job].step) is None:  # of zeros, for nobody
            del self._unapplied[job]
            return
        self._plan.handed_over = job
        results = self._results(job, kept)
        self._park_overflown(results)
        self._note(job, [result.sums.mean for _, result in results])
        if not self._plan.is_late:  # every earlier gradient of these models has been applied
            self._settle(job, step, lost=decoding.lost)
            self._apply([job])
        self._plan.handed_over = None

    def flush(self) -> None:
        for job in [job for job in self._unapplied if self._plan.turns[job].step is None]:
            del self._unapplied[job]  # for nobody
        self._apply(list(self._unapplied))
        self.abandon()

    def abandon(self) -> None:
        self._in_flight.clear()
        self._discard_weights()

    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        flight = {
            f"gradient.{job}": torch.from_numpy(gradient.copy())
            for job, gradient in self._unapplied.items()
            if gradient is not None
        }
        # Of a job that is over nothing is asked again, and its models' data queues have gone on.
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
        """Return whose turn a job is, which is decided when it is the next one and asked for."""
        turns, horizon = self._plan.turns, self._plan.horizon(job)
        if job not in turns:
            for bundle in turns.stopped(horizon):
                turns.leave(bundle)
            rule = all if self._plan.deals else any  # what is early is a matter of time there
            turns.take(
                job, may_follow=lambda last: rule((last <= horizon, last not in self._unapplied))
            )
        return turns[job]

    def _settle(self, job: int, step: int, *, lost: Sequence[int]) -> None:
        """Have the points of these chunks come again, in batches that are not drawn yet."""
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
                for learner, result in self._results(job, gradient):
                    if learner.model.name not in self._parked:
                        self._step(learner, result, loss=result.sums.mean)

    def _discard_weights(self) -> None:
        needed = {share.weights for shares in self._in_flight.values() for share in shares}
        for learner in self._learners:
            learner.keep(needed)

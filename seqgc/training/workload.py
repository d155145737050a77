"""The master's side: models to jobs, gradients to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import nn

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, ScheduleError, StoreError, one_line
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef, WeightStore
from seqgc.training._aftermath import Aftermath
from seqgc.training._forms import one_of_each
from seqgc.training._jobs import ChunkedScheme, JobPlan, Share
from seqgc.training._learner import Learner, LearnerState, Tensors
from seqgc.training._soundness import require_sound
from seqgc.training._turns import Turn, TurnsState
from seqgc.training.callbacks import CallbackState
from seqgc.training.metrics import JobMetrics
from seqgc.training.model import Model, Precision, torch_dtype
from seqgc.training.parked import Parked, Parking
from seqgc.training.validation import Best, require_valid

__all__ = ["FLIGHT", "ChunkedScheme", "TorchWorkload", "WorkloadState"]

FLIGHT: Final = "flight.safetensors"
"""The file of a checkpoint that holds what belongs to no model alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """What a `TorchWorkload` knows, apart from tensors: for checkpoints."""

    begun: int  # jobs
    unapplied: list[int]  # jobs whose gradients have not been applied, in order
    in_flight: dict[int, list[int]]  # the versions of weights that a job uses, one a model
    models: list[LearnerState]
    turns: TurnsState
    parked: dict[str, Parked]
    idle_from: dict[str, int]  # the first job without a parked model
    callbacks: list[CallbackState]


class TorchWorkload:
    """Trains several models at once, job by job; a `seqgc.ports.Workload`.

    The M models are taken in M / k bundles of ``k = jobs_per_round``. Job ``t`` is one step of
    every model of bundle ``t mod M/k``, their step ``t // (M/k)``, as long as no bundle is done:
    one that has taken all its ``steps`` (None: there is no end), or whose models are all parked,
    gives its turns to the others (`seqgc.training._turns`). The job's weights hold exactly the
    gradients of its models' jobs up to ``t - T - 1``, T being the scheme's delay: the jobs that are
    sure to be decoded. With ``M/k >= T + 1`` those are all of its models' earlier jobs. With fewer
    bundles gradients are applied exactly T rounds late, whatever the stragglers do.

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
        torch_dtype(precision)
        bundle = jobs_per_round
        self._plan: Final = JobPlan(
            models, scheme=scheme, jobs_per_round=bundle, stale=stale, steps=steps
        )
        for model in one_of_each(models):
            require_sound(model)
        require_valid(models)
        self._precision: Final = precision
        self._learners = [Learner(m, store=store, precision=precision) for m in models]
        self._by_name = {learner.model.name: learner for learner in self._learners}
        self._begun = 0
        self._in_flight: dict[int, tuple[Share, ...]] = {}
        self._unapplied: dict[int, FloatArray | None] = {}  # None until decoded; in order of job
        self.metrics: list[JobMetrics] = []  # of finished jobs, in their order, until taken
        self.aftermath: Final = Aftermath(callbacks, names=self.names, park=self.park)
        self._parked: dict[str, Parked] = {}
        self._idle_from: dict[str, int] = {}

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
        return tuple(sorted({model.batch_size for model in self._plan.models}))

    @property
    def names(self) -> tuple[str, ...]:
        """The models' names, in the order in which they take turns."""
        return tuple(model.name for model in self._plan.models)

    def require_steps(self, steps: int) -> None:
        """Refuse a model whose learning-rate schedule is over before so many steps."""
        for learner in self._learners:
            learner.stepper.require_steps(steps)

    def result_form(self, job: int) -> tuple[np.dtype[np.floating], int]:
        """Return the results' dtype, whatever they travel in, and length: P + 1 over the bundle."""
        return np.dtype(self._precision), sum(each.result_size for each in self._bundle(job))

    def module(self, name: str) -> nn.Module:
        """Return a model's module as trained so far; it is the run's own, to be read only."""
        return self._learner(name).module

    def _learner(self, name: str) -> Learner:
        if name not in self._by_name:
            raise ParameterError("name", f"must be one of {', '.join(self.names)}", name)
        return self._by_name[name]

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
        over.
        """
        awaited = self._plan.turns.awaited
        if job not in self._plan.turns and self._horizon(job) < awaited in self._unapplied:
            return finished == awaited
        turn = self._turn(job)
        if turn.step is None or finished > self._horizon(job) or finished not in self._unapplied:
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
        dtype, size = self.result_form(job)
        if gradient.shape != (size,):
            rule = f"of job {job} must have shape ({size},)"
            raise ParameterError("gradient", rule, gradient.shape)
        kept = self._unapplied[job] = np.array(gradient, dtype=dtype)
        step, parts = self._plan.turns[job].step, self._parts(job, kept)
        if step is None:  # of zeros, for nobody
            del self._unapplied[job]
            return
        overflown = [m.model.name for m, part in parts if not np.isfinite(part).all()]
        self.park(overflown, kind="diverged", why="the sum of its finite results overflows")
        self.metrics += [
            JobMetrics(job=job, model=learner.model.name, step=step, loss=float(part[-1]))
            for learner, part in parts
            if learner.model.name not in self._parked
        ]
        if not self._plan.is_late:  # every earlier gradient of these models has been applied
            self._apply([job])

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

    def flush(self) -> None:
        """End the run: apply every gradient that is left, in order, and discard all weights.

        ScheduleError if a job has begun and not finished; nothing is applied then.
        """
        self._apply(list(self._unapplied))
        self.abandon()

    def abandon(self) -> None:
        """Discard all weights, whatever has not been decoded; harmless if done already."""
        self._in_flight.clear()
        self._discard_weights()

    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        """Return copies of all that training has made, and the tensors by file and name."""
        flight: dict[str, torch.Tensor] = {}
        for job, shares in self._in_flight.items():
            for learner, share in zip(self._bundle(job), shares, strict=True):
                name = _version_name(learner, share.weights.version)
                if name not in flight:
                    flight[name] = torch.from_numpy(np.array(learner.version(share.weights)))
        for job, gradient in self._unapplied.items():
            if gradient is not None:
                flight[f"gradient.{job}"] = torch.from_numpy(gradient.copy())
        files: dict[str, Tensors] = {FLIGHT: flight}
        models = []
        for learner in self._learners:
            learned, of_it = learner.snapshot()
            models.append(learned)
            files |= of_it
        versions = {j: [s.weights.version for s in each] for j, each in self._in_flight.items()}
        state = WorkloadState(
            begun=self._begun,
            unapplied=list(self._unapplied),
            in_flight=versions,
            models=models,
            callbacks=self.aftermath.callbacks.snapshot(flight),
            parked=dict(self._parked),
            idle_from=dict(self._idle_from),
            turns=self._plan.turns.snapshot(),
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
            self._restore(state, files)
        except (KeyError, ValueError, RuntimeError) as error:
            message = f"the checkpoint is of other models: {one_line(error)}"
            raise StoreError(message) from error
        self.aftermath.callbacks.restore(state.callbacks, files[FLIGHT])

    def _restore(self, state: WorkloadState, files: Mapping[str, Tensors]) -> None:
        flight = files[FLIGHT]
        for learner, learned in zip(self._learners, state.models, strict=True):
            learner.restore(learned, files)
        self._begun = state.begun
        self._parked, self._idle_from = dict(state.parked), dict(state.idle_from)
        self._plan.turns.restore(state.turns)
        for name in state.parked:
            self._plan.park(name)
        for job, versions in state.in_flight.items():
            shares = []
            for index, version in zip(self._plan.bundle(job), versions, strict=True):
                learner = self._learners[index]
                vector = flight[_version_name(learner, version)].numpy()
                ref = learner.republish(version, vector)
                shares.append(self._share(index, job, ref))
            self._in_flight[job] = tuple(shares)
        for job in state.unapplied:
            gradient = flight.get(f"gradient.{job}")
            self._unapplied[job] = None if gradient is None else gradient.numpy()

    def _turn(self, job: int) -> Turn:
        """Return whose turn a job is, which is decided when it is the next one and asked for."""
        if job not in self._plan.turns:
            waiting, horizon = self._unapplied, self._horizon(job)
            self._plan.turns.take(
                job, may_follow=lambda last: last <= horizon or last not in waiting
            )
        return self._plan.turns[job]

    def _horizon(self, job: int) -> int:
        """Return the last of the jobs that are sure to be decoded when ``job`` begins."""
        return job - self._plan.delay - 1

    def _apply(self, jobs: list[int]) -> None:
        if late := [job for job in jobs if self._unapplied[job] is None]:
            raise ScheduleError(f"job {late[0]} has not been decoded by its deadline")
        for job in jobs:
            gradient = self._unapplied.pop(job)
            if gradient is not None:
                for learner, part in self._parts(job, gradient):
                    if learner.model.name not in self._parked:
                        self._step(learner, part)

    def _step(self, learner: Learner, part: FloatArray) -> None:
        try:
            about = learner.apply(part[:-1])
        except Exception as error:  # of the user's own optimizer or scheduler
            why = f"its step raised {fault_of(error)}"
            self.park([learner.model.name], kind="raised", why=why)
        else:
            self.aftermath.follow(learner, loss=float(part[-1]), about=about)

    def _share(self, index: int, job: int, weights: WeightRef) -> Share:
        idle = self._idle_from.get(self._learners[index].model.name, job + 1) <= job
        return self._plan.share(index, job=job, weights=weights, idle=idle)

    def _parts(self, job: int, gradient: FloatArray) -> list[tuple[Learner, FloatArray]]:
        """Cut a job's gradient into its models' parts, which are views."""
        bundle = self._bundle(job)
        ends = np.cumsum([learner.result_size for learner in bundle])
        return list(zip(bundle, np.split(gradient, ends[:-1]), strict=True))

    def _bundle(self, job: int) -> list[Learner]:
        return [self._learners[index] for index in self._plan.bundle(job)]

    def _discard_weights(self) -> None:
        needed = {share.weights for shares in self._in_flight.values() for share in shares}
        for learner in self._learners:
            learner.keep(needed)


def _version_name(learner: Learner, version: int) -> str:
    return f"weights.{learner.model.name}.{version}"

"""`StaleWorkload`: training with gradients that arrive in parts, for defences such as ``ssp``.

Theory of operation
-------------------
Each task computes the gradient of a part of the batch. The parts arrive one after the other, and
are used by the rules in `Updates`:

- ``apply="update"``: each part changes the weights as soon as it arrives. The step of the model
  ends with the last part.
- ``apply="clock"``: the parts are added up. When all parts have arrived, the whole gradient is
  applied as one step. The parts are added in a tree (`TreeSum`), so that the bits of the sum do not
  depend on the order of arrival.

``refresh`` is the rule for the version of the weights that a task reads:

- ``always``: the newest weights.
- ``needed``: the most recently published weights, unless they are staler than the defence allows.
- ``late``: exactly the weights that are as late as the defence allows. The run then ends with the
  same bits whatever the workers do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
import torch

from seqgc.errors import ParameterError, ScheduleError
from seqgc.models.model import Model
from seqgc.models.optimizers import require_additive
from seqgc.models.precision import Precision
from seqgc.models.results import LossSums, ModelResult
from seqgc.ports import (
    BoolArray,
    Decoding,
    FloatArray,
    MiniTask,
    Part,
    WeightedPoints,
    WeightRef,
    WeightStore,
)
from seqgc.training.jobs import ChunkedScheme, JobPlan, Share
from seqgc.training.learner import Learner, Tensors
from seqgc.training.workload import ModelsWorkload, PartsState, WorkloadState

__all__ = ["Apply", "OpenJob", "Refresh", "StaleScheme", "StaleWorkload", "TreeSum", "Updates"]

_Node: TypeAlias = tuple[int, int]  # level, 0 for the leaves, and index in the level


@dataclass(slots=True, eq=False)
class TreeSum:
    """A sum of ``of`` vectors whose bits do not depend on the order in which they are added.

    The vectors are the leaves of a binary tree, in the order of their indices. Two siblings are
    added as soon as both have arrived. ``nodes`` are the sums that wait for their siblings. If only
    one vector is missing, at most one sum waits at each level of the tree.

    Examples
    --------
    >>> total = TreeSum(of=3)
    >>> for index in (2, 0, 1):
    ...     total.add(index, np.full(2, 10.0**index))
    ...     print(list(total.nodes))
    [(1, 1)]
    [(1, 1), (0, 0)]
    [(2, 0)]
    >>> total.taken()
    array([111., 111.])
    """

    of: int
    nodes: dict[_Node, FloatArray] = field(default_factory=dict)

    def add(self, index: int, vector: FloatArray) -> None:
        """Add the vector with this index. Each index may be added once.

        The sum takes the array over, and may change it.
        """
        level, width = 0, self.of
        while width > 1:
            neighbour = index ^ 1
            if neighbour < width:
                other = self.nodes.pop((level, neighbour), None)
                if other is None:
                    break
                with np.errstate(over="ignore", invalid="ignore"):  # the whole sum is checked
                    vector += other
            level, index, width = level + 1, index // 2, (width + 1) // 2
        self.nodes[level, index] = vector

    def taken(self) -> FloatArray | None:
        """Remove and return the sum, which must be complete; None if nothing was added."""
        return self.nodes.popitem()[1] if self.nodes else None


@dataclass(slots=True, eq=False)
class OpenJob:
    """A job that has begun, and whose step has not ended.

    As long as ``may_repeat`` is True, a part that has arrived may be computed and arrive again.

    Examples
    --------
    >>> from seqgc.models.results import LossSums
    >>> job = OpenJob(shares=())
    >>> for part, loss in ((1, 0.5), (0, 0.25)):
    ...     print(job.is_complete, job.takes(Part(index=part, of=2)))
    ...     job.take(Part(index=part, of=2), [LossSums(loss=loss, weight=0.5, points=0.5)])
    False True
    False True
    >>> job.is_complete, job.loss(), job.takes(Part(index=0, of=2))
    (True, [0.75], False)
    """

    shares: tuple[Share, ...]  # one of each model, with the weights published when the job began
    total: TreeSum = field(default_factory=lambda: TreeSum(of=0))  # of=0: not yet known
    losses: dict[int, list[LossSums]] = field(default_factory=dict)  # by part that has arrived
    reads: defaultdict[int | None, set[WeightRef]] = field(default_factory=lambda: defaultdict(set))
    """For each part that has not arrived, the versions of weights that its tasks read."""
    may_repeat: bool = False
    used: tuple[BoolArray, ...] = ()
    """For each model, a mask of its batch. If the run was resumed with another number of workers,
    the mask marks the points that had been used until then. Empty if there are no such points."""
    earlier: list[LossSums] = field(default_factory=list)
    """For each model, the sums of the loss over the points in ``used``."""

    @property
    def is_complete(self) -> bool:
        """True if all parts have arrived, and no part may arrive again."""
        return 0 < self.total.of == len(self.losses) and not self.may_repeat

    @property
    def read(self) -> set[WeightRef]:
        """The versions of weights that tasks in flight read."""
        return {ref for refs in self.reads.values() for ref in refs}

    def takes(self, part: Part) -> bool:
        """Return True if this part may arrive now.

        A part that has not arrived must not be marked as repeated (`Part.again`). A part that has
        arrived must be marked, and the job must allow repeated parts.
        """
        is_next = part.again and self.may_repeat if part.index in self.losses else not part.again
        return is_next and self.total.of in (0, part.of)

    def take(self, part: Part, losses: list[LossSums]) -> None:
        """Record that a part has arrived. ``losses`` has the sums of each model's loss over it."""
        self.total.of = part.of
        self.losses[part.index] = losses

    def loss(self) -> list[float]:
        """Return the mean loss of each model on the batch; all parts must have arrived."""
        of_parts = [self.losses[part] for part in sorted(self.losses)]
        of_parts += [self.earlier] if self.earlier else []
        return [LossSums.total(of_model).mean for of_model in zip(*of_parts, strict=True)]

    def state(self) -> PartsState:
        """Return the state for checkpoints. `tensors` and `uses` return its tensors."""
        losses = {part: list(losses) for part, losses in self.losses.items()}
        sums = list(self.total.nodes)
        return PartsState(of=self.total.of, losses=losses, sums=sums, earlier=self.earlier)

    def tensors(self, job: int) -> dict[str, torch.Tensor]:
        """Return copies of the sums that wait in the tree, by names that contain the job."""
        nodes = self.total.nodes.items()
        return {_sum_name(job, *node): torch.from_numpy(each.copy()) for node, each in nodes}

    def uses(self, job: int) -> dict[str, torch.Tensor]:
        """Return a tensor (batch_size,) for each model, with a value for each point of its batch.

        The value is 0 if the point has not been used, and 1 if it belongs to a part that has
        arrived. If the run was resumed with another number of workers, the value is 2 for points
        that had been used until then. If all values are 0, no tensors are returned.
        """
        if not (self.losses or self.used):
            return {}
        named = dict[str, torch.Tensor]()
        for index, share in enumerate(self.shares):
            uses = np.zeros(share.batch_size, dtype=np.int8)
            if self.used:
                uses[self.used[index]] = 2
            own, chunks = (
                np.flatnonzero(uses == 0),
                (len(share.starts) - 1) // max(1, self.total.of),
            )
            for part in () if share.idle else self.losses:
                first, end = share.starts[[part * chunks, (part + 1) * chunks]]
                uses[own[first:end]] = 1
            named[uses_name(job, index)] = torch.from_numpy(uses)
        return named

    @classmethod
    def restored(
        cls,
        job: int,
        shares: tuple[Share, ...],
        state: PartsState,
        tensors: Mapping[str, torch.Tensor],
    ) -> OpenJob:
        """Return the job that has been saved with this state and these tensors.

        ``tensors`` may also contain tensors of other jobs.
        """
        nodes = {node: tensors[_sum_name(job, *node)].numpy() for node in state.sums}
        total, losses = TreeSum(of=state.of, nodes=nodes), dict(state.losses)
        return cls(
            shares,
            total=total,
            losses=losses,
            used=_used_before(job, tensors),
            earlier=list(state.earlier),
        )


def uses_name(job: int, index: int) -> str:
    """Return the name of the tensor of `OpenJob.uses` for a model of a job, in a checkpoint."""
    return f"uses.{job}.{index}"


def _used_before(job: int, tensors: Mapping[str, torch.Tensor]) -> tuple[BoolArray, ...]:
    """Return `OpenJob.used` from the tensors of a checkpoint."""
    uses = list[BoolArray]()
    while (each := tensors.get(uses_name(job, len(uses)))) is not None:
        uses.append(each.numpy() == 2)
    return tuple(uses) if any(each.any() for each in uses) else ()


def _sum_name(job: int, level: int, index: int) -> str:
    return f"parts.{job}.{level}.{index}"


Apply: TypeAlias = Literal["update", "clock"]
Refresh: TypeAlias = Literal["always", "needed", "late"]


class StaleScheme(ChunkedScheme, Protocol):
    """The properties that training needs of a defence whose gradients arrive in parts."""

    @property
    def staleness(self) -> int | None: ...  # number of jobs; None: unbounded
    @property
    def most_again(self) -> int: ...  # parts that may be applied a second time after a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The rules for applying gradients that arrive in parts, and for the weights that tasks read.

    The docstring of the module explains the values of ``apply`` and ``refresh``.

    Examples
    --------
    >>> Updates(apply="clock", refresh="late")
    Updates(apply='clock', refresh='late', aware=False)
    """

    apply: Apply = "update"
    refresh: Refresh = "always"
    aware: bool = False
    """True to give updates on older weights a smaller weight (`seqgc.rounds.StalenessAware`)."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("apply", self.apply, get_args(Apply)),
            ("refresh", self.refresh, get_args(Refresh)),
        ):
            if value not in known:
                raise ParameterError(name, f"must be one of {', '.join(known)}", value)
        if self.refresh == "late" and self.apply != "clock":
            rule = "must be clock if refresh is late: weights must not depend on when parts arrive"
            raise ParameterError("apply", rule, self.apply)
        if self.refresh == "late" and self.aware:
            rule = "must be left out if refresh is late, as all weights are equally old then"
            raise ParameterError("aware", rule, self.aware)

    @property
    def publishes_each(self) -> bool:
        """True if each part of a batch may be computed on another version of the weights."""
        return self.apply == "update" and self.refresh == "always"

    def require_fit(self, models: Sequence[Model], scheme: StaleScheme) -> None:
        """Raise `ParameterError` if the models or the scheme cannot be trained by these rules."""
        if self.refresh != "always" and scheme.staleness is None:
            rule = "must be always if the defence does not bound how stale weights are"
            raise ParameterError("refresh", rule, self.refresh)
        if self.apply == "clock" and scheme.most_again:
            rule = "must be update if a part may be applied again after a failure"
            raise ParameterError("apply", rule, self.apply, "take resume=part")
        if self.apply == "update":
            also = "resume=part, and " if scheme.most_again else ""
            whole = f'{also}apply="clock", or --apply clock'
            require_additive(models, remedy=f"take one step for each whole batch: {whole}")


class StaleWorkload(ModelsWorkload):
    """A `seqgc.ports.Workload` that trains several models in turns, with gradients in parts.

    The arguments are the same as for `TorchWorkload`, but without ``stale``. In addition,
    ``updates`` has the rules for the parts. ``scheme`` also has the limit of the weights'
    staleness, in jobs. There may be fewer bundles than jobs in flight.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, if a model's gradient is not a sum over chunks, or if parts
        of the gradient cannot be applied separately.
    ScheduleError
        If a method is called out of turn, or weights would be staler than the scheme allows.

    Examples
    --------
    Each half of the batch is a part. The first half changes the weights before the second half is
    computed:

    >>> import functools
    >>> import numpy as np
    >>> import torch
    >>> from seqgc.schemes import Uncoded
    >>> from seqgc.stores import MemoryStore
    >>> from seqgc.training import TorchCompute, registered_model
    >>> class Two(Uncoded):
    ...     staleness, most_again = 0, 0
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> model, store = registered_model("net", module="mlp", optimizer=sgd), MemoryStore()
    >>> workload = StaleWorkload([model], scheme=Two(n=2), store=store)
    >>> compute = TorchCompute([model.objective], store=store)
    >>> workload.begin(0)
    >>> for p in range(2):
    ...     half = MiniTask(job=0, slot=0, chunks=np.array([p]), coefficients=np.ones(1), cover=p)
    ...     of_it = Decoding(job=0, terms=(), part=Part(index=p, of=2))
    ...     points = workload.resolve(half)
    ...     print(points[0].weights.version, len(points[0].points))
    ...     workload.finish(of_it, compute(points))
    0 128
    1 128
    >>> [(entry.job, entry.step) for entry in workload.metrics]
    [(0, 0)]
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        scheme: StaleScheme,
        store: WeightStore,
        precision: Precision = "float32",
        jobs_per_round: int = 1,
        updates: Updates | None = None,
        callbacks: Sequence[object] = (),
        steps: int | None = None,
        tried: bool = False,
    ) -> None:
        self._updates: Final = Updates() if updates is None else updates
        self._updates.require_fit(models, scheme)
        self._may_repeat: Final = scheme.most_again > 0
        self._staleness = math.inf if scheme.staleness is None else scheme.staleness
        self._is_late: Final = self._updates.refresh == "late"
        plan = JobPlan(
            models,
            scheme=scheme,
            jobs_per_round=jobs_per_round,
            stale=True,
            steps=steps,
            lateness=(scheme.staleness or 0) if self._is_late else 0,
        )
        super().__init__(plan, store=store, precision=precision, callbacks=callbacks, tried=tried)
        self._open: dict[int, OpenJob] = {}  # in order of job
        self._ages = [0] * plan.num_bundles  # of the latest versions (see `_age`)

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (tasks read all that arrived)
        return True

    def begin(self, job: int) -> None:
        """Fix the batch of ``job``. Jobs must begin in order, without gaps."""
        if job != self._begun:
            raise ScheduleError(f"job {job} cannot begin: the next job is {self._begun}")
        due = job - self._staleness
        if job not in self._plan.turns:  # if it is, an earlier call could not publish the weights
            self._plan.turns.take(job, may_follow=lambda last: not self._is_late or last < due)
        if self._is_late:
            self._end_steps(self._plan.turns[job].bundle, before=due)
        shares = self._shares(job, self._latest(job))
        self._open[job] = OpenJob(shares, may_repeat=self._may_repeat)
        self._begun = job + 1
        self._forget()

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the data points of a mini-task, with the weights that the task must read."""
        job = mini_task.job
        if job not in self._open:
            raise ScheduleError(f"job {job} is not in flight: {self._begun} have begun")
        about = self._open[job]
        weights = about.shares[0].weights if self._is_late else self._read(job)
        about.reads[mini_task.cover].add(weights)
        return tuple(
            replace(share, weights=weights).resolve(mini_task.chunks, mini_task.coefficients)
            for share in about.shares
        )

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Take a part of a job's gradient, or the whole gradient.

        ``gradient`` has the size in `result_form` in both cases.
        """
        job, part = decoding.job, decoding.part or Part(index=0, of=1)
        about = self._open.get(job)
        if about is None or not about.takes(part):
            which = f"part {part.index} of {part.of} of job {job}"
            rule = "the job is not in flight, or the part has already arrived"
            raise ScheduleError(f"{which} cannot be taken: {rule}")
        vector = self._vector(job, gradient)
        results = self._results(job, vector)
        weight = decoding.terms[0].weight if decoding.part and decoding.terms else 1.0
        about.take(part, [result.sums.times(1 / weight) for _, result in results])
        about.reads.pop(part.index if decoding.part else None, None)
        if self._plan.turns[job].step is not None:
            self._park_overflown(results)
            if self._updates.apply == "clock":
                about.total.add(part.index, vector)
            else:
                self._apply_parts(results)
        for ended in (job,) if decoding.ends is None else decoding.ends:
            if (about := self._open.get(ended)) is None:
                raise ScheduleError(f"job {ended} cannot end: it is not in flight")
            about.may_repeat = False
            if about.is_complete:
                self._complete(ended, about)
        self._forget()

    def flush(self) -> None:
        if incomplete := [job for job, about in self._open.items() if not about.is_complete]:
            raise ScheduleError(f"job {incomplete[0]} has not been decoded by its deadline")
        for bundle in range(self._plan.num_bundles):
            self._end_steps(bundle, before=math.inf)
        self._move_out()
        self.discard_weights()

    def discard_weights(self) -> None:
        self._open.clear()
        for published in self._published:
            published.keep(set())

    # ---- the weights that a task reads ----------------------------------------------------------

    def _age(self, bundle: int) -> int:
        """Return the age of the bundle's weights.

        This is the first job whose gradient the weights do not contain completely.
        """
        return next(iter(self._steps(bundle)), self._begun)

    def _steps(self, bundle: int) -> list[int]:
        """Return the jobs of a bundle whose steps have not ended, in order, without idle turns."""
        turns = ((job, self._plan.turns[job]) for job in self._open)
        return [job for job, turn in turns if turn.bundle == bundle and turn.step is not None]

    def _read(self, job: int) -> WeightRef:
        """Return the version of weights that a task of ``job`` must read; publish it if needed."""
        bundle, due = self._plan.turns[job].bundle, job - self._staleness
        age = self._age(bundle)
        if age < due:
            raise ScheduleError(
                f"job {job} cannot be computed on weights that lack parts of job {age}: weights "
                f"may be at most {self._staleness} jobs late"
            )
        published = self._published[bundle]
        latest = published.latest
        if latest is not None and self._updates.refresh == "needed" and self._ages[bundle] >= due:
            return latest
        self._ages[bundle] = age
        return published.publish()

    def _latest(self, job: int) -> WeightRef:
        """Return the version of weights for a job that begins.

        Unless ``refresh`` is ``late``, the tasks of the job may later read newer versions.
        """
        published = self._published_of(job)
        return published.publish() if self._is_late else published.latest or self._read(job)

    def _forget(self) -> None:
        """Discard the versions of weights that neither tasks in flight nor later tasks need."""
        self._plan.turns.forget(self._open.keys() | {self._begun})
        needed = {ref for each in self._open.values() for ref in each.read}
        if self._is_late:
            needed |= {share.weights for each in self._open.values() for share in each.shares}
        for published in self._published:
            is_of_use, latest = self._updates.refresh == "needed", published.latest
            if latest is not None and (is_of_use or published.is_published):
                published.keep(needed | {latest})
            else:
                published.keep(needed)

    # ---- applying parts -------------------------------------------------------------------------

    def _apply_parts(self, results: Sequence[tuple[Learner, ModelResult]]) -> None:
        for learner, result in results:
            if learner.model.name not in self._parked:
                try:
                    learner.apply_part(result)
                except BaseException as error:  # from the user's own optimizer
                    self._park_raised(learner, error)

    def _complete(self, job: int, about: OpenJob) -> None:
        """Record the losses of a job whose parts have all arrived.

        Unless gradients are applied late, also end the steps of its bundle that are complete.
        """
        turn = self._plan.turns[job]
        if turn.step is None:  # an idle turn, whose result is zeros
            del self._open[job]
            return
        self._note(job, about.loss())
        if not self._is_late:
            self._end_steps(turn.bundle, before=math.inf)

    def _end_steps(self, bundle: int, *, before: float) -> None:
        """End the steps of a bundle's jobs below ``before``, in order, up to an incomplete job.

        If ``refresh`` is ``late``, an incomplete job is an error.
        """
        for job in [job for job in self._steps(bundle) if job < before]:
            about = self._open[job]
            if not about.is_complete:
                if self._is_late:
                    raise ScheduleError(f"job {job} has not been decoded by its deadline")
                break
            self._end_step(job, about)

    def _end_step(self, job: int, about: OpenJob) -> None:
        losses = about.loss()
        if (total := about.total.taken()) is None:
            learners = zip(self._bundle(job), losses, strict=True)
            for learner, loss in learners:
                if learner.model.name not in self._parked:
                    self._end_parts(learner, loss)
        else:
            results = self._results(job, total)
            self._park_overflown(results)
            self._step_all(results, losses)
        del self._open[job]

    def _end_parts(self, learner: Learner, loss: float) -> None:
        try:
            metrics = learner.end_step()
        except BaseException as error:  # from the user's own scheduler
            self._park_raised(learner, error)
        else:
            self.after_step.run(learner, loss=loss, metrics=metrics)

    # ---- checkpoints ----------------------------------------------------------------------------

    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        parts = {job: about.state() for job, about in self._open.items()}
        sums = [about.tensors(job) for job, about in self._open.items()]
        if self._updates.apply == "update":
            sums += [about.uses(job) for job, about in self._open.items()]
        flight = {name: tensor for each in sums for name, tensor in each.items()}
        in_flight = {j: about.shares for j, about in self._open.items()} if self._is_late else {}
        return self._snapshot(flight, unapplied=list(parts), in_flight=in_flight, parts=parts)

    def _restore_jobs(self, state: WorkloadState, flight: Tensors) -> None:
        for job in state.unapplied:
            if (versions := state.in_flight.get(job)) is None:
                used = _used_before(job, flight)
                shares = self._shares(job, self._published_of(job).publish(), used=used)
            else:
                shares = self._restored(job, versions, flight)
            about = OpenJob.restored(job, shares, state.parts[job], flight)
            about.may_repeat, self._open[job] = self._may_repeat, about
        for bundle in range(self._plan.num_bundles):  # the versions were published just now
            self._ages[bundle] = self._age(bundle)

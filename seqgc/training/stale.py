"""`TreeSum`: a sum whose bits do not depend on the order in which its summands come.

Summands stand at the leaves of a tree, in the order of their indices: 0 and 1 have one parent, 2
and 3, and so on; who has no neighbour is its own parent. A sum of two is made as soon as both are
there. So as long as one summand is missing, whichever it is, no more vectors wait than the tree has
levels.
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
from seqgc.ports import Decoding, FloatArray, MiniTask, Part, WeightedPoints, WeightRef, WeightStore
from seqgc.training.jobs import ChunkedScheme, JobPlan, Share
from seqgc.training.learner import Learner, Tensors
from seqgc.training.workload import ModelsWorkload, PartsState, WorkloadState

__all__ = ["Apply", "OpenJob", "Refresh", "StaleScheme", "StaleWorkload", "TreeSum", "Updates"]

_Node: TypeAlias = tuple[int, int]  # level, from the leaves on, and index in it


@dataclass(slots=True, eq=False)
class TreeSum:
    """Adds up ``of`` vectors; ``nodes`` are the sums that wait for their neighbours.

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
        """Take the vector of an index, once; it is the sum's own from now on."""
        level, width = 0, self.of
        while width > 1:
            neighbour = index ^ 1
            if neighbour < width:
                other = self.nodes.pop((level, neighbour), None)
                if other is None:
                    break
                with np.errstate(over="ignore", invalid="ignore"):  # found at the end
                    vector += other
            level, index, width = level + 1, index // 2, (width + 1) // 2
        self.nodes[level, index] = vector

    def taken(self) -> FloatArray | None:
        """Return the sum, all of which is there, and which is the caller's then.

        None if nothing was added.
        """
        return self.nodes.popitem()[1] if self.nodes else None


@dataclass(slots=True, eq=False)
class OpenJob:
    """A job that has begun, and whose step is not over.

    ``may_repeat``: parts that are in may come again, until it is said that none does.

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

    shares: tuple[Share, ...]  # its models'; with the weights published last when it began
    total: TreeSum = field(default_factory=lambda: TreeSum(of=0))  # of no part: not known yet
    losses: dict[int, list[LossSums]] = field(default_factory=dict)  # by part that is in
    reads: defaultdict[int | None, set[WeightRef]] = field(default_factory=lambda: defaultdict(set))
    """What has been sent of each part that is to come: the versions that its tasks read."""
    may_repeat: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all its parts are in, for good."""
        return 0 < self.total.of == len(self.losses) and not self.may_repeat

    @property
    def read(self) -> set[WeightRef]:
        """The versions that tasks read which are on their way."""
        return {ref for refs in self.reads.values() for ref in refs}

    def takes(self, part: Part) -> bool:
        """Say whether a part may come now: for the first time, or again if it says so."""
        is_next = part.again and self.may_repeat if part.index in self.losses else not part.again
        return is_next and self.total.of in (0, part.of)

    def take(self, part: Part, losses: list[LossSums]) -> None:
        """Record a part that has arrived, and the sums of each model's loss over it."""
        self.total.of = part.of
        self.losses[part.index] = losses

    def loss(self) -> list[float]:
        """Return the models' mean losses on the batch."""
        of_parts = [self.losses[part] for part in sorted(self.losses)]
        return [LossSums.total(of_model).mean for of_model in zip(*of_parts, strict=True)]

    # ---- checkpoints ----------------------------------------------------------------------------

    def state(self) -> PartsState:
        """Return what is known of it, apart from `tensors`."""
        losses = {part: list(losses) for part, losses in self.losses.items()}
        return PartsState(of=self.total.of, losses=losses, sums=list(self.total.nodes))

    def tensors(self, job: int) -> dict[str, torch.Tensor]:
        """Return copies of what waits to be added up, by names with the job's number."""
        nodes = self.total.nodes.items()
        return {_sum_name(job, *node): torch.from_numpy(each.copy()) for node, each in nodes}

    @classmethod
    def restored(
        cls,
        job: int,
        shares: tuple[Share, ...],
        state: PartsState,
        tensors: Mapping[str, torch.Tensor],
    ) -> OpenJob:
        """Return the job of which these are the state and, among others, the tensors."""
        nodes = {node: tensors[_sum_name(job, *node)].numpy() for node in state.sums}
        total, losses = TreeSum(of=state.of, nodes=nodes), dict(state.losses)
        return cls(shares, total=total, losses=losses)


def _sum_name(job: int, level: int, index: int) -> str:
    return f"parts.{job}.{level}.{index}"


Apply: TypeAlias = Literal["update", "clock"]
Refresh: TypeAlias = Literal["always", "needed", "late"]


class StaleScheme(ChunkedScheme, Protocol):
    """What training must know of a defence whose jobs come in parts."""

    @property
    def staleness(self) -> int | None: ...
    @property
    def most_again(self) -> int: ...  # parts that a failure may have applied again


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """How updates reach the weights, and which weights tasks read: see this module's head.

    Examples
    --------
    >>> Updates(apply="clock", refresh="late")
    Updates(apply='clock', refresh='late', aware=False)
    """

    apply: Apply = "update"
    refresh: Refresh = "always"
    aware: bool = False
    """Weigh an update down by how old its weights are (`seqgc.rounds.StalenessAware`)."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("apply", self.apply, get_args(Apply)),
            ("refresh", self.refresh, get_args(Refresh)),
        ):
            if value not in known:
                raise ParameterError(name, f"must be one of {', '.join(known)}", value)
        if self.refresh == "late" and self.apply != "clock":
            rule = "must be clock where weights are read exactly as late as may be"
            raise ParameterError("apply", rule, self.apply)
        if self.refresh == "late" and self.aware:
            rule = "must be left out where weights are read exactly as late as may be"
            raise ParameterError("aware", rule, self.aware)

    @property
    def publishes_each(self) -> bool:
        """Whether each part of a batch may be sent with a version of weights of its own."""
        return self.apply == "update" and self.refresh == "always"

    def require_fit(self, models: Sequence[Model], scheme: StaleScheme) -> None:
        """Refuse models, or a scheme, that this is not for, with `ParameterError`."""
        if self.refresh != "always" and scheme.staleness is None:
            rule = "must be always where nothing bounds how stale weights are"
            raise ParameterError("refresh", rule, self.refresh)
        if self.apply == "clock" and scheme.most_again:
            rule = "must be update where parts that are in may be applied again, each by itself"
            raise ParameterError("apply", rule, self.apply, "take resume=part")
        if self.apply == "update":
            also = "resume=part, and " if scheme.most_again else ""
            require_additive(models, remedy=f'{also}apply="clock", or --apply clock')


class StaleWorkload(ModelsWorkload):
    """Trains several models in turns, a batch part by part; a `seqgc.ports.Workload`.

    The arguments are those of `TorchWorkload`, and ``updates``; the ``scheme`` says besides how
    stale weights may be. Fewer bundles than jobs under way are welcome: that is what it is for.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, a model's gradient is not a sum over chunks, or a part of it
        cannot be applied by itself.
    ScheduleError
        By a method that is called out of turn, or if weights would be staler than promised.

    Examples
    --------
    Half a batch is a part, and moves the weights before the other half is computed:

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
        super().__init__(plan, store=store, precision=precision, callbacks=callbacks)
        self._open: dict[int, OpenJob] = {}  # in order of job
        self._ages = [0] * len(self._learners)  # of the latest versions (see `_age`)

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (all that has arrived)
        """Say that ``finished`` is to be in the weights that tasks of ``job`` read."""
        return True

    def begin(self, job: int) -> None:
        """Fix the batch of ``job``; jobs begin in order, without gaps."""
        if job != self._begun:
            raise ScheduleError(f"job {job} cannot begin: the next job is {self._begun}")
        due = job - self._staleness
        if job not in self._plan.turns:  # else its weights could not be published before
            self._plan.turns.take(job, may_follow=lambda last: not self._is_late or last < due)
        if self._is_late:
            self._end_steps(self._plan.turns[job].bundle, before=due)
        shares = [
            self._share(index, job, self._latest(index, job)) for index in self._plan.bundle(job)
        ]
        self._open[job] = OpenJob(tuple(shares), may_repeat=self._may_repeat)
        self._begun = job + 1
        self._forget()

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the data points of a mini-task, at the weights that it is to read now."""
        job = mini_task.job
        if job not in self._open:
            raise ScheduleError(f"job {job} is not in flight: {self._begun} have begun")
        about, points = self._open[job], []
        for index, share in zip(self._plan.bundle(job), about.shares, strict=True):
            weights = share.weights if self._is_late else self._read(index, job)
            about.reads[mini_task.cover].add(weights)
            at = replace(share, weights=weights)
            points.append(at.resolve(mini_task.chunks, mini_task.coefficients))
        return tuple(points)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Take a part of a job's gradient, or all of it, as long as `result_form` says."""
        job, part = decoding.job, decoding.part or Part(index=0, of=1)
        about = self._open.get(job)
        if about is None or not about.takes(part):
            which = f"part {part.index} of {part.of} of job {job}"
            raise ScheduleError(f"{which} cannot be taken: its job is not open, or it is in")
        kept = self._vector(job, gradient)
        results = self._results(job, kept)
        weight = decoding.terms[0].weight if decoding.part and decoding.terms else 1.0
        about.take(part, [result.sums.times(1 / weight) for _, result in results])
        about.reads.pop(part.index if decoding.part else None, None)
        if self._plan.turns[job].step is not None:
            self._park_overflown(results)
            if self._updates.apply == "clock":
                about.total.add(part.index, kept)
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
        if left := [job for job, about in self._open.items() if not about.is_complete]:
            raise ScheduleError(f"job {left[0]} has not been decoded by its deadline")
        for bundle in range(self._plan.num_bundles):
            self._end_steps(bundle, before=math.inf)
        self.abandon()

    def abandon(self) -> None:
        self._open.clear()
        for learner in self._learners:
            learner.keep(set())

    # ---- which weights a task reads -------------------------------------------------------------

    def _age(self, bundle: int) -> int:
        """Return up to which job the weights of a bundle's models hold all of theirs."""
        return next(iter(self._steps(bundle)), self._begun)

    def _steps(self, bundle: int) -> list[int]:
        """Return the open jobs that are steps of a bundle, in order."""
        turns = ((job, self._plan.turns[job]) for job in self._open)
        return [job for job, turn in turns if turn.bundle == bundle and turn.step is not None]

    def _read(self, index: int, job: int) -> WeightRef:
        """Return the version that tasks of ``job`` read of a model, published if it is not."""
        age, due = self._age(self._plan.turns[job].bundle), job - self._staleness
        if age < due:
            raise ScheduleError(
                f"job {job} cannot be computed on weights that lack parts of job {age}: they may "
                f"be {self._staleness} jobs late"
            )
        learner = self._learners[index]
        latest = learner.latest
        if latest is not None and self._updates.refresh == "needed" and self._ages[index] >= due:
            return latest
        self._ages[index] = age
        return learner.publish()

    def _latest(self, index: int, job: int) -> WeightRef:
        """Return a version for a job that begins: what its tasks read, or read at first."""
        if self._is_late:
            return self._learners[index].publish()
        return self._learners[index].latest or self._read(index, job)

    def _forget(self) -> None:
        """Discard the versions that no part on its way reads, and that none will read."""
        self._plan.turns.forget(self._open.keys() | {self._begun})  # which may have been tried
        needed = {ref for each in self._open.values() for ref in each.read}
        if self._is_late:
            needed |= {share.weights for each in self._open.values() for share in each.shares}
        for learner in self._learners:
            is_of_use = self._updates.refresh == "needed" or learner.is_published
            learner.keep(needed | {learner.latest} if learner.latest and is_of_use else needed)

    # ---- what becomes of a part -----------------------------------------------------------------

    def _apply_parts(self, results: Sequence[tuple[Learner, ModelResult]]) -> None:
        for learner, result in results:
            if learner.model.name not in self._parked:
                try:
                    learner.apply_part(result)
                except BaseException as error:  # of the user's own optimizer
                    self._park_raised(learner, error)

    def _complete(self, job: int, about: OpenJob) -> None:
        """Note what a job came to, all of whose parts are in, and end steps that may end."""
        turn = self._plan.turns[job]
        if turn.step is None:  # of zeros, for nobody
            del self._open[job]
            return
        self._note(job, about.loss())
        if not self._is_late:
            self._end_steps(turn.bundle, before=math.inf)

    def _end_steps(self, bundle: int, *, before: float) -> None:
        """End a bundle's steps that are complete, in their order; all ``before`` a job must be."""
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
            for (learner, result), loss in zip(results, losses, strict=True):
                if learner.model.name not in self._parked:
                    self._step(learner, result, loss=loss)
        del self._open[job]

    def _end_parts(self, learner: Learner, loss: float) -> None:
        try:
            about = learner.end_step()
        except BaseException as error:  # of the user's own scheduler
            self._park_raised(learner, error)
        else:
            self.aftermath.follow(learner, loss=loss, about=about)

    # ---- checkpoints ----------------------------------------------------------------------------

    def snapshot(self) -> tuple[WorkloadState, dict[str, Tensors]]:
        parts = {job: about.state() for job, about in self._open.items()}
        sums = [about.tensors(job) for job, about in self._open.items()]
        flight = {name: tensor for each in sums for name, tensor in each.items()}
        in_flight = {j: about.shares for j, about in self._open.items()} if self._is_late else {}
        return self._snapshot(flight, unapplied=list(parts), in_flight=in_flight, parts=parts)

    def _restore_jobs(self, state: WorkloadState, flight: Tensors) -> None:
        for job in state.unapplied:
            if (versions := state.in_flight.get(job)) is None:
                refs = [self._learners[index].publish() for index in self._plan.bundle(job)]
                shares = tuple(map(self._share, self._plan.bundle(job), [job] * len(refs), refs))
            else:
                shares = self._restored(job, versions, flight)
            about = OpenJob.restored(job, shares, state.parts[job], flight)
            about.may_repeat, self._open[job] = self._may_repeat, about
        for index in range(len(self._learners)):  # of what has just been published
            self._ages[index] = self._age(index // self._plan.jobs_per_round)

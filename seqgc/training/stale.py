"""`StaleWorkload`: training where a batch comes in parts, each applied by itself.

Theory of operation
-------------------
A job is one batch, and one step of each of its models. A coded gradient is the job's in one piece,
computed on weights that were fixed when the job began. Here workers go on by themselves: part p of
job t is one worker's share, chunk p of the batch, and the weights that it is computed on are those
of the moment at which it is sent. What has arrived by then is in them, the worker's own update of
before among it (*read my writes*); what others still compute is not: the weights are *stale*.

A defence says by how much at most: weights of a part of job t hold every part of its models' jobs
up to ``t - staleness - 1``. Its policy sees to that; here it is checked whenever a task is made.
How updates reach the weights, and which weights are read, is the user's choice (`Updates`).

*At most once.* Each part is taken once, or `ScheduleError`. A checkpoint holds which parts are in,
beside the weights that they are in; a resumed run asks again for the others. A defence whose
`most_again` is not 0 has some parts come again: each moves the weights again, and a job is over
when a decoding says so (`Decoding.ends`), its loss being what the parts said the last time.

*Versions* of weights are kept while a part that has been sent reads them, and its answer is not in.
A step is at its end (learning rate, metrics, callbacks, validation) when all its parts are in for
good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from seqgc.errors import ScheduleError
from seqgc.ports import Decoding, FloatArray, MiniTask, Part, WeightedPoints, WeightRef, WeightStore
from seqgc.training._jobs import JobPlan
from seqgc.training._learner import Learner, Tensors
from seqgc.training._models import ModelsWorkload, WorkloadState
from seqgc.training._open_jobs import OpenJob
from seqgc.training._result import ModelResult
from seqgc.training._updates import Apply, Refresh, StaleScheme, Updates
from seqgc.training.model import Model, Precision

__all__ = ["Apply", "Refresh", "StaleScheme", "StaleWorkload", "Updates"]


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

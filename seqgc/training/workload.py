"""The master's side: models to jobs, gradients to weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seqgc.errors import ScheduleError
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightStore
from seqgc.training._jobs import ChunkedScheme, JobPlan, Share
from seqgc.training._learner import Tensors
from seqgc.training._models import FLIGHT, ModelsWorkload, WorkloadState
from seqgc.training._turns import Turn
from seqgc.training.model import Model, Precision

__all__ = ["FLIGHT", "ChunkedScheme", "TorchWorkload", "WorkloadState"]


class TorchWorkload(ModelsWorkload):
    """Trains several models at once, job by job; a `seqgc.ports.Workload`.

    The M models are taken in M / k bundles of ``k = jobs_per_round``. Job ``t`` is one step of
    every model of bundle ``t mod M/k``, their step ``t // (M/k)``, as long as no bundle is done:
    one that has taken all its ``steps`` (None: there is no end), or whose models are all parked,
    gives its turns to the others (`seqgc.training._turns`). The job's weights hold exactly the
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

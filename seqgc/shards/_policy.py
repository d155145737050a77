"""`ShardPolicy`: free workers take shards of the data, and never wait for each other.

Theory of operation
-------------------
Job t is one step on batch t, and has ``n`` parts. In the order of the data, the parts of all jobs
are cut into shards of ``M`` consecutive parts (`Stretches`). A worker gets a shard only when it is
free. So a slow worker computes few shards, and all workers finish at nearly the same time.

- *Free.* A worker without a shard takes the next shard. It is sent one part at a time.
- *Answer.* The result becomes an `Update`, which applies this part by itself, and the worker is
  sent the next part of its shard. After the last part, the worker is free.
- *Failure.* The shard is given out again after the other shards of its ``M`` jobs. The worker that
  takes it continues at the first part that has not been applied. This is another worker, unless all
  other workers fail. The worker that failed rests, and then takes another shard. If the part has
  failed before, the shard also waits. If a worker fails twice in a row while another worker does
  not fail, it may be dead: then its failure does not count against the part, because many dead
  workers may try the same part. The run ends if a part has failed 20 times in a row. With
  ``resume="shard"``, the rule of the paper, the shard begins again at its first part. Then every
  part may succeed at times although the shard is never completed, so the run also ends if a shard
  has been lost ``20 M`` times in a row. (Both limits are larger if ``max_attempts`` exceeds 20.)

*Clocks.* Job t is a clock of the data. It closes (`Close`, reason "dealt") when all its parts, and
all parts of earlier jobs, have arrived and will not be computed again.

*Once.* One worker at a time has a part, and an answer counts only if it belongs to the newest task
of its worker. So each part is applied exactly once. With ``resume="shard"`` it is applied at least
once: up to ``M - 1`` parts of a lost shard are applied again. `Part.again` marks these updates, and
`Decoding.ends` lists the jobs that are complete.

*Addresses.* The round of a task is the number of tasks that its worker was sent before, and its
attempt is always 0.

Source: AntDT (2024), V-C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import Action, Dispatch, FloatArray
from seqgc.rounds import ClosingRule, Engine, EngineTask, Loss, part_task, part_update
from seqgc.shards._progress import Progress
from seqgc.shards._service import Resume
from seqgc.shards._stretches import Standing, Stretches, StretchState

__all__ = ["ShardPolicy", "ShardPolicyState"]


class ShardPolicyState(TypedDict):
    """The state of a `ShardPolicy`, as JSON data; made by its `snapshot`."""

    jobs: int  # the number of jobs of the run
    tasks: list[int]  # by worker: the number of tasks that it was sent
    shards: StretchState
    givers: list[tuple[int, list[int]]]  # (job, workers that sent parts), for jobs not closed


class ShardPolicy(Engine[int]):
    """A policy that runs ``num_jobs`` jobs of ``n`` parts in shards of ``M`` >= 1 parts.

    The algorithm is described in this module's docstring. Of the ``rule``, only the time limit and
    the number of attempts are used (`seqgc.rounds.Engine`). ``loads`` (n,) are the shares of a
    batch that the workers compute in a task, by default ``1/n``. ``resume`` says whether a lost
    shard continues at its first missing part, or is computed again as a whole.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    Worker 1 is slow, so that worker 0 computes four of the six parts.

    >>> from seqgc.master import run
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.virtual import VirtualBackend
    >>> pace = ByRound(latencies_s=[[1.0, 3.5]], rates=[[0.0]])
    >>> policy = ShardPolicy(2, ClosingRule(), num_jobs=3)
    >>> run(policy, VirtualBackend(2, pace))
    >>> policy.tasks, policy.rounds
    ((4, 2), 3)
    """

    def __init__(
        self,
        n: int,
        rule: ClosingRule,
        *,
        num_jobs: int,
        M: int = 1,
        resume: Resume = "part",
        loads: FloatArray | None = None,
    ) -> None:
        super().__init__(n, rule, num_jobs=num_jobs)
        self._stretches = Stretches(n=n, M=M, jobs=num_jobs, resume=resume)
        self._M, self._repeats = M, resume == "shard" and M > 1  # parts of a lost shard come again
        self._loads = np.full(n, 1 / n) if loads is None else loads
        if self._loads.shape != (n,):
            raise ParameterError(
                "loads", f"must have shape ({n},), one load for each worker", self._loads.shape
            )
        self._counts = [0] * n  # tasks that were sent, by worker
        self._following: dict[int, int] = {}  # by worker: the next part of its shard
        self._progress = Progress(n)

    @property
    def rounds(self) -> int:
        """The number of jobs whose clocks are closed; jobs close in order."""
        return self._progress.closed

    @property
    def tasks(self) -> tuple[int, ...]:
        """The number of tasks that each worker has been sent, (n,)."""
        return tuple(self._counts)

    @property
    def _goal(self) -> str:
        return f"clock {self.rounds} of the data"

    def end_after(self, job: int) -> None:
        """End the run after ``job``, or after the latest job that has begun if that is later."""
        self._num_jobs = min(self._num_jobs, max(job, self._stretches.latest) + 1)
        self._stretches.end_at(self._num_jobs)

    # ---- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> ShardPolicyState:
        """Return the state that another policy needs to continue the run, as JSON values.

        The state says which updates this policy has given out. Take it when all these updates have
        been applied, as they are whenever `seqgc.master.run` rests, and store it with the weights
        of that moment. With ``resume="part"``, a resumed run then applies each update exactly once.
        """
        return ShardPolicyState(
            jobs=self.num_jobs,
            tasks=list(self._counts),
            shards=self._stretches.snapshot(),
            givers=self._progress.givers(),
        )

    def _recall(self, state: Mapping[str, Any]) -> None:
        self._counts = [require_int("tasks", count, least=0) for count in state["tasks"]]
        if len(self._counts) != self._n:
            rule = f"must hold {self._n} numbers, one for each worker"
            raise ParameterError("tasks", rule, self._counts)
        givers = [
            (job, [require_int("givers", each, least=0, most=self._n - 1) for each in workers])
            for job, workers in state["givers"]
        ]
        self._stretches.end_at(self._num_jobs)
        self._stretches.restore(state["shards"])
        self._progress.recall(self._stretches.first, self._stretches.left(), givers)

    def skip_to(self, job: int, *, round: int) -> None:  # noqa: ARG002 (a round is a job)
        """Begin with ``job``, as if all earlier jobs had ended; only before the start."""
        self._stretches.skip_to(job)
        self._progress.recall(job, {}, ())

    # ---- decisions -------------------------------------------------------------------------------

    def _next(self, worker: int) -> tuple[int, int] | None:
        part = self._following.pop(worker, None)
        if part is None:
            is_alone = len(self._failing.keys() | {worker}) == self._n  # nobody else could do it
            part = self._stretches.take(worker, again=is_alone)
        if part is None:
            return None
        round = self._counts[worker]
        self._counts[worker] += 1
        return round, part

    def _done(self, task: EngineTask[int], actions: list[Action]) -> None:
        worker, stand = task.worker, self._stretches.standing(task.worker)
        job, index = part = divmod(stand.part, self._n)
        self._retries.succeeded(part)
        if stand.settles:
            self._retries.succeeded(_shard(stand))
        self._progress.answer(job, worker, self._now)
        closes = self._progress.settle([each // self._n for each in stand.settles], self._now)
        update = part_update(
            part_task(job, index),
            of=self._n,
            worker=worker,
            round=task.round,
            again=stand.again,
            ends=tuple(j for each in closes for j in each.jobs) if self._repeats else None,
        )
        actions += [update, *closes]
        self._forget_round(task.round)
        if (following := self._stretches.advance(worker)) is not None:
            self._following[worker] = following

    def _lost(self, loss: Loss[int], actions: list[Action]) -> None:
        worker, stand = loss.task.worker, self._stretches.standing(loss.task.worker)
        job, index = part = divmod(stand.part, self._n)
        may_be_dead = loss.is_repeated and len(self._failing) < self._n
        part_s = 0.0
        if not may_be_dead:
            self._retries.failed(_shard(stand))
            part_s = self._retries.failed(part)
        if self._retries.exhausted(part):
            raise self._error(f"part {index} of job {job} fails again and again", worker)
        if self._retries.exhausted(_shard(stand), times=self._M):
            raise self._error("a shard is lost again and again: take a smaller M", worker)
        self._alarms.set(self._now + part_s, partial(self._put_back, worker))
        self._release(loss.task, actions, rest_s=max(part_s, loss.wait_s))
        self._forget_round(loss.task.round)
        self._ask_idle()

    def _put_back(self, worker: int, actions: list[Action]) -> None:  # noqa: ARG002 (as all alarms)
        self._stretches.lost(worker)
        self._ask_idle()

    # ---- tasks -----------------------------------------------------------------------------------

    def _left(self, task: EngineTask[int], at: float) -> None:
        assert task.work is not None
        self._progress.leave(task.work // self._n, at)

    def _dispatches(self, tasks: Sequence[EngineTask[int]]) -> list[Dispatch]:
        works = {task.worker: task.work for task in tasks if task.work is not None}
        assignment = {w: (part_task(*divmod(part, self._n)),) for w, part in works.items()}
        return [Dispatch(round=tasks[0].round, attempt=0, assignment=assignment, loads=self._loads)]


def _shard(stand: Standing) -> tuple[int, int, int]:
    """Return the key under which a shard's failures are counted.

    The keys of workers, ``(worker,)``, and of parts, ``(job, part)``, are shorter.
    """
    return stand.back, 0, 0

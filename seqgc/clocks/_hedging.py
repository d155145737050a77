"""Hedged requests: a task that takes long is sent to a second worker.

Theory of operation
-------------------
The jobs are computed one after the other, and worker p computes the p-th part of each job. A part
is *late* when its task has been unanswered for longer than ``factor`` times the ``q``-quantile of
the latest ``8 n`` answer times. No part is late before the run has had ``n`` answers. A worker that
has nothing else to do then gets a copy of the late part. The first answer counts, and the other
task is called off. If an answer cannot be used (`seqgc.ports.Failure.flaws`), the part is given to
another worker. Only if all other workers fail, the same worker may compute the part again.

With ``q=0.95, factor=1``, the default, this is the rule of Dean and Barroso, "The tail at scale",
2013: send a second request when the first one has been outstanding for longer than the 95th
percentile. With ``q=0.5, factor=3`` it is the rule of Cubed (``cubed/runtime/backup.py``): start a
backup of a task when the task has taken three times the median.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypedDict

import numpy as np

from seqgc import ports
from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import Action, Dispatch, FloatArray, IntArray, Payload
from seqgc.rounds import (
    ClosingRule,
    Engine,
    EngineTask,
    Loss,
    PolicyDefence,
    Records,
    part_task,
    part_update,
)
from seqgc.schemes import Kind, register

__all__ = ["Hedge", "HedgePolicy"]

_WINDOW: Final = 8  # the quantile is taken of the latest _WINDOW * n answer times


@register("hedge")
@dataclass(frozen=True, kw_only=True)
class Hedge(PolicyDefence):
    """Uncoded rounds in which a late task is sent to a second worker; see this module's docstring.

    A task is late when it has been unanswered for longer than ``factor`` > 0 times the
    ``q``-quantile of the latest answer times, with 0 < ``q`` < 1. `HedgePolicy` is the policy.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> Hedge(n=8), Hedge(n=8, q=0.5, factor=3.0).spec
    (Hedge(n=8, q=0.95, factor=1.0), 'hedge:q=0.5,factor=3.0')
    """

    n: int
    q: float = 0.95
    factor: float = 1.0
    exact: ClassVar[bool] = True
    kind: ClassVar[Kind] = "exact"

    def __post_init__(self) -> None:
        self._keep_integers("n")
        for name in ("q", "factor"):
            object.__setattr__(self, name, float(require_number(name, getattr(self, name))))
        if not 0 < self.q < 1:
            raise ParameterError("q", "must satisfy 0 < q < 1 (a quantile)", self.q)
        if not self.factor > 0:
            raise ParameterError("factor", "must be > 0", self.factor)

    @property
    def tolerates(self) -> str:
        return "a late task is sent to a second worker that has nothing else to do"

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.full(self.n, sizes.max())  # any worker may compute any part

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has no weights to judge)
    ) -> HedgePolicy:
        return HedgePolicy(self, rule, num_jobs=num_jobs, shares=self.loads_of_batches(batches))


class HedgeState(TypedDict):
    """The state of a `HedgePolicy`, as JSON data; made by its `snapshot`."""

    jobs: int  # the number of jobs of the run
    job: int  # the open job
    givers: list[tuple[int, int]]  # (part, worker that computed it), for the open job


class HedgePolicy(Engine[int]):
    """A policy that runs ``num_jobs`` jobs one after the other; each task is one part of a job.

    ``shares`` (n,) are the loads of the parts, as shares of a batch. Of the ``rule``, only the time
    limit and the number of attempts are used. For the algorithm see this module's docstring.

    Examples
    --------
    The second task of worker 2 takes ten seconds, and worker 0 is asked for a copy after one.

    >>> from seqgc.master import run
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.virtual import VirtualBackend
    >>> pace = ByRound(latencies_s=[[1.0, 1.0, 1.0], [1.0, 1.0, 10.0]], rates=[[0.0]])
    >>> policy, seconds = Hedge(n=3).policy(ClosingRule(), num_jobs=2), []
    >>> run(policy, VirtualBackend(3, pace), observe=lambda seen: (
    ...     seconds.append(seen.record.duration_s) if isinstance(seen, ports.Close) else None))
    >>> seconds
    [1.0, 2.0]
    """

    def __init__(
        self, hedge: Hedge, rule: ClosingRule, *, num_jobs: int, shares: FloatArray
    ) -> None:
        super().__init__(hedge.n, rule, num_jobs=num_jobs)
        self._hedge, self._shares = hedge, shares
        self._job = 0
        self._givers: dict[int, int] = {}  # by part of the open job, the worker that computed it
        self._todo = dict.fromkeys(range(hedge.n))  # parts that no worker has
        self._late: dict[int, None] = {}  # parts that are to be copied, in order
        self._seconds: deque[float] = deque(maxlen=_WINDOW * hedge.n)
        self._limit_s = math.nan  # a task is late after this time; nan: to be computed again
        self._workers: dict[int, list[int]] = {}  # by part, the workers that compute it
        self._records = Records(hedge.n, "everyone")

    @property
    def rounds(self) -> int:
        """The number of jobs that are complete."""
        return self._job

    def end_after(self, job: int) -> None:
        """End the run after ``job``, or after the open job if that is later."""
        self._num_jobs = min(self._num_jobs, max(job, self._job) + 1)

    def snapshot(self) -> HedgeState:
        return HedgeState(jobs=self._num_jobs, job=self._job, givers=sorted(self._givers.items()))

    def _recall(self, state: Mapping[str, Any]) -> None:
        self._job = require_int("job", state["job"], least=0, most=state["jobs"])
        most = self._n - 1
        for part, worker in state["givers"]:
            index = require_int("givers", part, least=0, most=most)
            self._givers[index] = require_int("givers", worker, least=0, most=most)
            self._todo.pop(index, None)
        self._records.recall(self._job, self._givers.values())

    def skip_to(self, job: int, *, round: int) -> None:  # noqa: ARG002 (a round is a job)
        """Begin with ``job``, as if all earlier jobs had ended; only before the start."""
        self._job = job

    # ---- decisions -------------------------------------------------------------------------------

    def _next(self, worker: int) -> tuple[int, int] | None:
        if self.done:
            return None
        part = worker if worker in self._todo and self._may(worker, worker) else None
        if part is None:  # the part of a worker that failed, or that has another part
            left = (p for p in self._todo if not (self._has_room(p) and self._may(p, p)))
            parts = itertools.chain(left, self._late)
            part = next((each for each in parts if self._may(worker, each)), None)
        if part is None:
            return None
        self._todo.pop(part, None)
        self._late.pop(part, None)
        self._workers.setdefault(part, []).append(worker)
        return self._job, part

    def _left(self, task: EngineTask[int], at: float) -> None:
        self._records.leave(task.round, at)
        if len(self._seconds) >= self._n:
            if math.isnan(self._limit_s):
                quantile_s = float(np.quantile(self._seconds, self._hedge.q))
                self._limit_s = self._hedge.factor * quantile_s
            self._alarms.set(at + self._limit_s, partial(self._copy, task), of=("late", task))

    def _copy(self, task: EngineTask[int], actions: list[Action]) -> None:  # noqa: ARG002
        assert task.work is not None
        if task.is_out and len(self._workers[task.work]) == 1:
            self._late[task.work] = None
            self._ask_idle(None if self._flawed else len(self._late))

    def _done(self, task: EngineTask[int], actions: list[Action]) -> None:
        job, part, worker = task.round, task.work, task.worker
        assert part is not None
        self._seconds.append(self._now - task.left_at)
        self._limit_s = math.nan
        self._givers[part] = worker
        self._late.pop(part, None)
        self._records.answer(job, worker, self._now)
        mini_task = part_task(job, part, slot=part)
        actions.append(part_update(mini_task, of=self._n, worker=worker, round=job))
        for other in self._workers.pop(part):
            if other != worker:
                self._call_off(self._held(other)[0], actions)
        self._flawed.pop(part, None)
        if self._todo or self._late:
            self._ask_idle()
        if len(self._givers) == self._n:
            actions.append(ports.Close(record=self._records.close(job, self._now), jobs=(job,)))
            self._forget_round(job)
            self._job, self._givers = job + 1, {}
            self._todo = dict.fromkeys(range(self._n))
            self._ask(range(self._n))

    def _lost(self, loss: Loss[int], actions: list[Action]) -> None:
        part = loss.task.work
        assert part is not None
        if loss.is_flawed:
            self._flawed.setdefault(part, set()).add(loss.task.worker)
        self._release(loss.task, actions, rest_s=loss.wait_s)
        self._workers[part].remove(loss.task.worker)
        if self._workers[part]:
            self._late[part] = None  # it was late before: two workers had it
        else:
            self._todo[part] = None
            self._late.pop(part, None)
        self._ask_idle()

    def _dispatches(self, tasks: Sequence[EngineTask[int]]) -> list[Dispatch]:
        job, attempt = tasks[0].round, tasks[0].attempt
        parts = {task.worker: task.work for task in tasks if task.work is not None}
        assignment = {who: (part_task(job, part, slot=part),) for who, part in parts.items()}
        loads = np.zeros(self._n)
        loads[list(parts)] = self._shares[list(parts.values())]
        return [Dispatch(round=job, attempt=attempt, assignment=assignment, loads=loads)]

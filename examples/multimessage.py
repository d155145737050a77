"""Uncoded computation with several answers from each worker, as a plug-in: ``uc-mmc:r=2``.

Worker ``i`` computes the chunks ``i, …, i + r - 1`` (modulo ``n``), and answers each as soon as it
is done. A job ends when each chunk has arrived from any worker. Source: Ozfatura, Ulukus, Gündüz
(2020), "Straggler-Aware Distributed Learning: Communication-Computation Latency Trade-Off".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from seqgc import rounds
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Action, Capability, Close, Dispatch, FloatArray, IntArray, Payload
from seqgc.rounds import ClosingRule, Engine, EngineTask, Loss, PolicyDefence
from seqgc.schemes import Kind, register

Chunks = tuple[int, ...]


@register("uc-mmc")
@dataclass(frozen=True, kw_only=True)
class MultiMessage(PolicyDefence):
    """Each of the ``n`` chunks is computed by ``r`` workers, in different order.

    Examples
    --------
    >>> MultiMessage(n=8, r=3).spec, MultiMessage(n=8, r=3).worker_loads.tolist()[0]
    ('uc-mmc:r=3', 0.375)
    """

    n: int
    r: int = 2
    exact: ClassVar[bool] = True
    kind: ClassVar[Kind] = "exact"

    def __post_init__(self) -> None:
        self._keep_integers("n", "r")
        if not 1 <= self.r <= self.n:
            raise ParameterError("r", f"must satisfy 1 <= r <= n (uc-mmc), n={self.n}", self.r)

    @property
    def tolerates(self) -> str:
        return f"a chunk counts as soon as one of its {self.r} workers has computed it"

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(self.r / self.n)

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.array([sizes[self.window(i)].sum() for i in range(self.n)])

    def window(self, worker: int) -> list[int]:
        """Return the chunks of a worker, in the order in which it computes them."""
        return [(worker + place) % self.n for place in range(self.r)]

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has no weights to judge)
    ) -> MultiMessagePolicy:
        sizes = self.cut(batches[0]) / batches[0] if len(set(batches)) == 1 else None
        return MultiMessagePolicy(self, rule, num_jobs, sizes)


class MultiMessagePolicy(Engine[Chunks]):
    """A policy that runs one job after the other. The work of a task is a list of chunks."""

    needs: Final = frozenset[Capability]({"partial"})
    counts_called_off = True

    def __init__(
        self, of: MultiMessage, rule: ClosingRule, num_jobs: int, shares: FloatArray | None
    ) -> None:
        super().__init__(of.n, rule, num_jobs=num_jobs)
        self._of, self._job = of, 0
        self._shares = (of.chunk_fractions if shares is None else shares).tolist()
        self._givers: dict[int, int] = {}  # by chunk that has arrived: the worker
        self._records = rounds.Records(of.n, "dealt")

    @property
    def rounds(self) -> int:
        return self._job

    def end_after(self, job: int) -> None:
        self._num_jobs = min(self._num_jobs, max(job, self._job) + 1)

    def snapshot(self) -> object:
        return {"jobs": self._num_jobs, "job": self._job, "givers": sorted(self._givers.items())}

    def _recall(self, state: Mapping[str, Any]) -> None:
        self._job = require_int("job", state["job"], least=0, most=state["jobs"])
        for pair in state["givers"]:
            chunk, worker = (require_int("givers", i, least=0, most=self._n - 1) for i in pair)
            self._givers[chunk] = worker
        self._records.recall(self._job, self._givers.values())

    def _next(self, worker: int) -> tuple[int, Chunks] | None:
        """Return the missing chunks of the worker's window, or else those without a worker."""
        held = {c for queue in self._queues.values() for task in queue for c in task.work or ()}
        mine = [c for c in self._of.window(worker) if c not in self._givers]
        lost = [c for c in range(self._n) if c not in self._givers and c not in held]
        may = [c for c in mine or lost[: self._of.r] if self._may(worker, (c,))]
        return (self._job, tuple(may)) if may and not self.done else None

    def _left(self, task: EngineTask[Chunks], at: float) -> None:
        self._records.leave(task.round, at)

    def _part_done(self, task: EngineTask[Chunks], slot: int, actions: list[Action]) -> str | None:
        return self._arrive(task, (slot,), actions)

    def _done(self, task: EngineTask[Chunks], actions: list[Action]) -> str | None:
        return self._arrive(task, task.work or (), actions)

    def _arrive(self, task: EngineTask[Chunks], of: Chunks, actions: list[Action]) -> str | None:
        job, worker = task.round, task.worker
        new = [chunk for chunk in of if chunk not in self._givers]
        for chunk in new:
            self._givers[chunk] = worker
            self._records.answer(job, worker, self._now)
            mini_task = rounds.part_task(job, chunk, slot=chunk)
            actions.append(rounds.part_update(mini_task, of=self._n, worker=worker, round=job))
        if len(self._givers) == self._n:
            actions.append(Close(record=self._records.close(job, self._now), jobs=(job,)))
            self._call_off_all(job, [i for i in range(self._n) if self._held(i)], actions)
            self._forget_round(job)
            self._job, self._givers, self._flawed = job + 1, {}, {}
            self._ask(range(self._n))
        return None if new else "another worker has computed this chunk before"

    def _lost(self, loss: Loss[Chunks], actions: list[Action]) -> None:
        for chunk in (loss.task.work or ()) if loss.is_flawed else ():
            self._flawed.setdefault((chunk,), set()).add(loss.task.worker)
        self._release(loss.task, actions, rest_s=loss.wait_s)
        self._ask_idle()

    def _dispatches(self, tasks: Sequence[EngineTask[Chunks]]) -> list[Dispatch]:
        job, work = tasks[0].round, {task.worker: task.work or () for task in tasks}
        items = {i: tuple(self._shares[chunk] for chunk in work[i]) for i in work}
        loads = np.array([sum(items.get(worker, ())) for worker in range(self._n)])
        mini = {i: tuple(rounds.part_task(job, c, slot=c) for c in work[i]) for i in work}
        at = {"round": job, "attempt": tasks[0].attempt}
        return [Dispatch(**at, assignment=mini, loads=loads, item_loads=items)]

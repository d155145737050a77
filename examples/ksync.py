"""K-sync SGD, as a plug-in: ``--plugin examples.ksync``, ``k-sync:k=6``.

Dutta, Joshi, Ghosh, Dube, Nagpurkar (2018), "Slow and Stale Gradients Can Win the Race",
arXiv:1803.01113. All workers compute gradients of the same weights. As soon as ``k`` of them have
answered, the others are called off, and all workers begin again with the new weights. Here no data
are lost: a part whose task was called off is given out again in a later step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import Action, IntArray, Payload
from seqgc.rounds import ClosingRule, EngineTask, Loss, PolicyDefence
from seqgc.schemes import Kind, register
from seqgc.shards import ShardPolicy


@register("k-sync")
@dataclass(frozen=True, kw_only=True)
class KSync(PolicyDefence):
    """Each step uses the first ``k`` of ``n`` answers.

    Examples
    --------
    >>> KSync(n=8, k=6).spec, KSync(n=8, k=6).kind
    ('k-sync:k=6', 'stale')
    """

    n: int
    k: int
    exact: ClassVar[bool] = False
    kind: ClassVar[Kind] = "stale"

    def __post_init__(self) -> None:
        self._keep_integers("n", "k")
        if not 1 <= self.k <= self.n:
            raise ParameterError("k", f"must satisfy 1 <= k <= n (k-sync), n={self.n}", self.k)

    @property
    def tolerates(self) -> str:
        return f"each step does without the {self.n - self.k} slowest workers"

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.full(self.n, sizes.max())  # any worker may compute any part

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has no weights to judge)
    ) -> KSyncPolicy:
        return KSyncPolicy(self.k, self.n, rule, num_jobs, self.loads_of_batches(batches))


class KSyncPolicy(ShardPolicy):
    """Parts of the data, given out in steps that end after ``k`` answers."""

    def __init__(self, k: int, n: int, rule: ClosingRule, num_jobs: int, loads: np.ndarray) -> None:
        super().__init__(n, rule, num_jobs=num_jobs, loads=loads)
        self._k, self._answered = k, 0

    def _next(self, worker: int) -> tuple[int, int] | None:
        return None if self._answered else super()._next(worker)  # else the step is under way

    def _done(self, task: EngineTask[int], actions: list[Action]) -> None:
        self._answered += 1
        super()._done(task, actions)
        self._end_step(actions)

    def _lost(self, loss: Loss[int], actions: list[Action]) -> None:
        super()._lost(loss, actions)
        self._end_step(actions)

    def _end_step(self, actions: list[Action]) -> None:
        """End the step if it has ``k`` answers, or all that can still arrive."""
        if self._answered >= self._k or not self._is_at_work:
            self._answered = 0
            tasks = [task for queue in self._queues.values() for task in queue]
            for task in [task for task in tasks if task.is_out]:
                self._stretches.lost(task.worker, called_off=True)
                self._call_off(task, actions)
            self._ask(range(self._n))

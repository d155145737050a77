"""`Losses`: when a shard that was lost, and its worker, are tried again, and when never more."""

from __future__ import annotations

from seqgc.rounds import ClosingRule, Retries
from seqgc.shards._stretches import Standing

__all__ = ["Losses"]


class Losses:
    """How often workers, parts and shards have failed in a row, of ``n`` workers and ``M`` parts.

    The run is hopeless if every worker has failed 20 times in a row (see `Retries`), if a part has
    failed 20 times, or if a shard has been lost ``20 M`` times without being done. The last limit
    is for shards that begin again after each loss: each of their parts may arrive now and then, but
    never all of them.

    If the worker's last task has failed as well, and not all workers are failing, a failure counts
    only against the worker, and not against the part: the worker may be dead, and many dead workers
    may try the same part.

    Examples
    --------
    >>> losses = Losses(2, M=3, rule=ClosingRule())
    >>> stand = Standing(part=4, again=False, back=3, settles=range(4, 4))
    >>> losses.lost(1, stand), losses.hopeless(stand), losses.is_alone(0), losses.is_alone(1)
    ((0.0, 0.0), '', True, False)
    """

    def __init__(self, n: int, *, M: int, rule: ClosingRule) -> None:
        self._n, self._M = n, M
        self._retries = Retries(rule)
        self._failing = set[int]()  # workers whose newest task failed

    def answered(self, worker: int, stand: Standing) -> None:
        """Take note that a worker's part is in, which may settle its shard."""
        self._failing.discard(worker)
        for what in ((worker,), divmod(stand.part, self._n)):
            self._retries.succeeded(what)
        if stand.settles:
            self._retries.succeeded(_shard(stand))

    def lost(self, worker: int, stand: Standing) -> tuple[float, float]:
        """Take note that a worker has failed; return what to wait, for its shard and for itself."""
        may_be_dead = worker in self._failing and len(self._failing) < self._n
        self._failing.add(worker)
        part_s = 0.0
        if not may_be_dead:
            self._retries.failed(_shard(stand))
            part_s = self._retries.failed(divmod(stand.part, self._n))
        return part_s, self._retries.failed((worker,))

    def hopeless(self, stand: Standing) -> str:
        """Say what there is no hope for after a loss; empty: there is."""
        job, index = what = divmod(stand.part, self._n)
        if self._retries.exhausted(what):
            return f"part {index} of job {job} fails again and again"
        if self._retries.exhausted(_shard(stand), times=self._M):
            return "a shard is lost again and again: take a smaller M"
        given_up = sum(self._retries.exhausted((worker,)) for worker in self._failing)
        return "every worker fails again and again" if given_up == self._n else ""

    def is_alone(self, worker: int) -> bool:
        """Say whether all others fail, so that nobody else could do what this one lost."""
        return len(self._failing | {worker}) == self._n


def _shard(stand: Standing) -> tuple[int, int, int]:
    """Return what a shard is counted by: no (worker,), nor (job, part)."""
    return stand.back, 0, 0

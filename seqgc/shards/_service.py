from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, TypedDict, get_args

import numpy as np

from seqgc.errors import ParameterError, ScheduleError, require_int
from seqgc.ports import IntArray

__all__ = ["Resume", "Shard", "ShardService", "ShardState", "require_resume"]

Resume: TypeAlias = Literal["part", "shard"]
"""The place where a lost shard continues: at its first part that is not done (``"part"``), or at
its beginning (``"shard"``)."""


def require_resume(value: object) -> None:
    """Raise `ParameterError` if the value is not a `Resume`."""
    if value not in get_args(Resume):
        raise ParameterError("resume", f"must be one of {', '.join(get_args(Resume))}", value)


class ShardState(TypedDict):
    """The state of a `ShardService`, as JSON data; made by its `checkpoint`."""

    points: int  # the number of points of the epoch
    todo: list[list[int]]  # for each shard: its number, and how many of its batches have been done


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A shard of an epoch: ``length`` points from point ``start`` on, in ``batches`` local batches.

    Batches are numbered from 0 within the shard. The worker begins at batch ``first``. Batches 0 to
    ``known - 1`` have been done before, by a worker that lost the shard. If ``first < known``, some
    of these batches are done again.
    """

    number: int
    start: int
    length: int
    batches: int
    first: int = 0
    known: int = 0


class ShardService:
    """Gives out an epoch of ``points`` >= 0 data points in shards of ``M`` local batches each.

    A local batch is the ``b`` points that a worker computes at a time. There are ``K = ceil(points
    / (b M))`` shards, and the last one may be shorter. Each shard is always in one of three states:

    - TODO: it is in the queue. A free worker takes the first shard of the queue (`take`).
    - DOING: one worker has it. The worker reports each batch (`advance`) or the whole shard
      (`done`). If the worker fails, the shard is `lost`: it goes to the end of the queue.
    - DONE: its final state.

    A lost shard continues at its first batch that is not done. So each batch is done exactly once,
    provided that `advance` is called for each batch. The master of seqgc can do this, because it
    applies the updates. The service of AntDT cannot, because its workers send updates to servers;
    it has all ``M`` batches of a lost shard done again. ``resume="shard"`` does the same here: each
    batch is done at least once, and up to ``M - 1`` batches of a lost shard are done again. (A
    shard of which all ``M`` batches are done cannot be lost.) With ``M = 1`` no batch is done
    again.

    Points are numbered in the order of the data. With a ``seed`` >= 0, the shards in the queue and
    the points in each shard (`points_of`) are in random order, which depends only on ``seed`` and
    ``epoch`` >= 0.

    Source: AntDT (2024), V-C. The paper's formula for the number of shards has the size of the
    global batch, but its own numbers fit the size of a *local* batch, which is used here.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> service = ShardService(10, b=2, M=2)
    >>> service.take(7), service.take(8).number
    (Shard(number=0, start=0, length=4, batches=2, first=0, known=0), 1)
    >>> service.advance(0, 7)
    >>> service.lost(7)
    >>> service.todo, dict(service.doing)
    ((2, 0), {8: 1})
    >>> service.done(1, 8)
    >>> [service.take(worker) for worker in (8, 7)]
    [Shard(number=2, start=8, length=2, batches=1, first=0, known=0), \
Shard(number=0, start=0, length=4, batches=2, first=1, known=1)]
    """

    def __init__(
        self,
        points: int,
        *,
        b: int = 1,
        M: int = 1,
        resume: Resume = "part",
        seed: int | None = None,
        epoch: int = 0,
    ) -> None:
        self._points = require_int("points", points, least=0)
        self._batch, self._width = require_int("b", b, least=1), require_int("M", M, least=1)
        require_resume(resume)
        self._continues = resume == "part"  # a lost shard continues where it was lost
        self._seed = None if seed is None else require_int("seed", seed, least=0)
        self._epoch = require_int("epoch", epoch, least=0)
        order = np.arange(self.num_shards)
        if self._seed is not None:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(order)
        self._todo: deque[int] = deque(order.tolist())
        self._doing: dict[int, int] = {}  # by worker: its shard, in the order of taking
        self._next_batch: dict[int, int] = {}  # by shard that a worker has: the next batch to do
        self._done_before: dict[
            int, int
        ] = {}  # by shard that is not done: batches that were ever done
        self._losers: dict[int, int] = {}  # by lost shard: the worker that lost it last

    # ---- states ----------------------------------------------------------------------------------

    @property
    def num_shards(self) -> int:
        """The number K of shards in the epoch."""
        return -(-self._points // (self._batch * self._width))

    @property
    def todo(self) -> tuple[int, ...]:
        """The shards in the queue, in their order."""
        return tuple(self._todo)

    @property
    def doing(self) -> Mapping[int, int]:
        """The shard of each worker that has one, in the order in which they were taken."""
        return MappingProxyType(self._doing)

    @property
    def finished(self) -> frozenset[int]:
        """The shards that are done."""
        return frozenset(range(self.num_shards)) - {*self._todo, *self._doing.values()}

    @property
    def has_more(self) -> bool:
        """True if the queue has a shard."""
        return bool(self._todo)

    @property
    def all_done(self) -> bool:
        """True if every shard is done."""
        return not self._todo and not self._doing

    @property
    def left(self) -> tuple[Shard, ...]:
        """The shards that are not done: first the shards of workers, and then the queue."""
        return tuple(self._shard(number) for number in (*self._doing.values(), *self._todo))

    def shard_of(self, worker: int) -> tuple[Shard, int]:
        """Return a worker's shard, and the number of the next batch to do in it.

        Raises
        ------
        ScheduleError
            If the worker has no shard.
        """
        if worker not in self._doing:
            raise ScheduleError(f"worker {worker} has no shard: call `take` first")
        shard = self._shard(number := self._doing[worker])
        return shard, self._next_batch[number]

    def points_of(self, shard: Shard) -> IntArray:
        """Return the numbers of a shard's points, (length,), in the order of computation."""
        points = np.arange(shard.start, shard.start + shard.length)
        if self._seed is None:
            return points
        rng = np.random.default_rng([self._seed, self._epoch, shard.number])
        return rng.permutation(points)

    # ---- changes ---------------------------------------------------------------------------------

    def take(self, worker: int, *, again: bool = True) -> Shard | None:
        """Give a worker the first shard of the queue; return None if there is no shard for it.

        With ``again=False`` the worker does not get a shard that it was the last to lose.

        Raises
        ------
        ScheduleError
            If the worker has a shard.
        """
        if worker in self._doing:
            rule = f"has shard {self._doing[worker]}: call `done` or `lost` before it takes another"
            raise ScheduleError(f"worker {worker} {rule}")
        for number in self._todo:
            if again or self._losers.get(number) != worker:
                break
        else:
            return None
        self._todo.remove(number)
        self._doing[worker] = number
        shard = self._shard(number)
        self._next_batch[number] = shard.first
        return shard

    def advance(self, number: int, worker: int) -> None:
        """Record that a worker has done the next batch of its shard; with the last, it is DONE.

        Raises
        ------
        ScheduleError
            If the worker does not have this shard.
        """
        self._require_doing(number, worker)
        self._next_batch[number] += 1
        self._done_before[number] = max(self._next_batch[number], self._done_before.get(number, 0))
        if self._next_batch[number] == self._shard(number).batches:
            self.done(number, worker)

    def done(self, number: int, worker: int) -> None:
        """Record that a worker has done its whole shard.

        Raises
        ------
        ScheduleError
            If the worker does not have this shard.
        """
        self._require_doing(number, worker)
        del self._doing[worker], self._next_batch[number]
        self._done_before.pop(number, None)
        self._losers.pop(number, None)

    def lost(self, worker: int, *, called_off: bool = False) -> None:
        """Take a worker's shard from it, and put the shard at the end of the queue.

        ``called_off`` says that the worker has not failed. Then `take` may give it the shard again
        even with ``again=False``.

        Raises
        ------
        ScheduleError
            If the worker has no shard.
        """
        if worker not in self._doing:
            raise ScheduleError(f"worker {worker} has no shard to lose: call `take` first")
        number = self._doing.pop(worker)
        del self._next_batch[number]
        self._todo.append(number)
        if not called_off:
            self._losers[number] = worker

    def end_at(self, points: int) -> None:
        """Shorten the epoch to at most this number of ``points``; later shards are dropped.

        Raises
        ------
        ScheduleError
            If a shard that has begun, and is not done, would have no batch left.
        """
        points = min(points, self._points)
        width = self._batch * self._width
        started = {*self._doing.values(), *self._done_before}
        for number in started:
            known = number * width + self._batch * self._done_before.get(number, 0)
            if known >= points:
                rule = f"cannot end after {points} points"
                raise ScheduleError(f"the epoch {rule}: shard {number} has reached point {known}")
        self._points = points
        self._todo = deque(number for number in self._todo if number * width < points)

    # ---- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> ShardState:
        """Return the state that another service needs to continue the epoch, as JSON data."""
        todo = [[shard.number, shard.known] for shard in self.left]
        return ShardState(points=self._points, todo=todo)

    def restore(self, state: ShardState) -> None:
        """Continue from the `checkpoint` of another service with the same arguments.

        All shards that are not done are in the queue afterwards.

        Raises
        ------
        ParameterError
            If the state does not fit this epoch and its shards. Then nothing changes.
        """
        points = state["points"]
        todo = [(int(number), int(known)) for number, known in state["todo"]]
        width = self._batch * self._width
        is_sound = 0 <= points <= self._points and len({number for number, _ in todo}) == len(todo)
        for number, known in todo:
            left = min(width, points - number * width)
            is_sound = is_sound and number >= 0 and 0 <= known * self._batch < left
        if not is_sound:
            rule = f"must be a checkpoint of an epoch of {self._points} points in shards of {width}"
            raise ParameterError("state", rule, state)
        self._points, self._doing, self._next_batch, self._losers = points, {}, {}, {}
        self._todo = deque(number for number, _ in todo)
        self._done_before = {number: known for number, known in todo if known}

    def _require_doing(self, number: int, worker: int) -> None:
        if self._doing.get(worker) != number:
            has = f"shard {self._doing[worker]}" if worker in self._doing else "no shard"
            raise ScheduleError(f"worker {worker} does not have shard {number}; it has {has}")

    def _shard(self, number: int) -> Shard:
        width = self._batch * self._width
        start = number * width
        length = min(width, self._points - start)
        batches = -(-length // self._batch)
        known = self._done_before.get(number, 0)
        return Shard(
            number=number,
            start=start,
            length=length,
            batches=batches,
            first=known if self._continues else 0,
            known=known,
        )

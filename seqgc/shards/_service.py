"""`ShardService`: which stretches of an epoch's data are still to do, being done, or done."""

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
"""Where a shard that was lost goes on: at its first part that is not done, or at its beginning."""


def require_resume(value: object) -> None:
    """Refuse what is no `Resume`, with `ParameterError`."""
    if value not in get_args(Resume):
        raise ParameterError("resume", f"must be one of {', '.join(get_args(Resume))}", value)


class ShardState(TypedDict):
    """What a `ShardService` must remember: see its `checkpoint`."""

    points: int  # of the epoch, as it stands
    todo: list[list[int]]  # of each shard: its number, and how many batches of it have been done


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """``length`` points of an epoch, from ``start`` on, in ``batches`` local batches.

    The first ``first`` of these need not be done any more; the first ``known`` have been done
    before, so that those in between are done again.
    """

    number: int
    start: int
    length: int
    batches: int
    first: int = 0
    known: int = 0


class ShardService:
    """Hands out an epoch of ``points`` >= 0 data points in shards of ``M`` local batches each.

    A local batch is what a worker computes at a time: ``b`` points. So there are
    ``K = ceil(points / (b M))`` shards, of which the last may be shorter. At all times each of them
    is in one of three states, and there are four ways from one to another:

    - TODO, in a queue; a worker that is free takes (`take`) the first.
    - DOING, of one worker. It says of each batch that it is done (`advance`), or of the whole shard
      (`done`). If the worker fails, its shard is `lost`: it is TODO again, at the queue's end.
    - DONE, and never anything else again.

    A shard that was lost goes on at its first batch that is not done. So each batch is done exactly
    once, however many a shard has, as long as whoever says that one is done knows it. The master
    does, who applies the updates. AntDT's service does not, since workers push theirs to servers:
    there all ``M`` batches of a lost shard are done again. So it is here with ``resume="shard"``:
    each batch is done at least once, and of a shard that is lost up to ``M - 1`` are done again: it
    would be done if all were. With ``M = 1`` none is.

    Points are numbered in the order of the data. With a ``seed`` >= 0, shards are queued in an
    order that it and the ``epoch`` >= 0 draw, and each shard's points are (`points_of`).

    Source: AntDT (2024), V-C; the number of shards is that of *local* batches: the paper writes the
    global batch's size, with which its own numbers do not come out.

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
        self._goes_on = resume == "part"  # where it was lost
        self._seed = None if seed is None else require_int("seed", seed, least=0)
        self._epoch = require_int("epoch", epoch, least=0)
        order = np.arange(self.num_shards)
        if self._seed is not None:
            order = np.random.default_rng([self._seed, self._epoch]).permutation(order)
        self._todo: deque[int] = deque(order.tolist())
        self._doing: dict[int, int] = {}  # by worker, as they were taken
        self._come: dict[int, int] = {}  # by shard that is being done: its batches that are
        self._known: dict[int, int] = {}  # by shard that is not done: those that ever were
        self._losers: dict[int, int] = {}  # by shard that is to do again: who lost it last

    # ---- how it stands ---------------------------------------------------------------------------

    @property
    def num_shards(self) -> int:
        """K: how many shards the epoch has."""
        return -(-self._points // (self._batch * self._width))

    @property
    def todo(self) -> tuple[int, ...]:
        """The shards that nobody has, in the order in which they will be taken."""
        return tuple(self._todo)

    @property
    def doing(self) -> Mapping[int, int]:
        """The shards that are being done, by worker, in the order in which they were taken."""
        return MappingProxyType(self._doing)

    @property
    def finished(self) -> frozenset[int]:
        """The shards that are done."""
        return frozenset(range(self.num_shards)) - {*self._todo, *self._doing.values()}

    @property
    def has_more(self) -> bool:
        """Whether there is a shard to be taken."""
        return bool(self._todo)

    @property
    def all_done(self) -> bool:
        """Whether every shard is done."""
        return not self._todo and not self._doing

    @property
    def left(self) -> tuple[Shard, ...]:
        """The shards that are not done, as they would be taken if nobody had one: see `restore`."""
        return tuple(self._shard(number) for number in (*self._doing.values(), *self._todo))

    def shard_of(self, worker: int) -> tuple[Shard, int]:
        """Return the shard of a worker, and how many of its batches are done since it was taken.

        `ScheduleError`: the worker has none.
        """
        if worker not in self._doing:
            raise ScheduleError(f"worker {worker} has no shard")
        shard = self._shard(number := self._doing[worker])
        return shard, self._come[number]

    def points_of(self, shard: Shard) -> IntArray:
        """Return a shard's points, (length,), in the order in which they are to be computed."""
        points = np.arange(shard.start, shard.start + shard.length)
        if self._seed is None:
            return points
        rng = np.random.default_rng([self._seed, self._epoch, shard.number])
        return rng.permutation(points)

    # ---- what changes it -------------------------------------------------------------------------

    def take(self, worker: int, *, again: bool = True) -> Shard | None:
        """Give a worker the first shard that is to do; None: there is none.

        Without ``again`` it is the first that this worker was not the last to lose.
        `ScheduleError`: the worker has one.
        """
        if worker in self._doing:
            rule = f"must have done shard {self._doing[worker]}, or lost it, to take another"
            raise ScheduleError(f"worker {worker} {rule}")
        for number in self._todo:
            if again or self._losers.get(number) != worker:
                break
        else:
            return None
        self._todo.remove(number)
        self._doing[worker] = number
        shard = self._shard(number)
        self._come[number] = shard.first
        return shard

    def advance(self, number: int, worker: int) -> None:
        """Take note that a worker has done the next batch of its shard; the last is its end.

        `ScheduleError`: the worker is not doing this shard.
        """
        self._require_doing(number, worker)
        self._come[number] += 1
        self._known[number] = max(self._come[number], self._known.get(number, 0))
        if self._come[number] == self._shard(number).batches:
            self.done(number, worker)

    def done(self, number: int, worker: int) -> None:
        """Take note that a worker has done all of its shard.

        `ScheduleError`: the worker is not doing this shard.
        """
        self._require_doing(number, worker)
        del self._doing[worker], self._come[number]
        self._known.pop(number, None)
        self._losers.pop(number, None)

    def lost(self, worker: int) -> None:
        """Have the shard of a worker be to do again, after all others.

        `ScheduleError`: the worker has none.
        """
        if worker not in self._doing:
            raise ScheduleError(f"worker {worker} must have a shard to lose it")
        number = self._doing.pop(worker)
        del self._come[number]
        self._todo.append(number)
        self._losers[number] = worker

    def end_at(self, points: int) -> None:
        """Let the epoch have no more than so many points, and what is beyond be of no shard.

        `ScheduleError`: a shard that anybody has taken begins there, or has come as far.
        """
        points = min(points, self._points)
        width = self._batch * self._width
        started = {*self._doing.values(), *self._known}
        for number in started:
            known = number * width + self._batch * self._known.get(number, 0)
            if known >= points:
                raise ScheduleError(f"the epoch must have more than {points} points: it has begun")
        self._points = points
        self._todo = deque(number for number in self._todo if number * width < points)

    # ---- what is remembered ----------------------------------------------------------------------

    def checkpoint(self) -> ShardState:
        """Return what is not done, for JSON: first what is being done, then what is to do."""
        todo = [[shard.number, shard.known] for shard in self.left]
        return ShardState(points=self._points, todo=todo)

    def restore(self, state: ShardState) -> None:
        """Go on where another service, with the same arguments, was: nobody has a shard.

        `ParameterError`: it is not of this epoch; then nothing changes.
        """
        points = state["points"]
        todo = [(int(number), int(known)) for number, known in state["todo"]]
        width = self._batch * self._width
        is_sound = 0 <= points <= self._points and len({number for number, _ in todo}) == len(todo)
        for number, known in todo:
            left = min(width, points - number * width)
            is_sound = is_sound and number >= 0 and 0 <= known * self._batch < left
        if not is_sound:
            raise ParameterError("state", f"must be of an epoch of {self._points} points", state)
        self._points, self._doing, self._come, self._losers = points, {}, {}, {}
        self._todo = deque(number for number, _ in todo)
        self._known = {number: known for number, known in todo if known}

    def _require_doing(self, number: int, worker: int) -> None:
        if self._doing.get(worker) != number:
            has = self._doing.get(worker, "none")
            raise ScheduleError(f"worker {worker} must be doing shard {number}; it has {has}")

    def _shard(self, number: int) -> Shard:
        width = self._batch * self._width
        start = number * width
        length = min(width, self._points - start)
        batches = -(-length // self._batch)
        known = self._known.get(number, 0)
        return Shard(
            number=number,
            start=start,
            length=length,
            batches=batches,
            first=known if self._goes_on else 0,
            known=known,
        )

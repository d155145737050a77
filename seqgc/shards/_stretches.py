"""`Stretches`: all parts of a run's jobs in the order of the data, handed out shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

from seqgc.errors import ParameterError, ScheduleError, require_int
from seqgc.shards._service import ShardService, ShardState

__all__ = ["StretchState", "Stretches"]


class StretchState(TypedDict):
    """What `Stretches` must remember: how many have begun, and which of them are not done."""

    begun: int
    latest: int  # job of which a part has begun
    open: list[tuple[int, ShardState]]


class Stretches:
    """The ``n`` parts of each of ``jobs`` jobs, as shards of ``M``: stretch after stretch.

    Part p of job t is number ``t n + p``. A stretch is ``M`` jobs, which are ``n`` shards, one for
    each worker if all are as fast. It is what a `ShardService` calls an epoch: a shard that was
    lost is taken after the others of its stretch, and before those of the next. So what is lost
    comes late, and not at the end of the run: a job ends as long as there is somebody to do it.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> stretches = Stretches(n=2, M=2, jobs=4)
    >>> stretches.take(0), stretches.take(1), stretches.advance(0), stretches.advance(1)
    (0, 2, 1, 3)
    >>> stretches.lost(0)
    >>> stretches.take(0), stretches.advance(1), stretches.take(1)
    (1, None, 4)
    """

    def __init__(self, *, n: int, M: int, jobs: int) -> None:
        self._n, self._jobs = require_int("n", n, least=1), require_int("jobs", jobs, least=0)
        self._M = require_int("M", M, least=1)
        self._begun, self._latest = 0, -1  # stretches, and the latest job
        self._open: dict[int, ShardService] = {}  # not done, by stretch
        self._more: list[int] = []  # stretches with shards to be taken, in order
        self._at: dict[int, tuple[int, int, int]] = {}  # by worker: stretch, shard and part

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return self._jobs

    @property
    def latest(self) -> int:
        """The latest job of which a part has begun; -1: none has."""
        return self._latest

    @property
    def first(self) -> int:
        """The first job that has parts which are not done."""
        return min(self.left(), default=min(self._begun * self._M, self._jobs))

    def left(self) -> Counter[int]:
        """Return how many parts are not done, by job, of the stretches that have begun."""
        return Counter(part // self._n for each in self._open for part in self._parts_left(each))

    def _parts_left(self, stretch: int) -> list[int]:
        first, state = stretch * self._M * self._n, self._open[stretch].checkpoint()
        return [
            first + part
            for number, come in state["todo"]
            for part in range(number * self._M + come, min((number + 1) * self._M, state["points"]))
        ]

    # ---- what changes it -------------------------------------------------------------------------

    def take(self, worker: int, *, again: bool = True) -> int | None:
        """Give a worker a shard; return the first part of it that is not done. None: there is none.

        Without ``again`` it is none that this worker was the last to lose. `ScheduleError`: the
        worker has a shard.
        """
        if worker in self._at:
            raise ScheduleError(f"worker {worker} must be done with its shard to take another")
        for stretch in (*self._more, self._begun):
            if stretch == self._begun and not self._begin():
                break
            if (shard := self._open[stretch].take(worker, again=again)) is not None:
                if not self._open[stretch].has_more:
                    self._more.remove(stretch)
                part = stretch * self._M * self._n + shard.start + shard.first
                return self._stand_at(worker, stretch, shard.number, part)
        return None

    def _stand_at(self, worker: int, stretch: int, shard: int, part: int) -> int:
        self._at[worker] = stretch, shard, part
        self._latest = max(self._latest, part // self._n)
        return part

    def _begin(self) -> bool:
        """Begin the next stretch, if there is one."""
        if (jobs := self._jobs_of(stretch := self._begun)) <= 0:
            return False
        self._open[stretch] = ShardService(jobs * self._n, M=self._M, epoch=stretch)
        self._more.append(stretch)
        self._begun += 1
        return True

    def _jobs_of(self, stretch: int) -> int:
        return min(self._M, self._jobs - stretch * self._M)

    def advance(self, worker: int) -> int | None:
        """Take note that a worker's part is done; return the next of its shard, if there is one.

        `ScheduleError`: the worker has none.
        """
        stretch, shard, part = self._require(worker)
        service = self._open[stretch]
        service.advance(shard, worker)
        if worker in service.doing:
            return self._stand_at(worker, stretch, shard, part + 1)
        del self._at[worker]
        if service.all_done:
            del self._open[stretch]
        return None

    def lost(self, worker: int) -> None:
        """Have the shard of a worker be taken again, after the others of its stretch.

        `ScheduleError`: the worker has none.
        """
        stretch, _, _ = self._require(worker)
        self._open[stretch].lost(worker)
        del self._at[worker]
        self._more = sorted({*self._more, stretch})

    def _require(self, worker: int) -> tuple[int, int, int]:
        if worker not in self._at:
            raise ScheduleError(f"worker {worker} has no shard")
        return self._at[worker]

    def end_at(self, jobs: int) -> None:
        """Let there be no more than so many jobs; `ScheduleError`: a later one has begun."""
        if jobs <= self._latest:
            rule = f"there must be more than {jobs} jobs"
            raise ScheduleError(f"{rule}: job {self._latest} has begun")
        self._jobs = min(self._jobs, jobs)
        for stretch, service in self._open.items():
            service.end_at(max(0, self._jobs_of(stretch)) * self._n)
        self._open = {k: service for k, service in self._open.items() if not service.all_done}
        self._more = [stretch for stretch, each in self._open.items() if each.has_more]

    # ---- what is remembered ----------------------------------------------------------------------

    def snapshot(self) -> StretchState:
        """Return what is not done, for JSON."""
        services = [(stretch, service.checkpoint()) for stretch, service in self._open.items()]
        return StretchState(begun=self._begun, latest=self._latest, open=services)

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on where others, with the same arguments, were: nobody has a shard.

        `ValueError`, `KeyError` or `TypeError`: it is no such state.
        """
        begun = require_int("begun", state["begun"], least=0, most=-(-self._jobs // self._M))
        latest = require_int("latest", state["latest"], least=-1, most=self._jobs - 1)
        services: dict[int, ShardService] = {}
        for stretch, each in state["open"]:  # type: ignore[attr-defined]  # TypeError if it is none
            if stretch in services or not 0 <= stretch < begun:
                raise ParameterError("open", f"must be stretches below {begun}, each once", stretch)
            services[stretch] = ShardService(self._jobs_of(stretch) * self._n, M=self._M)
            services[stretch].restore(each)
        self._begun, self._latest, self._at = begun, latest, {}
        self._open = dict(sorted(services.items()))
        self._more = list(self._open)

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from seqgc.errors import ParameterError, ScheduleError, require_int
from seqgc.shards._service import Resume, Shard, ShardService, ShardState, require_resume

__all__ = ["Standing", "StretchState", "Stretches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The position of a worker in its shard: ``part`` is the number of the part that it computes.

    ``again`` is True if this part was done before. If the worker fails now, its shard continues at
    part ``back``. When the part is done, the parts in ``settles`` are never computed again.
    """

    part: int
    again: bool
    back: int
    settles: range


class StretchState(TypedDict):
    """The state of `Stretches`, as JSON data; made by its `snapshot`."""

    begun: int  # the number of stretches that have begun
    latest: int  # the latest job of which a part has begun; -1 if no job has
    open: list[tuple[int, ShardState]]  # the begun stretches that are not done


class Stretches:
    """The ``n`` parts of each of ``jobs`` jobs, given out in shards of ``M`` parts.

    Part p of job t has number ``t n + p``. A *stretch* is ``M`` jobs, which make ``n`` shards: one
    for each worker, if all workers are equally fast. Each stretch is an epoch of its own
    `ShardService`. A lost shard is taken after the other shards of its stretch and before the
    shards of the next stretch, so that its jobs do not wait until the end of the run. For
    ``resume`` see `ShardService`.

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
    >>> stretches.standing(0)
    Standing(part=1, again=False, back=1, settles=range(1, 2))
    """

    def __init__(self, *, n: int, M: int, jobs: int, resume: Resume = "part") -> None:
        self._n, self._jobs = require_int("n", n, least=1), require_int("jobs", jobs, least=0)
        self._M = require_int("M", M, least=1)
        require_resume(resume)
        self._resume: Resume = resume
        self._begun, self._latest = 0, -1  # the number of begun stretches, and the latest begun job
        self._open: dict[int, ShardService] = {}  # by begun stretch that is not done
        self._more: list[int] = []  # the begun stretches with shards in the queue, in order
        self._at: dict[int, int] = {}  # by worker with a shard: its stretch

    @property
    def jobs(self) -> int:
        return self._jobs

    @property
    def latest(self) -> int:
        """The latest job of which a part has begun; -1 if no job has."""
        return self._latest

    @property
    def first(self) -> int:
        """The first job with a part that is not done."""
        return min(self.left(), default=min(self._begun * self._M, self._jobs))

    def left(self) -> Counter[int]:
        """Return the number of parts that are not done, by job, in the begun stretches."""
        return Counter(
            part // self._n
            for stretch, service in self._open.items()
            for shard in service.left
            for part in self._parts(stretch, shard)[shard.first :]
        )

    def _parts(self, stretch: int, shard: Shard) -> range:
        first = stretch * self._M * self._n + shard.start
        return range(first, first + shard.length)

    def standing(self, worker: int) -> Standing:
        """Return the part that a worker computes now; raise `ScheduleError` if it has no shard."""
        shard, come = self._service(worker).shard_of(worker)
        parts = self._parts(self._at[worker], shard)
        part, continues = parts[come], self._resume == "part"
        if continues:
            settles = range(part, part + 1)
        else:
            settles = parts if part == parts[-1] else range(part, part)
        back = part if continues else parts[0]
        return Standing(part=part, again=come < shard.known, back=back, settles=settles)

    # ---- changes ---------------------------------------------------------------------------------

    def take(self, worker: int, *, again: bool = True) -> int | None:
        """Give a worker a shard, and return the first part to compute; None if there is no shard.

        With ``again=False`` the worker does not get a shard that it was the last to lose.

        Raises
        ------
        ScheduleError
            If the worker has a shard.
        """
        if worker in self._at:
            rule = "call `advance` for each of its parts, or `lost`, before it takes another"
            raise ScheduleError(f"worker {worker} has a shard: {rule}")
        for stretch in (*self._more, self._begun):
            if stretch == self._begun and not self._begin():
                break
            if self._open[stretch].take(worker, again=again) is not None:
                if not self._open[stretch].has_more:
                    self._more.remove(stretch)
                self._at[worker] = stretch
                return self._begin_part(worker)
        return None

    def _begin_part(self, worker: int) -> int:
        part = self.standing(worker).part
        self._latest = max(self._latest, part // self._n)
        return part

    def _begin(self) -> bool:
        """Begin the next stretch; return False if all stretches have begun."""
        if (jobs := self._jobs_of(stretch := self._begun)) <= 0:
            return False
        self._open[stretch] = self._service_of(jobs, stretch)
        self._more.append(stretch)
        self._begun += 1
        return True

    def _service_of(self, jobs: int, stretch: int) -> ShardService:
        return ShardService(jobs * self._n, M=self._M, resume=self._resume, epoch=stretch)

    def _jobs_of(self, stretch: int) -> int:
        return min(self._M, self._jobs - stretch * self._M)

    def advance(self, worker: int) -> int | None:
        """Record that a worker's part is done, and return the next part of its shard.

        Returns None if the shard is done.

        Raises
        ------
        ScheduleError
            If the worker has no shard.
        """
        service = self._service(worker)
        service.advance(service.doing[worker], worker)
        if worker in service.doing:
            return self._begin_part(worker)
        stretch = self._at.pop(worker)
        if service.all_done:
            del self._open[stretch]
        return None

    def lost(self, worker: int, *, called_off: bool = False) -> None:
        """Take a worker's shard from it; it is given out again after the rest of its stretch.

        ``called_off`` says that the worker has not failed (`ShardService.lost`).

        Raises
        ------
        ScheduleError
            If the worker has no shard.
        """
        self._service(worker).lost(worker, called_off=called_off)
        self._more = sorted({*self._more, self._at.pop(worker)})

    def _service(self, worker: int) -> ShardService:
        if worker not in self._at:
            raise ScheduleError(f"worker {worker} has no shard: call `take` first")
        return self._open[self._at[worker]]

    def end_at(self, jobs: int) -> None:
        """Drop all jobs from number ``jobs`` on; raise `ScheduleError` if one of them has begun."""
        if jobs <= self._latest:
            rule = f"job {self._latest} has begun: end at {self._latest + 1} jobs or later"
            raise ScheduleError(f"cannot end after {jobs} jobs, because {rule}")
        self._jobs = min(self._jobs, jobs)
        for stretch, service in self._open.items():
            service.end_at(max(0, self._jobs_of(stretch)) * self._n)
        self._open = {k: service for k, service in self._open.items() if not service.all_done}
        self._more = [stretch for stretch, each in self._open.items() if each.has_more]

    # ---- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> StretchState:
        """Return the state for `restore`, as JSON data."""
        services = [(stretch, service.checkpoint()) for stretch, service in self._open.items()]
        return StretchState(begun=self._begun, latest=self._latest, open=services)

    def restore(self, state: Mapping[str, object]) -> None:
        """Continue from a `snapshot` of stretches with the same arguments.

        Afterwards no worker has a shard.

        Raises
        ------
        TypeError, KeyError, ValueError
            If ``state`` is not such a snapshot.
        """
        begun = require_int("begun", state["begun"], least=0, most=-(-self._jobs // self._M))
        latest = require_int("latest", state["latest"], least=-1, most=self._jobs - 1)
        services: dict[int, ShardService] = {}
        for stretch, each in state["open"]:  # type: ignore[attr-defined]  # or TypeError
            if stretch in services or not 0 <= stretch < begun:
                rule = f"must hold distinct numbers of stretches, >= 0 and below begun={begun}"
                raise ParameterError("open", rule, stretch)
            services[stretch] = self._service_of(self._jobs_of(stretch), stretch)
            services[stretch].restore(each)
        self._begun, self._latest, self._at = begun, latest, {}
        self._open = dict(sorted(services.items()))
        self._more = list(self._open)

    def skip_to(self, job: int) -> None:
        """Continue as if all parts of the jobs before ``job`` were done, and no other part.

        Call this method before any part is taken. If ``job`` is not the first job of its stretch,
        the shard in which it begins may continue in its middle, as with ``resume="part"``.
        """
        stretch, inside = divmod(job, self._M)
        self._begun, self._latest = stretch, job - 1
        if inside and (jobs := self._jobs_of(stretch)) > inside:
            first, known = divmod(inside * self._n, self._M)
            shards = range(first, -(-jobs * self._n // self._M))
            todo = [[number, known if number == first else 0] for number in shards]
            service = self._service_of(jobs, stretch)
            service.restore(ShardState(points=jobs * self._n, todo=todo))
            self._open, self._more = {stretch: service}, [stretch]
            self._begun += 1

"""`ClockTasks`: which task every worker has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from seqgc.clocks._parts import Parts
from seqgc.ports import Dispatch
from seqgc.rounds import require_worker

__all__ = ["ClockTask", "ClockTasks"]


@dataclass(slots=True, kw_only=True, eq=False)
class ClockTask:
    """A worker's task: some of its parts, at one clock; or none, which greets it."""

    worker: int
    clock: int
    parts: tuple[int, ...]
    attempt: int
    is_out: bool = True  # else it has failed, and waits to be sent again


class ClockTasks:
    """At most one task a worker; the tasks that one is sent in a clock are numbered from 0 on."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._open: dict[int, ClockTask] = {}  # by worker
        self._sent: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by clock and worker

    def __contains__(self, worker: int) -> bool:
        return worker in self._open

    def __bool__(self) -> bool:
        """Whether anybody has a task that asks for parts."""
        return any(map(self._parts.of, self._open))

    @property
    def workers(self) -> list[int]:
        """Who has a task that asks for parts: not who has none, and is greeted."""
        return sorted(filter(self._parts.of, self._open))

    @property
    def at_work(self) -> bool:
        """Whether a task that asks for parts is out."""
        return any(errand.is_out and errand.parts for errand in self._open.values())

    def of(self, worker: int) -> ClockTask | None:
        """Return what a worker has to do, if anything."""
        return self._open.get(worker)

    def awaited(self, clock: int, worker: int, attempt: int) -> ClockTask | None:
        """Return the errand of which this is the newest attempt, if it is and that is out.

        `WireError`: there is no such worker.
        """
        require_worker(worker, self._parts.n)
        errand = self._open.get(worker)
        if errand is None or not errand.is_out:
            return None
        return errand if (errand.clock, errand.attempt) == (clock, attempt) else None

    def begin(self, worker: int, clock: int, parts: Iterable[int]) -> ClockTask:
        """Let a worker that has no task have these parts of a clock."""
        attempt = self._next_attempt(clock, worker)
        errand = ClockTask(worker=worker, clock=clock, parts=tuple(parts), attempt=attempt)
        self._open[worker] = errand
        return errand

    def again(self, errand: ClockTask) -> None:
        """Let what has failed be out again."""
        errand.attempt, errand.is_out = self._next_attempt(errand.clock, errand.worker), True

    def end(self, errand: ClockTask) -> None:
        """Let a worker have no task."""
        del self._open[errand.worker]

    def forget(self, clock: int) -> None:
        """Forget a clock of which nobody will be sent anything any more."""
        self._sent.pop(clock, None)

    def _next_attempt(self, clock: int, worker: int) -> int:
        self._sent[clock][worker] += 1
        return self._sent[clock][worker] - 1

    def dispatches(
        self, errands: Iterable[ClockTask], jobs_of: Callable[[int], range]
    ) -> list[Dispatch]:
        """Return what sends errands; those of one clock and attempt leave together."""
        groups: defaultdict[tuple[int, int], dict[int, tuple[int, ...]]] = defaultdict(dict)
        for errand in errands:
            groups[errand.clock, errand.attempt][errand.worker] = errand.parts
        dispatches = []
        for (clock, attempt), sent in groups.items():
            jobs = jobs_of(clock)
            tasks = {who: self._parts.mini_tasks(who, parts, jobs) for who, parts in sent.items()}
            loads = self._parts.loads(sent, jobs=len(jobs))
            dispatches.append(Dispatch(round=clock, attempt=attempt, assignment=tasks, loads=loads))
        return dispatches

"""A backend on dask.distributed: every task is one dask task."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from seqgc.backends._events import LONGEST_WAIT_S, EventBackend, Messaging, event_of, failure_of
from seqgc.backends.dask_._cluster import (
    Address,
    Cluster,
    Place,
    Unstationed,
    answer,
    forget,
)
from seqgc.errors import ParameterError, WireError
from seqgc.ports import Arrival, Clock, Computing, Failure, Task
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage, decode, encode
from seqgc.worker import ComputeFactory

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["DaskBackend"]

_FORGET_S = 2.0
_Outcome: TypeAlias = "tuple[Place, bytes] | Exception"


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """A task on its way."""

    request: TaskMessage
    frame: bytes
    due: float = 0.0  # its answer is not to be seen before, seconds of `time.monotonic`
    cancelled: bool = False
    lost: bool = False  # it has failed, whatever comes of it
    key: str = ""  # dask's
    again: bool = False  # it was sent where nobody knew the run, and is sent once more
    future: Future[tuple[Place, bytes]] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """One worker: the job that dask has, and those that wait for it."""

    running: _Job | None = None
    todo: deque[_Job] = field(default_factory=deque)
    place: Place | None = None  # where its last job was done, or the first is to be
    wanted: Place | None = None  # where the running one had best be done
    moves: bool = False  # to a fresh process, for which its jobs wait
    free_at: float = 0.0  # when its last delayed answer is due; delays do not overlap


class DaskBackend(EventBackend):
    """``n`` workers on a dask cluster; a `seqgc.ports.Backend`, and a context manager.

    Promises what `LocalBackend` does, with these differences:

    - A worker is a line of tasks, computed one after the other, each where dask has room for it. On
      processes of the backend's own it keeps to one, as long as that is there and has a thread
      free.
    - A dask worker whose process ends loses the tasks that it had. On a cluster of the backend's
      own each is a `Failure` and a new process takes its place; on yours dask tries again
      elsewhere, as it is configured to.
    - `restart` has a new process take the place of the dask worker that has the worker's tasks;
      those that it has of others fail. Only processes of the backend's own can be restarted: in
      yours somebody else's work would be lost.
    - Injected delays are waited for by the master.
    - `close` takes up to about five seconds while tasks are computed.
    - `cancel` waits for the dask workers, two seconds at most, if a task with mini-tasks that are
      still to begin runs there.

    Parameters
    ----------
    n, compute, messaging, clock
        See `LocalBackend`. Stores that ``compute`` reads must mean the same to every dask worker.
    client
        Your own `distributed.Client`; it is not closed. None: a cluster on this machine, which
        nobody else can reach: its processes have keys of their own.
    processes
        Of that cluster; as many as cores, at most ``n``, unless given; 0: threads of this process.
    start_timeout_s
        How long dask workers may take to be ready, seconds.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or ``compute`` cannot cross processes.
    WorkerError
        If the dask workers do not become ready; names the first cause.

    Examples
    --------
    >>> import functools, operator
    >>> factory = functools.partial(operator.attrgetter, "points")  # stands for a real gradient
    >>> with DaskBackend(2, factory, processes=0) as backend:  # from here on as `LocalBackend`
    ...     backend.receive(until=0.0) is None
    True
    """

    def __init__(
        self,
        n: int,
        compute: ComputeFactory,
        *,
        messaging: Messaging | None = None,
        client: Client | None = None,
        processes: int | None = None,
        start_timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(n, messaging=messaging, clock=clock)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        self._run_id, self._name = self._messaging.run_id, f"seqgc-{uuid.uuid4().hex}"
        self._lock = threading.Lock()  # of the lines: the client's loop sends what comes next
        self._lines = [_Line() for _ in range(self.n)]
        self._futures: set[Future[tuple[Place, bytes]]] = set()  # of what dask has
        self._moves: set[concurrent.futures.Future[None]] = set()
        # No SimpleQueue: that waits for ever once its time is over while it handles a signal.
        self._outcomes: queue.Queue[tuple[_Job, _Outcome]] = queue.Queue()
        self._held: list[tuple[float, int, Arrival | Failure]] = []  # due, order: a heap
        self._order = itertools.count()
        self._cluster = Cluster(
            self.n, client=client, processes=processes, start_timeout_s=start_timeout_s
        )
        # The client's own, which runs in a thread of its own.
        self._loop: asyncio.AbstractEventLoop = self._cluster.client.loop.asyncio_loop  # type: ignore[union-attr]
        try:
            places = self._cluster.open(self._name, run_id=self._run_id, factory=compute)
        except BaseException:
            self.close()
            raise
        if self._cluster.restarts:  # else it is no `seqgc.ports.RestartingBackend`
            self.restart: Callable[[int], Computing | None] = self._restart
            for line, place in zip(self._lines, itertools.cycle(places), strict=False):
                line.place = place

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Give the tasks to dask, each worker's one after the other."""
        jobs = [
            _Job(request=each, frame=encode(each, run_id=self._run_id))
            for each in self._requests(round, tasks)
        ]
        left_at = []
        with self._lock:
            for job in jobs:
                line = self._lines[job.request.task.worker]
                left_at.append(self._clock.now())
                job.due = time.monotonic()
                if delay_s := job.request.delay_s:
                    job.due = line.free_at = max(job.due, line.free_at) + delay_s
                line.todo.append(job)
                self._advance(line)
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers that their tasks of the round are of no more use.

        Mini-tasks that have not begun are dropped, and answers that wait for their time; one that
        is being computed arrives, late.
        """
        self._check_workers(workers)
        chosen = set(workers)
        unfinished: list[Address] = []
        with self._lock:
            for line in (self._lines[worker] for worker in chosen):
                line.todo = deque(job for job in line.todo if job.request.task.round != round)
                job = line.running
                if job is not None and job.request.task.round == round:
                    job.cancelled = True
                    if len(job.request.task.items) > 1:  # mini-tasks that may yet begin
                        unfinished.append(job.request.subject.address)
        self._look()  # what is due has arrived, and stays
        self._held = [
            held for held in self._held if held[2].round != round or held[2].worker not in chosen
        ]
        heapq.heapify(self._held)
        for worker in chosen:
            self._lines[worker].free_at = self._last_due(worker)
        if unfinished:  # best effort, as cancelling is
            with suppress(TimeoutError, OSError):
                self._cluster.client.run(
                    forget, self._name, unfinished, on_error="ignore", callback_timeout=_FORGET_S
                )

    def _last_due(self, worker: int) -> float:
        """Return when the last answer is due that a worker still owes."""
        line = self._lines[worker]
        with self._lock:
            jobs = [job.due for job in (line.running, *line.todo) if job and not job.cancelled]
        return max([*jobs, *(due for due, _, event in self._held if event.worker == worker)] or [0])

    def _restart(self, worker: int) -> Computing | None:
        """Replace the process of a worker; all tasks that it owes fail at once.

        Its later tasks wait for the new process, not for this call. Returns the task that the
        worker was computing.
        """
        self._check_workers([worker])
        self._look()
        line, due = self._lines[worker], [held[2] for held in self._held]
        self._held = [held for held in self._held if held[2].worker != worker]
        heapq.heapify(self._held)
        lost = {_address(event) for event in due if event.worker == worker}
        with self._lock:
            job, line.running = line.running, None
            for each in (*line.todo, *([] if job is None else [job])):
                each.lost = True
                if not each.cancelled:
                    lost.add(each.request.subject.address)
            line.todo.clear()
            line.free_at = 0.0
            if not line.moves:
                line.moves = True
                move = asyncio.run_coroutine_threadsafe(self._move(line, job), self._loop)
                self._moves.add(move)
                move.add_done_callback(self._moves.discard)
        for address in sorted(lost):
            reason = "the worker was restarted"
            self._tell(failure_of(address, at=self._clock.now(), reason=reason), is_own=True)
        if job is None:
            return None
        return Computing(round=job.request.task.round, attempt=job.request.task.attempt)

    # ---- sending: in the caller's thread, or in the client's loop; with the lock ----------------

    def _advance(self, line: _Line) -> None:
        """Give dask the line's next job, if it has none of it."""
        if line.running is not None or not line.todo or line.moves or self._closed:
            return
        job = line.running = line.todo.popleft()
        job.key = f"{self._name}-{uuid.uuid4().hex}"
        line.wanted = None
        line.wanted = self._room(line.place)
        try:
            job.future = self._cluster.client.submit(
                answer,
                self._name,
                job.frame,
                key=job.key,
                pure=False,
                workers=None if line.wanted is None else [line.wanted.address],
                allow_other_workers=line.wanted is not None,
            )
        except Exception as error:  # the client has lost its scheduler for good
            line.running = None
            for each in (job, *line.todo):
                self._outcomes.put((each, error))
            line.todo.clear()
            return
        self._futures.add(job.future)
        # Never cancelled, but told that its future is released: a client joins into one request
        # what its futures' results are asked for meanwhile, and who is cancelled ends that of all.
        asyncio.run_coroutine_threadsafe(self._follow(line, job, job.future), self._loop)

    def _room(self, place: Place | None) -> Place | None:
        """Return the place if fewer lines have a job there than it has threads."""
        jobs = sum(line.running is not None and line.wanted == place for line in self._lines)
        return place if place is not None and jobs < place.threads else None

    async def _follow(self, line: _Line, job: _Job, future: Future[tuple[Place, bytes]]) -> None:
        """Wait for a job to end, report how, and let the next one begin."""
        outcome: _Outcome
        try:
            outcome = await future
        except Exception as error:
            outcome = error
        finally:
            future.release()
        repeat = isinstance(outcome, Unstationed) and not job.again
        if repeat:
            await self._cluster.bring_again()
        else:
            self._outcomes.put((job, outcome))
        with self._lock:
            self._futures.discard(future)
            if line.running is job:  # not lost meanwhile
                line.place = line.running = None
                if repeat and not job.cancelled:
                    job.again = True
                    line.todo.appendleft(job)
                if self._cluster.restarts and not isinstance(outcome, Exception):
                    line.place = outcome[0]
                self._advance(line)

    async def _move(self, line: _Line, job: _Job | None) -> None:
        """Have a new process take the place of that where a line is, and all lines there wait."""
        old, new, there = line.place, None, [line]
        try:
            if job is not None:  # dask forgets where it is once nobody asks for it
                old = await self._cluster.place_of(job.key) or old
                if job.future is not None:
                    job.future.release()
            if old is not None:
                with self._lock:
                    there += [each for each in self._lines if each.place == old and not each.moves]
                    for each in there:
                        each.moves = True
                new = await self._cluster.replace(old, name=self._name)
        finally:
            with self._lock:
                for each in there:
                    each.place, each.moves = new, False
                    self._advance(each)

    # ---- receiving: in the caller's thread ------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        if self._held:
            timeout_s = min(timeout_s, self._held[0][0] - time.monotonic())
        timeout_s = min(max(0.0, timeout_s), LONGEST_WAIT_S)
        with suppress(queue.Empty):
            while True:
                self._hold(*self._outcomes.get(timeout=timeout_s))
                timeout_s = 0.0
        while self._held and self._held[0][0] <= time.monotonic():
            event = heapq.heappop(self._held)[2]
            self._tell(replace(event, at=self._clock.now()))

    def _hold(self, job: _Job, outcome: _Outcome) -> None:
        """Keep the event that an outcome is until it is due, not stamped yet."""
        if job.lost or (not isinstance(outcome, Exception) and not outcome[1]):  # or forgotten
            return
        due, event = job.due, self._read(job, outcome)
        if isinstance(event, Failure):
            if job.cancelled:  # it may well fail: its weights may be gone. That is no event
                return
            due = 0.0  # failures are told at once
        heapq.heappush(self._held, (due, next(self._order), event))

    def _read(self, job: _Job, outcome: _Outcome) -> Arrival | Failure:
        if isinstance(outcome, Exception):
            died = type(outcome).__name__ == "KilledWorker"
            return failure_of(
                job.request.subject.address, at=0.0, reason=outcome, model="" if died else None
            )
        try:
            message = decode(outcome[1], run_id=self._run_id)
            if not isinstance(message, ResultMessage | FailureMessage):
                raise WireError(f"a {type(message).__name__} is no answer")
            job.request.check(message)
        except WireError as error:
            return failure_of(job.request.subject.address, at=0.0, reason=error)
        return event_of(message, at=0.0)

    def _end(self) -> None:
        """Forget all tasks, and end what the backend has started."""
        with self._lock:
            for line in self._lines:
                line.todo.clear()
            futures = tuple(self._futures)
        for move in tuple(self._moves):  # only on a cluster of its own, which ends
            move.cancel()
        for future in futures:
            future.release()
        self._cluster.close()


def _address(event: Arrival | Failure) -> Address:
    return event.round, event.worker, event.attempt

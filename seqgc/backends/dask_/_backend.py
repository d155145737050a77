"""A backend on dask.distributed: every task is one dask task."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from seqgc.backends._events import EventBackend, event_of, failure_of
from seqgc.backends._tasks import Messaging, TaskMessages
from seqgc.backends._waiting import LONGEST_WAIT_S
from seqgc.backends.dask_._cluster import Cluster
from seqgc.backends.dask_._worker import Address, answer, forget
from seqgc.errors import ParameterError, WireError
from seqgc.ports import Arrival, Clock, Failure, Task
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage, decode, encode
from seqgc.worker import ComputeFactory

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["DaskBackend"]

_FORGET_TIMEOUT_S = 2.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """A task on its way."""

    request: TaskMessage
    frame: bytes
    due: float = 0.0  # its answer is not to be seen before, seconds of `time.monotonic`
    cancelled: bool = False

    @property
    def address(self) -> Address:
        task = self.request.task
        return task.round, task.worker, task.attempt


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """One worker: the job that dask has, and those that wait for it."""

    running: _Job | None = None
    todo: deque[_Job] = field(default_factory=deque)


class DaskBackend(EventBackend):
    """``n`` workers on a dask cluster; a `seqgc.ports.Backend`, and a context manager.

    Promises what `LocalBackend` does, with these differences:

    - A worker is a line of tasks, computed one after the other, each where dask has room for it.
    - A dask worker whose process ends loses the tasks that it had. On a cluster of the backend's
      own each is a `Failure` and a new process takes its place; on yours dask tries again
      elsewhere, as it is configured to.
    - Injected delays are waited for by the master.
    - `close` takes up to about five seconds while tasks are computed.
    - `cancel` waits for the dask workers, two seconds at most, if a task with mini-tasks that are
      still to begin runs there.

    Parameters
    ----------
    n, compute, messaging, clock
        See `LocalBackend`. Stores that ``compute`` reads must mean the same to every dask worker.
    client
        Your own `distributed.Client`; it is not closed. None: a cluster on this machine.
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
    >>> import functools, math, operator
    >>> from seqgc.ports import Task
    >>> factory = functools.partial(operator.attrgetter, "points")  # stands for a real gradient
    >>> task = Task(round=0, worker=1, attempt=0, items=())
    >>> with DaskBackend(2, factory, processes=0) as backend:
    ...     (left,) = backend.dispatch(0, [task])
    ...     event = backend.receive(math.inf)
    >>> event.worker, event.round, event.at > left, event.results
    (1, 0, True, {})
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
        messaging = messaging or Messaging()
        super().__init__(TaskMessages(n=n, messaging=messaging), clock=clock)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        self._run_id, self._name = messaging.run_id, f"seqgc-{uuid.uuid4().hex}"
        self._lock = threading.Lock()  # of the lines: the client's loop sends what comes next
        self._lines = [_Line() for _ in range(n)]
        self._following: set[concurrent.futures.Future[None]] = set()
        self._outcomes: queue.SimpleQueue[tuple[_Job, bytes | BaseException]] = queue.SimpleQueue()
        self._held: list[tuple[float, int, Arrival | Failure]] = []  # due, order: a heap
        self._serial = 0
        self._cluster = Cluster(
            n, client=client, processes=processes, start_timeout_s=start_timeout_s
        )
        # The client's own, which runs in a thread of its own.
        self._loop: asyncio.AbstractEventLoop = self._cluster.client.loop.asyncio_loop  # type: ignore[union-attr]
        try:
            self._cluster.open(self._name, run_id=self._run_id, factory=compute)
        except BaseException:
            self.close()
            raise

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks; return when each of them left, in their order.

        Raises
        ------
        ParameterError
            If a task is another round's, its worker does not exist, or its delay is no time.
        WireError
            If a task cannot be sent; then none has been.
        WorkerError
            If the backend is closed.
        """
        jobs = [self._job(each) for each in self._requests(round, tasks)]
        left_at = []
        with self._lock:
            for job in jobs:
                line = self._lines[job.request.task.worker]
                left_at.append(self._clock.now())
                job.due = time.monotonic() + job.request.delay_s
                line.todo.append(job)
                self._advance(line)
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers that their tasks of the round are of no more use.

        Mini-tasks that have not begun are dropped, and answers that wait for their time; one that
        is being computed arrives, late.

        Raises
        ------
        ParameterError
            If there is no such worker.
        WorkerError
            If the backend is closed.
        """
        self._check_cancel(workers)
        chosen = set(workers)
        with self._lock:
            unfinished = [a for worker in chosen for a in self._drop(self._lines[worker], round)]
        self._collect(0.0)  # what is due has arrived, and stays
        self._held = [
            held for held in self._held if held[2].round != round or held[2].worker not in chosen
        ]
        heapq.heapify(self._held)
        if unfinished:
            self._forget(unfinished)

    # ---- sending: in the caller's thread, or in the client's loop; with the lock ----------------

    def _job(self, request: TaskMessage) -> _Job:
        frame = encode(request, run_id=self._run_id)
        return _Job(request=request, frame=frame)

    def _advance(self, line: _Line) -> None:
        """Give dask the line's next job, if it has none of it."""
        if line.running is not None or not line.todo or self._closed:
            return
        job = line.running = line.todo.popleft()
        client = self._cluster.client
        future = client.submit(
            answer,
            self._name,
            job.frame,
            key=f"{self._name}-{uuid.uuid4().hex}",
            pure=False,
        )
        following = asyncio.run_coroutine_threadsafe(self._follow(line, job, future), self._loop)
        self._following.add(following)
        following.add_done_callback(self._following.discard)

    async def _follow(self, line: _Line, job: _Job, future: Future[bytes]) -> None:
        """Wait for a job to end, report how, and let the next one begin."""
        try:
            outcome = await self._cluster.client.gather(future, asynchronous=True)
        except Exception as error:
            outcome = error
        finally:
            future.release()
        self._outcomes.put((job, outcome))
        with self._lock:
            line.running = None
            self._advance(line)

    def _drop(self, line: _Line, round: int) -> list[Address]:
        """Cancel a line's tasks of a round; return those with mini-tasks that may yet begin."""
        line.todo = deque(job for job in line.todo if job.request.task.round != round)
        job = line.running
        if job is None or job.request.task.round != round:
            return []
        job.cancelled = True
        return [job.address] if len(job.request.task.items) > 1 else []

    def _forget(self, addresses: list[Address]) -> None:
        """Let running tasks begin no more mini-tasks; best effort, as cancelling is."""
        with suppress(TimeoutError, OSError):
            self._cluster.client.run(
                forget,
                self._name,
                addresses,
                on_error="ignore",
                callback_timeout=_FORGET_TIMEOUT_S,
            )

    # ---- receiving: in the caller's thread ------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        if self._held:
            timeout_s = min(timeout_s, self._held[0][0] - time.monotonic())
        self._take_all(min(max(0.0, timeout_s), LONGEST_WAIT_S))
        while self._held and self._held[0][0] <= time.monotonic():
            event = heapq.heappop(self._held)[2]
            self._tell(replace(event, at=self._clock.now()))

    def _take_all(self, timeout_s: float) -> None:
        """Hold every outcome that there is until it is due; wait for the first one."""
        try:
            job, outcome = self._outcomes.get(timeout=timeout_s) if timeout_s else self._next()
            while True:
                self._hold(job, outcome)
                job, outcome = self._next()
        except queue.Empty:
            pass

    def _next(self) -> tuple[_Job, bytes | BaseException]:
        return self._outcomes.get_nowait()

    def _hold(self, job: _Job, outcome: bytes | BaseException) -> None:
        answered = self._understood(job, outcome)
        if answered is None:
            return
        due = job.due if isinstance(answered, Arrival) else 0.0  # failures are told at once
        self._serial += 1
        heapq.heappush(self._held, (due, self._serial, answered))

    def _understood(self, job: _Job, outcome: bytes | BaseException) -> Arrival | Failure | None:
        """Return the event, not stamped yet; None if there is none to tell of."""
        answered = self._read(job, outcome)
        # What was cancelled may well fail: its weights may be gone. That is of no use to know.
        return None if job.cancelled and isinstance(answered, Failure) else answered

    def _read(self, job: _Job, outcome: bytes | BaseException) -> Arrival | Failure | None:
        if isinstance(outcome, BaseException):
            return _failed(job, outcome)
        if not outcome:  # forgotten
            return None
        try:
            message = decode(outcome, run_id=self._run_id)
            if not isinstance(message, ResultMessage | FailureMessage):
                raise WireError(f"a {type(message).__name__} is no answer")
            job.request.check(message)
        except WireError as error:
            return _failed(job, error)
        return event_of(message, at=0.0)

    # ---- the end --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Forget all tasks, and end what the backend has started."""
        with self._lock:
            for line in self._lines:
                line.todo.clear()
            following = tuple(self._following)
        for each in following:
            each.cancel()
        self._cluster.close()


def _failed(job: _Job, error: BaseException) -> Failure:
    return failure_of(job.address, at=0.0, reason=f"{type(error).__name__}: {error}")

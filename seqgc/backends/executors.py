"""A backend on any pool of `concurrent.futures`: every task is a call in the pool."""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias, cast

from seqgc._by_value import PicklingError, dumps, loads
from seqgc._fault import fault_of
from seqgc.backends._events import (
    LONGEST_WAIT_S,
    EventBackend,
    Messaging,
    event_of,
    failure_of,
)
from seqgc.errors import ParameterError, WireError, WorkerError, one_line, reraise_stop
from seqgc.ports import Arrival, Clock, Failure, Task
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage, decode, encode
from seqgc.worker import TIMER, Compute, ComputeFactory, answers

__all__ = ["ExecutorBackend", "Pool"]

Pool: TypeAlias = Executor | Callable[[], Executor]
"""A pool, or a function that returns one and is called again if the pool breaks."""

_MOST_STATIONS: Final = 2  # runs whose models a process of the pool keeps
_PROCESS: Final = uuid.uuid4().hex  # of this process, and of processes forked from it


@dataclass(slots=True, kw_only=True, eq=False)
class _PooledTask:
    """A task in the pool."""

    request: TaskMessage
    frame: bytes
    due: float  # the time by `time.monotonic` before which its answer must not be reported
    pool: Executor | None = None
    future: Future[bytes | None] | None = None
    is_cancelled: bool = False


class ExecutorBackend(EventBackend):
    """A backend whose tasks are calls in a pool of processes. It is a context manager.

    The pool must compute in other processes, on this or on other machines, such as a
    `ProcessPoolExecutor`. It remains open when the backend is closed.

    - The ``n`` workers are only numbers: any process of the pool computes any task. If there are
      fewer processes than tasks, the other tasks wait in the pool. A process keeps the compute
      functions of the last two runs. If a process lacks the function, it is sent with the task.
    - A task that waits in the pool is taken back when it is cancelled. A task that is being
      computed cannot be stopped: it keeps its process busy, and its answer arrives late.
    - If the pool breaks, as when one of its processes is killed, each of its tasks becomes a
      `Failure`. If ``pool`` is a function, later tasks go to a new pool; otherwise they fail too.
    - Workers cannot be restarted. Injected delays pass on the master.

    Parameters
    ----------
    n, compute, messaging, clock
        See `LocalBackend`. The stores that ``compute`` reads must be accessible in the pool.
    pool
        See `Pool`.
    stays
        False if the pool starts a process for each call: then the compute function is sent with
        every task.
    start_timeout_s
        The time, in seconds, in which the pool must answer a first call of each worker.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, ``compute`` cannot be sent to other processes, or the pool
        computes in threads of this process.
    WorkerError
        If the pool does not answer, or ``compute`` raises an error there.

    Examples
    --------
    >>> import functools, multiprocessing, operator
    >>> from concurrent.futures import ProcessPoolExecutor
    >>> factory = functools.partial(operator.attrgetter, "points")  # stands for a real gradient
    >>> task = Task(round=0, worker=1, attempt=0, items=())
    >>> spawn = multiprocessing.get_context("spawn")
    >>> with (
    ...     ProcessPoolExecutor(1, mp_context=spawn) as pool,
    ...     ExecutorBackend(2, factory, pool=pool) as backend,
    ... ):
    ...     (left,) = backend.dispatch(0, [task])
    ...     event = backend.receive(left + 60)
    >>> event.worker, event.round, event.results
    (1, 0, {})
    """

    def __init__(
        self,
        n: int,
        compute: ComputeFactory,
        *,
        pool: Pool,
        stays: bool = True,
        messaging: Messaging | None = None,
        start_timeout_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(n, messaging=messaging, clock=clock)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        try:
            self._payload: Final = dumps(compute)
        except PicklingError as error:
            rule = f"must be picklable, to be sent to the pool ({error})"
            raise ParameterError("compute", rule, type(compute).__name__) from error
        self._given, self._stays = pool, stays
        self._pool: Executor | None = None if _is_function(pool) else cast("Executor", pool)
        self._key, self._run_id = uuid.uuid4().hex, self._messaging.run_id
        self._calls: set[_PooledTask] = set()  # without an outcome
        # Not a SimpleQueue, which waits for ever if its timeout passes while it handles a signal.
        self._outcomes: queue.Queue[tuple[_PooledTask, Future[bytes | None] | Exception]] = (
            queue.Queue()
        )
        self._held: list[tuple[float, int, Arrival]] = []  # due, order: a heap
        self._order = itertools.count()
        self._prepare(start_timeout_s)

    def _prepare(self, timeout_s: float) -> None:
        """Create the compute function in the pool, so that rounds do not contain imports."""
        count = self.n if self._stays else 1
        name = type(self._given).__name__
        try:
            pool = self._open_pool()
            calls = [pool.submit(_prepared, self._key, self._payload) for _ in range(count)]
            waiting = wait(calls, timeout=timeout_s).not_done
            for call in waiting:
                call.cancel()
            if waiting:
                message = f"the pool {name} did not answer within {timeout_s:g} s"
                raise WorkerError(f"{message}; does it have a free process?")
            places = [call.result() for call in calls]
        except WorkerError:
            raise
        except Exception as error:
            reraise_stop(error)
            raise WorkerError(f"a worker does not start: {one_line(fault_of(error))}") from error
        if any(place == (os.getpid(), _PROCESS) for place in places):
            rule = "must compute in other processes: threads would share the models' weights"
            raise ParameterError("pool", rule, name, "use a ProcessPoolExecutor, or workers.local")

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Submit the tasks to the pool."""
        requests = self._requests(round, tasks)
        frames = [encode(request, run_id=self._run_id) for request in requests]
        left_at = []
        for request, frame in zip(requests, frames, strict=True):
            left_at.append(self._clock.now())
            due = time.monotonic() + request.delay_s if request.delay_s else 0.0
            call = _PooledTask(request=request, frame=frame, due=due)
            self._calls.add(call)
            self._submit(call, with_payload=not self._stays)
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Take back these workers' tasks of the round that wait in the pool.

        An answer whose injected delay is not over is dropped. The answer to a task that is being
        computed arrives late.
        """
        self._check_workers(workers)
        self._look()  # answers that are due count as arrived
        chosen = set(workers)
        for call in list(self._calls):
            task = call.request.task
            if task.round == round and task.worker in chosen:
                call.is_cancelled = True
                if call.due > time.monotonic() or (call.future and call.future.cancel()):
                    self._calls.discard(call)
        self._held = [
            held for held in self._held if held[2].round != round or held[2].worker not in chosen
        ]
        heapq.heapify(self._held)

    # ---- the pool --------------------------------------------------------------------------------

    def _open_pool(self) -> Executor:
        if self._pool is None:
            self._pool = cast("Callable[[], Executor]", self._given)()
        return self._pool

    def _submit(self, call: _PooledTask, *, with_payload: bool) -> None:
        payload = self._payload if with_payload else None
        try:
            call.pool = self._open_pool()
            call.future = call.pool.submit(_answer, self._key, self._run_id, payload, call.frame)
        except Exception as error:  # the pool is broken, or was shut down
            self._outcomes.put((call, error))
            return
        call.future.add_done_callback(partial(self._note, call))

    def _note(self, call: _PooledTask, future: Future[bytes | None]) -> None:
        """Queue the outcome of a call; the pool calls this method in a thread of its own.

        If the call's process does not have the compute function, send the function with the task.
        """
        is_done = not (future.cancelled() or future.exception())
        if is_done and future.result() is None and not (call.is_cancelled or self._closed):
            self._submit(call, with_payload=True)
        else:
            self._outcomes.put((call, future))

    def _collect(self, timeout_s: float) -> None:
        if self._held:
            timeout_s = min(timeout_s, self._held[0][0] - time.monotonic())
        timeout_s = min(max(0.0, timeout_s), LONGEST_WAIT_S)
        with suppress(queue.Empty):
            while True:
                self._settle(*self._outcomes.get(timeout=timeout_s))
                timeout_s = 0.0
        while self._held and self._held[0][0] <= time.monotonic():
            event = heapq.heappop(self._held)[2]
            self._tell(replace(event, at=self._clock.now()))

    def _settle(self, call: _PooledTask, outcome: Future[bytes | None] | Exception) -> None:
        if call not in self._calls:  # it was taken back
            return
        self._calls.discard(call)
        frame: bytes | Exception | None
        try:
            frame = outcome if isinstance(outcome, Exception) else outcome.result()
        except BaseException as error:  # also a CancelledError of the user's own
            frame = error if isinstance(error, Exception) else RuntimeError(fault_of(error))
        if frame is None:  # it was cancelled before its process had the function
            return
        event = (
            self._failed(call, frame) if isinstance(frame, Exception) else self._read(call, frame)
        )
        if isinstance(event, Arrival):
            heapq.heappush(self._held, (call.due, next(self._order), event))
        elif not call.is_cancelled:
            self._tell(replace(event, at=self._clock.now()))

    def _failed(self, call: _PooledTask, error: Exception) -> Failure:
        """Return the failure of a call that the pool did not execute."""
        why = f"{type(error).__name__}: {one_line(error)}"
        is_lost = isinstance(error, BrokenExecutor) or call.future is None
        if is_lost and _is_function(self._given):
            if self._pool is call.pool:
                self._pool = None  # the next task gets a new one
            is_lost = False
        elif is_lost:
            why = f"the pool is broken or closed ({why}); pass a function that returns a new pool"
        failure = failure_of(call.request.subject.address, at=0.0, reason=why)
        return replace(failure, final=is_lost)

    def _read(self, call: _PooledTask, frame: bytes) -> Arrival | Failure:
        try:
            message = decode(frame, run_id=self._run_id)
            if not isinstance(message, ResultMessage | FailureMessage):
                raise WireError(f"the pool answered with a {type(message).__name__}")
            call.request.check(message)
        except WireError as error:
            return failure_of(call.request.subject.address, at=0.0, reason=error)
        return event_of(message, at=0.0)

    def _end(self) -> None:
        for call in self._calls:
            if call.future is not None:
                call.future.cancel()
        self._calls.clear()


def _is_function(pool: Pool) -> bool:
    return not isinstance(pool, Executor)


# ---- in the processes of the pool ----------------------------------------------------------------

_stations: Final = OrderedDict[str, Compute]()  # by run; the last one was used last


def _station(key: str, payload: bytes | None) -> Compute | None:
    """Return the compute function of a run, or None if this process does not have it."""
    if key not in _stations and payload is not None:
        factory = cast("ComputeFactory", loads(payload))
        _stations[key] = factory()
        while len(_stations) > _MOST_STATIONS:
            _stations.popitem(last=False)
    if key in _stations:
        _stations.move_to_end(key)
    return _stations.get(key)


def _prepared(key: str, payload: bytes) -> tuple[int, str]:
    """Create the compute function, and return what identifies this process."""
    _station(key, payload)
    return os.getpid(), _PROCESS


def _answer(key: str, run_id: str, payload: bytes | None, frame: bytes) -> bytes | None:
    """Compute a task; return its answer, or None if this process does not have the function."""
    request = decode(frame, run_id=run_id)
    if not isinstance(request, TaskMessage):
        raise TypeError(f"must be a task message, not {type(request).__name__}")
    TIMER.begin()
    try:
        with TIMER.phase("started_s"):
            compute = _station(key, payload)
        if compute is None:
            return None
        (answer,) = answers(request, compute)
        return encode(answer, run_id=run_id)
    except BaseException as error:
        reraise_stop(error)
        return encode(request.failure(fault_of(error)), run_id=run_id)

"""A backend on dask.distributed: every task is a direct call of a dask worker."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import queue
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from distributed import Client, LocalCluster, Nanny, Security, Status, Worker, WorkerPlugin
from distributed.protocol.serialize import to_serialize

from seqgc._durable import temporary_folder
from seqgc._fault import fault_of
from seqgc.backends._events import (
    EventBackend,
    Messaging,
    MonotonicClock,
    PausableClock,
    event_of,
    failure_of,
)
from seqgc.backends._processes import without_script
from seqgc.errors import ParameterError, WireError, WorkerError, reraise_stop
from seqgc.ports import Arrival, Clock, Computing, Failure, Notice, Task
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage, decode, encode, encode_pieces
from seqgc.worker import TIMER, Compute, ComputeFactory, run_task

if TYPE_CHECKING:
    from distributed import Future

__all__ = ["Address", "Cluster", "DaskBackend", "Station"]

_FORGET_S: Final = 2.0
_WITHDRAW_S: Final = 2.0
_LOOK_EVERY_S: Final = 2.0  # pause between two looks at the cluster
_LOOK_SOON_S: Final = 0.1  # the same while a dask worker is awaited
_AHEAD_S: Final = 0.1  # most seconds of work that wait on a dask worker for a free thread
_MOST_AHEAD: Final = 8  # most tasks that wait there
_MOST_CALLS: Final = 500  # dask limits the connections of a client to 512

Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt
# An answer, empty if the task was cancelled; an error; or the reason of a failure. None: the dask
# worker does not know the run, because its scheduler was restarted.
_Outcome: TypeAlias = bytes | Exception | str | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    """A task that a dask worker computes, or that waits for a dask worker."""

    request: TaskMessage
    frame: bytes
    due: float = 0.0  # the time by `time.monotonic` before which its answer must not be reported
    cancelled: bool = False
    over: bool = False  # its outcome is known: a later outcome is ignored
    again: bool = False  # it was sent again, because its dask worker did not know the run


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """The jobs of a worker: the job that is being computed, and the waiting jobs."""

    running: _Job | None = None
    todo: deque[_Job] = field(default_factory=deque)
    place: str = ""  # the address of the dask worker of its last job
    moves: bool = False  # True while its jobs wait for a new process
    free_at: float = 0.0  # the time at which its last delayed answer is due; delays do not overlap

    @property
    def jobs(self) -> list[_Job]:
        """The unanswered jobs."""
        return [job for job in (self.running, *self.todo) if job is not None]


class DaskBackend(EventBackend):
    """``n`` workers on a dask cluster; a `seqgc.ports.Backend`, and a context manager.

    The backend has the properties of `LocalBackend`, with these differences:

    - A worker is a queue of tasks, which are computed one after the other. Each task is a call of a
      dask worker that has a free thread, if possible the dask worker of the task before. If no
      thread is free, short tasks are sent ahead. The cluster computes at most 500 tasks at once.
    - dask's scheduler does not manage the tasks: dashboards and adaptive clusters do not see them.
    - If a dask worker is lost, each of its tasks becomes a `Failure` at once. On the backend's own
      cluster a new process starts. Dask workers that join your cluster are used too.
    - While your cluster has no dask worker, tasks wait, and the clock of the backend stands still.
      After ``start_timeout_s`` seconds there is one notice.
    - If dask workers are there, but none is ready for ``start_timeout_s`` seconds, the waiting
      tasks fail.
    - An empty task every two seconds keeps a cluster with an idle timeout awake.
    - `restart` replaces the dask worker that has the worker's tasks; the dask worker's tasks for
      other workers fail. Only the backend's own processes can be restarted, because on your cluster
      the work of other users would be lost.
    - Injected delays pass on the master.
    - If tasks are being computed, `close` takes up to about five seconds.
    - If a cancelled task has mini-tasks that have not begun, `cancel` waits for the dask workers,
      at most two seconds.

    Parameters
    ----------
    n, compute, messaging, clock
        See `LocalBackend`. The stores that ``compute`` reads must be accessible on every dask
        worker.
    client
        Your own `distributed.Client`; it is not closed. Tasks pass through its scheduler, unless it
        was made with ``direct_to_workers=True``. None: a private cluster on this machine, protected
        by its own keys.
    processes
        The number of processes of the private cluster. The default is the number of cores, at most
        ``n``; 0 means threads of this process. Together, the processes compute at most as many
        tasks at once as there are cores, but each process at least one.
    start_timeout_s
        The time, in seconds, in which dask workers must become ready.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or ``compute`` cannot be sent to other processes.
    WorkerError
        If the dask workers do not become ready; the message contains the first cause.

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
        self._time = PausableClock(clock or MonotonicClock())
        super().__init__(n, messaging=messaging, clock=self._time)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        self._run_id, self._timeout_s = self._messaging.run_id, start_timeout_s
        self._lock = threading.Lock()  # for lines and their jobs, which the client's loop changes
        self._lines = [_Line() for _ in range(self.n)]
        self._ready: deque[_Line] = deque()  # lines whose next job may be sent; some are outdated
        self._tasks: set[asyncio.Task[None]] = set()  # in the client's loop
        self._fed_at = time.monotonic()  # since then, jobs wait for a dask worker to be ready
        self._has_told = False  # that there is no dask worker
        # Not a SimpleQueue, which waits for ever if its timeout passes while it handles a signal.
        self._outcomes: queue.Queue[tuple[_Job, _Outcome]] = queue.Queue()
        self._held: list[tuple[float, int, Arrival | Failure]] = []  # due, order: a heap
        self._order = itertools.count()
        self._cluster = Cluster(
            self.n, client=client, processes=processes, start_timeout_s=start_timeout_s
        )
        # The client's event loop, which runs in another thread.
        self._loop: asyncio.AbstractEventLoop = self._cluster.client.loop.asyncio_loop  # type: ignore[union-attr]
        try:
            self._cluster.open(run_id=self._run_id, factory=compute)
        except BaseException:
            self.close()
            raise
        self._loop.call_soon_threadsafe(self._spawn, self._cluster.watch, self._feed)
        if self._cluster.restarts:  # otherwise this is not a `seqgc.ports.RestartingBackend`
            self.restart: Callable[[int], Computing | None] = self._restart

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks to dask workers; tasks of the same worker are sent one after the other."""
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
                self._ready.append(line)
        with suppress(RuntimeError):  # the loop has ended with the client: see `_collect`
            self._loop.call_soon_threadsafe(self._advance)
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers that their tasks of the round are not needed.

        Mini-tasks that have not begun are dropped, and so are answers whose injected delay is not
        over. The answer of a mini-task that is being computed arrives late.
        """
        self._check_workers(workers)
        chosen = set(workers)
        unfinished: dict[str, list[Address]] = defaultdict(list)
        with self._lock:
            for line in (self._lines[worker] for worker in chosen):
                line.todo = deque(job for job in line.todo if job.request.task.round != round)
                job = line.running
                if job is not None and job.request.task.round == round:
                    job.cancelled = True
                    if len(job.request.task.items) > 1:  # some mini-tasks may not have begun
                        unfinished[line.place].append(job.request.subject.address)
        self._look()  # answers that are due count as arrived
        self._held = [
            held for held in self._held if held[2].round != round or held[2].worker not in chosen
        ]
        heapq.heapify(self._held)
        for worker in chosen:
            self._lines[worker].free_at = self._last_due(worker)
        if unfinished:
            self._cluster.forget(unfinished)

    def _last_due(self, worker: int) -> float:
        """Return the time at which the last outstanding answer of a worker is due."""
        with self._lock:
            jobs = [job.due for job in self._lines[worker].jobs if not job.cancelled]
        return max([*jobs, *(due for due, _, event in self._held if event.worker == worker)] or [0])

    def _restart(self, worker: int) -> Computing | None:
        """Replace the process of a worker; all its unanswered tasks fail at once.

        The call does not wait for the new process, but later tasks do. Return the task that the
        worker was computing.
        """
        self._check_workers([worker])
        self._look()
        line, due = self._lines[worker], [held[2] for held in self._held]
        self._held = [held for held in self._held if held[2].worker != worker]
        heapq.heapify(self._held)
        lost = {(each.round, each.worker, each.attempt) for each in due if each.worker == worker}
        with self._lock:
            job = line.running
            for each in line.jobs:
                each.over = True
                if not each.cancelled:
                    lost.add(each.request.subject.address)
            line.running = None
            line.todo.clear()
            line.free_at = 0.0
            if not line.moves:
                line.moves = True
                self._loop.call_soon_threadsafe(self._spawn, self._move, line)
        for address in sorted(lost):
            reason = "the worker was restarted"
            self._tell(failure_of(address, at=self._clock.now(), reason=reason), is_own=True)
        if job is None:
            return None
        return Computing(round=job.request.task.round, attempt=job.request.task.attempt)

    # ---- sending: in the client's loop ----------------------------------------------------------

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Begin work that `close` ends."""
        if not self._closed:
            task = self._loop.create_task(work(*arguments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _feed(self) -> None:
        """Send waiting jobs; if no dask worker was ready for too long, tell the user, or fail."""
        self._advance()
        now, is_deserted = time.monotonic(), self._cluster.is_deserted
        has_changed = is_deserted != self._time.is_paused
        if is_deserted:
            self._time.pause()
        else:
            self._time.resume()
        if self._cluster.threads or not self._ready or has_changed:
            self._fed_at, self._has_told = now, False
        elif now - self._fed_at > self._timeout_s:
            message = f"no dask worker was available within {self._timeout_s:g} s"
            if not is_deserted:
                self._fed_at = now
                self._give_up(f"{message}; start one, or raise `start_timeout_s`", running=False)
            elif not self._has_told:
                self._has_told = True
                text = f"{message}: the run waits until a dask worker joins {self._cluster.address}"
                self._notices.append(Notice(kind="warning", fields={"text": text}))

    def _advance(self) -> None:
        """Send the next jobs of lines to dask workers with a free thread."""
        with self._lock:
            while self._ready and len(self._tasks) < _MOST_CALLS and not self._closed:
                line = self._ready[0]
                if line.todo and line.running is None and not line.moves:
                    if not (place := self._cluster.take(line.place)):
                        return
                    line.running, line.place = line.todo.popleft(), place
                    self._spawn(self._follow, line, line.running, place)
                self._ready.popleft()

    async def _follow(self, line: _Line, job: _Job, place: str) -> None:
        """Let a dask worker compute a job, and report the outcome."""
        outcome = await self._cluster.compute(place, job.frame)
        with self._lock:
            if line.running is job:  # False if the worker was restarted
                line.running = None
                if outcome is None and not job.again:
                    job.again = True
                    if not job.cancelled:
                        line.todo.appendleft(job)
                else:
                    self._outcomes.put((job, outcome))
                self._ready.append(line)
        self._advance()

    async def _move(self, line: _Line) -> None:
        """Replace the process of a line; only this line waits for the new process."""
        place = ""
        try:
            place = await self._cluster.replace(line.place)
        finally:
            with self._lock:
                line.place, line.moves = place, False
                self._ready.append(line)
        self._advance()

    def _give_up(self, reason: str, *, running: bool) -> None:
        """Let the waiting jobs fail, and the running jobs too if ``running``; in any thread."""
        with self._lock:
            for line in self._lines:
                for job in line.jobs:
                    if running or job is not line.running:
                        self._outcomes.put((job, reason))
                line.todo.clear()

    # ---- receiving: in the caller's thread ------------------------------------------------------

    def _collect(self, timeout_s: float) -> None:
        if self._cluster.client.status in ("closing", "closed"):
            self._time.resume()
            self._give_up("the dask client is closed", running=True)
        if self._held:
            timeout_s = min(timeout_s, self._held[0][0] - time.monotonic())
        timeout_s = min(max(0.0, timeout_s), _LOOK_EVERY_S)
        with suppress(queue.Empty):
            while True:
                self._hold(*self._outcomes.get(timeout=timeout_s))
                timeout_s = 0.0
        while self._held and self._held[0][0] <= time.monotonic():
            event = heapq.heappop(self._held)[2]
            self._tell(replace(event, at=self._clock.now()))

    def _hold(self, job: _Job, outcome: _Outcome) -> None:
        """Store the event of an outcome, without a stamp, until it is due."""
        over, job.over = job.over, True
        if over or outcome == b"":  # empty: it was cancelled
            return
        due, event = job.due, self._read(job, outcome)
        if isinstance(event, Failure):
            if job.cancelled:  # not an event: a cancelled task may fail without its weights
                return
            due = 0.0  # failures are reported at once
        heapq.heappush(self._held, (due, next(self._order), event))

    def _read(self, job: _Job, outcome: _Outcome) -> Arrival | Failure:
        address = job.request.subject.address
        if isinstance(outcome, OSError):
            return failure_of(address, at=0.0, reason=str(outcome), model="")
        if not isinstance(outcome, bytes):
            reason = outcome or "the dask worker does not know the run"
            return failure_of(address, at=0.0, reason=reason)
        try:
            message = decode(outcome, run_id=self._run_id)
            if not isinstance(message, ResultMessage | FailureMessage):
                raise WireError(f"the dask worker answered with a {type(message).__name__}")
            job.request.check(message)
        except WireError as error:
            return failure_of(address, at=0.0, reason=error)
        return event_of(message, at=0.0)

    def _end(self) -> None:

        def stop() -> None:
            for task in self._tasks:
                task.cancel()

        with suppress(RuntimeError):  # the loop has ended with the client
            self._loop.call_soon_threadsafe(stop)
        self._cluster.close()


class Cluster:
    """The dask workers of one run, over which the run's ``n`` workers are spread.

    The dask workers belong to the cluster of ``client``, whose settings are not changed, or to a
    new cluster on this machine with ``processes`` (None: one for each core; 0: threads of this
    process). They must be ready within ``start_timeout_s`` seconds. `close` ends or removes
    everything that this object has started or installed. All coroutines, and `take`, run in the
    client's loop.
    """

    def __init__(
        self, n: int, *, client: Client | None, processes: int | None, start_timeout_s: float
    ) -> None:
        if processes is not None and (client is not None or processes < 0):
            rule = "must be >= 0, and must not be given together with a client"
            raise ParameterError("processes", rule, processes)
        self._name, self._timeout_s = f"seqgc-{uuid.uuid4().hex}", start_timeout_s
        self._own = client is None
        self._is_empty = False  # the scheduler knows no dask worker
        self.restarts: Final = client is None and processes != 0  # True if `replace` is possible
        self.threads: dict[str, int] = {}  # of the dask workers that are ready, by address
        self._calls: Counter[str] = Counter()  # tasks that are being computed, by address
        self._callers: defaultdict[str, set[asyncio.Task[Any] | None]] = defaultdict(set)
        self._welcomes: dict[str, asyncio.Future[str]] = {}  # dask workers that become ready
        self._ahead: Counter[str] = Counter()  # tasks that may wait there for a thread, by address
        self._nannies: dict[str, str | None] = {}  # the nanny that restarts it, by dask worker
        self._leaving: set[str] = set()  # dask workers that are being replaced
        self._look_now = asyncio.Event()
        self._stack = ExitStack()
        try:
            self.client: Final = self._started(n, processes) if client is None else client
            try:  # the own cluster has started with all dask workers
                self.client.wait_for_workers(1, timeout=start_timeout_s)
            except TimeoutError:
                message = f"no dask worker was available within {start_timeout_s:g} s"
                raise WorkerError(f"{message}; start one, or raise `start_timeout_s`") from None
        except BaseException:
            self.close()
            raise

    def open(self, *, run_id: str, factory: ComputeFactory) -> None:
        """Install a run's compute function on every dask worker, also on later ones.

        Raises
        ------
        ParameterError
            If the factory cannot be sent to other processes.
        WorkerError
            If the function cannot be created there; the message contains the cause.
        """
        self._plugin: WorkerPlugin = Station(self._name, run_id=run_id, factory=factory)
        try:
            self._register()
        except Exception as error:
            rule = f"must be picklable, because it is sent to dask workers ({error})"
            raise ParameterError("compute", rule, factory, "define it in a module") from error
        if not self._own:  # the own cluster ends with its workers, even if one is stopped
            self._stack.callback(self._withdraw)
        try:
            faults = self.client.sync(self._first_look, callback_timeout=self._timeout_s)
        except TimeoutError:
            message = f"not every dask worker was ready within {self._timeout_s:g} s"
            raise WorkerError(f"{message}; raise `start_timeout_s`") from None
        if fault := next(filter(None, faults), ""):
            raise WorkerError(f"a worker does not start: {fault}")

    def _register(self) -> Any:
        return self.client.register_plugin(self._plugin, name=self._name)

    @property
    def is_deserted(self) -> bool:
        """True if the user's cluster has no dask worker. The own cluster starts new ones itself."""
        return self._is_empty and not self._own

    @property
    def address(self) -> str:
        """The address of the scheduler."""
        scheduler: Any = self.client.scheduler
        return str(scheduler.address)

    async def _first_look(self) -> list[str]:
        await self._look()
        return await asyncio.gather(*self._welcomes.values())

    async def watch(self, report: Callable[[], None]) -> None:
        """Watch dask workers come and go, and keep the cluster awake; call ``report`` every time.

        The scheduler of an idle cluster may end after a time, and does not see the calls. A dask
        worker that joins is used after its compute function has been created.
        """
        empty: Future[int] | None = None
        try:
            while True:
                with suppress(Exception):  # the client may be without a scheduler
                    if empty is None or empty.done():
                        empty = self.client.submit(int, key=f"{self._name}-{uuid.uuid4().hex}")
                    await self._look()
                report()
                with suppress(TimeoutError):
                    pause_s = _LOOK_EVERY_S if self.threads else _LOOK_SOON_S
                    await asyncio.wait_for(self._look_now.wait(), pause_s)
                self._look_now.clear()
        finally:
            for welcome in self._welcomes.values():
                welcome.cancel()
            if empty is not None:
                empty.release()

    async def _look(self) -> None:
        scheduler: Any = self.client.scheduler
        there: dict[str, int] = await scheduler.ncores()
        self._is_empty = not there
        for address in {*self.threads, *self._calls} - there.keys():
            self.threads.pop(address, None)
            self.client.rpc.remove(address)
            for caller in self._callers.pop(address, ()):  # dask would try to connect for 30 s
                if caller is not None:
                    caller.cancel()
        self._leaving &= there.keys()
        for address in there.keys() - self.threads.keys() - self._welcomes.keys() - self._leaving:
            self._welcomes[address] = asyncio.ensure_future(self._welcome(address, there[address]))

    async def _welcome(self, address: str, threads: int) -> str:
        """Make a dask worker ready; return the error of its compute function, or nothing."""
        try:
            while (reply := await self._call(address, "-prepare")) is None:
                with suppress(Exception):  # a restarted scheduler does not know the run
                    await self._register()
                await asyncio.sleep(_LOOK_SOON_S)  # or the dask worker is about to know the run
        except Exception as error:  # the next look tries again
            return fault_of(error)
        finally:
            self._welcomes.pop(address, None)
        fault: str = reply["fault"]
        self.threads[address], self._nannies[address] = threads, reply["nanny"]
        self._look_now.set()
        return fault

    def take(self, preferred: str) -> str:
        """Return a dask worker for the next task; empty if every dask worker has enough tasks.

        If no thread is free, short tasks are sent ahead, so that no thread waits for the network.
        """

        def free(address: str) -> int:
            return self.threads.get(address, 0) - self._calls[address]

        def room(address: str) -> int:
            return free(address) + self._ahead[address] if address in self.threads else 0

        for places in (free, room):
            address = preferred
            if places(address) <= 0:
                address = max(self.threads, key=places, default="")
            if places(address) > 0:
                self._calls[address] += 1
                return address
        return ""

    async def compute(self, address: str, frame: bytes) -> _Outcome:
        """Return the outcome of a task on the dask worker that `take` has returned."""
        outcome: _Outcome = None
        caller = asyncio.current_task()
        self._callers[address].add(caller)
        try:  # an error of the task is in its answer
            if (reply := await self._call(address, frame=to_serialize(frame))) is not None:
                outcome = b"".join(reply["frame"])
                ahead = min(_MOST_AHEAD, int(_AHEAD_S / reply["seconds"]))
                self._ahead[address] = max(ahead, self._ahead[address] // 2)  # one may be delayed
        except OSError as error:
            cause = str(error).rpartition(": ")[2]  # without the names of dask's connections
            outcome = ConnectionError(f"the dask worker {address} was lost: {cause}")
        except asyncio.CancelledError:
            if caller in self._callers.get(address, ()):  # by `DaskBackend.close`
                raise
            outcome = f"the dask worker {address} has left the cluster"
        except Exception as error:
            outcome = error
        self._callers[address].discard(caller)
        self._calls[address] -= 1
        if not self._calls[address]:
            del self._calls[address]
            self._callers.pop(address, None)
        if isinstance(outcome, OSError):
            # Others may have been lost with it. The idle ones are used again when they have
            # answered, so that no task of a machine that is lost is sent to the next lost machine.
            for each in [each for each in self.threads if each == address or not self._calls[each]]:
                del self.threads[each]
            self._look_now.set()
        elif outcome is None:  # then the other dask workers do not know the run either
            self.threads.clear()
            self._look_now.set()
        return outcome

    async def _call(self, address: str, operation: str = "", **message: object) -> Any:
        """Call a handler of `Station`; return None if the dask worker does not know the run."""
        operation, client = self._name + operation, self.client
        if client.direct_to_workers:
            return await getattr(client.rpc(address), operation)(**message)
        scheduler: Any = client.scheduler
        return await scheduler.proxy(worker=address, msg={"op": operation, **message})

    def forget(self, tasks: Mapping[str, Sequence[Address]]) -> None:
        """Tell dask workers to begin no further mini-tasks of these tasks, if possible."""

        async def tell_all() -> None:
            calls = (self._call(place, "-forget", addresses=each) for place, each in tasks.items())
            await asyncio.gather(*calls, return_exceptions=True)

        with suppress(TimeoutError, OSError, RuntimeError):  # RuntimeError: the client is closed
            self.client.sync(tell_all, callback_timeout=_FORGET_S)

    async def replace(self, address: str) -> str:
        """Replace the process of a dask worker, and return the new dask worker when it is ready.

        Return an empty text if this takes too long, or if the dask worker's nanny is not known.
        """
        if (nanny := self._nannies.get(address)) is None:
            return ""
        self._leaving.add(address)
        self.threads.pop(address, None)
        until = time.monotonic() + self._timeout_s
        with suppress(Exception):  # after an error, a new process may still come
            await self.client.restart_workers([address], timeout=self._timeout_s)
        while time.monotonic() < until:
            for new in self.threads:
                if new != address and self._nannies[new] == nanny:
                    return new
            self._look_now.set()
            await asyncio.sleep(_LOOK_SOON_S)
        return ""

    def _withdraw(self) -> None:
        """Remove a run's compute function; a dask worker that is stopped may still have it."""
        scheduler: Any = self.client.scheduler
        with suppress(Exception):  # it may have ended, or may have been restarted
            unregister = scheduler.unregister_worker_plugin
            self.client.sync(unregister, name=self._name, callback_timeout=_WITHDRAW_S)

    def close(self) -> None:
        """Undo everything; further calls do nothing."""
        self._stack.close()

    def _started(self, n: int, processes: int | None) -> Client:
        cores = os.cpu_count() or 1
        count = min(n, cores) if processes is None else processes
        workers = min(n, max(1, count))
        threads = -(-n // workers)
        # A private folder: by default, dask would pickle spilled data into a folder with a name
        # that all users know.
        folder = self._stack.enter_context(temporary_folder("seqgc-dask-"))
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=min(threads, max(1, cores // workers)) if count > 0 else threads,
            processes=count > 0,
            worker_class=_Nanny if count > 0 else None,
            security=_own_keys() if count > 0 else None,  # threads have no connections
            dashboard_address="127.0.0.1:0",
            local_directory=str(folder),
            silence_logs=logging.CRITICAL,
        )
        self._stack.enter_context(cluster)
        client: Client = self._stack.enter_context(Client(cluster, direct_to_workers=True))
        return client


class _Nanny(Nanny):
    """A nanny that starts and restarts its worker without the script that the master runs."""

    async def instantiate(self) -> Status:
        with without_script():
            return await super().instantiate()


def _own_keys() -> Security:
    """Return keys for a local cluster, without which any user could run code on its scheduler."""
    try:
        keys: Security = Security.temporary()
    except ImportError as error:
        remedy = "pip install cryptography, or give a `client`"
        raise WorkerError(f"dask needs cryptography ({error}): {remedy}") from None
    return keys


# ---- on a dask worker ---------------------------------------------------------------------------


class Station(WorkerPlugin):
    """A plug-in with one run's compute function, on each dask worker and on later ones.

    It gives the dask worker three handlers of calls. The function is created, and called, in the
    threads in which the dask worker computes. If it were created in the event loop, imports would
    block the loop for seconds, and the worker would appear to be dead.
    """

    idempotent = True  # not installed again on a scheduler that has it

    def __init__(self, name: str, *, run_id: str, factory: ComputeFactory) -> None:
        self.name, self._run_id, self._factory = name, run_id, factory

    def setup(self, worker: Worker) -> None:
        """Install the handlers; dask calls this method."""
        self._worker = worker
        self._forgotten: set[Address] = set()
        self._lock = threading.Lock()
        self._computes = threading.local()
        worker.handlers[self.name] = self.answer
        worker.handlers[f"{self.name}-prepare"] = self.prepare
        worker.handlers[f"{self.name}-forget"] = self.forget

    def teardown(self, worker: Worker) -> None:
        """Remove the handlers; dask calls this method."""
        for operation in ("", "-prepare", "-forget"):
            worker.handlers.pop(self.name + operation, None)

    async def prepare(self) -> dict[str, str | None]:
        """Create the compute function; return its error (or ``""``) and the worker's nanny."""
        return {"fault": await self._in_thread(self._prepared), "nanny": self._worker.nanny}

    async def answer(self, frame: bytes) -> dict[str, Any]:
        """Compute a task; return its answer, empty if it was cancelled, and the seconds it took."""

        def timed_answer() -> tuple[list[bytes | memoryview], float]:
            begun = time.perf_counter()
            return self._answer(frame), time.perf_counter() - begun

        pieces, seconds = await self._in_thread(timed_answer)
        return {"frame": [to_serialize(piece) for piece in pieces], "seconds": seconds}

    def forget(self, addresses: Iterable[Iterable[int]]) -> str:
        """Begin no further mini-tasks of the tasks with these addresses."""
        for round, worker, attempt in addresses:
            self._forgotten.add((round, worker, attempt))
        return "OK"

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker.executor, work)

    def _compute(self) -> Compute:
        """Return the compute function of this thread; threads must not share a function."""
        if not hasattr(self._computes, "own"):
            with self._lock:
                self._computes.own = self._factory()
        own: Compute = self._computes.own
        return own

    def _prepared(self) -> str:
        try:
            self._compute()
        except BaseException as error:
            reraise_stop(error)
            return fault_of(error)
        return ""

    def _answer(self, frame: bytes) -> list[bytes | memoryview]:
        request = decode(frame, run_id=self._run_id)
        if not isinstance(request, TaskMessage):
            raise TypeError(f"must be a task message, not {type(request).__name__}")
        address = request.subject.address
        TIMER.begin()
        try:
            with TIMER.phase("started_s"):
                compute = self._compute()
            computed = run_task(request.task, compute, cancelled=lambda: address in self._forgotten)
            if computed is None:
                return []
            result = request.result(*computed, phases=TIMER.phases())
            return encode_pieces(result, run_id=self._run_id)
        except BaseException as error:
            reraise_stop(error)
            return encode_pieces(request.failure(fault_of(error)), run_id=self._run_id)
        finally:
            self._forgotten.discard(address)

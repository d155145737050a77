"""A backend on dask.distributed: every task is one dask task."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import logging
import os
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import dask
from distributed import (
    Client,
    LocalCluster,
    Nanny,
    Scheduler,
    SchedulerPlugin,
    Security,
    Status,
    Worker,
    WorkerPlugin,
    get_worker,
)

from seqgc._durable import temporary_folder
from seqgc._fault import fault_of
from seqgc.backends._events import LONGEST_WAIT_S, EventBackend, Messaging, event_of, failure_of
from seqgc.backends._processes import without_script
from seqgc.errors import ParameterError, WireError, WorkerError, reraise_stop
from seqgc.ports import Arrival, Clock, Computing, Failure, Task
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage, decode, encode
from seqgc.worker import Compute, ComputeFactory, run_task

if TYPE_CHECKING:
    from distributed import Future

__all__ = [
    "Address",
    "Cluster",
    "DaskBackend",
    "DaskSlot",
    "Station",
    "Unstationed",
    "answer",
    "forget",
    "prepare",
]

_FORGET_S = 2.0
_Outcome: TypeAlias = "tuple[DaskSlot, bytes] | Exception"


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
    future: Future[tuple[DaskSlot, bytes]] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """A worker's jobs: the one that dask has, and the waiting ones."""

    running: _Job | None = None
    todo: deque[_Job] = field(default_factory=deque)
    place: DaskSlot | None = None  # where its last job was done, or the first is to be
    wanted: DaskSlot | None = None  # where the running one had best be done
    moves: bool = False  # to a fresh process, for which its jobs wait
    free_at: float = 0.0  # when its last delayed answer is due; delays do not overlap


class DaskBackend(EventBackend):
    """``n`` workers on a dask cluster; a `seqgc.ports.Backend`, and a context manager.

    Promises what `LocalBackend` does, with these differences:

    - A worker is a queue of tasks, computed one after the other, wherever dask has room. On the
      backend's own cluster a worker stays on one process while that has a free thread.
    - A dask worker whose process ends loses its tasks. On the backend's own cluster each becomes a
      `Failure`, and a new process starts. On your cluster dask retries elsewhere, as configured.
    - `restart` replaces the dask worker that has the worker's tasks; its tasks for other workers
      fail. Only the backend's own processes can be restarted, because the work of other users would
      be lost on your cluster.
    - The master waits for injected delays.
    - `close` takes up to about five seconds while tasks are computed.
    - `cancel` waits for the dask workers, two seconds at most, if a task with mini-tasks that are
      still to begin runs there.

    Parameters
    ----------
    n, compute, messaging, clock
        See `LocalBackend`. Stores that ``compute`` reads must mean the same to every dask worker.
    client
        Your own `distributed.Client`; it is not closed. None: a private cluster on this
        machine, protected by its own keys.
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
        self._futures: set[Future[tuple[DaskSlot, bytes]]] = set()  # of what dask has
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

    def _room(self, place: DaskSlot | None) -> DaskSlot | None:
        """Return the place if fewer lines have a job there than it has threads."""
        jobs = sum(line.running is not None and line.wanted == place for line in self._lines)
        return place if place is not None and jobs < place.threads else None

    async def _follow(self, line: _Line, job: _Job, future: Future[tuple[DaskSlot, bytes]]) -> None:
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
        """Replace the process of a line by a new one; all lines of that process wait for it."""
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


Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt

_WITHDRAW_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.1  # whether a process has been started


class Unstationed(LookupError):
    """A dask worker does not know the run, because its scheduler was restarted."""


class DaskSlot(NamedTuple):
    """A dask worker: its address, and how many tasks it computes at once."""

    address: str
    threads: int


class Cluster:
    """The dask workers of one run, over which its ``n`` workers are spread.

    They belong to the cluster of ``client``, which is not changed, or to a new cluster on this
    machine with ``processes`` (None: one for each core; 0: threads of this process). They must be
    ready within ``start_timeout_s`` seconds. `close` undoes everything.
    """

    def __init__(
        self, n: int, *, client: Client | None, processes: int | None, start_timeout_s: float
    ) -> None:
        if processes is not None and (client is not None or processes < 0):
            rule = "must be >= 0, and left out where a client brings its own"
            raise ParameterError("processes", rule, processes)
        self._timeout_s, self._own = start_timeout_s, client is None
        self.restarts: Final = client is None and processes != 0  # its processes, with `replace`
        self._nannies: dict[str, str | None] = {}  # who starts it anew, by dask worker
        self._stack = ExitStack()
        self._bring: Callable[[], Any] = lambda: None
        try:
            self.client: Final = self._started(n, processes) if client is None else client
            try:  # a cluster of our own has started with all of them
                self.client.wait_for_workers(1, timeout=start_timeout_s)
            except TimeoutError:
                message = f"no dask worker was there within {start_timeout_s:g} s"
                raise WorkerError(f"{message}; start one, or raise `start_timeout_s`") from None
        except BaseException:
            self.close()
            raise

    def open(self, name: str, *, run_id: str, factory: ComputeFactory) -> list[DaskSlot]:
        """Bring a run's compute function to every dask worker, now and later; make it.

        Return the dask workers that there are now.

        Raises `ParameterError` if the factory cannot cross processes, and `WorkerError` with the
        cause if it cannot be made there.
        """
        plugin: WorkerPlugin = Station(name, run_id=run_id, factory=factory)
        try:
            self.client.register_plugin(plugin, name=name)
        except Exception as error:
            rule = f"must cross processes ({error})"
            raise ParameterError("compute", rule, factory, "define it in a module") from error
        self._bring = partial(self.client.register_plugin, plugin, name=name)
        if not self._own:  # one's own ends with its workers, also with one that is stopped
            self._stack.callback(self._withdraw, name)
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        self._nannies = {address: worker["nanny"] for address, worker in workers.items()}
        places = [DaskSlot(address, workers[address]["nthreads"]) for address in sorted(workers)]
        ready = [self.client.submit(prepare, name, workers=[p.address], pure=False) for p in places]
        try:
            until = time.monotonic() + self._timeout_s
            for each in ready:  # `distributed.wait` asks dask's default client, if there is one
                each.exception(timeout=max(0.0, until - time.monotonic()))
            self.client.gather(ready)
        except TimeoutError:
            message = f"not every dask worker was ready within {self._timeout_s:g} s"
            raise WorkerError(f"{message}; raise `start_timeout_s`") from None
        except Exception as error:
            raise WorkerError(f"a worker does not start: {fault_of(error)}") from None
        return places

    async def bring_again(self) -> None:
        """Send the compute function to a restarted scheduler; runs in the client's loop."""
        with suppress(Exception):  # tasks will say what is wrong
            await self._bring()

    async def place_of(self, key: str) -> DaskSlot | None:
        """Return where a task is computed, or waits; None if it is on no dask worker."""
        tasks = await self.client.processing()
        address = next((at for at, keys in tasks.items() if key in keys), "")
        workers = await self._workers()
        return DaskSlot(address, workers[address]["nthreads"]) if address in workers else None

    async def replace(self, place: DaskSlot, *, name: str) -> DaskSlot | None:
        """Have another process take the place of a dask worker; return its own, once it is there.

        The compute function of the run of that name has been made there. None: that was not so in
        time, or nobody knows who should start it.
        """
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._replaced(place, name), self._timeout_s)
        return None

    async def _replaced(self, place: DaskSlot, name: str) -> DaskSlot | None:
        known = (await self._workers()).get(place.address)
        if known is not None:
            self._nannies[place.address] = known["nanny"]
            with suppress(Exception):  # whatever is wrong: either another process comes, or none
                await self.client.restart_workers([place.address], timeout=self._timeout_s)
        if (nanny := self._nannies.get(place.address)) is None:
            return None
        while True:
            for address, worker in (await self._workers()).items():
                if worker["nanny"] == nanny and address != place.address:
                    with suppress(Exception):  # tasks will say what is wrong
                        await self.client.submit(prepare, name, workers=[address], pure=False)
                    self._nannies[address] = nanny
                    return DaskSlot(address, worker["nthreads"])
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _workers(self) -> dict[str, dict[str, Any]]:
        scheduler: Any = self.client.scheduler
        workers: dict[str, dict[str, Any]] = (await scheduler.identity(n_workers=-1))["workers"]
        return workers

    def _withdraw(self, name: str) -> None:
        """Take a run's compute function away; a dask worker that is stopped may keep it."""
        if (scheduler := self.client.scheduler) is None:  # its owner has closed it
            return
        with suppress(Exception):  # it has gone, or has been started anew and knows nothing
            unregister = scheduler.unregister_worker_plugin
            self.client.sync(unregister, name=name, callback_timeout=_WITHDRAW_S)

    def close(self) -> None:
        """Undo everything; harmless if done already."""
        self._stack.close()

    def _started(self, n: int, processes: int | None) -> Client:
        count = min(n, os.cpu_count() or 1) if processes is None else processes
        workers = min(n, max(1, count))
        # Else in a folder of a name that all users know, where what is spilled is pickled.
        folder = self._stack.enter_context(temporary_folder("seqgc-dask-"))
        # A task that was on a worker whose process ended has failed: who repeats it is decided by
        # the round's policy, not by the cluster.
        with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=-(-n // workers),
                processes=count > 0,
                worker_class=_Nanny if count > 0 else None,
                security=_own_keys() if count > 0 else None,  # threads have no connections
                dashboard_address="127.0.0.1:0",
                local_directory=str(folder),
                silence_logs=logging.CRITICAL,
            )
            self._stack.enter_context(cluster)
        client: Client = self._stack.enter_context(Client(cluster))
        client.register_plugin(_AnyWorker(), name="seqgc-any-worker")
        return client


class _Nanny(Nanny):
    """Starts its worker, now and should that end, without the script that the master runs."""

    async def instantiate(self) -> Status:
        with without_script():
            return await super().instantiate()


class _AnyWorker(SchedulerPlugin):
    """Tasks go to whichever dask worker comes if they may, and the one they were meant for is gone.

    dask asks whether they may only while there is another; later they wait for the lost one.
    """

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        for task in scheduler.unrunnable:
            if task.loose_restrictions:
                task.worker_restrictions = set()


def _own_keys() -> Security:
    """Return keys for a local cluster: without them, any user could run code on its scheduler."""
    try:
        keys: Security = Security.temporary()
    except ImportError as error:
        remedy = "pip install cryptography, or give a `client`"
        raise WorkerError(f"dask needs cryptography ({error}): {remedy}") from None
    return keys


# ---- on a dask worker ---------------------------------------------------------------------------


class Station(WorkerPlugin):
    """One run's compute function on a dask worker; also on workers that join later.

    It is made by the first task, in a thread that computes, not in the event loop: imports take
    seconds, in which the worker would look dead.
    """

    idempotent = True  # to a scheduler that knows it, it is not brought again

    def __init__(self, name: str, *, run_id: str, factory: ComputeFactory) -> None:
        self.name, self.run_id = name, run_id
        self._factory = factory

    def setup(self, worker: Worker) -> None:
        """Be ready to make the compute function (called by dask)."""
        del worker
        self.forgotten: set[Address] = set()
        self._lock = threading.Lock()
        self._computes = threading.local()

    def compute(self) -> Compute:
        """Return this thread's compute function; tasks of several threads must not share one."""
        if not hasattr(self._computes, "own"):
            with self._lock:
                self._computes.own = self._factory()
        own: Compute = self._computes.own
        return own


def prepare(name: str) -> None:
    """Make a run's compute function on this dask worker."""
    _station(name).compute()


def answer(name: str, frame: bytes) -> tuple[DaskSlot, bytes]:
    """Return the place where a task was done, and its answer; no bytes if it was cancelled."""
    worker = get_worker()
    return DaskSlot(worker.address, worker.state.nthreads), _answer(_station(name), frame)


def _answer(station: Station, frame: bytes) -> bytes:
    request = decode(frame, run_id=station.run_id)
    if not isinstance(request, TaskMessage):
        raise TypeError(f"a task must be asked for, not {type(request).__name__}")
    task = request.task
    address = (task.round, task.worker, task.attempt)
    try:
        computed = run_task(task, station.compute(), cancelled=lambda: address in station.forgotten)
        if computed is None:
            return b""
        return encode(request.result(*computed), run_id=station.run_id)
    except BaseException as error:
        reraise_stop(error)
        return encode(request.failure(fault_of(error)), run_id=station.run_id)
    finally:
        station.forgotten.discard(address)


def forget(name: str, addresses: Iterable[Address], dask_worker: Worker) -> None:
    """Let tasks that run on a dask worker begin no further mini-task (runs in its event loop)."""
    station = dask_worker.plugins.get(name)
    if isinstance(station, Station):
        station.forgotten.update(addresses)


def _station(name: str) -> Station:
    station = get_worker().plugins.get(name)
    if station is None:
        raise Unstationed(f"this dask worker does not know {name}")
    if not isinstance(station, Station):
        raise TypeError(f"plugin {name} is another's")
    return station

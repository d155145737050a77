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
    """A task that dask computes, or that waits for dask."""

    request: TaskMessage
    frame: bytes
    due: float = 0.0  # the time by `time.monotonic` before which its answer must not be reported
    cancelled: bool = False
    lost: bool = False  # its failure has been reported: an answer is ignored
    key: str = ""  # the key of the dask task
    again: bool = False  # it was sent again, because its dask worker did not know the run
    future: Future[tuple[DaskSlot, bytes]] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Line:
    """The jobs of a worker: the job that dask has, and the waiting jobs."""

    running: _Job | None = None
    todo: deque[_Job] = field(default_factory=deque)
    place: DaskSlot | None = None  # the dask worker of its last job, or for its first job
    wanted: DaskSlot | None = None  # the preferred dask worker of the running job
    moves: bool = False  # True while its jobs wait for a new process
    free_at: float = 0.0  # the time at which its last delayed answer is due; delays do not overlap


class DaskBackend(EventBackend):
    """``n`` workers on a dask cluster; a `seqgc.ports.Backend`, and a context manager.

    The backend has the properties of `LocalBackend`, with these differences:


    - A worker is a queue of tasks, which dask computes one after the other on any dask worker. On
      the backend's own cluster a worker stays on one process as long as this process has a free
      thread.
    - If the process of a dask worker ends, its tasks are lost. On the backend's own cluster each
      becomes a `Failure`, and a new process starts. On your cluster dask tries them again on other
      dask workers, as configured.
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
        Your own `distributed.Client`; it is not closed. None: a private cluster on this
        machine, protected by its own keys.
    processes
        The number of processes of the private cluster. The default is the number of cores, at most
        ``n``; 0 means threads of this process.
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
        super().__init__(n, messaging=messaging, clock=clock)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        self._run_id, self._name = self._messaging.run_id, f"seqgc-{uuid.uuid4().hex}"
        self._lock = threading.Lock()  # for the lines, because the client's loop sends jobs, too
        self._lines = [_Line() for _ in range(self.n)]
        self._futures: set[Future[tuple[DaskSlot, bytes]]] = set()  # futures of the jobs in dask
        self._moves: set[concurrent.futures.Future[None]] = set()
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
            places = self._cluster.open(self._name, run_id=self._run_id, factory=compute)
        except BaseException:
            self.close()
            raise
        if self._cluster.restarts:  # otherwise this is not a `seqgc.ports.RestartingBackend`
            self.restart: Callable[[int], Computing | None] = self._restart
            for line, place in zip(self._lines, itertools.cycle(places), strict=False):
                line.place = place

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Submit the tasks to dask; tasks of the same worker are submitted one after the other."""
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
        """Tell these workers that their tasks of the round are not needed.

        Mini-tasks that have not begun are dropped, and so are answers whose injected delay is not
        over. The answer of a mini-task that is being computed arrives late.
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
                    if len(job.request.task.items) > 1:  # some mini-tasks may not have begun
                        unfinished.append(job.request.subject.address)
        self._look()  # answers that are due count as arrived
        self._held = [
            held for held in self._held if held[2].round != round or held[2].worker not in chosen
        ]
        heapq.heapify(self._held)
        for worker in chosen:
            self._lines[worker].free_at = self._last_due(worker)
        if unfinished:  # best effort
            with suppress(TimeoutError, OSError):
                self._cluster.client.run(
                    forget, self._name, unfinished, on_error="ignore", callback_timeout=_FORGET_S
                )

    def _last_due(self, worker: int) -> float:
        """Return the time at which the last outstanding answer of a worker is due."""
        line = self._lines[worker]
        with self._lock:
            jobs = [job.due for job in (line.running, *line.todo) if job and not job.cancelled]
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

    # ---- sending: in the caller's thread or in the client's loop, with the lock held ------------

    def _advance(self, line: _Line) -> None:
        """Submit the line's next job to dask, unless dask has a job of the line."""
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
        except Exception as error:  # the client has lost its scheduler permanently
            line.running = None
            for each in (job, *line.todo):
                self._outcomes.put((each, error))
            line.todo.clear()
            return
        self._futures.add(job.future)
        # The coroutine is never cancelled; to end it, its future is released. The client combines
        # requests for the results of several futures, and a cancellation would end all of them.
        asyncio.run_coroutine_threadsafe(self._follow(line, job, job.future), self._loop)

    def _room(self, place: DaskSlot | None) -> DaskSlot | None:
        """Return the place if it has fewer jobs than threads, otherwise None."""
        jobs = sum(line.running is not None and line.wanted == place for line in self._lines)
        return place if place is not None and jobs < place.threads else None

    async def _follow(self, line: _Line, job: _Job, future: Future[tuple[DaskSlot, bytes]]) -> None:
        """Wait for the end of a job, report its outcome, and submit the next job."""
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
            if line.running is job:  # False if the worker was restarted
                line.place = line.running = None
                if repeat and not job.cancelled:
                    job.again = True
                    line.todo.appendleft(job)
                if self._cluster.restarts and not isinstance(outcome, Exception):
                    line.place = outcome[0]
                self._advance(line)

    async def _move(self, line: _Line, job: _Job | None) -> None:
        """Replace the process of a line; all lines of the old process wait for the new one."""
        old, new, there = line.place, None, [line]
        try:
            if job is not None:  # dask knows the place only until the future is released
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
        """Store the event of an outcome, without a stamp, until it is due."""
        if job.lost or (not isinstance(outcome, Exception) and not outcome[1]):  # or cancelled
            return
        due, event = job.due, self._read(job, outcome)
        if isinstance(event, Failure):
            if job.cancelled:  # not an event: a cancelled task may fail without its weights
                return
            due = 0.0  # failures are reported at once
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
        """Forget all tasks, and end everything that the backend has started."""
        with self._lock:
            for line in self._lines:
                line.todo.clear()
            futures = tuple(self._futures)
        for move in tuple(self._moves):  # only on the backend's own cluster, which ends
            move.cancel()
        for future in futures:
            future.release()
        self._cluster.close()


def _address(event: Arrival | Failure) -> Address:
    return event.round, event.worker, event.attempt


Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt

_WITHDRAW_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.1  # pause between two checks that a process has started


class Unstationed(LookupError):
    """A dask worker does not know the run, because its scheduler was restarted."""


class DaskSlot(NamedTuple):
    """A dask worker: its address, and the number of tasks that it computes at once."""

    address: str
    threads: int


class Cluster:
    """The dask workers of one run, over which the run's ``n`` workers are spread.

    The dask workers belong to the cluster of ``client``, whose settings are not changed, or to a
    new cluster on this machine with ``processes`` (None: one for each core; 0: threads of this
    process). They must be ready within ``start_timeout_s`` seconds. `close` ends or removes
    everything that this object has started or installed.
    """

    def __init__(
        self, n: int, *, client: Client | None, processes: int | None, start_timeout_s: float
    ) -> None:
        if processes is not None and (client is not None or processes < 0):
            rule = "must be >= 0, and must not be given together with a client"
            raise ParameterError("processes", rule, processes)
        self._timeout_s, self._own = start_timeout_s, client is None
        self.restarts: Final = client is None and processes != 0  # True if `replace` is possible
        self._nannies: dict[str, str | None] = {}  # the nanny that restarts it, by dask worker
        self._stack = ExitStack()
        self._bring: Callable[[], Any] = lambda: None
        try:
            self.client: Final = self._started(n, processes) if client is None else client
            try:  # the own cluster has started with all dask workers
                self.client.wait_for_workers(1, timeout=start_timeout_s)
            except TimeoutError:
                message = f"no dask worker was there within {start_timeout_s:g} s"
                raise WorkerError(f"{message}; start one, or raise `start_timeout_s`") from None
        except BaseException:
            self.close()
            raise

    def open(self, name: str, *, run_id: str, factory: ComputeFactory) -> list[DaskSlot]:
        """Install a run's compute function on every dask worker, also on later ones.

        Return the present dask workers. Raises `ParameterError` if the factory cannot be sent to
        other processes, and `WorkerError` with the cause if the function cannot be created there.
        """
        plugin: WorkerPlugin = Station(name, run_id=run_id, factory=factory)
        try:
            self.client.register_plugin(plugin, name=name)
        except Exception as error:
            rule = f"must cross processes ({error})"
            raise ParameterError("compute", rule, factory, "define it in a module") from error
        self._bring = partial(self.client.register_plugin, plugin, name=name)
        if not self._own:  # the own cluster ends with its workers, even if one is stopped
            self._stack.callback(self._withdraw, name)
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        self._nannies = {address: worker["nanny"] for address, worker in workers.items()}
        places = [DaskSlot(address, workers[address]["nthreads"]) for address in sorted(workers)]
        ready = [self.client.submit(prepare, name, workers=[p.address], pure=False) for p in places]
        try:
            until = time.monotonic() + self._timeout_s
            for each in ready:  # `distributed.wait` would use dask's default client
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
        with suppress(Exception):  # tasks report the error
            await self._bring()

    async def place_of(self, key: str) -> DaskSlot | None:
        """Return the dask worker that has a task; None if no dask worker has it."""
        tasks = await self.client.processing()
        address = next((at for at, keys in tasks.items() if key in keys), "")
        workers = await self._workers()
        return DaskSlot(address, workers[address]["nthreads"]) if address in workers else None

    async def replace(self, place: DaskSlot, *, name: str) -> DaskSlot | None:
        """Replace the process of a dask worker, and return the new dask worker when it is ready.

        The compute function of the run ``name`` has been created there. Return None if this takes
        too long, or if the nanny of the dask worker is not known.
        """
        with suppress(TimeoutError):
            return await asyncio.wait_for(self._replaced(place, name), self._timeout_s)
        return None

    async def _replaced(self, place: DaskSlot, name: str) -> DaskSlot | None:
        known = (await self._workers()).get(place.address)
        if known is not None:
            self._nannies[place.address] = known["nanny"]
            with suppress(Exception):  # after an error, a new process may still come
                await self.client.restart_workers([place.address], timeout=self._timeout_s)
        if (nanny := self._nannies.get(place.address)) is None:
            return None
        while True:
            for address, worker in (await self._workers()).items():
                if worker["nanny"] == nanny and address != place.address:
                    with suppress(Exception):  # tasks report the error
                        await self.client.submit(prepare, name, workers=[address], pure=False)
                    self._nannies[address] = nanny
                    return DaskSlot(address, worker["nthreads"])
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _workers(self) -> dict[str, dict[str, Any]]:
        scheduler: Any = self.client.scheduler
        workers: dict[str, dict[str, Any]] = (await scheduler.identity(n_workers=-1))["workers"]
        return workers

    def _withdraw(self, name: str) -> None:
        """Remove a run's compute function; a dask worker that is stopped may still have it."""
        if (scheduler := self.client.scheduler) is None:  # the client was closed by its owner
            return
        with suppress(Exception):  # the scheduler may have ended, or may have been restarted
            unregister = scheduler.unregister_worker_plugin
            self.client.sync(unregister, name=name, callback_timeout=_WITHDRAW_S)

    def close(self) -> None:
        """Undo everything; further calls do nothing."""
        self._stack.close()

    def _started(self, n: int, processes: int | None) -> Client:
        count = min(n, os.cpu_count() or 1) if processes is None else processes
        workers = min(n, max(1, count))
        # A private folder: by default, dask would pickle spilled data into a folder with a name
        # that all users know.
        folder = self._stack.enter_context(temporary_folder("seqgc-dask-"))
        # If the process of a worker ends, its tasks have failed: the policy of the round decides
        # which worker repeats a task, not the cluster.
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
    """A nanny that starts and restarts its worker without the script that the master runs."""

    async def instantiate(self) -> Status:
        with without_script():
            return await super().instantiate()


class _AnyWorker(SchedulerPlugin):
    """A plug-in that lets waiting tasks go to a new dask worker if their own has ended.

    The tasks must allow other workers. dask itself checks this only while there is another worker;
    after that the tasks would wait for the lost one.
    """

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:  # noqa: ARG002
        for task in scheduler.unrunnable:
            if task.loose_restrictions:
                task.worker_restrictions = set()


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

    The function is created by the first task, in a thread that computes. If it were created in the
    event loop, imports would block the loop for seconds, and the worker would appear to be dead.
    """

    idempotent = True  # not installed again on a scheduler that has it

    def __init__(self, name: str, *, run_id: str, factory: ComputeFactory) -> None:
        self.name, self.run_id = name, run_id
        self._factory = factory

    def setup(self, worker: Worker) -> None:
        """Prepare for creating the compute function; dask calls this method."""
        del worker
        self.forgotten: set[Address] = set()
        self._lock = threading.Lock()
        self._computes = threading.local()

    def compute(self) -> Compute:
        """Return the compute function of this thread; threads must not share a function."""
        if not hasattr(self._computes, "own"):
            with self._lock:
                self._computes.own = self._factory()
        own: Compute = self._computes.own
        return own


def prepare(name: str) -> None:
    """Create a run's compute function on this dask worker."""
    _station(name).compute()


def answer(name: str, frame: bytes) -> tuple[DaskSlot, bytes]:
    """Compute a task; return its dask worker, and its answer, empty if it was cancelled."""
    worker = get_worker()
    return DaskSlot(worker.address, worker.state.nthreads), _answer(_station(name), frame)


def _answer(station: Station, frame: bytes) -> bytes:
    request = decode(frame, run_id=station.run_id)
    if not isinstance(request, TaskMessage):
        raise TypeError(f"must be a task message, not {type(request).__name__}")
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
    """Keep tasks on a dask worker from beginning further mini-tasks; runs in its event loop."""
    station = dask_worker.plugins.get(name)
    if isinstance(station, Station):
        station.forgotten.update(addresses)


def _station(name: str) -> Station:
    station = get_worker().plugins.get(name)
    if station is None:
        raise Unstationed(f"this dask worker does not know {name}")
    if not isinstance(station, Station):
        raise TypeError(f"plugin {name} belongs to another package")
    return station

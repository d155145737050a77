"""Workers as processes of this machine, forked from a parent that has imported their modules."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from seqgc._bounded import require_files
from seqgc._by_value import Parcel, PicklingError
from seqgc.backends._events import (
    LONGEST_WAIT_S,
    EventBackend,
    Messaging,
    Owed,
    TaskKey,
    event_of,
    failure_of,
)
from seqgc.backends._processes import SharedBuffers, Sightings, WorkerProcess, set_preload
from seqgc.errors import ParameterError, WireError, WorkerError
from seqgc.ports import Arrival, Clock, Computing, Failure, Task
from seqgc.wire import CancelMessage, FailureMessage, ReadyMessage, ResultMessage, decode, encode
from seqgc.worker import ComputeFactory

__all__ = ["LocalBackend", "WorkerPool", "require_local_files"]

_FILES, _FILES_EACH = 64, 3  # open files of a run, and of each worker (connection and process)


def require_local_files(n: int) -> None:
    """Raise the limit of open files to the number that ``n`` local workers need.

    The parent of the workers inherits the limit when it starts.

    Raises
    ------
    ParameterError
        If the system does not allow so high a limit.
    """
    require_files(n, each=_FILES_EACH, beside=_FILES)


class LocalBackend(EventBackend):
    """``n`` worker processes; a `seqgc.ports.Backend`, and a context manager that closes it.

    Each worker calls ``compute`` once and then answers tasks, one after the other, with one BLAS
    thread. The constructor returns when all workers are ready, so that the time of rounds does not
    contain imports.

    - If a worker's process ends (kill -9, exit), its open tasks are lost: each becomes a `Failure`
      with the reason why the process ended. The process is replaced at once, and tasks dispatched
      in the meantime wait for the new process. If the start of a worker fails three times in a row,
      the worker is given up: every dispatch to it becomes a `Failure` with the cause.
    - An exception in ``compute`` becomes a `Failure` with its last line; the process continues.
    - Events are stamped when they are read. Late answers, to cancelled rounds, are `Arrival`
      events, too. Answers to unknown tasks are ignored.
    - A worker that hangs does not delay other workers. Tasks that cannot be sent to it are dropped
      when their round is cancelled; `restart` replaces its process.
    - Ctrl-C and Ctrl-Z reach only the master; `close` ends the workers within about a second.
      Workers whose master has ended, in any way, end by themselves.

    Parameters
    ----------
    compute
        A function that is called without arguments in each worker, and returns its
        `seqgc.worker.Compute`. It is sent to the workers by cloudpickle, so it may also be defined
        in a script or a notebook.
    messaging, clock
        See `Messaging` and `EventBackend`; None: their defaults.
    preload
        Modules that the workers' common parent imports once; include the module that imports torch.
        Only the first backend of a master process can choose them: later backends have the same
        parent.
    start_timeout_s
        The time, in seconds, in which all workers must become ready.

    Raises
    ------
    ParameterError
        If ``n`` or ``start_timeout_s`` is not positive, ``compute`` cannot be pickled, or the
        system allows fewer open files than the workers need.
    WorkerError
        If not all workers become ready; the message contains the first cause.

    Examples
    --------
    >>> import functools, math, operator
    >>> from seqgc.ports import Task
    >>> factory = functools.partial(operator.attrgetter, "points")  # stands for a real gradient
    >>> task = Task(round=0, worker=1, attempt=0, items=())  # nothing to compute: answers at once
    >>> with LocalBackend(2, factory) as backend:
    ...     (left,) = backend.dispatch(0, [task])
    ...     event = backend.receive(math.inf)
    >>> event.worker, event.round, event.at > left, event.results
    (1, 0, True, {})
    """

    _reads_elsewhere = False

    def __init__(
        self,
        n: int,
        compute: ComputeFactory,
        *,
        messaging: Messaging | None = None,
        preload: Sequence[str] = (),
        start_timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(n, messaging=messaging, clock=clock)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        require_local_files(self.n)
        try:
            factory = Parcel.of(compute)
        except PicklingError as error:
            rule = f"must be picklable, to be sent to the workers ({error})"
            remedy = "let it open files, connections and locks when it is called"
            raise ParameterError("compute", rule, compute, remedy) from error
        self._run_id = self._messaging.run_id
        self._pool = WorkerPool(self.n, run_id=self._run_id, factory=factory, clock=self._clock)
        set_preload(preload)
        try:
            self._pool.start(start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each worker; 0 for a worker that was given up."""
        return self._pool.pids

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks without blocking; `receive` sends the bytes that must wait."""
        requests = self._requests(round, tasks)
        frames = [encode(message, run_id=self._run_id, sealed=False) for message in requests]
        left_at = []
        for task, frame in zip(tasks, frames, strict=True):
            left_at.append(self._clock.now())
            self._pool.submit(task, frame)
        self._tell_all(self._pool.refuse())
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers, without blocking, that their tasks of the round are not needed.

        A worker drops mini-tasks that it has not begun, and an answer whose injected delay is not
        over. An answer that has been sent arrives late. If the process of the worker ends, the
        cancelled tasks do not become a `Failure`.
        """
        self._check_workers(workers)
        for worker in workers:
            message = CancelMessage(round=round, worker=worker)
            self._pool.cancel(round, worker, encode(message, run_id=self._run_id, sealed=False))

    def restart(self, worker: int) -> Computing | None:
        """Replace a worker's process at once; return the task that it was computing, or None."""
        self._check_workers([worker])
        computing = self._pool.computing(worker)
        self._tell_all(self._pool.restart(worker), are_own=True)
        return computing

    def _collect(self, timeout_s: float) -> None:
        pool = self._pool
        self._tell_all(pool.catch_up() if self._was_away else pool.poll(timeout_s))

    def _tell_all(self, events: Iterable[Arrival | Failure], *, are_own: bool = False) -> None:
        for event in events:
            self._tell(event, is_own=are_own)

    def _end(self) -> None:
        self._pool.close()


_MAX_FAILED_STARTS = 3  # in a row; another start would probably fail for the same reason
_CLOSE_GRACE_S = 1.0
_PAUSE_S = 1.0  # longest pause in the middle of an answer
_NO_TASK: TaskKey = (-1, -1)


@dataclass(slots=True, kw_only=True)
class _LocalWorker:
    """The state of a worker, which may have several processes in succession."""

    process: WorkerProcess | None = None
    held: list[tuple[TaskKey, bytes]] = field(default_factory=list)  # frames to be sent, in order
    owed: Owed = field(default_factory=Owed)
    failed_starts: int = 0  # in a row
    cause: str = ""  # the cause of the last failed start


class WorkerPool:
    """``n`` processes, their connections, and one selector over all of them; no threads."""

    def __init__(self, n: int, *, run_id: str, factory: Parcel, clock: Clock) -> None:
        self._run_id, self._factory, self._clock = run_id, factory.payload, clock
        self._buffers = SharedBuffers(factory.buffers)
        self._selector = selectors.DefaultSelector()
        self._places = [_LocalWorker() for _ in range(n)]
        self._sightings = Sightings(n)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each worker; 0 for a worker that was given up."""
        return tuple(0 if p.process is None else p.process.pid for p in self._places)

    def start(self, timeout_s: float) -> None:
        """Start all processes, and wait until every worker is ready.

        Raises
        ------
        WorkerError
            If a worker cannot start, or if not all workers are ready in time; the message contains
            the first cause.
        """
        deadline, n = time.monotonic() + timeout_s, len(self._places)
        for worker in range(n):
            self._start(worker)
        while (ready := sum(p.process is not None and p.process.ready for p in self._places)) < n:
            for worker, place in enumerate(self._places):
                if place.process is None:
                    message = f"worker {worker} does not start: {place.cause}"
                    raise WorkerError(message, worker=worker)
            if (left := deadline - time.monotonic()) <= 0:
                causes = [f"; last problem: {p.cause}" for p in self._places if p.cause]
                raise WorkerError(
                    f"{ready} of {n} workers were ready within {timeout_s:g} s{''.join(causes[:1])}"
                    "; raise `start_timeout_s`, or preload the modules that they import"
                )
            for _ in self.poll(left):
                pass  # no task has been sent, so there is no event

    def submit(self, task: Task, frame: bytes) -> None:
        """Send a task's frame to its worker when the worker is ready, without blocking."""
        address = task.round, task.attempt
        self._places[task.worker].owed.tasks.add(address)
        self._send(task.worker, address, frame)

    def cancel(self, round: int, worker: int, frame: bytes) -> None:
        """Cancel a worker's tasks of a round; if one of them was sent, send this frame, too."""
        place = self._places[worker]
        unsent = {task for task, _ in place.held if task[0] == round}
        place.held = [entry for entry in place.held if entry[0] not in unsent]
        if place.owed.cancel(round, unsent=unsent):
            self._send(worker, _NO_TASK, frame)

    def refuse(self) -> Iterator[Failure]:
        """Yield a failure for each task of workers that were given up."""
        for worker, place in enumerate(self._places):
            if place.process is None:
                yield from self._lose(worker, place.cause, at=self._clock.now())

    def computing(self, worker: int) -> Computing | None:
        """Return the task that a worker's process is computing, or None."""
        return self._sightings.computing(worker)

    def restart(self, worker: int) -> Iterator[Failure]:
        """End a worker's process and start a new one, even if the worker was given up."""
        place = self._places[worker]
        place.failed_starts = 0
        if place.process is None:
            self._start(worker)
        else:
            place.process.kill()  # it may hang
            yield from self._replace(place.process, because="the worker was restarted")

    def poll(self, timeout_s: float) -> Iterator[Arrival | Failure]:
        """Wait for events at most ``timeout_s`` seconds or one hour, and yield them."""
        for key, mask in self._selector.select(min(timeout_s, LONGEST_WAIT_S)):
            process: WorkerProcess = key.data
            if self._places[process.worker].process is not process:
                continue  # the process has ended earlier in this loop
            if mask & selectors.EVENT_WRITE:
                process.channel.flush()
                self._feed(self._places[process.worker])
            if mask & selectors.EVENT_READ:
                yield from self._attend(process, ended=key.fd == process.sentinel)

    def catch_up(self) -> Iterator[Arrival | Failure]:
        """Yield the events that have come, and wait for answers that have come in part.

        A worker can send a long answer only while the master reads. If no byte of an answer comes
        for a second, the waiting ends.
        """
        known = self._coming()
        yield from self.poll(0.0)
        coming = {p: count for p, count in self._coming().items() if count != known.get(p)}
        give_up_at = time.monotonic() + _PAUSE_S
        while coming and (left := give_up_at - time.monotonic()) > 0:
            yield from self.poll(left)
            before, coming = coming, {p: n for p, n in self._coming().items() if p in coming}
            if coming != before:
                give_up_at = time.monotonic() + _PAUSE_S

    def _coming(self) -> dict[WorkerProcess, int]:
        """Return, by process, the number of bytes received of an incomplete answer."""
        there = [place.process for place in self._places if place.process is not None]
        return {process: n for process in there if (n := process.channel.begun)}

    def close(self) -> None:
        """End all processes within about a second; if this is interrupted, call it again."""
        for place in self._places:
            if place.process is not None:
                place.process.terminate()
        deadline = time.monotonic() + _CLOSE_GRACE_S
        for place in self._places:
            process, place.process = place.process, None
            if process is not None:
                process.bury(grace_s=max(0.0, deadline - time.monotonic()))
        self._selector.close()
        self._sightings.close()
        self._buffers.close()

    def _attend(self, process: WorkerProcess, *, ended: bool) -> Iterator[Arrival | Failure]:
        """Read the messages of a process; if it has ended, replace it after its last message."""
        try:
            for frame in process.channel.pull():
                at = self._clock.now()
                match decode(frame, run_id=self._run_id, sealed=False):
                    case ResultMessage() | FailureMessage() as answer if (
                        answer.subject.worker == process.worker
                    ):
                        event = event_of(answer, at=at)
                        if self._places[process.worker].owed.settle(event):
                            yield event
                    case ReadyMessage(worker=process.worker, problem=problem):
                        process.problem = problem
                        if not problem:
                            self._welcome(process)
                    case message:
                        kind = type(message).__name__
                        raise WireError(f"worker {process.worker} sent an unexpected {kind}")
        except WireError as error:
            # The rest of the stream is unreliable.
            process.terminate()
            yield from self._replace(process, because=f"{type(error).__name__}: {error}")
            return
        if ended or process.channel.ended:
            yield from self._replace(process)

    def _send(self, worker: int, task: TaskKey, frame: bytes) -> None:
        place = self._places[worker]
        if place.process is not None:
            place.held.append((task, frame))
            self._feed(place)

    def _feed(self, place: _LocalWorker) -> None:
        """Send the waiting frames of a ready process as far as its socket accepts them."""
        if (process := place.process) is None:
            return
        while process.ready and place.held and not process.channel.unsent:
            process.channel.push(place.held.pop(0)[1])
        self._watch(process)

    def _welcome(self, process: WorkerProcess) -> None:
        """Record that a process is ready, and send the frames that waited for this."""
        process.ready, place = True, self._places[process.worker]
        place.failed_starts = 0
        self._feed(place)

    def _replace(self, process: WorkerProcess, *, because: str = "") -> Iterator[Failure]:
        """Start a new process; yield a failure for each task that the old process had received."""
        worker, place = process.worker, self._places[process.worker]
        self._selector.unregister(process.channel)
        self._selector.unregister(process.sentinel)
        place.process = None
        end = process.bury()
        reason = because or end
        if not process.ready:
            place.failed_starts += 1
            place.cause = reason
        at, computing = self._clock.now(), None if because else self._sightings.computing(worker)
        self._start(worker)
        if process.ready or place.process is None:
            yield from self._lose(worker, reason, at=at, died_at=computing)

    def _lose(
        self, worker: int, reason: str, *, at: float, died_at: Computing | None = None
    ) -> Iterator[Failure]:
        """Yield a failure for each task that a worker owes.

        ``died_at`` is the task that the worker's process was computing when it died.
        """
        place = self._places[worker]
        for round, attempt in place.owed.lose():
            is_cause = died_at is not None and (died_at.round, died_at.attempt) == (round, attempt)
            model = died_at.model if died_at is not None and is_cause else None
            yield failure_of((round, worker, attempt), at=at, reason=reason, model=model)
        place.held.clear()

    def _start(self, worker: int) -> None:
        place = self._places[worker]
        while place.process is None and place.failed_starts < _MAX_FAILED_STARTS:
            try:
                self._sightings.clear(worker)
                place.process = WorkerProcess(
                    worker,
                    run_id=self._run_id,
                    factory=self._factory,
                    buffers=self._buffers,
                    sightings=self._sightings,
                )
            except WorkerError as error:
                place.failed_starts += 1
                place.cause = str(error)
                continue
            for source in (place.process.channel, place.process.sentinel):
                self._selector.register(source, selectors.EVENT_READ, data=place.process)
            self._watch(place.process)  # the factory may need more than one send

    def _watch(self, process: WorkerProcess) -> None:
        """Make the selector report when a socket accepts bytes, as long as frames wait for it."""
        events = selectors.EVENT_READ | selectors.EVENT_WRITE * process.channel.unsent
        if self._selector.get_key(process.channel).events != events:
            self._selector.modify(process.channel, events, data=process)

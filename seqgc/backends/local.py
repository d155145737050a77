"""Workers as processes of this machine, forked from one parent that has imported what they need."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from seqgc._bounded import require_files
from seqgc._by_value import PicklingError, dumps
from seqgc.backends._events import (
    LONGEST_WAIT_S,
    EventBackend,
    Messaging,
    Owed,
    TaskKey,
    event_of,
    failure_of,
)
from seqgc.backends._processes import Sightings, WorkerProcess, set_preload
from seqgc.errors import ParameterError, WireError, WorkerError
from seqgc.ports import Arrival, Clock, Computing, Failure, Task
from seqgc.wire import CancelMessage, FailureMessage, ReadyMessage, ResultMessage, decode, encode
from seqgc.worker import ComputeFactory

__all__ = ["LocalBackend", "WorkerPool", "require_local_files"]

_FILES, _FILES_EACH = 64, 3  # a run's own; a worker's connection, and two of its process


def require_local_files(n: int) -> None:
    """Let this process have as many files open as ``n`` local workers need, or raise.

    The parent of the workers has the limit that holds when it is started.
    """
    require_files(n, each=_FILES_EACH, beside=_FILES)


class LocalBackend(EventBackend):
    """``n`` worker processes; a `seqgc.ports.Backend`, and a context manager that closes it.

    Each worker calls ``compute`` once and then answers tasks, one after the other, with one BLAS
    thread. Constructing the backend returns when all workers are ready, so that no round's time
    contains imports.

    - A worker whose process ends (kill -9, exit) loses its open tasks: each becomes a `Failure`
      that says how the process ended. The process is replaced at once, and tasks dispatched in the
      meantime wait for the new process. A worker that fails three times in a row before it is ever
      ready is given up: every dispatch to it becomes a `Failure` that names the cause.
    - An exception in ``compute`` becomes a `Failure` with its last line; the process continues.
    - Events are stamped when they are read. Late answers, to cancelled rounds, are `Arrival`
      events, too. Answers to unknown tasks are ignored.
    - A worker that hangs delays no other worker. Tasks that cannot be sent to it are dropped with
      their round; `restart` replaces it.
    - Ctrl-C and Ctrl-Z reach only the master; `close` ends the workers within about a second.
      Workers whose master has ended, in any way, end by themselves.

    Parameters
    ----------
    compute
        Called without arguments in each worker, returns its `seqgc.worker.Compute`. It crosses
        processes by cloudpickle, so it may be defined anywhere, in a script or a notebook as well.
    messaging, clock
        See `Messaging` and `EventBackend`; None: their defaults.
    preload
        Modules that the workers' common parent imports, once; name the one that imports torch.
        Only the first backend of a master process can choose them: later backends use its parent.
    start_timeout_s
        How long all workers together may take to become ready, seconds.

    Raises
    ------
    ParameterError
        If ``n`` or ``start_timeout_s`` is not positive, ``compute`` cannot cross processes, or the
        system allows fewer open files than the workers need.
    WorkerError
        If not all workers become ready; names the first cause.

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
            factory = dumps(compute)
        except PicklingError as error:
            rule = f"must pickle, to be sent to the workers ({error})"
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
        """The process id of each worker now; 0 where it has been given up."""
        return self._pool.pids

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks, without blocking: what is not taken at once is sent by `receive`."""
        requests = self._requests(round, tasks)
        frames = [encode(message, run_id=self._run_id, sealed=False) for message in requests]
        left_at = []
        for task, frame in zip(tasks, frames, strict=True):
            left_at.append(self._clock.now())
            self._pool.submit(task, frame)
        self._tell_all(self._pool.refuse())
        return left_at

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers, without blocking, that their tasks of the round are of no more use.

        A worker drops mini-tasks that it has not begun, and an answer that still waits for its
        time; one that is on its way arrives, late. Should its process end, that is no `Failure`.
        """
        self._check_workers(workers)
        for worker in workers:
            message = CancelMessage(round=round, worker=worker)
            self._pool.cancel(round, worker, encode(message, run_id=self._run_id, sealed=False))

    def restart(self, worker: int) -> Computing | None:
        """Replace a worker's process at once; return what it was computing."""
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
        """End all workers, at once whatever they do."""
        self._pool.close()


_MAX_FAILED_STARTS = 3  # in a row: the fourth would fail for the same reason
_CLOSE_GRACE_S = 1.0
_PAUSE_S = 1.0  # in the middle of an answer
_NO_TASK: TaskKey = (-1, -1)


@dataclass(slots=True, kw_only=True)
class _LocalWorker:
    """The state of a worker, which outlasts its processes."""

    process: WorkerProcess | None = None
    held: list[tuple[TaskKey, bytes]] = field(default_factory=list)  # frames to be sent, in order
    owed: Owed = field(default_factory=Owed)
    failed_starts: int = 0  # in a row
    cause: str = ""  # of the last failed start


class WorkerPool:
    """``n`` processes, their connections, and one selector over all of them; no threads."""

    def __init__(self, n: int, *, run_id: str, factory: bytes, clock: Clock) -> None:
        self._run_id, self._factory, self._clock = run_id, factory, clock
        self._selector = selectors.DefaultSelector()
        self._places = [_LocalWorker() for _ in range(n)]
        self._sightings = Sightings(n)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each worker; 0 where it has been given up."""
        return tuple(0 if p.process is None else p.process.pid for p in self._places)

    def start(self, timeout_s: float) -> None:
        """Start all processes; return once every worker is ready.

        Raises `WorkerError` if one cannot start, or not all are ready in time; names the first
        cause.
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
                    "; raise `start_timeout_s`, or preload what they import"
                )
            for _ in self.poll(left):
                pass  # nothing has been sent, so nothing can be answered or lost

    def submit(self, task: Task, frame: bytes) -> None:
        """Send a task's frame to its worker, as soon as that is ready for one; never blocks."""
        address = task.round, task.attempt
        self._places[task.worker].owed.tasks.add(address)
        self._send(task.worker, address, frame)

    def cancel(self, round: int, worker: int, frame: bytes) -> None:
        """Cancel a worker's tasks of a round, and send it this frame if it has received any."""
        place = self._places[worker]
        unsent = {task for task, _ in place.held if task[0] == round}
        place.held = [entry for entry in place.held if entry[0] not in unsent]
        if place.owed.cancel(round, unsent=unsent):
            self._send(worker, _NO_TASK, frame)

    def refuse(self) -> Iterator[Failure]:
        """Yield a failure for each task of the workers that have been given up."""
        for worker, place in enumerate(self._places):
            if place.process is None:
                yield from self._lose(worker, place.cause, at=self._clock.now())

    def computing(self, worker: int) -> Computing | None:
        """Return what a worker's process is computing."""
        return self._sightings.computing(worker)

    def restart(self, worker: int) -> Iterator[Failure]:
        """End a worker's process and start another, also for one that had been given up."""
        place = self._places[worker]
        place.failed_starts = 0
        if place.process is None:
            self._start(worker)
        else:
            place.process.kill()  # it may hang
            yield from self._replace(place.process, because="the worker was restarted")

    def poll(self, timeout_s: float) -> Iterator[Arrival | Failure]:
        """Wait for news, at most ``timeout_s`` seconds or an hour; yield what there is."""
        for key, mask in self._selector.select(min(timeout_s, LONGEST_WAIT_S)):
            process: WorkerProcess = key.data
            if self._places[process.worker].process is not process:
                continue  # it ended earlier in this very list
            if mask & selectors.EVENT_WRITE:
                process.channel.flush()
                self._feed(self._places[process.worker])
            if mask & selectors.EVENT_READ:
                yield from self._attend(process, ended=key.fd == process.sentinel)

    def catch_up(self) -> Iterator[Arrival | Failure]:
        """Yield the events that have come, and those whose answers have come in part.

        A worker can send a long answer only while the master reads. If an answer stops midway, wait
        for it for at most a second.
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
        """Return how many bytes have come of each answer that is under way, by process."""
        there = [place.process for place in self._places if place.process is not None]
        return {process: n for process in there if (n := process.channel.begun)}

    def close(self) -> None:
        """End every process, within about a second; leave none. Interrupted, it can be repeated."""
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

    def _attend(self, process: WorkerProcess, *, ended: bool) -> Iterator[Arrival | Failure]:
        """Read what a process says; if it has ended, what it said last, then replace it."""
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
                        raise WireError(f"worker {process.worker} sent a foreign {kind}")
        except WireError as error:
            # Its stream cannot be trusted from here on, nor told apart from an old one's.
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
        """Send what is held as far as the process, once it is ready, takes it now."""
        if (process := place.process) is None:
            return
        while process.ready and place.held and not process.channel.unsent:
            process.channel.push(place.held.pop(0)[1])
        self._watch(process)

    def _welcome(self, process: WorkerProcess) -> None:
        """Send a process that has become ready what was held for it."""
        process.ready, place = True, self._places[process.worker]
        place.failed_starts = 0
        self._feed(place)

    def _replace(self, process: WorkerProcess, *, because: str = "") -> Iterator[Failure]:
        """Start another process; yield a failure for each task that the old one had received."""
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
        """Yield a failure for each task that a worker owes; it may have died of one of them."""
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
                    sightings=self._sightings,
                )
            except WorkerError as error:
                place.failed_starts += 1
                place.cause = str(error)
                continue
            for source in (place.process.channel, place.process.sentinel):
                self._selector.register(source, selectors.EVENT_READ, data=place.process)
            self._watch(place.process)  # what it is made from may take more than one send

    def _watch(self, process: WorkerProcess) -> None:
        """Ask the selector to say when a process takes more, while something waits for it."""
        events = selectors.EVENT_READ | selectors.EVENT_WRITE * process.channel.unsent
        if self._selector.get_key(process.channel).events != events:
            self._selector.modify(process.channel, events, data=process)

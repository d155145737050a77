"""Workers as processes of this machine, forked from a parent that has imported their modules."""

from __future__ import annotations

import math
import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

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
    partial_event_of,
)
from seqgc.backends._processes import SharedBuffers, Sightings, WorkerProcess, set_preload
from seqgc.errors import ParameterError, WireError, WorkerError
from seqgc.ports import Arrival, Clock, Computing, Failure, Notice, PartialArrival, Task
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


def _picklable(argument: str, value: object) -> Parcel:
    try:
        return Parcel.of(value)
    except PicklingError as error:
        rule = f"must be picklable, to be sent to the workers ({error})"
        remedy = "let it open files, connections and locks when it is called"
        raise ParameterError(argument, rule, type(value).__name__, remedy) from error


def require_picklable(argument: str, value: object) -> None:
    """Raise `ParameterError` if local processes cannot be sent an argument's value."""
    _picklable(argument, value)


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
    - If a task asks for it (`Task.item_loads`), each item is answered as soon as it is done.
    - Events are stamped when they are read. Late answers, to cancelled rounds, are `Arrival`
      events, too. Answers to unknown tasks are ignored.
    - ``wanted`` may lower the number of processes while the backend works. The processes with the
      highest numbers are killed. All unanswered tasks of their workers are computed by the other
      processes, and so are later tasks; none of them fails. Such a process computes one task after
      the other, and is sent at most one task ahead. Processes that come back get the tasks of their
      own workers that have not been sent to another process.
    - A worker that hangs delays only the workers that share its process. Tasks that cannot be sent
      to it are dropped when their round is cancelled; `restart` replaces its process.
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
    wanted
        A function that returns the number of processes that should work now. It is called at the
        start, and then about once a second. Numbers above ``n`` mean ``n``, numbers below 1 mean 1.
        None: always ``n``.

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
    sends_parts: Final = True

    def __init__(
        self,
        n: int,
        compute: ComputeFactory,
        *,
        messaging: Messaging | None = None,
        preload: Sequence[str] = (),
        start_timeout_s: float = 60.0,
        wanted: Callable[[], int] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(n, messaging=messaging, clock=clock)
        if not start_timeout_s > 0:
            raise ParameterError("start_timeout_s", "must be > 0 seconds", start_timeout_s)
        require_local_files(self.n)
        factory = _picklable("compute", compute)
        self._run_id = self._messaging.run_id
        self._wanted, self._present, self._asked_at = wanted, self.n, -math.inf
        self._pool = WorkerPool(
            self.n, run_id=self._run_id, factory=factory, clock=self._clock, warn=self._warn
        )
        set_preload(preload)
        try:
            self._pool.start(self._ask(), timeout_s=start_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each worker; 0 for a worker without a process."""
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
        """Replace a worker's process at once; return the task that it was computing, or None.

        If the process serves other workers as well, and is busy with one of their tasks, it is not
        replaced, because the worker's tasks only wait. Otherwise all tasks that it was sent fail.
        """
        self._check_workers([worker])
        computing = self._pool.computing(worker)
        self._tell_all(self._pool.restart(worker), are_own=True)
        return computing

    def _collect(self, timeout_s: float) -> None:
        pool = self._pool
        if self._wanted is not None:
            timeout_s = min(timeout_s, _ASK_EVERY_S)
            if time.monotonic() - self._asked_at >= _ASK_EVERY_S:
                before = self._present
                if self._ask() != before:
                    self._pool.resize(self._present)
        self._tell_all(pool.catch_up() if self._was_away else pool.poll(timeout_s))

    def _ask(self) -> int:
        """Return the number of processes that are wanted now; report it if it has changed."""
        if self._wanted is not None:
            self._asked_at, before = time.monotonic(), self._present
            self._present = min(max(1, self._wanted()), self.n)
            if self._present != before:
                fields = {"present": self._present, "of": self.n}
                self._notices.append(Notice(kind="workers", fields=fields))
        return self._present

    def _warn(self, text: str) -> None:
        self._notices.append(Notice(kind="warning", fields={"text": text}))

    def _tell_all(
        self, events: Iterable[Arrival | PartialArrival | Failure], *, are_own: bool = False
    ) -> None:
        for event in events:
            self._tell(event, is_own=are_own)

    def _end(self) -> None:
        self._pool.close()


_MAX_FAILED_STARTS = 3  # in a row; another start would probably fail for the same reason
_CLOSE_GRACE_S = 1.0
_PAUSE_S = 1.0  # longest pause in the middle of an answer
_ASK_EVERY_S = 0.5  # pause between two questions for the number of processes
_SHORT_S = 0.5  # wait for a process that is no reason to exceed a time limit
_MOST_SENT = 2  # tasks that a process of several workers holds: one is computed, one waits

_Address: TypeAlias = tuple[int, TaskKey]  # worker, and the round and attempt of its task


@dataclass(slots=True, kw_only=True, eq=False)
class _Host:
    """The processes of a worker, one after the other, and the frames for the present process.

    The process serves its own worker, and also workers whose processes are absent.
    """

    process: WorkerProcess | None = None
    is_wanted: bool = True
    serves: bool = True  # False: another host serves its worker
    workers: int = 1  # the number of workers that it serves
    known: set[int] = field(default_factory=set)  # workers whose tasks it was ever sent
    cancels: list[bytes] = field(default_factory=list)  # frames to be sent, before all tasks
    held: list[tuple[_Address, bytes]] = field(default_factory=list)  # tasks to be sent, in order
    sent: dict[_Address, bytes] = field(default_factory=dict)  # unanswered tasks
    failed_starts: int = 0  # in a row
    cause: str = ""  # the cause of the last failed start

    @property
    def has_room(self) -> bool:
        """True if the process may be sent another task."""
        return self.workers == 1 or len(self.sent) < _MOST_SENT


class WorkerPool:
    """At most ``n`` processes that serve ``n`` workers, and one selector; no threads.

    Each worker has a host, with a process of its own. While this process is absent because fewer
    processes are wanted, another host serves the worker (`resize`). ``warn`` is called with
    problems that the run survives.
    """

    def __init__(
        self,
        n: int,
        *,
        run_id: str,
        factory: Parcel,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self._run_id, self._factory, self._clock = run_id, factory.payload, clock
        self._buffers = SharedBuffers(factory.buffers)
        self._selector = selectors.DefaultSelector()
        self._hosts = [_Host() for _ in range(n)]
        self._host_of = list(self._hosts)  # by worker
        self._owed = [Owed() for _ in range(n)]  # by worker
        self._at: dict[_Address, _Host] = {}  # where the unanswered tasks were sent
        self._since: dict[_Address, float] = {}  # when the unanswered tasks were submitted
        self._sightings = Sightings(n)
        self._warn = warn

    @property
    def pids(self) -> tuple[int, ...]:
        """The process id of each worker; 0 for a worker without a process."""
        return tuple(0 if h.process is None else h.process.pid for h in self._hosts)

    def start(self, count: int, *, timeout_s: float) -> None:
        """Start the first ``count`` processes, and wait until all of them are ready.

        Raises
        ------
        WorkerError
            If a process cannot start, or if not all processes are ready in time; the message
            contains the first cause.
        """
        deadline = time.monotonic() + timeout_s
        for host in self._hosts[count:]:
            host.is_wanted = host.serves = False
        self._spread()
        hosts = self._hosts[:count]
        for worker in range(count):
            self._start(worker)
        while (ready := sum(h.process is not None and h.process.ready for h in hosts)) < count:
            for worker, host in enumerate(hosts):
                if host.process is None:
                    message = f"worker {worker} does not start: {host.cause}"
                    raise WorkerError(message, worker=worker)
            if (left := deadline - time.monotonic()) <= 0:
                causes = [f"; last problem: {host.cause}" for host in hosts if host.cause]
                raise WorkerError(
                    f"{ready} of {count} workers were ready within {timeout_s:g} s"
                    f"{''.join(causes[:1])}"
                    "; raise `start_timeout_s`, or preload the modules that they import"
                )
            for _ in self.poll(left):
                pass  # no task has been sent, so there is no event

    def resize(self, count: int) -> None:
        """Let only the first ``count`` >= 1 workers have a process.

        The other processes are killed, and their unanswered tasks are moved to other processes. A
        process that comes back serves its worker as soon as it is ready.
        """
        moved = list[tuple[_Address, bytes]]()
        for worker, host in enumerate(self._hosts):
            was_wanted, host.is_wanted = host.is_wanted, worker < count
            if was_wanted and not host.is_wanted:
                if host.process is not None:
                    host.process.kill()
                    self._remove(host.process)
                host.serves = False
                moved += [*host.sent.items(), *host.held]
                host.sent, host.held = {}, []
            elif host.is_wanted and not was_wanted:
                host.failed_starts = 0
                self._start(worker)
        for address, _ in moved:
            self._at.pop(address, None)
        self._spread(moved)

    def _spread(self, moved: Sequence[tuple[_Address, bytes]] = ()) -> None:
        """Choose a host for each worker; move the tasks that have not been sent to these hosts.

        The tasks ``moved`` come first. A worker whose own host does not serve gets the host with
        the fewest workers.
        """
        serving = [host for host in self._hosts if host.serves]
        serving = [host for host in serving if host.process is not None] or serving
        counts = Counter(serving)
        for worker, own in enumerate(self._hosts):
            host = own if own.serves else min(serving, key=lambda each: counts[each])
            counts[host] += not own.serves
            self._host_of[worker] = host
        waiting = [*moved, *(entry for host in self._hosts for entry in host.held)]
        for host in self._hosts:
            host.workers, host.held = counts[host], []
        for entry in waiting:
            self._host_of[entry[0][0]].held.append(entry)
        for host in serving:
            self._feed(host)

    def submit(self, task: Task, frame: bytes) -> None:
        """Send a task's frame to a process when the process is ready, without blocking."""
        key = task.round, task.attempt
        self._owed[task.worker].tasks.add(key)
        self._since[task.worker, key] = time.monotonic()
        host = self._host_of[task.worker]
        if host.process is not None:
            host.held.append(((task.worker, key), frame))
            self._feed(host)

    def cancel(self, round: int, worker: int, frame: bytes) -> None:
        """Cancel a worker's tasks of a round; if one of them was sent, send this frame, too."""
        owed = self._owed[worker]
        over = {(worker, key) for key in owed.tasks if key[0] == round}
        sent = over & self._at.keys()
        owed.cancel(round, unsent={key for _, key in over - sent})
        for host in self._forget(over):
            host.cancels.append(frame)
            self._feed(host)

    def _forget(self, tasks: Iterable[_Address]) -> list[_Host]:
        """Forget these tasks; return the hosts to which some of them were sent."""
        over, hosts = set(tasks), dict[_Host, None]()
        for address in over:
            self._since.pop(address, None)
            if (host := self._at.pop(address, None)) is not None:
                del host.sent[address]
                hosts[host] = None
        for host in {self._host_of[worker] for worker, _ in over}:
            host.held = [entry for entry in host.held if entry[0] not in over]
        return list(hosts)

    def refuse(self) -> Iterator[Failure]:
        """Yield a failure for each task of workers whose process was given up."""
        for worker, host in enumerate(self._host_of):
            if host.process is None:
                yield from self._fail(self._tasks_of(worker), host.cause, at=self._clock.now())

    def computing(self, worker: int) -> Computing | None:
        """Return the task of a worker that is being computed, or None."""
        seen = self._sightings.computing(self._hosts.index(self._host_of[worker]))
        is_own = seen is not None and seen[0] == worker and not self._only_waits(worker)
        return seen[1] if seen is not None and is_own else None

    def restart(self, worker: int) -> Iterator[Failure]:
        """End a worker's process and start a new one, even if the process was given up.

        If the worker's tasks only waited for a process that it shares, they fail, and the process
        continues.
        """
        host, reason = self._host_of[worker], "the worker was restarted"
        host.failed_starts = 0
        if host.process is None:
            self._start(self._hosts.index(host))
        elif not self._only_waits(worker):
            host.process.kill()  # it may hang
            yield from self._replace(host.process, because=reason)
        yield from self._fail(self._tasks_of(worker), reason, at=self._clock.now())

    def _only_waits(self, worker: int) -> bool:
        """Return True if a worker's tasks wait, or waited for long, for a process that it shares.

        The process then computes a task of another worker, or has begun the worker's task only
        recently.
        """
        host = self._host_of[worker]
        seen = self._sightings.computing(self._hosts.index(host))
        if host.workers == 1 or seen is None:
            return False
        other, task, busy_s = seen
        address = other, (task.round, task.attempt)
        if address not in host.sent:  # no other time limit concerns the task
            return False
        waited_s = time.monotonic() - self._since[address] - busy_s
        return other != worker or waited_s > max(busy_s, _SHORT_S)

    def poll(self, timeout_s: float) -> Iterator[Arrival | PartialArrival | Failure]:
        """Wait for events at most ``timeout_s`` seconds or one hour, and yield them."""
        for key, mask in self._selector.select(min(timeout_s, LONGEST_WAIT_S)):
            process: WorkerProcess = key.data
            if self._hosts[process.worker].process is not process:
                continue  # the process has ended earlier in this loop
            if mask & selectors.EVENT_WRITE:
                process.channel.flush()
                self._feed(self._hosts[process.worker])
            if mask & selectors.EVENT_READ:
                yield from self._attend(process, ended=key.fd == process.sentinel)

    def catch_up(self) -> Iterator[Arrival | PartialArrival | Failure]:
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
        there = [host.process for host in self._hosts if host.process is not None]
        return {process: n for process in there if (n := process.channel.begun)}

    def close(self) -> None:
        """End all processes within about a second; if this is interrupted, call it again."""
        for host in self._hosts:
            if host.process is not None:
                host.process.terminate()
        deadline = time.monotonic() + _CLOSE_GRACE_S
        for host in self._hosts:
            process, host.process = host.process, None
            if process is not None:
                process.bury(grace_s=max(0.0, deadline - time.monotonic()))
        self._selector.close()
        self._sightings.close()
        self._buffers.close()

    def _attend(
        self, process: WorkerProcess, *, ended: bool
    ) -> Iterator[Arrival | PartialArrival | Failure]:
        """Read the messages of a process; if it has ended, replace it after its last message."""
        host = self._hosts[process.worker]
        try:
            for frame in process.channel.pull():
                at = self._clock.now()
                match decode(frame, run_id=self._run_id, sealed=False):
                    case ResultMessage() | FailureMessage() as answer if (
                        answer.subject.worker in host.known
                    ):
                        if (event := self._event(answer, host, at=at)) is not None:
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
        elif host.held:
            self._feed(host)

    def _event(
        self, answer: ResultMessage | FailureMessage, host: _Host, *, at: float
    ) -> Arrival | PartialArrival | Failure | None:
        """Return the event of an answer of a host's process, or None if it is not for the master.

        An answer to one of the items of a task that is over, or was moved, is not for the master.
        """
        if isinstance(answer, ResultMessage) and not answer.is_last:
            round, worker, attempt = answer.subject.address
            is_out = (worker, (round, attempt)) in host.sent
            return partial_event_of(answer, at=at) if is_out else None
        event = event_of(answer, at=at)
        return event if self._settle(event, host) else None

    def _settle(self, event: Arrival | Failure, host: _Host) -> bool:
        """Record an answer of a host's process; return True if the master must receive it."""
        key = event.round, event.attempt
        if host.sent.pop((event.worker, key), None) is not None:
            del self._at[event.worker, key], self._since[event.worker, key]
        elif key in self._owed[event.worker].tasks:
            return False  # another process has this task
        return self._owed[event.worker].settle(event)

    def _feed(self, host: _Host) -> None:
        """Send the waiting frames of a ready process as far as its socket accepts them."""
        if (process := host.process) is None:
            return
        while process.ready and not process.channel.unsent:
            if host.cancels:
                process.channel.push(host.cancels.pop(0))
            elif host.held and host.has_room:
                address, frame = host.held.pop(0)
                host.sent[address], self._at[address] = frame, host
                host.known.add(address[0])
                process.channel.push(frame)
            else:
                break
        self._watch(process)

    def _welcome(self, process: WorkerProcess) -> None:
        """Record that a process is ready, and send the frames that waited for this."""
        process.ready, host = True, self._hosts[process.worker]
        host.failed_starts = 0
        if host.serves:
            self._feed(host)
        else:
            host.serves = True
            self._spread()

    def _remove(self, process: WorkerProcess) -> str:
        """Bury a process that ends, and return how it ended."""
        host = self._hosts[process.worker]
        self._selector.unregister(process.channel)
        self._selector.unregister(process.sentinel)
        host.process, host.cancels = None, []
        return process.bury()

    def _replace(self, process: WorkerProcess, *, because: str = "") -> Iterator[Failure]:
        """Start a new process; yield a failure for each task that the old process had received."""
        worker, host = process.worker, self._hosts[process.worker]
        reason = self._remove(process)
        reason = because or reason
        if not process.ready:
            host.failed_starts += 1
            host.cause = reason
        at, computing = self._clock.now(), None if because else self._sightings.computing(worker)
        self._start(worker)
        lost = list(host.sent)
        if host.process is None:
            lost += [address for address, _ in host.held]
        yield from self._fail(lost, reason, at=at, died_at=computing)

    def _tasks_of(self, worker: int) -> list[_Address]:
        return [(worker, key) for key in self._owed[worker].tasks]

    def _fail(
        self,
        tasks: Iterable[_Address],
        reason: str,
        *,
        at: float,
        died_at: tuple[int, Computing, float] | None = None,
    ) -> Iterator[Failure]:
        """Forget tasks, and yield a failure for each of them.

        ``died_at`` is the worker and the task that a process was computing when it died.
        """
        tasks = sorted(tasks, key=lambda address: address[::-1])
        self._forget(tasks)
        for worker, (round, attempt) in tasks:
            self._owed[worker].tasks.discard((round, attempt))
            model = None
            if died_at is not None and died_at[0] == worker:
                computing = died_at[1]
                is_cause = (computing.round, computing.attempt) == (round, attempt)
                model = computing.model if is_cause else None
            yield failure_of((round, worker, attempt), at=at, reason=reason, model=model)

    def _start(self, worker: int) -> None:
        host = self._hosts[worker]
        while host.process is None and host.failed_starts < _MAX_FAILED_STARTS:
            try:
                self._sightings.clear(worker)
                host.process = WorkerProcess(
                    worker,
                    run_id=self._run_id,
                    factory=self._factory,
                    buffers=self._buffers,
                    sightings=self._sightings,
                )
            except WorkerError as error:
                host.failed_starts += 1
                host.cause = str(error)
                continue
            for source in (host.process.channel, host.process.sentinel):
                self._selector.register(source, selectors.EVENT_READ, data=host.process)
            self._watch(host.process)  # the factory may need more than one send
        if host.process is None and not host.serves:
            self._warn(f"worker {worker} does not start ({host.cause}); the others do its work")

    def _watch(self, process: WorkerProcess) -> None:
        """Make the selector report when a socket accepts bytes, as long as frames wait for it."""
        events = selectors.EVENT_READ | selectors.EVENT_WRITE * process.channel.unsent
        if self._selector.get_key(process.channel).events != events:
            self._selector.modify(process.channel, events, data=process)

"""Workers as processes of this machine, forked from one parent that has imported what they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seqgc._bounded import require_files
from seqgc._by_value import PicklingError, dumps
from seqgc.backends._events import EventBackend, Messaging
from seqgc.backends._pool import WorkerPool
from seqgc.backends._processes import set_preload
from seqgc.errors import ParameterError
from seqgc.ports import Arrival, Clock, Computing, Failure, Task
from seqgc.wire import CancelMessage, encode
from seqgc.worker import ComputeFactory

__all__ = ["LocalBackend", "require_local_files"]

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

    - A worker whose process ends (kill -9, exit) loses its outstanding tasks, each a `Failure` that
      says how it ended, and is replaced at once; what is dispatched meanwhile waits for the new
      process. One that fails three times in a row before it was ever ready is given up: every
      dispatch to it is a `Failure` that names the cause.
    - An exception in ``compute`` is a `Failure` with its last line; the process lives on.
    - Events are stamped when they are read; late answers, of cancelled rounds, are `Arrival` events
      too. Answers that nobody asked for are none.
    - One that hangs delays nobody, and what cannot be sent to it is forgotten with its round;
      `restart` replaces it.
    - Ctrl-C and Ctrl-Z are for the master only; `close` ends the workers within about a second.
      Workers whose master is gone, however it went, end by themselves.

    Parameters
    ----------
    compute
        Called without arguments in each worker, returns its `seqgc.worker.Compute`. It crosses
        processes by cloudpickle, so it may be defined anywhere, in a script or a notebook as well.
    messaging, clock
        See `Messaging` and `EventBackend`; None: the usual.
    preload
        Modules that the workers' common parent imports, once; name the one that imports torch.
        Only the first backend of a master process has a say: the parent serves all later ones.
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

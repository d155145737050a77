"""`Conduct`: an observer that checks the contract of policies while a policy runs.

A policy may be written by a user. In virtual time, nothing else would end a run whose policy sends
the same tasks again and again. And a policy that applies a part twice, or not at all, would seem
fast in a comparison. Therefore every run in virtual time is observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from seqgc.errors import ScheduleError, SeqgcError, one_line
from seqgc.ports import Close, Dispatch, Finish, Notice, Part, Seen, Update

__all__ = ["Conduct"]

_PATIENCE: Final = 1000
"""Events for each worker without any gradient, after which a run is taken to be endless.

A round has a few events for each worker, and a scheme's delay is at most some dozen rounds.
"""

_REMEDY: Final = "seqgc.testing.check_defence says more"
_OTHERS: Final = 10  # ticks and notices belong to no worker: as many as for this many workers


class Conduct:
    """An observer for `seqgc.master.run` that ends the run of a policy that breaks its contract.

    The contract:

    - Tasks are for the ``n`` workers and the ``num_jobs`` jobs.
    - The gradient of a job is decoded once, as a whole or in parts. A part is decoded again only if
      the decoding says so, and only until the job ends.
    - Rounds close in order, and each job closes once.
    - The number of events between two gradients is limited: no run is endless.

    Errors begin with ``name``, and end with the ``remedy`` if it is not empty.

    Raises
    ------
    ScheduleError
        If an event or action breaks the contract, or if the policy raises an error that is not a
        `SeqgcError` (`watching`).

    Examples
    --------
    >>> conduct = Conduct("mine", n=2, num_jobs=3)
    >>> conduct(Dispatch(round=0, attempt=0, assignment={2: ()}))
    Traceback (most recent call last):
        ...
    seqgc.errors.ScheduleError: mine asks worker 2 for a task, and there are 2: ...
    """

    def __init__(self, name: str, *, n: int, num_jobs: int, remedy: str = _REMEDY) -> None:
        self._name, self._n, self._jobs = name, n, num_jobs
        self._remedy = f": {remedy}" if remedy else ""
        self._parts: dict[int, dict[int, Part]] = {}  # by incomplete job: its parts
        self._whole, self._closed = set[int](), set[int]()  # jobs
        self._rounds = 0
        self._events, self._patience = 0, _PATIENCE * (n + _OTHERS)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Convert the errors of a policy's code to one line that begins with the policy's name."""
        try:
            yield
        except ScheduleError as error:  # from the loop or the backend, which do not know the name
            if str(error).startswith(self._name):
                raise
            raise ScheduleError(f"{self._name}: {error}") from error
        except (SeqgcError, MemoryError):
            raise
        except RecursionError as error:
            raise self._broken("answers what it has sent by sending more, without end") from error
        except Exception as error:
            why = f"{type(error).__name__}: {one_line(error, limit=120)}"
            raise self._broken(f"raises {why}") from error

    def __call__(self, seen: Seen) -> None:
        """Check an event or an action."""
        self._events += 1
        match seen:
            case Dispatch():
                self._look_at_tasks(seen)
            case Update() | Finish():
                self._apply(seen)
            case Close():
                self._close(seen)
            case Notice():
                pass
            case _ if self._events > self._patience:
                known = f"{len(self._whole)} of {self._jobs} jobs"
                raise self._broken(f"does not end: {self._events} events, no gradient, {known}")

    def end(self) -> None:
        """Check, at the end of the run, that all jobs are closed and applied."""
        for what, jobs in (("not closed", self._closed), ("not applied all of", self._whole)):
            if missing := sorted(set(range(self._jobs)) - jobs):
                raise self._broken(f"is done, and has {what} job {missing[0]}")

    def _look_at_tasks(self, action: Dispatch) -> None:
        for worker, mini_tasks in action.assignment.items():
            if not 0 <= worker < self._n:
                raise self._broken(f"asks worker {worker} for a task, and there are {self._n}")
            for task in mini_tasks:
                if not 0 <= task.job < self._jobs:
                    raise self._broken(f"asks for job {task.job}, and there are {self._jobs}")
        if action.loads is not None and action.loads.shape != (self._n,):
            raise self._broken(f"says {action.loads.shape} loads for {self._n} workers")

    def _apply(self, action: Update | Finish) -> None:
        decoding = action.decoding()
        self._events = 0 if decoding.share else self._events
        job, part = action.job, decoding.part
        if decoding.job != job:
            raise self._broken(f"decodes job {decoding.job} as job {job}")
        if not 0 <= job < self._jobs:
            raise self._broken(f"applies job {job}, and there are {self._jobs}")
        parts = self._parts.setdefault(job, {})
        if job in self._whole or (part is None and parts):
            raise self._broken(f"applies job {job} twice")
        if part is not None:
            if (part.index in parts) != part.again:
                how = "as if it were in already" if part.again else "twice"
                raise self._broken(f"applies part {part.index} of job {job} {how}")
            if parts and next(iter(parts.values())).of != part.of:  # all of them agree
                raise self._broken(f"cuts job {job} into parts in two ways")
            parts[part.index] = part
        whole = (job,) if part is None or len(parts) == part.of else ()
        for ended in whole if decoding.ends is None else decoding.ends:
            self._end(ended, all_in=ended == job and part is None)

    def _end(self, job: int, *, all_in: bool) -> None:
        """Record that a job has ended; all its parts must have been applied."""
        parts = self._parts.pop(job, {})
        if not all_in and not 0 < len(parts) == next(iter(parts.values())).of:
            raise self._broken(f"ends job {job}, of which {len(parts)} parts are in")
        self._whole.add(job)

    def _close(self, action: Close) -> None:
        if action.record.round != self._rounds:
            raise self._broken(f"closes round {action.record.round}, and {self._rounds} is next")
        self._rounds += 1
        for job in action.jobs:
            if job in self._closed:
                raise self._broken(f"closes job {job} twice")
            self._closed.add(job)

    def _broken(self, what: str) -> ScheduleError:
        return ScheduleError(f"{self._name} {what}{self._remedy}")

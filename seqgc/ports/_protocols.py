"""The protocols at the edges, and the events and actions that cross them.

A *policy* decides and does no I/O; a *backend* executes and decides nothing; a *workload* knows
what the jobs compute. `seqgc.master.run` carries events to the policy and its actions to the rest.
All times are seconds on the backend's clock, whose origin is arbitrary.

A task has an address: (round, worker, attempt). Every task that is dispatched ends in an `Arrival`
or a `Failure` of that address, or in a `Cancel` of its round and worker; after a `Cancel` an answer
may still come, late. Rounds may overlap: a worker can owe answers of several, and one to a round
that is closed may be of use until the jobs that it is for are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from seqgc.errors import ScheduleError
from seqgc.ports._capabilities import Capability
from seqgc.ports._records import (
    BoolArray,
    Decoding,
    Flaw,
    FlawKind,
    FloatArray,
    LateAnswer,
    MiniTask,
    ResultForm,
    Task,
    WeightedPoints,
    WeightRef,
)

# ---- events: from the backend to the policy -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """The tasks of these workers left the master.

    A worker's time starts when its own task leaves: sending takes the master a while, and on few
    cores the first answers are there before the last task is. A round's starts with its first.
    """

    round: int
    attempt: int
    workers: tuple[int, ...]
    left_at: tuple[float, ...]  # each in its turn, in the order of the workers
    loads: FloatArray | None = field(default=None, compare=False)  # (n,) see `Dispatch`

    @property
    def at(self) -> float:
        """When the first of the tasks left."""
        return min(self.left_at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A worker's results, by slot, reached the master at ``at``.

    ``flaws`` are what is wrong with results, by the models whose they are: zeros stand in their
    places.
    """

    round: int
    worker: int
    attempt: int
    at: float
    results: Mapping[int, FloatArray]
    flaws: Mapping[str, Flaw] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker's task will not be answered; ``reason`` is one line.

    ``final`` says that this worker will answer no other task either, for the rest of the run.
    ``model`` is None unless the process that computed the task has died. Then it is the name of the
    model whose part the process was computing, or empty if the backend does not know that.
    """

    round: int
    worker: int
    attempt: int
    at: float
    reason: str
    final: bool = False
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """The task (``round``, ``attempt``) that a worker is computing, and the model it is at.

    ``model`` is the name of the model whose part the worker is computing, empty if the backend does
    not know it. ``is_stuck`` says that this part has taken at least half of the task's time so far.
    """

    round: int
    attempt: int
    model: str = ""
    is_stuck: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Nothing (more) had arrived by ``at``, the policy's own ``wake_at``."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timetable:
    """How long each worker takes, (n,) seconds from when its task left; only a replay knows.

    It stands for the `Arrival`s of the round's workers, as many as come before the round closes.
    """

    round: int
    at: float  # now
    times: FloatArray


Event: TypeAlias = Dispatched | Arrival | Failure | Tick | Timetable

# ---- actions: from the policy to the loop -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send these workers their mini-tasks of the round.

    ``begins_segment``: what ran before has ended, and the workload must have every gradient of it
    before these tasks are made or anyone hears of them. ``loads`` (n,), all workers', say what
    share of a job's batch each has in the round: what a replay charges. Where work is dealt, they
    are the shares of the tasks of this dispatch, and 0 for workers that have none.
    """

    round: int
    attempt: int
    assignment: Mapping[int, tuple[MiniTask, ...]]
    begins_segment: bool = False
    loads: FloatArray | None = field(default=None, compare=False)

    def load_of(self, worker: int) -> float:
        """Return a worker's load, 0 where nobody says.

        Raises
        ------
        ScheduleError
            If there is no such worker.

        Examples
        --------
        >>> import numpy as np
        >>> Dispatch(round=0, attempt=0, assignment={}, loads=np.array([0.5, 0.5])).load_of(2)
        Traceback (most recent call last):
            ...
        seqgc.errors.ScheduleError: the policy asks worker 2 for a task of round 0, and there are 2
        """
        if self.loads is None:
            return 0.0
        if not 0 <= worker < len(self.loads):
            asks = f"the policy asks worker {worker} for a task of round {self.round}"
            raise ScheduleError(f"{asks}, and there are {len(self.loads)}")
        return float(self.loads[worker])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Whatever these workers still do for the round is of no use."""

    round: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Replace this worker by a fresh one; each task that it still owes becomes a `Failure`.

    ``reason`` is a few words. It is empty if the worker was silent beyond the time limit. A backend
    that cannot replace workers does nothing; if there is a reason, a `Notice` says so once in a
    run. A policy that cannot work without restarts is a `DemandingPolicy`, which says so before.
    """

    worker: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """An arrival or failure that came too late, twice, or for nothing; it is counted, not used."""

    event: Arrival | Failure
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """An arrival with ``flaws`` of a model that is not known to have failed.

    It may be the worker's fault: it is not used, unless a `Park` says otherwise.
    """

    event: Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """These models have failed: two workers say so, or all that there are to say it.

    ``flaws`` say why; ``answers``, in doubt for nothing but failed models, are used from now on.
    """

    flaws: Mapping[str, Flaw]
    answers: tuple[Arrival, ...]


CloseReason: TypeAlias = Literal[
    "everyone", "tolerance", "wait-out", "exhausted", "timeout", "idle", "again", "dealt"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRecord:
    """How a round ended, and why then.

    ``reason``: ``everyone`` answered; the ``tolerance`` (1+mu)*kappa had passed and the answers
    sufficed; they did not, and a ``wait-out`` for more ended; workers failed and no more answers
    could come (``exhausted``), or not within the round's hard time limit (``timeout``); nobody had
    anything to do (``idle``); a resumed run closed it ``again``, on the same answers. Where work is
    dealt, a round is a job, and ends when its pieces, and those of the jobs before, are in
    (``dealt``): ``responded`` is who gave one, its seconds begin where the last round's end.
    """

    round: int
    responded: BoolArray  # (n,), read-only
    kappa_s: float  # the first answer's time
    duration_s: float
    reason: CloseReason
    waited_out: bool  # stayed open beyond (1+mu)*kappa
    late: tuple[LateAnswer, ...] = ()  # answers to earlier rounds that it took, in this order

    @property
    def missed(self) -> int:
        """How many answers it went without, less the late ones it took; 0 where work is dealt."""
        return 0 if self.reason == "dealt" else int((~self.responded).sum()) - len(self.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """A round closed; it finished the gradients of these ``jobs``."""

    record: RoundRecord
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A job's gradient can be decoded from results that have arrived.

    ``decoding`` is to be called at once or never: after the next event it may be forgotten. An
    observer may call it too: it is worked out once.
    """

    job: int
    decoding: Callable[[], Decoding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A part of a job's gradient has arrived, which is of use by itself: see `Finish`."""

    job: int
    decoding: Callable[[], Decoding]


Action: TypeAlias = Dispatch | Cancel | Restart | Drop | Doubt | Park | Close | Finish | Update

# ---- protocols ----------------------------------------------------------------------------------


class Policy(Protocol):
    """Sans-I/O: all that the loop drives. ``on`` is its one mutator after ``start``."""

    @property
    def wake_at(self) -> float: ...  # when to send a Tick if nothing arrives before
    @property
    def done(self) -> bool: ...
    def start(self) -> Sequence[Action]: ...
    def on(self, event: Event) -> Sequence[Action]: ...


@runtime_checkable
class DemandingPolicy(Policy, Protocol):
    """A policy for backends that can do more than all: on another it is refused at its start."""

    @property
    def needs(self) -> frozenset[Capability]: ...


class AnyBackend(Protocol):
    """Executes tasks and reports, in order of time, what became of them."""

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks; return when each left: just before it was handed to what carries it."""

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers that their task of the round is of no more use (best effort)."""

    def receive(self, until: float) -> Arrival | Failure | Timetable | None:
        """Return the next event that came by ``until``; None once that has passed.

        One that nobody read before, for the master was busy or stopped, may have come by then: it
        is returned too, its ``at`` being when it was read.
        """

    def close(self) -> None:
        """Release everything; no process, thread, port or file stays behind."""


class Backend(AnyBackend, Protocol):
    """A backend with workers of its own: nobody knows when they will answer."""

    def receive(self, until: float) -> Arrival | Failure | None: ...


@runtime_checkable
class RestartingBackend(Backend, Protocol):
    """A backend that can replace its workers."""

    def restart(self, worker: int) -> Computing | None:
        """Replace a worker by a fresh one; each task that the old one still owes is a `Failure`.

        Returns what the old worker was computing. None means that it was idle, or that the backend
        does not know.
        """


@runtime_checkable
class OutlastingBackend(Backend, Protocol):
    """A backend whose tasks nobody can stop: cancelled or not, they outlast it, and may cost."""

    @property
    def under_way(self) -> int:
        """How many tasks are being done, as far as the master can know."""


class Workload(Protocol):
    """What the jobs compute, and what becomes of their gradients."""

    def needs(self, job: int, finished: int) -> bool:
        """Say whether tasks of ``job`` are to be made with the gradient of job ``finished``.

        Asked before each dispatch, of each gradient that is decoded and not yet handed over.
        """

    def begin(self, job: int) -> None:
        """Job ``job`` starts: fix the weights and the batch that it uses."""

    def result_form(self, job: int) -> ResultForm | None:
        """Return the form of the results of a job that has begun.

        None means that all results have the form of the job's first one.
        """

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Turn a mini-task's chunks into data points."""

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Take the gradient, or part, that a decoding gave; the array is the workload's then.

        Jobs come in the order in which they finished, and before those that need them (`needs`).
        """


@runtime_checkable
class ParkingWorkload(Workload, Protocol):
    """A workload of several models, of which some may fail: the others go on.

    Its gradients may hold numbers that are not finite, where finite results overflow.
    """

    def park(self, names: Sequence[str], *, why: str, kind: FlawKind) -> None:
        """Do nothing more for these models: their parts of gradients mean nothing."""


@runtime_checkable
class NamedWorkload(ParkingWorkload, Protocol):
    """A workload whose models are known by name before any task is made."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all models, including those that have failed."""


@runtime_checkable
class AuditedWorkload(Workload, Protocol):
    """A workload of several models, whose results are equal but for what nobody uses of them."""

    def unused(self, job: int) -> Sequence[slice]:
        """Return which parts of a job's results are of models that nothing is done for any more."""


class WeightStore(Protocol):
    """Immutable versions of weights."""

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef: ...
    def fetch(self, ref: WeightRef) -> FloatArray: ...
    def discard(self, ref: WeightRef) -> None: ...


class BlobStore(WeightStore, Protocol):
    """A store that also takes bytes under a key: answers too large for a reply.

    A key is 1 to 200 letters, digits, '_', '-' or '.', and begins with none of '-.'.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write ``data``, in whole or not at all; what was there under the key is replaced."""

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes that have this length and this SHA-256, or raise `StoreError`."""

    def remove(self, key: str) -> None:
        """Remove what is under the key; nothing there is removed already."""


class Clock(Protocol):
    """Seconds since an arbitrary origin; never goes back."""

    def now(self) -> float: ...

"""The protocols at the edges, and the events and actions that cross them.

A *policy* decides and does no I/O; a *backend* executes and decides nothing; a *workload* knows
what the jobs compute. `seqgc.master.run` carries events to the policy and its actions to the rest.
All times are seconds on the backend's clock, whose origin is arbitrary.

A task has an address: (round, worker, attempt). Every task that is dispatched ends in an `Arrival`
or a `Failure` of that address, or in a `Cancel` of its round and worker; after a `Cancel` an answer
may still come, late. Rounds may overlap: a worker can owe answers to several rounds, and an answer
to a closed round can be used until the jobs that it is for are finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from seqgc.errors import ParameterError, ScheduleError
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

    The time of a worker starts when its own task leaves, the time of a round with its first task:
    sending takes the master a while, and the first answers may arrive before the last task leaves.
    """

    round: int
    attempt: int
    workers: tuple[int, ...]
    left_at: tuple[float, ...]  # in the order of the workers
    loads: FloatArray | None = field(default=None, compare=False)  # (n,) see `Dispatch`

    @property
    def at(self) -> float:
        """The time at which the first task left."""
        return min(self.left_at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A worker's results, by slot, reached the master at ``at``.

    ``flaws`` says, by model, which parts of the results cannot be used. Such parts are zeros.
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
    """Nothing more arrived by ``at``, the ``wake_at`` of the policy."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timetable:
    """The seconds (n,) that each worker takes from the departure of its task; known in a replay.

    It replaces the `Arrival` of every worker that answers before the round closes.
    """

    round: int
    at: float  # the present
    times: FloatArray


Event: TypeAlias = Dispatched | Arrival | Failure | Tick | Timetable

# ---- actions: from the policy to the loop -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Send these workers their mini-tasks of the round.

    If ``begins_segment``, the segment before has ended: the workload must have all its gradients
    before these tasks are made or shown to an observer. ``loads`` (n,) are the shares of a job's
    batch that all workers have in the round, for which a replay charges time. If work is dealt,
    they are the shares of this dispatch, 0 for a worker without a task.
    """

    round: int
    attempt: int
    assignment: Mapping[int, tuple[MiniTask, ...]]
    begins_segment: bool = False
    loads: FloatArray | None = field(default=None, compare=False)

    def load_of(self, worker: int) -> float:
        """Return a worker's load, 0 if the loads are not known.

        Raises
        ------
        ScheduleError
            If the number of the worker is too large.

        Examples
        --------
        >>> import numpy as np
        >>> Dispatch(round=0, attempt=0, assignment={}, loads=np.array([0.5, 0.5])).load_of(2)
        Traceback (most recent call last):
            ...
        seqgc.errors.ScheduleError: the policy asks worker 2 for a task of round 0, and there \
are only 2 workers
        """
        if self.loads is None:
            return 0.0
        if not 0 <= worker < len(self.loads):
            asks = f"the policy asks worker {worker} for a task of round {self.round}"
            raise ScheduleError(f"{asks}, and there are only {len(self.loads)} workers")
        return float(self.loads[worker])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The remaining work of these workers for the round is not needed any more."""

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
    """An arrival or failure that is late, a duplicate or unexpected; it is counted, not used."""

    event: Arrival | Failure
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """An arrival with ``flaws`` of a model that has not failed before.

    The worker may be the cause. The arrival is used only if a `Park` names it.
    """

    event: Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """These models have failed: two workers agree on it, or every worker that is left.

    ``flaws`` gives the reasons. ``answers`` were in doubt only because of failed models: they are
    used from now on.
    """

    flaws: Mapping[str, Flaw]
    answers: tuple[Arrival, ...]


CloseReason: TypeAlias = Literal[
    "everyone", "tolerance", "wait-out", "exhausted", "timeout", "idle", "again", "dealt"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRecord:
    """The end of a round, and its reason.

    =============  ================================================================================
    ``everyone``   every worker has answered
    ``tolerance``  the time (1+mu)*kappa has passed, and the answers suffice
    ``wait-out``   they did not suffice at that time, and do now
    ``exhausted``  workers have failed, and no further answer can come
    ``timeout``    the time limit of the round has passed
    ``idle``       no worker had anything to do
    ``again``      a resumed run has closed the round on the same answers as before
    ``dealt``      work is dealt, and all pieces of this job and of the jobs before have arrived
    =============  ================================================================================

    If work is dealt, a round is a job: ``responded`` marks the workers that gave a piece, and the
    seconds count from the end of the round before.
    """

    round: int
    responded: BoolArray  # (n,), read-only
    kappa_s: float  # seconds until the first answer
    duration_s: float
    reason: CloseReason
    waited_out: bool  # stayed open beyond (1+mu)*kappa
    late: tuple[LateAnswer, ...] = ()  # answers to earlier rounds that were used, in this order

    @property
    def missed(self) -> int:
        """The number of missing answers, less the late answers used; 0 if work is dealt."""
        return 0 if self.reason == "dealt" else int((~self.responded).sum()) - len(self.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """A round closed; it finished the gradients of these ``jobs``."""

    record: RoundRecord
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A job's gradient can be decoded from results that have arrived.

    ``decoding`` must be called before the next event, if at all. Observers may call it, too: it is
    computed once.
    """

    job: int
    decoding: Callable[[], Decoding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A part of a job's gradient, usable on its own, can be decoded (see `Finish`)."""

    job: int
    decoding: Callable[[], Decoding]


Action: TypeAlias = Dispatch | Cancel | Restart | Drop | Doubt | Park | Close | Finish | Update

# ---- protocols ----------------------------------------------------------------------------------


class Policy(Protocol):
    """The decisions of a run, without I/O. After ``start``, only ``on`` changes its state."""

    @property
    def wake_at(self) -> float: ...  # the time of the next Tick if nothing arrives before
    @property
    def done(self) -> bool: ...
    def start(self) -> Sequence[Action]: ...
    def on(self, event: Event) -> Sequence[Action]: ...


@runtime_checkable
class DemandingPolicy(Policy, Protocol):
    """A policy that needs a capability; without it, the run is refused at its start."""

    @property
    def needs(self) -> frozenset[Capability]: ...


class AnyBackend(Protocol):
    """The part of a backend that a replay has too: execute tasks, and report in order of time."""

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks; return the time at which each was handed to the transport."""

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Tell these workers that their task of the round is not needed any more (best effort)."""

    def receive(self, until: float) -> Arrival | Failure | Timetable | None:
        """Return the next event that came by the time ``until``, or None when it has passed.

        An event that came while the master was busy is returned too; its ``at`` is the time at
        which it was read.
        """

    def close(self) -> None:
        """Release everything: no process, thread, port or file is left behind."""


class Backend(AnyBackend, Protocol):
    """A backend with real workers, whose answers come at times not known beforehand."""

    def receive(self, until: float) -> Arrival | Failure | None: ...


@runtime_checkable
class RestartingBackend(Backend, Protocol):
    """A backend that can replace its workers."""

    def restart(self, worker: int) -> Computing | None:
        """Replace a worker; each task that the old worker still owes becomes a `Failure`.

        Returns what the old worker was computing, or None if it was idle or this is not known.
        """


@runtime_checkable
class OutlastingBackend(Backend, Protocol):
    """A backend whose tasks cannot be stopped: they may outlast the backend, and cost money."""

    @property
    def under_way(self) -> int:
        """The number of tasks under way, as far as the master knows."""


class Workload(Protocol):
    """The computation of the jobs, and the use of their gradients."""

    def needs(self, job: int, finished: int) -> bool:
        """Return True if the tasks of ``job`` need the gradient of the job ``finished``.

        The loop asks before each dispatch, for each decoded gradient not yet handed over.
        """

    def begin(self, job: int) -> None:
        """Start ``job``: fix the weights and the batch that it uses."""

    def result_form(self, job: int) -> ResultForm | None:
        """Return the form of the results of a job that has begun.

        None means that all results have the form of the job's first one.
        """

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Turn a mini-task's chunks into data points."""

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Take over a decoded gradient, or a part of it, with its array.

        Gradients come in the order in which jobs finish, and before the jobs that need them.
        """


@runtime_checkable
class ParkingWorkload(Workload, Protocol):
    """A workload of several models, which continues with the other models when one fails.

    Its gradients may hold numbers that are not finite if finite results overflow.
    """

    def park(self, names: Sequence[str], *, why: str, kind: FlawKind) -> None:
        """Stop training these models: from now on their parts of gradients are meaningless."""


@runtime_checkable
class NamedWorkload(ParkingWorkload, Protocol):
    """A workload whose models are known by name before any task is made."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all models, including those that have failed."""


@runtime_checkable
class AuditedWorkload(Workload, Protocol):
    """A workload whose equal results may differ only in parts that are not used."""

    def unused(self, job: int) -> Sequence[slice]:
        """Return the parts of a job's results that belong to models no longer trained."""


class WeightStore(Protocol):
    """Immutable versions of weights."""

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef: ...
    def fetch(self, ref: WeightRef) -> FloatArray: ...
    def discard(self, ref: WeightRef) -> None: ...


class BlobStore(WeightStore, Protocol):
    """A store that also holds bytes under a key, for answers too large for a reply.

    A key is 1 to 200 letters, digits, '_', '-' or '.', and begins with none of '-.'.
    """

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` as a whole or not at all, replacing what the key held before."""

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes of this length and SHA-256, or raise `StoreError`."""

    def remove(self, key: str) -> None:
        """Remove the bytes under the key, if there are any."""


class Clock(Protocol):
    """A clock: seconds since an arbitrary origin, never decreasing."""

    def now(self) -> float: ...


Capability: TypeAlias = Literal["restart"]
"""An ability that only some backends have; "restart": to replace workers (`RestartingBackend`)."""

_MEANING: Final[dict[Capability, str]] = {"restart": "replace its workers"}


def require_capabilities(
    needs: AbstractSet[Capability], *, can: AbstractSet[Capability], of: str
) -> None:
    """Refuse a policy whose needs exceed what the workers named ``of`` can do.

    Raises
    ------
    ParameterError
        If a capability is missing or unknown.

    Examples
    --------
    >>> require_capabilities({"restart"}, can={"restart"}, of="local")
    >>> require_capabilities({"restart"}, can=set(), of="lambda")
    Traceback (most recent call last):
    ...
    seqgc.errors.ParameterError: `backend` must be able to replace its workers: the policy needs \
it; got 'lambda' (take local processes, or functions that stay (--resident); or another \
defence)
    """
    if not isinstance(needs, AbstractSet) or not needs <= _MEANING.keys():
        known = ", ".join(map(repr, _MEANING))
        raise ParameterError("needs", f"must be a set of known capabilities ({known})", needs)
    for lacking in sorted(needs - can):
        rule = f"must be able to {_MEANING[lacking]}: the policy needs it"
        remedy = "take local processes, or functions that stay (--resident); or another defence"
        raise ParameterError("backend", rule, of, remedy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Notice:
    """Something that a run did, other than the events and actions of its rounds.

    ==============  ===============================================================================
    ``kind``        meaning, and ``fields``
    ==============  ===============================================================================
    ``start``       workers are about to be started: ``workers``, ``provider``
    ``ready``       they have started: ``seconds``, and a ``note`` about them
    ``run``         training begins: the fields of the first line of ``events.jsonl``
    ``resume``      training continues after an interruption: the same fields
    ``round``       a round of a recording has ended: ``done``, ``total``
    ``search``      a search for a better setting has ended
    ``switch``      the run changes to another setting
    ``validation``  a model has been validated
    ``parked``      a ``model`` is not trained any further after its ``step``: ``why``, ``cause``
    ``expelled``    a ``worker`` gave a wrong result of a ``job`` and is excluded
    ``uncompared``  an audit could not compare a number of ``results`` of a ``job``
    ``slowdown``    all workers take ``times`` as long as before, ``since`` a round; noticed in
                    ``round``
    ``recovered``   this is over; noticed in ``round``
    ``warning``     a ``text``
    ``end``         the run is over: ``outcome``
    ==============  ===============================================================================
    """

    kind: str
    fields: Mapping[str, object]


Seen: TypeAlias = Event | Action | Notice


class Observer(Protocol):
    """A function that sees each event before the policy does, and each action before it is done.

    Observers are called in the order in which they are given, on the master's thread, before the
    run's own records. If an observer raises, the run ends: the event or action that it saw has not
    happened, and is not on record. `seqgc.costs.Budget` stops a run in this way.

    Examples
    --------
    >>> from seqgc.ports import Close
    >>> def tell(seen: Seen) -> None:
    ...     if isinstance(seen, Close):
    ...         print(seen.record.round, seen.record.reason)
    """

    def __call__(self, seen: Seen, /) -> None: ...


@runtime_checkable
class LastingObserver(Observer, Protocol):
    """An observer whose memory outlasts an interruption of the run.

    It continues where the observer before it stopped, not at the newest checkpoint: tasks after
    the checkpoint have been done, and paid for.
    """

    @property
    def memory(self) -> Mapping[str, float]:
        """The values to remember, written to the disk before the tasks that it saw leave."""

    def recall(self, memory: Mapping[str, float]) -> None:
        """Continue from these values."""

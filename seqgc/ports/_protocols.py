"""The protocols of policies, backends, workloads and stores, and their events and actions.

A *policy* makes decisions and does no I/O. A *backend* executes tasks and decides nothing. A
*workload* defines the jobs and uses their gradients. The loop, `seqgc.master.run`, gives the
backend's events to the policy, and carries out the policy's actions with the backend and the
workload. All times are in seconds on the backend's clock, whose origin is arbitrary.

A task has an address: (round, worker, attempt). Every task that is dispatched ends in an `Arrival`
or a `Failure` with this address, or in a `Cancel` of its round and worker. Before it ends, a task
that asks for them may have `PartialArrival` events. After a `Cancel` a late answer may still
arrive. Rounds may overlap: a worker can have unanswered tasks of several rounds,
and an answer to a closed round can be used until its jobs are finished.
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
    TaskPhases,
    WeightedPoints,
    WeightRef,
)

# ---- events: from the backend to the policy -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """The event that the tasks of these workers have left the master.

    The time of a worker begins when its task leaves. The time of a round begins when its first task
    leaves. Sending takes some time, so the first answers may arrive before the last task leaves.
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
    """The event that a worker's results, by slot, have reached the master at ``at``.

    ``flaws`` describes, by model, the parts of the results that cannot be used. These parts are
    zeros. ``phases`` says how the worker spent the time; it is None if the worker did not say.
    """

    round: int
    worker: int
    attempt: int
    at: float
    results: Mapping[int, FloatArray]
    flaws: Mapping[str, Flaw] = field(default_factory=dict)
    phases: TaskPhases | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialArrival:
    """The event that the result of one mini-task of a task has reached the master at ``at``.

    The worker continues with the other mini-tasks of the task. The task ends with an `Arrival`,
    which has the results of its last mini-task and of all mini-tasks that had no `PartialArrival`.
    A partial result has no flaws; a result with flaws comes only with the `Arrival`. If the task
    ends with a `Failure`, its partial results stay valid.

    Only tasks of a `Dispatch` with ``item_loads`` have such events. If the worker's process was
    replaced, the same result may arrive twice. ``results`` has the result under its ``slot``; it is
    empty in a replay.
    """

    round: int
    worker: int
    attempt: int
    at: float
    slot: int
    results: Mapping[int, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The event that a task will not be answered. ``reason`` is one line.

    If ``final``, this worker will not answer any other task for the rest of the run. If the process
    that computed the task has died, ``model`` is the name of the model whose gradient it was
    computing, or empty if the backend does not know the model. Otherwise ``model`` is None.

    If the worker has answered, but parts of its results cannot be used, ``flaws`` describes these
    parts by model. Either the worker or a model is at fault. If another report shows that the model
    is, the loop passes the answer on after all, as an `Arrival` (`seqgc.master.run`). A policy that
    has asked another worker meanwhile drops it.
    """

    round: int
    worker: int
    attempt: int
    at: float
    reason: str
    final: bool = False
    model: str | None = None
    flaws: Mapping[str, Flaw] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """The task (``round``, ``attempt``) that a worker is computing.

    ``model`` is the name of the model whose gradient the worker is computing, or empty if the
    backend does not know the model. ``is_stuck`` is True if this gradient has taken at least half
    of the task's time so far.
    """

    round: int
    attempt: int
    model: str = ""
    is_stuck: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The event that the time ``at`` has come, which the policy requested with ``wake_at``."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timetable:
    """The event of a replay that gives the response times of all workers in a round in advance.

    ``times`` (n,) are the seconds from the departure of a worker's task to its answer. The event
    replaces the `Arrival` of every worker that answers before the round closes.
    """

    round: int
    at: float  # the present
    times: FloatArray


Event: TypeAlias = Dispatched | Arrival | PartialArrival | Failure | Tick | Timetable

# ---- actions: from the policy to the loop -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The action that sends workers their mini-tasks of a round.

    ``assignment`` has the mini-tasks of each worker. ``loads`` (n,) are the shares of a job's batch
    that the workers compute in the round; a replay derives times from them. With `deal`, they are
    the shares of this dispatch, and 0 for a worker without a task.

    A segment is a sequence of rounds with the same scheme. If ``begins_segment`` is True, the
    previous segment has ended. The workload then receives all gradients of that segment before
    these tasks are created and before observers see this action.

    If ``item_loads`` is given, the workers compute their mini-tasks in order, and answer each of
    them as soon as it is done (`PartialArrival`). ``item_loads[worker]`` are the loads of these
    mini-tasks, whose sum is the worker's load. The policy must need the capability "partial"
    (`DemandingPolicy`).
    """

    round: int
    attempt: int
    assignment: Mapping[int, tuple[MiniTask, ...]]
    begins_segment: bool = False
    loads: FloatArray | None = field(default=None, compare=False)
    item_loads: Mapping[int, tuple[float, ...]] | None = None

    def load_of(self, worker: int) -> float:
        """Return a worker's load, or 0 if the loads are unknown.

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
    """The action to tell these workers that their tasks of the round are not needed any more."""

    round: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The action to replace this worker by a new one.

    Each unanswered task of the old worker becomes a `Failure`. ``reason`` is a few words; it is
    empty if the worker was silent beyond the time limit. If the backend cannot replace workers,
    nothing is done, and if there is a reason, one `Notice` in the run reports this. A policy that
    needs restarts is a `DemandingPolicy`; its run does not begin on such a backend.
    """

    worker: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The action to count an arrival or failure without using it.

    The event is late, a duplicate or unexpected; ``reason`` says which.
    """

    event: Arrival | PartialArrival | Failure
    reason: str


CloseReason: TypeAlias = Literal[
    "everyone", "tolerance", "wait-out", "exhausted", "timeout", "idle", "again", "dealt"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundRecord:
    """A record of a round that has closed.

    The ``reason`` for the close is one of these words:

    =============  ================================================================================
    ``everyone``   every worker has answered
    ``tolerance``  the time (1+mu)*kappa has passed, and the answers suffice
    ``wait-out``   the answers did not suffice at that time, but they suffice now
    ``exhausted``  workers have failed, and no more answers can arrive
    ``timeout``    the time limit of the round has passed
    ``idle``       no worker had a task
    ``again``      a resumed run has closed the round with the same answers as before
    ``dealt``      with `deal`: all pieces of this job and of earlier jobs have arrived
    =============  ================================================================================

    ``kappa_s`` (kappa) is the time of the first answer, and mu is the tolerance of the closing rule
    (`seqgc.rounds.ClosingRule`). With `deal`, a round is a job, ``responded`` marks the workers
    that computed a piece, and times begin at the end of the previous round.
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
        """The number of missing answers, minus the late answers that were used; 0 with `deal`."""
        return 0 if self.reason == "dealt" else int((~self.responded).sum()) - len(self.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The action to close a round. The gradients of these ``jobs`` were finished in the round."""

    record: RoundRecord
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The action to decode a job's gradient from results that have arrived.

    ``decoding`` may be called only before the next event. Observers may also call it; the decoding
    is computed once.
    """

    job: int
    decoding: Callable[[], Decoding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The action to decode one part of a job's gradient, which is used by itself (see `Finish`)."""

    job: int
    decoding: Callable[[], Decoding]


Action: TypeAlias = Dispatch | Cancel | Restart | Drop | Close | Finish | Update

# ---- protocols ----------------------------------------------------------------------------------


class Policy(Protocol):
    """The object that makes the decisions of a run, without I/O.

    After ``start``, only ``on`` changes the policy's state.
    """

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if nothing arrives earlier; infinity for never."""

    @property
    def done(self) -> bool:
        """True if the run has ended."""

    def start(self) -> Sequence[Action]:
        """Return the first actions; called once, before any event."""

    def on(self, event: Event) -> Sequence[Action]:
        """Process one event, and return the actions that follow from it, in order."""


@runtime_checkable
class DemandingPolicy(Policy, Protocol):
    """A policy that needs some capabilities. A run on workers without them does not begin."""

    @property
    def needs(self) -> frozenset[Capability]: ...


class AnyBackend(Protocol):
    """A backend with real or simulated workers. It executes tasks and returns events in order."""

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks; return for each task the time at which it left."""

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Try to tell these workers that their tasks of the round are not needed any more."""

    def receive(
        self, until: float
    ) -> Arrival | PartialArrival | Failure | Timetable | Notice | None:
        """Return the next event, or None if there is no event before the time ``until``.

        Backends may also return notices about their workers, which are for observers only.

        An event may have arrived while the master was busy. Its ``at`` is the time at which the
        event was read.
        """

    def close(self) -> None:
        """Release all resources. No process, thread, port or file is left behind."""


class Backend(AnyBackend, Protocol):
    """A backend with real workers. Their response times are not known in advance."""

    def receive(self, until: float) -> Arrival | PartialArrival | Failure | Notice | None: ...


@runtime_checkable
class PartialBackend(AnyBackend, Protocol):
    """A backend that can send an answer for each mini-task of a task (`Task.item_loads`)."""

    @property
    def sends_parts(self) -> bool:
        """True if it can. A class that never can need not have this property."""


@runtime_checkable
class RestartingBackend(Backend, Protocol):
    """A backend that can replace its workers."""

    def restart(self, worker: int) -> Computing | None:
        """Replace a worker; each unanswered task of the old worker becomes a `Failure`.

        Return the task that the old worker was computing, or None if it was idle or the task is
        unknown.
        """


@runtime_checkable
class OutlastingBackend(Backend, Protocol):
    """A backend whose tasks cannot be stopped. They may run, and cost money, after it is closed."""

    @property
    def under_way(self) -> int:
        """The number of tasks that may still be running."""


class Workload(Protocol):
    """The object that defines the computation of jobs and uses their gradients."""

    def needs(self, job: int, finished: int) -> bool:
        """Return True if the tasks of ``job`` need the gradient of the job ``finished``.

        The loop calls this before each dispatch, for each decoded gradient that has not been given
        to `finish`.
        """

    def begin(self, job: int) -> None:
        """Begin a job: determine its weights and its batch."""

    def result_form(self, job: int) -> ResultForm | None:
        """Return the form of the results of a job that has begun.

        None means that all results have the same form as the job's first result.
        """

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the data points and coefficients of a mini-task, one part for each model."""

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Use a decoded gradient, or a part of it. The array belongs to the workload from now on.

        Gradients are given in the order in which jobs finish, and before a job that needs them
        begins.
        """


@runtime_checkable
class ParkingWorkload(Workload, Protocol):
    """A workload of several models that continues with the other models when a model fails.

    If a sum of finite results overflows, the workload is given a gradient that is not finite.
    """

    def park(self, names: Sequence[str], *, why: str, kind: FlawKind) -> None:
        """Stop training these models. Their parts of later gradients are meaningless."""


@runtime_checkable
class NamedWorkload(ParkingWorkload, Protocol):
    """A workload that can list the names of its models before any task is made."""

    @property
    def names(self) -> Sequence[str]:
        """The names of all models, including those that have failed."""


@runtime_checkable
class AuditedWorkload(Workload, Protocol):
    """A workload whose results can be compared between workers, except for unused parts."""

    def unused(self, job: int) -> Sequence[slice]:
        """Return the parts of a job's results that belong to models that are no longer trained."""


class WeightStore(Protocol):
    """A store of weights, in versions that never change."""

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Store ``params`` (size,) as a version of a model's weights, and return its reference."""

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that a reference names, read-only."""

    def discard(self, ref: WeightRef) -> None:
        """Delete a version that no task needs any more. A store may delete it later."""


class BlobStore(WeightStore, Protocol):
    """A store that also keeps bytes under a key, for answers that are too large for a reply.

    A key is 1 to 200 letters, digits, '_', '-' or '.', and does not begin with '-' or '.'.
    """

    def put(self, key: str, data: bytes) -> None:
        """Store ``data`` completely or not at all; earlier data under this key are replaced."""

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes under a key; raise `StoreError` if length or SHA-256 differ."""

    def remove(self, key: str) -> None:
        """Remove the bytes under a key if there are any."""


class Clock(Protocol):
    """A clock that returns seconds since an arbitrary origin and never goes back."""

    def now(self) -> float: ...


Capability: TypeAlias = Literal["restart", "stay", "partial", "stop"]
"""A capability of some backends.

"restart" is the replacement of workers (`RestartingBackend`). "stay" means that workers stay from
one task to the next: a task is not an invocation of its own. "partial" means that workers answer
each mini-task of a task as soon as it is done (`PartialBackend`). "stop" means that a worker begins
no further mini-task of a task that was cancelled; otherwise the task is computed to its end.
"""

_RESIDENT: Final = "use local processes, resident functions (--resident), or another defence"
_MEANING: Final[dict[Capability, tuple[str, str]]] = {  # the meaning, and what to do without it
    "restart": ("replace its workers", _RESIDENT),
    "stay": ("keep its workers from one task to the next", _RESIDENT),
    "partial": (
        "answer each mini-task of a task as soon as it is done",
        "use local processes, or another defence",
    ),
    "stop": ("stop a task that has begun, after its present mini-task", _RESIDENT),
}


def require_capabilities(
    needs: AbstractSet[Capability], *, can: AbstractSet[Capability], of: str
) -> None:
    """Check that workers have the capabilities that a policy needs.

    ``can`` are the workers' capabilities, and ``of`` is their name in the error.

    Raises
    ------
    ParameterError
        If a needed capability is missing or unknown.

    Examples
    --------
    >>> require_capabilities({"restart"}, can={"restart", "stay"}, of="local")
    >>> require_capabilities({"restart"}, can=set(), of="lambda")
    Traceback (most recent call last):
    ...
    seqgc.errors.ParameterError: `backend` must be able to replace its workers: the policy needs \
it; got 'lambda' (use local processes, resident functions (--resident), or another defence)
    """
    if not isinstance(needs, AbstractSet) or not needs <= _MEANING.keys():
        known = ", ".join(map(repr, _MEANING))
        raise ParameterError("needs", f"must be a set of capabilities ({known})", needs)
    for lacking in sorted(needs - can):
        meaning, remedy = _MEANING[lacking]
        rule = f"must be able to {meaning}: the policy needs it"
        raise ParameterError("backend", rule, of, remedy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Notice:
    """A report about a run, in addition to the events and actions of its rounds.

    ==============  ===============================================================================
    ``kind``        meaning, and ``fields``
    ==============  ===============================================================================
    ``start``       workers are about to be started: ``workers``, ``provider``
    ``ready``       the workers have started: ``seconds``, and a ``note`` about the workers
    ``run``         training begins: the fields of the first line of ``events.jsonl``
    ``resume``      training continues after an interruption: the same fields
    ``round``       a round of a recording has ended: ``done``, ``total``
    ``search``      a search for a better setting has ended
    ``switch``      the run changes to another setting
    ``validation``  a model has been validated
    ``parked``      a ``model`` is not trained any further after its ``step``: ``why``, ``cause``
    ``expelled``    a ``worker`` gave a wrong result of a ``job`` and is excluded
    ``uncompared``  an audit could not compare a number of ``results`` of a ``job``
    ``workers``     the number of worker processes has changed: ``present`` and ``of``
    ``slowdown``    all workers take ``times`` as long as before, ``since`` a round; detected in
                    ``round``
    ``recovered``   the slowdown is over; detected in ``round``
    ``warning``     a ``text``
    ``end``         the run is over: ``outcome``
    ==============  ===============================================================================
    """

    kind: str
    fields: Mapping[str, object]


Seen: TypeAlias = Event | Action | Notice


class Observer(Protocol):
    """A function that the loop calls with each event and each action.

    It is called with an event before the policy gets the event, and with an action before the loop
    carries it out. Observers are called in the order in which they are given, on the master's
    thread, before the run writes its own records. If an observer raises an error, the run ends, and
    the event or action is neither carried out nor recorded. `seqgc.costs.Budget` stops a run in
    this way.

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
    """An observer whose state survives an interruption of the run.

    A resumed run restores the observer's latest state, which may be newer than the checkpoint. This
    matters for costs: tasks that were sent after the checkpoint have been paid for, too.
    """

    @property
    def memory(self) -> Mapping[str, float]:
        """The state to save. It is on disk before the tasks of an observed dispatch leave."""

    def recall(self, memory: Mapping[str, float]) -> None:
        """Restore a saved `memory` after the run was resumed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, overload

import numpy as np

from seqgc import ports
from seqgc.errors import ModelError, NotDecodableError, ScheduleError, WorkerError
from seqgc.master._blame import Blame
from seqgc.master._gathering import Gatherer, HeldJob
from seqgc.ports import (
    Action,
    Arrival,
    Decoding,
    Dispatch,
    Event,
    Failure,
    Flaw,
    FloatArray,
    MiniTask,
    PartialArrival,
    Task,
    Timetable,
    WorkItem,
    Workload,
)

_Show: TypeAlias = Callable[[ports.Seen], None]


def run(
    policy: ports.Policy,
    backend: ports.AnyBackend,
    workload: Workload | None = None,
    *,
    observe: _Show | None = None,
    rest: Callable[[Holding], None] | None = None,
    held: Held | None = None,
    max_norm: float = math.inf,
    audit: bool = False,
) -> None:
    """Run a policy to its end, on the backend's clock.

    The gradients of the jobs that a round finished are computed and passed to the workload while
    the workers compute the next round, unless a job that begins in this round needs them
    (*Sequential Gradient Coding For Straggler Mitigation*, ICLR 2023, Appendix K.1). If
    ``workload`` is None, nothing is computed or decoded: only the decisions are replayed.
    ``observe`` is called with every event, before the policy receives it, and with every action,
    before it is executed.

    ``rest`` is called between events, when the workload has received every decoded gradient. Its
    argument is a function that returns the loop's state (`Held`) for a checkpoint. The function
    returns None if no checkpoint is possible: results are in dispute in an ``audit``, or a gradient
    could not be computed, so that the run must resume from an earlier state. ``held`` is the state
    of an interrupted loop, which this loop continues; policy and workload must be in the states
    that they had when ``held`` was taken.

    If ``audit`` is True, results that must be equal are compared, except for the parts that an
    `AuditedWorkload` does not use. If a worker's result differs from that of the majority, all
    further answers of the worker are failures.

    If a model's part of a result has a 2-norm above ``max_norm``, or its computation raised an
    error, the worker or the model may be at fault. Such an answer is a failure (`Failure.flaws`).
    If another worker, or the answer to the same mini-task, reports the same model again, the model
    has failed: the workload stops training it (`ParkingWorkload.park`), its parts of all results
    are zeros, and the answers that were failures only because of it are used. A model that
    repeatedly kills the processes of workers, or exceeds their time limit, is left out of a task,
    and the answer counts as a report too.

    Raises
    ------
    ParameterError
        If the policy needs a capability that the backend does not have.
    WorkerError
        If the policy finds that the run cannot be completed, because workers fail or are silent.
    ScheduleError
        If the policy would wait for ever: it is not done, no task is in flight, and its `wake_at`
        is infinite.
    AuditError
        If workers return different results for the same task, and there is no majority.
    IllConditionedError
        If a gradient cannot be decoded to a useful precision.
    NotDecodableError, ModelError
        If the sum of finite results overflows, or a model fails, and the workload is not a
        `ParkingWorkload`, which could continue without the failed model.
    """
    show = observe or (lambda _: None)
    gatherer = Gatherer(
        audit=audit,
        note=lambda kind, fields: show(ports.Notice(kind=kind, fields=fields)),
        unused=workload.unused if isinstance(workload, ports.AuditedWorkload) else lambda _: (),
    )
    loop = _Loop(policy, backend, workload, show, gatherer, max_norm)
    if held is not None:
        loop.restore(held)
    loop.run(rest or (lambda _: None))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """The state of the loop between two events, for checkpoints.

    It does not contain the states of the policy and the workload.
    """

    begun: int  # number of jobs that have begun
    jobs: Sequence[HeldJob]
    expelled: frozenset[int] = frozenset()  # workers
    failed: Mapping[str, ports.FlawKind] = field(default_factory=dict)  # models


Holding: TypeAlias = Callable[[], Held | None]


class Debts:
    """The mini-tasks that workers owe, until they are answered or cancelled.

    A debt does not end when its round closes: a worker may owe answers of several rounds at the
    same time, and a debt ends only with an answer, a `Cancel` or the end of the job. For each
    worker and round, a slot identifies a mini-task. Each attempt requests some of the mini-tasks,
    and its answer must contain exactly their results.
    """

    def __init__(self) -> None:
        # By (worker, round), then by slot: the mini-task, and the attempts that asked for it.
        self._debts: dict[tuple[int, int], dict[int, tuple[MiniTask, set[int]]]] = {}

    def ask(
        self, worker: int, *, round: int, attempt: int, mini_tasks: Sequence[MiniTask]
    ) -> list[MiniTask]:
        """Record mini-tasks that are sent to a worker; return the new ones."""
        debts = self._debts.setdefault((worker, round), {})
        added = [task for task in mini_tasks if task.slot not in debts]
        for task in mini_tasks:
            debts.setdefault(task.slot, (task, set()))[1].add(attempt)
        return added

    def owed(self, answer: Arrival | PartialArrival) -> dict[int, MiniTask]:
        """Return the mini-tasks, by slot, that an answer should contain.

        These are the mini-tasks that its attempt requested and that have not been answered yet.
        """
        debts = self._debts.get((answer.worker, answer.round), {})
        if isinstance(answer, PartialArrival):
            debts = {slot: debt for slot, debt in debts.items() if slot == answer.slot}
        return {slot: task for slot, (task, by) in debts.items() if answer.attempt in by}

    def settle(self, answer: Arrival | PartialArrival) -> dict[int, MiniTask]:
        """Remove the mini-tasks that an answer should contain, and return them."""
        debtor, settled = (answer.worker, answer.round), self.owed(answer)
        debts = self._debts.pop(debtor, {})
        if left := {slot: debt for slot, debt in debts.items() if slot not in settled}:
            self._debts[debtor] = left
        return settled

    def finish(self, job: int) -> None:
        """Remove the debts of a job; debts of other jobs in the same tasks remain."""
        for debtor in list(self._debts):
            debts = self._debts[debtor]
            for slot in [slot for slot, (task, _) in debts.items() if task.job == job]:
                del debts[slot]
            if not debts:
                del self._debts[debtor]

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Remove the debts of these workers in a round."""
        for worker in workers if self._debts else ():
            self._debts.pop((worker, round), None)


class TasksOut:
    """The tasks whose answers have not arrived; the object is true if there are such tasks.

    If the backend sends a `Timetable`, there are no `Arrival` events to wait for. The object is
    then always true, and the backend itself reports when no more answers can arrive.
    """

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, int], set[int]] = {}  # by (round, worker)
        self._has_timetable = False

    def __bool__(self) -> bool:
        return self._has_timetable or bool(self._attempts)

    def leave(self, round: int, attempt: int, workers: Iterable[int]) -> None:
        """Record that each of these workers was sent a task with this round and attempt."""
        for worker in () if self._has_timetable else workers:
            self._attempts.setdefault((round, worker), set()).add(attempt)

    def see(self, event: Event) -> None:
        """Remove the task that an answer or a failure ends."""
        if isinstance(event, Timetable):
            self._has_timetable = True
            self._attempts.clear()
        elif isinstance(event, Arrival | Failure):
            attempts = self._attempts.get((event.round, event.worker), set())
            attempts.discard(event.attempt)
            if not attempts:
                self._attempts.pop((event.round, event.worker), None)

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Remove the tasks of these workers in a round."""
        for worker in workers if self._attempts else ():
            self._attempts.pop((round, worker), None)


@dataclass(slots=True)
class _Loop:
    _policy: ports.Policy
    _backend: ports.AnyBackend
    _workload: Workload | None
    _observe: _Show
    _gatherer: Gatherer
    _max_norm: float
    _begun: int = -1  # the latest job that has begun; jobs begin in order
    _debts: Debts = field(default_factory=Debts)
    _out: TasksOut = field(default_factory=TasksOut)
    _blame: Blame = field(default_factory=Blame)
    _decoded: deque[Decoding] = field(default_factory=deque)  # not yet passed to the workload
    _has_warned: bool = False  # a warning has said that the backend cannot restart workers
    _parks: bool = False  # the workload supports models that fail one by one
    _restarts: bool = False  # the backend can restart workers
    _sends_parts: bool = False  # the backend can answer each mini-task by itself
    _withheld: dict[tuple[int, int, int], dict[int, FloatArray]] = field(default_factory=dict)
    """By address: the partial results, by slot, that are judged together with the last answer."""
    _missing_gradients: int = 0  # gradients that could not be computed or passed to the workload

    def run(self, rest: Callable[[Holding], None]) -> None:
        self._parks = isinstance(self._workload, ports.ParkingWorkload)
        self._restarts = isinstance(self._backend, ports.RestartingBackend)
        if isinstance(self._backend, ports.PartialBackend):
            self._sends_parts = self._backend.sends_parts
        if isinstance(self._workload, ports.NamedWorkload):
            self._blame.names.update(self._workload.names)
        if isinstance(self._policy, ports.DemandingPolicy):
            can: set[ports.Capability] = {"stay"}  # a backend does not say if its workers stay
            can |= {"restart"} if self._restarts else set()
            can |= {"partial"} if self._sends_parts else set()
            ports.require_capabilities(self._policy.needs, can=can, of=type(self._backend).__name__)
        try:
            self._perform(self._policy.start())
            while not self._policy.done:
                self._hand_over_all()  # while the workers compute
                rest(self._hold)
                until = self._policy.wake_at
                if not self._out and until == math.inf:
                    what = "no task is in flight, and its `wake_at` is infinite"
                    raise ScheduleError(f"the policy waits for ever: {what}")
                event = self._backend.receive(until)
                if isinstance(event, ports.Notice):
                    self._observe(event)
                else:
                    self._feed(event or ports.Tick(at=until))
            self._hand_over_all()
            rest(self._hold)
        except BaseException as error:
            self._salvage(error)
            if type(error) is WorkerError and (model := self._blame.only_model):
                message = f"{error}; all tasks in flight belong to model {model!r}"
                raise WorkerError(message, round=error.round, worker=error.worker) from error
            raise

    def restore(self, held: Held) -> None:
        self._begun = held.begun - 1
        self._gatherer.restore(held.jobs)
        self._gatherer.expelled.update(held.expelled)
        self._blame.failed.update(held.failed)

    def _hold(self) -> Held | None:
        if self._gatherer.in_dispute or self._missing_gradients:
            return None
        expelled = frozenset(self._gatherer.expelled)
        jobs, failed = self._gatherer.held(), dict(self._blame.failed)
        return Held(begun=self._begun + 1, jobs=jobs, expelled=expelled, failed=failed)

    def _feed(self, event: Event) -> None:
        self._out.see(event)
        events: Sequence[Event] = (event,)
        if isinstance(event, ports.Failure):
            self._blame.lost(event)
            self._withheld.pop((event.round, event.worker, event.attempt), None)
        if self._workload is not None:
            if isinstance(event, Arrival):
                events = self._screen(event, self._workload)
            elif isinstance(event, PartialArrival):
                events = self._screen_part(event)
        for each in events:
            self._observe(each)
            actions = self._policy.on(each)
            is_dropped = any(isinstance(action, ports.Drop) for action in actions)
            if self._workload is not None:
                if isinstance(each, Arrival) and not is_dropped:
                    self._take(each)
                elif isinstance(each, PartialArrival):  # the last answer does not repeat it
                    self._take(each, is_used=not is_dropped)
            self._perform(actions)

    def _take(self, answer: Arrival | PartialArrival, *, is_used: bool = True) -> None:
        settled = self._debts.settle(answer)
        for slot, task in settled.items() if is_used else ():
            result = answer.results[slot]
            self._gatherer.take(task, result, worker=answer.worker, round=answer.round)

    def _screen(self, answer: Arrival, workload: Workload) -> Sequence[Event]:
        """Return the answer with zeros for its flawed parts, or a failure if it cannot be used.

        Earlier answers that can be used because of this answer follow.
        """
        if self._withheld:
            address = answer.round, answer.worker, answer.attempt
            results = self._withheld.pop(address, {}) | dict(answer.results)
            answer = replace(answer, results=results)
        owed = self._debts.owed(answer)
        if answer.worker in self._gatherer.expelled:
            why = "expelled: its result differed from that of most workers with the same task"
            return (_failure(answer, why, final=True),)
        if (fault := self._gatherer.flaw(owed, answer.results)) is not None:
            return (_failure(answer, fault),)
        answer = self._without_diverged(answer, owed, workload)
        judgement = self._blame.judge(answer)
        for model, flaw in judgement.failed.items():
            if not isinstance(workload, ports.ParkingWorkload):
                raise ModelError({model: flaw.why})
            workload.park([model], why=flaw.why, kind=flaw.kind)
        usable = [replace(each, at=answer.at) for each in judgement.usable]
        if not judgement.doubted:
            return (answer, *usable)
        model, flaw = min(judgement.doubted.items(), key=lambda item: item[0])
        return (_failure(answer, f"model {model!r}: {flaw.why}", flaws=judgement.doubted), *usable)

    def _screen_part(self, answer: PartialArrival) -> Sequence[Event]:
        """Return the answer if it can be used; otherwise withhold it until the task ends.

        An answer that the policy does not await is returned, too, so that the policy drops it.
        """
        owed = self._debts.owed(answer)
        address = answer.round, answer.worker, answer.attempt
        is_sound = (
            answer.worker not in self._gatherer.expelled
            and self._gatherer.flaw(owed, answer.results) is None
            and all(ports.norm(answer.results[slot]) <= self._max_norm for slot in owed)
            and self._blame.clear_part(address, owed.values())
        )
        if is_sound or not owed:
            return (answer,)
        self._withheld.setdefault(address, {}).update(answer.results)
        return ()

    def _without_diverged(
        self, answer: Arrival, owed: dict[int, MiniTask], workload: Workload
    ) -> Arrival:
        """Return the answer with zeros for diverged parts, and their flaws."""
        results, flaws = dict(answer.results), dict(answer.flaws)
        for slot, task in owed.items():
            if not ports.norm(results[slot]) <= self._max_norm:
                item = WorkItem(slot=slot, parts=workload.resolve(task))
                results[slot], wrong = ports.without_diverged(
                    item, results[slot], max_norm=self._max_norm
                )
                flaws |= wrong
        return replace(answer, results=results, flaws=flaws)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, ports.Restart) and not self._restarts:
                self._warn_once(action)
                continue
            if isinstance(action, Dispatch) and action.begins_segment:
                self._hand_over_all()
                self._gatherer.forget_memory()
            self._observe(action)
            match action:
                case Dispatch():
                    self._dispatch(action)
                case ports.Cancel(round=round, workers=workers):
                    self._cancel(round, workers)
                case ports.Restart():
                    self._restart(action)
                case ports.Finish() | ports.Update():
                    self._decode(action)
                case ports.Close(jobs=jobs):
                    self._blame.close(jobs)
                case ports.Drop():
                    pass  # for the observer

    def _cancel(self, round: int, workers: Sequence[int]) -> None:
        self._debts.cancel(round, workers)
        self._blame.cancel(round, workers)
        self._out.cancel(round, workers)
        for address in [a for a in self._withheld if a[0] == round and a[1] in workers]:
            del self._withheld[address]
        self._backend.cancel(round, workers)

    def _decode(self, action: ports.Finish | ports.Update) -> None:
        if isinstance(action, ports.Finish):
            self._debts.finish(action.job)
        if self._workload is not None:
            self._decoded.append(action.decoding())

    def _restart(self, action: ports.Restart) -> None:
        worker = action.worker
        computing = self._backend.restart(worker)  # type: ignore[attr-defined]
        if computing is None or action.reason:  # a reason means that it did not time out
            return
        if model := self._blame.silenced(worker, computing):
            text = f"worker {worker} was replaced: it was silent while it computed model {model!r}"
            self._observe(ports.Notice(kind="warning", fields={"text": text}))

    def _warn_once(self, action: ports.Restart) -> None:
        """Warn, the first time only, that workers of this backend cannot be replaced."""
        if action.reason and not self._has_warned:
            self._has_warned = True
            can = f"workers of {type(self._backend).__name__} cannot be replaced"
            text = f"worker {action.worker} is {action.reason}: {can}; the run continues"
            self._observe(ports.Notice(kind="warning", fields={"text": text}))

    # ---- tasks out ------------------------------------------------------------------------------

    def _dispatch(self, action: Dispatch) -> None:
        round, attempt, workers = action.round, action.attempt, tuple(action.assignment)
        if action.item_loads is not None and not self._sends_parts:
            name = type(self._backend).__name__
            remedy = 'the policy must need the capability "partial"'
            raise ScheduleError(f"{name} cannot answer each mini-task by itself: {remedy}")
        tasks: Sequence[Task] = _BareTasks(action, workers)
        if self._workload is not None:
            self._prepare(action, self._workload)
            tasks = [self._task(action, worker, self._workload) for worker in workers]
        self._out.leave(round, attempt, workers)
        left_at = tuple(self._backend.dispatch(round, tasks))
        self._feed(
            ports.Dispatched(
                round=round, attempt=attempt, workers=workers, left_at=left_at, loads=action.loads
            )
        )

    def _prepare(self, action: Dispatch, workload: Workload) -> None:
        """Begin the jobs of the tasks; give the workload the gradients that these jobs need."""
        jobs = {task.job for mini_tasks in action.assignment.values() for task in mini_tasks}
        for job in sorted(jobs):
            for beginning in range(self._begun + 1, job + 1):
                self._hand_over_needed(workload, beginning)
                workload.begin(beginning)
                self._begun = beginning  # only if it succeeded, for the next checkpoint
                if (form := workload.result_form(beginning)) is not None:
                    self._gatherer.require(beginning, form)
            self._hand_over_needed(workload, job)

    def _task(self, action: Dispatch, worker: int, workload: Workload) -> Task:
        round, attempt, mini_tasks = action.round, action.attempt, action.assignment[worker]
        added = self._debts.ask(worker, round=round, attempt=attempt, mini_tasks=mini_tasks)
        self._gatherer.expect(round, added, worker=worker)
        items = [WorkItem(slot=m.slot, parts=workload.resolve(m)) for m in mini_tasks]
        sent = self._blame.send((round, worker, attempt), mini_tasks, items)
        return _new_task(action, worker, sent)

    # ---- decoded gradients: passed on as late as possible, after the next tasks have left -------

    def _hand_over_needed(self, workload: Workload, job: int) -> None:
        """Pass on the gradients that tasks of ``job`` need, and all earlier gradients."""
        while any(workload.needs(job, decoding.job) for decoding in self._decoded):
            self._hand_over(workload)

    def _hand_over_all(self) -> None:
        while self._workload is not None and self._decoded:
            self._hand_over(self._workload)

    def _hand_over(self, workload: Workload) -> None:
        self._missing_gradients += 1  # until the workload has the gradient
        decoding = self._decoded.popleft()
        form = workload.result_form(decoding.job)
        gradient = self._gatherer.combine(decoding, marks=form.marks if form else ())
        if not self._parks and not np.isfinite(gradient).all():
            fault = f"the sum of finite results overflows {gradient.dtype}"
            remedy = "lower the learning rate, or train in float64"
            raise NotDecodableError(f"job {decoding.job}: {fault}; {remedy}", job=decoding.job)
        workload.finish(decoding, gradient)
        self._missing_gradients -= 1

    def _salvage(self, error: BaseException) -> None:
        """Pass on all decoded gradients although the run fails; add lost jobs to the error."""
        while self._workload is not None and self._decoded:
            job = self._decoded[0].job
            try:
                self._hand_over(self._workload)
            except Exception as another:
                error.add_note(f"the gradient of job {job} is lost: {another}")


def _failure(
    answer: Arrival, reason: str, *, final: bool = False, flaws: Mapping[str, Flaw] | None = None
) -> Failure:
    return Failure(
        round=answer.round,
        worker=answer.worker,
        attempt=answer.attempt,
        at=answer.at,
        reason=reason,
        final=final,
        flaws=flaws or {},
    )


def _new_task(action: Dispatch, worker: int, items: tuple[WorkItem, ...]) -> Task:
    task = Task(
        round=action.round,
        worker=worker,
        attempt=action.attempt,
        items=items,
        load=action.load_of(worker),
    )
    if action.item_loads is None:
        return task
    loads = action.item_loads.get(worker, ())
    if len(loads) != len(items) or not all(load >= 0 for load in loads):
        rule = f"must be a load >= 0 for each of the {len(items)} mini-tasks of worker {worker}"
        raise ScheduleError(f"`item_loads` of round {action.round} {rule}; got {loads}")
    return replace(task, item_loads=tuple(loads))


class _BareTasks(Sequence[Task]):
    """The tasks of a dispatch without a workload, created when a backend reads them.

    Their items have slots, but no data points.
    """

    def __init__(self, action: Dispatch, workers: Sequence[int]) -> None:
        self._action, self._workers = action, workers

    def __len__(self) -> int:
        return len(self._workers)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self._task(worker) for worker in self._workers[index]]
        return self._task(self._workers[index])

    def __iter__(self) -> Iterator[Task]:
        return map(self._task, self._workers)

    def _task(self, worker: int) -> Task:
        action = self._action
        items = tuple([WorkItem(slot=m.slot, parts=()) for m in action.assignment[worker]])
        return _new_task(action, worker, items)

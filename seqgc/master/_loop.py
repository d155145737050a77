"""The only loop: events to the policy, its actions to the backend and the workload."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, overload

import numpy as np

from seqgc import ports
from seqgc.errors import ModelError, NotDecodableError, ScheduleError, WorkerError
from seqgc.master._blame import Blame
from seqgc.master._debts import Debts, TasksOut
from seqgc.master._gathering import Gatherer, HeldJob, question_of
from seqgc.ports import (
    Action,
    Arrival,
    Decoding,
    Dispatch,
    Event,
    MiniTask,
    Task,
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
    """Drive a policy to its end; the backend's clock is the only one.

    The gradients of jobs that a round finished are made and handed over while the workers compute
    the next round, except those that a job of that round begins with (paper, Appendix K.1). Without
    a workload nothing is computed or decoded: the decisions alone are replayed. ``observe`` is
    called with every event, before the policy sees it, and every action, before it is done.
    ``rest`` is called between events, when every decoded gradient has been handed over: what it is
    called with returns what the loop `Held`; None while results are in dispute, by an ``audit``, or
    once a gradient could not be made: if that ends the run, it must go on from before that.
    ``held`` is what a loop held that was broken off and that this one goes on with; policy and
    workload must be as they were then. With ``audit``, results that must be equal are compared (but
    for what an `AuditedWorkload` has no use for), and every answer of a worker that differed from
    most of the others is a failure.

    A model's part of a result may be its worker's fault or the model's where its 2-norm is above
    ``max_norm``, or computing it raised. So the first such answer is a failure, and the task is
    sent again; should that give the like, or another worker asked for the same since, it is an
    answer that names the model (`Arrival.flaws`). If a model ends the processes of workers, or
    keeps them busy beyond the time limit, it is left out of a task, whose answer counts in the same
    way (`Blame`).

    Raises
    ------
    ParameterError
        If the policy needs what the backend cannot do.
    WorkerError
        If a round cannot end.
    ScheduleError
        If the policy waits for ever: it is not done, no task is out, and it has set no time.
    AuditError
        If workers who were asked for the same differ, and no majority says who is right.
    IllConditionedError
        If a gradient cannot be decoded to a useful precision.
    NotDecodableError, ModelError
        If the sum of finite results overflows, or results are not finite, and the workload is none
        of models that may fail one by one.
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
    """What the loop holds between two events, apart from policy and workload: for checkpoints."""

    begun: int  # jobs
    jobs: Sequence[HeldJob]
    expelled: frozenset[int] = frozenset()  # workers


Holding: TypeAlias = Callable[[], Held | None]


@dataclass(slots=True)
class _Loop:
    _policy: ports.Policy
    _backend: ports.AnyBackend
    _workload: Workload | None
    _observe: _Show
    _gatherer: Gatherer
    _max_norm: float
    _begun: int = -1  # jobs begin in order
    _debts: Debts = field(default_factory=Debts)
    _out: TasksOut = field(default_factory=TasksOut)
    _blame: Blame = field(default_factory=Blame)
    _failed: set[str] = field(default_factory=set)  # models
    _decoded: deque[Decoding] = field(default_factory=deque)  # gradients yet to be handed over
    _without: bool = False  # a restart was asked for that the backend cannot do, and it was said
    _parks: bool = False  # the workload, models that have failed
    _restarts: bool = False  # the backend, its workers
    _lacks: int = 0  # gradients that the workload should have: they could not be made

    def run(self, rest: Callable[[Holding], None]) -> None:
        self._parks = isinstance(self._workload, ports.ParkingWorkload)
        self._restarts = isinstance(self._backend, ports.RestartingBackend)
        if isinstance(self._workload, ports.NamedWorkload):
            self._blame.names.update(self._workload.names)
        if isinstance(self._policy, ports.DemandingPolicy):
            can: set[ports.Capability] = {"restart"} if self._restarts else set()
            ports.require_capabilities(self._policy.needs, can=can, of=type(self._backend).__name__)
        try:
            self._perform(self._policy.start())
            while not self._policy.done:
                self._hand_over_all()  # while the workers compute
                rest(self._hold)
                until = self._policy.wake_at
                if not self._out and until == math.inf:
                    raise ScheduleError("the policy waits for ever: no task is out, nor a time set")
                self._feed(self._backend.receive(until) or ports.Tick(at=until))
            self._hand_over_all()
            rest(self._hold)
        except BaseException as error:
            self._salvage(error)
            if type(error) is WorkerError and (model := self._blame.only_model):
                message = f"{error}; all tasks under way are of model {model!r}"
                raise WorkerError(message, round=error.round, worker=error.worker) from error
            raise

    def restore(self, held: Held) -> None:
        self._begun = held.begun - 1
        self._gatherer.restore(held.jobs)
        self._gatherer.expelled.update(held.expelled)

    def _hold(self) -> Held | None:
        if self._gatherer.in_dispute or self._lacks:
            return None
        expelled = frozenset(self._gatherer.expelled)
        return Held(begun=self._begun + 1, jobs=self._gatherer.held(), expelled=expelled)

    def _feed(self, event: Event) -> None:
        self._out.see(event)
        if isinstance(event, ports.Failure):
            self._blame.failed(event)
        if self._workload is not None and isinstance(event, Arrival):
            event = self._screen(event, self._workload)
        self._observe(event)
        actions = self._policy.on(event)
        if self._workload is not None and isinstance(event, Arrival):
            unused = ports.Drop | ports.Doubt
            if not any(isinstance(action, unused) for action in actions):
                self._take(event)
        self._perform(actions)

    def _take(self, answer: Arrival) -> None:
        for slot, task in self._debts.settle(answer).items():
            result = answer.results[slot]
            self._gatherer.take(task, result, worker=answer.worker, round=answer.round)

    def _screen(self, answer: Arrival, workload: Workload) -> Arrival | ports.Failure:
        """Turn an answer that cannot be used into a failure, or one that names who failed."""
        owed = self._debts.owed(answer)
        flaw = self._gatherer.flaw(owed, answer.results)
        if final := answer.worker in self._gatherer.expelled:
            flaw = "expelled: it differed from most of those who were asked for the same"
        if flaw is None:
            usable, flaw = self._without_flaws(answer, owed, workload)
            address = answer.round, answer.worker, answer.attempt
            if flaw is None or self._gatherer.is_second(address):
                return usable
            self._gatherer.doubt(address, owed.values())
        round, worker, attempt = answer.round, answer.worker, answer.attempt
        return ports.Failure(
            round=round, worker=worker, attempt=attempt, at=answer.at, reason=flaw, final=final
        )

    def _without_flaws(
        self, answer: Arrival, owed: dict[int, MiniTask], workload: Workload
    ) -> tuple[Arrival, str | None]:
        """Return an answer with zeros for what has diverged, and what was wrong with it, if so."""
        left_out = self._blame.answered((answer.round, answer.worker, answer.attempt))
        results, flaws, flaw = dict(answer.results), {**answer.flaws, **left_out}, None
        for model in answer.flaws.keys() - self._failed:
            if answer.flaws[model].kind == "raised":  # which another try may not do
                flaw = f"{model}: {answer.flaws[model].why}"
        for slot, task in owed.items():
            if (norm := ports.norm(results[slot])) <= self._max_norm:
                continue
            item = WorkItem(slot=slot, parts=workload.resolve(task))
            results[slot], wrong = ports.without_diverged(
                item, results[slot], max_norm=self._max_norm
            )
            flaws |= wrong
            if wrong.keys() - self._failed and flaw is None:
                rule = f"must have a norm of at most {self._max_norm:g} (max_norm); got {norm:g}"
                rule = "must be finite; it holds NaN or Inf" if math.isnan(norm) else rule
                flaw = f"the result of slot {slot} {rule}"
        return replace(answer, results=results, flaws=flaws), flaw

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, ports.Restart) and not self._restarts:
                self._say_without(action)
                continue
            if isinstance(action, Dispatch) and action.begins_segment:
                self._hand_over_all()
                self._gatherer.forget_memory()
            self._observe(action)
            match action:
                case Dispatch():
                    self._dispatch(action)
                case ports.Cancel(round=round, workers=workers):
                    self._debts.cancel(round, workers)
                    self._blame.cancel(round, workers)
                    self._out.cancel(round, workers)
                    self._backend.cancel(round, workers)
                case ports.Restart():
                    self._restart(action)
                case ports.Finish() | ports.Update():
                    self._decode(action)
                case ports.Park():
                    self._park(action)
                case ports.Close() | ports.Drop() | ports.Doubt():
                    pass  # for the observer

    def _decode(self, action: ports.Finish | ports.Update) -> None:
        if isinstance(action, ports.Finish):
            self._debts.finish(action.job)
        if self._workload is not None:
            self._decoded.append(action.decoding())

    def _restart(self, action: ports.Restart) -> None:
        worker = action.worker
        computing = self._backend.restart(worker)  # type: ignore[attr-defined]
        if computing is None or action.reason:  # which is no time-out
            return
        if model := self._blame.silenced(worker, computing):
            text = f"worker {worker} was replaced: it was silent while it computed model {model!r}"
            self._observe(ports.Notice(kind="warning", fields={"text": text}))

    def _park(self, action: ports.Park) -> None:
        self._failed.update(action.flaws)
        self._blame.park(action.flaws)
        for answer in action.answers:
            self._take(answer)
        for model, flaw in sorted(action.flaws.items()):
            if isinstance(self._workload, ports.ParkingWorkload):
                self._workload.park([model], why=flaw.why, kind=flaw.kind)
            elif self._workload is not None:
                raise ModelError({model: flaw.why})

    def _say_without(self, action: ports.Restart) -> None:
        """Say, the first time, that a worker is not replaced that had better be."""
        if action.reason and not self._without:
            self._without = True
            can = f"workers of {type(self._backend).__name__} cannot be replaced"
            text = f"worker {action.worker} is {action.reason}: {can}, the run goes on without"
            self._observe(ports.Notice(kind="warning", fields={"text": text}))

    # ---- tasks out ------------------------------------------------------------------------------

    def _dispatch(self, action: Dispatch) -> None:
        round, attempt, workers = action.round, action.attempt, tuple(action.assignment)
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
        """Begin the jobs of the tasks, and hand over the decoded gradients that they need."""
        jobs = {task.job for mini_tasks in action.assignment.values() for task in mini_tasks}
        for job in sorted(jobs):
            for beginning in range(self._begun + 1, job + 1):
                self._hand_over_needed(workload, beginning)
                workload.begin(beginning)
                self._begun = beginning  # not if it could not: a checkpoint says so then
                if (form := workload.result_form(beginning)) is not None:
                    self._gatherer.require(beginning, form)
            self._hand_over_needed(workload, job)

    def _task(self, action: Dispatch, worker: int, workload: Workload) -> Task:
        round, attempt, mini_tasks = action.round, action.attempt, action.assignment[worker]
        added = self._debts.ask(worker, round=round, attempt=attempt, mini_tasks=mini_tasks)
        self._gatherer.expect(round, added, worker=worker)
        self._gatherer.ask_again((round, worker, attempt), mini_tasks)
        items = [WorkItem(slot=m.slot, parts=workload.resolve(m)) for m in mini_tasks]
        address = round, worker, attempt
        questions = [question_of(address, each) for each in mini_tasks]
        return _new_task(action, worker, self._blame.send(address, questions, items))

    # ---- decoded gradients: as late as the next tasks allow, so that these leave first ----------

    def _hand_over_needed(self, workload: Workload, job: int) -> None:
        """Hand over the gradients that tasks of ``job`` need, and those decoded before them."""
        while any(workload.needs(job, decoding.job) for decoding in self._decoded):
            self._hand_over(workload)

    def _hand_over_all(self) -> None:
        while self._workload is not None and self._decoded:
            self._hand_over(self._workload)

    def _hand_over(self, workload: Workload) -> None:
        self._lacks += 1  # until it is the workload's
        decoding = self._decoded.popleft()
        form = workload.result_form(decoding.job)
        gradient = self._gatherer.combine(decoding, marks=form.marks if form else ())
        if not self._parks and not np.isfinite(gradient).all():
            fault = f"the sum of finite results overflows {gradient.dtype}"
            remedy = "lower the learning rate, or train in float64"
            raise NotDecodableError(f"job {decoding.job}: {fault}; {remedy}", job=decoding.job)
        workload.finish(decoding, gradient)
        self._lacks -= 1

    def _salvage(self, error: BaseException) -> None:
        """Hand over what is decoded although the run fails; the error names what that loses."""
        while self._workload is not None and self._decoded:
            job = self._decoded[0].job
            try:
                self._hand_over(self._workload)
            except Exception as another:
                error.add_note(f"the gradient of job {job} is lost: {another}")


def _new_task(action: Dispatch, worker: int, items: tuple[WorkItem, ...]) -> Task:
    about = {"round": action.round, "worker": worker, "attempt": action.attempt}
    return Task(**about, items=items, load=action.load_of(worker))


class _BareTasks(Sequence[Task]):
    """The tasks of a dispatch without a workload, made when a backend looks at them.

    Their items have slots, and no data points.
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

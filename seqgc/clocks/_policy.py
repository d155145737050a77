"""`ClockPolicy`: every worker proceeds by itself, and waits only for workers too far behind it.

Theory of operation
-------------------
There are no rounds that all workers begin together. The jobs are cut into clocks of ``wpc`` jobs
each (work per clock), and each job into ``n`` parts, one for each worker. Every worker goes through
the clocks of its part by itself. Four rules decide everything:

- *R1, begin.* A worker without a task begins clock t of its part as soon as the global clock is at
  least ``t - slack``. The global clock is the number of clocks that all parts have completed. The
  worker is sent a `Dispatch` of round t with a mini-task for each job of the clock. This is the
  rule of `Slack`; another `Barrier` may have another rule, with its own slack.
- *R2, answer.* Each result becomes an `Update`, which applies this part of the job by itself. The
  part has then completed its clock. If it was the last part to do so, the global clock advances: a
  `Close` names the jobs that are complete now, and R1 is applied to all workers.
- *R3, failure.* The task is sent again, at once or after a wait (`Engine`). After ``max_attempts``
  failures in a row, the worker's parts go to the workers that do not fail, each part to the worker
  with the fewest parts. If all other workers fail too, the parts go to workers without a task; if
  every worker has a task, the same worker is asked again. After 20 failures in a row (or
  ``max_attempts``, if this is more), a worker rests for 30 s before it is asked again.
  A worker with several parts computes the parts that are furthest behind first, at most two in one
  task. It can therefore soon give back the parts of other workers.
- *R4, silence.* A task that exceeds the time limit has failed, and its worker is replaced. From
  then on the worker gets one part in each task, because two may take longer than the limit.

Each update is therefore applied exactly once: only the answer to a task's newest attempt counts,
and no two tasks compute the same part at the same time. When a task begins clock t, all updates of
clocks up to ``t - slack - 1`` have been applied, and all updates of its own part up to t - 1. The
weights lack at most ``wpc * (slack + 1) - 1`` of the jobs before its own (Cui et al. 2014, 2.3).
With slack 0 and one job a clock they lack none, which is bulk synchronous.

*Return.* A worker that has lost its parts is sent a greeting (a task without work), after waits as
in R3. Once it answers, it gets its own part back, as soon as no other worker is computing this
part. Only an answer to a task with parts ends its failures in a row: a worker that answers only
greetings loses its part again with the next failure. From the 20th failure in a row on, the rests
after failures with parts double: 30 s, 60 s, and so on. So a worker that was down for a long time
can work again, and a worker that never recovers costs little.

*Addresses.* The round of a task is its clock. Its attempt counts the tasks that the worker was sent
in this clock. Different parts and jobs have different slots in a worker's answer.

*Flaws.* After an answer that cannot be used (`Failure.flaws`), another worker is asked at once: the
parts go to other workers as in R3. The worker gets its own part back without a greeting as soon as
another worker has tried this part, with any result.

Source: Cui et al., "Exploiting bounded staleness to speed up big data analytics", 2014, 2.3, 3.1;
Harlap et al., "Addressing the straggler problem for iterative convergent parallel ML", 2016, 2.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypedDict

from seqgc import ports
from seqgc.clocks._barrier import Barrier, Slack
from seqgc.clocks._global_clock import GlobalClock
from seqgc.clocks._parts import Parts
from seqgc.errors import ParameterError, ScheduleError, require_int
from seqgc.ports import Action, Arrival, Dispatch, Failure, FloatArray, PartialArrival
from seqgc.rounds import ClosingRule, Engine, EngineTask, Loss, Records

__all__ = ["ClockPolicy", "ClockState"]

_MOST_PARTS: Final = 2  # of a task
_GREET_S: Final = 0.1  # the shortest time from a failure to the greeting of its worker
_REST_S: Final = 30.0  # the first rest of a worker that has failed too often in a row

_Parts: TypeAlias = tuple[int, ...]


class ClockState(TypedDict):
    """The state of a `ClockPolicy`, as JSON data; made by its `snapshot`."""

    jobs: int  # the number of jobs of the run
    completed: list[int]  # by part: the number of clocks that it has completed
    owners: list[int]  # by part: the worker that computes it


class ClockPolicy(Engine[_Parts]):
    """A policy that runs ``num_jobs`` jobs of ``n`` parts; see this module's docstring.

    Of the ``rule``, only the time limit and the number of attempts are used. The ``barrier``
    decides when a part may begin a clock; by default, all workers wait for the slowest after each
    clock. A clock has ``wpc`` >= 1 jobs; the last clock may have fewer. ``shares`` (n,) are the
    loads of a job's parts, as shares of a batch.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.master import run
    >>> from seqgc.ports import Close
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.virtual import VirtualBackend
    >>> pace = ByRound(latencies_s=[[1.0, 4.0], [3.0, 1.0], [2.0, 2.0]], rates=[[0.0]])
    >>> for s in (0, 1, None):
    ...     policy, seconds = ClockPolicy(2, ClosingRule(), num_jobs=3, barrier=Slack(slack=s)), []
    ...     run(policy, VirtualBackend(2, pace), observe=lambda seen: (
    ...         seconds.append(seen.record.duration_s) if isinstance(seen, Close) else None))
    ...     seconds
    [4.0, 3.0, 2.0]
    [4.0, 1.0, 2.0]
    [4.0, 1.0, 2.0]
    """

    def __init__(
        self,
        n: int,
        rule: ClosingRule,
        *,
        num_jobs: int,
        barrier: Barrier | None = None,
        wpc: int = 1,
        shares: FloatArray | None = None,
    ) -> None:
        self._parts = Parts(n, wpc=wpc, shares=shares)
        super().__init__(n, rule, num_jobs=num_jobs)
        self._wpc, self._barrier = wpc, barrier or Slack()
        self._clocks = GlobalClock([0] * n)
        self._latest = -1  # the latest clock that a worker has begun
        # Workers without parts that work again: True if the worker may have its own part back now;
        # False if its answer could not be used and no other worker has tried the part since.
        self._returning: dict[int, bool] = {}
        self._one_by_one = set[int]()  # workers that were silent, and get one part in each task
        self._rests_s: dict[int, float] = {}  # by worker: the next rest if its parts fail again
        self._records = Records(n, "everyone")

    @property
    def done(self) -> bool:
        """True if all parts of all jobs have been applied."""
        return self.rounds >= self._end_clock

    @property
    def rounds(self) -> int:
        """The global clock: the number of clocks that all parts have completed."""
        return self._clocks.least

    @property
    def _end_clock(self) -> int:
        return -(-self._num_jobs // self._wpc)

    @property
    def _goal(self) -> str:
        return f"clock {self.rounds}"

    @property
    def _able(self) -> Collection[int]:
        return [worker for worker in range(self._n) if self._parts.of(worker)]

    def end_after(self, job: int) -> None:
        """End the run after the clock of ``job``.

        If a later clock has begun, the run ends after the latest such clock.
        """
        end = max(job // self._wpc, self._latest) + 1
        self._num_jobs = min(self._num_jobs, end * self._wpc)

    # ---- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> ClockState:
        """Return the state that another policy needs to continue the run, as JSON values.

        The state says which updates this policy has given out, as the number of clocks that each
        part has completed. Take it when all these updates have been applied, as they are whenever
        `seqgc.master.run` rests, and store it with the weights of that moment. An interrupted run
        then applies each update once, because a policy that is restored to this state asks only for
        the other updates. Tasks that had not been answered are computed again, on the stored
        weights. No answer to the interrupted run may reach the new run, because the new run uses
        the same addresses again.
        """
        return ClockState(
            jobs=self._num_jobs,
            completed=list(self._clocks.completed),
            owners=list(self._parts.owners),
        )

    def _recall(self, state: Mapping[str, Any]) -> None:
        most = self._n - 1
        completed = [require_int("completed", clock, least=0) for clock in state["completed"]]
        owners = [require_int("owners", each, least=0, most=most) for each in state["owners"]]
        if not len(completed) == len(owners) == self._n:
            rule = f"must be a snapshot of a run with {self._n} workers"
            raise ParameterError("state", rule, f"owners {owners}, completed {completed}")
        self._clocks, self._latest = GlobalClock(completed), max(completed) - 1
        self._parts.give(owners)
        for clock in range(self._clocks.least, max(completed)):
            givers = (owners[part] for part in range(self._n) if completed[part] > clock)
            self._records.recall(clock, givers)

    def skip_to(self, job: int, *, round: int) -> None:  # noqa: ARG002 (it follows from the job)
        """Begin with the clock of ``job``, of which it is the first job; only before the start."""
        clock = -(-job // self._wpc)
        self._clocks, self._latest = GlobalClock([clock] * self._n), clock - 1

    # ---- decisions -------------------------------------------------------------------------------

    def start(self) -> Sequence[Dispatch]:
        """Begin the first clock of all parts, or the clocks at which a restored policy stands."""
        for worker in range(self._n):
            if not self._parts.of(worker):
                self._greet(worker)
        return super().start()

    def _next(self, worker: int) -> tuple[int, _Parts] | None:
        if not (parts := self._parts.of(worker)):
            return None
        clocks, admits = self._clocks, self._barrier.admits
        clock = min(map(clocks.clock, parts))
        if len(parts) > 1:
            most = 1 if worker in self._one_by_one else _MOST_PARTS
            parts = tuple([part for part in parts if clocks.clock(part) == clock][:most])
        if clock >= self._end_clock or not all(admits(part, clock, clocks) for part in parts):
            return None
        self._latest = max(self._latest, clock)
        return clock, parts

    def _done(self, task: EngineTask[_Parts], actions: list[Action]) -> None:
        worker, clock, parts = task.worker, task.round, task.work
        if parts is None:
            self._returning[worker] = True
            self._ask(self._bring_home(actions))
            return
        self._ask(self._bring_home(actions, tried=parts))
        self._rests_s.pop(worker, None)
        self._records.answer(clock, worker, self._now)
        jobs = self._jobs_of(clock)
        actions += self._parts.updates(worker, parts, jobs, clock=clock)
        if passed := self._clocks.complete(parts):
            self._forget_round(clock)
            record = self._records.close(clock, self._now)
            actions.append(ports.Close(record=record, jobs=tuple(jobs)))
        if passed or not self._barrier.waits_for_all:
            self._ask(range(self._n))

    def _recovered(self) -> None:
        """Send the tasks of resting workers with parts now.

        If one of these tasks fails again, its parts can go to the worker that has recovered.
        """
        for worker in self._rests_s:
            for task in self._held(worker):
                if not task.is_out:
                    self._retry(task, 0.0)

    def _lost(self, loss: Loss[_Parts], actions: list[Action]) -> None:
        task, worker = loss.task, loss.task.worker
        wait_s = max(loss.wait_s, self._rest_s(task)) if loss.is_final else loss.wait_s
        if task.work is None:
            self._release(task, actions, rest_s=None)
            self._greet_after(worker, wait_s)
            return
        too_often = self._retries.in_a_row((worker,)) >= self._rule.max_attempts
        tried = self._parts.of(worker) if too_often else task.work  # it may try no others
        self._ask(self._bring_home(actions, tried=tried))
        others = self._others(worker) if loss.is_flawed or too_often else []
        if not others:
            self._retry(task, wait_s)
            return
        self._release(task, actions, rest_s=None)
        self._ask(self._parts.hand_over(worker, others))
        if loss.is_flawed and not loss.is_final:
            self._returning[worker] = False
        else:
            self._greet_after(worker, wait_s)

    def _others(self, worker: int) -> list[int]:
        """Return the workers that may take over the parts of a worker.

        Workers that fail are excluded. If all other workers fail, those with parts but without a
        task may take over: their own parts are ahead, and they have nothing else to do.
        """
        others = self._parts.others(worker, but=self._failing)
        return others or self._parts.others(worker, but=self._queues.keys() | self._to_ask.keys())

    def _rest_s(self, task: EngineTask[_Parts]) -> float:
        """Return the seconds for which to leave a worker alone that has failed too often."""
        if task.work is None:
            return _REST_S
        rest_s = self._rests_s.get(task.worker, _REST_S)
        self._rests_s[task.worker] = 2 * rest_s
        return rest_s

    def _silenced(self, task: EngineTask[_Parts]) -> None:
        self._one_by_one.add(task.worker)
        task.work = None if task.work is None else task.work[:1]

    # ---- the return of workers -------------------------------------------------------------------

    def _greet(self, worker: int) -> None:
        if not self.done:
            self._give(worker, self.rounds, None)

    def _greet_after(self, worker: int, wait_s: float) -> None:
        """Send a greeting to a worker without parts after ``wait_s`` seconds or more."""
        greet = partial(self._greet_again, worker)
        self._alarms.set(self._now + max(wait_s, _GREET_S), greet)

    def _greet_again(self, worker: int, actions: list[Action]) -> None:
        self._end_rest(worker, actions)
        self._greet(worker)

    def _bring_home(self, actions: list[Action], *, tried: Iterable[int] = ()) -> list[int]:
        """Return their own parts to workers that work again; return these workers.

        A part that another worker is computing stays there. The parts ``tried`` have just been
        answered, or have failed, at the workers that own them now.
        """
        self._returning.update({part: True for part in tried if part in self._returning})
        home = []
        for worker in [worker for worker, may in self._returning.items() if may]:
            owner = self._parts.owners[worker]
            task = next(iter(self._held(owner)), None)
            if task is not None and task.work is not None and worker in task.work:
                if task.is_out:
                    continue
                task.work = tuple(part for part in task.work if part != worker)
                actions.append(ports.Cancel(round=task.round, workers=(owner,)))
            del self._returning[worker]
            self._end_rest(worker, actions)
            self._parts.bring_home(worker)
            home.append(worker)
        return home

    def _again(self, task: EngineTask[_Parts], actions: list[Action]) -> None:
        if task.work == ():  # all its parts have returned to their own workers
            self._end(task)
            self._ask([task.worker])
        else:
            super()._again(task, actions)

    # ---- tasks -----------------------------------------------------------------------------------

    def _note_left(self, event: ports.Dispatched) -> None:
        if any(map(self._parts.of, event.workers)):
            self._records.leave(event.round, event.at)
        super()._note_left(event)

    def _why_dropped(self, event: Arrival | PartialArrival | Failure) -> str:
        is_late = event.round < self.rounds
        return "its clock has passed" if is_late else super()._why_dropped(event)

    def _proceed(self, actions: list[Action]) -> None:
        super()._proceed(actions)
        if not (self.done or any(map(self._parts.of, self._queues))):
            rule = "`admits` must return True for the parts that have completed the fewest clocks"
            text = f"{self._barrier!r} lets no part begin: all wait at clock {self.rounds}"
            raise ScheduleError(f"{text}; {rule}")

    def _dispatches(self, tasks: Sequence[EngineTask[_Parts]]) -> list[Dispatch]:
        clock, attempt = tasks[0].round, tasks[0].attempt
        jobs, sent = self._jobs_of(clock), {task.worker: task.work or () for task in tasks}
        assignment = {who: self._parts.mini_tasks(who, parts, jobs) for who, parts in sent.items()}
        loads = self._parts.loads(sent, jobs=len(jobs))
        return [Dispatch(round=clock, attempt=attempt, assignment=assignment, loads=loads)]

    def _jobs_of(self, clock: int) -> range:
        return range(clock * self._wpc, min((clock + 1) * self._wpc, self._num_jobs))

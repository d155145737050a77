"""`DealingPolicy`: a policy that gives each free worker the next piece of a job.

Theory of operation
-------------------
A job is cut into pieces (`seqgc.schemes.Deal`), and up to ``in_flight`` jobs are open at once. At
every event, the policy decides which worker gets which piece next. All other decisions are those of
`Engine`.

- *Greetings.* A worker gets no piece before it has answered a greeting, which is a task without
  mini-tasks. After this answer it gets its first piece, and after each later answer the next one.
- *Ahead.* A worker is sent its next piece early: one round trip before its present work should end.
  The round trip is measured with a second greeting, which the first workers are sent together with
  a piece. The end of the work is estimated from the pace of all work (`AnswerPace`), because an
  answer may arrive long after the work has ended. A worker with an overdue piece gets no more
  pieces. With ``greet="rounds"``, a worker also gets no piece if the other workers could complete
  all pieces before its next answer arrives.
- *Which piece.* A worker gets a piece of the job of its latest piece, because it has the weights of
  this job. If that job has no piece left, it gets a piece of the oldest job that has one.
- *Copies.* If there is no piece left for a free worker, it computes a copy of a piece that another
  worker has. The first choice is the piece that is most overdue. Let the *way back* of an answer be
  the time that it takes in addition to its work and a round trip. A piece is overdue after one and
  a half times the sum of a round trip and its work, plus the usual way back (with
  ``greet="rounds"``, plus one and a half times the way back of its worker). If no piece is overdue,
  the choice is the piece whose answer is expected last, if it has no copy yet and a copy would
  surely arrive sooner. The free worker with the shortest way back computes the copy. The first
  answer to arrive counts. The other tasks for the piece are cancelled, or their answers are
  dropped. An overdue copy is copied again.
- *Failures.* After a failure the piece is dealt again, and its worker is greeted again. Both happen
  at once after the first failure, and after a wait if they fail again (`Retries`). A worker that
  lost a piece of a job waits at most until this job closes. The run ends if a piece has failed too
  often, or if every worker has failed too often and no piece is out. One broken worker does not end
  the run: it does not get a piece that it has lost more often than another worker that is free, or
  that computes a piece and has no overdue piece.
- *Silence.* A worker that is silent for the rule's time limit is replaced, if the backend can do
  this, and its pieces are dealt again. If the old task is still answered first, this answer counts.
  The run ends if every worker with a task has been silent for three time limits, and no answer or
  failure of a task has arrived meanwhile.

*Addresses.* The round of a task is its job, and its slot is its piece. Its attempt is the number of
tasks of the same job that were sent to its worker before. Each piece has one summand in the job's
sum: the first result that this policy does not `Drop`.

*Jobs* begin and close in order. Job t begins when job ``t - in_flight`` has closed. It closes when
all jobs up to t are complete. The actions are then `Close`, a `Cancel` for all workers that still
compute a piece of the job, and `Finish`. If M models are trained in turn with at most M jobs in
flight, each job therefore begins with the newest weights of its model. The state of a run is one
number, the first job that is not closed: a resumed run deals all pieces of this job and of later
jobs again. The results have the same bits, whichever workers compute them.

If workers are invoked once for each job (``greet="rounds"``), all workers are greeted when a job
begins, and released when it closes.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np

from seqgc import ports
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Action, Arrival, BoolArray, Dispatch, Failure, PartialArrival
from seqgc.rounds._answer_times import AnswerTimes, SentPiece
from seqgc.rounds._engine import Engine, EngineTask, Loss
from seqgc.rounds._pieces import DealtJob, mini_task
from seqgc.rounds._rule import ClosingRule
from seqgc.schemes import Deal

Greet: TypeAlias = Literal["once", "rounds"]


class DealingPolicy(Engine[SentPiece]):
    """A policy that deals the pieces of ``num_jobs`` jobs, with up to ``in_flight`` >= 1 open jobs.

    Of the ``rule``, only the time limit and the number of attempts are used (`Retries`).
    ``first_job`` is the number of the policy's first job. The mask ``empty`` (pieces,) marks pieces
    without data points, which are not dealt. All workers are greeted at the start, and with
    ``greet="rounds"`` at the start of each job.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> policy = DealingPolicy(Deal(n=2, pieces=2), ClosingRule(), num_jobs=1)
    >>> [(action.round, dict(action.assignment)) for action in policy.start()]
    [(0, {0: (), 1: ()})]
    """

    ahead = sys.maxsize  # the estimates decide
    awaits_late = True
    is_wary = False

    def __init__(
        self,
        deal: Deal,
        rule: ClosingRule,
        *,
        num_jobs: int,
        in_flight: int = 1,
        greet: Greet = "once",
        first_job: int = 0,
        empty: BoolArray | None = None,
    ) -> None:
        self.in_flight = require_int("in_flight", in_flight, least=1)  # may be lowered during a run
        if greet not in get_args(Greet) or (greet == "rounds" and in_flight > 1):
            rule_ = "must be 'once', or 'rounds' with one job in flight"
            raise ParameterError("greet", rule_, greet)
        deal = deal.fitted(in_flight)
        end_job = first_job + require_int("num_jobs", num_jobs, least=0)
        super().__init__(deal.n, rule, num_jobs=end_job)
        self._each_round = greet == "rounds"
        self._shares: list[float] = deal.chunk_fractions.tolist()
        self._pieces = [p for p in range(len(self._shares)) if empty is None or not empty[p]]
        self._first = self._next_job = first_job  # the first that is not closed; has not begun
        self._jobs: dict[int, DealtJob] = {}  # open jobs, in order
        self._times = AnswerTimes(self._n, self._queues, by_coming=self._each_round)
        self._ask_ats = [math.inf] * self._n  # by worker, the time of its alarm `_take_more`
        self._at_hand = [-1] * self._n  # by worker, the job of its latest piece
        self._takers: dict[int, None] = {}  # workers that can take the next pieces, in order
        self._closed_at = -math.inf

    @property
    def rounds(self) -> int:
        """The number of the first job that is not closed."""
        return self._first

    @property
    def _able(self) -> Collection[int]:
        return self._queues  # a worker without a task is not silent: it has nothing to answer

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if no event arrives before, in seconds."""
        alarm = self._alarms.next_at
        return min(alarm, self._times.look_at(self._now)) if self._takers else alarm

    def end_after(self, job: int) -> int:
        """End the run after ``job``, or after the latest job that has begun if that is later.

        Return the number of the first job that will not begin.
        """
        self._num_jobs = min(self._num_jobs, max(job + 1, self._next_job))
        return self._num_jobs

    def start(self) -> Sequence[Dispatch]:
        """Begin the first jobs and greet the workers."""
        self._begin_jobs()
        return super().start()

    # ---- decisions -------------------------------------------------------------------------------

    def _next(self, worker: int) -> tuple[int, None] | None:
        """Return a greeting if the worker has no task, and has not answered its last greeting."""
        if self.done or worker in self._takers or self._held(worker):
            return None
        self._times.greet(worker)
        return self._first, None

    def _done(self, task: EngineTask[SentPiece], actions: list[Action]) -> str | None:
        worker, sent = task.worker, task.work
        self._times.answer(task, self._now)
        self._takers.pop(worker, None)
        if not self._held(worker):
            self._takers[worker] = self._times.spared = None
            if sent is None and self._times.wants_probe:
                self._times.probe(self._give(worker, self._first, None))
        self._ask_ahead(worker)
        if sent is None:
            return None
        job = self._jobs[task.round]
        job.forget(sent)
        if sent.piece in job.givers:
            return "another copy of its piece came first"
        self._count(job, sent.piece, worker, actions)
        return None

    def _count(self, job: DealtJob, piece: int, worker: int, actions: list[Action]) -> None:
        """Record the result of a piece, and call off the other tasks for this piece."""
        if not job.givers:
            job.first_at = self._now
        job.givers[piece] = worker
        if job.complete:  # `_close` calls off the other tasks
            while self._first in self._jobs and self._jobs[self._first].complete:
                self._close(self._jobs[self._first], actions)
                self._begin_jobs()
            return
        late = job.out.get(piece, {})
        for sent in late:
            sent.copied = True
        rivals = [worker for worker in late.values() if self._tasks_of(job, worker) == 1]
        if rivals:  # workers without another task of the job, which a `Cancel` would end as well
            self._call_back(job, sorted(rivals), actions)

    def _lost(self, loss: Loss[SentPiece], actions: list[Action]) -> None:
        task, worker, sent = loss.task, loss.task.worker, loss.task.work
        self._takers.pop(worker, None)
        self._times.end(task)
        if sent is not None:
            what = (task.round, sent.piece)
            wait_s = self._retries.failed(what)
            if self._retries.exhausted(what):
                times = self._retries.in_a_row(what)
                raise self._error(f"its piece {sent.piece} has failed {times} times", worker)
            self._jobs[task.round].forget(sent)
            self._jobs[task.round].lose(sent.piece, worker)
            self._alarms.set(self._now + wait_s, partial(self._put_back, *what), of=what)
        self._release(task, actions, rest_s=loss.wait_s)
        if self._held(worker):  # it continues with its other tasks
            self._resting.pop(worker, None)

    def _silenced(self, task: EngineTask[SentPiece]) -> None:
        """Deal the piece of a silent worker again. Of all answers, the first one counts."""
        self._takers.pop(task.worker, None)
        if (sent := task.work) is not None and not sent.copied:
            sent.copied = True
            self._jobs[task.round].put_back(sent.piece)

    def _put_back(self, job: int, piece: int, actions: list[Action]) -> None:  # noqa: ARG002
        if job in self._jobs:
            self._jobs[job].put_back(piece)

    def _call_back(self, job: DealtJob, workers: Sequence[int], actions: list[Action]) -> None:
        """Call off all tasks of a job that these workers hold, and end their rest."""
        for worker in workers:
            self._resting.pop(worker, None)
            for task in self._held(worker):
                if task.round == job.number:
                    self._times.end(task)
                    if task.work is not None:
                        job.forget(task.work)
        self._call_off_all(job.number, workers, actions)

    def _tasks_of(self, job: DealtJob, worker: int) -> int:
        return sum(task.round == job.number for task in self._held(worker))

    def _close(self, job: DealtJob, actions: list[Action]) -> None:
        record = job.record(self._now, n=self._n, after=self._closed_at)
        actions.append(ports.Close(record=record, jobs=(job.number,)))
        still = {worker for out in job.out.values() for worker in out.values()}
        still.update(*job.losses.values())  # workers that failed try again with the next job
        if self._each_round:
            still.update(self._queues)
            self._takers.clear()
        if still:
            self._call_back(job, sorted(still), actions)
        actions.append(ports.Finish(job=job.number, decoding=job.decoding))
        self._retries.forget(job.number)
        self._forget_round(job.number)
        del self._jobs[job.number]
        self._first, self._closed_at = job.number + 1, self._now

    def _begin_jobs(self) -> None:
        while self._next_job < min(self._num_jobs, self._first + self.in_flight):
            number = self._next_job
            self._jobs[number] = DealtJob(number, len(self._pieces), deque(self._pieces))
            self._next_job += 1
            if self._each_round:
                self._resting.clear()
                self._to_ask = dict.fromkeys(range(self._n))

    # ---- sending ahead ---------------------------------------------------------------------------

    def _left(self, task: EngineTask[SentPiece], at: float) -> None:
        job = self._jobs[task.round]
        job.began_at = min(job.began_at, at)
        self._times.leave(task)
        self._ask_ahead(task.worker)

    def _ask_ahead(self, worker: int) -> None:
        """Set an alarm for the time at which a worker should be sent its next piece."""
        at = self._times.ask_at(worker)
        if worker not in self._takers and at is not None and at < self._ask_ats[worker]:
            self._ask_ats[worker] = max(at, self._now)
            take_more = partial(self._take_more, worker)
            self._alarms.set(self._ask_ats[worker], take_more, of=("ahead", worker))

    def _take_more(self, worker: int, actions: list[Action]) -> None:  # noqa: ARG002
        self._ask_ats[worker] = math.inf
        at = self._times.ask_at(worker)
        if at is None or at > self._now:
            self._ask_ahead(worker)
        elif self._has_room(worker):
            self._takers.setdefault(worker)
            self._times.spared = None

    # ---- tasks -----------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Send greetings, then the next pieces, and then copies of pieces if no piece is left."""
        super()._assign()
        if not self._takers:
            return
        self._deal(range(self._n))
        if self._takers and any(job.left for job in self._jobs.values()):
            # Without losses the first pass has skipped no piece, and the workers do not matter.
            has_losses = any(job.losses for job in self._jobs.values())
            self._deal(self._times.at_work(self._now) if has_losses else ())
        while self._takers and (copy := self._times.to_copy(self._takers, self._now)) is not None:
            worker, job, piece = copy
            self._send(self._jobs[job], worker, piece)

    def _deal(self, others: Collection[int]) -> None:
        """Deal the next pieces to the workers that can take one.

        A piece is kept from a worker if one of the ``others`` should get it (`DealtJob.next_for`).
        """
        self._times.forget_too_late(self._now)
        for worker in list(self._takers):
            if not any(job.left for job in self._jobs.values()):
                break
            if worker in self._times.too_late:
                continue
            if self._times.is_late(worker, self._now):
                del self._takers[worker]  # until it answers
                continue
            choice = self._choice(worker, others)
            if choice is not None and not self._times.is_kept(worker, len(choice[0].left)):
                job, piece = choice
                left = (self._shares[each] for each in job.left)
                if not self._times.is_too_late(worker, left, self._now):
                    self._send(job, worker, piece)

    def _choice(self, worker: int, others: Collection[int]) -> tuple[DealtJob, int] | None:
        """Return the job and the number of a worker's next piece; None if no piece is for it."""
        at_hand = self._jobs.get(self._at_hand[worker])
        for job in (*([at_hand] if at_hand else []), *self._jobs.values()):
            if (piece := job.next_for(worker, others)) is not None:
                return job, piece
        return None

    def _send(self, job: DealtJob, worker: int, piece: int) -> None:
        del self._takers[worker]
        self._at_hand[worker] = job.number
        sent = job.deal(piece, worker, share=self._shares[piece])
        self._give(worker, job.number, sent)
        self._times.begin(worker)

    def _dispatches(self, tasks: Sequence[EngineTask[SentPiece]]) -> list[Dispatch]:
        job, loads = tasks[0].round, np.zeros(self._n)
        assignment = dict[int, tuple[ports.MiniTask, ...]]()
        for task in tasks:
            assignment[task.worker] = ()
            if (sent := task.work) is not None:
                assignment[task.worker] = (mini_task(job, sent.piece),)
                loads[task.worker] = sent.share
        attempt = tasks[0].attempt
        return [Dispatch(round=job, attempt=attempt, assignment=assignment, loads=loads)]

    def _why_dropped(self, event: Arrival | PartialArrival | Failure) -> str:
        closed = event.round < self._first
        return "its job is closed" if closed else super()._why_dropped(event)

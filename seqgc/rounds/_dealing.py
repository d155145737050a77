"""`DealingPolicy`: a policy that gives each free worker the next piece of a job.

Theory of operation
-------------------
A job is cut into pieces (`seqgc.schemes.Deal`), and up to ``in_flight`` jobs are open at once. At
every event, the policy decides which worker gets which piece next:

- *Late binding.* A worker gets no work before it has answered a greeting, which is a task without
  mini-tasks. This answer, and each later answer to a piece, brings the worker its next piece.
- *Ahead.* A worker is sent its next piece early, when the work that it has should end within one
  round trip. The round trip is measured with a second greeting, which the first workers are sent
  along with a piece. The end of the work is estimated from the pace of all work (`AnswerPace`), not
  taken from the answer, which may be long on its way. A worker with an overdue piece gets no more
  pieces. Nor does a worker so distant that the others could do all pieces before its next answer.
- *Which piece.* A piece of the worker's latest job, because the worker has the weights of this job.
  If that job has no piece left, a piece of the oldest job that has one.
- *Copies.* If there is no piece left for a free worker, it computes a copy of a piece that another
  worker has. The first choice is the piece that is most overdue. A piece is overdue after one and a
  half times the time of its work and a round trip, plus the usual way back (with ``greet="rounds"``
  one and a half times the way back of its worker). If no piece is overdue, the choice is the piece
  whose answer is expected last, if it has no copy yet and a copy would surely arrive sooner. The
  free worker with the shortest way back computes the copy. The first answer to arrive counts. The
  other tasks are cancelled, or their answers are dropped. An overdue copy is copied again.
- *Failures.* After a failure the piece is dealt again and its worker is greeted, both at once the
  first time, and after longer and longer waits if they fail again (`Retries`). The run ends if a
  piece, or every worker, has failed too often. One broken worker does not end the run: it does not
  get a piece that it has lost more often than another worker that is free, or that is at work with
  nothing overdue.
- *Silence.* A worker that is silent for the rule's time limit is replaced, if the backend can do
  this, and its pieces are dealt again. If no worker answers for twice the time limit, the run ends.

*Addresses.* The round of a task is its job, and its slot is its piece. Its attempt is the number of
tasks of the same job that its worker was sent before. So each piece has one summand in the job's
sum: the first result that this policy does not `Drop`.

*Jobs* begin and close in order. Job t begins when job ``t - in_flight`` has closed. It closes when
all jobs up to t are complete: with `Close`, `Cancel` for all workers that still compute for it, and
`Finish`. If M models are trained in turn with at most M jobs in flight, each job therefore begins
with the newest weights of its model. One number says which jobs are closed, and a resumed run deals
all pieces of the other jobs again. The results have the same bits, whichever workers compute them.

If each round is an invocation (``greet="rounds"``), all workers are greeted for each job, and
released when it closes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias, get_args

from seqgc import ports
from seqgc.errors import ParameterError, WorkerError, require_int
from seqgc.ports import Action, Arrival, BoolArray, Dispatch, Failure
from seqgc.rounds._errands import Errand, Errands, Sent, dispatches
from seqgc.rounds._foreign import require_worker
from seqgc.rounds._pieces import DealtJob
from seqgc.rounds._retries import Retries
from seqgc.rounds._rule import ClosingRule
from seqgc.rounds._task_policy import TaskPolicy
from seqgc.schemes import Deal

Greet: TypeAlias = Literal["once", "rounds"]


class DealingPolicy(TaskPolicy):
    """A policy that deals the pieces of ``num_jobs`` jobs, with up to ``in_flight`` >= 1 open jobs.

    Only the time limit and the number of attempts of the ``rule`` are used (see `Retries`).
    ``first_job`` is the number of the first job in the run. Pieces that are True in ``empty``
    (pieces,) have no data points and are not dealt. All workers are greeted at the start, and with
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
        super().__init__()
        self.in_flight = require_int("in_flight", in_flight, least=1)  # may be lowered during a run
        if greet not in get_args(Greet) or (greet == "rounds" and in_flight > 1):
            rule_ = "must be 'once', or 'rounds' with one job in flight"
            raise ParameterError("greet", rule_, greet)
        deal = deal.fitted(in_flight)
        self._n, self._limit_s, self._each_round = deal.n, rule.timeout_s, greet == "rounds"
        self._shares: list[float] = deal.chunk_fractions.tolist()
        self._pieces = [p for p in range(len(self._shares)) if empty is None or not empty[p]]
        self._first = self._next = first_job  # job that is not closed; that has not begun
        self._end = first_job + require_int("num_jobs", num_jobs, least=0)
        self._jobs: dict[int, DealtJob] = {}  # open jobs, in order
        self._errands = Errands(self._n, by_coming=self._each_round)
        self._ask_ats = [math.inf] * self._n  # by worker, the time of its alarm `_take_more`
        self._at_hand = [-1] * self._n  # by worker, the job of its latest piece
        self._takers: dict[int, None] = {}  # workers that get the next pieces, in order
        self._lost: dict[int, Failure] = {}  # workers that have failed too often
        self._retries = Retries(rule)
        self._closed_at, self._heard_at = -math.inf, math.nan

    @property
    def done(self) -> bool:
        """True if every job is closed."""
        return self._first == self._end

    @property
    def wake_at(self) -> float:
        """The time of the next `Tick` if nothing arrives before, on the clock of the backend."""
        alarm = self._alarms.next_at
        return min(alarm, self._errands.look_at(self._now)) if self._takers else alarm

    def end_after(self, job: int) -> int:
        """Begin no job after this one, except jobs that have already begun.

        Return the number of the first job that will not begin.
        """
        self._end = min(self._end, max(job + 1, self._next))
        return self._end

    def start(self) -> Sequence[Dispatch]:
        """Begin the first jobs and greet the workers."""
        return self._begin_jobs() or self._greet(range(self._n))

    # ---- events ----------------------------------------------------------------------------------

    def _settle(self, event: Arrival | Failure, actions: list[Action]) -> None:
        if isinstance(event, Arrival):
            self._take(event, actions)
        else:
            self._fail(event, actions)
        while self._first in self._jobs and self._jobs[self._first].complete:
            self._close(self._jobs[self._first], actions)
            actions += self._begin_jobs()

    def _take(self, answer: Arrival, actions: list[Action]) -> None:
        errand = self._settled(answer, actions)
        if errand is None:
            return
        worker, self._heard_at = errand.worker, self._now
        self._takers.pop(worker, None)
        if not self._errands.queues[worker]:
            self._takers[worker] = self._errands.spared = None
            if errand.piece is None and self._errands.wants_probe:
                actions += self._greet([worker], is_probe=True)
        self._ask_ahead(worker)
        if errand.piece is None:
            return
        job = self._jobs[errand.job]
        if errand.piece in job.givers:
            job.debtors.add(worker)
            actions.append(ports.Drop(event=answer, reason="another copy of its piece came first"))
            return
        self._lost.pop(worker, None)
        self._retries.succeeded((worker,))
        self._count(job, errand.piece, worker, actions)

    def _fail(self, failure: Failure, actions: list[Action]) -> None:
        errand = self._settled(failure, actions)
        if errand is None:
            return
        worker = errand.worker
        self._takers.pop(worker, None)
        if errand.piece is not None:
            what = (errand.job, errand.piece)
            wait_s = self._retries.failed(what)
            if self._retries.exhausted(what):
                raise self._hopeless(f"its piece {errand.piece} fails again and again", failure)
            self._jobs[errand.job].lose(errand.piece, worker)
            self._alarms.set(self._now + wait_s, partial(self._put_back, *what), of=what)
        wait_s = self._retries.failed((worker,))
        if self._retries.exhausted((worker,)):
            self._lost[worker] = failure
            if len(self._lost) == self._n:
                raise self._hopeless("every worker fails again and again", failure)
        greet = partial(self._greet_again, worker)  # once, even if more of its tasks fail
        self._alarms.set(self._now + wait_s, greet, of=("greet", worker))

    def _settled(self, event: Arrival | Failure, actions: list[Action]) -> Errand | None:
        """Return the errand that an event ends. Any other event is dropped, and gives None."""
        require_worker(event.worker, self._n)
        errand = self._errands.get((event.round, event.worker, event.attempt))
        if errand is None:
            reason = "its job is closed" if event.round < self._first else "nobody waits for it"
            actions.append(ports.Drop(event=event, reason=reason))
        elif isinstance(event, Arrival):
            self._errands.answer(errand, event.at)
        else:
            self._errands.remove(errand)
        if errand is not None:
            self._alarms.forget(errand)
        if errand is not None and errand.piece is not None:
            self._jobs[errand.job].forget(errand)
        return errand

    def _note_left(self, event: ports.Dispatched) -> None:
        if math.isnan(self._heard_at):
            self._heard_at = event.at
        for worker, left_at in zip(event.workers, event.left_at, strict=True):
            errand = self._errands.get((event.round, worker, event.attempt))
            assert errand is not None
            job = self._jobs[errand.job]
            job.began_at = min(job.began_at, left_at)
            self._errands.leave(errand, left_at)
            self._ask_ahead(worker)
            if math.isfinite(self._limit_s):
                self._alarms.set(left_at + self._limit_s, partial(self._miss, errand), of=errand)

    def _ask_ahead(self, worker: int) -> None:
        """Set an alarm for sending a worker its next piece before its present work is done."""
        at = self._errands.ask_at(worker)
        if worker not in self._takers and at is not None and at < self._ask_ats[worker]:
            self._ask_ats[worker] = max(at, self._now)
            take_more = partial(self._take_more, worker)
            self._alarms.set(self._ask_ats[worker], take_more, of=("ahead", worker))

    # ---- alarms ----------------------------------------------------------------------------------

    def _put_back(self, job: int, piece: int, actions: list[Action]) -> None:  # noqa: ARG002
        if job in self._jobs:
            self._jobs[job].put_back(piece)

    def _take_more(self, worker: int, actions: list[Action]) -> None:  # noqa: ARG002
        self._ask_ats[worker] = math.inf
        at = self._errands.ask_at(worker)
        if at is not None and at <= self._now:
            self._takers.setdefault(worker)
            self._errands.spared = None
        else:
            self._ask_ahead(worker)

    def _greet_again(self, worker: int, actions: list[Action]) -> None:
        if not self._errands.queues[worker] and worker not in self._takers:
            actions += self._greet([worker])

    def _miss(self, errand: Errand, actions: list[Action]) -> None:
        """Replace a worker that has exceeded the time limit, and deal its piece again.

        Raise `WorkerError` if no worker has answered for twice the time limit.
        """
        if self._now >= self._heard_at + 2 * self._limit_s:
            what = f"nobody has answered for {self._now - self._heard_at:g} s: raise the time limit"
            raise self._hopeless(what)
        self._takers.pop(errand.worker, None)
        if errand.piece is not None and not errand.copied:
            errand.copied = True
            self._jobs[errand.job].put_back(errand.piece)
        self._alarms.set(self._now + self._limit_s, partial(self._miss, errand), of=errand)
        if errand is self._errands.queues[errand.worker][0]:  # once for all of its errands
            actions.append(ports.Restart(worker=errand.worker))

    def _unheard(self, what: str) -> WorkerError:
        return self._hopeless(what)

    def _hopeless(self, what: str, failure: Failure | None = None) -> WorkerError:
        worker = failure.worker if failure else None
        cause = f"; worker {worker}: {failure.reason}" if failure else ""
        text = f"job {self._first} cannot be finished: {what}{cause}"
        return WorkerError(text, round=self._first, worker=worker)

    # ---- decisions -------------------------------------------------------------------------------

    def _count(self, job: DealtJob, piece: int, worker: int, actions: list[Action]) -> None:
        """Record the result of a piece, and cancel other tasks for this piece."""
        if not job.givers:
            job.first_at = self._now
        job.givers[piece] = worker
        if job.complete:
            return  # `_close` cancels the other tasks
        for errand in (late := job.out.get(piece, set())):
            errand.copied = True
        rivals = sorted(
            errand.worker
            for errand in late
            if self._errands.of_job(errand.worker, job.number) == [errand]  # no other task is lost
        )
        self._call_back(job, rivals, actions)

    def _call_back(self, job: DealtJob, workers: Sequence[int], actions: list[Action]) -> None:
        """Cancel all tasks of a job at these workers, and greet the workers that have no task."""
        actions += [ports.Cancel(round=job.number, workers=tuple(workers))] if workers else []
        for worker in workers:
            for errand in self._errands.of_job(worker, job.number):
                self._errands.remove(errand)
                self._alarms.forget(errand)
                job.forget(errand)
            self._alarms.set(self._now, partial(self._greet_again, worker))

    def _close(self, job: DealtJob, actions: list[Action]) -> None:
        record = job.record(self._now, n=self._n, after=self._closed_at)
        actions.append(ports.Close(record=record, jobs=(job.number,)))
        still = {e.worker for out in job.out.values() for e in out} | job.debtors
        if self._each_round:
            still.update(worker for worker, queue in enumerate(self._errands.queues) if queue)
            self._takers.clear()
        self._call_back(job, sorted(still), actions)
        actions.append(ports.Finish(job=job.number, decoding=job.decoding))
        self._retries.forget(job.number)
        del self._jobs[job.number]
        self._first, self._closed_at = job.number + 1, self._now

    def _begin_jobs(self) -> list[Dispatch]:
        greetings: list[Dispatch] = []
        while self._next < min(self._end, self._first + self.in_flight):
            self._jobs[self._next] = DealtJob(self._next, len(self._pieces), deque(self._pieces))
            self._next += 1
            if self._each_round:
                greetings += self._greet(range(self._n))
        return greetings

    def _greet(self, workers: Iterable[int], *, is_probe: bool = False) -> list[Dispatch]:
        """Return the greetings of these workers. A greeting is a task without mini-tasks."""
        if self.done:
            return []
        job = self._jobs[self._first]
        greetings = [job.errand(worker, is_probe=is_probe) for worker in workers]
        for errand in greetings:
            self._errands.add(errand)
        return dispatches(((errand, ()) for errand in greetings), n=self._n)

    def _proceed(self, actions: list[Action]) -> None:
        """Send the workers that can take more work their next pieces, or copies of pieces."""
        if not self._takers:
            return
        dealt = self._deal(range(self._n))
        if self._takers and any(job.left for job in self._jobs.values()):
            has_losses = any(job.losses for job in self._jobs.values())  # else nothing is skipped
            dealt += self._deal(self._errands.at_work(self._now) if has_losses else ())
        while self._takers and (copy := self._errands.to_copy(self._takers, self._now)) is not None:
            worker, errand = copy
            assert errand.piece is not None
            dealt.append(self._send(self._jobs[errand.job], worker, errand.piece))
        actions += dispatches(dealt, n=self._n)

    def _deal(self, others: Collection[int]) -> list[Sent]:
        """Deal the next pieces to the workers that can take one.

        `DealtJob.next_for` explains the ``others``.
        """
        dealt: list[Sent] = []
        self._errands.forget_too_late(self._now)
        if not any(job.left for job in self._jobs.values()):
            return dealt
        for worker in list(self._takers):
            if not any(job.left for job in self._jobs.values()):
                break
            if worker in self._errands.too_late:
                continue
            if self._errands.is_late(worker, self._now):
                del self._takers[worker]  # until it answers
                continue
            choice = self._choice(worker, others)
            if choice is not None and not self._errands.is_kept(worker, len(choice[0].left)):
                job, piece = choice
                left = (self._shares[each] for each in job.left)
                if not self._errands.is_too_late(worker, left, self._now):
                    dealt.append(self._send(job, worker, piece))
        return dealt

    def _choice(self, worker: int, others: Collection[int]) -> tuple[DealtJob, int] | None:
        """Return the worker's next piece and its job, or None if there is no piece for it."""
        at_hand = self._jobs.get(self._at_hand[worker])
        for job in (*([at_hand] if at_hand else []), *self._jobs.values()):
            if (piece := job.next_for(worker, others)) is not None:
                return job, piece
        return None

    def _send(self, job: DealtJob, worker: int, piece: int) -> Sent:
        errand = job.errand(worker, piece, share=self._shares[piece])
        self._errands.add(errand)
        del self._takers[worker]
        self._at_hand[worker] = job.number
        job.deal(errand, piece)
        return errand, (job.mini_task(piece),)

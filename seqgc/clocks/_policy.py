"""`ClockPolicy`: everybody goes on by himself, and waits only for who is too far behind.

Theory of operation
-------------------
There are no rounds that all begin together. The jobs are cut into clocks of ``wpc`` jobs each (work
per clock), each job into ``n`` parts, one a worker's; and every worker goes through the clocks of
its part by itself. Four rules decide all:

- *R1, begin.* A worker without a task begins clock t of its part as soon as the global clock, the
  clocks that all parts have completed, is at least t less the slack: a `Dispatch` of round t with a
  mini-task for each job of the clock. That is `Slack`; another `Barrier` promises its own slack.
- *R2, answer.* Each result is an `Update`: the part of a job, to be applied by itself. The part has
  completed its clock; if it was the last to do so, the global clock has passed: a `Close`, which
  names the jobs that are whole now. Then R1, for all.
- *R3, failure.* The task is sent again, at once or after a wait (`Retries`). After ``max_attempts``
  failures in a row each of the worker's parts goes to the worker with the fewest parts that does
  not fail as well. As long as all workers fail, which is an outage, the same worker is asked again. Who has failed 20 times in a row
  is left alone for half a minute each time; when every worker has, the run ends. Who has several
  parts does two that stand at the same clock in one task, and else the one that is behind: however
  many it was given, it can soon give them back.
- *R4, silence.* What is out for the rule's time limit is a failure, and its worker is replaced
  (`Restart`) if the backend can; from then on it does one part a task, as two may take longer than
  the limit. An answer that comes after all is dropped. If all workers that have parts are silent
  three times, and no worker was heard meanwhile, the run ends.

So an update is applied once and never twice: only the answer to a task's newest attempt counts, and
only one task of a part is out at a time. A task that begins clock t is made when all updates of
clocks up to ``t - slack - 1`` have come in, and all of its own part up to t - 1; others may have.
With the weights as old as that, what a job computes is the gradient of weights that lack at most
``wpc * (slack + 1) - 1`` jobs (Cui et al. 2014, 2.3): none with slack 0 and one job a clock, which
is bulk synchronous.

*Return.* Whoever has lost its parts is greeted, after waits as in R3: sent a task that asks for
none. Once it answers, its own part is its own again, as soon as nobody else is at work on it. Only
an answer to a task with parts ends the row of its failures: whoever answers nothing but greetings
loses its part with the next failure. With each that comes after 20 in a row it is left alone twice
as long as before. So who was down for long can work again, and who cannot work hardly disturbs.

*Addresses.* A task's round is its clock. Its attempt counts the tasks that the worker was sent in
it, and its slots number results by part and job: another's part that it takes over has others.

*Flaws.* After a failure with flaws of a model, another worker is asked at once: the parts go to
others as in R3. The own part of their worker returns without a greeting as soon as the other
worker has tried it, with any result.

Source: Cui et al., "Exploiting bounded staleness to speed up big data analytics", 2014, 2.3, 3.1;
Harlap et al., "Addressing the straggler problem for iterative convergent parallel ML", 2016, 2.1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from seqgc import ports
from seqgc.clocks._barrier import Barrier, Slack
from seqgc.clocks._global_clock import GlobalClock
from seqgc.clocks._parts import Parts
from seqgc.clocks._state import ClockState, read_state
from seqgc.clocks._tasks import ClockTask, ClockTasks
from seqgc.errors import ScheduleError, WorkerError, require_int
from seqgc.ports import Action, Arrival, Dispatch, Failure, FloatArray
from seqgc.rounds import TIME_LIMITS, ClosingRule, Records, Retries, TaskPolicy

__all__ = ["ClockPolicy"]

_MOST_PARTS: Final = 2  # of a task
_GREET_S: Final = 0.1  # after a worker has failed, at the earliest
_REST_S: Final = 30.0  # of a worker that has failed too often in a row, at the least


class ClockPolicy(TaskPolicy):
    """Runs ``num_jobs`` jobs of ``n`` parts behind a barrier; see this module's head.

    Of the ``rule`` the time limit and the attempts count. Without a ``barrier`` all wait for all.
    ``wpc`` >= 1 jobs make a clock, or fewer the last. ``shares`` (n,) are loads of a job's parts.

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
        super().__init__()
        self._parts = Parts(n, wpc=wpc, shares=shares)
        self._n, self._wpc, self._rule, self._barrier = n, wpc, rule, barrier or Slack()
        self._jobs = require_int("num_jobs", num_jobs, least=0)
        self._clocks = GlobalClock([0] * n)
        self._latest = -1  # clock that anybody has begun
        self._errands = ClockTasks(self._parts)
        self._failing: dict[int, str] = {}  # by worker, why its newest task with parts failed
        # Workers without parts that are well, and whether their own may return: not before another
        # has tried it, if they were in doubt
        self._well: dict[int, bool] = {}
        self._silent = Counter[int]()  # by worker, how often since anybody was heard
        self._one_by_one = set[int]()  # workers that were silent, and do one part a task
        self._rests_s: dict[int, float] = {}  # by worker, the next one if it fails at its parts
        self._retries, self._records = Retries(rule), Records(n, "everyone")

    @property
    def done(self) -> bool:
        """Whether all parts of all jobs are in."""
        return self.rounds >= self._end

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._alarms.next_at

    @property
    def num_jobs(self) -> int:
        """How many jobs the whole run has, as far as is known."""
        return self._jobs

    @property
    def rounds(self) -> int:
        """The global clock: how many clocks all parts have completed."""
        return self._clocks.least

    @property
    def _end(self) -> int:
        return -(-self._jobs // self._wpc)

    def end_after(self, job: int) -> None:
        """Begin no clock after this job's that nobody has begun: what anybody has, all do."""
        end = max(job // self._wpc, self._latest) + 1
        self._jobs = min(self._jobs, end * self._wpc)

    # ---- what is remembered ----------------------------------------------------------------------

    def snapshot(self) -> ClockState:
        """Return what a policy that goes on with the run must know, as JSON says it.

        It says which updates this policy has given out: whole clocks of each part. Taken when all
        of them have been applied, as they are whenever `seqgc.master.run` rests, and kept with the
        weights of that moment, it makes a run that is broken off apply each update once: a policy
        that is restored to it asks for all others, and for none of these again. What was under way
        is computed anew, on the weights of then. No answer to the run that was broken off may reach
        the new one, whose addresses begin anew.
        """
        return ClockState(
            jobs=self._jobs,
            completed=list(self._clocks.completed),
            owners=list(self._parts.owners),
        )

    def restore(self, state: object) -> None:
        """Before the start, go on where another policy with the same arguments was.

        `ValueError`, `KeyError` or `TypeError`: it is no snapshot of as many workers' clocks.
        """
        known = read_state(state, n=self._n)
        completed, owners = known["completed"], known["owners"]
        self._jobs = min(self._jobs, known["jobs"])
        self._clocks, self._latest = GlobalClock(completed), max(completed) - 1
        self._parts.give(owners)
        for clock in range(self._clocks.least, max(completed)):
            givers = (owners[part] for part in range(self._n) if completed[part] > clock)
            self._records.recall(clock, givers)

    # ---- what comes ------------------------------------------------------------------------------

    def start(self) -> Sequence[Dispatch]:
        """Begin the first clock of all parts, or those that a restored policy stands at."""
        away = [worker for worker in range(self._n) if not self._parts.of(worker)]
        return [*self._greet(away), *self._begin(range(self._n))]

    def _note_left(self, event: ports.Dispatched) -> None:
        if any(map(self._parts.of, event.workers)):
            self._records.leave(event.round, event.at)
        if math.isfinite(limit_s := self._rule.timeout_s):
            for worker, left_at in zip(event.workers, event.left_at, strict=True):
                address = event.round, worker, event.attempt
                self._alarms.set(left_at + limit_s, partial(self._miss, address), of=worker)

    def _settle(self, event: Arrival | Failure, actions: list[Action]) -> None:
        errand = self._errands.awaited(event.round, event.worker, event.attempt)
        if errand is None:
            reason = "its clock has passed" if event.round < self.rounds else "nobody waits for it"
            actions.append(ports.Drop(event=event, reason=reason))
            return
        self._silent.clear()
        if isinstance(event, Failure):
            self._fail(errand, event.reason, actions, in_doubt=bool(event.flaws))
        elif not errand.parts:
            self._errands.end(errand)
            self._well[errand.worker] = True
            actions += self._begin(self._bring_home(actions))
        else:
            self._take(errand, actions)

    def _take(self, errand: ClockTask, actions: list[Action]) -> None:
        worker, clock, jobs = errand.worker, errand.clock, self._jobs_of(errand.clock)
        self._errands.end(errand)
        home = self._bring_home(actions, tried=errand.parts)
        self._rests_s.pop(worker, None)
        if self._failing.pop(worker, None) is not None:
            self._wake()
        self._retries.succeeded((worker,))
        self._records.answer(clock, worker, self._now)
        actions += self._parts.updates(worker, errand.parts, jobs, clock=clock)
        if passed := self._clocks.complete(errand.parts):
            self._errands.forget(clock)
            record = self._records.close(clock, self._now)
            actions.append(ports.Close(record=record, jobs=tuple(jobs)))
        for_all = self._barrier.waits_for_all and not passed
        actions += self._begin([*home, worker] if for_all else range(self._n))

    def _fail(
        self, errand: ClockTask, why: str, actions: list[Action], *, in_doubt: bool = False
    ) -> None:
        """Have a task sent again, or its parts be another's; or greet a worker again."""
        worker, errand.is_out = errand.worker, False
        wait_s = self._retries.failed((worker,))
        if exhausted := self._retries.exhausted((worker,)):
            wait_s = max(wait_s, self._rest_s(errand))
        if not errand.parts:
            self._call_off(errand, actions)
            self._greet_after(worker, wait_s)
            self._end_if_hopeless(worker)
            return
        self._failing[worker] = why
        too_often = self._retries.in_a_row((worker,)) >= self._rule.max_attempts
        tried = self._parts.of(worker) if too_often else errand.parts  # or never will be
        actions += self._begin(self._bring_home(actions, tried=tried))
        others = self._parts.others(worker, but=self._failing) if in_doubt or too_often else []
        if not others:
            self._end_if_hopeless(worker)
            self._alarms.set(self._now + wait_s, partial(self._send_again, errand), of=errand)
            return
        self._call_off(errand, actions)
        actions += self._begin(self._parts.hand_over(worker, others))
        if in_doubt and not exhausted:
            self._well[worker] = False
        else:
            self._greet_after(worker, wait_s)

    def _rest_s(self, errand: ClockTask) -> float:
        """Return the seconds for which to leave a worker alone that has failed too often."""
        if not errand.parts:
            return _REST_S
        rest_s = self._rests_s.get(errand.worker, _REST_S)
        self._rests_s[errand.worker] = 2 * rest_s
        return rest_s

    def _wake(self) -> None:
        """Ask those at once that are left alone with parts: now another one could have them."""
        for worker in self._rests_s:
            errand = self._errands.of(worker)
            if errand is not None and not errand.is_out:
                self._alarms.set(self._now, partial(self._send_again, errand), of=errand)

    def _end_if_hopeless(self, worker: int) -> None:
        """Raise the run's error if all fail again and again, of whom this one did just now."""
        all_fail = all(self._retries.exhausted((each,)) for each in range(self._n))
        if all_fail and not self._errands.at_work:
            raise self._hopeless(worker, "every worker fails again and again")

    def _call_off(self, errand: ClockTask, actions: list[Action]) -> None:
        self._errands.end(errand)
        actions.append(ports.Cancel(round=errand.clock, workers=(errand.worker,)))

    def _send_again(self, errand: ClockTask, actions: list[Action]) -> None:
        if errand.parts:
            self._errands.again(errand)
            actions += self._errands.dispatches([errand], self._jobs_of)
        else:  # all of them have gone home
            self._errands.end(errand)
            actions += self._begin([errand.worker])

    def _greet_after(self, worker: int, wait_s: float) -> None:
        """See after a while whether a worker without parts is well again."""
        greet = partial(self._greet_again, worker)
        self._alarms.set(self._now + max(wait_s, _GREET_S), greet)

    def _greet_again(self, worker: int, actions: list[Action]) -> None:
        actions += self._greet([worker])

    def _bring_home(self, actions: list[Action], *, tried: Iterable[int] = ()) -> list[int]:
        """Let who is well have its own part, unless another is at work on it; return who has it.

        These parts have been ``tried`` just now, by whoever has them.
        """
        self._well.update({part: True for part in tried if part in self._well})
        home = []
        for worker in [worker for worker, may in self._well.items() if may]:
            errand = self._errands.of(owner := self._parts.owners[worker])
            if errand is not None and worker in errand.parts:
                if errand.is_out:
                    continue
                errand.parts = tuple(part for part in errand.parts if part != worker)
                actions.append(ports.Cancel(round=errand.clock, workers=(owner,)))
            del self._well[worker]
            self._parts.bring_home(worker)
            home.append(worker)
        return home

    def _miss(self, address: tuple[int, int, int], actions: list[Action]) -> None:
        """Take an answer that is not there by its time limit for a failure."""
        if (errand := self._errands.awaited(*address)) is None:
            return
        worker, why = errand.worker, f"silent for {self._rule.timeout_s:g} s: raise the time limit"
        self._silent[worker] += 1
        lost = {each for each, times in self._silent.items() if times >= TIME_LIMITS}
        if worker in lost and not self._parts.others(worker, but=lost):
            first = next(iter(self._silent))
            self._failing[first] = why
            raise self._hopeless(first, "nobody has answered though asked three times")
        self._one_by_one.add(worker)
        errand.parts = errand.parts[:1]
        actions.append(ports.Restart(worker=worker))
        self._fail(errand, why, actions)

    def _unheard(self, what: str) -> WorkerError:
        return self._hopeless(self._errands.workers[0], what)

    def _hopeless(self, worker: int, what: str) -> WorkerError:
        why = f"; worker {worker}: {self._failing[worker]}" if worker in self._failing else ""
        text = f"clock {self.rounds} cannot be completed: {what}{why}"
        return WorkerError(text, round=self.rounds, worker=worker)

    # ---- what is done about it -------------------------------------------------------------------

    def _proceed(self, actions: list[Action]) -> None:
        """Do nothing: whoever may begin has done so when the global clock passed."""

    def _begin(self, workers: Iterable[int]) -> list[Dispatch]:
        """Have those of these workers begin their next clock that may."""
        begun: list[ClockTask] = []
        admits = self._barrier.admits
        for worker in workers:
            if worker in self._errands or not (parts := self._parts.of(worker)):
                continue
            clock = min(map(self._clocks.clock, parts))
            most = 1 if worker in self._one_by_one else _MOST_PARTS
            behind = [part for part in parts if self._clocks.clock(part) == clock][:most]
            if clock < self._end and all(admits(part, clock, self._clocks) for part in behind):
                begun.append(self._errands.begin(worker, clock, behind))
                self._latest = max(self._latest, clock)
        if not (self._errands or self.done):
            raise ScheduleError(f"{self._barrier!r} lets nobody begin: all wait at {self.rounds}")
        return self._errands.dispatches(begun, self._jobs_of)

    def _greet(self, workers: Iterable[int]) -> list[Dispatch]:
        """Send these, who have no parts, a task that asks for none, if there is work left."""
        whom = () if self.done else workers
        greetings = [self._errands.begin(worker, self.rounds, ()) for worker in whom]
        return self._errands.dispatches(greetings, self._jobs_of)

    def _jobs_of(self, clock: int) -> range:
        return range(clock * self._wpc, min((clock + 1) * self._wpc, self._jobs))

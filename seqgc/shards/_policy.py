"""`ShardPolicy`: workers take shards of the data as they come, and nobody waits for anybody.

Theory of operation
-------------------
Job t is one step on batch t, and has n parts. In the order of the data these are cut into shards of
``M`` consecutive parts (`Stretches`). Nobody is given a shard before it is free to do it; so who is
slow does few, and the run ends when the data do, but for the last shards.

- *Free.* A worker without a shard takes the first that is to do. It is sent one part at a time.
- *Answer.* Its result is an `Update`, to be applied by itself, and it is sent the shard's next
  part. With the last part the shard is done, and its worker free.
- *Failure.* The shard goes to the end of its stretch, and whoever takes it goes on at its first
  part that has not been applied: another worker, as long as there is one that does not fail. The
  worker takes another shard, at once or after a wait (`Losses`), as its shard has if the same part
  has failed before. The run ends when every worker has failed 20 times in a row, or when a part has
  failed 20 times, not counting workers that may be dead (`Losses`). With ``resume="shard"``, the
  paper's rule, the shard begins anew, and may be lost 20 M times in a row.
- *Silence.* A worker that is silent for the rule's time limit has failed: its task is cancelled,
  and the worker is replaced if the backend can (`Restart`). If all workers are silent three times,
  and none was heard meanwhile, the run ends.

*Clocks.* Job t is a clock of the data. It closes (`Close`, reason "dealt") when all of its parts,
and those of the jobs before, are in for good.

*Once.* A part is out at one worker at a time, and an answer counts only if it is to the newest task
of its worker; all others are dropped. So each part is applied exactly once, whatever fails. With
``resume="shard"`` it is at least once: parts of a lost shard that were in are applied again,
``M - 1`` at most. Updates say that (`Part.again`), and which jobs are over (`Decoding.ends`).

*Addresses.* A task's round says its worker's how-many-th task of the run it is, from 0 on, and its
attempt is always 0.

Source: AntDT (2024), V-C.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from seqgc import ports
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Action, Arrival, Dispatch, Failure, FloatArray, MiniTask
from seqgc.rounds import (
    TIME_LIMITS,
    ClosingRule,
    TaskPolicy,
    part_task,
    part_update,
    require_worker,
)
from seqgc.shards._losses import Losses
from seqgc.shards._progress import Progress
from seqgc.shards._service import Resume
from seqgc.shards._state import ShardPolicyState, read_state
from seqgc.shards._stretches import Stretches

__all__ = ["ShardPolicy"]

_Errand: TypeAlias = tuple[int, int]  # a task's round, and its part


class ShardPolicy(TaskPolicy):
    """Runs ``num_jobs`` jobs of ``n`` parts in shards of ``M`` parts; see this module's head.

    Of the ``rule`` the time limit and the attempts count (see `Losses`). ``loads`` (n,) say what
    share of a batch each worker computes in a task; ``1/n`` unless they are given. A shard that was
    lost goes on where it was, or is done again as a whole: ``resume``.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    Worker 1 is slow: worker 0 does four parts of six.

    >>> from seqgc.master import run
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.virtual import VirtualBackend
    >>> pace = ByRound(latencies_s=[[1.0, 3.5]], rates=[[0.0]])
    >>> policy = ShardPolicy(2, ClosingRule(), num_jobs=3)
    >>> run(policy, VirtualBackend(2, pace))
    >>> policy.tasks, policy.rounds
    ((4, 2), 3)
    """

    def __init__(
        self,
        n: int,
        rule: ClosingRule,
        *,
        num_jobs: int,
        M: int = 1,
        resume: Resume = "part",
        loads: FloatArray | None = None,
    ) -> None:
        super().__init__()
        self._stretches = Stretches(n=n, M=M, jobs=num_jobs, resume=resume)
        self._repeats = resume == "shard" and M > 1  # a lost shard has parts that are in
        self._n, self._limit_s = n, rule.timeout_s
        self._loads = np.full(n, 1 / n) if loads is None else loads
        if self._loads.shape != (n,):
            raise ParameterError("loads", f"must be {n} loads, one a worker", self._loads.shape)
        self._tasks = [0] * n  # sent, by worker
        self._out: dict[int, _Errand] = {}  # by worker
        self._free = dict.fromkeys(range(n))  # workers that can take a shard, in order
        self._next: dict[int, int] = {}  # by worker, the part that it is to be sent
        self._silent = Counter[int]()  # by worker, how often since anybody was heard
        self._progress = Progress(n)
        self._losses = Losses(n, M=M, rule=rule)

    @property
    def done(self) -> bool:
        """Whether all parts of all jobs are in."""
        return self._progress.closed >= self.num_jobs

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._alarms.next_at

    @property
    def num_jobs(self) -> int:
        """How many jobs the whole run has, as far as is known."""
        return self._stretches.jobs

    @property
    def rounds(self) -> int:
        """How many clocks of data are closed."""
        return self._progress.closed

    @property
    def tasks(self) -> tuple[int, ...]:
        """How many tasks each worker has been sent, (n,)."""
        return tuple(self._tasks)

    def end_after(self, job: int) -> None:
        """Let ``job``, which has started and was the latest to do so, be the run's last."""
        self._stretches.end_at(max(job, self._stretches.latest) + 1)

    # ---- what is remembered ----------------------------------------------------------------------

    def snapshot(self) -> ShardPolicyState:
        """Return its state: what JSON can say.

        It says which updates this policy has given out. Kept with the weights when all of them have
        been applied (as when `seqgc.master.run` rests), it makes a resumed run apply each once.
        """
        return ShardPolicyState(
            jobs=self.num_jobs,
            tasks=list(self._tasks),
            shards=self._stretches.snapshot(),
            givers=self._progress.givers(),
        )

    def restore(self, state: object) -> None:
        """Before the start, go on where another policy, with the same arguments, was.

        `ValueError`, `KeyError` or `TypeError` if it is no such state.
        """
        known = read_state(state, n=self._n)
        self._stretches.end_at(known["jobs"])
        self._stretches.restore(known["shards"])
        self._tasks = known["tasks"]
        self._progress.recall(self._stretches.first, self._stretches.left(), known["givers"])

    # ---- what comes ------------------------------------------------------------------------------

    def start(self) -> Sequence[Dispatch]:
        """Give everybody a shard."""
        return self._deal()

    def _note_left(self, event: ports.Dispatched) -> None:
        for worker, left_at in zip(event.workers, event.left_at, strict=True):
            errand = self._out[worker]
            self._progress.leave(errand[1] // self._n, left_at)
            if math.isfinite(self._limit_s):
                miss = partial(self._miss, worker, errand)
                self._alarms.set(left_at + self._limit_s, miss, of=worker)

    def _settle(self, event: Arrival | Failure, actions: list[Action]) -> None:
        """Take an event that somebody waits for; any other one is dropped."""
        require_worker(event.worker, self._n)
        round, part = self._out.get(event.worker, (-1, -1))
        if (event.round, event.attempt) != (round, 0):
            actions.append(ports.Drop(event=event, reason="nobody waits for it"))
            return
        self._silent.clear()
        if isinstance(event, Failure):
            self._fail(event.worker, event.reason, actions)
        else:
            self._take(event, part, actions)

    def _take(self, answer: Arrival, part: int, actions: list[Action]) -> None:
        worker = answer.worker
        stand, (job, index) = self._stretches.standing(worker), divmod(part, self._n)
        self._losses.answered(worker, stand)
        self._progress.answer(job, worker, self._now)
        closes = self._progress.settle([each // self._n for each in stand.settles], self._now)
        update = part_update(
            part_task(job, index),
            of=self._n,
            worker=worker,
            round=answer.round,
            again=stand.again,
            ends=tuple(j for each in closes for j in each.jobs) if self._repeats else None,
        )
        actions += [update, *closes]
        del self._out[worker]
        if (following := self._stretches.advance(worker)) is None:
            self._free[worker] = None
        else:
            self._next[worker] = following

    def _fail(self, worker: int, why: str, actions: list[Action]) -> None:
        """Have a worker's shard be done by whoever comes after a while, and it another."""
        round, _ = self._out.pop(worker)
        actions.append(ports.Cancel(round=round, workers=(worker,)))
        stand = self._stretches.standing(worker)
        shard_s, worker_s = self._losses.lost(worker, stand)
        if what := self._losses.hopeless(stand):
            raise self._hopeless(what, worker, why)
        self._alarms.set(self._now + shard_s, partial(self._put_back, worker))
        self._alarms.set(self._now + max(shard_s, worker_s), partial(self._take_again, worker))

    def _unheard(self, what: str) -> WorkerError:
        return self._hopeless(what)

    def _hopeless(self, what: str, worker: int | None = None, why: str = "") -> WorkerError:
        cause = "" if worker is None else f"; worker {worker}: {why}"
        text = f"clock {self.rounds} of the data cannot be completed: {what}{cause}"
        return WorkerError(text, round=self.rounds, worker=worker)

    # ---- what is done about it -------------------------------------------------------------------

    def _put_back(self, worker: int, actions: list[Action]) -> None:  # noqa: ARG002 (as all are)
        self._stretches.lost(worker)

    def _take_again(self, worker: int, actions: list[Action]) -> None:  # noqa: ARG002
        self._free[worker] = None

    def _miss(self, worker: int, errand: _Errand, actions: list[Action]) -> None:
        """Do without a worker that has said nothing within the time limit."""
        if self._out.get(worker) != errand:
            return
        why = f"silent for {self._limit_s:g} s: raise the time limit"
        self._silent[worker] += 1
        asked = self._out.keys() | self._silent.keys()
        if all(self._silent[each] >= TIME_LIMITS for each in asked):
            first = next(iter(self._silent))
            raise self._hopeless("nobody has answered though asked three times", first, why)
        actions.append(ports.Restart(worker=worker))
        self._fail(worker, why, actions)

    def _proceed(self, actions: list[Action]) -> None:
        actions += self._deal()

    def _deal(self) -> list[Dispatch]:
        """Send the next parts; those that are tasks of one round leave together."""
        for worker in list(self._free):
            again = self._losses.is_alone(worker)
            if (first := self._stretches.take(worker, again=again)) is not None:
                del self._free[worker]
                self._next[worker] = first
        rounds: defaultdict[int, dict[int, tuple[MiniTask, ...]]] = defaultdict(dict)
        for worker, part in self._next.items():
            round = self._tasks[worker]
            rounds[round][worker] = (part_task(*divmod(part, self._n)),)
            self._out[worker] = round, part
            self._tasks[worker] += 1
        self._next.clear()
        return [
            Dispatch(round=round, attempt=0, assignment=tasks, loads=self._loads)
            for round, tasks in rounds.items()
        ]

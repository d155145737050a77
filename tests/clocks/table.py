"""A loop played by hand: which parts are applied, by whom, and on what others had done."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field

from seqgc import ports
from seqgc.clocks import ClockPolicy, Clocks
from seqgc.rounds import ClosingRule

Address = tuple[int, int, int]


@dataclass
class Table:
    """Feeds a policy events in whatever order a test says, and checks all that it answers.

    ``applied`` counts the updates of each (job, part); parts are the chunks that tasks ask for.
    """

    clocks: Clocks
    num_jobs: int
    rule: ClosingRule = field(default_factory=ClosingRule)
    now: float = 0.0
    out: dict[Address, tuple[ports.MiniTask, ...]] = field(default_factory=dict)
    late: dict[Address, tuple[ports.MiniTask, ...]] = field(default_factory=dict)
    applied: Counter[tuple[int, int]] = field(default_factory=Counter)
    seen: list[ports.Action] = field(default_factory=list)
    asked: dict[Address, tuple[int, int]] = field(default_factory=dict)  # by round, worker, slot

    def __post_init__(self) -> None:
        self.policy = self._new_policy()

    def _new_policy(self) -> ClockPolicy:
        return self.clocks.policy(self.rule, num_jobs=self.num_jobs)

    def begin(self) -> None:
        self._do(self.policy.start())

    def resume(self) -> None:
        """Break the run off, and go on with another policy from the snapshot of this moment."""
        state = json.loads(json.dumps(self.policy.snapshot()))
        self.policy, self.out, self.late, self.asked = self._new_policy(), {}, {}, {}
        self.policy.restore(state)
        self.begin()

    def answer(self, address: Address, *, at=None) -> list[ports.Action]:
        round, worker, attempt = address
        tasks = self.out.pop(address, None) or self.late.pop(address, ())
        event = ports.Arrival(
            round=round, worker=worker, attempt=attempt, at=self._at(at), results={}
        )
        return self._feed(event, {(round, worker, task.slot): task for task in tasks})

    def fail(self, address: Address, *, flawed: bool = False) -> list[ports.Action]:
        round, worker, attempt = address
        self.late[address] = self.out.pop(address, ())  # it may answer all the same
        return self._feed(
            ports.Failure(
                round=round,
                worker=worker,
                attempt=attempt,
                at=self.now,
                reason="fell",
                flaws={"m": ports.Flaw(kind="raised", why="a fault")} if flawed else {},
            )
        )

    def tick(self) -> list[ports.Action]:
        assert math.isfinite(self.policy.wake_at), "nothing will ever happen"
        at = self._at(max(self.now, self.policy.wake_at))
        return self._feed(ports.Tick(at=at))

    def _at(self, at: float | None) -> float:
        self.now = self.now if at is None else at
        return self.now

    def _feed(self, event, results=None) -> list[ports.Action]:
        actions = list(self.policy.on(event))
        self._do(actions, results or {})
        return actions

    # ---- what it checks --------------------------------------------------------------------------

    def completed(self) -> list[int]:
        """The clocks that each part has completed, by the updates that were given out."""
        wpc, n = self.clocks.wpc, self.clocks.n
        jobs = [sum(self.applied[job, part] for job in range(self.num_jobs)) for part in range(n)]
        return [-(-each // wpc) for each in jobs]

    def _do(self, actions, results=None) -> None:
        used = bool(actions) and any(isinstance(a, ports.Update) for a in actions)
        unused = any(isinstance(action, ports.Drop) for action in actions)
        assert not (used and unused)
        for action in actions:
            self.seen.append(action)
            match action:
                case ports.Update():
                    self._apply(action, results)
                case ports.Dispatch():
                    self._send(action)
                case ports.Cancel(round=round, workers=workers):
                    self._is_late(a for a in self.out if a[0] == round and a[1] in workers)
                case ports.Restart(worker=worker):
                    self._is_late(a for a in self.out if a[1] == worker)

    def _is_late(self, addresses) -> None:
        for address in list(addresses):
            self.late[address] = self.out.pop(address)

    def _apply(self, update: ports.Update, results) -> None:
        decoding = update.decoding()
        (term,) = decoding.terms
        task = results.pop((term.round, term.worker, term.slot))  # once an answer
        assert (task.job, task.cover) == (decoding.job, decoding.part.index)
        assert (update.job, decoding.part.of, term.weight) == (task.job, self.clocks.n, 1.0)
        self.applied[task.job, task.cover] += 1
        assert self.applied[task.job, task.cover] == 1, "applied twice"
        assert task.job == 0 or self.applied[task.job - 1, task.cover], "out of order"

    def _send(self, action: ports.Dispatch) -> None:
        completed, jobs_of = self.completed(), self.jobs_of(action.round)
        for worker, tasks in action.assignment.items():
            address = (action.round, worker, action.attempt)
            assert address not in self.out
            assert address not in self.late
            assert not [a for a in self.out if a[1] == worker], "two tasks at once"
            parts = {task.cover for task in tasks}
            asked = sorted((task.job, task.cover) for task in tasks)
            assert asked == sorted((job, part) for job in jobs_of for part in parts)
            assert len({task.slot for task in tasks}) == len(tasks)
            for task in tasks:
                slot, what = (action.round, worker, task.slot), (task.job, task.cover)
                assert self.asked.setdefault(slot, what) == what, "a slot of two meanings"
            for part in parts:
                assert completed[part] == action.round
            if self.clocks.slack is not None:
                assert action.round - min(completed) <= self.clocks.slack
            load = len(tasks) / self.clocks.n
            assert math.isclose(action.loads[worker], load)
            self.out[address] = tasks
        assert not self.policy.on(
            ports.Dispatched(
                round=action.round,
                attempt=action.attempt,
                workers=tuple(action.assignment),
                left_at=tuple(self.now for _ in action.assignment),
                loads=action.loads,
            )
        )

    def jobs_of(self, clock: int) -> range:
        wpc = self.clocks.wpc
        return range(clock * wpc, min((clock + 1) * wpc, self.policy.num_jobs))

    def closes(self) -> list[ports.Close]:
        return [action for action in self.seen if isinstance(action, ports.Close)]

    def sent(self) -> list[tuple[int, int, dict[int, list[int]]]]:
        """What was sent: rounds, attempts, and by worker the parts."""
        return [
            (a.round, a.attempt, {i: [m.cover for m in tasks] for i, tasks in a.assignment.items()})
            for a in self.seen
            if isinstance(a, ports.Dispatch)
        ]

    def check_end(self) -> None:
        """Every part of every job is applied once, and every job was named once, in order."""
        assert self.policy.done
        jobs = range(self.policy.num_jobs)
        assert self.applied == Counter((job, p) for job in jobs for p in range(self.clocks.n))
        assert [job for close in self.closes() for job in close.jobs] == list(jobs)
        rounds = [close.record.round for close in self.closes()]
        assert rounds == list(range(len(rounds)))

"""Which answers are true, and that only these are used, once: an observer of every master."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeAlias

import numpy as np

from seqgc import ports
from seqgc.ports import Arrival, Decoding, Drop, FloatArray, MiniTask, Seen
from tests.simulation.faults import MAX_NORM
from tests.simulation.world import Violation, World

Address: TypeAlias = tuple[int, int, int]  # worker, round, slot


class Ledger:
    """An observer that knows which answers are true, and that only these are used, once.

    ``true`` is what was sent in answer to an attempt; ``forged`` are the answers of this run whose
    form, in some slots, is not what their task asked for. Masters of one run share what was
    ``accepted``.
    """

    def __init__(self, world: World, accepted: dict[Address, MiniTask] | None = None) -> None:
        self._world = world
        self._accepted = {} if accepted is None else accepted  # by any master, with their tasks
        self.begin()

    def begin(self) -> None:
        """Another master begins."""
        # What an attempt was asked for, by slot.
        self.true: dict[tuple[int, int, int], Mapping[int, FloatArray]] = {}
        self._forged: dict[int, tuple[Arrival, Set[int]]] = {}  # by identity: its slots
        self._tasks: dict[tuple[int, int], dict[int, MiniTask]] = {}  # round, worker
        self._open: set[int] = set()  # one round, or jobs under way where work is dealt
        self._last: Arrival | None = None
        self._settled: set[tuple[int, int]] = set()  # round, worker; or job, piece
        self._finished: set[int] = set()

    def forge(self, answer: Arrival, slots: Set[int]) -> None:
        """Take note of an answer of which these slots are not to be used."""
        self._forged[id(answer)] = answer, slots

    def __call__(self, seen: Seen) -> None:
        if not self._world.alive:
            return
        write(self._world, seen)
        last, self._last = self._last, None
        if last is not None and not (isinstance(seen, Drop) and seen.event is last):
            self._accept(last)
        match seen:
            case Arrival():
                self._last = seen
            case ports.Failure() | ports.Restart():
                self._require_cause(seen)
            case ports.Dispatch():
                self._begin_round(seen)
            case ports.Close():
                is_open = seen.record.round in self._open or seen.record.reason == "idle"
                self._require(is_open, f"round {seen.record.round} was not open")
                self._open.discard(seen.record.round)
            case ports.Finish():
                self._finish(seen)

    def _require_cause(self, seen: ports.Failure | ports.Restart) -> None:
        """See that nobody fails, or is taken for lost, to whom nothing has happened."""
        if isinstance(seen, ports.Failure):
            why = f"worker {seen.worker} failed in round {seen.round}, and nothing had happened"
            self._require(self._world.may_fail, f"{why} to it: {seen.reason}")
        elif self._world.dealt:
            idle = f"worker {seen.worker} was replaced for its silence, and had not been asked"
            self._require(not self._world.is_idle(seen.worker), idle)

    def _begin_round(self, dispatch: ports.Dispatch) -> None:
        round, dealt = dispatch.round, self._world.dealt
        for worker, tasks in dispatch.assignment.items():
            known = self._tasks.setdefault((round, worker), {})
            known.update({task.slot: task for task in tasks})
        if dispatch.attempt == 0 or dealt:
            self._world.jobs_begun = True
            self._open = self._open | {round} if dealt else {round}

    def _finish(self, finish: ports.Finish) -> None:
        job = finish.job
        self._require(job not in self._finished, f"job {job} finished twice")
        self._finished.add(job)
        decoding = finish.decoding()
        for term in decoding.terms:
            key = (term.worker, term.round, term.slot)
            self._require(key in self._accepted, f"job {job} uses {key}, never accepted")
        self._count(decoding)

    def _count(self, decoding: Decoding) -> None:
        """See that whatever chunk is in a job's gradient is there once, by a task of that job."""
        counts: dict[int, float] = {}
        for term in decoding.terms:
            task = self._accepted[term.worker, term.round, term.slot]
            self._require(task.job == decoding.job, f"job {decoding.job} uses one of {task.job}'s")
            for chunk, coefficient in zip(task.chunks.tolist(), task.coefficients, strict=True):
                counts[chunk] = counts.get(chunk, 0.0) + term.weight * float(coefficient)
        lost, n = set(decoding.lost), self._world.shape.n
        due = n / (n - len(lost))  # chunks are lost only where each worker has one
        for chunk, count in counts.items():
            how_often = f"job {decoding.job} has chunk {chunk} {count:.6g} times"
            self._require(abs(count - due) < 1e-6 and chunk not in lost, how_often)
        if lost:
            self._require(
                len(counts) + len(lost) == n, f"job {decoding.job} lacks more than it says"
            )

    def _accept(self, answer: Arrival) -> None:
        round, worker = answer.round, answer.worker
        name = f"the answer of round {round}, worker {worker}, attempt {answer.attempt}"
        self._require(worker not in self._world.expelled, f"{name}, who was expelled, was accepted")
        true = self.true.get((round, worker, answer.attempt))
        self._require(true is not None, f"{name}, which nobody asked for, was accepted")
        slots = self._of_use(round, worker) & (true or {}).keys()
        forged = self._forged.get(id(answer), (answer, set[int]()))[1]
        self._require(not slots & forged, f"{name}, which is forged, was accepted")
        for slot in slots:
            self._require(
                true is not None and is_as_asked(answer, slot, true[slot]),
                f"{name} was accepted, and slot {slot} is not what was asked for",
            )
        is_open = round in self._open or (self._world.dealt and not true)  # a greeting's is empty
        if not is_open and self._world.takes_late:
            is_closed = round < max(self._open, default=-1)
            straggled = is_closed and worker in self._world.closed.get(round, ())
            self._require(straggled, f"{name} was accepted late, and it is no straggler's")
            self._require(bool(slots), f"{name} was accepted late, and what it is for had finished")
        else:
            self._require(is_open, f"{name} was accepted while {self._open} was open")
        once = {(round, slot) for slot in slots} if self._world.dealt else {(round, worker)}
        self._require(not once & self._settled, f"{name} was accepted, and is the second")
        self._settled |= once
        tasks = self._tasks.get((round, worker), {})
        self._accepted |= {(worker, round, slot): tasks[slot] for slot in slots}

    def _of_use(self, round: int, worker: int) -> Set[int]:
        """Return the slots of a task whose jobs have not finished."""
        tasks = self._tasks.get((round, worker), {})
        return {slot for slot, task in tasks.items() if task.job not in self._finished}

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise Violation(message)


def write(world: World, seen: Seen) -> None:
    """Have what is seen be on the world's record."""
    about = seen.event if isinstance(seen, Drop) else seen
    address = [getattr(about, name, "") for name in ("round", "worker", "attempt", "job")]
    extra: object = getattr(about, "kind", "") or getattr(about, "reason", "")
    if isinstance(seen, ports.Close):
        extra = (seen.record.reason, np.flatnonzero(~seen.record.responded).tolist())
    world.record.add(type(seen).__name__, *address, extra, f"{world.clock.at:.9f}")


def is_as_asked(answer: Arrival, slot: int, sent: FloatArray) -> bool:
    """Say whether a result is what was sent, with zeros for what is too large of it."""
    result, sent = answer.results[slot].astype(float), sent.astype(float)
    if np.linalg.norm(sent) <= MAX_NORM:
        return np.array_equal(result, sent)
    same = result.shape == sent.shape and bool(((result == sent) | (result == 0)).all())
    return same and bool(answer.flaws) and bool(np.linalg.norm(result) <= MAX_NORM)

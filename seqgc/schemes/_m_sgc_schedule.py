"""A run of M-SGC: what has been received of each job in flight, and what that leaves to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from seqgc.ports import BoolArray, Decoding, IntArray, MiniTask, Payload, Term
from seqgc.schemes._assignment import Assignment, MiniTasks
from seqgc.schemes._schedule import Schedule
from seqgc.schemes.gc import held, terms_of
from seqgc.stragglers import StragglerModel

if TYPE_CHECKING:
    from seqgc.schemes.m_sgc import MSGC

__all__ = ["MSGCSchedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobState:
    """What has been received of one job."""

    received_in: IntArray  # (n, W-1) the slot in which a D1 chunk's gradient came, where `received`
    received: BoolArray  # (n, W-1)
    owed: IntArray  # (n,) how many D1 gradients were asked of a worker and have not been received
    coded: BoolArray  # (B, n) whose coded result of a D2 group came (always in slot W-1+g)
    is_lost: bool  # a D2 group was asked for, and cannot be decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A job in flight in the open round, and its slot there.

    What workers were ``asked`` for follows from what had been received when the round opened; the
    ``state`` is of now: answers to earlier rounds may have come since.
    """

    job: int
    slot: int
    asked: _JobState
    state: _JobState


class MSGCSchedule(Schedule):
    """Slot ``j`` of round ``t`` belongs to job ``t - j``.

    First come the uncoded chunks, once each; then what is missing of them, or else the coded
    results of the D2 groups.
    """

    def __init__(
        self, scheme: MSGC, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._scheme, self._code = scheme, scheme.code
        self._reach = scheme.delay + 1  # no job is in flight for longer, and each is on its own
        self._first_adaptive, self._last_slot = scheme.W - 1, scheme.delay
        self.takes_late = scheme.late == "take"
        self._asked_in: dict[int, dict[int, _JobState]] = {}  # closed rounds', by job, if so
        # Whose D1 chunk, and whose part of a D2 group, holds no data point.
        self._void: BoolArray = np.zeros((scheme.n, scheme.W - 1), dtype=np.bool_)
        self._void_coded: BoolArray = np.zeros((scheme.B, scheme.n), dtype=np.bool_)
        self._coded_is_whole = True
        self._finished: dict[int, _JobState] = {}
        self._begin_at(0)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        if job not in self._finished:
            raise self._not_finished(job)
        state = self._finished[job]
        terms = [
            Term(worker=i, round=job + slot, slot=slot, weight=1.0)
            for i, slots in enumerate(state.received_in.tolist())
            for chunk, slot in enumerate(slots)
            if not self._void[i, chunk]
        ]
        if self._code is not None:
            for slot, answered in enumerate(state.coded, self._first_adaptive):
                vector = self._code.usable_vector(answered, payload).vector
                weights = np.where(self._void_coded[slot - self._first_adaptive], 0.0, vector)
                terms += terms_of(weights, np.full(self.n, job + slot), slot=slot)
        return Decoding(job=job, terms=tuple(terms))

    def _in_flight(self, round: int, states: Mapping[int, _JobState]) -> list[_Flight]:
        """Return the jobs in flight in a round, the oldest first, given those under way before."""
        if round < self.num_jobs:
            states = {**states, round: self._new_job}
        return [
            _Flight(job=job, slot=round - job, asked=state, state=state)
            for job, state in sorted(states.items())
        ]

    def _leave_out(self, empty: BoolArray) -> bool:
        d1 = self._void.size
        self._void = empty[:d1].reshape(self._void.shape)
        self._excused = np.logical_and.reduce(self._void, axis=1)
        if self._code is not None:
            filled = (~empty[d1:]).astype(np.intp).reshape(self._scheme.B, -1)
            self._void_coded = np.stack([held(self._code, group) == 0 for group in filled])
            self._coded_is_whole = not self._void_coded.any()
            self._excused &= self._void_coded.all(axis=0)
        self._begin_at(0)
        return not self._coded_is_whole or bool(self._void.any())

    def _begin_at(self, round: int) -> None:
        self._new_job = _JobState(
            received_in=np.zeros(self._void.shape, dtype=np.intp),
            received=self._void,
            owed=np.zeros(self.n, dtype=np.intp),
            coded=np.zeros(self._void_coded.shape, dtype=np.bool_),
            is_lost=False,
        )
        self._open = self._in_flight(round, {})

    def _assign(self) -> Assignment:
        flights = self._open[::-1]
        busy = np.zeros(self.n, dtype=np.bool_)
        for flight in flights:
            busy |= self._busy(flight.slot, flight.asked)

        def tasks_of(worker: int) -> MiniTasks:
            chosen = [(f, self._template(worker, f.slot, f.asked)) for f in flights]
            return tuple(replace(task, job=f.job, slot=f.slot) for f, task in chosen if task)

        return Assignment(busy, tasks_of)

    def _busy(self, slot: int, state: _JobState) -> BoolArray:
        """Return where `_template` is a mini-task, (n,)."""
        if slot < self._first_adaptive:
            return ~self._void[:, slot]
        busy: BoolArray = state.owed > 0
        if self._code is not None:
            busy |= ~self._void_coded[slot - self._first_adaptive]
        return busy

    def _template(self, worker: int, slot: int, state: _JobState) -> MiniTask | None:
        """Return what a worker does for a job in a slot, for job 0 and slot 0; None: nothing."""
        uncoded, group = self._scheme.uncoded_tasks[worker], slot - self._first_adaptive
        if group < 0:
            return None if self._void[worker, slot] else uncoded[slot]
        if state.owed[worker]:
            return uncoded[int(state.received[worker].argmin())]
        if self._code is None or self._void_coded[group, worker]:
            return None
        return self._scheme.coded_tasks[worker][group]

    def _brought(self, flight: _Flight, responded: BoolArray) -> tuple[IntArray, IntArray]:
        """Return whose answers bring a D1 gradient that is missing, (m,), and which of theirs."""
        if flight.slot < self._first_adaptive:
            missing = responded & ~flight.state.received[:, flight.slot]
            workers: IntArray = missing.nonzero()[0]
            return workers, np.full(len(workers), flight.slot)
        workers = (responded & (flight.asked.owed > 0)).nonzero()[0]
        chunks = flight.asked.received[workers].argmin(axis=1)
        if flight.state is flight.asked:  # nothing has come since the round opened
            return workers, chunks
        left = ~flight.state.received[workers, chunks]
        return workers[left], chunks[left]

    def _owed_after(self, flight: _Flight, responded: BoolArray) -> IntArray:
        owed = flight.state.owed
        if flight.slot < self._first_adaptive:
            more: IntArray = owed + ~(responded | self._void[:, flight.slot])
            return more
        if flight.state is flight.asked:
            fewer: IntArray = owed - (responded & (owed > 0))
            return fewer
        left = owed.copy()
        left[self._brought(flight, responded)[0]] -= 1
        return left

    def _coded_by(self, flight: _Flight, responded: BoolArray) -> BoolArray:
        """Return whose coded result comes in a slot for them: who owes a D1 gradient sends that."""
        coded: BoolArray = responded & (flight.asked.owed == 0)
        if not self._coded_is_whole:
            coded |= self._void_coded[flight.slot - self._first_adaptive]
        return coded

    def _after(self, flight: _Flight, responded: BoolArray) -> _JobState:
        """Return what has been received of the job once the round has closed with these answers."""
        slot, state = flight.slot, flight.state
        received_in, received = state.received_in.copy(), state.received.copy()
        coded, is_lost = state.coded, state.is_lost
        if slot >= self._first_adaptive:
            group, coded = slot - self._first_adaptive, coded.copy()
            coded[group] = self._coded_by(flight, responded)
            is_lost |= not self._decodes(coded[group])
        brought = self._brought(flight, responded)
        received_in[brought], received[brought] = slot, True
        return _JobState(
            received_in=received_in,
            received=received,
            owed=self._owed_after(flight, responded),
            coded=coded,
            is_lost=is_lost,
        )

    def _decodes(self, answered: BoolArray) -> bool:
        return self._code is None or self._code.is_within(answered, 0.0, self.payload)

    def _can_finish(self, flight: _Flight, responded: BoolArray) -> bool:
        """Whether the job makes it if nobody straggles after a round with these answers.

        A worker that owes ``m`` D1 gradients spends its next ``m`` adaptive slots on them and
        answers every later group.
        """
        owed = self._owed_after(flight, responded)
        group = max(0, flight.slot + 1 - self._first_adaptive)  # the earliest still to come
        if flight.state.is_lost or np.count_nonzero(owed > self._scheme.B - group):
            return False
        if group and not self._decodes(self._coded_by(flight, responded)):
            return False
        if self._coded_is_whole:  # the earliest group still to come is the hardest to decode
            return group == self._scheme.B or self._decodes(owed == 0)
        to_come = self._void_coded[group:]
        return all(self._decodes((owed <= turn) | void) for turn, void in enumerate(to_come))

    def _feasible(self, responded: BoolArray) -> bool:
        return all(self._can_finish(flight, responded) for flight in self._open)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        going_on: dict[int, _JobState] = {}
        finished: dict[int, _JobState] = {}
        for flight in self._open:
            slot = flight.slot
            if slot == self._last_slot and not self._can_finish(flight, responded):
                raise self._late(flight.job)
            state = self._after(flight, responded)
            is_received = slot >= self._first_adaptive - 1 and not np.count_nonzero(state.owed)
            is_complete = is_received and (self._code is None or slot == self._last_slot)
            (finished if is_complete else going_on)[flight.job] = state
        if self.takes_late:
            asked = {flight.job: flight.asked for flight in self._open}
            before = self._asked_in | {self._round: asked}
            first = self._round + 1 - self._last_slot  # of those in which a job in flight began
            self._asked_in = {round: before[round] for round in before if round >= first}
        self._open, self._finished = self._in_flight(self._round + 1, going_on), finished
        return tuple(finished)

    # ---- answers to closed rounds ----------------------------------------------------------------

    def _new(self, round: int, worker: int, flight: _Flight) -> int | None:
        """Return which D1 chunk of its own, or -1: coded result, a late answer brings to a job.

        None: nothing that is not here.
        """
        if not (flight.job <= round and flight.job in self._asked_in.get(round, {})):
            return None
        slot, asked, state = round - flight.job, self._asked_in[round][flight.job], flight.state
        if slot >= self._first_adaptive and not asked.owed[worker]:
            is_here = self._code is None or state.coded[slot - self._first_adaptive, worker]
            return None if is_here else -1
        chunk = slot
        if slot >= self._first_adaptive:
            chunk = int(asked.received[worker].argmin())
        return None if state.received[worker, chunk] else chunk

    def _awaits(self, round: int, worker: int) -> bool:
        return any(self._new(round, worker, flight) is not None for flight in self._open)

    def _take_late(self, round: int, worker: int) -> None:
        self._open = [
            flight if chunk is None else replace(flight, state=self._with(flight, round, i, chunk))
            for flight in self._open
            for i, chunk in [(worker, self._new(round, worker, flight))]
        ]

    def _with(self, flight: _Flight, round: int, worker: int, chunk: int) -> _JobState:
        """Return what has been received of a job with what `_new` says that has come late."""
        state, slot = flight.state, round - flight.job
        if chunk < 0:
            coded = state.coded.copy()
            coded[slot - self._first_adaptive, worker] = True
            due = coded[: max(0, flight.slot - self._first_adaptive)]
            return replace(state, coded=coded, is_lost=not all(map(self._decodes, due)))
        received_in, received = state.received_in.copy(), state.received.copy()
        owed = state.owed.copy()
        received_in[worker, chunk], received[worker, chunk] = slot, True
        owed[worker] -= 1
        return replace(state, received_in=received_in, received=received, owed=owed)

    def _asked(self, round: int) -> Assignment:
        def tasks_of(worker: int) -> MiniTasks:
            tasks = []
            for flight in self._open[::-1]:
                if self._new(round, worker, flight) is not None:
                    slot, asked = round - flight.job, self._asked_in[round][flight.job]
                    if (task := self._template(worker, slot, asked)) is not None:
                        tasks.append(replace(task, job=flight.job, slot=slot))
            return tuple(tasks)

        awaited = np.array([self.awaits(round, worker) for worker in range(self.n)])
        return Assignment(awaited, tasks_of)

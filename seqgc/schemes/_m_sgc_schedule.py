"""What an M-SGC run has received of each job, and what that makes of the next round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from seqgc.codes import GradientCode
from seqgc.ports import BoolArray, Decoding, IntArray, MiniTask, Payload, Term
from seqgc.schemes._assignment import Assignment, MiniTasks
from seqgc.schemes._contract import Schedule
from seqgc.schemes.gc import held
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


_Flight: TypeAlias = tuple[int, int, _JobState]
"""A job in flight, its slot in the open round, and what has been received of it."""


class MSGCSchedule(Schedule):
    """Slot ``j`` of round ``t`` belongs to job ``t - j``.

    First come the uncoded chunks, once each; then what is missing of them, or else the coded
    results of the D2 groups.
    """

    def __init__(
        self, scheme: MSGC, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._scheme = scheme
        self._first_adaptive = scheme.W - 1
        self._last_slot = scheme.delay
        # Whose D1 chunk, and whose part of a D2 group, holds no data point.
        self._void: BoolArray = np.zeros((scheme.n, scheme.W - 1), dtype=np.bool_)
        self._void_coded: BoolArray = np.zeros((scheme.B, scheme.n), dtype=np.bool_)
        self._coded_is_whole = True
        self._finished: dict[int, _JobState] = {}
        self._open = self._in_flight(0, {})

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        if job not in self._finished:
            raise self._not_finished(job)
        progress = self._finished[job]
        terms = [
            Term(worker=i, round=job + slot, slot=slot, weight=1.0)
            for i, slots in enumerate(progress.received_in.tolist())
            for chunk, slot in enumerate(slots)
            if not self._void[i, chunk]
        ]
        if self._scheme.code is not None:
            for group, answered in enumerate(progress.coded):
                vector = self._scheme.code.usable_vector(answered, payload).vector
                weights = np.where(self._void_coded[group], 0.0, vector)
                slot = self._first_adaptive + group
                terms += [
                    Term(worker=i, round=job + slot, slot=slot, weight=weight)
                    for i, weight in enumerate(weights.tolist())
                    if weight
                ]
        return Decoding(job=job, terms=tuple(terms))

    def _in_flight(self, round: int, progress: dict[int, _JobState]) -> list[_Flight]:
        """Return the jobs in flight in a round, the oldest first, given those under way before."""
        nothing = _JobState(
            received_in=np.zeros(self._void.shape, dtype=np.intp),
            received=self._void,
            owed=np.zeros(self.n, dtype=np.intp),
            coded=np.zeros(self._void_coded.shape, dtype=np.bool_),
            is_lost=False,
        )
        known = progress | ({round: nothing} if self._is_job(round) else {})
        return [(job, round - job, each) for job, each in sorted(known.items())]

    def _leave_out(self, empty: BoolArray) -> bool:
        code, d1 = self._scheme.code, self._void.size
        self._void = empty[:d1].reshape(self._void.shape)
        self._excused = np.logical_and.reduce(self._void, axis=1)
        if code is not None:
            filled = (~empty[d1:]).astype(np.intp).reshape(self._scheme.B, -1)
            self._void_coded = np.stack([held(code, group) == 0 for group in filled])
            self._coded_is_whole = not self._void_coded.any()
            self._excused &= self._void_coded.all(axis=0)
        self._open = self._in_flight(0, {})
        return not self._coded_is_whole or bool(self._void.any())

    def _assign(self) -> Assignment:
        jobs = self._open[::-1]
        busy = np.zeros(self.n, dtype=np.bool_)
        for _, slot, progress in jobs:
            busy |= self._busy(slot, progress)

        def tasks_of(worker: int) -> MiniTasks:
            chosen = [(job, slot, self._template(worker, slot, p)) for job, slot, p in jobs]
            return tuple(replace(task, job=job, slot=slot) for job, slot, task in chosen if task)

        return Assignment(busy, tasks_of)

    def _busy(self, slot: int, progress: _JobState) -> BoolArray:
        """Return where `_template` is a mini-task, (n,)."""
        if slot < self._first_adaptive:
            return ~self._void[:, slot]
        busy: BoolArray = progress.owed > 0
        if self._scheme.code is not None:
            busy |= ~self._void_coded[slot - self._first_adaptive]
        return busy

    def _template(self, worker: int, slot: int, progress: _JobState) -> MiniTask | None:
        """Return what a worker does for a job in a slot, for job 0 and slot 0; None: nothing."""
        uncoded, group = self._scheme.uncoded_tasks[worker], slot - self._first_adaptive
        if group < 0:
            return None if self._void[worker, slot] else uncoded[slot]
        if progress.owed[worker]:
            return uncoded[int(progress.received[worker].argmin())]
        if self._scheme.code is None or self._void_coded[group, worker]:
            return None
        return self._scheme.coded_tasks[worker][group]

    def _owed_after(self, slot: int, progress: _JobState, responded: BoolArray) -> IntArray:
        if slot < self._first_adaptive:
            late: IntArray = progress.owed + ~(responded | self._void[:, slot])
            return late
        owed: IntArray = progress.owed - (responded & (progress.owed > 0))
        return owed

    def _coded_by(self, slot: int, progress: _JobState, responded: BoolArray) -> BoolArray:
        """Return whose coded result comes in a slot for them: who owes a D1 gradient sends that."""
        coded: BoolArray = responded & (progress.owed == 0)
        if not self._coded_is_whole:
            coded |= self._void_coded[slot - self._first_adaptive]
        return coded

    def _after(self, slot: int, progress: _JobState, responded: BoolArray) -> _JobState:
        """Return the job's progress once the round has closed with these answers."""
        received_in, received = progress.received_in.copy(), progress.received.copy()
        coded, is_lost = progress.coded, progress.is_lost
        if slot < self._first_adaptive:
            received_in[responded, slot] = slot
            received[responded, slot] = True
        else:
            repeated = np.flatnonzero(responded & (progress.owed > 0))
            chunks = received[repeated].argmin(axis=1)
            received_in[repeated, chunks] = slot
            received[repeated, chunks] = True
            coded = coded.copy()
            answered = self._coded_by(slot, progress, responded)
            coded[slot - self._first_adaptive] = answered
            is_lost |= not self._decodes(answered)
        owed = self._owed_after(slot, progress, responded)
        return _JobState(
            received_in=received_in, received=received, owed=owed, coded=coded, is_lost=is_lost
        )

    def _decodes(self, answered: BoolArray) -> bool:
        return self._scheme.code is None or self._scheme.code.can_decode(answered)

    def _can_finish(self, slot: int, progress: _JobState, responded: BoolArray) -> bool:
        """Whether the job makes it if nobody straggles after a round with these answers.

        A worker that owes ``m`` D1 gradients spends its next ``m`` adaptive slots on them and
        answers every later group.
        """
        owed = self._owed_after(slot, progress, responded)
        group = max(0, slot + 1 - self._first_adaptive)  # the earliest still to come
        if progress.is_lost or owed.max() > self._scheme.B - group:
            return False
        asked = slot >= self._first_adaptive
        if asked and not self._decodes(self._coded_by(slot, progress, responded)):
            return False
        if self._coded_is_whole:  # the earliest group still to come is the hardest to decode
            return group == self._scheme.B or self._decodes(owed == 0)
        to_come = self._void_coded[group:]
        return all(self._decodes((owed <= turn) | void) for turn, void in enumerate(to_come))

    def _feasible(self, responded: BoolArray) -> bool:
        return all(self._can_finish(slot, progress, responded) for _, slot, progress in self._open)

    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        code = self._scheme.code
        if code is None:
            return []
        return [
            (code, self._coded_by(slot, progress, responded))
            for _, slot, progress in self._open
            if slot >= self._first_adaptive
        ]

    def _is_complete(self, slot: int, progress: _JobState) -> bool:
        is_received = slot >= self._first_adaptive - 1 and not progress.owed.any()
        return is_received and (self._scheme.code is None or slot == self._last_slot)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        going_on: dict[int, _JobState] = {}
        finished: dict[int, _JobState] = {}
        for job, slot, before in self._open:
            if slot == self._last_slot and not self._can_finish(slot, before, responded):
                raise self._late(job)
            progress = self._after(slot, before, responded)
            (finished if self._is_complete(slot, progress) else going_on)[job] = progress
        self._open, self._finished = self._in_flight(self._round + 1, going_on), finished
        return tuple(finished)

"""M-SGC: multiplexed sequential gradient coding (paper, section 3.3 and Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._assignment import Assignment, MiniTasks
from seqgc.schemes._base import Schedule, Scheme, require_bursts, require_family
from seqgc.schemes._grid import Grid
from seqgc.schemes._registry import register
from seqgc.schemes.gc import coded_mini_task
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, StragglerModel

__all__ = ["MSGC", "MSGCSchedule"]


@register("m-sgc-binary", family="binary")
@register("m-sgc-rep", family="rep")
@register("m-sgc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class MSGC(Scheme):
    """(B, W, lam) multiplexed sequential gradient coding; delay W - 2 + B.

    Parameters
    ----------
    n : int
        Workers.
    B, W : int
        Burst length and window, ``1 <= B < W``.
    lam : int
        Distinct stragglers in a window, ``0 <= lam <= n``.
    family : {"cyclic", "rep", "binary"}
        The code of the D2 groups; ``rep`` (M-SGC-Rep) needs ``(lam+1) | n``, ``binary`` only
        ``lam < n``. Without D2, for ``lam = n``, there is nothing to encode: that is ``cyclic``'s.

    Examples
    --------
    >>> scheme = MSGC(n=256, B=1, W=2, lam=27)
    >>> scheme.delay, round(scheme.normalized_load, 6)
    (1, 0.007543)
    >>> round(MSGC(n=256, B=1, W=2, lam=27, family="binary").normalized_load, 6)
    0.007547
    """

    n: int
    B: int
    W: int
    lam: int
    family: str = "cyclic"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n", "B", "W", "lam")
        require_bursts(n=self.n, B=self.B, name="M-SGC")
        require_family(self.family, ("cyclic", "rep", "binary"), name="M-SGC")
        if self.W <= self.B:
            raise ParameterError("W", f"must satisfy B < W (M-SGC), B={self.B}", self.W)
        if not 0 <= self.lam <= self.n:
            raise ParameterError("lam", f"must satisfy 0 <= lam <= n (M-SGC), n={self.n}", self.lam)
        if self.family == "rep" and self.n % (self.lam + 1):
            rule = f"must satisfy (lam+1) | n (M-SGC-Rep), n={self.n}"
            raise ParameterError("lam", rule, self.lam, "or take m-sgc-binary")
        if self.family == "binary" and self.lam == self.n:
            rule = f"must satisfy 0 <= lam < n (M-SGC-Binary), n={self.n}"
            raise ParameterError("lam", rule, self.lam, "or take m-sgc")

    @property
    def delay(self) -> int:
        return self.W - 2 + self.B

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads((self.W - 1 + self.B) * self._d1_fraction)

    @property
    def _d1_fraction(self) -> float:
        """Share of the batch of a D1 chunk, which is also the most that a mini-task touches.

        There are (W-1) n such chunks. A D2 group holds `_d2_results` times as much, so that its
        coded results, which touch that part of it, are as large (docs/mathematics.md, section 3.3).
        """
        return 1 / ((self.W - 1) * self.n + self.B * self._d2_results)

    @property
    def _d2_results(self) -> float:
        """Least number of coded results that cover a D2 group: 1 over the load of its code."""
        if self.lam == self.n:
            return 0.0
        least = self.n / (self.lam + 1)
        return math.floor(least) if self.family == "binary" else least

    @property
    def tolerated(self) -> int:
        return self.lam

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._chunk_fractions

    @cached_property
    def _chunk_fractions(self) -> FloatArray:
        d1 = np.full((self.W - 1) * self.n, self._d1_fraction)
        groups: list[FloatArray] = []
        if self.code is not None:
            group_fraction = self._d2_results * self._d1_fraction
            groups = [group_fraction * self.code.chunk_fractions] * self.B
        fractions = np.concatenate([d1, *groups])
        fractions.flags.writeable = False
        return fractions

    @property
    def promise(self) -> StragglerModel:
        span = self.W - 1 + self.B
        bursty = Bursty(B=self.B, W=self.W, lam=self.lam)
        return AnyOf(span=span, models=(bursty, Arbitrary(N=self.B, W=span, lam=self.lam)))

    @cached_property
    def code(self) -> GradientCode | None:
        """The (n, lam) code of every D2 group; None for lam = n, where there is no D2."""
        return None if self.lam == self.n else make_code(self.family, self.n, self.lam)

    @cached_property
    def uncoded_tasks(self) -> tuple[tuple[MiniTask, ...], ...]:
        """[worker][chunk]: the mini-tasks on the worker's own D1 chunks, for job 0 and slot 0.

        Every D1 chunk enters the gradient as it is: they are the places of cover 0.
        """
        return tuple(
            tuple(_uncoded_task(i * (self.W - 1) + c) for c in range(self.W - 1))
            for i in range(self.n)
        )

    @cached_property
    def coded_tasks(self) -> tuple[tuple[MiniTask, ...], ...]:
        """[worker][group]: the mini-tasks on the D2 groups, for job 0 and slot 0.

        The covers of the groups' codes follow cover 0, group after group.
        """
        if self.code is None:
            return ((),) * self.n
        code, first_chunk = self.code, (self.W - 1) * self.n
        return tuple(
            tuple(_coded_task(code, i, group, after=first_chunk) for group in range(self.B))
            for i in range(self.n)
        )

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return MSGCSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        for delay in grid.values(1, grid.max_delay):
            for B in grid.values(1, (delay + 1) // 2):  # 1 <= B < W
                W = delay + 2 - B
                for size in (1, *grid.divisors(n)):
                    yield cls(n=n, B=B, W=W, lam=size - 1, family="rep")
                for lam in grid.values(0, n - 1):
                    yield cls(n=n, B=B, W=W, lam=lam, family="binary")
                for lam in grid.values(0, n):
                    yield cls(n=n, B=B, W=W, lam=lam)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """What has been received of one job."""

    received_in: IntArray  # (n, W-1) the slot in which a D1 chunk's gradient came, where `received`
    received: BoolArray  # (n, W-1)
    owed: IntArray  # (n,) how many D1 gradients were asked of a worker and have not been received
    coded: BoolArray  # (B, n) whose coded result of a D2 group came (always in slot W-1+g)
    is_lost: bool  # a D2 group was asked for, and cannot be decoded


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
        self._nothing = _Progress(
            received_in=np.zeros((scheme.n, scheme.W - 1), dtype=np.intp),
            received=np.zeros((scheme.n, scheme.W - 1), dtype=np.bool_),
            owed=np.zeros(scheme.n, dtype=np.intp),
            coded=np.zeros((scheme.B, scheme.n), dtype=np.bool_),
            is_lost=False,
        )
        self._progress: dict[int, _Progress] = {}
        self._finished: dict[int, _Progress] = {}

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        if job not in self._finished:
            raise self._not_finished(job)
        progress = self._finished[job]
        terms = [
            Term(worker=i, round=job + slot, slot=slot, weight=1.0)
            for i, slots in enumerate(progress.received_in.tolist())
            for slot in slots
        ]
        if self._scheme.code is not None:
            for group, answered in enumerate(progress.coded):
                weights = self._scheme.code.usable_vector(answered, payload).vector
                slot = self._first_adaptive + group
                terms += [
                    Term(worker=i, round=job + slot, slot=slot, weight=weight)
                    for i, weight in enumerate(weights.tolist())
                    if weight
                ]
        return Decoding(job=job, terms=tuple(terms))

    def _open_jobs(self) -> list[tuple[int, int, _Progress]]:
        """(job, slot, progress) of the jobs in flight in the open round, the oldest first."""
        slots = range(self._last_slot, -1, -1)
        jobs = [(self._round - slot, slot) for slot in slots if self._is_job(self._round - slot)]
        return [
            (job, slot, self._progress[job] if slot else self._nothing)
            for job, slot in jobs
            if job in self._progress or slot == 0
        ]

    def _assign(self) -> Assignment:
        jobs = self._open_jobs()[::-1]
        busy = np.zeros(self.n, dtype=np.bool_)
        for _, slot, progress in jobs:
            is_coded = self._scheme.code is not None
            busy |= True if slot < self._first_adaptive or is_coded else progress.owed > 0

        def tasks_of(worker: int) -> MiniTasks:
            chosen = [(job, slot, self._template(worker, slot, p)) for job, slot, p in jobs]
            return tuple(replace(task, job=job, slot=slot) for job, slot, task in chosen if task)

        return Assignment(busy, tasks_of)

    def _template(self, worker: int, slot: int, progress: _Progress) -> MiniTask | None:
        """Return what a worker does for a job in a slot, for job 0 and slot 0; None: nothing."""
        if slot < self._first_adaptive:
            return self._scheme.uncoded_tasks[worker][slot]
        if progress.owed[worker]:
            return self._scheme.uncoded_tasks[worker][int(progress.received[worker].argmin())]
        if self._scheme.code is None:
            return None
        return self._scheme.coded_tasks[worker][slot - self._first_adaptive]

    def _owed_after(self, slot: int, progress: _Progress, responded: BoolArray) -> IntArray:
        if slot < self._first_adaptive:
            return progress.owed + ~responded
        return progress.owed - (responded & (progress.owed > 0))

    def _coded_by(self, progress: _Progress, responded: BoolArray) -> BoolArray:
        """Return whose coded result comes in a slot for them: who owes a D1 gradient sends that."""
        coded_by: BoolArray = responded & (progress.owed == 0)
        return coded_by

    def _after(self, slot: int, progress: _Progress, responded: BoolArray) -> _Progress:
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
            answered = coded[slot - self._first_adaptive] = self._coded_by(progress, responded)
            is_lost |= not self._decodes(answered)
        owed = self._owed_after(slot, progress, responded)
        return _Progress(
            received_in=received_in, received=received, owed=owed, coded=coded, is_lost=is_lost
        )

    def _decodes(self, answered: BoolArray) -> bool:
        return self._scheme.code is None or self._scheme.code.can_decode(answered)

    def _can_finish(self, slot: int, progress: _Progress, responded: BoolArray) -> bool:
        """Whether the job makes it if nobody straggles after a round with these answers.

        A worker that owes ``m`` D1 gradients spends its next ``m`` adaptive slots on them and
        answers every later group, so the earliest group still to come is the hardest to decode.
        """
        owed = self._owed_after(slot, progress, responded)
        left = self._last_slot - max(slot, self._first_adaptive - 1)
        if progress.is_lost or owed.max() > left:
            return False
        if slot >= self._first_adaptive and not self._decodes(self._coded_by(progress, responded)):
            return False
        return left == 0 or self._decodes(owed == 0)

    def _feasible(self, responded: BoolArray) -> bool:
        return all(
            self._can_finish(slot, progress, responded) for _, slot, progress in self._open_jobs()
        )

    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        code = self._scheme.code
        if code is None:
            return []
        return [
            (code, self._coded_by(progress, responded))
            for _, slot, progress in self._open_jobs()
            if slot >= self._first_adaptive
        ]

    def _is_complete(self, slot: int, progress: _Progress) -> bool:
        is_received = slot >= self._first_adaptive - 1 and not progress.owed.any()
        return is_received and (self._scheme.code is None or slot == self._last_slot)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        going_on: dict[int, _Progress] = {}
        finished: dict[int, _Progress] = {}
        for job, slot, before in self._open_jobs():
            if slot == self._last_slot and not self._can_finish(slot, before, responded):
                raise self._late(job)
            progress = self._after(slot, before, responded)
            (finished if self._is_complete(slot, progress) else going_on)[job] = progress
        self._progress, self._finished = going_on, finished
        return tuple(finished)


def _uncoded_task(chunk: int) -> MiniTask:
    chunks, coefficients = np.array([chunk], dtype=np.intp), np.ones(1)
    for array in (chunks, coefficients):
        array.flags.writeable = False
    return MiniTask(job=0, slot=0, chunks=chunks, coefficients=coefficients, cover=0, place=chunk)


def _coded_task(code: GradientCode, worker: int, group: int, *, after: int) -> MiniTask:
    """Worker's coded result of a D2 group, whose groups of chunks begin ``after`` D1's chunks."""
    first_chunk = after + group * code.chunk_fractions.size
    task = coded_mini_task(code, worker, 0, first_chunk=first_chunk)
    if task.cover is None:
        return task
    return replace(task, cover=1 + group * len(code.covers) + task.cover)

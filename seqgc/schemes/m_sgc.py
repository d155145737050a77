"""M-SGC: multiplexed sequential gradient coding (paper, section 3.3 and Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._assignment import Assignment, MiniTasks
from seqgc.schemes._contract import Schedule, Scheme
from seqgc.schemes._grid import Grid
from seqgc.schemes._registry import register
from seqgc.schemes.gc import coded_mini_task, held, require_family, terms_of
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, StragglerModel

__all__ = ["MSGC", "MSGCSchedule"]

_MOST_CHUNKS = 2**22  # D1 has (W-1) n of them, and their fractions are an array


@register("m-sgc-binary", family="binary")
@register("m-sgc-rep", family="rep")
@register("m-sgc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class MSGC(Scheme):
    """(B, W, lam) multiplexed sequential gradient coding; delay W - 2 + B.

    For bursts of ``B`` rounds and at most ``lam`` distinct stragglers in a window of ``W``, where
    ``1 <= B < W``, ``0 <= lam <= n``. The code of the D2 groups is of the ``family`` ``cyclic``,
    ``rep`` (M-SGC-Rep: ``(lam+1) | n``) or ``binary`` (``lam < n``). For ``lam = n`` there is no
    D2, nothing to encode: that is ``cyclic``'s.

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
        if self.B < 1:
            raise ParameterError("B", "must be >= 1 (M-SGC)", self.B)
        require_family(self.family, ("cyclic", "rep", "binary"), name="M-SGC")
        if self.W <= self.B:
            raise ParameterError("W", f"must satisfy B < W (M-SGC), B={self.B}", self.W)
        if self.n * self.W > _MOST_CHUNKS:
            rule = f"must satisfy n * W <= {_MOST_CHUNKS} (M-SGC), n={self.n}"
            raise ParameterError("W", rule, self.W)
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

    @cached_property
    def chunk_fractions(self) -> FloatArray:
        groups: list[FloatArray] = []
        if self.code is not None:
            groups = [self._d2_results * self._d1_fraction * self.code.chunk_fractions] * self.B
        fractions = np.concatenate([np.full((self.W - 1) * self.n, self._d1_fraction), *groups])
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
    def uncoded_tasks(self) -> tuple[MiniTasks, ...]:
        """[worker][chunk]: the mini-tasks on the worker's own D1 chunks, for job 0 and slot 0.

        Every D1 chunk enters the gradient as it is: they are the places of cover 0.
        """
        own, one = np.arange((self.W - 1) * self.n).reshape(self.n, -1, 1), np.ones(1)
        own.flags.writeable = one.flags.writeable = False
        form = MiniTask(job=0, slot=0, chunks=own[0, 0], coefficients=one, cover=0)
        return tuple(
            tuple(replace(form, chunks=chunk, place=int(chunk[0])) for chunk in chunks)
            for chunks in own
        )

    @cached_property
    def coded_tasks(self) -> tuple[MiniTasks, ...]:
        """[worker][group]: the mini-tasks on the D2 groups, for job 0 and slot 0.

        The groups' chunks follow those of D1, and their codes' covers follow cover 0.
        """
        if self.code is None:
            return ((),) * self.n
        code, tasks = self.code, []
        for worker, group in np.ndindex(self.n, self.B):
            first_chunk = (self.W - 1) * self.n + group * code.chunk_fractions.size
            task = coded_mini_task(code, worker, 0, first_chunk=first_chunk)
            if task.cover is not None:
                task = replace(task, cover=1 + group * len(code.covers) + task.cover)
            tasks.append(task)
        return tuple(tuple(tasks[i : i + self.B]) for i in range(0, len(tasks), self.B))

    def points_touched(self, sizes: IntArray) -> IntArray:
        d1 = sizes[: (self.W - 1) * self.n].reshape(self.n, -1)
        again = d1.max(axis=1)  # what a slot costs that repeats a D1 chunk
        touched: IntArray = d1.sum(axis=1) + self.B * again
        if self.code is not None:
            for group in sizes[d1.size :].reshape(self.B, -1):
                touched += np.maximum(held(self.code, group) - again, 0)
        return touched

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
        self._scheme, self._code = scheme, scheme.code
        self._reach = scheme.delay + 1  # no job is in flight for longer, and each is on its own
        self._first_adaptive, self._last_slot = scheme.W - 1, scheme.delay
        # Whose D1 chunk, and whose part of a D2 group, holds no data point.
        self._void: BoolArray = np.zeros((scheme.n, scheme.W - 1), dtype=np.bool_)
        self._void_coded: BoolArray = np.zeros((scheme.B, scheme.n), dtype=np.bool_)
        self._coded_is_whole = True
        self._finished: dict[int, _JobState] = {}
        self._open = self._in_flight(0, {})

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

    def _in_flight(self, round: int, states: dict[int, _JobState]) -> list[_Flight]:
        """Return the jobs in flight in a round, the oldest first, given those under way before."""
        if round < self.num_jobs:
            new = _JobState(
                received_in=np.zeros(self._void.shape, dtype=np.intp),
                received=self._void,
                owed=np.zeros(self.n, dtype=np.intp),
                coded=np.zeros(self._void_coded.shape, dtype=np.bool_),
                is_lost=False,
            )
            states = states | {round: new}
        return [(job, round - job, state) for job, state in sorted(states.items())]

    def _leave_out(self, empty: BoolArray) -> bool:
        d1 = self._void.size
        self._void = empty[:d1].reshape(self._void.shape)
        self._excused = np.logical_and.reduce(self._void, axis=1)
        if self._code is not None:
            filled = (~empty[d1:]).astype(np.intp).reshape(self._scheme.B, -1)
            self._void_coded = np.stack([held(self._code, group) == 0 for group in filled])
            self._coded_is_whole = not self._void_coded.any()
            self._excused &= self._void_coded.all(axis=0)
        self._open = self._in_flight(0, {})
        return not self._coded_is_whole or bool(self._void.any())

    def _begin_at(self, round: int) -> None:
        self._open = self._in_flight(round, {})

    def _assign(self) -> Assignment:
        flights = self._open[::-1]
        busy = np.zeros(self.n, dtype=np.bool_)
        for _, slot, state in flights:
            busy |= self._busy(slot, state)

        def tasks_of(worker: int) -> MiniTasks:
            chosen = [(job, slot, self._template(worker, slot, s)) for job, slot, s in flights]
            return tuple(replace(task, job=job, slot=slot) for job, slot, task in chosen if task)

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

    def _owed_after(self, slot: int, state: _JobState, responded: BoolArray) -> IntArray:
        if slot < self._first_adaptive:
            more: IntArray = state.owed + ~(responded | self._void[:, slot])
            return more
        fewer: IntArray = state.owed - (responded & (state.owed > 0))
        return fewer

    def _coded_by(self, slot: int, state: _JobState, responded: BoolArray) -> BoolArray:
        """Return whose coded result comes in a slot for them: who owes a D1 gradient sends that."""
        coded: BoolArray = responded & (state.owed == 0)
        if not self._coded_is_whole:
            coded |= self._void_coded[slot - self._first_adaptive]
        return coded

    def _after(self, slot: int, state: _JobState, responded: BoolArray) -> _JobState:
        """Return what has been received of the job once the round has closed with these answers."""
        received_in, received = state.received_in.copy(), state.received.copy()
        coded, is_lost = state.coded, state.is_lost
        workers, chunks = np.flatnonzero(responded), np.asarray(slot)
        if slot >= self._first_adaptive:
            workers = np.flatnonzero(responded & (state.owed > 0))
            chunks = received[workers].argmin(axis=1)
            coded = coded.copy()
            coded[slot - self._first_adaptive] = self._coded_by(slot, state, responded)
            is_lost |= not self._decodes(coded[slot - self._first_adaptive])
        received_in[workers, chunks] = slot
        received[workers, chunks] = True
        owed = self._owed_after(slot, state, responded)
        return _JobState(
            received_in=received_in, received=received, owed=owed, coded=coded, is_lost=is_lost
        )

    def _decodes(self, answered: BoolArray) -> bool:
        return self._code is None or self._code.can_decode(answered)

    def _can_finish(self, slot: int, state: _JobState, responded: BoolArray) -> bool:
        """Whether the job makes it if nobody straggles after a round with these answers.

        A worker that owes ``m`` D1 gradients spends its next ``m`` adaptive slots on them and
        answers every later group.
        """
        owed = self._owed_after(slot, state, responded)
        group = max(0, slot + 1 - self._first_adaptive)  # the earliest still to come
        if state.is_lost or owed.max() > self._scheme.B - group:
            return False
        if group and not self._decodes(self._coded_by(slot, state, responded)):
            return False
        if self._coded_is_whole:  # the earliest group still to come is the hardest to decode
            return group == self._scheme.B or self._decodes(owed == 0)
        to_come = self._void_coded[group:]
        return all(self._decodes((owed <= turn) | void) for turn, void in enumerate(to_come))

    def _feasible(self, responded: BoolArray) -> bool:
        return all(self._can_finish(slot, state, responded) for _, slot, state in self._open)

    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        return [
            (self._code, self._coded_by(slot, state, responded))
            for _, slot, state in self._open
            if self._code is not None and slot >= self._first_adaptive
        ]

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        going_on: dict[int, _JobState] = {}
        finished: dict[int, _JobState] = {}
        for job, slot, before in self._open:
            if slot == self._last_slot and not self._can_finish(slot, before, responded):
                raise self._late(job)
            state = self._after(slot, before, responded)
            is_received = slot >= self._first_adaptive - 1 and not state.owed.any()
            is_complete = is_received and (self._code is None or slot == self._last_slot)
            (finished if is_complete else going_on)[job] = state
        self._open, self._finished = self._in_flight(self._round + 1, going_on), finished
        return tuple(finished)

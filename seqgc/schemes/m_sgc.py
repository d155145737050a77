"""M-SGC: multiplexed sequential gradient coding (spec, 3.3; paper, 3.3 and Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._base import Assignment, Schedule, Scheme, require_bursts
from seqgc.schemes.gc import coded_mini_task
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, StragglerModel

__all__ = ["MSGC", "MSGCSchedule"]

_NAMES: dict[str, str] = {"cyclic": "m-sgc", "rep": "m-sgc-rep", "binary": "m-sgc-binary"}


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
    family: Literal["cyclic", "rep", "binary"] = "cyclic"

    def __post_init__(self) -> None:
        require_bursts(n=self.n, B=self.B, W=self.W, lam=self.lam, name="M-SGC")
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
    def spec(self) -> str:
        return f"{_NAMES[self.family]}:B={self.B},W={self.W},lam={self.lam}"

    @property
    def delay(self) -> int:
        return self.W - 2 + self.B

    @property
    def normalized_load(self) -> float:
        return (self.W - 1 + self.B) * self._d1_fraction

    @property
    def _d1_fraction(self) -> float:
        """Share of the batch of a D1 chunk, which is also the most that a mini-task touches.

        There are (W-1) n such chunks. A D2 group holds `_d2_results` times as much, so that its
        coded results, which touch that part of it, are as large (spec, 3.3).
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
    def model(self) -> StragglerModel:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """What has been received of one job."""

    received_in: IntArray  # (n, W-1) the slot in which a D1 chunk's gradient came, where `received`
    received: BoolArray  # (n, W-1)
    coded: BoolArray  # (B, n) whose coded result of a D2 group came (always in slot W-1+g)


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
            (job, slot, self._progress[job] if slot else self._nothing())
            for job, slot in jobs
            if job in self._progress or slot == 0
        ]

    def _nothing(self) -> _Progress:
        n, chunks, groups = self.n, self._scheme.W - 1, self._scheme.B
        return _Progress(
            received_in=np.zeros((n, chunks), dtype=np.intp),
            received=np.zeros((n, chunks), dtype=np.bool_),
            coded=np.zeros((groups, n), dtype=np.bool_),
        )

    def _assign(self) -> Assignment:
        tasks: list[list[MiniTask]] = [[] for _ in range(self.n)]
        for job, slot, progress in reversed(self._open_jobs()):
            for worker, template in enumerate(self._slot_tasks(slot, progress)):
                if template is not None:
                    tasks[worker].append(replace(template, job=job, slot=slot))
        return tuple(tuple(row) for row in tasks)

    def _slot_tasks(self, slot: int, progress: _Progress) -> list[MiniTask | None]:
        uncoded, coded = self._scheme.uncoded_tasks, self._scheme.coded_tasks
        if slot < self._first_adaptive:
            return [row[slot] for row in uncoded]
        complete, missing = _first_missing(progress.received)
        group = slot - self._first_adaptive
        if self._scheme.code is None:
            return [None if complete[i] else uncoded[i][missing[i]] for i in range(self.n)]
        return [coded[i][group] if complete[i] else uncoded[i][missing[i]] for i in range(self.n)]

    def _after(self, slot: int, progress: _Progress, responded: BoolArray) -> _Progress:
        """Return the job's progress once the round has closed with these answers."""
        received_in, received = progress.received_in.copy(), progress.received.copy()
        coded = progress.coded
        if slot < self._first_adaptive:
            received_in[responded, slot] = slot
            received[responded, slot] = True
        else:
            complete, missing = _first_missing(received)
            repeated = np.flatnonzero(responded & ~complete)
            received_in[repeated, missing[repeated]] = slot
            received[repeated, missing[repeated]] = True
            coded = coded.copy()
            coded[slot - self._first_adaptive] = responded & complete
        return _Progress(received_in=received_in, received=received, coded=coded)

    def _can_finish(self, slot: int, progress: _Progress) -> bool:
        """Whether the job makes it if nobody straggles after slot ``slot``.

        A worker that misses ``m`` chunks spends its next ``m`` adaptive slots on them and answers
        every later group, so the earliest group still to come is the hardest to decode.
        """
        attempted = progress.received[:, : min(slot + 1, self._first_adaptive)]
        missing = attempted.shape[1] - attempted.sum(axis=1)
        left = self._last_slot - max(slot, self._first_adaptive - 1)
        if missing.max() > left:
            return False
        code = self._scheme.code
        past = max(0, slot + 1 - self._first_adaptive)
        return code is None or (
            all(code.can_decode(answered) for answered in progress.coded[:past])
            and (left == 0 or code.can_decode(missing == 0))
        )

    def _feasible(self, responded: BoolArray) -> bool:
        return all(
            self._can_finish(slot, self._after(slot, progress, responded))
            for _, slot, progress in self._open_jobs()
        )

    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        code = self._scheme.code
        if code is None:
            return []
        groups = [
            self._after(slot, progress, responded).coded[slot - self._first_adaptive]
            for _, slot, progress in self._open_jobs()
            if slot >= self._first_adaptive
        ]
        return [(code, answered) for answered in groups]

    def _is_complete(self, slot: int, progress: _Progress) -> bool:
        attempted_all = slot >= self._first_adaptive - 1 and bool(progress.received.all())
        return attempted_all and (self._scheme.code is None or slot == self._last_slot)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        going_on: dict[int, _Progress] = {}
        finished: dict[int, _Progress] = {}
        for job, slot, before in self._open_jobs():
            progress = self._after(slot, before, responded)
            if slot == self._last_slot and not self._can_finish(slot, progress):
                raise self._late(job)
            (finished if self._is_complete(slot, progress) else going_on)[job] = progress
        self._progress, self._finished = going_on, finished
        return tuple(finished)


def _first_missing(received: BoolArray) -> tuple[BoolArray, IntArray]:
    """Of (n, W-1): which workers' chunks all came, and else the first that did not; (n,) each."""
    missing = received.argmin(axis=1)
    return received[np.arange(len(received)), missing], missing


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

"""M-SGC: multiplexed sequential gradient coding (paper, section 3.3 and Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._defence import Grid
from seqgc.schemes._registry import register
from seqgc.schemes._scheme import Assignment, MiniTasks, Schedule, Scheme, require_late
from seqgc.schemes.gc import coded_mini_task, held, is_one_sum, require_family, terms_of
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, StragglerModel

__all__ = ["MSGC", "MSGCSchedule"]

_MOST_CHUNKS = 2**22  # D1 has (W-1) n chunks, whose fractions are an array


@register("m-sgc-binary", family="binary")
@register("m-sgc-rep", family="rep")
@register("m-sgc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class MSGC(Scheme):
    """(B, W, lam) multiplexed sequential gradient coding; delay W - 2 + B.

    The scheme tolerates bursts of ``B`` rounds by at most ``lam`` distinct stragglers in each
    window of ``W`` rounds, where ``1 <= B < W`` and ``0 <= lam <= n``. The uncoded part of a batch
    is D1, and the coded part is D2, which consists of ``B`` groups. The code of the D2 groups has
    the ``family`` ``cyclic``, ``rep`` (M-SGC-Rep) if ``lam + 1`` divides ``n``, or ``binary`` if
    ``lam < n``. If ``lam = n``, there is no D2, and the family must be ``cyclic``. Answers that
    come after their round, but while their jobs are in flight, are used if ``late="take"``, and
    dropped by default.

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
    late: str = "drop"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n", "B", "W", "lam")
        if self.B < 1:
            raise ParameterError("B", "must be >= 1 (M-SGC)", self.B)
        require_family(self.family, ("cyclic", "rep", "binary"), name="M-SGC")
        require_late(self.late, name="M-SGC")
        if self.W <= self.B:
            raise ParameterError("W", f"must satisfy B < W (M-SGC), B={self.B}", self.W)
        if self.n * self.W > _MOST_CHUNKS:
            rule = f"must satisfy n * W <= {_MOST_CHUNKS} (M-SGC), n={self.n}"
            raise ParameterError("W", rule, self.W)
        if not 0 <= self.lam <= self.n:
            raise ParameterError("lam", f"must satisfy 0 <= lam <= n (M-SGC), n={self.n}", self.lam)
        if self.family == "rep" and self.n % (self.lam + 1):
            rule = f"must be such that lam + 1 divides n (M-SGC-Rep), n={self.n}"
            raise ParameterError("lam", rule, self.lam, "or use m-sgc-binary")
        if self.family == "binary" and self.lam == self.n:
            rule = f"must satisfy 0 <= lam < n (M-SGC-Binary), n={self.n}"
            raise ParameterError("lam", rule, self.lam, "or use m-sgc")

    @property
    def delay(self) -> int:
        return self.W - 2 + self.B

    @property
    def same_bits(self) -> bool:
        return self.code is None or is_one_sum(self.code)

    @cached_property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads((self.W - 1 + self.B) * self._d1_fraction)

    @property
    def _d1_fraction(self) -> float:
        """The fraction of the batch in a D1 chunk, which is also the largest load of a mini-task.

        There are (W-1) n D1 chunks. A D2 group is `_d2_results` times as large as a D1 chunk, so
        that each coded result of the group has the same load (docs/mathematics.md, section 3.3).
        """
        return 1 / ((self.W - 1) * self.n + self.B * self._d2_results)

    @property
    def _d2_results(self) -> float:
        """The smallest number of coded results that cover a D2 group: 1 / (load of its code)."""
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
        """The (n, lam) code of every D2 group; None if lam = n, because then there is no D2."""
        return None if self.lam == self.n else make_code(self.family, self.n, self.lam)

    @cached_property
    def uncoded_tasks(self) -> tuple[MiniTasks, ...]:
        """The mini-tasks on D1 chunks, ``[worker][chunk of the worker]``, for job 0 and slot 0.

        All D1 chunks together form cover 0 (`seqgc.ports.MiniTask`): the gradient contains the sum
        of their uncoded results.
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
        """The mini-tasks on D2 groups, ``[worker][group]``, for job 0 and slot 0.

        The numbers of the groups' chunks follow the numbers of the D1 chunks, and the covers of
        their codes follow cover 0.
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
        repeated = d1.max(axis=1)  # the cost of a slot that repeats a D1 chunk
        touched: IntArray = d1.sum(axis=1) + self.B * repeated
        if self.code is not None:
            for group in sizes[d1.size :].reshape(self.B, -1):
                touched += np.maximum(held(self.code, group) - repeated, 0)
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
    """The results that have been received for one job."""

    received_in: IntArray  # (n, W-1) the slot of the result that is used for each received chunk
    received: BoolArray  # (n, W-1) the D1 chunks whose gradients have been received
    owed: IntArray  # (n,) the number of requested D1 gradients that each worker has not returned
    coded: BoolArray  # (B, n) the workers that returned the coded result of each D2 group
    is_lost: bool  # True if a D2 group was requested and cannot be decoded

    @property
    def parts(self) -> tuple[object, ...]:
        """The values of all fields, in the order of the fields, for snapshots."""
        return self.received_in, self.received, self.owed, self.coded, self.is_lost

    @classmethod
    def of(cls, parts: Sequence[Any]) -> _JobState:
        return cls(**dict(zip(cls.__dataclass_fields__, parts, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A job in flight in the open round, and its slot in this round.

    ``asked`` is the job's state when the round opened, which determines the tasks of the round.
    ``state`` is the job's present state, which differs if late answers to earlier rounds have come.
    """

    job: int
    slot: int
    asked: _JobState
    state: _JobState


class MSGCSchedule(Schedule):
    """A run of M-SGC, in which slot ``j`` of round ``t`` belongs to job ``t - j``.

    In slots 0 to W - 2, each D1 chunk is computed once. In the later slots, which are called
    adaptive, a worker computes a D1 chunk that it still owes, or if it owes none, its coded result
    of a D2 group.
    """

    def __init__(
        self, scheme: MSGC, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._scheme, self._code = scheme, scheme.code
        self._first_adaptive, self._last_slot = scheme.W - 1, scheme.delay
        self.takes_late = scheme.late == "take"
        # By closed round and job: the state of the job when the round opened. Empty if late answers
        # are dropped.
        self._asked_in: dict[int, dict[int, _JobState]] = {}
        # The D1 chunks, and the workers' parts of D2 groups, that hold no data point.
        self._void: BoolArray = np.zeros((scheme.n, scheme.W - 1), dtype=np.bool_)
        self._void_coded: BoolArray = np.zeros((scheme.B, scheme.n), dtype=np.bool_)
        self._coded_is_whole = True
        self._finished: dict[int, _JobState] = {}
        self._begin()

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
        """Return the jobs in flight in a round, the oldest first.

        ``states`` are the states of the unfinished jobs of earlier rounds, by job.
        """
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
        self._begin()
        return not self._coded_is_whole or bool(self._void.any())

    def _begin(self) -> None:
        """Set the state at the beginning of the run."""
        self._new_job = _JobState(
            received_in=np.zeros(self._void.shape, dtype=np.intp),
            received=self._void,
            owed=np.zeros(self.n, dtype=np.intp),
            coded=np.zeros(self._void_coded.shape, dtype=np.bool_),
            is_lost=False,
        )
        self._open = self._in_flight(0, {})

    def _snapshot(self) -> Mapping[str, object]:
        return {
            "open": {
                f.job: (f.asked.parts, None if f.state is f.asked else f.state.parts)
                for f in self._open
            },
            "asked_in": {
                round: {job: state.parts for job, state in states.items()}
                for round, states in self._asked_in.items()
            },
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self._open = []
        for job, (parts, now) in state["open"].items():
            if job < self.num_jobs:
                asked = _JobState.of(parts)
                present = asked if now is None else _JobState.of(now)
                slot = self._round - job
                self._open.append(_Flight(job=job, slot=slot, asked=asked, state=present))
        self._asked_in = {
            round: {job: _JobState.of(parts) for job, parts in states.items()}
            for round, states in state["asked_in"].items()
        }

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
        """Return the workers (n,) that have a mini-task in a slot (`_template`)."""
        if slot < self._first_adaptive:
            return ~self._void[:, slot]
        busy: BoolArray = state.owed > 0
        if self._code is not None:
            busy |= ~self._void_coded[slot - self._first_adaptive]
        return busy

    def _template(self, worker: int, slot: int, state: _JobState) -> MiniTask | None:
        """Return a worker's mini-task in a slot, or None if the worker has nothing to compute.

        The mini-task is numbered as if it belonged to job 0 and slot 0.
        """
        uncoded, group = self._scheme.uncoded_tasks[worker], slot - self._first_adaptive
        if group < 0:
            return None if self._void[worker, slot] else uncoded[slot]
        if state.owed[worker]:
            return uncoded[int(state.received[worker].argmin())]
        if self._code is None or self._void_coded[group, worker]:
            return None
        return self._scheme.coded_tasks[worker][group]

    def _brought(self, flight: _Flight, responded: BoolArray) -> tuple[IntArray, IntArray]:
        """Return the workers (m,) that answered with a missing D1 gradient, and the chunks (m,)."""
        if flight.slot < self._first_adaptive:
            missing = responded & ~flight.state.received[:, flight.slot]
            workers: IntArray = missing.nonzero()[0]
            return workers, np.full(len(workers), flight.slot)
        workers = (responded & (flight.asked.owed > 0)).nonzero()[0]
        chunks = flight.asked.received[workers].argmin(axis=1)
        if flight.state is flight.asked:  # no late answer has come since the round opened
            return workers, chunks
        missing = ~flight.state.received[workers, chunks]
        return workers[missing], chunks[missing]

    def _owed_after(self, flight: _Flight, responded: BoolArray) -> IntArray:
        owed = flight.state.owed
        if flight.slot < self._first_adaptive:
            more: IntArray = owed + ~(responded | self._void[:, flight.slot])
            return more
        if flight.state is flight.asked:
            fewer: IntArray = owed - (responded & (owed > 0))
            return fewer
        rest = owed.copy()
        rest[self._brought(flight, responded)[0]] -= 1
        return rest

    def _coded_by(self, flight: _Flight, responded: BoolArray) -> BoolArray:
        """Return the workers (n,) whose coded result of the round's D2 group is known.

        A worker answers with a coded result if it owed no D1 gradient when the round opened. The
        result of a worker whose part of the group has no data points is known to be zero.
        """
        coded: BoolArray = responded & (flight.asked.owed == 0)
        if not self._coded_is_whole:
            coded |= self._void_coded[flight.slot - self._first_adaptive]
        return coded

    def _after(self, flight: _Flight, responded: BoolArray) -> _JobState:
        """Return the state of the job after the round has closed with these answers."""
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
        """Return True if the job can be decoded provided that no worker straggles after this round.

        A worker that owes ``m`` D1 gradients computes them in its next ``m`` adaptive slots, and
        returns a coded result in every later adaptive slot.
        """
        owed = self._owed_after(flight, responded)
        group = max(0, flight.slot + 1 - self._first_adaptive)  # the next D2 group
        if flight.state.is_lost or np.count_nonzero(owed > self._scheme.B - group):
            return False
        if group and not self._decodes(self._coded_by(flight, responded)):
            return False
        if self._coded_is_whole:  # the next group is the hardest to decode
            return group == self._scheme.B or self._decodes(owed == 0)
        later = self._void_coded[group:]
        return all(self._decodes((owed <= turn) | void) for turn, void in enumerate(later))

    def _feasible(self, responded: BoolArray) -> bool:
        return all(self._can_finish(flight, responded) for flight in self._open)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        unfinished: dict[int, _JobState] = {}
        finished: dict[int, _JobState] = {}
        for flight in self._open:
            slot = flight.slot
            if slot == self._last_slot and not self._can_finish(flight, responded):
                raise self._late(flight.job)
            state = self._after(flight, responded)
            is_received = slot >= self._first_adaptive - 1 and not np.count_nonzero(state.owed)
            is_complete = is_received and (self._code is None or slot == self._last_slot)
            (finished if is_complete else unfinished)[flight.job] = state
        if self.takes_late:
            asked = {flight.job: flight.asked for flight in self._open}
            asked_in = self._asked_in | {self._round: asked}
            first = self._round + 1 - self._last_slot  # the round in which the oldest job began
            self._asked_in = {round: asked_in[round] for round in asked_in if round >= first}
        self._open, self._finished = self._in_flight(self._round + 1, unfinished), finished
        return tuple(finished)

    # ---- answers to closed rounds ----------------------------------------------------------------

    def _new(self, round: int, worker: int, flight: _Flight) -> int | None:
        """Return the D1 chunk whose gradient a late answer adds to a job, or -1 for a coded result.

        Return None if the answer adds nothing new to the job.
        """
        if not (flight.job <= round and flight.job in self._asked_in.get(round, {})):
            return None
        slot, asked, state = round - flight.job, self._asked_in[round][flight.job], flight.state
        if slot >= self._first_adaptive and not asked.owed[worker]:
            is_received = self._code is None or state.coded[slot - self._first_adaptive, worker]
            return None if is_received else -1
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
        """Return the state of a job after a late answer; ``chunk`` is the result of `_new`."""
        state, slot = flight.state, round - flight.job
        if chunk < 0:
            coded = state.coded.copy()
            coded[slot - self._first_adaptive, worker] = True
            requested = coded[: max(0, flight.slot - self._first_adaptive)]
            return replace(state, coded=coded, is_lost=not all(map(self._decodes, requested)))
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

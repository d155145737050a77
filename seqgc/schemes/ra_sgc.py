"""RA-SGC: the missing chunks of a job are reassigned to other workers in the next round.

Source: docs/mathematics.md, section 3.4.

Theory of operation
-------------------
Every worker can read all data. Therefore the missing work of a late worker need not be given to the
same worker, which may be late again: any worker can do it. The batch has ``G = floor(n/(s+1))``
chunks, and in round ``t`` worker ``i`` computes chunk ``i mod G`` of job ``t`` (slot 0). The chunks
of job ``t - 1`` that are missing when the round opens are dealt, as a second mini-task (slot 1), to
the workers that have been late least often. The round closes when job ``t - 1`` is complete and a
share ``q`` of the chunks of job ``t`` has been received.

*Late answers.* A straggler of round ``t - 1`` may still answer while job ``t - 1`` is open. If
``late="take"``, this answer is used: its chunk is then no longer missing, and round ``t`` does not
wait for the workers to which the chunk was dealt.

*Parts.* If ``p`` > 1, a missing chunk may be dealt in up to ``p`` parts, each of them to several
workers. A chunk is complete when all its parts have been received. If ``p`` = 1, the result for a
dealt chunk is the same sum over the same points as the original result, equal to the last bit. The
gradient then does not depend on which workers answered, and results are added up as they arrive.

*State.* A schedule stores three things: the worker whose own result was received, for each chunk of
the previous job; the chunks dealt in the open round, with the workers that hold them; and each
worker's rate of being late. This rate is an exponential average, in which the most recent round has
the weight `LATE_WEIGHT`. All three are replaced, and never edited.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Final

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._defence import Grid
from seqgc.schemes._registry import register
from seqgc.schemes._scheme import Assignment, MiniTasks, Schedule, Scheme, require_late
from seqgc.stragglers import PerRound, StragglerModel

__all__ = ["LATE_WEIGHT", "RASGC", "RASGCSchedule", "loads_of_parts"]

LATE_WEIGHT: Final = 0.2  # weight of the most recent round in a worker's rate of being late
# A search tries these shares q with every G, because with some G all slow workers may hold the same
# chunks. A share below 0.3 saves 1 or 2 % of the run time, but costs as much in concurrency. q = 1
# is not tried, because it is `gc-binary`.
_SHARES: Final = (0.3, 0.5, 0.75)
_HOLDERS: Final = (1, 2, 4)
_PARTS: Final = (1, 2)  # more parts save no time; two parts do if computing takes long


@register("ra-sgc")
@dataclass(frozen=True, kw_only=True)
class RASGC(Scheme):
    """Reassigning sequential gradient coding; exact for any pattern of stragglers, delay 1.

    Every chunk is computed by at least ``s + 1`` workers, ``s`` >= 0. A round waits for a share
    ``q`` of the chunks of its own job, 0 < q <= 1; ``q = 1`` gives the binary code. In the next
    round, each missing chunk is dealt in up to ``p`` >= 1 parts, each part to up to ``r`` >= 1
    workers (in the last round of a run to as many as there are). Late answers are used if
    ``late="take"``, and ignored if ``late="drop"``.

    Examples
    --------
    >>> scheme = RASGC(n=8, s=1, q=0.75, r=2)
    >>> scheme.num_own, scheme.delay, scheme.normalized_load
    (4, 1, 0.5)
    """

    n: int
    s: int
    q: float
    r: int
    p: int = 1
    late: str = "take"
    delay: ClassVar[int] = 1
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n", "s", "r", "p")
        if not 0 <= self.s < self.n:
            raise ParameterError("s", f"must satisfy 0 <= s < n (RA-SGC), n={self.n}", self.s)
        share = require_number("q", self.q, above=0)
        object.__setattr__(self, "q", share)
        if share > 1:
            raise ParameterError("q", "must satisfy 0 < q <= 1 (RA-SGC)", self.q)
        require_int("r", self.r, least=1, most=self.n)
        require_int("p", self.p, least=1, most=self.n)
        require_late(self.late, name="RA-SGC")

    @property
    def same_bits(self) -> bool:
        return self.p == 1

    @property
    def num_own(self) -> int:
        """The number G of chunks into which a job is cut in its own round."""
        return self.n // (self.s + 1)

    @property
    def quorum(self) -> int:
        """The number of chunks of its own job that a round waits for."""
        return math.ceil(round(self.q * self.num_own, 9))

    @property
    def tolerated(self) -> int:
        """The number ``s`` of workers that need never answer (see `promise`)."""
        return self.s

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(2 / self.num_own)  # a worker's own chunk and a dealt chunk

    @cached_property
    def chunk_fractions(self) -> FloatArray:
        count = self.num_own * self.p
        return np.broadcast_to(np.float64(1 / count), (count,))

    @property
    def promise(self) -> StragglerModel:
        """At most ``s`` stragglers in each round.

        If all stragglers answer in the end, every job is decoded for any pattern of stragglers. If
        a worker never answers again, a round may wait forever for a chunk that was dealt to this
        worker, unless ``late="take"`` or each chunk is dealt to at least two workers (``r``).
        """
        return PerRound(s=self.s)

    def points_touched(self, sizes: IntArray) -> IntArray:
        own = sizes.reshape(self.num_own, self.p).sum(axis=1)
        touched: IntArray = own[np.arange(self.n) % self.num_own] + own.max()
        return touched

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return RASGCSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        if grid.max_delay < cls.delay:
            return
        # For every G, the smallest s that gives this G.
        distinct = {n // (s + 1): s for s in reversed(grid.values(0, n - 1))}
        holders = [r for r in _HOLDERS if r <= n]
        for s in sorted(distinct.values()):
            num_own = n // (s + 1)
            # For each quorum, the largest share that gives this quorum.
            distinct_q = {math.ceil(round(q * num_own, 9)): q for q in _SHARES}
            for p, q, r in itertools.product(_PARTS, distinct_q.values(), holders):
                if p * r <= n and (scheme := cls(n=n, s=s, q=q, r=r, p=p)).quorum < num_own:
                    yield scheme

    @cached_property
    def own_tasks(self) -> MiniTasks:
        """The mini-tasks of all chunks, for job 0 and slot 0."""
        return tuple(self._task(own, 0, self.p) for own in range(self.num_own))

    def part_task(self, own: int, part: int, parts: int) -> MiniTask:
        """Return the mini-task for one of the ``parts`` of chunk ``own``, for job 0 and slot 1."""
        if parts == 1:
            return replace(self.own_tasks[own], slot=1)
        first, last = self.part_of(part, parts)
        return replace(self._task(own, first, last), slot=1)

    def part_of(self, part: int, parts: int) -> tuple[int, int]:
        """Return the range of sub-chunks in a part of a chunk, as ``first`` and ``last + 1``.

        A chunk has ``p`` sub-chunks, and all parts have nearly the same number of sub-chunks.
        """
        return part * self.p // parts, (part + 1) * self.p // parts

    def _task(self, own: int, first: int, last: int) -> MiniTask:
        chunks, ones = np.arange(own * self.p + first, own * self.p + last), np.ones(last - first)
        chunks.flags.writeable = ones.flags.writeable = False
        # If p > 1, it is not clear before the end of the round which results add up to the chunk.
        cover = 0 if self.p == 1 else None
        place = own if self.p == 1 else 0
        return MiniTask(job=0, slot=0, chunks=chunks, coefficients=ones, cover=cover, place=place)


@lru_cache(maxsize=2**12)
def loads_of_parts(scheme: RASGC, batch_size: int | None) -> tuple[float, FloatArray]:
    """Return the load of the largest chunk, and the loads (p + 1,) of the largest parts.

    Entry ``i`` of the array is the load of the largest part if chunks are dealt in ``i`` parts. If
    ``batch_size`` is None, the loads are nominal.
    """
    sizes: FloatArray = scheme.chunk_fractions
    if batch_size is not None:
        sizes = scheme.cut(batch_size) / batch_size
    sizes = sizes.reshape(scheme.num_own, scheme.p)
    whole, loads = float(sizes.sum(axis=1).max()), [0.0]
    for parts in range(1, scheme.p + 1):
        cuts = [scheme.part_of(part, parts) for part in range(parts)]
        loads.append(max(float(sizes[:, a:b].sum(axis=1).max()) for a, b in cuts))
    return whole, np.array(loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deal:
    """The ``chunks`` (m,) dealt in a round, and the workers that hold them.

    ``holders`` (m, parts, workers for each part) are the numbers of these workers.
    """

    chunks: IntArray
    holders: IntArray

    @property
    def parts(self) -> int:
        """The number of parts of each chunk."""
        return int(self.holders.shape[1])

    def answered(self, responded: BoolArray) -> BoolArray:
        """Return the chunks (m,) of which every part has been received."""
        complete: BoolArray = np.logical_and.reduce(responded[self.holders].any(axis=2), axis=1)
        return complete


_NOTHING = _Deal(chunks=np.zeros(0, dtype=np.intp), holders=np.zeros((0, 1, 1), dtype=np.intp))


class RASGCSchedule(Schedule):
    """A run of RA-SGC.

    Round ``t`` computes job ``t`` in slot 0, and the missing chunks of job ``t - 1`` in slot 1.
    """

    _state_names = ("_received", "_is_open", "_rates")

    def __init__(
        self, scheme: RASGC, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self.takes_late = scheme.late == "take"
        self._scheme = scheme
        self._own: IntArray = np.arange(scheme.n) % scheme.num_own
        self._void: BoolArray = np.zeros((scheme.num_own, scheme.p), dtype=np.bool_)
        self._void_own: BoolArray = np.zeros(scheme.num_own, dtype=np.bool_)
        # For the previous job: the worker whose own result of a chunk is used, or -1.
        self._received: IntArray = np.full(scheme.num_own, -1)
        self._is_open = False  # True if the previous job is unfinished
        self._deal = _NOTHING
        self._rates: FloatArray = np.zeros(scheme.n)  # each worker's rate of being late
        self._finished: dict[int, Callable[[], tuple[Term, ...]]] = {}

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:  # noqa: ARG002 (sums)
        if job not in self._finished:
            raise self._not_finished(job)
        return Decoding(job=job, terms=self._finished[job]())

    def _snapshot(self) -> Mapping[str, object]:
        return {**super()._snapshot(), "dealt": (self._deal.chunks, self._deal.holders)}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        chunks, holders = state["dealt"]
        self._deal = _Deal(chunks=chunks, holders=holders)

    def _leave_out(self, empty: BoolArray) -> bool:
        self._void = empty.reshape(self._void.shape)
        self._void_own = np.logical_and.reduce(self._void, axis=1)
        return bool(self._void.any())

    @property
    def _has_own(self) -> bool:
        """True if a job begins in the open round."""
        return self._round < self.num_jobs

    def _busy_with_own(self) -> BoolArray:
        is_held: BoolArray = ~self._void_own[self._own]
        return is_held if self._has_own else np.zeros_like(is_held)

    def _dealt(self) -> dict[int, tuple[int, int]]:
        """Return the chunk and the part that were dealt to each worker, by worker."""
        deal = self._deal
        return {
            int(worker): (int(deal.chunks[index]), part)
            for (index, part, _), worker in np.ndenumerate(deal.holders)
            if not self._is_void(int(deal.chunks[index]), part, deal.parts)
        }

    def _is_void(self, chunk: int, part: int, parts: int) -> bool:
        return bool(self._void[chunk, slice(*self._scheme.part_of(part, parts))].all())

    def _assign(self) -> Assignment:
        scheme, now, dealt, parts = self._scheme, self._round, self._dealt(), self._deal.parts
        own, chunk_of = self._busy_with_own(), self._own
        busy = own.copy()
        busy[list(dealt)] = True

        def tasks_of(worker: int) -> MiniTasks:
            tasks = []
            if own[worker]:
                tasks.append(replace(scheme.own_tasks[chunk_of[worker]], job=now))
            if worker in dealt:
                tasks.append(replace(scheme.part_task(*dealt[worker], parts), job=now - 1))
            return tuple(tasks)

        return Assignment(busy, tasks_of)

    def _loads(self, batch_size: int | None) -> FloatArray:
        """Return the workers' loads (n,).

        A worker's own chunk counts as much as the largest chunk, and a dealt part as much as the
        largest part. In the last round a few workers have nothing to do. They get the load of the
        other workers, because no round waits for them, and because a line fitted to recorded times
        may predict a negative time at load 0.
        """
        largest, of_parts = loads_of_parts(self._scheme, batch_size)
        dealt = of_parts[self._deal.parts]
        if not self._has_own:
            return np.full(self.n, dealt)
        loads = np.full(self.n, largest)
        loads[self._deal.holders.ravel()] += dealt
        return loads

    # ---- answers ---------------------------------------------------------------------------------

    def _is_complete(self, responded: BoolArray) -> bool:
        """Return True if these answers complete the previous job."""
        if not self._is_open:
            return True
        own = self._received[self._deal.chunks] >= 0
        return bool((own | self._deal_answered(responded)).all())

    def _deal_answered(self, responded: BoolArray) -> BoolArray:
        if not self._void.any():
            return self._deal.answered(responded)
        deal, parts = self._deal, self._deal.parts
        void = [[self._is_void(int(c), part, parts) for part in range(parts)] for c in deal.chunks]
        received = responded[deal.holders].any(axis=2) | np.array(void, dtype=np.bool_)
        complete: BoolArray = np.logical_and.reduce(received, axis=1)
        return complete

    def _feasible(self, responded: BoolArray) -> bool:
        return self._is_complete(responded)

    def _enough(self, responded: BoolArray) -> bool:
        if not self._has_own:
            return True
        received = self._void_own.copy()
        received[self._own[responded]] = True
        return int(np.count_nonzero(received)) >= self._scheme.quorum

    def _awaits(self, round: int, worker: int) -> bool:
        is_latest = self._is_open and round == self._round - 1
        chunk = self._own[worker]
        return is_latest and bool(self._received[chunk] < 0 and not self._void_own[chunk])

    def _asked(self, round: int) -> Assignment:
        tasks, own = self._scheme.own_tasks, self._own
        awaited = np.array([self.awaits(round, worker) for worker in range(self.n)])
        return Assignment(awaited, lambda worker: (replace(tasks[own[worker]], job=round),))

    def _take_late(self, round: int, worker: int) -> None:  # noqa: ARG002 (always the previous one)
        received = self._received.copy()
        received[self._own[worker]] = worker
        self._received = received

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._is_complete(responded):
            raise self._late(self._round - 1)
        finished: dict[int, Callable[[], tuple[Term, ...]]] = {}
        if self._is_open:
            deal, job = self._deal, self._round - 1
            finished[job] = partial(self._terms, job, self._received, deal, responded)
        received = np.full_like(self._received, -1)
        is_open = False
        if self._has_own:
            workers = np.flatnonzero(responded)[::-1]
            received[self._own[workers]] = workers  # the lowest worker of each chunk
            received[self._void_own] = -1
            missing = (received < 0) & ~self._void_own
            is_open = bool(missing.any())
        self._rates = (1 - LATE_WEIGHT) * self._rates + LATE_WEIGHT * ~responded
        self._deal = self._dealing(np.flatnonzero(missing)) if is_open else _NOTHING
        self._received, self._is_open, self._finished = received, is_open, finished
        if self._has_own and not is_open:
            finished[self._round] = partial(_own_terms, self._round, received)
        return tuple(finished)

    def _dealing(self, chunks: IntArray) -> _Deal:
        """Deal the missing chunks to the workers that are late least often."""
        scheme, m = self._scheme, len(chunks)
        parts = min(max(self.n // (scheme.r * m), 1), scheme.p)
        most = max(1, self.n // (m * parts))
        copies = most if self._round + 1 == self.num_jobs else min(scheme.r, most)
        best = np.argsort(self._rates, kind="stable")[: m * parts * copies]
        return _Deal(chunks=chunks, holders=best.reshape(copies, m, parts).transpose(1, 2, 0))

    def _terms(
        self, job: int, received: IntArray, deal: _Deal, responded: BoolArray
    ) -> tuple[Term, ...]:
        """Return the terms of a job's decoding.

        A chunk has one term if a worker's own result is used, and otherwise one for each part.
        """
        terms = list(_own_terms(job, received))
        for index, part in np.ndindex(deal.holders.shape[:2]):
            chunk = int(deal.chunks[index])
            if received[chunk] < 0 and not self._is_void(chunk, part, deal.parts):
                holders = deal.holders[index, part]
                first = int(holders[responded[holders].argmax()])
                terms.append(Term(worker=first, round=job + 1, slot=1, weight=1.0))
        return tuple(terms)


def _own_terms(job: int, received: IntArray) -> tuple[Term, ...]:
    workers = received[received >= 0].tolist()
    return tuple(Term(worker=worker, round=job, slot=0, weight=1.0) for worker in workers)

"""SR-SGC: gradient coding with selective reattempts (paper, section 3.2, Algorithms 1 and 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, Payload, Term
from seqgc.schemes._assignment import Assignment
from seqgc.schemes._contract import Schedule, Scheme, require_bursts, require_family
from seqgc.schemes._grid import Grid
from seqgc.schemes._scheme_names import register
from seqgc.schemes.gc import coded_mini_task, held
from seqgc.stragglers import AnyOf, Bursty, EveryGroup, PerRound, StragglerModel

__all__ = ["SRSGC", "SRSGCSchedule"]


@register("sr-sgc-rep", family="rep")
@register("sr-sgc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class SRSGC(Scheme):
    """(B, W, lam) selective-reattempt sequential gradient coding; delay B, load (s+1)/n.

    Parameters
    ----------
    n : int
        Workers.
    B, W : int
        Burst length and window, ``W = x B + 1`` with an integer ``x >= 1``.
    lam : int
        Distinct stragglers in a window; ``1 <= lam <= n``, and
        ``s = ceil(B lam / (W - 1 + B))`` must be below n.
    family : {"cyclic", "rep"}
        The base code; ``rep`` needs ``(s+1) | n``.

    Examples
    --------
    >>> scheme = SRSGC(n=256, B=2, W=3, lam=23)
    >>> scheme.s, scheme.delay, scheme.normalized_load
    (12, 2, 0.05078125)
    """

    n: int
    B: int
    W: int
    lam: int
    family: str = "cyclic"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n", "B", "W", "lam")
        require_bursts(n=self.n, B=self.B, name="SR-SGC")
        require_family(self.family, ("cyclic", "rep"), name="SR-SGC")
        if self.W <= self.B or (self.W - 1) % self.B:
            rule = f"must be x*B + 1 with an integer x >= 1 (SR-SGC), B={self.B}"
            raise ParameterError("W", rule, self.W)
        if not 1 <= self.lam <= self.n:
            raise ParameterError(
                "lam", f"must satisfy 1 <= lam <= n (SR-SGC), n={self.n}", self.lam
            )
        if self.s >= self.n:
            rule = f"must give s = ceil(B*lam/(W-1+B)) < n (SR-SGC), n={self.n}, s={self.s}"
            raise ParameterError("lam", rule, self.lam)
        if self.family == "rep" and self.n % (self.s + 1):
            rule = f"must give (s+1) | n (SR-SGC-Rep), n={self.n}, s={self.s}"
            raise ParameterError("lam", rule, self.lam, "or take sr-sgc")

    @property
    def s(self) -> int:
        """Stragglers that the base code tolerates: ``ceil(B lam / (W - 1 + B))``."""
        return -(-self.B * self.lam // (self.W - 1 + self.B))

    @property
    def delay(self) -> int:
        return self.B

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads((self.s + 1) / self.n)

    @property
    def tolerated(self) -> int:
        return self.s

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._code.chunk_fractions

    @property
    def promise(self) -> StragglerModel:
        models: tuple[StragglerModel, ...] = (
            Bursty(B=self.B, W=self.W, lam=self.lam),
            PerRound(s=self.s),
        )
        if self.family == "rep":
            models += (EveryGroup(size=self.s + 1),)
        return AnyOf(span=self.W, models=models)

    def points_touched(self, sizes: IntArray) -> IntArray:
        return held(self._code, sizes)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return SRSGCSchedule(self, self._code, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        for B in grid.values(1, grid.max_delay):  # windows W = x B + 1 up to twice the delay
            for x in grid.values(1, (2 * grid.max_delay - 1) // B):
                W = x * B + 1
                for size in grid.divisors(n):
                    # s = ceil(lam / (x+1)): these are the lam that give s = size - 1.
                    low, high = (size - 2) * (x + 1) + 1, min((size - 1) * (x + 1), n)
                    for lam in grid.values(low, high):
                        yield cls(n=n, B=B, W=W, lam=lam, family="rep")
                for lam in grid.values(1, min(n, (n - 1) * (x + 1))):  # s < n
                    yield cls(n=n, B=B, W=W, lam=lam)

    @cached_property
    def _code(self) -> GradientCode:
        return make_code(self.family, self.n, self.s)


class SRSGCSchedule(Schedule):
    """In round ``t`` some workers reattempt job ``t - B``; the others compute job ``t``."""

    def __init__(
        self,
        scheme: SRSGC,
        code: GradientCode,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._code = code
        self._group = scheme.s + 1 if scheme.family == "rep" else None
        # For the jobs of the last B rounds: who returned the job's result in the job's own round.
        self._returned: dict[int, BoolArray] = {}
        self._finished: dict[int, tuple[BoolArray, BoolArray]] = {}  # own round, reattempted
        self._reattempts = np.zeros(scheme.n, dtype=np.bool_)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        if job not in self._finished:
            raise self._not_finished(job)
        own, again = self._finished[job]
        weights = self._code.usable_vector(own | again, payload).vector
        late = job + self._delay
        terms = tuple(
            Term(worker=i, round=job if own[i] else late, slot=0, weight=weight)
            for i, weight in enumerate(np.where(self._excused, 0.0, weights).tolist())
            if weight
        )
        return Decoding(job=job, terms=terms)

    @property
    def _delay(self) -> int:
        return self.num_rounds - self.num_jobs

    def _leave_out(self, empty: BoolArray) -> bool:
        self._excused = held(self._code, (~empty).astype(np.intp)) == 0
        return bool(self._excused.any())

    def _assign(self) -> Assignment:
        code, jobs = self._code, np.where(self._reattempts, self._round - self._delay, self._round)
        return Assignment(
            (jobs >= 0) & (jobs < self.num_jobs) & ~self._excused,
            lambda worker: (coded_mini_task(code, worker, int(jobs[worker])),),
        )

    def _feasible(self, responded: BoolArray) -> bool:
        # Every job but the one due now can still be reattempted by all who have not returned it.
        due = self._round - self._delay
        return due not in self._returned or self._code.can_decode(self._due_answers(responded))

    def _due_answers(self, responded: BoolArray) -> BoolArray:
        return self._returned[self._round - self._delay] | (responded & self._reattempts)

    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        answers = [responded & ~self._reattempts]
        if not self._is_job(self._round) or not self._code.can_decode(answers[0]):
            answers = []
        if self._round - self._delay in self._returned:
            answers.append(self._due_answers(responded))
        return [(self._code, which) for which in answers]

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round - self._delay)
        returned, finished = dict(self._returned), {}
        due = self._round - self._delay
        if due in returned:
            finished[due] = (returned.pop(due), responded & self._reattempts)
        if self._is_job(self._round):
            own = responded & ~self._reattempts
            if self._code.can_decode(own):
                finished[self._round] = (own, np.zeros_like(own))
            else:
                returned[self._round] = own
        self._returned, self._finished = returned, finished
        self._reattempts = self._choose_reattempts(self._round + 1 - self._delay)
        return tuple(finished)

    def _choose_reattempts(self, job: int) -> BoolArray:
        """Choose who reattempts ``job``: (n,) bool.

        The first workers, in order, that did not return it, until n - s results are in sight
        (Algorithm 1); with Rep, only in groups without any (Algorithm 3).
        """
        chosen = np.zeros(self.n, dtype=np.bool_)
        if job in self._returned:
            own = self._returned[job]
            wanted = ~own
            if self._group is not None:
                groups = own.reshape(-1, self._group).any(axis=1)
                wanted = ~np.repeat(groups, self._group)
            needed = self.n - self._code.s - np.count_nonzero(own)
            chosen[np.flatnonzero(wanted)[: max(0, needed)]] = True
        return chosen

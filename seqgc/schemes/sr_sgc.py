"""SR-SGC: selective-reattempt sequential gradient coding (paper, 3.2, Algorithms 1 and 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray
from seqgc.schemes._defence import Grid
from seqgc.schemes._registry import register
from seqgc.schemes._scheme import Assignment, Schedule, Scheme, require_late
from seqgc.schemes.gc import CodedSchedule, CodedScheme, coded_mini_task, require_family
from seqgc.stragglers import AnyOf, Bursty, EveryGroup, PerRound, StragglerModel

__all__ = ["SRSGC", "SRSGCSchedule"]


@register("sr-sgc-rep", family="rep")
@register("sr-sgc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class SRSGC(CodedScheme):
    """(B, W, lam) selective-reattempt sequential gradient coding; delay B, load (s+1)/n.

    The scheme tolerates bursts of ``B`` rounds by at most ``lam`` distinct stragglers in each
    window of ``W`` rounds, where ``W = x B + 1`` with an integer ``x >= 1``, ``1 <= lam <= n`` and
    ``s < n``. The ``family`` of the base code is ``cyclic``, or ``rep`` if ``s + 1`` divides ``n``.
    Answers that come after their round, but while their job is in flight, are used if
    ``late="take"``, and dropped by default.

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
    late: str = "drop"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._keep_integers("n", "B", "W", "lam")
        if self.B < 1:
            raise ParameterError("B", "must be >= 1 (SR-SGC)", self.B)
        require_family(self.family, ("cyclic", "rep"), name="SR-SGC")
        require_late(self.late, name="SR-SGC")
        if self.W <= self.B or (self.W - 1) % self.B:
            rule = f"must be x*B + 1 with an integer x >= 1 (SR-SGC), B={self.B}"
            raise ParameterError("W", rule, self.W)
        if not 1 <= self.lam <= self.n:
            rule = f"must satisfy 1 <= lam <= n (SR-SGC), n={self.n}"
            raise ParameterError("lam", rule, self.lam)
        if self.s >= self.n:
            rule = f"must give s = ceil(B*lam/(W-1+B)) < n (SR-SGC), n={self.n}, s={self.s}"
            raise ParameterError("lam", rule, self.lam)
        if self.family == "rep" and self.n % (self.s + 1):
            rule = f"must give an s such that s + 1 divides n (SR-SGC-Rep), n={self.n}, s={self.s}"
            raise ParameterError("lam", rule, self.lam, "or use sr-sgc, which takes any s < n")

    @property
    def s(self) -> int:
        """The number of stragglers that the base code tolerates: ``ceil(B lam / (W - 1 + B))``."""
        return -(-self.B * self.lam // (self.W - 1 + self.B))

    @property
    def delay(self) -> int:
        return self.B

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads((self.s + 1) / self.n)

    @property
    def promise(self) -> StragglerModel:
        bursty, each = Bursty(B=self.B, W=self.W, lam=self.lam), PerRound(s=self.s)
        groups = (EveryGroup(size=self.s + 1),) if self.family == "rep" else ()
        return AnyOf(span=self.W, models=(bursty, each, *groups))

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return SRSGCSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        for B in grid.values(1, grid.max_delay):  # windows W = x B + 1, up to twice max_delay
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


class SRSGCSchedule(CodedSchedule):
    """A run of SR-SGC.

    In round ``t``, some workers reattempt job ``t - B``, and the other workers compute job ``t``.
    """

    _state_names = ("_returned", "_reattempts", "_busy_in")

    def __init__(
        self, scheme: SRSGC, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._delay, self.takes_late = scheme.delay, scheme.late == "take"
        self._group = scheme.s + 1 if scheme.family == "rep" else None
        # By unfinished job: the workers (n,) whose result of the job's own round has been received.
        self._returned: dict[int, BoolArray] = {}
        # The workers (n,) that reattempt in the open round.
        self._reattempts: BoolArray = np.zeros(scheme.n, dtype=np.bool_)
        # By unfinished job: the workers (n,) that reattempted an older job in the job's own round.
        self._busy_in: dict[int, BoolArray] = {}

    @property
    def _due(self) -> int:
        """The number of the job whose deadline is the open round.

        This job may be finished already, and there may be no job with this number.
        """
        return self._round - self._delay

    def _assign(self) -> Assignment:
        code, jobs = self._code, np.where(self._reattempts, self._due, self._round)
        return Assignment(
            (jobs >= 0) & (jobs < self.num_jobs) & ~self._excused,
            lambda worker: (coded_mini_task(code, worker, int(jobs[worker])),),
        )

    def _feasible(self, responded: BoolArray) -> bool:
        # Every other job in flight can be reattempted in a later round.
        is_open = self._due in self._returned
        return not is_open or self._suffices(self._due_answers(responded))

    def _due_answers(self, responded: BoolArray) -> BoolArray:
        return self._returned[self._due] | (responded & self._reattempts)

    def _awaits(self, round: int, worker: int) -> bool:
        """Return True if the round's own job is in flight and lacks this worker's result."""
        returned = self._returned.get(round)
        return returned is not None and not (returned[worker] or self._busy_in[round][worker])

    def _take_late(self, round: int, worker: int) -> None:
        returned = self._returned[round].copy()
        returned[worker] = True
        self._returned = self._returned | {round: returned}

    def _asked(self, round: int) -> Assignment:
        awaited = np.array([self.awaits(round, worker) for worker in range(self.n)])
        return Assignment(awaited, lambda worker: (coded_mini_task(self._code, worker, round),))

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._due)
        returned, finished, now = dict(self._returned), {}, self._round
        if self._due in returned:
            rounds = np.where(returned[self._due], self._due, now)
            finished[self._due] = (self._due_answers(responded), rounds)
            del returned[self._due]
        for job, own in self._returned.items() if self.takes_late else ():
            if job in returned and self._suffices(own):  # by late answers
                finished[job] = (own, np.full(self.n, job))
                del returned[job]
        if now < self.num_jobs:
            own = responded & ~self._reattempts
            if self._suffices(own):
                finished[now] = (own, np.full(self.n, now))
            else:
                returned[now] = own
        busy = self._busy_in | {now: self._reattempts}
        self._busy_in = {job: busy[job] for job in returned}
        self._returned, self._finished = returned, finished
        self._reattempts = self._choose_reattempts(self._due + 1)
        return tuple(finished)

    def _choose_reattempts(self, job: int) -> BoolArray:
        """Return the workers (n,) that reattempt ``job``.

        Workers that have not returned a result of the job are chosen in the order of their numbers,
        until there would be n - s results (Algorithm 1). With the family ``rep``, workers are
        chosen only from groups without any result (Algorithm 3). In rare cases, n - s results could
        not be decoded to a useful precision. The last chosen worker is then replaced by a later
        worker. If that does not help, one more worker is chosen.
        """
        if job not in self._returned:
            return np.zeros(self.n, dtype=np.bool_)
        own = self._returned[job]
        wanted = ~own
        if self._group is not None:
            groups = own.reshape(self._group, -1).any(axis=0)
            wanted = ~np.tile(groups, self._group)
        workers = np.flatnonzero(wanted)
        needed = self.n - self._code.s - int(np.count_nonzero(own))
        choices = (
            np.append(workers[: count - 1], last)
            for count in range(max(1, needed), len(workers) + 1)
            for last in workers[count - 1 :]
        )
        for choice in choices:
            chosen = np.zeros(self.n, dtype=np.bool_)
            chosen[choice] = True
            if self._suffices(own | chosen):
                return chosen
        return wanted

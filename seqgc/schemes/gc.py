"""Gradient coding, one job a round (spec, 3.1; Tandon et al. 2017), and the uncoded scheme."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, Decoding, FloatArray, MiniTask, Payload, Term
from seqgc.schemes._assignment import Assignment
from seqgc.schemes._base import Schedule, Scheme, require_int
from seqgc.stragglers import EveryGroup, PerRound, StragglerModel

__all__ = ["GC", "GCSchedule", "Uncoded"]

Family = Literal["cyclic", "rep", "binary"]
_SUFFIX: dict[str, str] = {"cyclic": "", "rep": "-rep", "binary": "-binary"}


@dataclass(frozen=True, kw_only=True)
class Uncoded(Scheme):
    """No redundancy: every worker must answer in every round.

    Examples
    --------
    >>> Uncoded(n=4).normalized_load
    0.25
    """

    n: int

    def __post_init__(self) -> None:
        _require_workers(self.n)

    @property
    def spec(self) -> str:
        return "uncoded"

    @property
    def delay(self) -> int:
        return 0

    @property
    def normalized_load(self) -> float:
        return 1 / self.n

    @property
    def tolerated(self) -> int:
        return 0

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._code.chunk_fractions

    @property
    def model(self) -> StragglerModel:
        return PerRound(s=0)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return GCSchedule(self, self._code, num_jobs, conformity=conformity)

    @cached_property
    def _code(self) -> GradientCode:
        return make_code("rep", self.n, 0)


@dataclass(frozen=True, kw_only=True)
class GC(Scheme):
    """(n, s) gradient coding with a code of the given family; delay 0, load (s+1)/n.

    Parameters
    ----------
    n, s : int
        Workers, and stragglers tolerated in each round; ``0 <= s < n``.
    family : {"cyclic", "rep", "binary"}
        ``rep`` (GC-Rep) needs ``(s+1) | n``; ``binary`` has load ``1 / floor(n / (s+1))``.
    allow_error : float
        Not 0: answers that do not determine the gradient suffice as well if the error bound of
        their least-squares combination (`GradientCode.approximation`) is at most this. Declared
        here, recorded with every such gradient, and nothing for `conforms`.

    Examples
    --------
    >>> GC(n=256, s=15).normalized_load
    0.0625
    """

    n: int
    s: int
    family: Family = "cyclic"
    allow_error: float = 0.0

    def __post_init__(self) -> None:
        _require_workers(self.n)
        require_int("s", self.s)
        if not 0 <= self.s < self.n:
            raise ParameterError("s", f"must satisfy 0 <= s < n (GC), n={self.n}", self.s)
        if self.family == "rep" and self.n % (self.s + 1):
            raise ParameterError(
                "s", f"must satisfy (s+1) | n (GC-Rep), n={self.n}", self.s, "or take gc-binary"
            )
        if not 0 <= self.allow_error < 1:
            rule = "must satisfy 0 <= allow_error < 1 (GC)"
            raise ParameterError("allow_error", rule, self.allow_error)

    @property
    def spec(self) -> str:
        approximate = f",allow_error={self.allow_error!r}" if self.allow_error else ""
        return f"gc{_SUFFIX[self.family]}:s={self.s}{approximate}"

    @property
    def delay(self) -> int:
        return 0

    @property
    def normalized_load(self) -> float:
        if self.family == "binary":
            return 1 / (self.n // (self.s + 1))
        return (self.s + 1) / self.n

    @property
    def tolerated(self) -> int:
        return self.s

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._code.chunk_fractions

    @property
    def model(self) -> StragglerModel:
        return EveryGroup(size=self.s + 1) if self.family == "rep" else PerRound(s=self.s)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return GCSchedule(
            self, self._code, num_jobs, conformity=conformity, allow_error=self.allow_error
        )

    @cached_property
    def _code(self) -> GradientCode:
        return make_code(self.family, self.n, self.s)


class GCSchedule(Schedule):
    """Round ``t`` computes job ``t``; it closes once the answers decode it."""

    def __init__(
        self,
        scheme: Scheme,
        code: GradientCode,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
        allow_error: float = 0.0,
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._code, self._allow_error = code, allow_error
        self._used: BoolArray = np.zeros(scheme.n, dtype=np.bool_)

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        if job != self._round - 1:
            raise self._not_finished(job)
        used = self._code.usable_vector(self._used, payload, allow_error=self._allow_error)
        terms = tuple(
            Term(worker=i, round=job, slot=0, weight=weight)
            for i, weight in enumerate(used.vector.tolist())
            if weight
        )
        return Decoding(job=job, terms=terms, error=used.error)

    def _assign(self) -> Assignment:
        code, job = self._code, self._round
        sums = not self._allow_error  # least squares weighs results
        return Assignment(
            np.ones(self.n, dtype=np.bool_),
            lambda worker: (coded_mini_task(code, worker, job, sums=sums),),
        )

    def _feasible(self, responded: BoolArray) -> bool:
        if self._allow_error == 0.0:
            return self._code.can_decode(responded)
        return self._code.is_within(responded, self._allow_error)

    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        return [(self._code, responded)]

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        self._used = responded.copy()
        return (self._round,)


def coded_mini_task(
    code: GradientCode, worker: int, job: int, *, first_chunk: int = 0, sums: bool = True
) -> MiniTask:
    """Worker's coded result of a job, the code's chunk 0 being the batch's ``first_chunk``.

    ``sums``: only decoding vectors will be used that add results up, if the code has such.
    """
    support = code.support(worker)
    cover, place = (code.place_of(worker) if sums else None) or (None, 0)
    return MiniTask(
        job=job,
        slot=0,
        chunks=first_chunk + support if first_chunk else support,
        coefficients=code.coefficients(worker),
        cover=cover,
        place=place,
    )


def _require_workers(n: int) -> None:
    require_int("n", n)
    if n < 1:
        raise ParameterError("n", "must be >= 1 (workers)", n)

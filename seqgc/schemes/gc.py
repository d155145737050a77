"""Gradient coding with one job in each round, and uncoded work.

Sources: the paper, section 3.1; Tandon et al. 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Final

import numpy as np

from seqgc.codes import GradientCode, code_kinds, make_code
from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import BoolArray, Decoding, FloatArray, IntArray, MiniTask, Payload, Term
from seqgc.schemes._defence import Grid
from seqgc.schemes._registry import register
from seqgc.schemes._scheme import Assignment, Schedule, Scheme
from seqgc.stragglers import EveryGroup, PerRound, StragglerModel

__all__ = ["GC", "CodedSchedule", "CodedScheme", "GCSchedule", "Uncoded"]


_EVERY_S_UP_TO: Final = 32  # the largest n for which a search tries every s of a user's code
_FAMILIES: Final = ("cyclic", "rep", "binary")  # the built-in families; their loads are equal


class CodedScheme(Scheme):
    """A scheme that codes every job with one gradient code, and cuts batches into its chunks."""

    allow_error: float = 0.0  # see `GC`

    @property
    @abstractmethod
    def _code(self) -> GradientCode: ...

    @property
    def accepted_error(self) -> float:
        """The largest error bound of a decoded gradient; 0 if all gradients are exact."""
        return max(self.allow_error, self._code.worst_error)

    @property
    def same_bits(self) -> bool:
        return not self.accepted_error and is_one_sum(self._code)

    @property
    def tolerated(self) -> int:
        return self._code.s

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._code.chunk_fractions

    def points_touched(self, sizes: IntArray) -> IntArray:
        return held(self._code, sizes)


@register("uncoded")
@dataclass(frozen=True, kw_only=True)
class Uncoded(CodedScheme):
    """No redundancy: every worker must answer in every round.

    Examples
    --------
    >>> Uncoded(n=4).normalized_load
    0.25
    """

    n: int
    exact: ClassVar[bool] = True
    delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._keep_integers("n")

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def promise(self) -> StragglerModel:
        return PerRound(s=0)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return GCSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:  # noqa: ARG003 (one only)
        return [cls(n=n)]

    @cached_property
    def _code(self) -> GradientCode:
        return make_code("rep", self.n, 0)


@register("gc-binary", family="binary")
@register("gc-rep", family="rep")
@register("gc", family="cyclic")
@dataclass(frozen=True, kw_only=True)
class GC(CodedScheme):
    """Gradient coding that tolerates ``s`` stragglers in each round; delay 0, load (s+1)/n.

    ``0 <= s < n``. The ``family`` is a kind of code (`seqgc.codes.make_code`), such as ``cyclic``,
    ``rep`` or ``binary``. With ``rep`` (GC-Rep), ``s + 1`` must divide ``n``. The load of
    ``binary`` is ``1 / floor(n / (s+1))``. Every kind of code that is registered with
    `seqgc.codes.register_code` is a family, whose specs begin with ``gc-KIND``. If a code is
    approximate, the error of its gradients is at most `GradientCode.worst_error`.

    If ``allow_error`` is above 0, answers that do not determine the gradient may suffice as well.
    They suffice if the error bound of their best combination (`GradientCode.approximation`) is at
    most ``allow_error``. The bound is recorded with every such gradient. ``allow_error`` does not
    change the result of `Schedule.conforms`.

    Examples
    --------
    >>> GC(n=256, s=15).normalized_load
    0.0625
    """

    n: int
    s: int
    family: str = "cyclic"
    allow_error: float = 0.0
    delay: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self._keep_integers("n", "s")
        require_family(self.family, code_kinds(), name="GC")
        if not 0 <= self.s < self.n:
            raise ParameterError("s", f"must satisfy 0 <= s < n (GC), n={self.n}", self.s)
        if self.family == "rep" and self.n % (self.s + 1):
            rule = f"must be such that s + 1 divides n (GC-Rep), n={self.n}"
            raise ParameterError("s", rule, self.s, "or use gc-binary, which takes any s < n")
        if not 0 <= self.allow_error < 1:
            rule = "must satisfy 0 <= allow_error < 1 (GC)"
            raise ParameterError("allow_error", rule, self.allow_error)
        # Creating the code raises if the family does not support n and s. The code is also pickled
        # with the scheme, so that unpickling imports the module that registers the family.
        _ = self._code

    @property
    def exact(self) -> bool:
        return self.accepted_error == 0

    @property
    def worker_loads(self) -> FloatArray:
        if self.family in _FAMILIES or len(set(self._code.worker_loads.tolist())) == 1:
            return self._equal_loads(self._code.load)
        return self._code.worker_loads

    @property
    def promise(self) -> StragglerModel:
        return EveryGroup(size=self.s + 1) if self.family == "rep" else PerRound(s=self.s)

    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        return GCSchedule(self, num_jobs, conformity=conformity)

    @classmethod
    def candidates(cls, n: int, grid: Grid) -> Iterable[Scheme]:
        for size in grid.divisors(n):
            for allow_error in (0.0, 0.1, 0.25, 0.5) if grid.inexact else (0.0,):
                yield cls(n=n, s=size - 1, family="rep", allow_error=allow_error)
        for family in ("binary", "cyclic"):
            for s in grid.values(1, n - 1):
                yield cls(n=n, s=s, family=family)
        for family in code_kinds():
            if family not in _FAMILIES:
                yield from _of_a_family(family, n, grid)

    @classmethod
    def further_names(cls) -> Mapping[str, Mapping[str, object]]:
        own = (family for family in code_kinds() if family not in _FAMILIES)
        return {f"gc-{family}": {"family": family} for family in own}

    @cached_property
    def _code(self) -> GradientCode:
        return make_code(self.family, self.n, self.s)


def _of_a_family(family: str, n: int, grid: Grid) -> Iterator[GC]:
    """Yield the schemes with a user-defined code for ``n`` workers, one for each supported ``s``.

    If there are many workers, only some values of ``s`` are tried, because a search replays each
    scheme separately.
    """
    for s in (grid if n <= _EVERY_S_UP_TO else replace(grid, coarse=True)).values(1, n - 1):
        try:
            scheme = GC(n=n, s=s, family=family)
        except ParameterError:
            continue
        yield scheme


class CodedSchedule(Schedule):
    """A run of a `CodedScheme`: each mini-task is a coded result of one job, in slot 0."""

    def __init__(
        self, scheme: CodedScheme, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        super().__init__(scheme, num_jobs, conformity=conformity)
        self._code, self._allow_error = scheme._code, scheme.accepted_error
        # By job that the latest round finished: the workers (n,) whose results are used, and the
        # rounds (n,) in which they computed these results.
        self._finished: dict[int, tuple[BoolArray, IntArray]] = {}

    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        if job not in self._finished:
            raise self._not_finished(job)
        answered, rounds = self._finished[job]
        used = self._code.usable_vector(answered, payload, allow_error=self._allow_error)
        terms = terms_of(np.where(self._excused, 0.0, used.vector), rounds)
        lost = self._not_held_by(term.worker for term in terms) if used.error else ()
        return Decoding(job=job, terms=terms, error=used.error, lost=lost)

    def _not_held_by(self, workers: Iterable[int]) -> tuple[int, ...]:
        """Return the chunks that none of these workers holds."""
        missing = np.ones(len(self._code.chunk_fractions), dtype=np.bool_)
        for worker in workers:
            missing[self._code.support(worker)] = False
        return tuple(np.flatnonzero(missing).tolist())

    def _suffices(self, answered: BoolArray) -> bool:
        """Return True if the answers (n,) determine a job's gradient to the accepted error."""
        return self._code.is_within(answered, self._allow_error, self.payload)

    def _leave_out(self, empty: BoolArray) -> bool:
        self._excused = held(self._code, (~empty).astype(np.intp)) == 0
        return bool(self._excused.any())


class GCSchedule(CodedSchedule):
    """A run of `GC` or `Uncoded`: round ``t`` computes job ``t``, which its answers must decode."""

    def _assign(self) -> Assignment:
        code, job = self._code, self._round
        sums = not self._allow_error  # a least-squares solution is a weighted sum
        return Assignment(
            ~self._excused, lambda worker: (coded_mini_task(code, worker, job, sums=sums),)
        )

    def _feasible(self, responded: BoolArray) -> bool:
        return self._suffices(responded)

    def _advance(self, responded: BoolArray) -> tuple[int, ...]:
        if not self._feasible(responded):
            raise self._late(self._round)
        self._finished = {self._round: (responded, np.full(self.n, self._round))}
        return (self._round,)


def coded_mini_task(
    code: GradientCode, worker: int, job: int, *, first_chunk: int = 0, sums: bool = True
) -> MiniTask:
    """Return a worker's mini-task for a job, in slot 0.

    Chunk 0 of the code is chunk ``first_chunk`` of the batch. If ``sums`` is True and the code has
    covers, the mini-task names its cover and place. This is correct only if every decoding is a
    plain sum.
    """
    support = code.support(worker)
    cover, place = (code.place_of(worker) if sums else None) or (None, 0)
    chunks, values = first_chunk + support if first_chunk else support, code.coefficients(worker)
    return MiniTask(job=job, slot=0, chunks=chunks, coefficients=values, cover=cover, place=place)


def terms_of(weights: FloatArray, rounds: IntArray, *, slot: int = 0) -> tuple[Term, ...]:
    """Return the terms of a decoding for the results of one slot.

    ``weights`` (n,) are the weights of the workers' results, and ``rounds`` (n,) the rounds in
    which they were computed. Results of weight 0 are left out.
    """
    return tuple(
        Term(worker=i, round=round, slot=slot, weight=weight)
        for i, (round, weight) in enumerate(zip(rounds.tolist(), weights.tolist(), strict=True))
        if weight
    )


def is_one_sum(code: GradientCode) -> bool:
    """Return True if every decoding adds up equal results in the same order.

    A code has this property if it has exactly one cover. Any other code combines different results
    if different workers answer.
    """
    return len(code.covers) == 1


def held(code: GradientCode, amounts: IntArray) -> IntArray:
    """Return for each worker the sum (n,) of the ``amounts`` (k,) of the chunks that it holds."""
    chunks, starts = _supports(code)
    return np.add.reduceat(amounts[chunks], starts)


@lru_cache(maxsize=4)  # called several times in a row
def _supports(code: GradientCode) -> tuple[IntArray, IntArray]:
    """Return the concatenated chunks of all workers, and the index of each worker's first chunk."""
    supports = [code.support(worker) for worker in range(code.n)]
    ends = np.cumsum([len(support) for support in supports])
    return np.concatenate(supports), np.concatenate([[0], ends[:-1]])


def require_family(family: str, known: Sequence[str], *, name: str) -> None:
    """Raise `ParameterError` if the family is not known; the message suggests a similar name."""
    if family not in known:
        rule = f"must be one of {', '.join(known)} ({name})"
        raise ParameterError("family", rule, family, did_you_mean(str(family), known))

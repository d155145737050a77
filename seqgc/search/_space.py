"""Which candidates a search looks at: schemes × closing rules × jobs per round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from seqgc.codes import make_code
from seqgc.errors import ParameterError, did_you_mean
from seqgc.rounds import ClosingRule, WaitOut
from seqgc.schemes import GC, MSGC, SRSGC, Scheme, Uncoded

__all__ = ["FAMILIES", "Rule", "SearchSpace", "family_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How rounds close, and how many models' gradients one of them computes.

    Examples
    --------
    >>> Rule(mu=0.0, wait_out="feasible").jobs_per_round
    1
    """

    mu: float
    wait_out: WaitOut
    jobs_per_round: int = 1

    def __post_init__(self) -> None:
        ClosingRule(mu=self.mu, wait_out=self.wait_out)
        if self.jobs_per_round < 1:
            raise ParameterError("jobs_per_round", "must be >= 1", self.jobs_per_round)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The grid of a search; every combination that is valid and makes a difference is in it.

    Parameters
    ----------
    families
        Names of schemes, as specs begin.
    mus, wait_outs, jobs_per_round
        Values of the closing rule, and of models in a bundle.
    max_delay : int
        Largest delay T of a scheme, rounds. SR-SGC's windows end at ``2 max_delay`` rounds: its
        delay B alone would let them grow for ever.
    models : int, optional
        Models that will be trained. A model's next step needs its last gradient, so that a delay
        of T rounds needs T + 1 bundles of them.
    coarse : bool
        Thin the grid out, geometrically, for thousands of workers.

    Examples
    --------
    >>> space = SearchSpace(families=("uncoded", "gc-rep"), jobs_per_round=(1,))
    >>> [scheme.spec for scheme in space.schemes(4)]
    ['uncoded', 'gc-rep:s=1', 'gc-rep:s=3']
    """

    families: tuple[str, ...] = ()
    mus: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    wait_outs: tuple[WaitOut, ...] = ("feasible", "conform", "all")
    jobs_per_round: tuple[int, ...] = (1, 2, 4)
    max_delay: int = 10
    models: int | None = None
    coarse: bool = False

    def __post_init__(self) -> None:
        for name in self.families:
            if name not in FAMILIES:
                rule = f"must be among {', '.join(FAMILIES)}"
                raise ParameterError("schemes", rule, name, did_you_mean(name, FAMILIES))
        if self.max_delay < 0:
            raise ParameterError("max_delay", "must be >= 0 rounds", self.max_delay)
        if self.models is not None and self.models < 1:
            raise ParameterError("models", "must be >= 1", self.models)
        for name in ("mus", "wait_outs", "jobs_per_round"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ParameterError(name, "must be values that differ, one at least", values)
        list(self.rules())  # each checks itself

    def rules(self) -> Iterator[Rule]:
        """Yield every closing rule with every bundle, in the order in which ties are broken."""
        for k in self.jobs_per_round:
            for mu in self.mus:
                for wait_out in self.wait_outs:
                    yield Rule(mu=mu, wait_out=wait_out, jobs_per_round=k)

    def schemes(self, n: int) -> Iterator[Scheme]:
        """Yield every scheme for ``n`` workers, in the order in which ties are broken."""
        grid = _Grid(n=n, max_delay=self.max_delay, coarse=self.coarse)
        for name, enumerate_family in FAMILIES.items():
            if not self.families or name in self.families:
                yield from enumerate_family(grid)

    def has_models(self, delay: int, *, jobs_per_round: int) -> bool:
        """Whether the models suffice for a delay (rounds) in bundles of that many."""
        if self.models is None:
            return True
        return self.models % jobs_per_round == 0 and delay < self.models // jobs_per_round

    def repeats(self, scheme: Scheme, *, wait_out: WaitOut) -> bool:
        """Whether an earlier candidate does the same under another name."""
        if wait_out == "conform" and "feasible" in self.wait_outs:
            return _promises_all_it_decodes(scheme)
        if wait_out == "feasible" and isinstance(scheme, SRSGC) and not self.coarse:
            # Nobody asks what conforms, and what is sent depends on B and s alone.
            return scheme.W != scheme.B + 1 or scheme.lam != min(2 * scheme.s, scheme.n)
        return False


def _promises_all_it_decodes(scheme: Scheme) -> bool:
    """Whether no other answers than those that conform decode, and nothing else is ever due."""
    match scheme:
        case Uncoded() | GC(family="rep", allow_error=0.0):
            return True
        case GC(n=n, s=s, family=family, allow_error=0.0):
            return not make_code(family, n, s).covers
        case _:
            return False


def family_of(scheme: Scheme) -> str:
    """Return the name that the scheme's spec begins with.

    Examples
    --------
    >>> family_of(GC(n=4, s=1, family="rep"))
    'gc-rep'
    """
    return scheme.spec.partition(":")[0]


# ---- enumeration: valid parameters only, smaller first ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    n: int
    max_delay: int
    coarse: bool

    def values(self, low: int, high: int) -> list[int]:
        """Integers low … high; a coarse grid keeps about eight of them per factor of ten."""
        if high < low:
            return []
        if not self.coarse:
            return list(range(low, high + 1))
        first = max(low, 1)
        steps = max(2, int(8 * np.log10(max(high, first) / first)) + 1)
        spread = np.rint(np.geomspace(first, max(high, first), steps)).astype(int).tolist()
        return sorted({low, *(value for value in spread if value <= high)})

    def divisors(self) -> list[int]:
        """Group sizes that divide the workers, but for 1, which is no redundancy."""
        return [size for size in range(2, self.n + 1) if self.n % size == 0]


def _uncoded(grid: _Grid) -> Iterable[Scheme]:
    return [Uncoded(n=grid.n)]


def _gc_rep(grid: _Grid) -> Iterable[Scheme]:
    return (GC(n=grid.n, s=size - 1, family="rep") for size in grid.divisors())


def _gc(grid: _Grid) -> Iterable[Scheme]:
    return (GC(n=grid.n, s=s) for s in grid.values(1, grid.n - 1))


def _gc_binary(grid: _Grid) -> Iterable[Scheme]:
    return (GC(n=grid.n, s=s, family="binary") for s in grid.values(1, grid.n - 1))


def _m_sgc_windows(grid: _Grid) -> Iterator[tuple[int, int]]:
    """(B, W) of the delays W - 2 + B up to the largest, 1 <= B < W."""
    for delay in grid.values(1, grid.max_delay):
        for B in grid.values(1, (delay + 1) // 2):
            yield B, delay + 2 - B


def _m_sgc_rep(grid: _Grid) -> Iterable[Scheme]:
    for B, W in _m_sgc_windows(grid):
        for size in (1, *grid.divisors()):
            yield MSGC(n=grid.n, B=B, W=W, lam=size - 1, family="rep")


def _m_sgc_binary(grid: _Grid) -> Iterable[Scheme]:
    for B, W in _m_sgc_windows(grid):
        for lam in grid.values(0, grid.n - 1):
            yield MSGC(n=grid.n, B=B, W=W, lam=lam, family="binary")


def _m_sgc(grid: _Grid) -> Iterable[Scheme]:
    for B, W in _m_sgc_windows(grid):
        for lam in grid.values(0, grid.n):
            yield MSGC(n=grid.n, B=B, W=W, lam=lam)


def _sr_sgc_windows(grid: _Grid) -> Iterator[tuple[int, int]]:
    """(B, x) with W = x B + 1 up to twice the largest delay."""
    for B in grid.values(1, grid.max_delay):
        for x in grid.values(1, (2 * grid.max_delay - 1) // B):
            yield B, x


def _sr_sgc_rep(grid: _Grid) -> Iterable[Scheme]:
    for B, x in _sr_sgc_windows(grid):
        for size in grid.divisors():
            # s = ceil(lam / (x+1)): these are the lam that give s = size - 1.
            low, high = (size - 2) * (x + 1) + 1, min((size - 1) * (x + 1), grid.n)
            for lam in grid.values(low, high):
                yield SRSGC(n=grid.n, B=B, W=x * B + 1, lam=lam, family="rep")


def _sr_sgc(grid: _Grid) -> Iterable[Scheme]:
    for B, x in _sr_sgc_windows(grid):
        for lam in grid.values(1, min(grid.n, (grid.n - 1) * (x + 1))):  # s < n
            yield SRSGC(n=grid.n, B=B, W=x * B + 1, lam=lam)


FAMILIES: dict[str, Callable[[_Grid], Iterable[Scheme]]] = {
    "uncoded": _uncoded,
    "gc-rep": _gc_rep,
    "gc-binary": _gc_binary,
    "gc": _gc,
    "sr-sgc-rep": _sr_sgc_rep,
    "m-sgc-rep": _m_sgc_rep,
    "m-sgc-binary": _m_sgc_binary,
    "sr-sgc": _sr_sgc,
    "m-sgc": _m_sgc,
}
"""Enumerators of the schemes' parameters, by name, the quickly searched first."""

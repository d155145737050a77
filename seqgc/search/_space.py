"""The candidates of a search: schemes, closing rules and numbers of jobs per round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from seqgc.errors import ParameterError, did_you_mean, require_int
from seqgc.rounds import ClosingRule, WaitOut
from seqgc.schemes import Deal, Grid, Scheme, entry_of, registered
from seqgc.search.kernel import adds_results

__all__ = ["Closing", "SearchSpace"]

_Scheme = TypeVar("_Scheme", bound=Scheme | Deal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The part of a candidate without its scheme: a closing rule, and the bundle size."""

    rule: ClosingRule
    jobs_per_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The grid of a search: all valid combinations of a scheme, a closing rule and a bundle size.

    ``families`` are the names of schemes, by default all registered names. ``mus`` and
    ``wait_outs`` are values of the closing rule, and ``jobs_per_round`` are the numbers of models
    in a bundle. ``max_delay`` is the largest delay T of a scheme, in rounds. The windows W of
    SR-SGC are at most twice this number, because its delay B does not limit W. If ``coarse`` is
    True, the grid has fewer values, in geometric steps, for thousands of workers. If ``sums_only``
    is True, schemes that decode by weighted sums are omitted, because for many workers some sets of
    answers decode badly. If ``inexact`` is True, schemes whose gradients are approximations are
    searched too, and ranked separately. ``most`` is the largest number of schemes for each name;
    they are evenly spread over all schemes of the name.

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
    coarse: bool = False
    sums_only: bool = False
    inexact: bool = False
    most: int | None = None

    def __post_init__(self) -> None:
        for name in self.families:
            known = registered(name)
            if name not in known:
                rule = f"must be among {', '.join(known)}"
                raise ParameterError("schemes", rule, name, did_you_mean(name, known))
            if not issubclass(known[name].kind, Scheme | Deal):
                remedy = "compare it with other schemes by `seqgc compare`"
                rule = "must be schemes that work in rounds or deal their work"
                raise ParameterError("schemes", rule, name, remedy)
        require_int("max_delay", self.max_delay, least=0, most=10_000)
        if self.most is not None:
            require_int("most", self.most, least=1)
        for name in ("mus", "wait_outs", "jobs_per_round"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ParameterError(
                    name, "must have at least one value and no value twice", values
                )
        for k in self.jobs_per_round:
            require_int("jobs_per_round", k, least=1, most=10**9)
        list(self.closings())  # each closing rule validates itself

    def closings(self) -> Iterator[Closing]:
        """Yield every closing rule with every bundle size; in a tie, the earlier pair wins."""
        for k in self.jobs_per_round:
            for mu in self.mus:
                for wait_out in self.wait_outs:
                    yield Closing(rule=ClosingRule(mu=mu, wait_out=wait_out), jobs_per_round=k)

    def schemes(self, n: int, *, exact: bool = True) -> Iterator[Scheme]:
        """Yield every scheme for ``n`` workers; in a tie, the earlier scheme wins.

        Schemes are ordered by name; the name with the fewest candidates is first. If ``exact`` is
        False, the schemes whose gradients are approximations are yielded instead.
        """
        grid = Grid(max_delay=self.max_delay, coarse=self.coarse, inexact=not exact)
        by_name: dict[str, list[Scheme]] = {name: [] for name in self._names(dealt=False)}
        for kind in dict.fromkeys(registered()[name].kind for name in by_name):
            for scheme in kind.candidates(n, grid):
                if (
                    not isinstance(scheme, Scheme)
                    or scheme.exact != exact
                    or (self.sums_only and not adds_results(scheme))
                ):
                    continue
                if (name := entry_of(scheme).name) in by_name:
                    by_name[name].append(scheme)
        for schemes in sorted(by_name.values(), key=len):
            yield from self._spread(schemes)

    def deals(self, n: int) -> Iterator[Deal]:
        """Yield every scheme that deals work to ``n`` workers; in a tie, the earlier one wins."""
        grid = Grid(max_delay=self.max_delay, coarse=self.coarse)
        for name in self._names(dealt=True):
            candidates = registered()[name].kind.candidates(n, grid)
            yield from self._spread([each for each in candidates if isinstance(each, Deal)])

    def _spread(self, schemes: Sequence[_Scheme]) -> Sequence[_Scheme]:
        """Return at most ``most`` schemes, evenly spread, including the first and the last."""
        if self.most is None or len(schemes) <= self.most:
            return schemes
        return [schemes[int(i)] for i in np.linspace(0, len(schemes) - 1, self.most)]

    @property
    def has_schemes(self) -> bool:
        """True if the space has schemes that work in rounds."""
        return bool(self._names(dealt=False))

    @property
    def dealing(self) -> tuple[str, ...]:
        """The names in the space whose schemes deal work."""
        return tuple(self._names(dealt=True))

    def _names(self, *, dealt: bool) -> list[str]:
        return [
            name
            for name, entry in registered().items()
            if issubclass(entry.kind, Deal) == dealt
            and (not self.families or name in self.families)
        ]

"""Probabilistic synchronous parallel, as a plug-in: ``--plugin examples.sampling``, ``psp:beta=2``.

Wang, Catterall, Mortier (2017), "Probabilistic Synchronous Parallel", arXiv:1709.07772. To wait for
the slowest of all workers, somebody must know of all. Here a worker looks at ``beta`` others, drawn
anew for each of its clocks, and goes on as soon as none of these is more than ``slack`` clocks
behind. Most of the time a sample tells as much as all would, and a straggler that is in few samples
holds few up. With beta = n - 1 that is stale synchronous parallel (``ssp``), with beta = 0
asynchronous (``asp``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from seqgc.clocks import Barrier, ClockDefence, GlobalClock
from seqgc.errors import ParameterError
from seqgc.schemes import register


@register("psp")
@dataclass(frozen=True, kw_only=True)
class Psp(ClockDefence):
    """Nobody is more than ``slack`` clocks ahead of ``beta`` others, whom ``seed`` draws.

    Examples
    --------
    >>> Psp(n=8, beta=2).spec, Psp(n=8, beta=2).kind, Psp(n=8, beta=7).staleness
    ('psp:beta=2', 'stale', 1)
    """

    n: int
    beta: int
    slack: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        self._keep_integers("n", "beta", "slack", "seed")
        if not 0 <= self.beta < self.n:
            raise ParameterError("beta", f"must satisfy 0 <= beta < n (PSP), n={self.n}", self.beta)
        for name in ("slack", "seed"):
            if getattr(self, name) < 0:
                raise ParameterError(name, "must be >= 0 (PSP)", getattr(self, name))

    @property
    def barrier(self) -> Sampled:
        return Sampled(defence=self)

    @property
    def tolerates(self) -> str:
        return f"a worker waits for {self.beta} others, no more than {self.slack} clocks behind"


@dataclass(frozen=True, kw_only=True)
class Sampled(Barrier):
    """Clock t may begin when each of a sample has completed ``t - slack`` clocks."""

    defence: Psp

    @property
    def slack(self) -> int | None:
        return self.defence.slack if self.defence.beta == self.defence.n - 1 else None

    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:
        asked, behind = _sample(self.defence, part, clock), clock - self.defence.slack
        return all(clocks.clock(other) >= behind for other in asked)


@lru_cache(maxsize=2**14)  # it is asked again each time that somebody has completed a clock
def _sample(of: Psp, part: int, clock: int) -> tuple[int, ...]:
    """Draw whom a part asks before a clock: any others, each as likely."""
    rng = np.random.default_rng([of.seed, part, clock])
    others = rng.choice(of.n - 1, size=of.beta, replace=False)
    return tuple((others + (others >= part)).tolist())

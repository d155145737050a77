"""Probabilistic synchronous parallel, as a plug-in: ``--plugin examples.sampling``, ``psp:beta=2``.

Wang, Catterall, Mortier (2017), "Probabilistic Synchronous Parallel", arXiv:1709.07772. Waiting for
the slowest of all workers needs the state of all workers. Here a worker draws ``beta`` others for
each of its clocks, and proceeds as soon as none of them is more than ``slack`` clocks behind. A
sample is usually as informative as all workers, and a straggler in few samples delays few workers.
With beta = n - 1 this is stale synchronous parallel (``ssp``), with beta = 0 asynchronous
(``asp``).
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
    """A worker waits for ``beta`` workers, drawn by ``seed``, if ahead by more than ``slack``.

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
    """Rule: clock t may begin when every sampled part has completed ``t - slack`` clocks."""

    defence: Psp

    @property
    def slack(self) -> int | None:
        return self.defence.slack if self.defence.beta == self.defence.n - 1 else None

    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:
        asked, behind = _sample(self.defence, part, clock), clock - self.defence.slack
        return all(clocks.clock(other) >= behind for other in asked)


@lru_cache(maxsize=2**14)  # asked again whenever a worker completes a clock
def _sample(of: Psp, part: int, clock: int) -> tuple[int, ...]:
    """Draw the parts that a part waits for before a clock, uniformly."""
    rng = np.random.default_rng([of.seed, part, clock])
    others = rng.choice(of.n - 1, size=of.beta, replace=False)
    return tuple((others + (others >= part)).tolist())

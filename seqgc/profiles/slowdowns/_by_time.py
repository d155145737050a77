from __future__ import annotations

from dataclasses import dataclass

from seqgc.errors import require_int, require_number
from seqgc.profiles._pace import ByTime, Pace
from seqgc.profiles.slowdowns._slowdown import Slowdown, drawn_by_worker, require_share

__all__ = ["Disrupters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disrupters(Slowdown):
    """A pattern in which random machines take ``1 + delay`` times as long.

    A machine has ``per`` workers with consecutive numbers: workers 0 to ``per - 1`` are on the
    first machine. Every ``every_s`` seconds, each machine is drawn with probability
    ``probability``; it stays slow until the next draw. After ``windows`` draws the pattern begins
    again. Sources: Harlap et al. 2016 (probability 0.2 every 20 s, 8 workers on a machine); Cui et
    al. 2014 (probability 0.1, delay 1).

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> slowdown = Disrupters(n=2, delay=1.0, every_s=3.0, probability=0.5, seed=3)
    >>> [slowdown.sleep_s(0, round=0, at=at) for at in (0.0, 2.5, 3.0, 6.0, 8.5, 9.0)]
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    >>> slowdown = Disrupters(n=6, delay=1.0, probability=0.5, per=2, seed=1)
    >>> [slowdown.sleep_s(i, round=0) for i in range(6)]
    [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    """

    n: int
    delay: float
    clock_s: float = 1.0
    every_s: float = 20.0
    probability: float = 0.2
    per: int = 1
    windows: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self._check(delay=(self.delay, 0), seed=(self.seed, 0))
        require_number("every_s", self.every_s, above=0)
        require_int("windows", self.windows, least=1)
        require_int("per", self.per, least=1, most=self.n)
        require_share("probability", self.probability)

    def _drawn(self) -> Pace:
        machines = -(-self.n // self.per)
        drawn = drawn_by_worker(machines, self.windows, self.probability, seed=self.seed)
        slow = drawn.repeat(self.per, axis=1)[:, : self.n]
        return ByTime(rates=self._rate * (1 + self.delay * slow), width_s=self.every_s)

"""LB-BSP: in every round, each worker's share is in proportion to its recent speed.

Chen, Weng, Wang, Li, Li (2020), "Semi-Dynamic Load Balancing: Efficient Distributed Learning in
Non-Dedicated Environments", ACM SoCC. Before each iteration the batch is divided again, in
proportion to the expected speeds of the workers. The paper predicts speeds with a recurrent network
(NARX); here an exponential average takes its place. The shares are optimal in whole points
(`seqgc.control.balance`).

*What to expect.* If a worker computes slowly, a smaller share makes up for it. If a worker is slow
before it computes (because of a sleep, a start, or slow messages), a smaller share does not help:
the worker ends up with the least share, and the round still takes as long as this delay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from seqgc.control._controlled import Controlled
from seqgc.control._monitor import Monitor
from seqgc.control._shares import balance
from seqgc.ports import Event, FloatArray, RoundRecord
from seqgc.rounds import Decision, Setting
from seqgc.schemes import Balanced, register

__all__ = ["LBBSP", "LBBSPDirector"]

_NEW = 0.5  # weight of the latest round in the average speed


@register("lb-bsp")
@dataclass(frozen=True, kw_only=True)
class LBBSP(Controlled):
    """A defence that divides each batch in proportion to the workers' recent speeds.

    Each share has at least ``least`` and at most ``most`` points; ``most=0`` means no upper limit.
    If a batch has fewer than ``n * least`` points, ``points // n`` takes the place of ``least``.

    Raises
    ------
    ParameterError
        If ``least`` or ``most`` is below 0. At the start of a run: if a batch has more than
        ``n * most`` points, or ``least`` exceeds ``most``.

    Examples
    --------
    >>> LBBSP(n=4, most=128).spec, LBBSP(n=4).kind
    ('lb-bsp:most=128', 'exact')
    """

    n: int
    least: int = 1
    most: int = 0

    def __post_init__(self) -> None:
        self._keep_bounds(least=self.least, most=self.most)

    def first(self, parts: int) -> Balanced:
        return self.director(parts).shared(np.ones(self.n))

    def director(self, parts: int) -> LBBSPDirector:
        least = min(self.least, parts // self.n)
        return LBBSPDirector(self.n, parts=parts, least=least, most=self.most or None)


class LBBSPDirector:
    """The controller of one run of `LBBSP`; a `seqgc.rounds.Director`.

    Examples
    --------
    >>> from seqgc.master import run
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.rounds import ClosingRule
    >>> from seqgc.virtual import VirtualBackend
    >>> rates = np.array([[3.0, 1.0]])  # seconds for a whole batch
    >>> policy = LBBSP(n=2).policy(ClosingRule(), num_jobs=3, batches=[40])
    >>> run(policy, backend := VirtualBackend(2, ByRound(latencies_s=[[0.0]], rates=rates)))
    >>> [part.setting.scheme.shares for part in policy.segments], backend.now  # 1.5 + 0.75 + 0.75
    (['20x2', '10-30'], 3.0)
    """

    def __init__(self, n: int, *, parts: int, least: int = 1, most: int | None = None) -> None:
        self._parts, self._least, self._most = parts, least, most
        self._monitor = Monitor(n, window_s=1.0)
        self._speeds: FloatArray = np.zeros(n)  # batches per second; 0: not known

    def on(self, event: Event) -> None:
        self._monitor.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:  # noqa: ARG002 (the protocol's)
        new = self._monitor.close(record).speeds
        average = (1 - _NEW) * self._speeds + _NEW * new
        both = (self._speeds > 0) & (new > 0)
        self._speeds = np.where(both, average, np.maximum(self._speeds, new))

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:  # noqa: ARG002
        known = self._speeds > 0
        if not known.any():
            return None
        speeds = np.where(known, self._speeds, self._speeds[known].min())
        return Decision(setting=replace(setting, scheme=self.shared(speeds)))

    def shared(self, speeds: FloatArray) -> Balanced:
        """Return the optimal shares for these speeds (n,)."""
        shares = balance(speeds, self._parts, least=self._least, most=self._most)
        return Balanced.of(shares.tolist())

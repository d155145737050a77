"""LB-BSP: every round, each worker's share follows its speed in the latest ones.

Chen, Weng, Wang, Li, Li (2020), "Semi-Dynamic Load Balancing: Efficient Distributed Learning in
Non-Dedicated Environments", ACM SoCC: batches are shared out anew before each iteration, in
proportion to how fast workers are expected to be. Its predictor of speeds (NARX, a recurrent
network) is replaced by an exponential average here; shares are the best there are in whole points
(`seqgc.control.balance`).

*What to expect.* Where a worker computes slowly, its share makes up for it. Where it is slow before
it computes, as with a sleep, a start or a long way, no share does: it ends with the least one, and
the round still takes as long as that sleep.
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

_NEW = 0.5  # weight of the latest round in the average


@register("lb-bsp")
@dataclass(frozen=True, kw_only=True)
class LBBSP(Controlled):
    """Shares in proportion to speeds, anew every round; nobody has below ``least`` points.

    Nor above ``most``, unless that is 0. (A batch that is too small for ``least`` is shared out as
    evenly as can be.) `ParameterError`: one of them is below 0, or, when a run begins, a batch does
    not fit ``most``.

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
        self._speeds: FloatArray = np.zeros(n)  # batches a second, 0: not known

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
        """Return the shares that suit these speeds (n,) best."""
        shares = balance(speeds, self._parts, least=self._least, most=self._most)
        return Balanced.of(shares.tolist())

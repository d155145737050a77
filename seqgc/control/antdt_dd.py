"""AntDT-DD: shares for workers of different speeds and limited memory, chosen once.

AntDT: a self-adaptive distributed training framework for leader and straggler nodes (2024), its
controller for dedicated clusters. The workers of such a cluster have different speeds, for example
because they have different GPUs, but their speeds do not change. Each has memory for a limited
number of points at a time. A fast worker computes several blocks in a round, one after the other,
and accumulates their gradients. The sizes are the solution of the paper's Eq. 4
(`seqgc.control.balance_in_blocks`). Here each block is a mini-task (`seqgc.schemes.Balanced`), and
the master adds their results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from seqgc.control._controlled import Controlled
from seqgc.control._monitor import Monitor
from seqgc.control._shares import MOST_BLOCKS, balance, balance_in_blocks
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Event, RoundRecord
from seqgc.rounds import Decision, Setting
from seqgc.schemes import Balanced, register

__all__ = ["AntDTDD", "AntDTDDDirector"]


@register("antdt-dd")
@dataclass(frozen=True, kw_only=True)
class AntDTDD(Controlled):
    """A defence that measures speeds for ``probe`` rounds, and then chooses all workers' shares.

    During these rounds the shares are equal. Afterwards a share consists of at most `MOST_BLOCKS`
    blocks of ``least`` to ``most`` points. With ``most=0`` there is no upper limit, and a share is
    one block.

    Raises
    ------
    ParameterError
        If ``least`` or ``probe`` is below 1, or ``most`` below 0. At the start of a run: if
        `MOST_BLOCKS` blocks of ``most`` points do not hold an equal share of a batch. After the
        measurement: if a batch cannot be made of blocks of ``least`` to ``most`` points.

    Examples
    --------
    >>> AntDTDD(n=8, most=128).first(parts=1600)
    Balanced(n=8, shares='200x8', blocks='2x8')
    """

    n: int
    most: int = 0
    least: int = 1
    probe: int = 5

    def __post_init__(self) -> None:
        self._keep_bounds(most=self.most)
        for name in ("least", "probe"):
            object.__setattr__(self, name, require_int(name, getattr(self, name), least=1))

    def first(self, parts: int) -> Balanced:
        shares = balance(np.ones(self.n), parts)
        most = self.most or parts
        if math.ceil(int(shares.max()) / most) > MOST_BLOCKS:
            least = math.ceil(int(shares.max()) / MOST_BLOCKS)
            held = f"{MOST_BLOCKS} blocks hold a worker's share of {shares.max()} points"
            raise ParameterError("most", f"must be 0 or >= {least}, so that {held}", self.most)
        return Balanced.of(shares.tolist(), blocks=np.maximum(-(-shares // most), 1).tolist())

    def director(self, parts: int) -> AntDTDDDirector:
        return AntDTDDDirector(self, parts=parts)


class AntDTDDDirector:
    """The controller of one run of `AntDTDD`; a `seqgc.rounds.Director`.

    Examples
    --------
    >>> from seqgc.master import run
    >>> from seqgc.profiles import ByRound
    >>> from seqgc.rounds import ClosingRule
    >>> from seqgc.virtual import VirtualBackend
    >>> rates = 192 / np.array([[300.0, 100.0]])  # seconds for a batch of 192
    >>> defence = AntDTDD(n=2, most=128, probe=1)
    >>> policy = defence.policy(ClosingRule(), num_jobs=3, batches=[192])
    >>> run(policy, backend := VirtualBackend(2, ByRound(latencies_s=[[0.0]], rates=rates)))
    >>> policy.segments[-1].setting.scheme, round(backend.now, 9)  # 0.96 + 0.48 + 0.48
    (Balanced(n=2, shares='144-48', blocks='2-1'), 1.92)
    """

    def __init__(self, defence: AntDTDD, *, parts: int) -> None:
        self._defence, self._parts = defence, parts
        self._monitor = Monitor(defence.n, window_s=math.inf)
        self._left = defence.probe  # rounds that are still to be measured

    def on(self, event: Event) -> None:
        if self._left:
            self._monitor.on(event)

    def close(self, record: RoundRecord, *, setting: Setting) -> None:  # noqa: ARG002 (the protocol's)
        if self._left:
            self._monitor.close(record)

    def choose(self, *, setting: Setting, jobs_left: int) -> Decision | None:  # noqa: ARG002
        if not self._left:
            return None
        self._left -= 1
        if self._left:
            return None
        speeds = self._monitor.speeds(math.inf)
        measured = np.where(speeds.known, speeds.values, speeds.values[speeds.known].min())
        most = self._defence.most or self._parts
        points, blocks = balance_in_blocks(
            measured, self._parts, least=self._defence.least, most=most
        )
        scheme = Balanced.of((points * blocks).tolist(), blocks=blocks.tolist())
        return Decision(setting=replace(setting, scheme=scheme))

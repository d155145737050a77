"""AntDT-ND with asynchronous workers: persistent stragglers are replaced.

AntDT (2024) also runs its controller for non-dedicated clusters with asynchronous workers. There
slow workers cost less, because no worker waits for another one, and each takes a new shard of the
data when it is free (`seqgc.shards`).

- A *transient* straggler needs no action. It takes fewer shards, so that its share of the data
  follows its speed. Smaller shares (ADJUST_BS) would only divide its work into more tasks; a worker
  that sleeps before each task would sleep more often.
- A *persistent* straggler still costs the work that a normal worker would do in its place. It is
  replaced (KILL_RESTART) by the rule of `antdt-nd` (`seqgc.control.Persistence`). Another worker
  continues its shard at the first part that has not been applied, so that every part is applied
  exactly once. With ``resume="shard"`` the whole shard is computed again (`seqgc.shards.AspDds`).

The time of a batch is here the time of a task. A task is one part of a batch, and all tasks are
equally large. When a worker is replaced, and when a run is resumed, measurements start again.

*What to expect.* Without persistent stragglers a run is the same as with `asp-dds`. Suppose that
one of n workers is ``x`` times as slow as the other workers. After it is replaced, the work takes
about ``(1 - 1/x) / n`` less time; the start of the new worker costs a part of this. The windows of
the paper are several minutes long: in shorter runs this defence does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from seqgc.control._monitor import TaskMonitor
from seqgc.control._persistence import Persistence
from seqgc.control._replacing import ReplacingPolicy
from seqgc.ports import IntArray, Payload
from seqgc.rounds import ClosingRule, PolicyDefence
from seqgc.schemes import Kind, register
from seqgc.shards import AspDds, Resume

__all__ = ["AntDTNDAsp"]


@register("antdt-nd-asp")
@dataclass(frozen=True, kw_only=True)
class AntDTNDAsp(PolicyDefence):
    """Asynchronous workers that take shards of ``M`` parts; persistent stragglers are replaced.

    For ``M`` and ``resume`` see `seqgc.shards.AspDds`. For ``lam``, ``per`` and ``act`` (the last
    two in seconds) see `Persistence`. The staleness of gradients has no bound. The load of each
    worker is ``1/n``.

    Raises
    ------
    ParameterError
        If a field breaks its rule.

    Examples
    --------
    >>> defence = AntDTNDAsp(n=20, M=4, per=60.0)
    >>> defence.spec, defence.kind, defence.staleness
    ('antdt-nd-asp:M=4,per=60.0', 'stale', None)
    >>> defence.tolerates
    'no worker waits; a worker that is 1.5 times as slow as the average for 60 s is replaced'
    """

    n: int
    M: int = 1
    resume: Resume = "part"
    lam: float = 1.5
    per: float = 600.0
    act: float = 300.0
    exact: ClassVar[bool] = False
    kind: ClassVar[Kind] = "stale"

    def __post_init__(self) -> None:
        self._keep_integers("n", "M")
        self._shards()
        self._rule()

    @property
    def tolerates(self) -> str:
        return f"no worker waits; a worker that is {self._rule().reason} is replaced"

    @property
    def most_again(self) -> int:
        return self._shards().most_again

    def points_touched(self, sizes: IntArray) -> IntArray:
        return self._shards().points_touched(sizes)

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> ReplacingPolicy:
        shards = self._shards().policy(rule, num_jobs=num_jobs, batches=batches, payload=payload)
        monitor = TaskMonitor(self.n, window_s=self.per)
        return ReplacingPolicy(shards, monitor=monitor, rule=self._rule())

    def _shards(self) -> AspDds:
        return AspDds(n=self.n, M=self.M, resume=self.resume)

    def _rule(self) -> Persistence:
        return Persistence(lam=self.lam, per=self.per, act=self.act)

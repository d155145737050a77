"""AntDT-ND on asynchronous workers: data are dealt out, and who stays slow is replaced.

AntDT (2024) has its controller for non-dedicated clusters run on asynchronous workers, too. What
slowness costs there is less: nobody waits, and data are dealt out in shards (`seqgc.shards`).

- A *transient* straggler needs nothing done about it. It takes shards more rarely, so that its
  share follows its speed by itself, task by task. To adjust shares (ADJUST_BS) would make its tasks
  smaller besides, and more of them: of one that sleeps before each, that is more sleep.
- A *persistent* one still costs all the work that it does not do. By the rule of `antdt-nd`
  (`seqgc.control.Persistence`) it is replaced (KILL_RESTART): its shard goes back, and on at its
  first part that has not been applied, by others. So every part is applied exactly once, unless
  ``resume="shard"`` has them do it again as a whole (`seqgc.shards.AspDds`).

The time of a batch is here that of a task, one part of a batch, and all tasks are as large. What is
known of a worker that is replaced is forgotten, and is measured anew in a run that is resumed.

*What to expect.* Without persistent stragglers it is `asp-dds`. With one of n workers, ``x`` times
as slow as the others, a run is about ``(1 - 1/x) / n`` shorter for as long as the fresh one works,
less what its start takes. The paper's windows are minutes: in shorter runs it does nothing.
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
    """Asynchronous workers that take shards of ``M`` parts; those that stay slow are replaced.

    ``M`` and ``resume`` are those of `seqgc.shards.AspDds`; ``lam``, ``per`` and ``act`` (seconds)
    are those of `Persistence`. Gradients are stale without bound, and a worker's load is ``1/n``.
    `ParameterError`: one of them breaks its rule.

    Examples
    --------
    >>> defence = AntDTNDAsp(n=20, M=4, per=60.0)
    >>> defence.spec, defence.kind, defence.staleness
    ('antdt-nd-asp:M=4,per=60.0', 'stale', None)
    >>> defence.tolerates
    'nobody waits for who is slow or fails; who is 1.5 times as slow as others for 60 s is replaced'
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
        return f"nobody waits for who is slow or fails; who is {self._rule().reason} is replaced"

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

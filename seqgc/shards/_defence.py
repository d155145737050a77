"""`AspDds`: data in shards, which asynchronous workers take as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import IntArray, Payload
from seqgc.rounds import ClosingRule, PolicyDefence
from seqgc.schemes import Kind, register
from seqgc.shards._policy import ShardPolicy
from seqgc.shards._service import Resume, require_resume

__all__ = ["AspDds"]

_MOST = 10**9
"""Parts, jobs: more than any run has."""


@register("asp-dds")
@dataclass(frozen=True, kw_only=True)
class AspDds(PolicyDefence):
    """Asynchronous workers that take shards of ``M`` >= 1 local batches; nobody waits for anybody.

    In `asp` each worker has its share of the data, and the run ends with the slowest one's. Here
    the data are dealt out (dynamic data sharding): who is slow does less of them. Gradients are of
    weights that lack whatever others have not handed in (kind stale), and staleness has no bound. A
    worker's load is ``1/n``: one part of a batch at a time.

    With ``M = 1``, the default, all end at nearly one time. With more a worker stays on data that
    lie together, and the run waits for the last shards: n of them are M batches.

    Of a shard that is lost with its worker the parts that are in are not done again, and each is
    applied exactly once. With ``resume="shard"``, as in the paper, whose workers push updates to
    servers that know no shards, it is done again as a whole: each part is applied at least once,
    and up to ``M - 1`` once more for each shard that is lost.

    `seqgc.shards.ShardPolicy` runs it. Source: AntDT (2024), V-C.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> from seqgc.schemes import parse_scheme
    >>> [parse_scheme(spec, n=8) for spec in ("asp-dds", "asp-dds:M=100")]
    [AspDds(n=8, M=1, resume='part'), AspDds(n=8, M=100, resume='part')]
    >>> AspDds(n=8, M=100).kind, AspDds(n=8, M=100).staleness
    ('stale', None)
    >>> AspDds(n=8, M=100, resume="shard").most_again
    99
    """

    n: int
    M: int = 1
    resume: Resume = "part"
    exact: ClassVar[bool] = False
    kind: ClassVar[Kind] = "stale"

    def __post_init__(self) -> None:
        self._keep_integers("n", "M")
        require_resume(self.resume)
        if not 1 <= self.M <= _MOST:
            raise ParameterError("M", f"must satisfy 1 <= M <= {_MOST} (local batches)", self.M)

    @property
    def tolerates(self) -> str:
        again = "is done again as a whole" if self.resume == "shard" else "goes on where it was"
        return f"nobody waits for who is slow or fails; a shard that is lost {again}"

    @property
    def most_again(self) -> int:
        return self.M - 1 if self.resume == "shard" else 0

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.full(self.n, sizes.max())  # anybody may compute any part

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has no weights to judge)
    ) -> ShardPolicy:
        loads = self.loads_of_batches(batches)
        return ShardPolicy(
            self.n, rule, num_jobs=num_jobs, M=self.M, resume=self.resume, loads=loads
        )

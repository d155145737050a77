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

    `seqgc.shards.ShardPolicy` runs it. Source: AntDT (2024), V-C.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> from seqgc.schemes import parse_scheme
    >>> [parse_scheme(spec, n=8) for spec in ("asp-dds", "asp-dds:M=100")]
    [AspDds(n=8, M=1), AspDds(n=8, M=100)]
    >>> AspDds(n=8, M=100).kind, AspDds(n=8, M=100).staleness
    ('stale', None)
    """

    n: int
    M: int = 1
    exact: ClassVar[bool] = False
    kind: ClassVar[Kind] = "stale"

    def __post_init__(self) -> None:
        self._keep_integers("n", "M")
        if not 1 <= self.M <= _MOST:
            raise ParameterError("M", f"must satisfy 1 <= M <= {_MOST} (local batches)", self.M)

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
        return ShardPolicy(self.n, rule, num_jobs=num_jobs, M=self.M, loads=loads)

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
"""The largest ``M`` that is accepted: more than the parts of any run."""


@register("asp-dds")
@dataclass(frozen=True, kw_only=True)
class AspDds(PolicyDefence):
    """Asynchronous workers that take shards of ``M`` >= 1 parts; no worker waits for another.

    With `asp` each worker has a fixed share of the data, and the run ends when the slowest worker
    has finished its share. Here a worker takes the next shard when it is free (dynamic data
    sharding), so that a slow worker computes less of the data. A part is one of the ``n`` parts of
    a batch, and a task is one part, so that a worker's load is ``1/n``. Gradients are stale: a
    worker's weights lack the updates that other workers have not sent yet, and their number has no
    bound.

    With ``M = 1``, the default, all workers finish at nearly the same time. With a larger ``M`` a
    worker computes parts that lie next to each other in the data, but the run waits longer for its
    last shards.

    If a worker fails, its shard is lost. The shard continues at its first part that has not been
    applied, so that each part is applied exactly once. With ``resume="shard"`` the whole shard is
    computed again. Then each part is applied at least once, and each time a shard is lost, up to
    ``M - 1`` of its parts are applied again. This is the rule of the paper: there, workers send
    updates to parameter servers, which do not know to which shard an update belongs.

    `seqgc.shards.ShardPolicy` is the policy. Source: AntDT (2024), V-C.

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
            raise ParameterError("M", f"must satisfy 1 <= M <= {_MOST} (parts)", self.M)

    @property
    def tolerates(self) -> str:
        again = "computed again as a whole" if self.resume == "shard" else "continued where it was"
        return f"no worker waits; the shard of a worker that fails is {again}"

    @property
    def most_again(self) -> int:
        return self.M - 1 if self.resume == "shard" else 0

    def points_touched(self, sizes: IntArray) -> IntArray:
        return np.full(self.n, sizes.max())  # any worker may compute any part

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

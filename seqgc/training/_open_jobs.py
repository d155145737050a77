"""`OpenJob`: a job whose batch comes in parts, from its beginning to the end of its step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from seqgc.ports import WeightRef
from seqgc.training._jobs import Share
from seqgc.training._models import PartsState
from seqgc.training._tree_sum import TreeSum

__all__ = ["OpenJob"]


@dataclass(slots=True, eq=False)
class OpenJob:
    """A job that has begun, and whose step is not over.

    Examples
    --------
    >>> job = OpenJob(shares=(), total=TreeSum(of=2))
    >>> for part, loss in ((1, 0.5), (0, 0.25)):
    ...     print(job.is_complete)
    ...     job.losses[part] = [loss]
    False
    False
    >>> job.is_complete, job.loss()
    (True, [0.75])
    """

    shares: tuple[Share, ...]  # its models'; with the weights published last when it began
    total: TreeSum = field(default_factory=lambda: TreeSum(of=0))  # of no part: not known yet
    losses: dict[int, list[float]] = field(default_factory=dict)  # by part that is in
    reads: defaultdict[int | None, set[WeightRef]] = field(default_factory=lambda: defaultdict(set))
    """What has been sent of each part that is not in: the versions that its tasks read."""

    @property
    def is_complete(self) -> bool:
        """Whether all its parts are in."""
        return 0 < self.total.of == len(self.losses)

    def loss(self) -> list[float]:
        """Return the models' losses on the batch, each the sum of its parts'."""
        of_parts = np.array([self.losses[part] for part in sorted(self.losses)])
        return list(map(float, of_parts.sum(axis=0)))

    # ---- checkpoints ----------------------------------------------------------------------------

    def state(self) -> PartsState:
        """Return what is known of it, apart from `tensors`."""
        losses = {part: list(losses) for part, losses in self.losses.items()}
        return PartsState(of=self.total.of, losses=losses, sums=list(self.total.nodes))

    def tensors(self, job: int) -> dict[str, torch.Tensor]:
        """Return copies of what waits to be added up, by names with the job's number."""
        nodes = self.total.nodes.items()
        return {_sum_name(job, *node): torch.from_numpy(each.copy()) for node, each in nodes}

    @classmethod
    def restored(
        cls,
        job: int,
        shares: tuple[Share, ...],
        state: PartsState,
        tensors: Mapping[str, torch.Tensor],
    ) -> OpenJob:
        """Return the job of which these are the state and, among others, the tensors."""
        nodes = {node: tensors[_sum_name(job, *node)].numpy() for node in state.sums}
        return cls(shares, total=TreeSum(of=state.of, nodes=nodes), losses=dict(state.losses))


def _sum_name(job: int, level: int, index: int) -> str:
    return f"parts.{job}.{level}.{index}"

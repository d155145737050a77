"""`OpenJob`: a job whose batch comes in parts, from its beginning to the end of its step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from seqgc.ports import Part, WeightRef
from seqgc.training._jobs import Share
from seqgc.training._models import PartsState
from seqgc.training._result import LossSums
from seqgc.training._tree_sum import TreeSum

__all__ = ["OpenJob"]


@dataclass(slots=True, eq=False)
class OpenJob:
    """A job that has begun, and whose step is not over.

    ``may_repeat``: parts that are in may come again, until it is said that none does.

    Examples
    --------
    >>> from seqgc.training._result import LossSums
    >>> job = OpenJob(shares=())
    >>> for part, loss in ((1, 0.5), (0, 0.25)):
    ...     print(job.is_complete, job.takes(Part(index=part, of=2)))
    ...     job.take(Part(index=part, of=2), [LossSums(loss=loss, weight=0.5, points=0.5)])
    False True
    False True
    >>> job.is_complete, job.loss(), job.takes(Part(index=0, of=2))
    (True, [0.75], False)
    """

    shares: tuple[Share, ...]  # its models'; with the weights published last when it began
    total: TreeSum = field(default_factory=lambda: TreeSum(of=0))  # of no part: not known yet
    losses: dict[int, list[LossSums]] = field(default_factory=dict)  # by part that is in
    reads: defaultdict[int | None, set[WeightRef]] = field(default_factory=lambda: defaultdict(set))
    """What has been sent of each part that is to come: the versions that its tasks read."""
    may_repeat: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all its parts are in, for good."""
        return 0 < self.total.of == len(self.losses) and not self.may_repeat

    @property
    def read(self) -> set[WeightRef]:
        """The versions that tasks read which are on their way."""
        return {ref for refs in self.reads.values() for ref in refs}

    def takes(self, part: Part) -> bool:
        """Say whether a part may come now: for the first time, or again if it says so."""
        is_next = part.again and self.may_repeat if part.index in self.losses else not part.again
        return is_next and self.total.of in (0, part.of)

    def take(self, part: Part, losses: list[LossSums]) -> None:
        """Record a part that has arrived, and the sums of each model's loss over it."""
        self.total.of = part.of
        self.losses[part.index] = losses

    def loss(self) -> list[float]:
        """Return the models' mean losses on the batch."""
        of_parts = [self.losses[part] for part in sorted(self.losses)]
        return [LossSums.total(of_model).mean for of_model in zip(*of_parts, strict=True)]

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
        total, losses = TreeSum(of=state.of, nodes=nodes), dict(state.losses)
        return cls(shares, total=total, losses=losses)


def _sum_name(job: int, level: int, index: int) -> str:
    return f"parts.{job}.{level}.{index}"

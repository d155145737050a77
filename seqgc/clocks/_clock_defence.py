from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from seqgc.clocks._barrier import Barrier
from seqgc.clocks._policy import ClockPolicy
from seqgc.ports import IntArray, Payload
from seqgc.rounds import ClosingRule, PolicyDefence
from seqgc.schemes import Kind

__all__ = ["ClockDefence"]


class ClockDefence(PolicyDefence):
    """Base class of defences in which each worker proceeds independently, up to a `barrier`.

    A subclass is a frozen dataclass that defines `barrier` and is registered in the same way as a
    scheme; see `Clocks` or ``examples/sampling.py``. The load is ``1/n``: nothing is computed
    twice. `ClockPolicy` is the policy.
    """

    wpc: int = 1
    """Work per clock: the number of jobs after which a worker sends its results and may wait."""

    @property
    @abstractmethod
    def barrier(self) -> Barrier:
        """The rule for when a part may begin its next clock."""

    @property
    def staleness(self) -> int | None:
        """The most earlier jobs whose updates the weights of a part may lack.

        None means no limit. Source: Cui et al. 2014, 2.3.
        """
        slack = self.barrier.slack
        return None if slack is None else self.wpc * (slack + 1) - 1

    @property
    def in_order(self) -> bool:
        return self.wpc == 1  # the jobs of one task read the same weights

    @property
    def exact(self) -> bool:
        return self.staleness == 0

    @property
    def kind(self) -> Kind:
        return "exact" if self.exact else "stale"

    @property
    def jobs_per_task(self) -> int:
        return self.wpc

    def points_touched(self, sizes: IntArray) -> IntArray:
        return sizes

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,  # noqa: ARG002 (a plain sum has no weights to judge)
    ) -> ClockPolicy:
        shares = self.loads_of_batches(batches)
        return ClockPolicy(
            self.n, rule, num_jobs=num_jobs, barrier=self.barrier, wpc=self.wpc, shares=shares
        )

"""A defence that is no scheme: it brings the policy that runs it.

`RoundPolicy` runs every scheme, for all of them do the same: send everybody their tasks, close the
round, decode. Where workers go on by themselves, or a round's shares follow from how fast they
were, that is what the defence is. So it makes its own policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from seqgc.ports import FloatArray, Payload, Policy
from seqgc.rounds._rule import ClosingRule, Setting
from seqgc.rounds._switching import SwitchingPolicy
from seqgc.schemes import Defence

__all__ = ["PolicyDefence", "policy_of"]


class PolicyDefence(Defence):
    """A defence with a policy of its own; a frozen dataclass, registered as a scheme is.

    Its jobs come in ``n`` equal parts, one a worker, unless it says otherwise.
    """

    delay: ClassVar[int] = 0

    @abstractmethod
    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> Policy:
        """Return what runs ``num_jobs`` jobs. Of the ``rule`` time limit and attempts may count.

        ``batches`` are the sizes of the models' batches, and results travel in ``payload``.
        """

    def jobs_in_flight(self, bundles: int) -> int:  # noqa: ARG002 (it does not depend on them)
        return 1

    def fitted(self, bundles: int) -> PolicyDefence:  # noqa: ARG002 (it leaves nothing open)
        return self

    @property
    def worker_loads(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def chunk_fractions(self) -> FloatArray:
        return self._equal_loads(1 / self.n)

    @property
    def load_lower_bound(self) -> float:
        return 1 / self.n


def policy_of(
    setting: Setting,
    *,
    num_jobs: int,
    batches: Sequence[int] = (),
    payload: Payload | None = None,
) -> Policy:
    """Return what runs ``num_jobs`` jobs under a setting, whatever its defence.

    Examples
    --------
    >>> from seqgc.schemes import Uncoded
    >>> type(policy_of(Setting(scheme=Uncoded(n=2)), num_jobs=3)).__name__
    'SwitchingPolicy'
    """
    if isinstance(setting.scheme, PolicyDefence):
        return setting.scheme.policy(
            setting.rule, num_jobs=num_jobs, batches=batches, payload=payload
        )
    return SwitchingPolicy(setting, num_jobs=num_jobs, batches=batches, payload=payload)

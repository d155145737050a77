"""`Controlled`: a defence in which a controller changes the workers' shares between rounds.

Every round runs a `Balanced` scheme. Such a scheme is uncoded, exact and has delay 0, so that a
round with other shares can follow at no cost. A `seqgc.rounds.Director` chooses the shares of the
next round. It sees every event and every closed round, but has no clock and no access to workers.
Therefore a controller decides the same after the same events, in a live run or in virtual time. A
resumed run continues with the shares of its checkpoint. Its director starts without measurements,
because the run has other workers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from seqgc.errors import require_int
from seqgc.ports import Payload
from seqgc.rounds import ClosingRule, Director, PolicyDefence, Setting, SwitchingPolicy
from seqgc.schemes import Balanced

__all__ = ["Controlled"]

PARTS: Final = 100
"""The number of parts per worker into which a batch is cut if its number of points is unknown."""


class Controlled(PolicyDefence):
    """A defence whose rounds run `Balanced` schemes; base class of frozen dataclasses.

    All gradients are exact. A subclass defines `first` and `director`.

    Examples
    --------
    >>> from seqgc.control import LBBSP
    >>> policy = LBBSP(n=2).policy(ClosingRule(), num_jobs=3, batches=[32])
    >>> policy.scheme_of(0)
    Balanced(n=2, shares='16x2', blocks='')
    """

    exact: ClassVar[bool] = True

    @property
    def tolerates(self) -> str:
        return "each round waits for all workers; slow workers get smaller shares"

    @abstractmethod
    def first(self, parts: int) -> Balanced:
        """Return the scheme of the first round.

        The shares sum to ``parts``, the number of points of the largest batch.
        """

    @abstractmethod
    def director(self, parts: int) -> Director:
        """Return a new controller of one run, whose shares sum to ``parts``."""

    def policy(
        self,
        rule: ClosingRule,
        *,
        num_jobs: int,
        batches: Sequence[int] = (),
        payload: Payload | None = None,
    ) -> SwitchingPolicy:
        parts = max(batches, default=PARTS * self.n)
        setting = Setting(scheme=self.first(parts), rule=rule)
        return SwitchingPolicy(
            setting,
            num_jobs=num_jobs,
            director=self.director(parts),
            batches=batches,
            payload=payload,
        )

    def _keep_bounds(self, **fields: int) -> None:
        """Check that these fields are integers >= 0, and convert them to `int`."""
        self._keep_integers("n", *fields)
        for name, value in fields.items():
            require_int(name, value, least=0)

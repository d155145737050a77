"""The budget of a run on functions that stay: what is paid for is their time, not their tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from seqgc.deploy._spending import PriceModel, Published
from seqgc.errors import BudgetError, ParameterError
from seqgc.ports import Dispatch, Seen

if TYPE_CHECKING:
    from seqgc.backends.lambda_ import Leases

__all__ = ["StayBudget"]


class StayBudget:
    """Stops a run on resident functions before it costs more than ``max_usd`` US dollars.

    A function is paid for from its start until it ends, idle or not. While it is there, and where
    it is not known to have ended (a connection may break, and the function run on), all that is
    left of its lease is reserved. So no function is invoked, the first ones or a successor, and no
    task leaves, unless the run stays within the budget even if all functions stay to the end of
    their time. What tasks move through the store is charged when they leave.

    Raises
    ------
    ParameterError
        If ``max_usd`` is negative.

    Examples
    --------
    >>> from seqgc.backends.lambda_ import Leases
    >>> from seqgc.deploy import FunctionSetup, Traffic, read_prices
    >>> function = FunctionSetup(memory_mb=1024, timeout_s=890.0)
    >>> traffic = Traffic(where="inline", weights_bytes=0, result_bytes=8)
    >>> model = PriceModel(read_prices(), architecture="arm64", function=function, traffic=traffic)
    >>> leases = Leases(longest_s=function.longest_s)
    >>> budget = StayBudget(1.0, model=model)
    >>> budget.watch(leases)
    >>> leases.begin(0, at=0.0)
    >>> round(budget.committed_usd, 6)  # 900 s of 1 GB
    0.012
    """

    def __init__(self, max_usd: float, *, model: PriceModel) -> None:
        if not max_usd >= 0:
            raise ParameterError("max_usd", "must be an amount >= 0, US dollars", max_usd)
        self._max_usd, self._model = max_usd, model
        self._leases: Leases | None = None
        self._other_usd = 0.0  # tasks, weights, and all before these leases
        self._published = Published(anew=model.traffic.versions > 1)

    def watch(self, leases: Leases) -> None:
        """Let functions in from now on, and charge them; of those before, what they can become."""
        self._other_usd = self.committed_usd
        self._leases = leases
        leases.admit = self._admit_function

    @property
    def spent_usd(self) -> float:
        """What has been spent, functions whose end is not known left out."""
        if (leases := self._leases) is None:
            return self._other_usd
        ended = leases.count - leases.open
        return self._other_usd + self._model.stays_usd(leases.ended_s, count=ended)

    @property
    def committed_usd(self) -> float:
        """What it can become, US dollars, if all that are there stay to the end of their time."""
        if (leases := self._leases) is None:
            return self._other_usd
        return self.spent_usd + self._model.stays_usd(leases.open_s, count=leases.open)

    @property
    def memory(self) -> Mapping[str, float]:
        """What a resumed run has spent before it begins: leases that are open count in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self.spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Count what the run has spent before; BudgetError if that is too much already.

        The weights of the jobs in flight, no more than a task needs, will be published again.
        """
        self._other_usd += memory["committed_usd"]
        self._other_usd += self._model.traffic.weights_jobs * self._model.job_usd
        self._published = replace(self._published, count=0, newest=None)
        self._require(0.0, "not resumed", 0)

    def __call__(self, seen: Seen) -> None:
        """Take note of an action; `BudgetError` if tasks about to leave could pass the budget."""
        if not isinstance(seen, Dispatch):
            return
        published = self._published.and_for(seen)
        usd = (published.count - self._published.count) * self._model.job_usd
        usd += len(seen.assignment) * self._model.moved_usd
        self._require(usd, f"stopped before round {seen.round}", seen.round)
        self._other_usd += usd
        self._published = published

    def _admit_function(self) -> None:
        usd = self._model.stays_usd(self._model.function.longest_s, count=1)
        self._require(usd, "stopped before another function was invoked to stay", 0)

    def _require(self, usd: float, what: str, round: int) -> None:
        spent_usd, committed_usd = self.spent_usd, self.committed_usd
        if committed_usd + usd > self._max_usd:
            raise BudgetError(
                f"{what}: it could cost up to ${usd:.6f}, with ${spent_usd:.6f} spent and "
                f"${committed_usd - spent_usd:.6f} reserved for the leases of functions, of a "
                f"budget of ${self._max_usd:.6f}; what was trained is in the run's checkpoints "
                "(raise --max-usd)",
                round=round,
                spent_usd=spent_usd,
            )

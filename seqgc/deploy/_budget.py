"""A budget: an observer of the loop that refuses what could pass it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from seqgc.deploy._prices import Architecture, FunctionSetup, Prices, Traffic, Usage
from seqgc.errors import BudgetError, ParameterError
from seqgc.ports import Arrival, Dispatch, Dispatched, Failure, Seen


@dataclass(frozen=True, slots=True)
class PriceModel:
    """What one task of a run costs, by its seconds, and at most (``longest_s`` seconds).

    ``traffic`` is what a task moves through the store.

    Examples
    --------
    >>> from seqgc.deploy import read_prices
    >>> function = FunctionSetup(memory_mb=1024, timeout_s=10.0)
    >>> traffic = Traffic(where="inline", weights_bytes=0, result_bytes=8)
    >>> model = PriceModel(read_prices(), architecture="arm64", function=function, traffic=traffic)
    >>> model.task_usd(3.0) == 3 * 0.0000133334 + 0.20 / 1e6, model.longest_s
    (True, 20.0)
    """

    prices: Prices
    _: KW_ONLY
    architecture: Architecture
    function: FunctionSetup
    traffic: Traffic

    @property
    def longest_s(self) -> float:
        """The most that an invocation is charged for, seconds."""
        return self.function.longest_s

    @property
    def job_usd(self) -> float:
        """The price of publishing a job's weights."""
        return self._usd(self.traffic.publication())

    @property
    def warm_up_usd(self) -> float:
        """The most that one invocation before the first round can cost."""
        return self._usd(self.function.invocation(self.longest_s))

    def task_usd(self, seconds: float) -> float:
        """Return the price of a task of so many seconds, any start of its environment included.

        ``longest_s`` is the most that is charged. It reads all its weights, as after a start.
        """
        return self._usd(self.function.invocation(seconds) + self.traffic.task(fresh=True))

    def _usd(self, usage: Usage) -> float:
        return self.prices.bill(usage, architecture=self.architecture).usd


class Budget:
    """Stops a run before it costs more than ``max_usd`` US dollars; an observer of the run.

    Tasks leave only if the run stays within the budget even if, of all that are under way, each has
    an environment started for it, which is billed (`INIT_LIMIT_S`), and runs to the function's
    time-out. A task that was answered is charged from when it left until that instant: what its
    function is charged is no more, since whoever waits for the answer waits for the start as well.
    One that failed is charged as if under way: a connection may break, and the function runs on.
    No answer tells of environments that Lambda starts ahead of any need; the amount reserved for
    the warm-up is never given back, and covers them.

    ``model`` is what tasks cost; None: nothing, as on one's own machines. Each of the ``warm_ups``,
    invocations before the first round, is charged for a start, and to the time-out.

    Raises
    ------
    ParameterError
        If ``max_usd`` is negative or not finite, or less than the warm-up can cost.

    Examples
    --------
    >>> Budget(0.5, model=None).committed_usd
    0.0
    """

    def __init__(self, max_usd: float, *, model: PriceModel | None, warm_ups: int = 0) -> None:
        if not 0 <= max_usd < math.inf:
            raise ParameterError("max_usd", "must be a finite amount >= 0, US dollars", max_usd)
        self._max_usd, self._model = max_usd, model
        self._spent_usd = 0.0 if model is None else warm_ups * model.warm_up_usd
        if self._spent_usd > max_usd:
            rule = f"must be at least ${self._spent_usd:.6f}, which the warm-up can cost"
            raise ParameterError("max_usd", rule, max_usd)
        # When the task (round, worker, attempt) left, seconds; before that is known, -inf.
        self._open: dict[tuple[int, int, int], float] = {}
        self._last_job = -1

    @property
    def spent_usd(self) -> float:
        """What the tasks have cost at most whose end is known, and the warm-up, US dollars."""
        return self._spent_usd

    @property
    def committed_usd(self) -> float:
        """What it can become, US dollars, if all others run to the time-out, starts included."""
        if self._model is None:
            return 0.0
        return self._spent_usd + len(self._open) * self._model.task_usd(self._model.longest_s)

    @property
    def memory(self) -> Mapping[str, float]:
        """What a resumed run has spent before it begins: what is under way counts in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self._spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Count what the run has spent before, beside what was reserved anew for the warm-up."""
        self._spent_usd += memory["committed_usd"]

    def __call__(self, seen: Seen) -> None:
        """Take note of an event or action; `BudgetError` if tasks about to leave could pass it."""
        if self._model is None:
            return
        match seen:
            case Dispatch():
                self._admit(seen, self._model)
            case Dispatched():
                for worker, left_at in zip(seen.workers, seen.left_at, strict=True):
                    self._open[seen.round, worker, seen.attempt] = left_at
            case Arrival() | Failure():
                self._settle(seen, self._model)
            case _:
                pass

    def _admit(self, action: Dispatch, model: PriceModel) -> None:
        jobs = [m.job for tasks in action.assignment.values() for m in tasks]
        last_job = max(jobs, default=self._last_job)
        published = max(0, last_job - self._last_job) * model.job_usd
        worst = len(action.assignment) * model.task_usd(model.longest_s) + published
        committed = self.committed_usd
        if committed + worst > self._max_usd:
            under_way = committed - self._spent_usd
            raise BudgetError(
                f"stopped before round {action.round}: it could cost up to ${worst:.6f}, with "
                f"${self._spent_usd:.6f} spent and ${under_way:.6f} under way of a budget of "
                f"${self._max_usd:.6f}; what was trained is in the run's checkpoints "
                "(raise --max-usd)",
                round=action.round,
                spent_usd=self._spent_usd,
            )
        self._spent_usd += published
        self._last_job = max(self._last_job, last_job)
        for worker in action.assignment:
            self._open[action.round, worker, action.attempt] = -math.inf

    def _settle(self, event: Arrival | Failure, model: PriceModel) -> None:
        left_at = self._open.pop((event.round, event.worker, event.attempt), None)
        if left_at is not None:  # None: a duplicate
            failed = isinstance(event, Failure)
            self._spent_usd += model.task_usd(model.longest_s if failed else event.at - left_at)

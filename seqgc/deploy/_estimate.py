"""What a run will use, or has used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqgc.deploy._prices import FunctionSetup, Traffic, Usage
from seqgc.errors import ParameterError, require_int

__all__ = ["Estimate", "PlannedUse", "estimate_plan", "estimate_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUse:
    """What a run is going to do: a task for each worker in each round.

    Every job's weights are published once. A task is expected to run ``seconds_per_task``, the
    median of a profile, for example; None: nobody knows, and only the time-out bounds it. The
    ``warm_ups``, invocations before the first round that compute nothing, are expected to run as
    long. Each worker's environment is expected to be started once, in `START_S` seconds; at most
    each invocation's is, and to its limit.
    """

    workers: int
    rounds: int
    jobs: int
    seconds_per_task: float | None
    function: FunctionSetup
    traffic: Traffic
    warm_ups: int = 0

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("rounds", 1), ("jobs", 1), ("warm_ups", 0)):
            object.__setattr__(self, name, require_int(name, getattr(self, name), least=least))
        if self.seconds_per_task is not None and self.seconds_per_task < 0:
            raise ParameterError("seconds", "must be >= 0", self.seconds_per_task)

    @property
    def tasks(self) -> int:
        """How many are sent, without repeated attempts."""
        return self.workers * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A usage, and how large it can be at most.

    ``likely`` is None if nobody knows how long tasks run; ``at_most`` lets every task whose end is
    not known have an environment started, and run to the function's time-out. ``unanswered`` counts
    a run's tasks that neither were answered nor failed.
    """

    likely: Usage | None
    at_most: Usage
    unanswered: int = 0


def estimate_plan(plan: PlannedUse) -> Estimate:
    """Return what a plan will use, without repeated attempts.

    Examples
    --------
    >>> plan = PlannedUse(
    ...     workers=2, rounds=3, jobs=3, seconds_per_task=0.5,
    ...     function=FunctionSetup(memory_mb=1024, timeout_s=10.0),
    ...     traffic=Traffic(where="inline", weights_bytes=0, result_bytes=8),
    ... )
    >>> estimate = estimate_plan(plan)
    >>> estimate.likely.requests, estimate.likely.gb_seconds, estimate.at_most.gb_seconds
    (6, 8.0, 120.0)
    """
    published = plan.traffic.publication().times(plan.jobs)
    invocations = plan.tasks + plan.warm_ups
    worst = plan.function.invocation(plan.function.longest_s).times(invocations) + published
    worst += plan.traffic.task(fresh=True).times(plan.tasks)
    if plan.seconds_per_task is None:
        return Estimate(likely=None, at_most=worst)
    likely = plan.function.invocation(plan.seconds_per_task).times(invocations) + published
    likely += plan.traffic.task().times(plan.tasks) + plan.function.start().times(plan.workers)
    return Estimate(likely=likely, at_most=worst)


def estimate_run(
    run: str | Path,
    *,
    function: FunctionSetup,
    traffic: Traffic | None = None,
    warm_ups: int = 0,
) -> Estimate:
    """Return what a run has used, from the times in its ``events.jsonl``.

    A task is charged from its dispatch to its answer or failure: the network's time is in it, and
    the start of its environment if it needed one. One of a cancelled round that was never answered
    is charged until it was cancelled. ``at_most`` charges both it and failures a start, and until
    the time-out (a broken connection ends no function), answered tasks from before any was sent,
    each all the weights it needs, and also the ``warm_ups``: invocations before the first round, of
    which no event tells. Without ``traffic`` bytes are left out.

    Raises
    ------
    ParameterError
        If ``run`` is no run's folder.
    """
    path = Path(run, "events.jsonl")
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise ParameterError("run", f"must be the folder of a run ({error})", str(run)) from None
    if not lines or lines[0].get("event") != "run" or lines[0].get("schema") != 1:
        raise ParameterError("run", "must begin with a header of schema 1", str(path))
    ledger = _Ledger(function=function, traffic=traffic, workers=int(lines[0]["workers"]))
    for line in lines[1:]:
        ledger.read(line)
    estimate = ledger.estimate(end_s=float(lines[-1]["at_s"]))
    warmed = function.invocation(function.longest_s).times(warm_ups)
    return replace(estimate, at_most=estimate.at_most + warmed)


Address = tuple[int, int, int]  # round, worker, attempt


@dataclass(slots=True, kw_only=True)
class _Ledger:
    """Goes through a run's events."""

    function: FunctionSetup
    traffic: Traffic | None
    workers: int
    settled: Usage = field(default_factory=Usage)
    settled_at_most: Usage = field(default_factory=Usage)
    open: dict[Address, float] = field(default_factory=dict)  # sent at, seconds of the log
    cancelled: dict[Address, float] = field(default_factory=dict)
    jobs: set[int] = field(default_factory=set)

    def read(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case "dispatch":
                self.jobs.update(line["jobs"])
                for worker in line.get("workers", range(self.workers)):
                    self.open[line["round"], worker, line["attempt"]] = line["at_s"]
            case "arrival" | "failure":
                self._settle(line)
            case "cancel":
                for address in self.open:
                    if address[0] == line["round"] and address[1] in line["workers"]:
                        self.cancelled[address] = line["at_s"]

    def estimate(self, *, end_s: float) -> Estimate:
        moved = Usage()
        if self.traffic is not None:
            moved = self.traffic.publication().times(len(self.jobs))
        likely, at_most = self.settled + moved, self.settled_at_most + moved
        for address, sent_s in self.open.items():
            likely += self._invocation(self.cancelled.get(address, end_s) - sent_s)
            at_most += self._invocation(self.function.longest_s, fresh=True)
        return Estimate(likely=likely, at_most=at_most, unanswered=len(self.open))

    def _settle(self, line: dict[str, Any]) -> None:
        sent_s = self.open.pop((line["round"], line["worker"], line["attempt"]), None)
        if sent_s is None:
            return  # a duplicate
        # The log's own times begin before any task was sent, and end a little late: those of the
        # loop, not of the answer. `took_s` is since this very task left.
        longest_s = line["at_s"] - sent_s
        self.settled += self._invocation(line.get("took_s", longest_s))
        if line["event"] == "failure":
            longest_s = self.function.longest_s
        self.settled_at_most += self._invocation(longest_s, fresh=True)

    def _invocation(self, seconds: float, *, fresh: bool = False) -> Usage:
        used = self.function.invocation(seconds)
        return used if self.traffic is None else used + self.traffic.task(fresh=fresh)

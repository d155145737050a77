"""What a run will use, or has used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqgc.deploy._prices import FunctionSetup, Traffic, Usage
from seqgc.errors import ParameterError, require_int

_Address = tuple[int, int, int]  # round, worker, attempt


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
    run: str | Path, *, function: FunctionSetup, traffic: Traffic | None = None, warm_ups: int = 0
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
    header, *lines = _events(Path(run, "events.jsonl"))

    def task(seconds: float, *, fresh: bool = False) -> Usage:
        used = function.invocation(seconds)
        return used if traffic is None else used + traffic.task(fresh=fresh)

    likely, at_most = Usage(), function.invocation(function.longest_s).times(warm_ups)
    jobs: set[int] = set()
    sent: dict[_Address, float] = {}  # and not answered; seconds of the log
    cancelled: dict[_Address, float] = {}
    for line in lines:
        kind, at_s = line["event"], line["at_s"]
        if kind == "dispatch":
            jobs.update(line["jobs"])
            for worker in line.get("workers", range(header["workers"])):
                sent[line["round"], worker, line["attempt"]] = at_s
        elif kind == "cancel":
            round, workers = line["round"], line["workers"]
            cancelled |= {each: at_s for each in sent if each[0] == round and each[1] in workers}
        elif kind in ("arrival", "failure"):
            sent_s = sent.pop((line["round"], line["worker"], line["attempt"]), None)
            if sent_s is None:
                continue  # a duplicate
            # The log's own times begin before any task was sent, and end a little late: those of
            # the loop, not of the answer. `took_s` is since this very task left.
            likely += task(line.get("took_s", at_s - sent_s))
            at_most += task(function.longest_s if kind == "failure" else at_s - sent_s, fresh=True)
    for address, sent_s in sent.items():
        likely += task(cancelled.get(address, lines[-1]["at_s"]) - sent_s)
        at_most += task(function.longest_s, fresh=True)
    if traffic is not None:
        published = traffic.publication().times(len(jobs))
        likely, at_most = likely + published, at_most + published
    return Estimate(likely=likely, at_most=at_most, unanswered=len(sent))


def _events(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log, its header first."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        rule = f"must be the folder of a run ({error})"
        raise ParameterError("run", rule, str(path.parent)) from None
    if not lines or lines[0].get("event") != "run" or lines[0].get("schema") != 1:
        raise ParameterError("run", "must begin with a header of schema 1", str(path))
    return lines

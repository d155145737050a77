"""Lower bounds on run time: workers that are never idle, and schemes with perfect knowledge."""

from __future__ import annotations

import math

import numpy as np

from seqgc._zero import zero_of_rising
from seqgc.errors import require_int, require_number
from seqgc.ports import FloatArray
from seqgc.profiles import Pace, load_within


def busy_seconds(pace: Pace, work: float) -> float:
    """Return the shortest time, in seconds, in which workers that are never idle can do ``work``.

    This is the least τ with ``sum_i W_i(τ) >= work``, where worker i does the work ``W_i(τ)`` from
    time 0 to τ. Work is measured in batches: 30 clocks, each with one batch, are 30 units. No
    policy is faster, and a policy that could move work at no cost would reach the bound. Latencies
    are ignored. If there are latencies, the bound is less tight. A pace that depends on the round
    is evaluated for round 0.

    Source: Harlap et al., Addressing the straggler problem for iterative convergent parallel ML,
    SoCC 2016 ("ideal").

    Raises
    ------
    ParameterError
        If ``work`` is not a finite number >= 0.

    Examples
    --------
    In 3 s the first worker does 3 of 4 batches. The second worker is a third as fast, and does 1:

    >>> import numpy as np
    >>> from seqgc.profiles import ByWork
    >>> busy_seconds(ByWork(rates=np.array([[1.0, 3.0]]), width=0.25), 4.0)
    3.0
    """
    each = require_number("work", work, least=0) / pace.n
    if each == 0:
        return 0.0

    def takes_s(worker: int, load: float) -> float:
        return pace.seconds(worker, round=0, at=0.0, done=0.0, load=load)

    def missing(by_s: float) -> float:
        """Return the work that remains at a time; it is negative after all work is done."""
        return work - sum(_load_by(by_s, worker) for worker in range(pace.n))

    def _load_by(by_s: float, worker: int) -> float:
        most = each
        while takes_s(worker, most) <= by_s:
            if most >= work:
                return work
            most *= 2
        return load_within(pace, worker, round=0, at=0.0, done=0.0, load=most, within_s=by_s)

    even_s = [takes_s(worker, each) for worker in range(pace.n)]
    return zero_of_rising(lambda by_s: -missing(by_s), min(even_s), max(even_s))


def never_idle_seconds(
    zero_load_times: FloatArray, jobs: int, *, part_s: float, jobs_per_task: int = 1
) -> float:
    """Return a lower bound, in seconds, on the time in which n workers complete ``jobs`` jobs.

    Each job has n parts. The k-th task of a worker takes the seconds in row ``k mod rounds`` of
    ``zero_load_times`` (rounds, n), plus ``part_s`` seconds for each of its parts. A worker is
    never idle, and has one task at a time, with at most ``jobs_per_task`` parts. Therefore it needs
    at least ``ceil(p / jobs_per_task)`` tasks for p parts. The bound is the earliest time at which
    ``n * jobs`` parts can be done.

    Raises
    ------
    ParameterError
        If ``part_s`` is negative, or ``jobs`` or ``jobs_per_task`` is less than 1.

    Examples
    --------
    A part takes 1 s, and each task of the second worker takes 2 s to start. Of 18 parts the second
    worker does 4 in tasks of one part, or 8 in a single task:

    >>> import numpy as np
    >>> starts_s = np.array([[0.0, 2.0]])
    >>> [never_idle_seconds(starts_s, 9, part_s=1.0, jobs_per_task=each) for each in (1, 9)]
    [14.0, 10.0]
    """
    require_number("part_s", part_s, least=0)
    parts = require_int("jobs", jobs, least=1) * zero_load_times.shape[1]
    each, depth = min(require_int("jobs_per_task", jobs_per_task, least=1), jobs), jobs
    while True:  # until no worker could do more than `depth` parts by the bound `last_s`
        order = np.arange(depth)
        before_s = np.cumsum(zero_load_times[order % len(zero_load_times)], axis=0)
        if each > 1:  # if fitted times are negative, another task must not cost less than nothing
            before_s = np.minimum.accumulate(before_s[::-1], axis=0)[::-1]
        done_s = before_s[order // each] + part_s * (order[:, None] + 1)
        last_s = float(np.partition(done_s.ravel(), parts - 1)[parts - 1])
        if depth >= parts or done_s[-1].min() >= last_s:
            return max(0.0, last_s)
        depth = min(2 * depth, parts)


def over_bound(seconds: float, bound_s: float) -> float:
    """Return the ratio of a time to its lower bound; infinite if the bound is 0.

    The bound is 0 for work that costs nothing, or if a load model gives a negative latency.

    Examples
    --------
    >>> over_bound(3.0, 2.0), over_bound(3.0, 0.0)
    (1.5, inf)
    """
    return seconds / bound_s if bound_s > 0 else math.inf


def clairvoyant_bound(
    zero_load_times: FloatArray, *, alpha: float, jobs_per_round: int = 1
) -> FloatArray:
    """Return a lower bound on the seconds of each round (rounds,), for every scheme with delay 0.

    The bound assumes that all delays are known in advance, and that work is perfectly balanced
    without redundancy. It is the smallest R for which the workers can do k = ``jobs_per_round``
    jobs: ``sum_i max(0, (R - c_i) / alpha) >= k``. The m fastest workers alone need
    ``(k alpha + c_1 + ... + c_m) / m``, and R is the minimum over m. ``zero_load_times``
    (rounds, n) are the seconds ``c_i`` that an answer takes without any data points; fitted values
    may be negative.

    Raises
    ------
    ParameterError
        If ``alpha``, in seconds per unit of normalized load, is negative, or there is no job.

    Examples
    --------
    >>> clairvoyant_bound(np.array([[1.0, 2.0, 9.0]]), alpha=3.0)
    array([3.])
    """
    require_number("alpha", alpha, least=0)
    jobs_per_round = require_int("jobs_per_round", jobs_per_round, least=1, most=10**9)
    fastest_first = np.sort(zero_load_times, axis=1)
    totals = np.cumsum(fastest_first, axis=1) + jobs_per_round * alpha
    bound: FloatArray = (totals / np.arange(1, totals.shape[1] + 1)).min(axis=1)
    return np.maximum(bound, 0.0)

"""How long work takes workers who are never idle: bounds where work may go to anyone."""

from __future__ import annotations

import math

import numpy as np

from seqgc._zero import zero_of_rising
from seqgc.errors import require_int, require_number
from seqgc.ports import FloatArray
from seqgc.profiles import Pace, load_within

__all__ = ["busy_seconds", "never_idle_seconds", "over_bound"]


def busy_seconds(pace: Pace, work: float) -> float:
    """Return the least seconds in which workers at this pace, all busy all the time, do ``work``.

    That is the least τ with ``sum_i W_i(τ) >= work``, in units of a batch (30 clocks of data are
    30), where worker i does ``W_i(τ)`` from 0 to τ: no policy is faster, whoever is given what and
    when, and one that could move work without cost would be as fast. Source: Harlap et al.,
    Addressing the straggler problem for iterative convergent parallel ML, SoCC 2016
    ("ideal"). Latencies are left out, so that with them it is a bound from further below; a pace
    that goes by rounds is taken as that of round 0.

    Raises
    ------
    ParameterError
        If ``work`` is not a finite number >= 0.

    Examples
    --------
    Of 4 batches the first worker does 3 in 3 s, the other, a third as fast, 1:

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
        """Return what is left of the work at a time; below 0 if more than that is done."""
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
    """Return the least seconds in which n workers, none idle, do all n parts of so many jobs.

    A worker's k-th task takes the seconds of row ``k mod rounds`` of ``zero_load_times``
    (rounds, n), and ``part_s`` more for each of its parts. Whoever's these are, a task has at most
    ``jobs_per_task`` of them, and a worker has one task at a time: of p parts its last is done no
    sooner than in ``ceil(p / jobs_per_task)`` tasks that have nothing else. The bound is when
    ``n * jobs`` parts could be done.

    Raises
    ------
    ParameterError
        If ``part_s`` is below 0, or there is no job, in all or in a task.

    Examples
    --------
    A part is 1 s of work, and each task of the second worker has a start of 2 s. Of 18 parts it
    does 4, or 8 in one task:

    >>> import numpy as np
    >>> starts_s = np.array([[0.0, 2.0]])
    >>> [never_idle_seconds(starts_s, 9, part_s=1.0, jobs_per_task=each) for each in (1, 9)]
    [14.0, 10.0]
    """
    require_number("part_s", part_s, least=0)
    parts = require_int("jobs", jobs, least=1) * zero_load_times.shape[1]
    each, depth = min(require_int("jobs_per_task", jobs_per_task, least=1), jobs), jobs
    while True:  # until nobody could have done more in that time
        order = np.arange(depth)
        before_s = np.cumsum(zero_load_times[order % len(zero_load_times)], axis=0)
        if each > 1:  # a task more is no loss where a line through mean times is below 0
            before_s = np.minimum.accumulate(before_s[::-1], axis=0)[::-1]
        done_s = before_s[order // each] + part_s * (order[:, None] + 1)
        last_s = float(np.partition(done_s.ravel(), parts - 1)[parts - 1])
        if depth >= parts or done_s[-1].min() >= last_s:
            return max(0.0, last_s)
        depth = min(2 * depth, parts)


def over_bound(seconds: float, bound_s: float) -> float:
    """Return how many times its bound something took: infinitely many times one of no time at all.

    Such is the bound of work that costs nothing, or where a load model leaves a latency below 0.

    Examples
    --------
    >>> over_bound(3.0, 2.0), over_bound(3.0, 0.0)
    (1.5, inf)
    """
    return seconds / bound_s if bound_s > 0 else math.inf

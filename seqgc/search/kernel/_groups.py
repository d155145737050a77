"""Groups of candidates that are computed together, and who judges them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from seqgc.ports import FloatArray, IntArray
from seqgc.schemes import GC, MSGC, SRSGC, Scheme, Uncoded
from seqgc.search.kernel._arrivals import Arrivals, Closings
from seqgc.search.kernel._conditions import Conditions
from seqgc.search.kernel._gc import GCJudge
from seqgc.search.kernel._judge import Judge
from seqgc.search.kernel._m_sgc import MSGCConforms, MSGCFeasible
from seqgc.search.kernel._result import BatchReplay
from seqgc.search.kernel._sr_sgc import SRSGCConforms, SRSGCFeasible

__all__ = ["by_groups", "decisions"]

_BLOCK = 2**20  # workers times candidates
_LEAST_WIDTH = 32  # candidates


def by_groups(schemes: Sequence[Scheme], shifts: FloatArray, conditions: Conditions) -> BatchReplay:
    num_rounds = np.array([conditions.bundles + scheme.delay for scheme in schemes])
    most, recorded = int(num_rounds.max()), conditions.profile.times
    arrivals = Arrivals(recorded[np.arange(most) % len(recorded)])
    seconds = np.zeros((len(schemes), most))
    waited_out = np.zeros(len(schemes), dtype=np.intp)
    for block in _blocks(schemes, conditions, arrivals.n):
        rounds = int(num_rounds[block[0]])
        judge = _judge([schemes[i] for i in block], arrivals, conditions)
        if judge is None:
            runs = [conditions.replay(schemes[i]) for i in block]
            seconds[block, :rounds] = [run.round_seconds for run in runs]
            waited_out[block] = [np.count_nonzero(run.waited_out) for run in runs]
            continue
        closings = Closings(
            arrivals,
            shifts[block],
            num_rounds=rounds,
            mu=conditions.mu,
            wait_out=conditions.wait_out,
        )
        for round in range(rounds):
            idle = judge.idle(round)
            judge.close(round, closings.close(round, judge.needed(round), idle=idle))
        seconds[block, :rounds] = closings.seconds.T
        waited_out[block] = closings.waited_out.sum(axis=0)
    return BatchReplay(round_seconds=seconds, num_rounds=num_rounds, waited_out=waited_out)


def _blocks(schemes: Sequence[Scheme], conditions: Conditions, n: int) -> Iterator[IntArray]:
    """Yield which candidates to compute together: few enough for the processor's cache."""
    groups: dict[Hashable, list[int]] = {}
    for i, scheme in enumerate(schemes):
        groups.setdefault(_group(scheme, conditions), []).append(i)
    width = max(_LEAST_WIDTH, _BLOCK // n)
    for group in groups.values():
        for start in range(0, len(group), width):
            yield np.array(group[start : start + width])


def _group(scheme: Scheme, conditions: Conditions) -> Hashable:
    """Return what schemes must agree on to be computed together."""
    match scheme:
        case MSGC(B=B, W=W):
            return MSGC, B, W
        case SRSGC(B=B, W=W):
            return SRSGC, B, None if conditions.wait_out == "feasible" else W
        case Uncoded() | GC(allow_error=0.0):
            return GC
        case _:
            return type(scheme), scheme.delay


def decisions(scheme: Scheme, conditions: Conditions) -> Hashable:
    """Return what decides: schemes that agree on it have one load and the same closings.

    Of SR-SGC, feasibility knows the base code only; of M-SGC's code, conformity knows the load.
    """
    match scheme:
        case SRSGC(B=B, family=family, s=s) if conditions.wait_out == "feasible":
            return SRSGC, B, family, s
        case MSGC(B=B, W=W, lam=lam) if conditions.wait_out != "feasible":
            return MSGC, B, W, lam, scheme.normalized_load
        case _:
            return scheme


def _judge(schemes: Sequence[Scheme], arrivals: Arrivals, conditions: Conditions) -> Judge | None:
    """Return the judge of one group's schemes; None: a kind that only the general replay knows."""
    feasible, bursty_only = conditions.wait_out == "feasible", conditions.conformity == "bursty"
    m_sgc = [scheme for scheme in schemes if isinstance(scheme, MSGC)]
    sr_sgc = [scheme for scheme in schemes if isinstance(scheme, SRSGC)]
    if m_sgc and feasible:
        return MSGCFeasible(m_sgc, arrivals, num_jobs=conditions.bundles)
    if m_sgc:
        return MSGCConforms(m_sgc, arrivals, num_jobs=conditions.bundles, bursty_only=bursty_only)
    if sr_sgc and feasible:
        return SRSGCFeasible(sr_sgc, arrivals, num_jobs=conditions.bundles)
    if sr_sgc:
        return SRSGCConforms(sr_sgc, arrivals, num_jobs=conditions.bundles, bursty_only=bursty_only)
    gc = [scheme for scheme in schemes if isinstance(scheme, Uncoded | GC)]
    if not gc or any(isinstance(scheme, GC) and scheme.allow_error for scheme in gc):
        return None
    return GCJudge(gc, arrivals, feasible=feasible)

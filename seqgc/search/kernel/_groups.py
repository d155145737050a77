"""Groups of candidates that are computed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from seqgc.ports import FloatArray, IntArray
from seqgc.schemes import Scheme
from seqgc.search.kernel._arrivals import Arrivals, Closings
from seqgc.search.kernel._conditions import Conditions
from seqgc.search.kernel._dispatch import Kernel
from seqgc.search.kernel._result import BatchReplay

__all__ = ["Candidate", "by_groups"]

_BLOCK = 2**20  # workers times candidates
_LEAST_WIDTH = 32  # candidates

Candidate = tuple[Scheme, Kernel | None]


def by_groups(
    candidates: Sequence[Candidate], shifts: FloatArray, conditions: Conditions
) -> BatchReplay:
    """Replay candidates that decide differently; ``shifts`` (candidates,) seconds their loads add.

    Those without a kernel are replayed in general.
    """
    schemes = [scheme for scheme, _ in candidates]
    num_rounds = np.array([conditions.bundles(scheme) + scheme.delay for scheme in schemes])
    most, recorded = int(num_rounds.max()), conditions.rehearsal.profile.times
    arrivals = Arrivals(recorded[np.arange(most) % len(recorded)])
    seconds = np.zeros((len(schemes), most))
    waited_out = np.zeros(len(schemes), dtype=np.intp)
    for kernel, block in _blocks(candidates, arrivals.n):
        rounds = int(num_rounds[block[0]])
        if kernel is None:
            (i,) = block
            run = conditions.replay(schemes[i])
            seconds[i, :rounds] = run.round_seconds
            waited_out[i] = np.count_nonzero(run.waited_out)
            continue
        thresholds = kernel.thresholds([schemes[i] for i in block], arrivals, conditions)
        closings = Closings(
            arrivals,
            shifts[block],
            num_rounds=rounds,
            mu=conditions.rule.mu,
            wait_out=conditions.rule.wait_out,
        )
        for round in range(rounds):
            idle = thresholds.idle(round)
            thresholds.close(round, closings.close(round, thresholds.needed(round), idle=idle))
        seconds[block, :rounds] = closings.seconds.T
        waited_out[block] = closings.waited_out.sum(axis=0)
    return BatchReplay(round_seconds=seconds, num_rounds=num_rounds, waited_out=waited_out)


def _blocks(candidates: Sequence[Candidate], n: int) -> Iterator[tuple[Kernel | None, IntArray]]:
    """Yield which candidates to compute together: few enough for the processor's cache."""
    groups: dict[object, list[int]] = {}
    for i, (scheme, kernel) in enumerate(candidates):
        key = ("alone", i) if kernel is None else (kernel.group, scheme.delay)
        groups.setdefault(key, []).append(i)
    width = max(_LEAST_WIDTH, _BLOCK // n)
    for group in groups.values():
        for start in range(0, len(group), width):
            yield candidates[group[0]][1], np.array(group[start : start + width])

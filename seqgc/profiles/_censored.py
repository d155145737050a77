"""Estimates of censored times: of a cancelled task, it is only known that it took longer.

A straggler that is cancelled may never answer. Its answer would have taken longer than its *rest*,
the time from its dispatch to the end of its round. An estimate uses the answers of the same worker
that took longer than the rest. If the worker has none, the longer answers of all workers are used.
If there are no longer answers at all, the estimate is the rest, which is too short.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seqgc.ports import BoolArray, FloatArray

__all__ = ["completed", "drawn", "longest_known"]


def completed(
    times: FloatArray, answered: BoolArray, *, where: BoolArray, rests: FloatArray
) -> FloatArray:
    """Return ``times`` (rounds, n) with the medians of longer answers in the cells ``where``.

    ``answered`` marks the answers, and ``rests`` (rounds, n) are the times after which the tasks
    in the cells ``where`` were cancelled.
    """
    return _filled(times, answered, where=where, rests=rests, choose=_median)


def drawn(
    times: FloatArray,
    answered: BoolArray,
    *,
    where: BoolArray,
    rests: FloatArray,
    rng: np.random.Generator,
) -> FloatArray:
    """Return ``times`` with a random longer answer in each of the cells ``where`` (`completed`)."""

    def one(longer: FloatArray) -> float:
        return float(longer[rng.integers(len(longer))])

    return _filled(times, answered, where=where, rests=rests, choose=one)


def longest_known(times: FloatArray, answered: BoolArray, *, where: BoolArray) -> BoolArray:
    """Return a mask of the cells ``where`` whose time is longer than every answer of all workers.

    Nothing is known about these times but a lower bound.
    """
    longest = float(times[answered].max(initial=0.0))
    mask: BoolArray = where & (times >= longest)
    return mask


def _filled(
    times: FloatArray,
    answered: BoolArray,
    *,
    where: BoolArray,
    rests: FloatArray,
    choose: Callable[[FloatArray], float],
) -> FloatArray:
    full, everyone = times.copy(), np.sort(times[answered])
    for worker in np.flatnonzero(where.any(axis=0)):
        own = np.sort(times[answered[:, worker], worker])
        for row in np.flatnonzero(where[:, worker]):
            rest = float(rests[row, worker])
            longer = _longer(own, rest)
            if not longer.size:
                longer = _longer(everyone, rest)
            full[row, worker] = choose(longer) if longer.size else rest
    return full


def _longer(seen: FloatArray, than: float) -> FloatArray:
    """Return the times above ``than`` in the sorted times ``seen``."""
    return seen[np.searchsorted(seen, than, side="right") :]


def _median(ascending: FloatArray) -> float:
    size = len(ascending)
    return float(ascending[(size - 1) // 2] + ascending[size // 2]) / 2

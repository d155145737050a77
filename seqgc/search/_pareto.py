"""The trade between run time and the bill."""

from __future__ import annotations

import numpy as np

from seqgc.ports import BoolArray, FloatArray, IntArray

__all__ = ["dominated", "front"]


def front(seconds: FloatArray, *, bills: FloatArray) -> IntArray:
    """Return who is best for some price of time against worker-seconds, the fastest first.

    Of equals the first counts. ``seconds`` and ``bills`` (candidates,); returns indices.

    Examples
    --------
    >>> front(np.array([2.0, 1.0, 3.0]), bills=np.array([5.0, 9.0, 6.0]))
    array([1, 0])
    """
    order = np.lexsort((np.arange(len(seconds)), bills, seconds))
    cheapest_before = np.minimum.accumulate(np.concatenate([[np.inf], bills[order]]))[:-1]
    return order[bills[order] < cheapest_before]


def dominated(
    seconds: FloatArray, *, bills: FloatArray, by_seconds: FloatArray, by_bills: FloatArray
) -> BoolArray:
    """Return which candidates (m,) a front (f,), the fastest first, leaves no place for.

    Some of the front is faster at the same bill or a lower one.

    Examples
    --------
    >>> two = np.array([2.5, 2.5])
    >>> one = np.array([2.0])
    >>> dominated(two, bills=np.array([5.0, 4.0]), by_seconds=one, by_bills=np.array([5.0]))
    array([ True, False])
    """
    faster = np.searchsorted(by_seconds, seconds, side="left")
    cheapest = np.concatenate([[np.inf], by_bills])  # a front's bills fall as its seconds grow
    return cheapest[faster] <= bills

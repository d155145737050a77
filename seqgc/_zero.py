"""The zero of a function that never decreases."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["zero_of_rising"]

_ACCURACY = 1e-13  # relative to the zero
_MOST_STEPS = 200


def zero_of_rising(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero, in [low, high], of a function that never decreases.

    If the function is positive at ``low``, return ``low``; if it is negative at ``high``, return
    ``high``. The method is false position, which is exact if the function is linear in the
    interval. Every third step halves the interval instead.
    """
    at_low, at_high = rising(low), rising(high)
    for step in range(_MOST_STEPS):
        if at_low >= 0:
            return low
        if at_high <= 0 or high - low <= _ACCURACY * high:
            return high
        part = 0.5 if step % 3 == 2 else -at_low / (at_high - at_low)
        middle = low + part * (high - low)
        if not low < middle < high:
            middle = low + (high - low) / 2
        value = rising(middle)
        if value <= 0:
            low, at_low = middle, value
        if value >= 0:
            high, at_high = middle, value
    return high

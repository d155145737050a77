"""The search for a learning rate: halved and doubled until the best one lies inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["BestRate", "best_near", "best_of"]

_MOST_STEPS: Final = 6  # from 1/64 of the first rate to 64 times it


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRate:
    """The best of the learning rates that were ``tried``, which are in ascending order.

    ``is_edge`` says that it is the smallest or the largest of them: a better one may lie beyond.
    """

    rate: float
    is_edge: bool
    tried: tuple[float, ...]


def best_of(cost: Callable[[float], float], rates: Sequence[float]) -> BestRate:
    """Return the one of these rates that costs least.

    Examples
    --------
    >>> best_of(lambda rate: abs(rate - 5), [1.0, 2.0, 4.0])
    BestRate(rate=4.0, is_edge=True, tried=(1.0, 2.0, 4.0))
    """
    return _chosen({rate: cost(rate) for rate in rates})


def best_near(
    cost: Callable[[float], float], start: float, *, most_steps: int = _MOST_STEPS
) -> BestRate:
    """Return the rate that costs least, of ``start`` times powers of two.

    Rates are added as long as the smallest or the largest costs no more than all others, at most
    ``most_steps`` on each side. The cost of a rate at which training does not succeed is infinite.

    Examples
    --------
    >>> best_near(lambda rate: abs(rate - 5), 1.0)
    BestRate(rate=4.0, is_edge=False, tried=(0.5, 1.0, 2.0, 4.0, 8.0))
    >>> best_near(lambda rate: -rate, 1.0, most_steps=2)
    BestRate(rate=4.0, is_edge=True, tried=(0.5, 1.0, 2.0, 4.0))
    """
    costs = {step: cost(start * 2.0**step) for step in (0, -1, 1)}
    while True:
        least, low, high = min(costs.values()), min(costs), max(costs)
        ends = [(low, low - 1), (high, high + 1)]
        wider = [
            beyond for end, beyond in ends if costs[end] <= least and abs(beyond) <= most_steps
        ]
        if not wider:
            return _chosen({start * 2.0**step: costs[step] for step in costs})
        for step in wider:
            costs[step] = cost(start * 2.0**step)


def _chosen(costs: dict[float, float]) -> BestRate:
    """Return the best rate; among equals, the smallest one that is not an end of the grid."""
    tried = tuple(sorted(costs))
    ends = {tried[0], tried[-1]}
    rate = min(tried, key=lambda each: (costs[each], each in ends))
    return BestRate(rate=rate, is_edge=rate in ends, tried=tried)

"""`Grid`: how finely a search goes through parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What `Scheme.candidates` is asked for.

    Delays T of at most ``max_delay`` rounds; ``coarse``: ranges thinned out, geometrically, for
    thousands of workers; ``inexact``: schemes whose gradients are approximations, too.

    Examples
    --------
    >>> Grid(coarse=True).values(1, 100)[-4:], Grid().divisors(12)
    ([42, 56, 75, 100], [2, 3, 4, 6, 12])
    """

    max_delay: int = 10
    coarse: bool = False
    inexact: bool = False

    def values(self, low: int, high: int) -> list[int]:
        """Integers low … high; a coarse grid keeps about eight of them per factor of ten."""
        if high < low:
            return []
        if not self.coarse:
            return list(range(low, high + 1))
        first = max(low, 1)
        steps = max(2, int(8 * np.log10(max(high, first) / first)) + 1)
        spread = np.rint(np.geomspace(first, max(high, first), steps)).astype(int).tolist()
        return sorted({low, *(value for value in spread if value <= high)})

    def divisors(self, n: int) -> list[int]:
        """Group sizes that divide ``n`` workers, but for 1, which is no redundancy."""
        return [size for size in range(2, n + 1) if n % size == 0]

"""`InOrder`: a sum whose bits do not depend on the order in which its summands come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from seqgc.ports import FloatArray

__all__ = ["InOrder"]


@dataclass(slots=True, eq=False)
class InOrder:
    """Adds up vectors 0, 1, 2 and so on, each as soon as those before it are there.

    Examples
    --------
    >>> total = InOrder()
    >>> for index in (1, 0, 2):
    ...     total.add(index, np.full(2, 10.0**index))
    >>> total.taken()
    array([111., 111.])
    """

    sum: FloatArray | None = None
    next: int = 0
    waiting: dict[int, FloatArray] = field(default_factory=dict)

    def add(self, index: int, vector: FloatArray) -> None:
        """Take the vector of an index, which is the sum's own from now on."""
        self.waiting[index] = vector
        while self.next in self.waiting:
            summand = self.waiting.pop(self.next)
            self.next += 1
            if self.sum is None:
                self.sum = summand
            else:
                with np.errstate(over="ignore", invalid="ignore"):  # found at the end
                    self.sum += summand

    def taken(self) -> FloatArray | None:
        """Return the sum, which is the caller's then; None if nothing was added."""
        taken, self.sum = self.sum, None
        return taken

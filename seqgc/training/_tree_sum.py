"""`TreeSum`: a sum whose bits do not depend on the order in which its summands come.

Summands stand at the leaves of a tree, in the order of their indices: 0 and 1 have one parent, 2
and 3, and so on; who has no neighbour is its own parent. A sum of two is made as soon as both are
there. So as long as one summand is missing, whichever it is, no more vectors wait than the tree has
levels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from seqgc.ports import FloatArray

__all__ = ["TreeSum"]

_Node: TypeAlias = tuple[int, int]  # level, from the leaves on, and index in it


@dataclass(slots=True, eq=False)
class TreeSum:
    """Adds up ``of`` vectors; ``nodes`` are the sums that wait for their neighbours.

    Examples
    --------
    >>> total = TreeSum(of=3)
    >>> for index in (2, 0, 1):
    ...     total.add(index, np.full(2, 10.0**index))
    ...     print(list(total.nodes))
    [(1, 1)]
    [(1, 1), (0, 0)]
    [(2, 0)]
    >>> total.taken()
    array([111., 111.])
    """

    of: int
    nodes: dict[_Node, FloatArray] = field(default_factory=dict)

    def add(self, index: int, vector: FloatArray) -> None:
        """Take the vector of an index, once; it is the sum's own from now on."""
        level, width = 0, self.of
        while width > 1:
            neighbour = index ^ 1
            if neighbour < width:
                other = self.nodes.pop((level, neighbour), None)
                if other is None:
                    break
                with np.errstate(over="ignore", invalid="ignore"):  # found at the end
                    vector += other
            level, index, width = level + 1, index // 2, (width + 1) // 2
        self.nodes[level, index] = vector

    def taken(self) -> FloatArray | None:
        """Return the sum, all of which is there, and which is the caller's then.

        None if nothing was added.
        """
        return self.nodes.popitem()[1] if self.nodes else None

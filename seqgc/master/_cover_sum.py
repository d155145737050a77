"""`CoverSum`: the summands of a cover, added up as they come, in one order whoever comes first.

See the head of `seqgc.master._gathering`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from seqgc.master._memory import Memory
from seqgc.ports import FloatArray

__all__ = ["CoverSum"]

_Node: TypeAlias = tuple[int, int]  # level and index: places index * 2**level and on, 2**level many


class CoverSum:
    """The sum of a cover: a tree over its places, of which the whole subtrees are kept as sums."""

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory, self._size = memory, size
        self.nodes: dict[_Node, FloatArray] = {}  # each in memory that may be larger
        self.places: set[int] = set()

    def add(self, place: int, result: FloatArray) -> None:
        if place in self.places:  # equal to the one that is in the sum
            return
        self.places.add(place)
        level, index, total = 0, place, None
        while (other := self.nodes.pop((level, index ^ 1), None)) is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # an overflow is found at the end
                other[: self._size] += result if total is None else total[: self._size]
            if total is not None:
                self._memory.give([total])
            level, index, total = level + 1, index >> 1, other
        self.nodes[level, index] = self._copy(result) if total is None else total

    def place(self, node: _Node, vector: FloatArray) -> None:
        """Put back a node of a sum that was held."""
        level, index = node
        self.nodes[node] = self._copy(vector)
        self.places |= set(range(index << level, (index + 1) << level))

    def held(self) -> dict[_Node, FloatArray]:
        return {node: memory[: self._size].copy() for node, memory in self.nodes.items()}

    def taken(self) -> FloatArray:
        """Return the sum (p,), in memory that is the caller's from now on."""
        first, *others = sorted(self.nodes, key=lambda node: node[1] << node[0])
        total = self.nodes.pop(first)[: self._size]
        for node in others:
            total += self.nodes[node][: self._size]
        return total

    def _copy(self, result: FloatArray) -> FloatArray:
        memory = self._memory.take(1, result)
        memory[: self._size] = result
        return memory

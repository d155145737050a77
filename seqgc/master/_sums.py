"""Storage for results: a pool of memory, rows of a matrix, and sums in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from seqgc.ports import FloatArray

__all__ = ["CoverSum", "Memory", "Rows"]


class Memory:
    """A pool of arrays, so that the system need not map and clear pages in each round.

    Its arrays contain arbitrary finite numbers: zeros at first, later old results.
    """

    def __init__(self) -> None:
        self._free: list[FloatArray] = []  # in order of size

    def take(self, rows: int, result: FloatArray) -> FloatArray:
        """Return a flat array of at least ``rows * p`` numbers, for results like ``result`` (p,).

        Its dtype is the dtype of the result, or float32 if this has more bits.
        """
        size = rows * result.size
        dtype = np.promote_types(result.dtype, np.float32)
        for index, memory in enumerate(self._free):
            if memory.size >= size and memory.dtype == dtype:
                return self._free.pop(index)
        if self._free:
            self._free.pop()  # the new array replaces it, so that the pool does not grow
        return np.zeros(size, dtype=dtype)

    def give(self, memories: Iterable[FloatArray]) -> None:
        """Give arrays from `take` back to the pool; the caller must not use them again."""
        self._free = sorted([*self._free, *memories], key=lambda memory: memory.size)


class Rows:
    """The rows of a matrix. A row without a result holds arbitrary finite numbers."""

    def __init__(self, source: Memory, rows: int, result: FloatArray) -> None:
        self._source = source
        self.memory = source.take(rows, result)
        self.array: FloatArray = self.memory[: rows * result.size].reshape(rows, result.size)

    def put(self, row: int, result: FloatArray) -> None:
        if row >= len(self.array):  # the task was sent after the first answers of the round
            self._grow(max(row + 1, 2 * len(self.array)), result)
        self.array[row] = result

    def _grow(self, count: int, result: FloatArray) -> None:
        full, rows = self.memory, self.array
        self.memory = self._source.take(count, result)
        self.array = self.memory[: count * result.size].reshape(count, result.size)
        self.array[: len(rows)] = rows
        self._source.give([full])

    def weighted(self, weights: FloatArray, marks: Sequence[slice]) -> FloatArray:
        """Return ``weights @ rows`` as a new vector; slices in ``marks`` use absolute weights."""
        weights = weights.astype(self.array.dtype)
        product: FloatArray = weights @ self.array
        for each in marks:
            product[each] = np.abs(weights) @ self.array[:, each]
        return product


_Node: TypeAlias = tuple[int, int]  # level and index: 2**level places from index * 2**level


class CoverSum:
    """The sum of a cover, as a tree over its places that stores the sums of complete subtrees.

    The order of the sum is fixed and does not depend on arrivals: see `seqgc.master._gathering`.
    """

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory, self._size = memory, size
        self.nodes: dict[_Node, FloatArray] = {}  # the arrays may be longer than the results
        self.places: set[int] = set()

    def add(self, place: int, result: FloatArray) -> None:
        if place in self.places:  # an equal result is already in the sum
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
        """Restore a stored node of the tree."""
        level, index = node
        self.nodes[node] = self._copy(vector)
        self.places |= set(range(index << level, (index + 1) << level))

    def held(self) -> dict[_Node, FloatArray]:
        return {node: memory[: self._size].copy() for node, memory in self.nodes.items()}

    def taken(self) -> FloatArray:
        """Return the sum (p,) in an array that the caller owns. Call this method only once."""
        first, *others = sorted(self.nodes, key=lambda node: node[1] << node[0])
        total = self.nodes.pop(first)[: self._size]
        for node in others:
            total += self.nodes[node][: self._size]
        return total

    def _copy(self, result: FloatArray) -> FloatArray:
        memory = self._memory.take(1, result)
        memory[: self._size] = result
        return memory

"""Memory for results, that is used again from job to job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from seqgc.ports import FloatArray

__all__ = ["Memory", "Rows"]


class Memory:
    """Memory that is used again, so that the system need not map and clear pages each round.

    It holds finite numbers, whatever they are: zeros at first, then results.
    """

    def __init__(self) -> None:
        self._free: list[FloatArray] = []  # in order of size

    def take(self, rows: int, result: FloatArray) -> FloatArray:
        """Return at least as many numbers as ``rows`` results like ``result`` (p,) have.

        They are at least as wide as float32 adds.
        """
        size = rows * result.size
        dtype = np.promote_types(result.dtype, np.float32)
        for index, memory in enumerate(self._free):
            if memory.size >= size and memory.dtype == dtype:
                return self._free.pop(index)
        if self._free:
            self._free.pop()  # replaced by the new: there are as many as were once in use at once
        return np.zeros(size, dtype=dtype)

    def give(self, memories: Iterable[FloatArray]) -> None:
        """Take back what `take` returned and nobody may use any more."""
        self._free = sorted([*self._free, *memories], key=lambda memory: memory.size)


class Rows:
    """The rows of a matrix; those that nothing was put into hold anything finite."""

    def __init__(self, source: Memory, rows: int, result: FloatArray) -> None:
        self._source = source
        self.memory = source.take(rows, result)
        self.array: FloatArray = self.memory[: rows * result.size].reshape(rows, result.size)

    def put(self, row: int, result: FloatArray) -> None:
        if row >= len(self.array):  # of a task that left after the first answers of its round
            self._grow(max(row + 1, 2 * len(self.array)), result)
        self.array[row] = result

    def _grow(self, count: int, result: FloatArray) -> None:
        full, rows = self.memory, self.array
        self.memory = self._source.take(count, result)
        self.array = self.memory[: count * result.size].reshape(count, result.size)
        self.array[: len(rows)] = rows
        self._source.give([full])

    def weighted(self, weights: FloatArray, marks: Sequence[slice]) -> FloatArray:
        """Return ``weights @ rows`` as a new vector, with absolute weights in the ``marks``."""
        weights = weights.astype(self.array.dtype)
        product: FloatArray = weights @ self.array
        for each in marks:
            product[each] = np.abs(weights) @ self.array[:, each]
        return product

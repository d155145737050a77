"""How far a vector is from the span of some rows, as rows are added."""

from __future__ import annotations

import numpy as np

from seqgc.ports import BoolArray, FloatArray

__all__ = ["Span"]

# What is left of a row of length 1 or so after projection, below which it adds no direction.
_NEGLIGIBLE = 1e-9


class Span:
    """The distance of ``target`` (k,) from the span of some of the ``rows`` (n, k).

    Keeps an orthonormal basis of the latest set's span (Gram-Schmidt, twice), so that a row more
    costs ``O(k n)``; a set that lacks one of them starts anew.

    Examples
    --------
    >>> span = Span(np.eye(2), np.ones(2))
    >>> span.distance(np.array([True, False])), span.distance(np.array([True, True]))
    (1.0, 0.0)
    """

    def __init__(self, rows: FloatArray, target: FloatArray) -> None:
        self._rows, self._target = rows, target
        self._clear()

    def _clear(self) -> None:
        self._basis = np.zeros((0, self._target.size))
        self._left = self._target
        self._included = np.zeros(len(self._rows), dtype=np.bool_)

    def distance(self, included: BoolArray) -> float:
        """Return the distance from the span of the ``included`` (n,) rows."""
        if (self._included & ~included).any():
            self._clear()
        for row in self._rows[included & ~self._included]:
            self._add(row)
        self._included = included.copy()
        return float(np.linalg.norm(self._left))

    def _add(self, row: FloatArray) -> None:
        length = np.linalg.norm(row)
        for _ in range(2):
            row = row - (self._basis @ row) @ self._basis
        remaining = np.linalg.norm(row)
        if remaining > _NEGLIGIBLE * length:
            direction = row / remaining
            self._basis = np.vstack([self._basis, direction])
            self._left = self._left - (self._left @ direction) * direction

"""How decoding vectors are found: whole covers, ``s`` equations, or least squares.

Theory of operation
-------------------
Which of three ways finds ``a`` with ``a @ E == 1`` is a matter of the code, not of the answers.

*Covers* (`CoverDecoder`). Where coefficients are ones, some workers' results add up to the
gradient. A *cover* says which, and who stands in for whom: an array (candidates, places) of
workers, where those of a column return equal results, and one of each column adds up. To find ``a``
is to look for a cover with an answer in every column: no equations, no rounding but a sum's, and
the fewest results to read.

*Equations* (`NullSpaceDecoder`). A code of rank ``n - s`` asks for one equation per missing worker
(`seqgc.codes._solutions`). If ``s`` are missing, these are as many as unknowns. If fewer, the
shortest ``z`` is a combination of the missing columns ``C`` (s, m): ``z = C y``, ``C^T C y = b``,
refined once. That is fastest, and inexact if the square of C's condition is beyond float64; where
the residual shows it, ``z`` is found again by a QR factorisation of ``C``.

*Least squares* (`SpanDecoder`), for any other matrix: nothing is known, so nothing is saved.

Every vector comes with a bound on the norm of ``a @ E - 1``, by which `ExactCode` judges it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from seqgc.codes._arrays import Span
from seqgc.codes._solutions import Solutions
from seqgc.ports import BoolArray, FloatArray, IntArray

__all__ = ["CoverDecoder", "Decoder", "NullSpaceDecoder", "Solved", "SpanDecoder"]

# A vector with a larger residual is found again, by the method that takes longer.
_CLEAN_RESIDUAL = 1e-12

# How far from the span of some rows the ones may be, per chunk, that count as spanned.
_SPANNED = 1e-9


class Decoder(Protocol):
    """Decides which answers (n,) suffice, and turns them into a decoding vector."""

    def suffices(self, responded: BoolArray) -> bool: ...
    def solve(self, responded: BoolArray) -> Solved | None:
        """Return ``a``; None if answers do not suffice; LinAlgError: the equations are singular."""


class Solved(NamedTuple):
    """A decoding ``vector`` (n,), and a bound on the norm of its ``residual`` ``a @ E - 1``."""

    vector: FloatArray
    residual: float


class CoverDecoder:
    """For codes whose gradient is a plain sum of some of the results.

    ``covers``: see `GradientCode.covers`. The earlier cover and the higher row come first.

    Examples
    --------
    >>> decoder = CoverDecoder(4, (np.array([[0, 2], [1, 3]]),))
    >>> decoder.solve(np.array([False, True, True, True]))
    Solved(vector=array([0., 1., 1., 0.]), residual=0.0)
    """

    def __init__(self, n: int, covers: tuple[IntArray, ...]) -> None:
        self._n = n
        # Covers of one shape are looked at together: an all-ones cyclic code has s + 1 of them.
        shapes = dict.fromkeys(cover.shape for cover in covers)
        self._stacks = [np.stack([c for c in covers if c.shape == shape]) for shape in shapes]

    def suffices(self, responded: BoolArray) -> bool:
        return any(_whole(responded[stack]).any() for stack in self._stacks)

    def solve(self, responded: BoolArray) -> Solved | None:
        for stack in self._stacks:
            answered = responded[stack]  # (covers, candidates, places)
            whole = _whole(answered)
            first = whole.argmax()
            if whole[first]:
                rows = answered[first].argmax(axis=0)
                vector = np.zeros(self._n)
                vector[stack[first][rows, np.arange(rows.size)]] = 1.0
                return Solved(vector, 0.0)
        return None


def _whole(answered: BoolArray) -> BoolArray:
    """Return whether (covers, candidates, places) has an answer in every place: (covers,)."""
    whole: BoolArray = np.logical_and.reduce(np.logical_or.reduce(answered, axis=1), axis=1)
    return whole


class NullSpaceDecoder:
    """For codes any ``n - s`` of whose results decode, and no fewer.

    ``equations`` are made when a vector is first asked for: which answers suffice is known without.
    So is the ``matrix`` E (n, k), by which vectors are judged.
    """

    def __init__(
        self, s: int, equations: Callable[[], Solutions], matrix: Callable[[], FloatArray]
    ) -> None:
        self._s, self._make_equations, self._matrix = s, equations, matrix

    def suffices(self, responded: BoolArray) -> bool:
        return int(np.count_nonzero(~responded)) <= self._s

    @cached_property
    def _equations(self) -> Solutions:
        return self._make_equations()

    def solve(self, responded: BoolArray) -> Solved | None:
        missing = np.flatnonzero(~responded)
        if missing.size > self._s:
            return None
        columns = self._equations.null_space[:, missing]
        right = self._equations.shortest[missing]
        if missing.size == self._s:
            return self._judged(np.linalg.solve(columns.T, right), missing)
        try:
            gram = columns.T @ columns
            z = columns @ np.linalg.solve(gram, right)
            z += columns @ np.linalg.solve(gram, right - z @ columns)
            if (solved := self._judged(z, missing)).residual <= _CLEAN_RESIDUAL:
                return solved
        except np.linalg.LinAlgError:
            pass
        basis, triangle = np.linalg.qr(columns)
        return self._judged(basis @ np.linalg.solve(triangle.T, right), missing)

    def _judged(self, z: FloatArray, missing: IntArray) -> Solved:
        vector: FloatArray = self._equations.shortest - z @ self._equations.null_space
        unsolved = vector[missing]
        vector[missing] = 0.0
        # a @ E - 1 is what `shortest` leaves, less z times null_space @ E, which is 0 but for
        # rounding, less the missing workers' own part: bounded without a product of size n.
        of_shortest, of_null_space, of_rows = self._flaws
        residual = of_shortest + math.sqrt(z @ z) * of_null_space
        return Solved(vector, residual + math.sqrt(unsolved @ unsolved) * of_rows)

    @cached_property
    def _flaws(self) -> tuple[float, float, float]:
        """Return norms: of ``shortest @ E - 1``, of ``null_space @ E``, and of E."""
        matrix = self._matrix()
        return (
            float(np.linalg.norm(self._equations.shortest @ matrix - 1.0)),
            float(np.linalg.norm(self._equations.null_space @ matrix)),
            float(np.linalg.norm(matrix)),
        )


class SpanDecoder:
    """For any code of ``s`` stragglers; ``matrix`` makes its encoding matrix E (n, k)."""

    def __init__(self, s: int, matrix: Callable[[], FloatArray]) -> None:
        self._s, self._matrix = s, matrix

    @cached_property
    def _span(self) -> Span:
        return Span(self._matrix(), np.ones(self._matrix().shape[1]))

    def suffices(self, responded: BoolArray) -> bool:
        if np.count_nonzero(~responded) <= self._s:
            return True
        return self._span.distance(responded) <= _SPANNED * math.sqrt(self._matrix().shape[1])

    def solve(self, responded: BoolArray) -> Solved | None:
        if not self.suffices(responded):
            return None
        matrix, vector = self._matrix(), np.zeros(len(responded))
        vector[responded] = np.linalg.lstsq(matrix[responded].T, np.ones(matrix.shape[1]))[0]
        return Solved(vector, float(np.linalg.norm(vector @ matrix - 1.0)))

"""Three ways to find a decoding vector: complete covers, ``s`` equations, or least squares.

Theory of operation
-------------------
Each code uses one of three ways to find ``a`` with ``a @ E == 1``.

*Covers* (`CoverDecoder`) are used if the coefficients are ones, and the gradient is the sum of some
workers' results. A *cover* is an array (candidates, places) of workers. The workers of a column
return equal results, and the sum of one result from each column is the gradient. To find ``a`` is
to find a cover with an answer in every column. No equations are solved, rounding errors come only
from a sum, and as few results as possible are read.

*Equations* (`Solutions`). If no worker is missing, the vectors ``a`` (n,) with ``a @ E == 1`` are
``shortest - z @ N``. The rows of ``N`` (d, n) are an orthonormal basis of the vectors that ``E``,
of rank ``n - d``, maps to 0; ``shortest`` is orthogonal to them. The coefficients of missing
workers must be 0: ``z @ N[:, missing] == shortest[missing]``. There is one equation for each
missing worker. The system is small: 15 workers may be missing while 241 answer. Because ``||a||^2 =
||shortest||^2 + ||z||^2``, the shortest ``z`` gives the shortest ``a``, which amplifies rounding
errors least. This ``z`` is long if the missing columns ``C`` of ``N`` are nearly dependent. (Codes
that tolerate any ``s`` stragglers have ``d >= s``.)

For a code of rank ``n - s`` (`NullSpaceDecoder`), ``s`` missing workers give as many equations as
unknowns. If fewer are missing, the shortest ``z`` is a combination of their columns: ``z = C y``,
``C^T C y = b``. This method is the fastest, but it is inexact if the square of the condition number
of ``C`` exceeds the precision of float64. If the residual shows this, ``z`` is computed again by a
QR factorisation of ``C``.

*Least squares* (`SpanDecoder`) is used for any other matrix.

Every way also returns a bound on the norm of ``a @ E - 1``. `ExactCode` rejects a vector whose
bound is too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from seqgc.codes._arrays import Span, batches
from seqgc.ports import BoolArray, FloatArray, IntArray

# A vector with a larger residual is computed again, by the slower method.
_CLEAN_RESIDUAL = 1e-12

# The vector of ones counts as spanned by some rows if its distance from their span, divided by the
# square root of the number of chunks, is at most this.
_SPANNED = 1e-9


class Decoder(Protocol):
    """A way to decide whether the answers (n,) suffice, and to find their decoding vector."""

    def suffices(self, responded: BoolArray) -> bool: ...
    def solve(self, responded: BoolArray) -> Solved | None:
        """Return the decoding vector ``a``, or None if the answers do not suffice.

        Raises `numpy.linalg.LinAlgError` if the equations for ``a`` are singular.
        """


class Solved(NamedTuple):
    """A decoding ``vector`` (n,), and a bound on the norm of its ``residual`` ``a @ E - 1``."""

    vector: FloatArray
    residual: float


class CoverDecoder:
    """The decoder of codes for which the gradient is a plain sum of some of the results.

    ``covers`` is `GradientCode.covers`. The decoder uses the first complete cover. From each
    column it takes the result of the topmost worker that answered.
    """

    def __init__(self, n: int, covers: tuple[IntArray, ...]) -> None:
        self._n = n
        # Covers of the same shape are stacked: a cyclic code of ones has s + 1 of them.
        shapes = dict.fromkeys(cover.shape for cover in covers)
        self._stacks = [np.stack([c for c in covers if c.shape == shape]) for shape in shapes]

    def suffices(self, responded: BoolArray) -> bool:
        return any(_complete(responded[stack]).any() for stack in self._stacks)

    def solve(self, responded: BoolArray) -> Solved | None:
        for stack in self._stacks:
            answered = responded[stack]  # (covers, candidates, places)
            complete = _complete(answered)
            first = complete.argmax()
            if complete[first]:
                rows = answered[first].argmax(axis=0)
                vector = np.zeros(self._n)
                vector[stack[first][rows, np.arange(rows.size)]] = 1.0
                return Solved(vector, 0.0)
        return None


def _complete(answered: BoolArray) -> BoolArray:
    """Return a mask (m,) of the covers with an answer in every place.

    ``answered`` (m, candidates, places) is a mask of the workers that answered.
    """
    complete: BoolArray = np.logical_and.reduce(np.logical_or.reduce(answered, axis=1), axis=1)
    return complete


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solutions:
    """All solutions ``shortest - z @ null_space`` of ``a @ E == 1``, real or complex.

    ``shortest`` (n,) is the shortest solution; the rows of ``null_space`` (d, n) are orthonormal.
    """

    shortest: FloatArray
    null_space: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray, most: int) -> Solutions:
        """Return the solutions for an encoding matrix (n, k) whose rank is at most ``most``."""
        left, singular, right = np.linalg.svd(matrix)
        negligible = singular[0] * max(matrix.shape) * np.finfo(np.float64).eps
        rank = min(most, int(np.count_nonzero(singular > negligible)))
        weights = right[:rank].conj().sum(axis=1) / singular[:rank]
        spanned, rest = left[:, :rank].conj(), left[:, rank:].conj()
        return cls(shortest=spanned @ weights, null_space=rest.T.copy())

    def lengths(self, sets: IntArray) -> FloatArray:
        """Return the length ``||a||`` of the shortest solution for each set of stragglers: (m,).

        Each row of ``sets`` (m, s), ``s <= d``, holds ``s`` stragglers, whose coefficients in ``a``
        are 0. A length is infinite if there is no solution.
        """
        rows = batches(len(sets), sets.shape[1] * len(self.null_space))
        parts = [self._corrections(sets[batch]) for batch in rows]
        square: FloatArray = _squares(self.shortest, axis=0) + np.concatenate([np.zeros(0), *parts])
        return np.sqrt(square)

    def _corrections(self, sets: IntArray) -> FloatArray:
        """Return ``||z||^2`` of the shortest ``z`` that makes ``a`` 0 at the stragglers: (m,)."""
        equations, values = self.null_space.T[sets], self.shortest[sets][:, :, None]
        try:
            if sets.shape[1] == len(self.null_space):
                return _squares(np.linalg.solve(equations, values)[:, :, 0], axis=1)
            # z has the same norm as its coordinates in the span of the equations.
            _, triangle = np.linalg.qr(equations.conj().mT)
            return _squares(np.linalg.solve(triangle.conj().mT, values)[:, :, 0], axis=1)
        except np.linalg.LinAlgError:  # the equations of a set are singular; bisect to find the set
            if len(sets) == 1:
                return np.array([math.inf])
            halves = np.array_split(sets, 2)
            return np.concatenate([self._corrections(half) for half in halves])

    def best_swaps(self, sets: IntArray) -> tuple[IntArray, FloatArray]:
        """In each set (m, s), swap the one straggler for another that makes ``||a||`` longest.

        Return the new sets (m, s), and the factors (m,) by which ``||z||`` grows.

        ``a = shortest - z @ null_space``, where ``z`` is the shortest solution of one equation
        ``N_v z = b_v`` for each straggler ``v``. Without the equation of straggler ``j``, the
        solution is ``z - p (p* z)``, where ``p`` is the unit vector along column ``j`` of the
        equations' pseudo-inverse. The equation of a new straggler ``v`` adds a step along the part
        of ``N_v`` that the remaining equations do not span. This part consists of ``N_v p`` and of
        the part outside the span of all equations. The residual gives the length of the step.
        Therefore a single factorisation gives the effect of all ``s (n - s)`` swaps.
        """
        everyone = self.null_space.T
        basis, triangle = np.linalg.qr(everyone[sets].conj().mT)
        dual = np.linalg.solve(triangle, basis.conj().mT).conj().mT  # (m, d, s)
        dual /= np.linalg.norm(dual, axis=1, keepdims=True)
        z = basis @ np.linalg.solve(triangle.conj().mT, self.shortest[sets][:, :, None])
        along, outside = dual.conj().mT @ z, everyone @ dual  # (m, s, 1), (m, n, s)
        residual = (self.shortest[:, None] - everyone @ z) + outside * along[:, None, :, 0]
        reach = _squares(outside)
        if sets.shape[1] < len(self.null_space):
            beyond = _squares(everyone, axis=1) - _squares(everyone @ basis, axis=2)
            reach += np.maximum(beyond, 0.0)[:, :, None]
        square = _squares(z[:, :, 0], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = _squares(residual) / reach - _squares(along[:, None, :, 0])
        chains = np.arange(len(sets))
        gain[chains[:, None], sets] = -math.inf  # these workers are stragglers already
        gain = np.nan_to_num(gain, nan=-math.inf, posinf=math.inf).reshape(len(sets), -1)
        best = gain.argmax(axis=1)
        swapped = sets.copy()
        swapped[chains, best % sets.shape[1]] = best // sets.shape[1]
        new_square = np.maximum(square + gain[chains, best], 0.0)
        return swapped, np.sqrt(new_square / np.maximum(square, np.finfo(np.float64).tiny))


def _squares(values: FloatArray, *, axis: int | None = None) -> FloatArray:
    """Return the squared absolute values, summed along an axis if one is given."""
    squares: FloatArray = np.square(values.real) + np.square(values.imag)
    return squares if axis is None else squares.sum(axis=axis)


class NullSpaceDecoder:
    """The decoder of codes for which any ``n - s`` results suffice, but fewer never do.

    The functions ``equations`` and ``matrix`` are called when a vector is first needed, but not to
    decide whether answers suffice. ``matrix`` returns the encoding matrix E (n, k), from which the
    residuals of vectors are computed.
    """

    def __init__(
        self, s: int, equations: Callable[[], Solutions], matrix: Callable[[], FloatArray]
    ) -> None:
        self._s, self._make_equations, self._matrix = s, equations, matrix

    def suffices(self, responded: BoolArray) -> bool:
        return len(responded) - int(np.count_nonzero(responded)) <= self._s

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
            z = columns @ np.linalg.solve(columns.T @ columns, right)
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
        # The residual a @ E - 1 is the sum of three parts: the residual of `shortest`; z times
        # null_space @ E (0 up to rounding); and the effect of the coefficients of missing workers
        # that were just set to 0. Each part is bounded here without a product of size n.
        of_shortest, of_null_space, of_rows = self._norms
        residual = of_shortest + math.sqrt(z @ z) * of_null_space
        return Solved(vector, residual + math.sqrt(unsolved @ unsolved) * of_rows)

    @cached_property
    def _norms(self) -> tuple[float, float, float]:
        """The norms of ``shortest @ E - 1``, of ``null_space @ E``, and of E."""
        matrix = self._matrix()
        return (
            float(np.linalg.norm(self._equations.shortest @ matrix - 1.0)),
            float(np.linalg.norm(self._equations.null_space @ matrix)),
            float(np.linalg.norm(matrix)),
        )


class SpanDecoder:
    """The decoder of any code for ``s`` stragglers; ``matrix()`` is its encoding matrix (n, k)."""

    def __init__(self, s: int, matrix: Callable[[], FloatArray]) -> None:
        self._s, self._matrix = s, matrix

    @cached_property
    def _span(self) -> Span:
        return Span(self._matrix(), np.ones(self._matrix().shape[1]))

    def suffices(self, responded: BoolArray) -> bool:
        if len(responded) - int(np.count_nonzero(responded)) <= self._s:
            return True
        return self._span.distance(responded) <= _SPANNED * math.sqrt(self._matrix().shape[1])

    def solve(self, responded: BoolArray) -> Solved | None:
        if not self.suffices(responded):
            return None
        matrix, vector = self._matrix(), np.zeros(len(responded))
        vector[responded] = np.linalg.lstsq(matrix[responded].T, np.ones(matrix.shape[1]))[0]
        return Solved(vector, float(np.linalg.norm(vector @ matrix - 1.0)))

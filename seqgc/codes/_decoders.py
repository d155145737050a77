"""How decoding vectors are found: whole covers, ``s`` equations, or least squares.

Theory of operation
-------------------
Which of three ways finds ``a`` with ``a @ E == 1`` is a matter of the code, not of the answers.

*Covers* (`CoverDecoder`). Where coefficients are ones, some workers' results add up to the
gradient. A *cover* says which, and who stands in for whom: an array (candidates, places) of
workers, where those of a column return equal results, and one of each column adds up. To find ``a``
is to look for a cover with an answer in every column: no equations, no rounding but a sum's, and
the fewest results to read.

*Equations* (`Solutions`). With nobody missing, the vectors ``a`` (n,) with ``a @ E == 1`` are
``shortest - z @ N``: the rows of ``N`` (d, n) are an orthonormal basis of the vectors that ``E``,
of rank ``n - d``, maps to 0; ``shortest`` is orthogonal to them. Missing workers ask that their
part vanishes, ``z @ N[:, missing] == shortest[missing]``: as many equations as workers are missing,
not as have answered, and 15 are few beside 241. Because ``||a||^2 = ||shortest||^2 + ||z||^2``, the
shortest ``z`` gives the shortest ``a``, the one that amplifies rounding errors least. It is long
where the missing columns ``C`` of ``N`` are nearly dependent. (Codes that lose any ``s`` workers
have ``d >= s``.)

Of a code of rank ``n - s`` (`NullSpaceDecoder`), ``s`` missing workers give as many equations as
unknowns. If fewer are missing, the shortest ``z`` is a combination of their columns:
``z = C y``, ``C^T C y = b``. That is fastest, and inexact if the square of C's condition is beyond
float64; where the residual shows it, ``z`` is found again by a QR
factorisation of ``C``.

*Least squares* (`SpanDecoder`), for any other matrix: nothing is known, so nothing is saved.

Every vector comes with a bound on the norm of ``a @ E - 1``, by which `ExactCode` judges it.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solutions:
    """All solutions ``shortest - z @ null_space`` of ``a @ E == 1``, real or complex.

    ``shortest`` (n,) is the shortest of them; the rows of ``null_space`` (d, n) are orthonormal.
    """

    shortest: FloatArray
    null_space: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray, most: int) -> Solutions:
        """Return those of an encoding matrix (n, k), whose rank is at most this."""
        left, singular, right = np.linalg.svd(matrix)
        negligible = singular[0] * max(matrix.shape) * np.finfo(np.float64).eps
        rank = min(most, int(np.count_nonzero(singular > negligible)))
        weights = right[:rank].conj().sum(axis=1) / singular[:rank]
        spanned, left_over = left[:, :rank].conj(), left[:, rank:].conj()
        return cls(shortest=spanned @ weights, null_space=left_over.T.copy())

    def lengths(self, sets: IntArray) -> FloatArray:
        """Return ``||a||`` of the shortest solution without each of these stragglers.

        (m, s) to (m,), for ``s <= d``; infinite where there is no solution.
        """
        rows = batches(len(sets), sets.shape[1] * len(self.null_space))
        parts = [self._corrections(sets[batch]) for batch in rows]
        square: FloatArray = _squares(self.shortest, axis=0) + np.concatenate([np.zeros(0), *parts])
        return np.sqrt(square)

    def _corrections(self, sets: IntArray) -> FloatArray:
        """Return ``||z||^2`` of the shortest ``z`` with ``z @ null_space == shortest`` there."""
        equations, values = self.null_space.T[sets], self.shortest[sets][:, :, None]
        try:
            if sets.shape[1] == len(self.null_space):
                return _squares(np.linalg.solve(equations, values)[:, :, 0], axis=1)
            # ||z|| is that of its coordinates in the equations' span.
            _, triangle = np.linalg.qr(equations.conj().mT)
            return _squares(np.linalg.solve(triangle.conj().mT, values)[:, :, 0], axis=1)
        except np.linalg.LinAlgError:  # one of them is singular; find which
            if len(sets) == 1:
                return np.array([math.inf])
            halves = np.array_split(sets, 2)
            return np.concatenate([self._corrections(half) for half in halves])

    def best_swaps(self, sets: IntArray) -> tuple[IntArray, FloatArray]:
        """Return each set (m, s) after the one swap that makes ``||a||`` longest, and by how much.

        ``a = shortest - z @ null_space``, where ``z`` is the shortest solution of one equation
        ``N_v z = b_v`` per straggler. Without straggler ``j``'s it is ``z - p (p* z)``, with ``p``
        the unit vector along column ``j`` of the equations' pseudo-inverse; worker ``v``'s adds
        what its residual asks for, along ``N_v``'s part outside the other equations: ``N_v p``, and
        what is outside all of them. So one factorisation prices all ``s (n - s)`` swaps. The second
        result (m,) is the factor by which ``||z||`` grows.
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
        now = _squares(z[:, :, 0], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            after = _squares(residual) / reach - _squares(along[:, None, :, 0])
        chains = np.arange(len(sets))
        after[chains[:, None], sets] = -math.inf  # they straggle already
        after = np.nan_to_num(after, nan=-math.inf, posinf=math.inf).reshape(len(sets), -1)
        chosen = after.argmax(axis=1)
        swapped = sets.copy()
        swapped[chains, chosen % sets.shape[1]] = chosen // sets.shape[1]
        grown = np.maximum(now + after[chains, chosen], 0.0)
        return swapped, np.sqrt(grown / np.maximum(now, np.finfo(np.float64).tiny))


def _squares(values: FloatArray, *, axis: int | None = None) -> FloatArray:
    """Return the numbers' squares, summed along an axis if one is given."""
    squares: FloatArray = np.square(values.real) + np.square(values.imag)
    return squares if axis is None else squares.sum(axis=axis)


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
        if len(responded) - int(np.count_nonzero(responded)) <= self._s:
            return True
        return self._span.distance(responded) <= _SPANNED * math.sqrt(self._matrix().shape[1])

    def solve(self, responded: BoolArray) -> Solved | None:
        if not self.suffices(responded):
            return None
        matrix, vector = self._matrix(), np.zeros(len(responded))
        vector[responded] = np.linalg.lstsq(matrix[responded].T, np.ones(matrix.shape[1]))[0]
        return Solved(vector, float(np.linalg.norm(vector @ matrix - 1.0)))

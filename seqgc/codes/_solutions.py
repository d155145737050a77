"""All decoding vectors of an encoding matrix, and how long they get as workers are missing.

Theory of operation
-------------------
With nobody missing, the vectors ``a`` (n,) with ``a @ E == 1`` are ``shortest - z @ N``: the rows
of ``N`` (d, n) are an orthonormal basis of the vectors that ``E``, of rank ``n - d``, maps to 0;
``shortest`` is orthogonal to them. Missing workers ask that their part vanishes,
``z @ N[:, missing] == shortest[missing]``: as many equations as workers are missing, not as have
answered, and 15 are few beside 241. Because ``||a||^2 = ||shortest||^2 + ||z||^2``, the shortest
``z`` gives the shortest ``a``, the one that amplifies rounding errors least. It is long where the
missing columns of ``N`` are nearly dependent. (Codes that lose any ``s`` workers have ``d >= s``.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqgc.ports import FloatArray, IntArray

__all__ = ["Solutions"]

_BLOCK = 1 << 22  # numbers in one batch of matrices


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
        return cls(
            shortest=left[:, :rank].conj() @ weights, null_space=left[:, rank:].conj().T.copy()
        )

    def lengths(self, sets: IntArray) -> FloatArray:
        """Return ``||a||`` of the shortest solution without each of these stragglers.

        (m, s) to (m,), for ``s <= d``; infinite where there is no solution.
        """
        step = max(1, _BLOCK // max(1, sets.shape[1] * len(self.null_space)))
        parts = [self._corrections(sets[low : low + step]) for low in range(0, len(sets), step)]
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
        reach = _squares(outside, axis=None)
        if sets.shape[1] < len(self.null_space):
            beyond = _squares(everyone, axis=1) - _squares(everyone @ basis, axis=2)
            reach += np.maximum(beyond, 0.0)[:, :, None]
        now = _squares(z[:, :, 0], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            after = _squares(residual, axis=None) / reach - _squares(
                along[:, None, :, 0], axis=None
            )
        chains = np.arange(len(sets))
        after[chains[:, None], sets] = -math.inf  # they straggle already
        after = np.nan_to_num(after, nan=-math.inf, posinf=math.inf).reshape(len(sets), -1)
        chosen = after.argmax(axis=1)
        swapped = sets.copy()
        swapped[chains, chosen % sets.shape[1]] = chosen // sets.shape[1]
        grown = np.maximum(now + after[chains, chosen], 0.0)
        return swapped, np.sqrt(grown / np.maximum(now, np.finfo(np.float64).tiny))


def _squares(values: FloatArray, *, axis: int | None) -> FloatArray:
    """Return the numbers' squares, summed along an axis if one is given."""
    squares: FloatArray = np.square(values.real) + np.square(values.imag)
    return squares if axis is None else squares.sum(axis=axis)

"""Sets of stragglers to judge a code by, and a bounded search for the worst of them.

A set of ``s`` stragglers is a row of an index array (m, s); only sets of exactly ``s`` need be
judged, since with fewer missing the shortest decoding vector can only be shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from seqgc.ports import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from seqgc.codes._base import GradientCode

__all__ = [
    "Solutions",
    "contiguous_sets",
    "random_sets",
    "residue_sets",
    "responded_without",
    "strided_sets",
    "worst_found",
    "worst_of",
]

_RANDOM_STARTS = 200
_CHAINS = 16  # sets that are improved at the same time
_WORTHWHILE = 1.01  # a swap must lengthen the correction by this factor
_OVERHEAD = 1e5  # of numpy's calls per chain and step, in floating-point operations
_BLOCK = 1 << 22  # numbers in one batch of matrices


def random_sets(n: int, s: int, count: int, rng: np.random.Generator) -> IntArray:
    """Return ``count`` sets of ``s`` of ``n`` workers, uniformly drawn: (count, s), sorted rows."""
    return np.sort(rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)[:, :s], axis=1)


def contiguous_sets(n: int, s: int) -> IntArray:
    """Return the ``n`` sets of ``s`` neighbours, where worker 0 follows ``n - 1``: (n, s)."""
    return (np.arange(n)[:, None] + np.arange(s)) % n


def strided_sets(n: int, s: int) -> IntArray:
    """Return every m-th worker from 0 on, as where workers share machines in turn: (m, s)."""
    return np.arange(s) * np.arange(2, max(2, (n - 1) // max(1, s - 1) + 1))[:, None]


def residue_sets(n: int, s: int) -> IntArray:
    """Return the first ``s`` workers in the order of their number mod ``m``, m = 2 ... n/2.

    Whole residue classes are missing, and part of the next one, wherever they are shorter than
    ``s``: (n//2 - 1, s), sorted rows.
    """
    moduli = np.arange(2, n // 2 + 1)[:, None]
    order = np.argsort(np.arange(n) % moduli, axis=1, kind="stable")
    return np.sort(order[:, :s], axis=1)


def responded_without(n: int, stragglers: IntArray) -> BoolArray:
    """Return the masks in which just these are missing: (m, s) to (m, n), or (s,) to (n,).

    Examples
    --------
    >>> responded_without(4, np.array([0, 3]))
    array([False,  True,  True, False])
    """
    masks = np.ones((*stragglers.shape[:-1], n), dtype=np.bool_)
    np.put_along_axis(masks, stragglers, values=False, axis=-1)
    return masks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solutions:
    """The solutions of ``a @ E == 1`` with no worker missing, for an ``E`` of rank ``n - d``.

    They are ``shortest`` (n,) plus any combination of the orthonormal rows of ``null_space``
    (d, n), to which ``shortest`` is orthogonal. (Complex numbers would do as well.)
    """

    shortest: FloatArray
    null_space: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray, rank: int) -> Solutions:
        """Return those of an encoding matrix (n, k) of this rank."""
        left, singular, right = np.linalg.svd(matrix)
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
            _, triangle = np.linalg.qr(_adjoint(equations))
            return _squares(np.linalg.solve(_adjoint(triangle), values)[:, :, 0], axis=1)
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
        basis, triangle = np.linalg.qr(_adjoint(everyone[sets]))
        dual = _adjoint(np.linalg.solve(triangle, _adjoint(basis)))  # (m, d, s)
        dual /= np.linalg.norm(dual, axis=1, keepdims=True)
        z = basis @ np.linalg.solve(_adjoint(triangle), self.shortest[sets][:, :, None])
        along, outside = _adjoint(dual) @ z, everyone @ dual  # (m, s, 1), (m, n, s)
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


def _adjoint(matrices: FloatArray) -> FloatArray:
    adjoint: FloatArray = matrices.conj().swapaxes(-1, -2)
    return adjoint


def _squares(values: FloatArray, *, axis: int | None) -> FloatArray:
    """Return the numbers' squares, summed along an axis if one is given."""
    squares: FloatArray = np.square(values.real) + np.square(values.imag)
    return squares if axis is None else squares.sum(axis=axis)


def worst_found(
    code: GradientCode, *, seed: int = 0, budget: float = 1e9
) -> tuple[BoolArray, float]:
    """Search for the ``s`` stragglers that amplify a code's rounding errors most.

    Parameters
    ----------
    code : GradientCode
        If it decodes by plain sums (`GradientCode.covers`), every set is as good as any other.
        Else its rows must have equal norms and its encoding matrix rank ``n - s``.
    seed : int
        Of the random sets; the same seed finds the same set.
    budget : float
        Floating-point operations to spend, roughly.

    Returns
    -------
    responded : (n,) bool
        The survivors.
    amplification : float
        `GradientCode.amplification` of their decoding vector; infinite if they have none.

    Examples
    --------
    >>> from seqgc.codes import make_code
    >>> worst_found(make_code("rep", 4, 1))
    (array([False,  True,  True,  True]), 1.0)
    """
    if code.covers:
        return responded_without(code.n, np.arange(code.s)), 1.0
    solutions = Solutions.of(code.encoding_matrix, code.n - code.s)
    stragglers, length = worst_of(solutions, code.s, seed=seed, budget=budget)
    scale = np.linalg.norm(code.encoding_matrix) / math.sqrt(code.n * code.chunk_fractions.size)
    return responded_without(code.n, stragglers), float(length * scale)


def worst_of(
    solutions: Solutions, s: int, *, seed: int = 0, budget: float = 1e9
) -> tuple[IntArray, float]:
    """Return the set (s,) with the longest ``||a||`` found, and that length.

    Starts from contiguous, strided, residue-class and random sets, and climbs from the worst of
    them, then from random ones, by the best swap of one straggler until none is worthwhile.
    """
    n = solutions.shortest.size
    rng = np.random.default_rng([seed, n, s])
    starts = _starts(n, s, rng, most=max(_CHAINS, int(budget / 2 / (s**3 + 100 * s))))
    lengths = solutions.lengths(starts)
    order = np.argsort(-lengths, kind="stable")
    worst, longest = starts[order[0]], float(lengths[order[0]])
    chains = starts[order[:_CHAINS]]
    step_cost = len(chains) * (2 * n * s**2 + 6 * s**3 + 60 * n * s + _OVERHEAD)
    for _ in range(max(1, int(budget / 2 / step_cost))):
        if not math.isfinite(longest):
            break
        try:
            swapped, factors = solutions.best_swaps(chains)
        except np.linalg.LinAlgError:  # singular to the last bit; the longest is as bad
            break
        stuck = np.flatnonzero(~(factors > _WORTHWHILE))
        chains = swapped
        if stuck.size:
            chains[stuck] = random_sets(n, s, stuck.size, rng)
        lengths = solutions.lengths(chains)
        top = int(lengths.argmax())
        if lengths[top] > longest:
            worst, longest = chains[top].copy(), float(lengths[top])
    return np.sort(worst), longest


def _starts(n: int, s: int, rng: np.random.Generator, *, most: int) -> IntArray:
    """Return about ``most`` sets or fewer, evenly taken from every kind: (m, s)."""
    kinds = (
        contiguous_sets(n, s),
        strided_sets(n, s),
        residue_sets(n, s),
        random_sets(n, s, _RANDOM_STARTS, rng),
    )
    thinning = max(1, -(-sum(map(len, kinds)) // most))
    return np.concatenate([sets[::thinning] for sets in kinds])

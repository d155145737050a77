"""The coefficients of the cyclic code where ``s + 1`` does not divide ``n``.

They are chosen for numerical quality.

Tandon et al. (2017, algorithm 2) take any ``H`` (s, n) with ``H @ 1 == 0`` and put into row ``i``
of the encoding matrix ``E`` the vector of its null space that is supported on window ``i ... i+s``.
Decoding without the stragglers ``S`` solves ``s`` equations whose matrix is the columns ``S`` of a
basis of E's left null space; rounding errors grow as these columns lose independence.

- Gaussian ``H``: windows of ``s`` columns are random square matrices, many nearly singular.
- Consecutive n-th roots of unity (Raviv et al. 2020, "Gradient coding from cyclic MDS codes and
  expander graphs"): Vandermonde matrices; all are regular, but those of contiguous stragglers are
  useless in floats.
- Roots at equal distances: contiguous stragglers are harmless (a discrete Fourier transform), but
  stragglers whose numbers agree mod ``s + 1`` make columns equal. (If ``s + 1`` divides ``n``, the
  equations stay consistent: all coefficients are 1, and `CyclicCode` uses just that.)

Here the rows of ``H`` are cosines and sines of angles at nearly equal distances (and alternating
signs, the angle pi, if ``s`` is odd): each angle is moved a little by chance, then to the nearest
multiple of ``2 pi/n``, which would make ``E`` circulant, then off it by a fraction of ``2 pi/n``,
so that any ``s`` columns are independent, whatever the divisors of ``n``, for almost all draws.
(Their determinant is an analytic function of the angles and not identically zero: at angles
``(j - 1/2) x``, or ``pi - j x``, it is a Vandermonde determinant of distinct nodes, ``x`` small.)
The columns are then scaled so that ``H @ 1 == 0``; no scale is zero for almost all draws. Several
draws are made, and the one that amplifies rounding errors least is kept.

At n = 256 this amplifies rounding errors (`GradientCode.amplification`) by about 1.5 in the median
of random straggler sets, Gaussian ``H`` by 500 to 3000; contiguous sets by 1 to 2, Gaussian by 300
to 2000. No draw is good for *every* set: the determinants are real and of either sign, so some come
close to zero, and amplifications above ``x`` have a frequency of about ``0.5/x``.
``tests/codes/test_cyclic_numerics.py`` measures.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from seqgc._types import FloatArray, IntArray

__all__ = ["CyclicDesign", "design"]

# How far angles move from equal distances (a fraction of the distance), and how far off multiples
# of 2 pi/n (a fraction of that). Equal distances are best for small s, moved ones for larger s,
# where stragglers of equal residue are many; far off the multiples, the seam between workers n-1
# and 0 hurts; near them, sets with few residues mod a divisor of n do. Screening decides.
_VARIANTS = tuple(itertools.product((0.3, 0.0, 0.1), (0.1, 0.05, 0.2, 0.4)))

_MAX_DRAWS = 2 * len(_VARIANTS)
_FLOPS = 1e9  # of all draws together, roughly: keeps n = 256 below a second
_ALL_SETS = 1000  # screen all sets of stragglers if there are no more
_RANDOM_SETS = 400
_BLOCK = 1 << 22  # numbers in one batch of matrices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CyclicDesign:
    """The encoding matrix's nonzeros, and the solutions of ``a @ E == 1`` with no worker missing.

    ``coefficients`` (n, s+1): worker ``i``'s on chunks ``i ... i+s (mod n)``, of unit norm, the
    first one positive. The solutions are ``shortest`` (n,) plus any combination of the orthonormal
    rows of ``null_space`` (s, n), to which ``shortest`` is orthogonal.
    """

    coefficients: FloatArray
    shortest: FloatArray
    null_space: FloatArray

    def __post_init__(self) -> None:
        for array in (self.coefficients, self.shortest, self.null_space):
            array.setflags(write=False)


@lru_cache(maxsize=256)
def design(n: int, s: int) -> CyclicDesign:
    """Return the coefficients for ``0 < s < n - 1``, the same for the same ``n`` and ``s``."""
    rng = np.random.default_rng([n, s])
    draws = int(np.clip(_FLOPS / (n**3 + 4 * n * s**3), 1, _MAX_DRAWS))
    designs = [
        _solved(_null_vectors(_parity(n, s, *_VARIANTS[draw % len(_VARIANTS)], rng)))
        for draw in range(draws)
    ]
    if draws == 1:
        return designs[0]
    sets = _straggler_sets(n, s, rng)
    return min(designs, key=lambda candidate: _badness(candidate, sets))


def _parity(n: int, s: int, jitter: float, detuning: float, rng: np.random.Generator) -> FloatArray:
    """Return ``H`` (s, n): see the module's docstring."""
    pairs, spacing = s // 2, n / (s + 1)
    # Moves below half of (spacing - 1) keep the rounded frequencies apart, and off 0 and n/2.
    reach = min(jitter * spacing, spacing - 1) / 2
    frequencies = np.arange(1, pairs + 1) * spacing + reach * rng.uniform(-1, 1, pairs)
    frequencies = np.floor(frequencies + 0.5) + detuning * rng.uniform(-1, 1, pairs)
    phases = 2 * np.pi / n * np.outer(frequencies, np.arange(n))
    alternating = (-1.0) ** np.arange(n)
    rows = [np.cos(phases), np.sin(phases), *([alternating[None]] if s % 2 else [])]
    basis, _ = np.linalg.qr(np.concatenate(rows).T)
    # The ones' part in the null space of these rows: as scales of the columns it makes H @ 1 == 0.
    scales = 1.0 - basis @ basis.sum(axis=0)
    parity: FloatArray = (basis * scales[:, None]).T
    return parity


def _null_vectors(parity: FloatArray) -> FloatArray:
    """Return, per window of columns, the unit vector that ``parity`` (s, n) maps to 0: (n, s+1)."""
    s, n = parity.shape
    windows = (np.arange(n)[:, None] + np.arange(s + 1)) % n
    vectors = np.empty((n, s + 1))
    step = max(1, _BLOCK // (s + 1) ** 2)
    for low in range(0, n, step):
        columns = parity.T[windows[low : low + step]]  # (step, s+1, s)
        complete, _ = np.linalg.qr(columns, mode="complete")
        vectors[low : low + step] = complete[:, :, -1]
    return vectors * np.sign(vectors[:, :1])


def _solved(coefficients: FloatArray) -> CyclicDesign:
    """Return the design with these coefficients (n, s+1), whose matrix has rank ``n - s``."""
    n, held = coefficients.shape
    matrix = np.zeros((n, n))
    matrix[np.arange(n)[:, None], (np.arange(n)[:, None] + np.arange(held)) % n] = coefficients
    left, singular, right = np.linalg.svd(matrix)
    rank = n - held + 1
    shortest = left[:, :rank] @ (right[:rank].sum(axis=1) / singular[:rank])
    return CyclicDesign(
        coefficients=coefficients, shortest=shortest, null_space=left[:, rank:].T.copy()
    )


def _straggler_sets(n: int, s: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return sets of ``s`` stragglers to judge by: (m, s) whose worst counts, (m', s) at large."""
    if math.comb(n, s) <= _ALL_SETS:
        every = np.array(list(itertools.combinations(range(n), s)))
        return every, every
    contiguous = (np.arange(n)[:, None] + np.arange(s)) % n
    # Every m-th worker, as where workers share machines in turn.
    strided = [np.arange(s) * m for m in range(2, n // s + 1)]
    drawn = [rng.choice(n, s, replace=False) for _ in range(_RANDOM_SETS)]
    return contiguous, np.array(strided + drawn)


def _badness(candidate: CyclicDesign, sets: tuple[IntArray, IntArray]) -> float:
    """Return the larger of the first sets' worst and the others' 90 % amplification."""
    try:
        worst = _amplifications(candidate, sets[0]).max()
        return float(max(worst, np.quantile(_amplifications(candidate, sets[1]), 0.9)))
    except np.linalg.LinAlgError:
        return math.inf


def _amplifications(candidate: CyclicDesign, sets: IntArray) -> FloatArray:
    """Return ``||a|| / sqrt(n)`` without each of these sets of stragglers (m, s)."""
    equations = candidate.null_space.T[sets]  # (m, s, s)
    z = np.linalg.solve(equations, candidate.shortest[sets][:, :, None])[:, :, 0]
    lengths: FloatArray = np.sum(candidate.shortest**2) + np.sum(z**2, axis=1)
    return np.sqrt(lengths / candidate.shortest.size)

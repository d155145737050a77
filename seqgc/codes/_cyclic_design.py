"""The coefficients of the cyclic code where ``s + 1`` does not divide ``n``, for small errors.

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

At n = 256 the median amplification of rounding errors is then 0.9 to 2.0 for random straggler sets,
and the worst contiguous set has 0.9 to 1.5. No real code is good for *every* set: determinants that
are positive for some sets and negative for others come close to zero in between, so amplifications
above ``x`` have a frequency of about ``0.7/x``, and a search meets 1e6 at once. More dimensions to
miss zero in would help: complex coefficients, or one more answer than is needed.
``experiments/codes/README.md`` has the measurements, of every alternative named here too.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from seqgc.codes._arrays import batches
from seqgc.codes._decoders import Solutions
from seqgc.codes._survivors import contiguous_sets, random_sets, strided_sets
from seqgc.ports import FloatArray

# How far angles move from equal distances (a fraction of the distance), and how far off multiples
# of 2 pi/n (a fraction of that). Equal distances are best for small s, moved ones for larger s,
# where stragglers of equal residue are many; far off the multiples, the seam between workers n-1
# and 0 hurts; near them, sets with few residues mod a divisor of n do. Screening decides.
_VARIANTS = tuple(itertools.product((0.3, 0.0, 0.1), (0.1, 0.05, 0.2, 0.4)))

_ASYMMETRY = 0.01

_MAX_DRAWS = 2 * len(_VARIANTS)
_FLOPS = 8e9  # of all draws together, roughly: keeps n = 256 below a second
_ALL_SETS = 1000  # screen all sets of stragglers if there are no more
_RANDOM_SETS = 400


class CyclicDesign(NamedTuple):
    """The encoding matrix's nonzeros, and the solutions that follow from them.

    Worker ``i``'s coefficients are on chunks ``i ... i+s (mod n)``: of unit norm, the first > 0.
    """

    coefficients: FloatArray  # (n, s+1)
    solutions: Solutions


@lru_cache(maxsize=256)
def design(n: int, s: int) -> CyclicDesign:
    """Return the coefficients for ``0 < s < n - 1``, the same for the same ``n`` and ``s``."""
    rng = np.random.default_rng([n, s])
    cost = 20 * n**3 + n * min(s, n - s) ** 3 + (n + _RANDOM_SETS) * s**3
    draws = int(np.clip(_FLOPS / cost, 1, _MAX_DRAWS))
    designs = [
        _solved(_parity(n, s, *_VARIANTS[draw % len(_VARIANTS)], rng)) for draw in range(draws)
    ]
    if draws == 1:
        return designs[0]
    if math.comb(n, s) <= _ALL_SETS:
        worst = at_large = np.array(list(itertools.combinations(range(n), s)))
    else:
        worst = contiguous_sets(n, s)
        at_large = np.concatenate([strided_sets(n, s), random_sets(n, s, _RANDOM_SETS, rng)])

    def badness(candidate: CyclicDesign) -> float:
        """Return the larger of the first sets' longest and the others' 90 % decoding vector."""
        longest = candidate.solutions.lengths(worst).max()
        return float(max(longest, np.quantile(candidate.solutions.lengths(at_large), 0.9)))

    return min(designs, key=badness)


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
    # A part in the null space of these rows: as scales of the columns it makes H @ 1 == 0.
    scales = np.ones(n)
    if n % 2 == 0 and s % 2:
        # Else H would be its own mirror image, and by that accident a few sets of fewer than n - s
        # survivors, their own mirror images, would decode.
        scales += _ASYMMETRY * rng.uniform(-1, 1, n)
    scales -= basis @ (scales @ basis)
    parity: FloatArray = (basis * scales[:, None]).T
    return parity


def _solved(parity: FloatArray) -> CyclicDesign:
    """Return the design whose encoding matrix has rank ``n - s`` and rows in H's null space."""
    s, n = parity.shape
    coefficients = _null_vectors(parity)
    matrix = np.zeros((n, n))
    np.put_along_axis(matrix, contiguous_sets(n, s + 1), coefficients, axis=1)
    return CyclicDesign(coefficients=coefficients, solutions=Solutions.of(matrix, n - s))


def _null_vectors(parity: FloatArray) -> FloatArray:
    """Return, per window of columns, the unit vector that ``parity`` (s, n) maps to 0: (n, s+1).

    With first entry 1 its others solve ``s`` equations. Or else it is a combination of a basis of
    H's null space that is 1 at the window's first column and 0 at the ``n - s - 1`` outside.
    """
    s, n = parity.shape
    windows = contiguous_sets(n, s + 1)
    vectors = np.ones((n, s + 1))
    if 2 * s <= n:
        for rows in batches(n, s * s):
            columns = parity.T[windows[rows]].swapaxes(1, 2)  # (rows, s, s+1)
            vectors[rows, 1:] = np.linalg.solve(columns[:, :, 1:], -columns[:, :, :1])[:, :, 0]
    else:
        complete, _ = np.linalg.qr(parity.T, mode="complete")
        kernel = complete[:, s:]  # (n, n-s)
        outside_and_first = (windows[:, -1:] + 1 + np.arange(n - s)) % n
        last = np.eye(n - s)[:, -1:]
        for rows in batches(n, (s + 1) * (n - s)):
            weights = np.linalg.solve(kernel[outside_and_first[rows]], last)
            vectors[rows] = (kernel[windows[rows]] @ weights)[:, :, 0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors

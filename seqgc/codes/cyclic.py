"""`CyclicCode`: worker ``i`` holds consecutive chunks, and any ``n - s`` workers suffice.

Theory: coefficients for small errors
-------------------------------------
If ``s + 1`` divides ``n``, all coefficients are 1. Otherwise they are designed as follows.

Tandon et al. (2017, algorithm 2) choose any ``H`` (s, n) with ``H @ 1 == 0``. Row ``i`` of the
encoding matrix ``E`` is the vector of H's null space that is supported on window ``i ... i+s``.
Decoding without the stragglers ``S`` solves ``s`` equations, whose matrix is the columns ``S`` of a
basis of E's left null space. Rounding errors grow if these columns are almost dependent.

- If ``H`` is Gaussian, windows of ``s`` columns are random square matrices, and many of them are
  nearly singular.
- If ``H`` has consecutive n-th roots of unity (Raviv et al. 2020, "Gradient coding from cyclic MDS
  codes and expander graphs"), the matrices are Vandermonde matrices. All of them are regular, but
  for contiguous stragglers they are useless in floating point.
- If the roots have equal distances, contiguous stragglers are harmless (the matrix is a discrete
  Fourier transform), but stragglers whose numbers agree mod ``s + 1`` make columns equal. (If
  ``s + 1`` divides ``n``, the equations are still consistent.)

Here the rows of ``H`` are cosines and sines of angles at nearly equal distances. If ``s`` is odd,
there is also a row of alternating signs (the angle pi). Each angle is moved a little at random,
rounded to a multiple of ``2 pi/n``, and then moved off this multiple by a fraction of ``2 pi/n``.
(Exact multiples would make ``E`` circulant.) For almost all draws, any ``s`` columns are then
independent, whatever the divisors of ``n``. (The determinant of the columns is an analytic function
of the angles, and not identically zero: at angles ``(j - 1/2) x`` or ``pi - j x`` with small ``x``,
it is a Vandermonde determinant of distinct nodes.) The columns are then scaled so that
``H @ 1 == 0``; for almost all draws no scale is zero. Several designs are drawn, and the design
that amplifies rounding errors least is used.

At n = 256 the median amplification of rounding errors is then 0.9 to 2.0 for random sets of
stragglers, and 0.9 to 1.5 for the worst contiguous set. No real code is good for *every* set: a
determinant that is positive for some sets and negative for others comes close to zero in between.
Amplifications above ``x`` have a frequency of about ``0.7/x``, and a search finds 1e6 quickly.
Complex coefficients, or one answer more than necessary, would help. ``experiments/codes/README.md``
has the measurements of all these alternatives.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np

from seqgc.codes._arrays import batches
from seqgc.codes._decoders import CoverDecoder, Decoder, NullSpaceDecoder, Solutions
from seqgc.codes._gradient_code import GradientCode, Layout
from seqgc.codes._make import register_code
from seqgc.codes._survivors import contiguous_sets, random_sets, strided_sets
from seqgc.ports import FloatArray, IntArray

# Two limits of the random moves of the angles: the move from equal distances, as a fraction of the
# distance, and the move from multiples of 2 pi/n, as a fraction of 2 pi/n. Equal distances are best
# for small s; moved angles are better for larger s, where many stragglers can have equal residues.
# Far from the multiples, stragglers around workers n-1 and 0 are bad; near the multiples, sets with
# few residues mod a divisor of n are bad. Each pair is tried, and the best design is used.
_VARIANTS = tuple(itertools.product((0.3, 0.0, 0.1), (0.1, 0.05, 0.2, 0.4)))

_ASYMMETRY = 0.01

_MAX_DRAWS = 2 * len(_VARIANTS)
_FLOPS = 8e9  # approximate cost of all draws together; n = 256 then takes less than a second
_ALL_SETS = 1000  # up to this number, all sets of stragglers are tested
_RANDOM_SETS = 400


@register_code("cyclic", preference=2)
@final
@dataclass(frozen=True)
class CyclicCode(GradientCode):
    """Cyclic repetition code: any ``n - s`` workers suffice (Tandon et al. 2017, section 5).

    Worker ``i`` holds chunks ``i, i+1, ..., i+s (mod n)``, in this order.

    If ``s + 1`` divides ``n``, all coefficients are 1: workers ``c, c+s+1, c+2(s+1), ...`` cover
    every chunk once, and ``s`` stragglers cannot be in all ``s + 1`` of these classes
    (Charalambides, Mahdavifar, Hero 2020). The decoding vector is 1 on the first class of which all
    workers answered. Decoding then solves no equations, has only the rounding errors of a sum, and
    adds the fewest results. Fewer than ``n - s`` answers can be decoded only if they contain a
    whole class: ``a @ E`` is constant only if ``a_i`` depends on ``i mod (s + 1)`` alone.

    If ``s + 1`` does not divide ``n``, each worker's coefficients have unit norm and come from
    angles spread around the circle (see the module `seqgc.codes.cyclic`), and decoding solves ``s``
    equations. Some sets of stragglers are then much worse than average. If rounding errors would be
    amplified too much, decoding raises `IllConditionedError`.

    Examples
    --------
    >>> import numpy as np
    >>> code = CyclicCode(5, 2)
    >>> code.support(4)
    array([4, 0, 1])
    >>> responded = np.array([True, False, True, False, True])
    >>> np.allclose(code.decoding_vector(responded) @ code.encoding_matrix, 1.0)
    True
    """

    def _largest_load(self) -> float:
        return (self.s + 1) / self.n

    def _make_layout(self) -> Layout:
        windows = contiguous_sets(self.n, self.s + 1)
        return Layout(supports=tuple(windows), sizes=np.ones(self.n, dtype=np.intp))

    def _coefficients(self, worker: int) -> FloatArray:
        plain = self._is_plain()
        return np.ones(self.s + 1) if plain else design(self.n, self.s).coefficients[worker]

    def _make_covers(self) -> tuple[IntArray, ...]:
        if not self._is_plain():
            return ()
        return tuple(np.arange(self.n).reshape(-1, self.s + 1).T[:, None, :])  # by residue

    def _make_decoder(self) -> Decoder:
        if self._is_plain():
            return CoverDecoder(self.n, self.covers)
        return NullSpaceDecoder(
            self.s, lambda: design(self.n, self.s).solutions, lambda: self.encoding_matrix
        )

    def _is_plain(self) -> bool:
        return self.n % (self.s + 1) == 0


class CyclicDesign(NamedTuple):
    """The nonzero coefficients of an encoding matrix, and the `Solutions` of its equations.

    Row ``i`` of ``coefficients`` holds the coefficients of worker ``i`` for chunks ``i ... i+s (mod
    n)``. The row has unit norm, and its first coefficient is positive.
    """

    coefficients: FloatArray  # (n, s+1)
    solutions: Solutions


@lru_cache(maxsize=256)
def design(n: int, s: int) -> CyclicDesign:
    """Return the design for ``n`` workers and ``0 < s < n - 1`` stragglers, always the same one."""
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
        """Return the longest decoding vector of `worst`, or the 90 % quantile of `at_large`."""
        longest = candidate.solutions.lengths(worst).max()
        return float(max(longest, np.quantile(candidate.solutions.lengths(at_large), 0.9)))

    return min(designs, key=badness)


def _parity(n: int, s: int, jitter: float, detuning: float, rng: np.random.Generator) -> FloatArray:
    """Draw a matrix ``H`` (s, n) as the module's docstring describes it."""
    pairs, spacing = s // 2, n / (s + 1)
    # Moves below half of (spacing - 1) keep the rounded frequencies apart, and off 0 and n/2.
    reach = min(jitter * spacing, spacing - 1) / 2
    frequencies = np.arange(1, pairs + 1) * spacing + reach * rng.uniform(-1, 1, pairs)
    frequencies = np.floor(frequencies + 0.5) + detuning * rng.uniform(-1, 1, pairs)
    phases = 2 * np.pi / n * np.outer(frequencies, np.arange(n))
    alternating = (-1.0) ** np.arange(n)
    rows = [np.cos(phases), np.sin(phases), *([alternating[None]] if s % 2 else [])]
    basis, _ = np.linalg.qr(np.concatenate(rows).T)
    # If the scales of the columns are orthogonal to these rows, H @ 1 == 0.
    scales = np.ones(n)
    if n % 2 == 0 and s % 2:
        # Without this, H would be its own mirror image, and a few symmetric sets of fewer than
        # n - s survivors would decode by accident.
        scales += _ASYMMETRY * rng.uniform(-1, 1, n)
    scales -= basis @ (scales @ basis)
    parity: FloatArray = (basis * scales[:, None]).T
    return parity


def _solved(parity: FloatArray) -> CyclicDesign:
    """Return the design for ``H``: an encoding matrix of rank ``n - s`` with ``E @ H.T == 0``."""
    s, n = parity.shape
    coefficients = _null_vectors(parity)
    matrix = np.zeros((n, n))
    np.put_along_axis(matrix, contiguous_sets(n, s + 1), coefficients, axis=1)
    return CyclicDesign(coefficients=coefficients, solutions=Solutions.of(matrix, n - s))


def _null_vectors(parity: FloatArray) -> FloatArray:
    """Return, for each window of ``s + 1`` columns, the unit vector that they map to 0: (n, s+1).

    The columns belong to ``parity`` (s, n), the matrix ``H``. If the first entry of a vector is
    taken as 1, its other entries solve ``s`` equations. For large ``s`` it is cheaper to combine a
    basis of H's null space so that the result is 1 at the window's first column and 0 at the
    ``n - s - 1`` columns outside the window.
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

"""The worst survivors of a code: sets of stragglers to judge it by, and a bounded search for them.

Theory of operation
-------------------
The exactness of a code is that of its worst set of ``s`` stragglers, and there are too many sets to
try (1e24 at n = 256, s = 15). A single set is cheap: a system of ``s`` equations gives the length
of its shortest decoding vector, which multiplies rounding errors (`Solutions`).

*Starts.* Codes are regular, and so are failures: neighbours, every m-th worker, workers of equal
residue. The search starts from such sets and from random ones.

*Steps.* A step replaces one straggler by a worker that answered. The factorisation that a set needs
anyway gives the effect of each of its ``s (n - s)`` swaps on the length (`Solutions.best_swaps`).
The search takes the best swap, again and again, from the 16 worst sets at the same time
(`worst_of`). If no swap lengthens a set by 1 %, its chain continues from a random set, until the
budget is spent. With fewer stragglers there are fewer equations, and the shortest vector is not
longer; therefore only sets of exactly ``s`` stragglers are tried.

*Result.* The search gives a lower bound on the worst amplification. It is far beyond what random
sets show: at n = 256, s = 27 it finds 4e8, while one in a thousand random sets has 700.

A set of ``s`` stragglers is a row of an index array (m, s).
"""

from __future__ import annotations

import math

import numpy as np

from seqgc.codes._decoders import Solutions
from seqgc.codes._gradient_code import GradientCode
from seqgc.ports import BoolArray, IntArray

_RANDOM_STARTS = 200
_CHAINS = 16  # sets that are improved at the same time
_WORTHWHILE = 1.01  # the least factor by which a swap must lengthen the correction
_OVERHEAD = 1e5  # of NumPy's calls per chain and step, in floating-point operations


def random_sets(n: int, s: int, count: int, rng: np.random.Generator) -> IntArray:
    """Return ``count`` random sets of ``s`` of ``n`` workers: (count, s), sorted rows."""
    return np.sort(rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)[:, :s], axis=1)


def contiguous_sets(n: int, s: int) -> IntArray:
    """Return the ``n`` sets of ``s`` neighbours; worker 0 follows ``n - 1``: (n, s)."""
    return (np.arange(n)[:, None] + np.arange(s)) % n


def strided_sets(n: int, s: int) -> IntArray:
    """Return the sets of every m-th worker from 0 on, for each possible m: (sets, s)."""
    return np.arange(s) * np.arange(2, max(2, (n - 1) // max(1, s - 1) + 1))[:, None]


def residue_sets(n: int, s: int) -> IntArray:
    """Return the first ``s`` workers in the order of their number mod ``m``, m = 2 ... n/2.

    Each set consists of whole residue classes and a part of the next: (n//2 - 1, s), sorted rows.
    """
    moduli = np.arange(2, n // 2 + 1)[:, None]
    order = np.argsort(np.arange(n) % moduli, axis=1, kind="stable")
    return np.sort(order[:, :s], axis=1)


def responded_without(n: int, stragglers: IntArray) -> BoolArray:
    """Return masks of the workers that are not stragglers: (m, s) to (m, n), or (s,) to (n,)."""
    masks = np.ones((*stragglers.shape[:-1], n), dtype=np.bool_)
    np.put_along_axis(masks, stragglers, values=False, axis=-1)
    return masks


def worst_survivors(
    code: GradientCode, *, seed: int = 0, budget: float = 1e9
) -> tuple[BoolArray, float]:
    """Search for the survivors that amplify a code's rounding errors most if ``s`` are missing.

    Return the survivors (n,) and the `GradientCode.amplification` of the best vector that decodes
    their answers, infinite if no vector does. If a code decodes by plain sums
    (`GradientCode.covers`), all sets are equally good. ``seed`` is for the random sets, and
    ``budget`` is the approximate number of floating-point operations.

    Examples
    --------
    >>> from seqgc.codes import make_code
    >>> worst_survivors(make_code("rep", 4, 1))
    (array([False,  True,  True,  True]), 1.0)
    """
    if code.covers or code.s == 0:
        responded = responded_without(code.n, np.arange(code.s))
        return responded, code.amplification(code.decoding_vector(responded))
    norms = np.linalg.norm(code.encoding_matrix, axis=1, keepdims=True)
    unit_rows = code.encoding_matrix / np.where(norms > 0, norms, 1.0)
    solutions = Solutions.of(unit_rows, code.n - code.s)
    stragglers, length = worst_of(solutions, code.s, seed=seed, budget=budget)
    scale = math.sqrt(code.chunk_fractions.size)
    return responded_without(code.n, stragglers), float(length / scale)


def worst_of(
    solutions: Solutions, s: int, *, seed: int = 0, budget: float = 1e9
) -> tuple[IntArray, float]:
    """Return the set (s,) with the longest ``||a||`` found, and this length."""
    n = solutions.shortest.size
    rng = np.random.default_rng([seed, n, s])
    fixed = (contiguous_sets(n, s), strided_sets(n, s), residue_sets(n, s))
    kinds = (*fixed, random_sets(n, s, _RANDOM_STARTS, rng))
    most = max(_CHAINS, int(budget / 2 / (s**3 + 100 * s)))
    thinning = max(1, -(-sum(map(len, kinds)) // most))  # the same for each kind of set
    starts = np.concatenate([sets[::thinning] for sets in kinds])
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
        except np.linalg.LinAlgError:  # an exactly singular set: `worst` is as bad
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

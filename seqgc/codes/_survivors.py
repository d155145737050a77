"""A bounded search for the survivors whose results a code decodes with the largest rounding errors.

Theory of operation
-------------------
A code is as exact as it is for its worst set of ``s`` stragglers. There are too many sets to try
(1e24 at n = 256, s = 15). A single set is cheap: a system of ``s`` equations gives the length of
its shortest decoding vector, which multiplies rounding errors (`Solutions`).

*Starts.* Codes have a regular structure, and the workers that fail together often form a regular
pattern: consecutive workers, every m-th worker, or workers of equal residue. The search starts from
such sets and from random sets.

*Steps.* A step replaces one straggler by a worker that answered. The factorisation that a set needs
anyway gives the effect of each of its ``s (n - s)`` swaps on the length (`Solutions.best_swaps`).
The search repeatedly takes the best swap, in parallel for the 16 worst starting sets (`worst_of`).
If no swap lengthens the vector of a set by 1 %, that set is replaced by a random set. The search
ends when the budget is spent. With fewer stragglers there are fewer equations, and the shortest
vector is not longer. Therefore only sets of exactly ``s`` stragglers are tried.

*Result.* The search gives a lower bound on the worst amplification. Random sets give a much smaller
bound: at n = 256, s = 27 the search finds 4e8, while one in a thousand random sets reaches 700.

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
_OVERHEAD = 1e5  # cost of calling NumPy, per chain and step, in floating-point operations


def random_sets(n: int, s: int, count: int, rng: np.random.Generator) -> IntArray:
    """Return ``count`` random sets of ``s`` workers out of ``n``: (count, s), each row sorted."""
    return np.sort(rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)[:, :s], axis=1)


def contiguous_sets(n: int, s: int) -> IntArray:
    """Return the ``n`` sets (n, s) of ``s`` consecutive workers; worker 0 follows ``n - 1``."""
    return (np.arange(n)[:, None] + np.arange(s)) % n


def strided_sets(n: int, s: int) -> IntArray:
    """Return, for each possible m, the set of workers 0, m, 2m, ...: (sets, s)."""
    return np.arange(s) * np.arange(2, max(2, (n - 1) // max(1, s - 1) + 1))[:, None]


def residue_sets(n: int, s: int) -> IntArray:
    """Return the first ``s`` workers in the order of their number mod ``m``, m = 2 ... n/2.

    Each set consists of complete residue classes and a part of the next class. The result is
    (n//2 - 1, s), each row sorted.
    """
    moduli = np.arange(2, n // 2 + 1)[:, None]
    order = np.argsort(np.arange(n) % moduli, axis=1, kind="stable")
    return np.sort(order[:, :s], axis=1)


def responded_without(n: int, stragglers: IntArray) -> BoolArray:
    """Return masks of the workers that are not stragglers.

    ``stragglers`` (m, s) give masks (m, n); a single set (s,) gives one mask (n,).
    """
    masks = np.ones((*stragglers.shape[:-1], n), dtype=np.bool_)
    np.put_along_axis(masks, stragglers, values=False, axis=-1)
    return masks


def worst_survivors(
    code: GradientCode, *, seed: int = 0, budget: float = 1e9
) -> tuple[BoolArray, float]:
    """Search for the ``n - s`` survivors whose decoding amplifies rounding errors most.

    Return the survivors as a mask (n,), and the `GradientCode.amplification` of their best decoding
    vector. The amplification is infinite if no vector decodes their answers. If a code decodes by
    plain sums (`GradientCode.covers`), all sets are equally good, and there is no search. ``seed``
    determines the random sets, and ``budget`` is the approximate number of floating-point
    operations.

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
    """Search for the ``s`` stragglers with the longest decoding vector ``a``.

    Return the worst set found (s,), and its length ``||a||``.
    """
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
        except np.linalg.LinAlgError:  # a set with exactly singular equations; stop here
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

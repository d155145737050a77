"""Which survivors are worst: sets of stragglers to judge a code by, and a bounded search.

Theory of operation
-------------------
A code is as exact as its worst set of ``s`` stragglers lets it be, and there are too many sets to
try (1e24 at n = 256, s = 15). One set is cheap, though: a system of ``s`` equations gives the
length of its shortest decoding vector, by which rounding errors are multiplied (`Solutions`).

*Where to look.* Codes are regular, and so are failures: neighbours, every m-th worker, workers of
equal residue. The search starts from those sets and from random ones.

*From a set to a worse one.* Replace one straggler by one who answered. What each of the
``s (n - s)`` swaps does to the length follows from the one factorisation that the set needs anyway
(`Solutions.best_swaps`). So the best swap is taken, again and again, from the 16 worst sets at once
(`worst_of`); a chain that no swap lengthens by 1 % goes on from a random set, until the budget is
spent. With fewer stragglers there are fewer equations, and the shortest vector is no longer than
before: only sets of exactly ``s`` need be looked at.

*What it proves*: nothing but a lower bound on the worst amplification. It is far beyond what chance
meets: at n = 256, s = 27 it finds 4e8, and one in a thousand random sets has 700.

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
_WORTHWHILE = 1.01  # a swap must lengthen the correction by this factor
_OVERHEAD = 1e5  # of numpy's calls per chain and step, in floating-point operations


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

    Whole residue classes, and part of the next one: (n//2 - 1, s), sorted rows.
    """
    moduli = np.arange(2, n // 2 + 1)[:, None]
    order = np.argsort(np.arange(n) % moduli, axis=1, kind="stable")
    return np.sort(order[:, :s], axis=1)


def responded_without(n: int, stragglers: IntArray) -> BoolArray:
    """Return the masks in which just these are missing: (m, s) to (m, n), or (s,) to (n,)."""
    masks = np.ones((*stragglers.shape[:-1], n), dtype=np.bool_)
    np.put_along_axis(masks, stragglers, values=False, axis=-1)
    return masks


def worst_survivors(
    code: GradientCode, *, seed: int = 0, budget: float = 1e9
) -> tuple[BoolArray, float]:
    """Search for the survivors who amplify a code's rounding errors most, ``s`` being missing.

    Returns them, (n,), and the `GradientCode.amplification` of the best vector that decodes their
    answers, infinite if there is none. If a code decodes by plain sums (`GradientCode.covers`),
    every set is as good as any other. The same ``seed`` of the random sets finds the same set;
    ``budget`` is how many floating-point operations to spend, roughly.

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
    """Return the set (s,) with the longest ``||a||`` found, and that length."""
    n = solutions.shortest.size
    rng = np.random.default_rng([seed, n, s])
    fixed = (contiguous_sets(n, s), strided_sets(n, s), residue_sets(n, s))
    kinds = (*fixed, random_sets(n, s, _RANDOM_STARTS, rng))
    most = max(_CHAINS, int(budget / 2 / (s**3 + 100 * s)))
    thinning = max(1, -(-sum(map(len, kinds)) // most))  # evenly of every kind
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

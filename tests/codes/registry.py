"""The codes that every suite goes through, those of the registry, and their survivors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from seqgc.codes import GradientCode, code_kinds, make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray
from tests.kit import SOAK

KINDS = code_kinds()
DRAWN = 200 if SOAK else 50
"""How many random survivor sets of many workers are tried."""


def codes(up_to: int) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, n, s) of every registered code with ``n <= up_to``."""
    for kind in KINDS:
        for n in range(1, up_to + 1):
            yield from ((kind, n, s) for s in range(n) if exists(kind, n, s))


def exists(kind: str, n: int, s: int) -> bool:
    try:
        make_code(kind, n, s)
    except ParameterError:
        return False
    return True


def masks(n: int, *, missing: int | None = None) -> Iterator[BoolArray]:
    """Yield every mask of ``n`` workers, or those with so many missing."""
    sizes = range(n + 1) if missing is None else [missing]
    for size in sizes:
        for stragglers in itertools.combinations(range(n), size):
            yield without(n, stragglers)


def without(n: int, stragglers: object) -> BoolArray:
    """Return the mask in which just these workers are missing."""
    responded = np.ones(n, dtype=np.bool_)
    responded[np.asarray(stragglers, dtype=np.intp)] = False
    return responded


def fewest_fatal(code: GradientCode) -> list[BoolArray]:
    """Return the masks of all smallest sets of stragglers that lose the gradient."""
    sizes = range(code.n + 1)
    losing = ([m for m in masks(code.n, missing=k) if not code.can_decode(m)] for k in sizes)
    return next(filter(None, losing))


def random_sets(n: int, s: int, count: int, *, seed: int) -> Iterator[BoolArray]:
    """Yield masks without ``s`` random workers."""
    rng = np.random.default_rng([seed, s])
    yield from (without(n, rng.choice(n, s, replace=False)) for _ in range(count))


def contiguous_sets(n: int, s: int) -> Iterator[BoolArray]:
    """Yield masks without ``s`` neighbours: all, or of many workers every seventh."""
    step = 1 if SOAK or n <= 64 else 7
    yield from (without(n, (first + np.arange(s)) % n) for first in range(0, n, step))


def encode_all(code: GradientCode, partials: FloatArray) -> FloatArray:
    """Return all workers' results (n, p) from the partial gradients (k, p)."""
    return np.stack([code.encode(i, partials[code.support(i)]) for i in range(code.n)])


def relative_error(decoded: FloatArray, gradient: FloatArray) -> float:
    """Return the Euclidean distance over the gradient's length, in float64."""
    distance = np.linalg.norm(decoded.astype(np.float64) - gradient)
    return float(distance / np.linalg.norm(gradient))

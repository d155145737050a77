"""Every family of codes, and the parameters that it takes: one table for the contract suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from seqgc.codes import BinaryCode, CodeKind, CyclicCode, FractionalRepetitionCode, GradientCode
from seqgc.ports import BoolArray, FloatArray

FAMILIES: Mapping[CodeKind, tuple[type[GradientCode], Callable[[int, int], bool]]] = {
    "cyclic": (CyclicCode, lambda _n, _s: True),
    "rep": (FractionalRepetitionCode, lambda n, s: n % (s + 1) == 0),
    "binary": (BinaryCode, lambda _n, _s: True),
}


def parameters(up_to: int) -> Iterator[tuple[CodeKind, int, int]]:
    """Yield (kind, n, s) of every code with ``n <= up_to``."""
    for kind, (_, accepts) in FAMILIES.items():
        for n in range(1, up_to + 1):
            yield from ((kind, n, s) for s in range(n) if accepts(n, s))


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


def encode_all(code: GradientCode, partials: FloatArray) -> FloatArray:
    """Return all workers' results (n, p) from the partial gradients (k, p)."""
    return np.stack([code.encode(i, partials[code.support(i)]) for i in range(code.n)])


def relative_error(decoded: FloatArray, gradient: FloatArray) -> float:
    """Return the Euclidean distance over the gradient's length, in float64."""
    distance = np.linalg.norm(decoded.astype(np.float64) - gradient)
    return float(distance / np.linalg.norm(gradient))

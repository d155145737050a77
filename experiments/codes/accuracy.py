"""Measure the error of gradients that are decoded from results in 64, 32 or 16 bit.

python -m experiments.codes.accuracy OUTPUT.csv [--quick]

n = 256 workers, partial gradients of 512 independent normal numbers each. Results are quantized to
the payload format, restored and decoded without s stragglers: 200 random sets of them, all 256
contiguous ones, and the worst that a bounded search finds for the code. `refused` counts the sets
that `GradientCode.decode` would refuse by default. The figures include their errors, unless even
the decoding vector is not exact in float64 (such sets are `lost`). One row per family, s,
payload and kind of sets, appended as soon as it is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np

from experiments.codes.constructions import cyclic, gaussian
from experiments.results import Table, arguments
from seqgc.codes import make_code, worst_survivors
from seqgc.codes._decoders import NullSpaceDecoder, Solutions
from seqgc.codes._survivors import (
    contiguous_sets,
    random_sets,
    responded_without,
    worst_of,
)
from seqgc.errors import IllConditionedError, ParameterError
from seqgc.ports import Payload, payload_format, quantize, restore

SEED, COORDINATES = 16, 512
FIELDS = ("family", "s", "payload", "sets", "load", "count", "median", "worst", "refused", "lost")
FAMILIES = ("auto", "rep", "binary", "cyclic", "Gaussian H")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A code, with what the measurement needs of it."""

    encoding_matrix: np.ndarray
    load: float
    vector: Callable[[np.ndarray], np.ndarray]  # of a mask of survivors
    worst: np.ndarray  # the worst mask found


def subject(family: str, n: int, s: int, payload: Payload) -> Subject | None:
    """Return a code's subject, or None if the family has no such code."""
    if family == "Gaussian H":
        matrix = cyclic(gaussian)(n, s, np.random.default_rng([SEED, s]))
        solutions = Solutions.of(matrix, n - s)
        decoder = NullSpaceDecoder(s, lambda: solutions, lambda: matrix)
        return Subject(
            encoding_matrix=matrix,
            load=(s + 1) / n,
            vector=lambda responded: decoder.solve(responded).vector,
            worst=responded_without(n, worst_of(solutions, s)[0]),
        )
    try:
        code = make_code(family, n, s, payload=payload)
    except ParameterError:
        return None
    return Subject(
        encoding_matrix=code.encoding_matrix,
        load=code.load,
        vector=code.decoding_vector,
        worst=worst_survivors(code)[0],
    )


def survivors(code: Subject, n: int, s: int) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng([SEED, n, s])
    yield "random", responded_without(n, random_sets(n, s, 200, rng))
    yield "contiguous", responded_without(n, contiguous_sets(n, s))
    yield "worst found", code.worst[None]


def vectors(code: Subject, masks: np.ndarray) -> np.ndarray:
    """Return the decoding vectors (m', n) of those masks (m, n) that have an exact one."""
    found = []
    for mask in masks:
        try:
            found.append(code.vector(mask))
        except (IllConditionedError, np.linalg.LinAlgError):
            continue
    return np.array(found).reshape(-1, masks.shape[1])


def measured(family: str, n: int, s: int, payload: Payload) -> Iterator[dict[str, object]]:
    code = subject(family, n, s, payload)
    if code is None:
        return
    chunks = code.encoding_matrix.shape[1]
    partials = np.random.default_rng([SEED, n, s, 1]).standard_normal((chunks, COORDINATES))
    gradient = partials.sum(axis=0)
    results = code.encoding_matrix @ partials
    restored = np.array([restore(quantize(row, payload), np.float64) for row in results])
    norms, known = np.linalg.norm(code.encoding_matrix, axis=1), payload_format(payload)
    for kind, masks in survivors(code, n, s):
        used = vectors(code, masks)
        distances = np.linalg.norm(used @ restored - gradient, axis=1)
        errors = distances / np.linalg.norm(gradient)
        predicted = np.linalg.norm(used * norms, axis=1) / np.sqrt(chunks) * known.rounding
        yield {
            "family": family,
            "s": s,
            "payload": payload,
            "sets": kind,
            "load": f"{code.load:.4g}",
            "count": len(masks),
            "median": f"{np.median(errors):.2g}" if len(errors) else "",
            "worst": f"{errors.max():.2g}" if len(errors) else "",
            "refused": int(np.count_nonzero(predicted > known.tolerance)),
            "lost": len(masks) - len(used),
        }


def main() -> None:
    given = arguments(__doc__, quick="n = 32 and two s").parse_args()
    n, tolerated = (32, (3, 6)) if given.quick else (256, (1, 3, 7, 15, 27, 63, 127))
    table = Table(given.output, FIELDS, keys=3)
    for s, family, payload in itertools.product(tolerated, FAMILIES, get_args(Payload)):
        if (family, s, payload) not in table:
            table.append(measured(family, n, s, payload))


if __name__ == "__main__":
    main()

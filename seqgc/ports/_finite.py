"""Results that no gradient can use, as they are not finite or too large: whose they are."""

from __future__ import annotations

import math

import numpy as np

from seqgc.ports._records import Flaw, FloatArray, WorkItem


def part_lengths(item: WorkItem, length: int) -> list[tuple[int, ...]]:
    """Return the lengths of the pieces of each part of a result that has this length.

    If the lengths of the parts do not add up to it, the result is one part of one piece.
    """
    parts = [part.pieces or (part.weights.size,) for part in item.parts]
    return parts if parts and sum(map(sum, parts)) == length else [(length,)]


def without_diverged(
    item: WorkItem, result: FloatArray, *, max_norm: float = math.inf
) -> tuple[FloatArray, dict[str, Flaw]]:
    """Return a result (p,) with zeros for what has diverged, and the flaws by model.

    A part has diverged if it is not finite, or if the 2-norm of its gradient and loss is above
    ``max_norm``: either its model has diverged, or the model's loss is undefined. The parts of the
    other models remain valid.
    """
    if result.ndim != 1 or result.dtype.kind != "f" or norm(result) <= max_norm or not item.parts:
        return result, {}
    parts, models = part_lengths(item, result.size), [{part.model} for part in item.parts]
    if len(parts) != len(models):
        models = [set().union(*models)]
    pieces = np.split(result.copy(), np.cumsum([sum(part) for part in parts])[:-1])
    flaws: dict[str, Flaw] = {}
    for piece, lengths, own in zip(pieces, parts, models, strict=True):
        measured = sum(lengths[:2])
        length = norm(piece[:measured]) if np.isfinite(piece[measured:]).all() else math.nan
        if not length <= max_norm:
            why = "its results are not finite; lower the learning rate, or check the data"
            if not math.isnan(length):
                why = f"a result's norm is {length:.3g}, above max_norm, {max_norm:g}"
            piece[:] = 0
            flaws |= dict.fromkeys(sorted(own), Flaw(kind="diverged", why=why))
    return np.concatenate(pieces), flaws


def norm(vector: FloatArray) -> float:
    """Return the 2-norm of a vector; NaN if a number of it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(vector, vector))
        if math.isfinite(square):
            return math.sqrt(square)
        peak = float(np.abs(vector).max())
        scaled = np.divide(vector, peak, dtype=np.float64)
        return peak * float(np.linalg.norm(scaled)) if math.isfinite(peak) else math.nan

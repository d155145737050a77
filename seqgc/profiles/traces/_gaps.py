"""Gaps between the starts of tasks, which separate the rounds of a trace."""

from __future__ import annotations

from typing import Final

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles.traces._cells import IndexArray

__all__ = ["least_gap"]

_LEAST_RATIO: Final = 2.0  # between the gaps that separate rounds and the gaps within rounds
_SAME_START: Final = 0.01  # of the median time: shorter gaps between starts do not matter
_MOST_CUTS: Final = 16  # of the sorted gaps, that are tried


def least_gap(starts: FloatArray, seconds: FloatArray, workers: IndexArray | None) -> float:
    """Return the least gap, in seconds, that separates two rounds; infinity if there is one round.

    A gap is the time between the starts of two successive tasks. It counts if most of the tasks
    before it have ended when the next task starts. Short gaps lie within rounds, and long gaps
    between them. The two kinds must differ by a factor of at least 2. If several limits between
    them are possible, the best one gives each worker one task in each round; of equally good ones,
    the one with the largest factor is taken. The arguments (tasks,) are in the order of the starts;
    ``workers`` is None if unknown.

    Raises
    ------
    ParameterError
        If the gaps differ too little.

    Examples
    --------
    >>> starts, seconds = np.array([0.0, 0.1, 3.0, 3.2]), np.array([1.0, 2.0, 1.0, 1.0])
    >>> least_gap(starts, seconds, np.array([0, 1, 0, 1]))
    2.9
    """
    floor = _SAME_START * float(np.nanmedian(seconds))
    gaps = np.where(_are_barriers(starts, seconds), np.diff(starts), 0.0)
    each = np.sort(np.maximum(gaps, floor))
    if not each.size or each[-1] == floor:
        return np.inf
    ratios = each[1:] / each[:-1]
    cuts = [i for i in np.argsort(-ratios).tolist()[:_MOST_CUTS] if ratios[i] >= _LEAST_RATIO]
    if not cuts:
        rule = "must be given: the gaps between starts are too equal to separate rounds"
        remedy = "give --round gap:SECONDS, the least gap between rounds, or --round COLUMN"
        raise ParameterError("round", rule, "gap", remedy)
    if workers is None:
        return float(each[cuts[0] + 1])

    def flaws(cut: int) -> int:
        """Return the number of repeated and of missing workers in all rounds."""
        rounds = np.concatenate([[0], np.cumsum(gaps >= each[cut + 1])])
        pairs = np.unique(np.stack([rounds, workers]), axis=1)
        sizes = np.bincount(pairs[0])
        return len(workers) - int(pairs.shape[1]) + int((sizes.max() - sizes).sum())

    return float(each[min(cuts, key=flaws) + 1])


def _are_barriers(starts: FloatArray, seconds: FloatArray) -> BoolArray:
    """Return a mask of the gaps (rows - 1,) before which most running tasks have ended.

    Of the tasks that started last before a gap, as many as ever ran at once, at least half have
    ended when the next task starts. ``starts`` (rows,) are ascending.
    """
    ends = starts + np.nan_to_num(seconds)
    over = np.searchsorted(np.sort(ends), starts, side="right")
    most = int((np.arange(1, len(starts) + 1) - over).max(initial=1))
    mask: BoolArray = np.zeros(len(starts) - 1, dtype=np.bool_)
    for gap in range(len(mask)):
        last = ends[max(0, gap + 1 - most) : gap + 1]
        mask[gap] = 2 * int((last <= starts[gap + 1]).sum()) >= len(last)
    return mask

"""Which answer completes a cover of a code, for many codes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqgc.codes import GradientCode
from seqgc.ports import IntArray

__all__ = ["Covers"]

_T = TypeVar("_T", np.signedinteger, np.floating)


class Covers:
    """The covers of codes (see `GradientCode.covers`), laid end to end, column after column.

    Parameters
    ----------
    codes
        Each with one cover at least.

    Attributes
    ----------
    workers, code_of : (entries,) int
        Whose answer each entry is, and of which of the codes.

    Examples
    --------
    >>> from seqgc.codes import make_code
    >>> covers = Covers([make_code("rep", 4, 1), make_code("cyclic", 4, 1)])
    >>> place_of_worker = np.array([0, 3, 1, 2])
    >>> covers.first(place_of_worker[covers.workers])
    array([1, 1])
    """

    def __init__(self, codes: Sequence[GradientCode]) -> None:
        covers = [cover for code in codes for cover in code.covers]
        entries = [sum(cover.size for cover in code.covers) for code in codes]
        self.workers: IntArray = np.concatenate([cover.T.ravel() for cover in covers])
        self.code_of: IntArray = np.repeat(np.arange(len(codes)), entries)
        candidates, places = np.array([cover.shape for cover in covers]).T
        # Where every column has but one worker, as of cyclic codes, there is no first to look for.
        self._columns = _starts(np.repeat(candidates, places)) if candidates.max() > 1 else None
        self._covers = _starts(places)
        self._codes = _starts(np.array([len(code.covers) for code in codes]))

    def first(self, arrived: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return when each code's first cover is complete, (..., codes).

        ``arrived`` (..., entries) says when each entry's answer comes: a time, or a place in the
        order of arrival.
        """
        columns = arrived
        if self._columns is not None:
            columns = np.minimum.reduceat(arrived, self._columns, axis=-1)
        covers = np.maximum.reduceat(columns, self._covers, axis=-1)
        first: npt.NDArray[_T] = np.minimum.reduceat(covers, self._codes, axis=-1)
        return first


def _starts(lengths: IntArray) -> IntArray:
    starts: IntArray = np.cumsum(lengths) - lengths
    return starts

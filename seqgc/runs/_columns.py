"""Columns that grow by a row at a time, eight bytes a number, into tables of numpy arrays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seqgc.ports import IntArray, Table

__all__ = ["Columns", "frozen_table", "texts"]


class Columns:
    """The columns of one table, ``most`` rows at most; a text is its place among known ones."""

    def __init__(self, kinds: Mapping[str, type[int] | type[float]], *, most: int) -> None:
        self._columns: dict[str, array[Any]] = {
            name: array("q" if kind is int else "d") for name, kind in kinds.items()
        }
        self._arrays = list(self._columns.values())
        self._most = most
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._arrays[0])

    def append(self, *row: float) -> int | None:
        """Add a row, and return its place; None if there are too many, and it is left out."""
        place = len(self._arrays[0])
        if place >= self._most:
            self.left_out += 1
            return None
        for column, value in zip(self._arrays, row, strict=True):
            column.append(value)
        return place

    def set(self, place: int, name: str, value: float) -> None:
        """Change one value of a row."""
        self._columns[name][place] = value

    def take(self, order: IntArray | None = None) -> Table:
        """Return the columns as arrays of int64 and float64; rows in this ``order``, if given."""
        arrays = {
            name: np.array(column, dtype=np.int64 if column.typecode == "q" else np.float64)
            for name, column in self._columns.items()
        }
        return arrays if order is None else {name: each[order] for name, each in arrays.items()}


def texts(known: Sequence[str], places: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Return texts by their places among the known ones; equal ones are one object."""
    words: npt.NDArray[np.object_] = np.array([*known, ""], dtype=np.object_)[places]
    return words


def frozen_table(table: Table) -> Table:
    """Make a table's arrays read-only, and return it."""
    for column in table.values():
        column.flags.writeable = False
    return table

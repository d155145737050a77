"""The conversion of a trace's columns, from text or numbers, to arrays of numbers and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError, ProfileError, did_you_mean
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles.traces._rows import MISSING, TraceRows

__all__ = [
    "PER_SECOND",
    "IndexArray",
    "Moments",
    "are_times_in_text",
    "cell_text",
    "column_of",
    "epoch_unit",
    "listed_columns",
    "moments_of_text",
    "named_unit",
    "numbered",
    "numbers_of",
]

PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_WORDS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "µs", "usec", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_ZONE: Final = re.compile(r"(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)$")
# Times of day since 1970, from 1973 to 5138, in each unit.
_EPOCHS: Final = (("s", 1e8, 1e11), ("ms", 1e11, 1e14), ("us", 1e14, 1e17), ("ns", 1e17, 1e20))
IndexArray: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """A column of times, as ``raw`` numbers (rows,) with ``per_second`` units in a second.

    If ``known`` is False, the row has no time.
    """

    raw: npt.NDArray[Any]
    known: BoolArray
    per_second: int

    def since(self, other: Moments) -> FloatArray:
        """Return the seconds (rows,) from the times of ``other`` to these times."""
        per_second = max(self.per_second, other.per_second)
        here, there = (each.raw * (per_second // each.per_second) for each in (self, other))
        difference = (here - there) / per_second
        return np.where(self.known & other.known, difference, np.nan)

    def seconds(self) -> FloatArray:
        """Return the seconds (rows,) since the earliest time of the column."""
        origin = self.raw[self.known].min() if self.known.any() else 0
        return np.where(self.known, (self.raw - origin) / self.per_second, np.nan)


def numbered(columns: Sequence[Sequence[object]]) -> tuple[IndexArray, list[str]]:
    """Give numbers to the distinct values of some columns, in sorted order.

    Return the number of each row's value, and the names of the values.
    """
    keys = list(zip(*([cell_text(value) for value in column] for column in columns), strict=True))
    missing = next((i for i, key in enumerate(keys) if "" in key), None)
    if missing is not None:
        raise ProfileError(f"row {missing} (from 0) has no value in a column of worker or round")
    ordered = sorted(set(keys), key=lambda key: [_natural(text) for text in key])
    index = {key: i for i, key in enumerate(ordered)}
    return np.array([index[key] for key in keys], dtype=np.intp), ["/".join(key) for key in ordered]


def _natural(text: str) -> list[tuple[int, float, str]]:
    """Return a key that sorts w2 before w10, and numbers by value."""
    try:
        return [(0, float(text), "")]
    except ValueError:
        parts = re.split(r"(\d+)", text)
        return [(0, float(p), "") if p.isdigit() else (1, 0.0, p) for p in parts]


def column_of(rows: TraceRows, name: str) -> Sequence[object]:
    if not rows.has(name):
        rule = f"must be a column of the trace ({listed_columns(rows)})"
        raise ParameterError("column", rule, name, did_you_mean(name, tuple(rows.columns)))
    return rows.columns[name]


def listed_columns(rows: TraceRows) -> str:
    names = list(rows.columns)
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def cell_text(value: object) -> str:
    """Return a value as text: 3.0 becomes "3", and a missing value is empty."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def numbers_of(name: str, values: Sequence[object]) -> tuple[npt.NDArray[Any], BoolArray]:
    """Return the numbers of a column, and a mask of the rows that have a number.

    The numbers are integers if all of them are whole.
    """
    numbers = [_number(name, row, value) for row, value in enumerate(values)]
    known = np.array([each is not None for each in numbers], dtype=np.bool_)
    whole = all(each is None or isinstance(each, int) for each in numbers)
    kind = np.int64 if whole else np.float64
    return np.array([0 if each is None else each for each in numbers], dtype=kind), known


def _number(name: str, row: int, value: object) -> int | float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() in MISSING):
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, int | float):
            number: int | float = value
        else:
            text = str(value)
            number = int(text) if text.lstrip("+-").isdigit() else float(text)
        if not abs(number) < 2**62:
            raise ValueError
    except ValueError:
        rule = f"row {row} (from 0): {name} must be a number"
        raise ProfileError(f"{rule}; got {str(value)[:40]!r}") from None
    return None if number != number else number


def moments_of_text(name: str, values: Sequence[object]) -> Moments:
    raw = np.zeros(len(values), dtype=np.int64)
    known = np.zeros(len(values), dtype=np.bool_)
    for row, value in enumerate(values):
        if value is None:
            continue
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        if text.strip().lower() in MISSING:
            continue
        try:
            raw[row], known[row] = _nanoseconds(text), True
        except ValueError:
            rule = f"row {row} (from 0): {name} must be a time such as 2026-01-31T12:00:00.5Z"
            raise ProfileError(f"{rule}; got {text[:40]!r}") from None
    return Moments(raw=raw, known=known, per_second=PER_SECOND["ns"])


def _nanoseconds(text: str) -> int:
    """Return the nanoseconds since 1970 of a time in ISO 8601; without a zone, it is UTC."""
    text, offset = text.strip().replace(",", ".").removesuffix("Z"), 0
    if (zone := _ZONE.search(text, 10)) is not None:
        text = text[: zone.start()]
        offset = (int(zone["hours"]) * 60 + int(zone["minutes"])) * (
            -1 if zone["sign"] == "-" else 1
        )
    moment = np.datetime64(text.strip(), "ns").astype(np.int64)
    return int(moment) - offset * 60 * 10**9


def named_unit(name: str) -> str | None:
    """Return the unit in the last word of a column's name, or None."""
    parts = [part for part in re.split(r"[^A-Za-zµ]+", name) if part]
    return _UNIT_WORDS.get(parts[-1].lower()) if len(parts) > 1 else None


def are_times_in_text(values: Sequence[object]) -> bool:
    """Return True if some values are dates, or texts that begin with a date."""
    return any(
        bool(_DAY.match(value)) if isinstance(value, str) else hasattr(value, "isoformat")
        for value in values
    )


def epoch_unit(usual: float) -> str | None:
    """Return the unit in which a number is a time from 1973 to 5138, or None."""
    return next((unit for unit, low, high in _EPOCHS if low <= usual < high), None)

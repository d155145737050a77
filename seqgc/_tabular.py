"""Tables as text: cells for people, CSV for programs, and HTML for notebooks.

A table is a mapping of names to columns of equal length. It is also what `seqgc.plot.tables`
returns, and what the command line prints.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from seqgc.errors import one_line

_LONGEST_CELL: Final = 200  # characters
_MOST_HTML_ROWS: Final = 20


def columns(
    rows: Iterable[Mapping[str, object]], *, names: Sequence[str] = ()
) -> dict[str, npt.NDArray[Any]]:
    """Return a table made of rows, which all have the same names.

    A column of numbers becomes an array of numbers; None among floats becomes NaN. All other
    columns, also integers with None, become arrays of objects. ``names`` are the names of the
    columns of a table that may have no rows.

    Examples
    --------
    >>> table = columns([{"run": "a", "usd": 1.5}, {"run": "b", "usd": None}])
    >>> table["run"].tolist(), table["usd"].tolist()
    (['a', 'b'], [1.5, nan])
    """
    listed = list(rows)
    heading = listed[0] if listed else names
    return {name: _column([row[name] for row in listed]) for name in heading}


def _column(cells: list[object]) -> npt.NDArray[Any]:
    values = [cell.item() if isinstance(cell, np.generic) else cell for cell in cells]
    kinds = {type(value) for value in values}
    if kinds <= {float, int, type(None)} and kinds not in ({int}, {int, type(None)}):
        return np.array(values, dtype=float)
    return np.array(values, dtype=None if kinds in ({int}, {bool}) else np.object_)


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table, as dictionaries of Python's own types.

    Examples
    --------
    >>> rows_of({"run": np.array(["a"], dtype=object), "jobs": np.array([3])})
    [{'run': 'a', 'jobs': 3}]
    """
    cells = [np.asarray(column).tolist() for column in table.values()]
    return [dict(zip(table, row, strict=True)) for row in zip(*cells, strict=True)]


def csv_text(table: Mapping[str, Any]) -> str:
    r"""Return a table as CSV: a line of names, then a line for each row.

    Numbers have all their digits, and a cell that has no value is empty.

    Examples
    --------
    >>> csv_text({"run": np.array(["a,b"], dtype=object), "seconds": np.array([0.1 + 0.2])})
    'run,seconds\n"a,b",0.30000000000000004\n'
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table)
    for row in rows_of(table):
        writer.writerow("" if cell is None or cell != cell else cell for cell in row.values())
    return file.getvalue()


def html_table(table: Mapping[str, Any], *, caption: str = "") -> str:
    """Return at most 20 rows of a table as HTML, for a notebook. All texts are escaped.

    Examples
    --------
    >>> html_table({"<b>": np.array([1.5])}, caption="one")
    '<table><caption>one</caption><tr><th>&lt;b&gt;</th></tr><tr><td>1.5</td></tr></table>'
    """
    rows = rows_of(table)
    lines = [f"<caption>{escape(caption)}</caption>" if caption else ""]
    lines += ["<tr>", *(f"<th>{escape(name.replace('_', ' '))}</th>" for name in table), "</tr>"]
    for row in rows[:_MOST_HTML_ROWS]:
        lines += ["<tr>", *(f"<td>{escape(number(cell))}</td>" for cell in row.values()), "</tr>"]
    if (more := len(rows) - _MOST_HTML_ROWS) > 0:
        lines.append(f'<tr><td colspan="{len(table)}">… and {more:,} more</td></tr>')
    return f"<table>{''.join(lines)}</table>"


class Summarised:
    """A base class of results that have a short text and, in a notebook, a short table.

    A subclass defines `summary`, the names and values to show, and may define `summary_table`, a
    table that a notebook shows below them.

    Examples
    --------
    >>> class Result(Summarised):
    ...     def summary(self):
    ...         return {"jobs": 3, "seconds": 1.23456}
    >>> Result()
    <Result: jobs 3; seconds 1.235>
    >>> Result()._repr_html_()
    '<table><caption>Result</caption><tr><th>jobs</th><td>3</td></tr><tr><th>seconds</th>...'
    """

    __slots__ = ()

    def summary(self) -> Mapping[str, object]:
        """Return the names and values that describe this object."""
        raise NotImplementedError

    def summary_table(self) -> Mapping[str, Any] | None:
        """Return a table for a notebook, or None."""
        return None

    def __repr__(self) -> str:
        words = "; ".join(f"{name} {number(value)}" for name, value in self.summary().items())
        return f"<{type(self).__name__}: {words}>"

    def _repr_html_(self) -> str:
        lines = [f"<caption>{escape(type(self).__name__)}</caption>"]
        lines += [
            f"<tr><th>{escape(name)}</th><td>{escape(number(value))}</td></tr>"
            for name, value in self.summary().items()
        ]
        table = self.summary_table()
        return f"<table>{''.join(lines)}</table>" + ("" if table is None else html_table(table))


def counted(count: int, noun: str) -> str:
    """Return a number of things in words, with a regular plural.

    Examples
    --------
    >>> counted(1, "round"), counted(1200, "worker")
    ('1 round', '1,200 workers')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def number(value: Any) -> str:
    """Format a value for a table: counts with all digits, measurements with four digits.

    Examples
    --------
    >>> number(12345), number(1234.567), number(0.0001236), number(float("nan")), number(True)
    ('12,345', '1,235', '0.0001236', '–', 'yes')
    """
    match value:
        case None:
            return "–"
        case bool() | np.bool_():
            return "yes" if value else "no"
        case int() | np.integer():
            return f"{value:,}"
        case float() | np.floating():
            large = 1000 <= abs(float(value)) < 1e9
            return (f"{value:,.0f}" if large else f"{value:.4g}") if np.isfinite(value) else "–"
    return one_line(value, limit=_LONGEST_CELL)


def percent(share: float) -> str:
    """Return a fraction as a percentage.

    Examples
    --------
    >>> percent(0.125)
    '12.5 %'
    """
    return f"{100 * share:.1f} %"

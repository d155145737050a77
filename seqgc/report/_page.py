"""`Page`: the content of a report, which a template turns into an HTML file.

The file needs no network, script or font, and its content security policy forbids them. The
template engine escapes names and texts that come from the folder of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from seqgc import __version__
from seqgc._durable import replacing
from seqgc.errors import ParameterError
from seqgc.plot import Picture
from seqgc.plot.tables import number
from seqgc.report._drawing import COLOURS, FONTS, drawing, without_controls

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["Page", "PageTable", "Section", "Tile"]

_MOST_ROWS: Final = 60  # for the table below a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A number or a few words at the top of the page, with a name, a unit and a remark."""

    name: str
    value: object
    unit: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table: the names of its columns, and its rows."""

    heading: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> PageTable:
        """Return a table of the first 60 rows of columns of equal length."""
        names = [name.replace("_", " ") for name in columns]
        return cls(names, list(zip(*(each[:_MOST_ROWS] for each in columns.values()), strict=True)))

    @property
    def text_columns(self) -> set[int]:
        """The indices of the columns that hold text. The other columns hold numbers."""
        return {i for row in self.rows for i, cell in enumerate(row) if isinstance(cell, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a page: a title, sentences, pictures with their data, facts, and a table."""

    title: str
    says: Sequence[str] = ()
    pictures: Sequence[tuple[Picture, Any]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    table: PageTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The content of a report.

    ``notices`` are sentences about what is missing, damaged or left out. If ``refresh_s`` is given,
    a browser loads the page again after that many seconds.
    """

    kind: str
    title: str
    says: Sequence[str] = ()
    notices: Sequence[str] = ()
    glance: Sequence[Tile] = ()
    sections: Sequence[Section] = ()
    refresh_s: int | None = None

    def html(self) -> str:
        """Return the text of the file.

        Raises
        ------
        ParameterError
            If Jinja2 or matplotlib is not installed.
        """
        return without_controls(_template().render(page=self))

    def write(self, path: str | Path) -> None:
        """Write the file. Until it is complete, readers find the previous file at ``path``.

        Raises `OSError` if the file cannot be written.
        """
        with replacing(Path(path)) as file:
            file.write(self.html().encode())


@cache
def _template() -> Template:
    try:
        import jinja2
    except ImportError as error:
        rule, remedy = "needs the package Jinja2", "pip install 'seqgc[plot]'"
        raise ParameterError("report", rule, str(error), remedy) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("seqgc.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.globals |= {
        "colours": COLOURS, "drawing": drawing, "fonts": FONTS, "table_of": PageTable.of_columns,
        "version": __version__,
    }  # fmt: skip
    return environment.get_template("page.html")

"""Tables of an experiment's results, which can be continued, and pictures of them.

An experiment that makes a picture has a folder of its own, and writes its tables (CSV) and pictures
(SVG) into it, or into another folder on request. A row that is in a table is not computed again; to
compute all rows, name an empty folder. The same table gives the same picture, byte for byte, with
the same version of matplotlib.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Table", "arguments", "figure", "folder_arguments", "save"]


class Table:
    """A CSV file to which each case's rows are appended as soon as they are measured.

    The first ``keys`` of its ``fields`` identify a case: ``case in table`` is true if the file has
    a row of it.
    """

    def __init__(self, path: Path, fields: Sequence[str], *, keys: int) -> None:
        self._path, self._fields = path, fields
        self._present = {tuple(row[field] for field in fields[:keys]) for row in self.rows()}

    def __contains__(self, case: tuple[object, ...]) -> bool:
        return tuple(map(str, case)) in self._present

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Measure a case's ``rows``, then write and print them."""
        measured = list(rows)
        is_new = not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._fields, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(measured)
        for row in measured:
            print(*row.values(), sep=", ", flush=True)

    def rows(self) -> list[dict[str, str]]:
        """Return all rows that the file has, as text."""
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return list(csv.DictReader(file))


def arguments(description: str, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser of ``OUTPUT.csv [--quick]``; the first line describes the program."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def folder_arguments(description: str, program: str) -> argparse.ArgumentParser:
    """Return a parser of ``[--output FOLDER]``; the default is the folder of ``program``."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    where = "For tables and pictures, instead of the experiment's own folder."
    parser.add_argument("--output", type=Path, default=Path(program).parent, help=where)
    return parser


def figure(*, height: float = 3.2, width: float = 7.2) -> Figure:
    """Return an empty figure, in inches, that lays out its axes itself."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, with text as text, and the same bytes in every run."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "seqgc"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    print(path)

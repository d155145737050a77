"""Tables of an experiment's results, which can be continued, and pictures of them.

An experiment that makes a picture has a folder of its own, and writes its tables (CSV) and pictures
(SVG) into it, or into another folder on request. A row that is in a table is not computed again; to
compute all rows, name an empty folder. The same table gives the same picture, byte for byte, with
the same version of matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.search import ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Table", "arguments", "figure", "folder_arguments", "save"]


class Table(ResultTable):
    """A CSV file to which each case's rows are appended as soon as they are measured."""

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Measure a case's ``rows``, then write and print them."""
        measured = list(rows)
        super().append(measured)
        for row in measured:
            print(*row.values(), sep=", ", flush=True)


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

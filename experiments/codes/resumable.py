"""A table that is measured case by case, and goes on where it was interrupted."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Table", "arguments"]


class Table:
    """A CSV file that each case's rows are appended to as soon as they are measured.

    The first ``keys`` of its ``fields`` tell one case from another: ``case in table`` where the
    file has a row of it already.
    """

    def __init__(self, path: Path, fields: Sequence[str], *, keys: int) -> None:
        self._path, self._fields = path, fields
        self._present: set[tuple[str, ...]] = set()
        if path.exists():
            with path.open(newline="") as file:
                rows = csv.DictReader(file)
                self._present = {tuple(row[field] for field in fields[:keys]) for row in rows}

    def __contains__(self, case: tuple[object, ...]) -> bool:
        return tuple(map(str, case)) in self._present

    def append(self, rows: Iterable[dict[str, object]]) -> None:
        """Measure a case's ``rows``, then write and print them."""
        measured = list(rows)
        is_new = not self._path.exists()
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._fields)
            if is_new:
                writer.writeheader()
            writer.writerows(measured)
        for row in measured:
            print(*row.values(), sep=", ", flush=True)


def arguments(description: str, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser of ``OUTPUT.csv [--quick]``; the first line describes the program."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser

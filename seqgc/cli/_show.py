"""Output of the verbs: results on stdout, and the state of long work on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text

from seqgc._durable import replacing
from seqgc._tabular import csv_text
from seqgc.cli._messages import in_json, is_quiet, plain, say
from seqgc.errors import ParameterError
from seqgc.ports import Table
from seqgc.progress import Screen as Screen

_STDOUT: Final = "-"


def show(
    facts: Mapping[str, object], pairs: dict[str, str], *, as_json: bool, saved: bool = False
) -> None:
    """Print the result of a verb: the facts as one JSON object, or the pairs for people.

    If the pairs cannot be printed and the result is also in files (``saved``), no error is raised,
    because the terminal may have been closed. If JSON cannot be printed, an error is always raised.
    """
    if as_json:
        print_json(facts)
        return
    try:
        print_pairs(pairs)
        sys.stdout.flush()
    except OSError:
        if not saved:
            raise
        discard_output()


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on stdout; NaN and infinity become null."""
    sys.stdout.write(json.dumps(plain(value), allow_nan=False) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """Options for the format of the table that a verb prints: text, JSON or CSV.

    Raises
    ------
    ParameterError
        If the file for CSV cannot be written, or if JSON and CSV are both for standard output.
    """

    as_json: Annotated[bool, "--json", "Print the result as one JSON object."] = False
    csv: Annotated[
        str | None,
        "--csv",
        "File for the table as CSV, with all digits and units in the column names; - is stdout.",
    ] = None

    def __post_init__(self) -> None:
        if self.csv == _STDOUT and self.as_json:
            rule = "must be a file with --json, which prints to standard output too"
            raise ParameterError("csv", rule, self.csv)
        if self.csv is not None and self.csv != _STDOUT:
            require_writable(Path(self.csv), argument="csv")

    def show(
        self,
        rows: Table,
        *,
        facts: Mapping[str, object],
        text: Callable[[], None] | Mapping[str, str],
        saved: bool = False,
    ) -> None:
        """Print the result of a verb, and write its table ``rows`` as CSV if that was requested.

        ``facts`` are printed as JSON. The text for people is printed by the function ``text``, or
        consists of pairs. ``saved`` is as in `show`.
        """
        if self.csv not in (None, _STDOUT):
            with replacing(Path(self.csv or "")) as file:
                file.write(csv_text(rows).encode())
        if self.as_json:
            print_json(facts)
        elif self.csv == _STDOUT:
            sys.stdout.write(csv_text(rows))
        elif callable(text):
            text()
        else:
            show(facts, dict(text), as_json=False, saved=saved)


def text_table(
    rows: Iterable[dict[str, Any]],
    cells: Mapping[str, Callable[[dict[str, Any]], str]],
    *,
    left: Collection[str] = (),
    title: str | None = None,
) -> RichTable:
    """Return rows of a table as text, in narrow columns.

    ``cells`` maps each heading to the function that formats the cell of a row. The first column may
    be folded. The others are aligned to the right, except for those named in ``left``.
    """
    table = RichTable(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for at, heading in enumerate(cells):
        if at:
            side: JustifyMethod = "left" if heading in left else "right"
            table.add_column(heading, justify=side, no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(row)) for cell in cells.values()))
    return table


def discard_output() -> None:
    """Discard text that could not be printed. Otherwise Python would print it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_pairs(pairs: dict[str, str]) -> None:
    """Print names and values in two columns on stdout."""
    table = RichTable.grid(padding=(0, 2))
    for name, value in pairs.items():
        table.add_row(Text(name, style="bold"), Text(value))  # not markup: users choose some names
    Screen().print(table)


WAIT_OUT = "a round that stayed open past its closing rule, to wait for answers that a job needs"


def waited_out(rounds: int) -> str:
    """Return the number of wait-outs as text, with an explanation of the word."""
    return f"{rounds}  (a wait-out: {WAIT_OUT})"


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Show the text ``doing`` on the terminal until this block ends."""
    console = Screen(stderr=True)
    status = console.status(doing)
    try:
        with suppress(OSError):
            if in_json():
                say("busy", doing)
            elif console.draws and not is_quiet():
                status.start()
        yield
    finally:
        with suppress(OSError):
            status.stop()


class _TrialOverError(Exception):
    """The exception that ends `require_writable`'s trial before the file is replaced."""


def require_writable(output: Path, *, argument: str = "output") -> None:
    """Raise `ParameterError` if the file cannot be written. Call this before long work.

    The function tries to write a temporary file; an existing file is not changed.
    """
    if not os.path.isdir(output.parent):  # noqa: PTH112 (`Path.is_dir` raises at some names)
        raise ParameterError(argument, "must be in an existing folder", str(output))
    if os.path.isdir(output):  # noqa: PTH112
        raise ParameterError(argument, "must be a file, not a folder", str(output))
    try:
        with suppress(_TrialOverError), replacing(output):
            raise _TrialOverError
    except OSError as error:
        rule = f"must be a file that can be written ({error.strerror})"
        raise ParameterError(argument, rule, str(output)) from None

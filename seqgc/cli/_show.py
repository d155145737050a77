"""Output of the verbs: results on stdout, and the state of long work on a terminal."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seqgc._durable import replacing
from seqgc.cli._messages import in_json, is_quiet, plain, say
from seqgc.errors import ParameterError


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


class Screen(Console):
    """A console that raises `BrokenPipeError` if a pipe is broken; rich would end the program."""

    @property
    def draws(self) -> bool:
        """True if the output is a real terminal, on which progress can be drawn.

        The environment variable ``FORCE_COLOR`` has no influence.
        """
        return self.is_terminal and self.is_interactive and self.file.isatty()

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def discard_output() -> None:
    """Discard text that could not be printed. Otherwise Python would print it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_pairs(pairs: dict[str, str]) -> None:
    """Print names and values in two columns on stdout."""
    table = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        table.add_row(Text(name, style="bold"), Text(value))  # not markup: users choose some names
    Screen().print(table)


WAIT_OUT = "a round that stayed open past its closing rule, to wait for answers that a job needs"


def waited_out(rounds: int) -> str:
    """Return the number of wait-outs as text, with an explanation of the word."""
    return f"{rounds}  (a wait-out: {WAIT_OUT})"


def why_switched(fields: Mapping[str, object]) -> str:
    """Return a text with the two schemes of a switch and its reason.

    ``fields`` are the fields of the switch in the event log.
    """
    predicted = cast("Mapping[str, float]", fields["predicted_s"])
    return (
        f"{fields['from']} -> {fields['to']}; {predicted['to']:.3g} s predicted for "
        f"the remaining jobs instead of {predicted['from']:.3g} s"
    )


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

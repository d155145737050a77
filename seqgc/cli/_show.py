"""What the verbs print."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seqgc.cli._messages import in_json, is_quiet, plain, say


def show(
    facts: Mapping[str, object], pairs: dict[str, str], *, as_json: bool, saved: bool = False
) -> None:
    """Print what a verb found: the facts as one JSON object, or the pairs, for people.

    Where files have it, ``saved``, people's form is done without if nobody can read it: a verb
    whose terminal has gone has done what it was asked for. Who asks for JSON waits for it.
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
    """Print one JSON object, and nothing else, on stdout; what is not a number becomes null."""
    sys.stdout.write(json.dumps(plain(value), allow_nan=False) + "\n")


class Screen(Console):
    """A console that leaves it to its user what a broken pipe means: rich would exit."""

    @property
    def draws(self) -> bool:
        """Whether what is on it can be drawn over: it is a terminal, whatever FORCE_COLOR says."""
        return self.is_terminal and self.is_interactive and self.file.isatty()

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def discard_output() -> None:
    """Discard what could not be printed: the interpreter would try to write it again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_pairs(pairs: dict[str, str]) -> None:
    """Print names and values in two columns on stdout."""
    table = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        table.add_row(Text(name, style="bold"), Text(value))  # plain: names are the user's own
    Screen().print(table)


WAIT_OUT = "a round kept open past its closing rule, for answers without which a job is lost"


def waited_out(rounds: int) -> str:
    """Say how many rounds were wait-outs, and what that is."""
    return f"{rounds}  (a wait-out: {WAIT_OUT})"


def why_switched(fields: Mapping[str, object]) -> str:
    """Say from what a run switched to what, and why; ``fields`` as ``events.jsonl`` has them."""
    predicted = cast("Mapping[str, float]", fields["predicted_s"])
    return (
        f"{fields['from']} -> {fields['to']}; {predicted['to']:.3g} s predicted for "
        f"the jobs left instead of {predicted['from']:.3g} s"
    )


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Say on a terminal, for as long as the block takes and it is there, what is being done."""
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

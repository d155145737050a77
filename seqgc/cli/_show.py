"""What the verbs print."""

from __future__ import annotations

import json
import math
import sys
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from seqgc.ports import Action, Close, Event, Finish, RoundRecord

__all__ = ["RoundProgress", "print_json", "print_pairs"]


def print_json(value: dict[str, object]) -> None:
    """Print one JSON object, and nothing else, on stdout; what is not a number becomes null."""
    sys.stdout.write(json.dumps(_finite(value), allow_nan=False) + "\n")


def _finite(value: object) -> object:
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def print_pairs(pairs: dict[str, str]) -> None:
    """Print names and values in two columns on stdout."""
    table = Table.grid(padding=(0, 2))
    for name, value in pairs.items():
        table.add_row(f"[bold]{name}", value)
    Console().print(table)


class RoundProgress:
    """Shows rounds as they close, on stderr: a bar on a terminal, one line per round otherwise.

    An observer of the loop, and a context manager.
    """

    def __init__(self, label: str, *, num_rounds: int) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds, {task.fields[stragglers]} stragglers survived,"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        self._lines = not console.is_terminal
        self._task = self._bar.add_task(label, total=num_rounds, stragglers=0)
        self._stragglers = 0
        self._closing: RoundRecord | None = None
        self._finished: list[int] = []

    def __call__(self, seen: Event | Action) -> None:
        if isinstance(seen, Close):
            self._show()
            self._closing = seen.record
            self._stragglers += int((~seen.record.responded).sum())
            self._bar.update(self._task, advance=1, stragglers=self._stragglers)
        elif isinstance(seen, Finish):
            self._finished.append(seen.job)

    def __enter__(self) -> RoundProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        self._show()

    def _show(self) -> None:
        """Print the line of the round that closed last, now that its jobs are known."""
        record = self._closing
        if record is not None and self._lines:
            answered = f"{np.count_nonzero(record.responded)}/{len(record.responded)}"
            jobs = ",".join(map(str, self._finished)) or "-"
            sys.stderr.write(
                f"round {record.round}: {record.duration_s:.3f} s, {answered} answered, "
                f"closed by {record.reason}, decoded jobs {jobs}\n"
            )
        self._closing, self._finished = None, []

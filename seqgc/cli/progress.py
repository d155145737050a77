"""How far a run is, for people: an observer that shows it on stderr.

On a terminal it is a few lines that stay at the foot of the screen and are drawn four times a
second, by a thread of their own; between two of these an event costs no more than a counter.
Whatever else is printed appears above them. Elsewhere it is one line, at most once a second, and
one at the end. What happened in each round is in the run's ``events.jsonl``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from rich import progress as bars
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seqgc.cli._messages import Level, in_json, is_quiet, say
from seqgc.cli._show import Screen, why_switched
from seqgc.cli._standing import Spending, Standing, folded
from seqgc.ports import Close, Notice, Seen

__all__ = ["RunProgress", "progress_bar"]

_WARNINGS = {"warning", "expelled", "slowdown", "parked"}
_DRAWN_EVERY_S: Final = 0.25
_LINE_EVERY_S: Final = 1.0
_LOSS_LINES: Final = 3


def progress_bar(*columns: bars.ProgressColumn) -> bars.Progress:
    """Return a bar with what it is of and the time left, on stderr if that is a terminal."""
    console, label = Screen(stderr=True), bars.TextColumn("{task.description}", markup=False)
    left = (bars.TimeRemainingColumn(), bars.TextColumn("left"))
    hidden = not console.draws or in_json() or is_quiet()
    onto = sys.stdout.isatty()
    return bars.Progress(
        label, *columns, *left, console=console, disable=hidden, redirect_stdout=onto
    )


class RunProgress:
    """Shows on stderr how far a run is: a live view on a terminal, a line a second otherwise.

    An observer of the run, a callback (of which it hears losses), and a context manager. ``total``
    is the number of rounds, ``label`` what stands before the bar, ``spending`` what counts the
    cost, if there is any; ``clock`` returns seconds. With ``--log-format json`` there is no live
    view, and all is said in JSON (`seqgc.cli._messages`); with ``--quiet`` only warnings are.

    Examples
    --------
    >>> import sys
    >>> from contextlib import redirect_stderr
    >>> from seqgc.ports import Notice
    >>> with redirect_stderr(sys.stdout), RunProgress("gc:s=1", total=60) as progress:
    ...     progress(Notice(kind="slowdown", fields={"since": 30, "times": 19.96}))
    since round 30 all workers take 20 times as long as before
    """

    def __init__(
        self,
        label: str,
        *,
        total: int,
        spending: Spending | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._clock = label, clock
        self._standing = Standing(total=total, spending=spending, clock=clock)
        # What users print goes through this console: it is to be left as it is.
        self._screen = Screen(stderr=True, markup=False, highlight=False, soft_wrap=True)
        self._live = Live(
            console=self._screen,
            auto_refresh=False,
            get_renderable=self._picture,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._drawn = self._screen.draws and not in_json() and not is_quiet()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="seqgc-live", daemon=True)
        self._said_s, self._said = clock(), 0

    def __call__(self, seen: Seen) -> None:
        self._standing(seen)
        if isinstance(seen, Notice):
            self._notice(seen)
        elif isinstance(seen, Close) and self._clock() - self._said_s >= _LINE_EVERY_S:
            self._line()

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Take note of a model's loss."""
        del step, metrics
        self._standing.losses[model] = loss

    def _notice(self, notice: Notice) -> None:
        if line := _sentence(notice):
            level: Level = "warning" if notice.kind in _WARNINGS else "info"
            show = self._screen.print if self._drawn else None
            say(notice.kind, line, level=level, fields=notice.fields, show=show)

    def __enter__(self) -> RunProgress:
        if self._drawn:
            with suppress(OSError):  # nobody is there to see it
                self._live.start()
                self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError, ValueError):
            sys.stdout.flush()  # half a line of the user's, which the live view holds
        with suppress(OSError):
            self._live.stop()
        with suppress(OSError):
            if self._standing.closed > self._said:
                self._line()

    def _draw(self) -> None:
        while not self._over.wait(_DRAWN_EVERY_S):
            try:
                self._live.refresh()
            except (OSError, ValueError):  # the terminal has gone
                return

    def _picture(self) -> Group:
        """Return the live view, as wide as the terminal is now."""
        standing, width = self._standing, self._screen.width
        bar = ProgressBar(
            total=max(1, standing.total), completed=standing.done, width=max(8, min(40, width // 2))
        )
        head = Table.grid(padding=(0, 1))
        head.add_column(no_wrap=True, overflow="ellipsis", max_width=max(1, width - width // 2 - 1))
        head.add_row(Text(self._label, no_wrap=True, overflow="ellipsis"), bar)
        losses = standing.loss_words(width=width, lines=_LOSS_LINES)
        lines = [*folded(standing.words(), width), *folded(losses, width)]
        return Group(head, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def _line(self) -> None:
        """Say in one line where the run stands, unless that is drawn."""
        standing = self._standing
        self._said_s, self._said = self._clock(), standing.closed
        if not self._drawn:
            parts = [", ".join(standing.words()), ", ".join(standing.loss_words(lines=1))]
            line = "; ".join(filter(None, parts))
            say("progress", f"{self._label}: {line}", fields=standing.facts)


def _sentence(notice: Notice) -> str:
    """Return what is said of a notice; nothing if it is for the bar alone."""
    fields = notice.fields
    match notice.kind:
        case "start":
            return f"starting {fields['workers']} workers ({fields['provider']})"
        case "ready":
            return str(fields["note"] or "")
        case "switch":
            return f"switch before round {fields['round']}: {why_switched(fields)}"
        case "warning":
            return f"warning: {fields['text']}"
        case "expelled":
            who = f"worker {fields['worker']} is expelled"
            return f"{who}: its result of job {fields['job']} differs from its replicas'"
        case "slowdown":
            longer = f"{fields['times']:.3g} times as long as before"
            return f"since round {fields['since']} all workers take {longer}"
        case "recovered":
            return f"round {fields['round']}: workers are as fast as they were before"
        case "parked":
            what = f"{fields['model']} {fields['cause']} after step {fields['step']}"
            return f"{what}: {fields['why']}; it is left as it is"
    return ""

"""Progress of long work, in Python and on the command line: `RunProgress` and `working`.

On a terminal, progress is a live view on stderr: a few lines at the bottom, below all other output.
A thread draws the view four times a second; an event only changes counters (`RunStatus`). In a
notebook, the view is an output of the cell, which events update at most twice a second. Elsewhere
nothing is shown, unless the caller wants lines, as the command line does: one line at most once a
second, and one line at the end. The events of every round are in the file ``events.jsonl`` of the
run.
"""

from __future__ import annotations

import errno
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from statistics import median
from typing import Any, Final, Literal, Protocol, cast

from rich import progress as bars
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seqgc.ports import Close, Dispatch, Notice, Seen

__all__ = ["Level", "RunProgress", "Say", "Screen", "in_notebook", "why_switched", "working"]

Level = Literal["info", "warning", "error"]

_MAX_NAMED: Final = 12  # largest number of models whose losses are shown one by one
_WARNINGS = {"warning", "expelled", "slowdown", "parked"}
_DRAWN_EVERY_S: Final = 0.25
_LINE_EVERY_S: Final = 1.0
_LOSS_LINES: Final = 3
_UPDATED_EVERY_S: Final = 0.5  # in a notebook
_MOST_NOTICES: Final = 5  # in a notebook
_SHORT_S: Final = 1.0  # work that takes no longer shows nothing


class Say(Protocol):
    """A function that writes a message; it passes the message to ``show`` if there is a view."""

    def __call__(
        self,
        event: str,
        message: str,
        *,
        level: Level = "info",
        fields: Mapping[str, object] | None = None,
        show: Callable[[str], object] | None = None,
    ) -> None: ...


def _say_in_view(
    event: str,
    message: str,
    *,
    level: Level = "info",
    fields: Mapping[str, object] | None = None,
    show: Callable[[str], object] | None = None,
) -> None:
    """Show a message in the view. Where there is no view, nothing is shown."""
    del event, level, fields
    if show is not None:
        show(message)


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


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython is not None else False


class _NotebookView:
    """A part of a cell's output that is replaced at each update."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._html = self._text = ""

    def show(self, label: str, share: float | None, lines: Sequence[str]) -> None:
        """Show a label, a bar for a share from 0 to 1, and lines of text."""
        self._text = "\n".join([label, *lines])
        rest = "".join(f"<br>{escape(line)}" for line in lines)
        value = "" if share is None else f' value="{share:.4f}"'
        self._html = f"<div>{escape(label)} <progress{value}></progress>{rest}</div>"
        if self._handle is None:
            display = import_module("IPython.display").display
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


@contextmanager
def working(
    label: str, *, quiet: bool = False, after_s: float = _SHORT_S
) -> Iterator[Callable[[str, float], None]]:
    """Show the progress of this block on a terminal or in a notebook, unless ``quiet`` is True.

    The function that the block gets is called with a label and the share of the work that is done,
    from 0 to 1. Nothing is shown before ``after_s`` seconds.

    Examples
    --------
    >>> with working("search") as tell:
    ...     tell("search", 0.5)
    """
    console, notebook = Screen(stderr=True), not quiet and in_notebook()
    name = bars.TextColumn("{task.description}", markup=False)
    parts = (
        bars.BarColumn(),
        bars.TextColumn("{task.percentage:.0f} %,"),
        bars.TimeRemainingColumn(),
    )
    bar = bars.Progress(
        name, *parts, bars.TextColumn("left"), console=console, redirect_stdout=sys.stdout.isatty()
    )
    drawn = not quiet and not notebook and console.draws
    task, view, began_s = bar.add_task(label, total=None), _NotebookView(), time.monotonic()
    last_s = -math.inf

    def tell(what: str, share: float) -> None:
        nonlocal last_s
        now_s = time.monotonic() - began_s
        if now_s < after_s:
            return
        if notebook and (now_s - last_s >= _UPDATED_EVERY_S or share >= 1):
            last_s = now_s
            view.show(what, share, ())
        elif drawn:
            bar.start()
            bar.update(task, description=what, total=1.0, completed=share)

    if drawn and not after_s:
        bar.start()
    try:
        yield tell
    finally:
        if bar.live.is_started:  # otherwise rich would print an empty line
            with suppress(OSError):
                bar.stop()


class RunProgress:
    """Progress of a run: a live view on a terminal or in a notebook.

    The object is an observer of the run, a callback that receives losses, and a context manager.
    ``total`` is the number of rounds, ``label`` is the text before the bar, ``spending`` is the
    meter of the run's cost, and ``clock`` is a function that returns seconds. If ``draws`` is
    False, there is no live view. ``say`` writes messages, and the lines about progress if there is
    no view; by default these lines are not written.

    Examples
    --------
    >>> def say(event, message, **_):
    ...     print(message)
    >>> with RunProgress("gc:s=1", total=60, say=say) as progress:
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
        say: Say | None = None,
        draws: bool = True,
    ) -> None:
        self._label, self._clock, self._say = label, clock, say or _say_in_view
        self._status = RunStatus(total=total, spending=spending, clock=clock)
        # Output of user code goes through this console, unchanged.
        self._screen = Screen(stderr=True, markup=False, highlight=False, soft_wrap=True)
        self._live = Live(
            console=self._screen,
            auto_refresh=False,
            get_renderable=self._picture,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._notebook = _NotebookView() if draws and in_notebook() else None
        self._notices: list[str] = []
        self._drawn = draws and self._notebook is None and self._screen.draws
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="seqgc-live", daemon=True)
        self._said_s, self._said = clock(), 0

    def __call__(self, seen: Seen) -> None:
        self._status(seen)
        if isinstance(seen, Notice):
            self._notice(seen)
        elif isinstance(seen, Close) and self._clock() - self._said_s >= self._every_s:
            self._line()

    def on_step(self, model: str, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Record the loss of a model."""
        del step, metrics
        self._status.losses[model] = loss

    def _notice(self, notice: Notice) -> None:
        if line := _sentence(notice):
            level: Level = "warning" if notice.kind in _WARNINGS else "info"
            show: Callable[[str], object] | None = self._screen.print if self._drawn else None
            if self._notebook is not None:
                show = self._notices.append
            self._say(notice.kind, line, level=level, fields=notice.fields, show=show)

    @property
    def _every_s(self) -> float:
        """Seconds between two lines, or between two updates of a notebook."""
        return _LINE_EVERY_S if self._notebook is None else _UPDATED_EVERY_S

    def __enter__(self) -> RunProgress:
        if self._drawn:
            with suppress(OSError):  # the terminal may be gone
                self._live.start()
                self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError, ValueError):
            sys.stdout.flush()  # the live view may hold an unfinished line of user code
        with suppress(OSError):
            self._live.stop()
        with suppress(OSError):
            if self._status.closed > self._said:
                self._line()

    def _draw(self) -> None:
        while not self._over.wait(_DRAWN_EVERY_S):
            try:
                self._live.refresh()
            except (OSError, ValueError):  # the terminal is gone
                return

    def _picture(self) -> Group:
        """Return the live view, for the current width of the terminal."""
        status, width = self._status, self._screen.width
        bar = ProgressBar(
            total=max(1, status.total), completed=status.done, width=max(8, min(40, width // 2))
        )
        head = Table.grid(padding=(0, 1))
        head.add_column(no_wrap=True, overflow="ellipsis", max_width=max(1, width - width // 2 - 1))
        head.add_row(Text(self._label, no_wrap=True, overflow="ellipsis"), bar)
        losses = status.loss_words(width=width, lines=_LOSS_LINES)
        lines = [*folded(status.words(), width), *folded(losses, width)]
        return Group(head, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))

    def _line(self) -> None:
        """Update the notebook, or write one line of progress if there is no view."""
        status = self._status
        self._said_s, self._said = self._clock(), status.closed
        if self._drawn:
            return
        parts = [", ".join(status.words()), ", ".join(status.loss_words(lines=1))]
        if self._notebook is not None:
            lines = [*filter(None, parts), *self._notices[-_MOST_NOTICES:]]
            self._notebook.show(self._label, status.done / max(1, status.total), lines)
        else:
            line = "; ".join(filter(None, parts))
            self._say("progress", f"{self._label}: {line}", fields=status.facts)


def _sentence(notice: Notice) -> str:
    """Return the message for a notice, or an empty string if the notice needs no message."""
    fields = notice.fields
    match notice.kind:
        case "start":
            return f"starting {fields['workers']} workers ({fields['provider']})"
        case "ready":
            return str(fields["note"] or "")
        case "workers":
            return f"{fields['present']} of {fields['of']} workers from now on"
        case "switch":
            return f"switch before round {fields['round']}: {why_switched(fields)}"
        case "warning":
            return f"warning: {fields['text']}"
        case "expelled":
            subject = f"worker {fields['worker']} is excluded"
            return f"{subject}: its result of job {fields['job']} differs from its replicas'"
        case "slowdown":
            ratio = f"{fields['times']:.3g} times as long as before"
            return f"since round {fields['since']} all workers take {ratio}"
        case "recovered":
            return f"round {fields['round']}: workers have their earlier speed again"
        case "parked":
            subject = f"{fields['model']} {fields['cause']} after step {fields['step']}"
            return f"{subject}: {fields['why']}; it is not trained further"
    return ""


def why_switched(fields: Mapping[str, object]) -> str:
    """Return a text with the two schemes of a switch and its reason.

    ``fields`` are the fields of the switch in the event log.
    """
    predicted = cast("Mapping[str, float]", fields["predicted_s"])
    return (
        f"{fields['from']} -> {fields['to']}; {predicted['to']:.3g} s predicted for "
        f"the remaining jobs instead of {predicted['from']:.3g} s"
    )


# ---- the state of a run --------------------------------------------------------------------------


class Spending(Protocol):
    """A meter of the cost of a run, in US dollars."""

    @property
    def spent_usd(self) -> float: ...


@dataclass(slots=True, kw_only=True)
class RunStatus:
    """An observer that counts the progress of a run.

    ``total`` is the number of rounds. A straggler of a round is a worker whose answer is missing
    when the round closes. ``survived`` is the number of stragglers in all rounds, minus the number
    of late answers that were used.
    """

    total: int
    spending: Spending | None = None
    clock: Callable[[], float] = time.monotonic
    done: int = 0  # rounds closed by this master and, before a resume, by earlier masters
    closed: int = 0  # rounds closed by this master
    finished: int = 0  # jobs finished by this master
    stragglers: int | None = None  # of the newest round; None with `deal`
    survived: int = 0
    wait_outs: int = 0
    losses: dict[str, float] = field(default_factory=dict)  # of the newest batch, by model
    parked: set[str] = field(default_factory=set)
    began_s: float | None = None

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Close(record=record, jobs=jobs):
                self.closed += 1
                self.finished += len(jobs)
                self.done = max(self.done, record.round + 1)
                self.wait_outs += record.waited_out
                dealt = record.reason == "dealt"
                self.stragglers = None if dealt else int((~record.responded).sum())
                # A resumed run may use late answers of rounds that an earlier master closed.
                self.survived = max(0, self.survived + record.missed)
            case Notice(kind="run" | "resume", fields=fields):
                self.total = cast("int", fields["rounds"])
            case Notice(kind="round", fields=fields):
                self.closed += 1
                self.done = cast("int", fields["done"])
            case Notice(kind="parked", fields=fields):
                self.parked.add(str(fields["model"]))
            case Dispatch(round=first) if self.began_s is None:
                self.began_s = self.clock()
                self.done = max(self.done, first)  # earlier masters closed these rounds

    @property
    def elapsed_s(self) -> float:
        """Seconds since this master sent its first tasks."""
        return 0.0 if self.began_s is None else self.clock() - self.began_s

    @property
    def left_s(self) -> float | None:
        """The expected seconds for the remaining rounds, from the mean time of a round, or None."""
        if not self.closed or self.began_s is None:
            return None
        return max(0, self.total - self.done) * self.elapsed_s / self.closed

    @property
    def jobs_per_minute(self) -> float | None:
        """The jobs that this master finishes per minute, or None before the first job."""
        return 60 * self.finished / self.elapsed_s if self.finished and self.elapsed_s else None

    @property
    def facts(self) -> dict[str, object]:
        """The fields of the JSON message about progress."""
        return {
            "round": self.done,
            "rounds": self.total,
            "stragglers": self.stragglers,
            "survived": self.survived,
            "wait_outs": self.wait_outs,
            "jobs": self.finished,
            "jobs_per_minute": self.jobs_per_minute,
            "left_s": self.left_s,
            "spent_usd": None if self.spending is None else self.spending.spent_usd,
            "loss": self._spread(),
            "parked": len(self.parked),
        }

    def words(self) -> list[str]:
        """Return the parts of the text about rounds, jobs and cost."""
        parts = [f"{self.done} of {max(self.total, self.done)} rounds"]
        if self.stragglers is not None:
            parts.append(f"stragglers: {self.stragglers} now and {self.survived} survived")
            parts.append(f"{self.wait_outs} wait-out{'' if self.wait_outs == 1 else 's'}")
        if (rate := self.jobs_per_minute) is not None:
            parts.append(f"{rate:.3g} jobs/min" if rate < 1000 else f"{rate:,.0f} jobs/min")
        if (left_s := self.left_s) is not None and self.done < self.total:
            parts.append(f"{_clock_time(left_s)} left")
        if self.spending is not None:
            parts.append(f"at most ${self.spending.spent_usd:.4f} so far")
        return parts

    def loss_words(self, *, width: float = math.inf, lines: float = math.inf) -> list[str]:
        """Return the loss of each model if all fit; otherwise the best, median and worst loss.

        The text fits if it has at most ``lines`` lines of ``width`` characters.
        """
        losses = dict(self.losses)
        if not losses:
            return []
        each = [f"{name} {loss:.4g}{self._mark(name)}" for name, loss in losses.items()]
        each[0] = f"loss: {each[0]}"
        fits = all(len(part) < width for part in each) and len(folded(each, width)) <= lines
        if len(each) <= _MAX_NAMED and fits:
            return each
        spread = self._spread()
        parts = [f"{name} {loss:.4g}" for name, loss in spread.items()]
        parts[0] = f"loss of {len(losses)} models: {parts[0]}"
        return [*parts, f"{len(self.parked)} parked"]

    def _mark(self, name: str) -> str:
        return " (parked)" if name in self.parked else ""

    def _spread(self) -> dict[str, float]:
        """Return the best, median and worst loss of the models that are still trained.

        NaN counts as infinity. If no model is trained any more, return the losses of all models.
        """
        losses = list(dict(self.losses).items())
        active = [loss for name, loss in losses if name not in self.parked]
        if not losses:
            return {}
        values = active or [loss for _, loss in losses]
        ranked = sorted(math.inf if math.isnan(loss) else loss for loss in values)
        return {"best": ranked[0], "median": median(ranked), "worst": ranked[-1]}


def folded(parts: list[str], width: float) -> list[str]:
    """Join parts with commas into lines of at most ``width`` characters.

    A part that is longer gets a line of its own.

    Examples
    --------
    >>> folded(["one", "two", "three"], 9)
    ['one, two,', 'three']
    """
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 3 <= width:
            lines[-1] += f", {part}"
            continue
        if lines:
            lines[-1] += ","
        lines.append(part)
    return lines


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

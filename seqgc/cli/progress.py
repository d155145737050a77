"""How far a run is, for people: an observer that shows it on stderr."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
from rich import progress as bars

from seqgc.cli._messages import Level, in_json, say
from seqgc.cli._show import Screen, why_switched
from seqgc.ports import Close, Finish, Notice, RoundRecord, Seen

__all__ = ["RunProgress", "progress_bar"]

_WARNINGS = {"warning", "expelled", "slowdown", "parked"}


def progress_bar(*columns: bars.ProgressColumn) -> bars.Progress:
    """Return a bar with what it is of and the time left, on stderr if that is a terminal."""
    console, label = Screen(stderr=True), bars.TextColumn("{task.description}", markup=False)
    left = (bars.TimeRemainingColumn(), bars.TextColumn("left"))
    shown = console.is_terminal and not in_json()
    return bars.Progress(label, *columns, *left, console=console, disable=not shown)


class RunProgress:
    """Shows on stderr how far a run is: a bar on a terminal, one line per round otherwise.

    An observer of the run, and a context manager. Of a recording only the bar is shown. ``total``
    is the number of rounds, ``label`` what stands before the bar. With ``--log-format json`` there
    is no bar, and all is said in JSON (`seqgc.cli._messages`).

    Examples
    --------
    >>> import sys
    >>> from contextlib import redirect_stderr
    >>> from seqgc.ports import Notice
    >>> with redirect_stderr(sys.stdout), RunProgress("gc:s=1", total=60) as progress:
    ...     progress(Notice(kind="slowdown", fields={"since": 30, "times": 19.96}))
    since round 30 all workers take 20 times as long as before
    """

    def __init__(self, label: str, *, total: int) -> None:
        rounds = bars.TextColumn("rounds{task.fields[more]}")
        self._bar = progress_bar(bars.BarColumn(), bars.MofNCompleteColumn(), rounds)
        self._lines = self._bar.disable
        self._task = self._bar.add_task(label, total=total, more="")
        self._stragglers = 0
        self._closing: RoundRecord | None = None
        self._finished: list[int] = []

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Close(record=record):
                self._show()
                self._closing = record
                # A resumed run may take late answers to rounds that were not shown.
                self._stragglers = max(0, self._stragglers + record.missed)
                dealt = record.reason == "dealt"
                more = "," if dealt else f", {self._stragglers} stragglers survived,"
                self._bar.update(self._task, advance=1, more=more)
            case Finish(job=job):
                self._finished.append(job)
            case Notice():
                self._notice(seen)

    def _notice(self, notice: Notice) -> None:
        if notice.kind == "round":
            self._bar.update(self._task, advance=1)
        if line := _sentence(notice):
            level: Level = "warning" if notice.kind in _WARNINGS else "info"
            show = partial(self._bar.console.print, markup=False, highlight=False, soft_wrap=True)
            say(notice.kind, line, level=level, fields=notice.fields, show=show)

    def __enter__(self) -> RunProgress:
        with suppress(OSError):  # nobody is there to see it
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._bar.stop()
            self._show()

    def _show(self) -> None:
        """Print the line of the round that closed last, now that its jobs are known."""
        record = self._closing
        if record is not None and self._lines:
            answered = f"{np.count_nonzero(record.responded)}/{len(record.responded)}"
            jobs = ",".join(map(str, self._finished)) or "-"
            fields = {
                "round": record.round,
                "duration_s": record.duration_s,
                "responded": np.count_nonzero(record.responded),
                "workers": len(record.responded),
                "reason": record.reason,
                "jobs": self._finished,
            }
            line = (
                f"round {record.round}: {record.duration_s:.3f} s, {answered} answered, "
                f"closed by {record.reason}, decoded jobs {jobs}"
            )
            say("round", line, fields=fields)
        self._closing, self._finished = None, []


def _sentence(notice: Notice) -> str:
    """Return what is said of a notice; nothing if it is for the bar alone."""
    fields = notice.fields
    match notice.kind:
        case "start":
            return f"starting {fields['workers']} workers ({fields['provider']})"
        case "ready":
            return str(fields["note"] or "")
        case "round" if in_json():
            return "a round has been recorded"
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

"""``seqgc profile import``, which makes a delay profile of a trace of another tool."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from seqgc import profiles
from seqgc.cli._options import AsJson
from seqgc.cli._show import Screen, require_writable, show
from seqgc.errors import ParameterError
from seqgc.profiles import ImportedTrace, import_trace

TraceFile = Annotated[
    Path,
    typer.Argument(help="Trace: CSV, JSON, JSON lines, parquet, or log lines with REPORT."),
]
_SHOWN_ROUNDS, _SHOWN_WORKERS = 3, 6  # of the matrix, in a dry run

HELP = (
    "Make a delay profile of a trace of another tool.\n\n"
    "A trace has a row for each task. These formats are recognised by their content: "
    f"{', '.join(profiles.FORMATS[:-1])}. For other traces, name the columns with the "
    "options below; they also replace columns of a recognised format. A value in a nested JSON "
    "object has a dotted name (a.b). The report lists every decision that the import took."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """Options that say which column of a trace holds what."""

    worker: Annotated[
        str | None,
        "Column with the worker's name, or several columns, separated by commas, that name it "
        "together; or `order`: the n-th row of a round is worker n.",
    ] = None
    round: Annotated[
        str | None,
        "Column with the round; or `gap`: a round begins wherever there is a gap between the "
        "starts of tasks. gap:SECONDS sets the least gap.",
    ] = None
    start: Annotated[str | None, "Column with the time at which the worker started the task."] = (
        None
    )
    end: Annotated[str | None, "Column with the time at which the worker finished it."] = None
    submit: Annotated[
        str | None,
        "Column with the time at which the task was requested. A task then takes the time from "
        "there to --end.",
    ] = None
    duration: Annotated[str | None, "Column with the time that the task took."] = None
    unit: Annotated[
        str | None,
        "Unit of all times: s, ms, us or ns. By default the unit of the recognised format, or the "
        "last word of the column's name, as in took_ms.",
    ] = None
    failed: Annotated[tuple[str, ...], "Rows with COLUMN=VALUE are failed tasks. Repeatable."] = ()
    where: Annotated[tuple[str, ...], "Use only rows with COLUMN=VALUE. Repeatable."] = ()
    attempts: Annotated[
        str | None,
        "Time of a worker that has several rows in a round: span (from the first start to the "
        "last end), sum, first or last.",
    ] = None
    missing: Annotated[
        str,
        "Meaning of a missing row: fail (the worker did not answer) or drop (leave the round out).",
    ] = "fail"
    base_load: Annotated[
        float | None,
        "Load of each worker, as a fraction of a job. By default 1 / the number of workers.",
    ] = None

    def trace(self, file: Path) -> ImportedTrace:
        """Import the file with these options."""
        return import_trace(
            file,
            worker=self.worker,
            round=self.round,
            submit=self.submit,
            start=self.start,
            end=self.end,
            duration=self.duration,
            unit=self.unit,
            failed=self.failed,
            where=self.where,
            attempts=self.attempts,
            missing=self.missing,
            base_load=self.base_load,
        )


def import_file(
    file: TraceFile,
    columns: ColumnOptions,
    output: Annotated[Path | None, "-o", "--output", "New .npz file."] = None,
    dry_run: Annotated[
        bool, "--dry-run", "Show the decisions and the first times, and write nothing."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a delay profile of a trace of another tool."""
    trace = columns.trace(file)
    profile = trace.profile
    if not dry_run:
        output = new_file(output)
        profiles.write_profile(profile, path=output)
    findings = profiles.lint(profile)
    answers = profile.times[profile.answered]
    median_s = float(np.median(answers))
    facts = {
        "file": None if dry_run else str(output),
        "format": trace.format,
        "columns": trace.columns,
        "rounds": profile.num_rounds,
        "workers": profile.num_workers,
        "names": {"rounds": list(trace.rounds), "workers": list(trace.workers)},
        "median_s": median_s,
        "unanswered": int((~profile.answered).sum()),
        "base_load": profile.meta.base_load,
        "notes": list(trace.notes),
        "warnings": list(trace.warnings),
        "findings": findings,
    }
    pairs = {
        "trace": f"{file} ({trace.format})",
        "columns": ", ".join(f"{name}: {column}" for name, column in trace.columns.items()),
        "profile": profile.dimensions,
        "answers": f"{answers.min():.4g} … {answers.max():.4g} s, median {median_s:.4g} s",
        "unanswered": f"{int((~profile.answered).sum())} of {profile.times.size}",
    }
    decisions = [note for note in trace.notes if note not in trace.warnings]
    for title, notes in (("warnings", trace.warnings), ("decisions", decisions)):
        for i, note in enumerate(notes):
            pairs[" " * len(pairs) if i else title] = note
    if dry_run:
        pairs["file"] = "none: this was a dry run"
    else:
        pairs["file"] = f"{output}  ({len(findings)} findings: seqgc profile lint {output})"
    show(facts, pairs, as_json=as_json, saved=not dry_run)
    if dry_run and not as_json:
        _print_times(trace)


def new_file(output: Path | None) -> Path:
    """Return the path of the new .npz file, or raise `ParameterError`."""
    if output is None:
        raise ParameterError("output", "must name a new .npz file", None, "-o FILE.npz")
    if output.suffix != ".npz":
        rule = "must end in .npz, the format that can hold failures of workers"
        raise ParameterError("output", rule, str(output))
    require_new(output)
    return output


def require_new(path: Path) -> None:
    """Raise `ParameterError` if the file exists or cannot be written."""
    if os.path.lexists(path):
        rule = "must not exist: seqgc profile never overwrites a file"
        raise ParameterError("output", rule, str(path))
    require_writable(path)


def _print_times(trace: ImportedTrace) -> None:
    """Print the first times as a table: a line for each round, a column for each worker."""
    table = Table(title="first times, in seconds (-: no answer)")
    workers = trace.workers[:_SHOWN_WORKERS]
    for name in ("round", *workers):
        table.add_column(name[-12:], justify="right")
    profile = trace.profile
    for row, name in enumerate(trace.rounds[:_SHOWN_ROUNDS]):
        cells = [
            f"{profile.times[row, i]:.4g}" if profile.answered[row, i] else "-"
            for i in range(len(workers))
        ]
        table.add_row(name[-16:], *cells)
    Screen().print(table)

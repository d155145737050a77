"""``seqgc sweep``: replays of several schemes on several profiles, as one table."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from seqgc.cli._messages import in_json, is_quiet
from seqgc.cli._options import RehearsalOptions, numbers, words
from seqgc.cli._show import Screen, TableOutput, require_writable, text_table
from seqgc.errors import ParameterError
from seqgc.plot import tables
from seqgc.progress import working
from seqgc.rounds import ClosingRule, Setting, WaitOut
from seqgc.search import sweep as sweep_settings

_LEGEND = (
    "s/job: mean seconds per job. between: the ends of the 95 % interval, from "
    "a bootstrap over the seeds or, with one seed, over the recorded rounds. × bound: the run time "
    "divided by the run time of a master that knows all delays in advance."
)


_CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "profile": lambda row: str(row["profile"]),
    "scheme": lambda row: str(row["scheme"]),
    "mu": lambda row: f"{row['mu']:g}",
    "wait-out": lambda row: str(row["wait_out"]),
    "jobs": lambda row: str(row["jobs_per_round"]),
    "alpha": lambda row: tables.number(row["alpha_s_per_load"]),
    "seeds": lambda row: str(row["seeds"]),
    "s/job": lambda row: f"{row['job_s']:.4g}",
    "between": lambda row: _between(row["low_s"], row["high_s"]),
    "× bound": lambda row: tables.number(row["over_bound"]),
}
_IF_DIFFERENT = ("mu", "wait-out", "jobs")  # shown only if the rows differ in them
_WIDTH = 120  # columns, if the output is not a terminal


def _tells(name: str, rows: list[dict[str, Any]]) -> bool:
    return name not in _IF_DIFFERENT or len({_CELLS[name](row) for row in rows}) > 1


def sweep(
    specs: Annotated[
        list[str], typer.Argument(help="Schemes or other defences, for example gc-rep:s=3.")
    ],
    options: RehearsalOptions,
    on: Annotated[
        list[str] | None,
        "--on",
        "Delays: a profile, a trace, the folder of a run, or a generator such as "
        "lambda-cnn:workers=16,rounds=60. Repeatable.",
    ] = None,
    seeds: Annotated[int, "Number of profiles that each generator makes, with seeds 0, 1, ..."] = 1,
    mu: Annotated[str, "Tolerances of the closing rule, separated by commas."] = "0",
    wait_out: Annotated[str, "Closing rules, separated by commas."] = "feasible",
    jobs_per_round: Annotated[str, "Numbers of models in a job, separated by commas."] = "1",
    file: Annotated[
        Path | None,
        "-o",
        "--output",
        "File for the table, .csv or .tex (LaTeX, with a .csv beside it). Rows that it has are not "
        "computed again.",
    ] = None,
    *,
    output: TableOutput,
) -> None:
    """Replay every scheme on every profile, and show means with intervals in one table."""
    if not on:
        remedy = "for example --on lambda-cnn --on FILE.npz"
        raise ParameterError("on", "must name delays", None, remedy)
    if options.base_load is not None:
        rule = "must be left out of a sweep, whose profiles have base loads of their own"
        raise ParameterError("base_load", rule, options.base_load)
    if file is not None:
        require_writable(file)
    settings = [
        Setting(
            scheme=spec,
            rule=ClosingRule(mu=tolerance, wait_out=cast("WaitOut", rule)),
            jobs_per_round=bundle,
        )
        for spec, tolerance, rule, bundle in product(
            specs,
            numbers("mu", mu, float),
            words(wait_out),
            numbers("jobs_per_round", jobs_per_round, int),
        )
    ]
    with working("sweep", quiet=in_json() or is_quiet(), after_s=0.0) as tell:
        table = sweep_settings(
            settings, on, seeds=seeds, output=file, progress=tell, **options.settings()
        )
    rows = tables.rows_of(table)

    def text() -> None:
        shown = {name: cell for name, cell in _CELLS.items() if _tells(name, rows)}
        screen = Screen() if Screen().is_terminal else Screen(width=_WIDTH)
        screen.print(text_table(rows, shown, left=["scheme"]))
        screen.print(_LEGEND)

    facts = {"rows": rows, "file": None if file is None else str(file)}
    output.show(table, facts=facts, text=text, saved=file is not None)


def _between(low: float, high: float) -> str:
    return "–" if low != low else f"{low:.4g}–{high:.4g}"

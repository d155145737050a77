"""``seqgc explain``: where the time of a run went, and what would have been faster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from seqgc import costs
from seqgc._tabular import counted
from seqgc.cli._options import alpha_title, naming
from seqgc.cli._report import page_path
from seqgc.cli._show import Screen, TableOutput, busy, print_pairs, text_table
from seqgc.config._names import FUNCTIONS
from seqgc.config._tables import checked, read_run_config
from seqgc.errors import ParameterError, one_line
from seqgc.explanation import Explanation
from seqgc.explanation import explain as explain_recording
from seqgc.plot import tables
from seqgc.profiles import DelayProfile
from seqgc.report import explanation_page
from seqgc.runs import RecordedRun, read_delays, read_run
from seqgc.search import Rehearsal

_WIDTH = 100  # columns, if the output is not a terminal
_WORKERS_SHOWN = 8
_Row = dict[str, Any]


def explain(
    target: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run, delay profile, or trace of another tool.", metavar="RUN|TRACE"
        ),
    ],
    alpha: Annotated[
        float | None,
        "Cost of load, in seconds per unit of load. By default read from the profile, or fitted to "
        "a run whose loads differ.",
    ] = None,
    usd_per_hour: Annotated[
        float | None,
        "Price of one worker, in US dollars per hour. By default known only for functions.",
    ] = None,
    page: Annotated[
        Path | None, "-o", "--output", "HTML file for a page with the explanation."
    ] = None,
    *,
    output: TableOutput,
) -> None:
    """Explain a run or a trace: where its time went, and what would have been faster."""
    page = None if page is None else page_path(page)
    price = _usd_per_s(target) if usd_per_hour is None else usd_per_hour / 3600
    with busy("replaying"), naming(target):
        source = read_run(target) if os.path.isdir(target) else read_delays(target)  # noqa: PTH112
        found = explain_recording(source, alpha=alpha, usd_per_worker_s=price)
        cases = _alpha_cases(source, price) if found.alpha is None else []
    name = one_line(Path(os.path.abspath(target)).name, limit=100)  # noqa: PTH100
    if page is not None:
        with busy("drawing"):
            explanation_page(found, name=name).write(page)
    facts = asdict(found)
    if cases:
        facts["alpha_cases"] = [
            {"alpha": case.alpha, "counterfactuals": [asdict(row) for row in each.counterfactuals]}
            for case, each in cases
        ]
    if page is not None:
        facts["file"] = str(page)

    def text() -> None:
        if page is not None:
            print_pairs({"page": str(page)})
        _print(found)
        if cases:
            _screen().print("As alpha is unknown, the truth is between these two cases:")
        for case, each in cases:
            _screen().print(f"With {alpha_title(case)}", soft_wrap=True)
            _print_counterfactuals(each)

    output.show(tables.counterfactuals(found), facts=facts, text=text, saved=page is not None)


def _alpha_cases(
    source: RecordedRun | DelayProfile, usd_per_s: float | None
) -> list[tuple[Rehearsal, Explanation]]:
    """Explain the recording in both cases of what load may cost (`Rehearsal.alpha_cases`)."""
    explained = []
    for case in Rehearsal.of(source).alpha_cases():
        on = source if isinstance(source, RecordedRun) else case.profile
        found = explain_recording(on, alpha=case.alpha, usd_per_worker_s=usd_per_s)
        explained.append((case, found))
    return explained


def _usd_per_s(target: Path) -> float | None:
    """Return the price of a second of a worker of a run on functions, or None."""
    with suppress(ParameterError):
        values = read_run_config(target)
        if values.get("backend") in FUNCTIONS:
            function = checked(values).function
            prices = costs.read_prices(function.region)
            second = costs.FunctionSetup(
                memory_mb=function.memory_mb, timeout_s=function.timeout_s
            ).usage(invocations=0, ms=1000)
            return prices.bill(second, architecture=function.arch).usd
    return None


def _print(found: Explanation) -> None:
    console = _screen()
    for sentence in found.verdict:
        console.print(sentence, highlight=False)
    print_pairs(dict(_pairs(found)))
    if workers := [row for row in found.by_worker if row.cost_s != 0.0][:_WORKERS_SHOWN]:
        console.print(
            text_table(
                map(asdict, workers),
                {
                    "worker": lambda row: str(row["worker"]),
                    "times the others": lambda row: f"{row['factor']:.2f}",
                    "cost, s": lambda row: _number(row["cost_s"]),
                    "constant, s": lambda row: _number(row["constant_s"]),
                    "varying, s": lambda row: _number(row["varying_s"]),
                },
                title="workers that cost most",
            )
        )
    if found.by_phase:
        console.print(
            text_table(
                map(asdict, found.by_phase),
                {
                    "phase": lambda row: str(row["phase"]),
                    "median, s": lambda row: _number(row["median_s"]),
                    "share": lambda row: f"{row['share']:.0%}",
                    "cost, s": lambda row: _number(row["cost_s"]),
                },
                title="phases of a task",
            )
        )
    if found.by_round:
        console.print(
            text_table(
                map(asdict, found.by_round),
                {
                    "round": lambda row: str(row["round"]),
                    "seconds": lambda row: _number(row["seconds"]),
                    "cost, s": lambda row: _number(row["cost_s"]),
                    "slowest worker": lambda row: str(row["slowest"]),
                },
                title="rounds that cost most",
            )
        )
    _print_counterfactuals(found)
    for sentence in found.missing:
        console.print(sentence, highlight=False)


def _screen() -> Screen:
    console = Screen()
    return console if console.is_terminal else Screen(width=_WIDTH)


def _print_counterfactuals(found: Explanation) -> None:
    if found.counterfactuals:
        rows = tables.rows_of(tables.counterfactuals(found))
        title = "what the same run would have taken"
        _screen().print(text_table(rows, _cells(rows), title=title))


def _cells(rows: list[_Row]) -> dict[str, Any]:
    cells = {
        "what": lambda row: str(row["what"]),
        "scheme": lambda row: str(row["scheme"]),
        "time, s": lambda row: _number(row["seconds"]),
        "95 % interval": lambda row: f"{_number(row['low_s'])} … {_number(row['high_s'])}",
        "saved, s": lambda row: _number(row["saved_s"]),
    }
    if any(row["usd"] == row["usd"] for row in rows):
        cells["$"] = lambda row: f"{row['usd']:.2g}"
    return cells


def _pairs(found: Explanation) -> Iterator[tuple[str, str]]:
    rounds, workers = counted(found.rounds, "round"), counted(found.workers, "worker")
    yield "run", f"{found.scheme}, {rounds} of {workers}"
    yield "time", f"{_number(found.seconds)} s"
    if found.agreement is not None:
        for name, seconds in (
            ("waiting", found.waiting_s),
            ("computing", found.computing_s),
            ("master", found.master_s),
        ):
            yield name, f"{_number(seconds)} s ({seconds / found.seconds:.0%})"
        yield "replay", f"takes {found.agreement:.3f} times as long as the recorded rounds"
        yield "half of the waiting", f"in {found.half_in_rounds} of {found.rounds} rounds"
    if found.censored:
        bounded = (
            f"; {found.only_bounded} of them ran longer than any answer"
            if found.only_bounded
            else ""
        )
        yield "cancelled tasks", f"{found.censored}, with estimated times{bounded}"
    yield "alpha", "unknown" if found.alpha is None else f"{found.alpha:.4g} s per unit of load"
    for each in found.predictions:
        yield f"{each.source} ({each.scheme})", each.words


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"

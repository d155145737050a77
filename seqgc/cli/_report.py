"""``seqgc report``: an HTML page of a delay profile, a run, or several runs."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from seqgc import read_run
from seqgc import report as pages
from seqgc.cli._cost import cost_in_words
from seqgc.cli._options import AsJson
from seqgc.cli._show import busy, require_writable, show
from seqgc.errors import ParameterError, one_line
from seqgc.profiles import DelayProfile, read_profile
from seqgc.runs import RecordedRun, read_delays
from seqgc.runs.chrome_trace import require_trace_name, write_trace

_MAX_RUNS: Final = 8  # the number of colours
_REFRESH_S: Final = 2


def report(
    targets: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or one delay profile.", metavar="RUNS|PROFILE"),
    ],
    output: Annotated[Path | None, "-o", "--output", "HTML file to write."] = None,
    trace: Annotated[
        Path | None,
        "Trace of the run to write, for Perfetto or chrome://tracing: a file that ends in .json or "
        ".json.gz. No page is drawn unless -o is given too.",
    ] = None,
    watch: Annotated[
        bool, "--watch", "Draw the page again after each round until the run ends."
    ] = False,
    search: Annotated[
        bool | None,
        "--search/--no-search",
        "Search for the best schemes on the recorded delays, for about ten seconds. By default on "
        "a profile, and not on runs.",
    ] = None,
    alpha: Annotated[
        float | None,
        "For the search: cost of load, in seconds per unit of load. By default read from the "
        "profile, or fitted to a run whose loads differ.",
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw runs, or a delay profile, on one self-contained HTML page."""
    if trace is not None:
        _trace(targets, trace, as_json=as_json and output is None)
        if output is None:
            return
    path = page_path(output)
    folders = [os.path.isdir(target) for target in targets]  # noqa: PTH112 (`Path.is_dir` raises)
    if not any(folders):
        if len(targets) > 1:
            rule = "must be folders of runs, or a single delay profile"
            raise ParameterError("targets", rule, len(targets))
        _require_target(targets[0])
        if watch:
            raise ParameterError("watch", "must be left out: a profile does not change", True)
        profile = read_profile(targets[0])
        name = one_line(targets[0].name, limit=100)
        with busy("drawing" if search is False else "searching and drawing"):
            seconds = None if search is False else pages.SEARCH_S
            pages.profile_page(profile, name=name, alpha=alpha, search_s=seconds).write(path)
    else:
        _require_runs(targets, alone={"watch": watch, "search": bool(search)})
        if alpha is not None and not search:
            raise ParameterError("alpha", "must be left out for runs without --search", alpha)
        if watch:
            with busy("drawing each round, until the run ends (Ctrl-C stops this)"):
                pages.watch(targets[0], partial(_draw, targets, path, refresh_s=_REFRESH_S))
        else:
            searched = read_delays(targets[0], alpha=alpha) if search else None
            with busy("searching and drawing" if search else "drawing"):
                _draw(targets, path, searched=searched)
    show({"file": str(path)}, {"page": str(path)}, as_json=as_json, saved=True)


def _trace(targets: list[Path], path: Path, *, as_json: bool) -> None:
    """Write the trace of the only run."""
    if len(targets) > 1:
        raise ParameterError("trace", "must be used with one run only", len(targets))
    require_trace_name(path)
    require_writable(path, argument="trace")
    write_trace(read_run(targets[0]), path)
    show({"file": str(path)}, {"trace": str(path)}, as_json=as_json, saved=True)


def _require_runs(targets: list[Path], *, alone: dict[str, bool]) -> None:
    """Raise `ParameterError` unless the targets are runs that the options allow.

    The options that are True in ``alone`` exclude each other, and are for one run only.
    """
    for target in targets:
        if os.path.isfile(target):  # noqa: PTH113
            rule = "must be folders of runs, or one delay profile, but not both"
            raise ParameterError("targets", rule, one_line(str(target), limit=100))
    options = [name for name, given in alone.items() if given]
    if options and len(targets) > 1:
        raise ParameterError(options[0], "must be used with one run only", len(targets))
    if len(options) > 1:
        raise ParameterError(options[1], f"must be used without --{options[0]}", True)
    if len(targets) > _MAX_RUNS:
        raise ParameterError("targets", f"must be at most {_MAX_RUNS} runs", len(targets))


def _require_target(target: Path) -> None:
    """Raise `ParameterError` if the target does not exist, unless its name is a profile's."""
    if target.suffix not in (".npz", ".csv") and not os.path.lexists(target):
        rule = "must be the folder of a run, or an existing delay profile"
        raise ParameterError("targets", rule, str(target))


def page_path(output: Path | None) -> Path:
    """Return the path of a page; raise `ParameterError` if the file cannot be written."""
    if output is None:
        raise ParameterError("output", "must be given", None, "for example -o page.html")
    if output.suffix.lower() not in (".html", ".htm"):
        raise ParameterError("output", "must be the name of an .html file", str(output))
    require_writable(output)
    return output


def _draw(
    targets: list[Path],
    path: Path,
    *,
    refresh_s: int | None = None,
    searched: DelayProfile | None = None,
) -> bool:
    """Write the page of runs; return True if all have ended.

    If ``searched`` are the delays of the only run, the page has a search for the best schemes.
    """
    runs: dict[str, RecordedRun] = {}
    costs: dict[str, str] = {}
    notices = []
    for target in targets:
        name = _new_name(target, known=runs)
        runs[name] = read_run(target)
        try:
            cost = cost_in_words(target)
        except ParameterError as error:
            notices.append(f"The cost of {name} is unknown: {error}.")
        else:
            costs |= {} if cost is None else {name: cost}
    ended = all(run.outcome is not None for run in runs.values())
    wait_s = None if ended else refresh_s
    page = pages.run_page(runs, costs=costs, notices=notices, refresh_s=wait_s)
    if searched is not None:
        section, best = pages.search_section(searched)
        page = replace(page, glance=[*page.glance, *best], sections=[*page.sections, section])
    page.write(path)
    return ended


def _new_name(folder: Path, *, known: Collection[str]) -> str:
    """Return the name of a run's folder, with a number if another run has the same name."""
    base = name = one_line(Path(os.path.abspath(folder)).name, limit=60) or "run"  # noqa: PTH100
    number = 1
    while name in known:
        number += 1
        name = f"{base} ({number})"
    return name

"""The page of one or several runs, and `watch`, which updates the page while a run continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from seqgc._bounded import read_toml
from seqgc.errors import no_run, one_line
from seqgc.plot import PICTURES, Picture
from seqgc.plot.tables import number, percent
from seqgc.report._page import Page, PageTable, Section, Tile
from seqgc.runs import LOG, RecordedRun

__all__ = ["run_page", "watch"]

_MOST_NOTICES: Final = 40
_MOST_MODELS: Final = 12
_LONGEST: Final = 120  # most characters of a value of the configuration
_SETTINGS: Final = (
    "scheme", "workers", "steps", "jobs_per_round", "mu", "wait_out", "timeout_s", "max_attempts",
    "probe", "retune", "backend", "payload", "precision", "stale", "audit", "max_usd",
)  # fmt: skip
_MODEL_SETTINGS: Final = "module", "data", "optimizer", "lr", "batch_size"
_PAUSE_S: Final = 1.0  # the least pause between two pages
_PAUSE_RATIO: Final = 4  # the least pause, as a multiple of the time that a page takes


def run_page(
    runs: Mapping[str, RecordedRun],
    *,
    costs: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    refresh_s: int | None = None,
) -> Page:
    """Return the page of one or several runs by name.

    ``costs`` describes the cost of each run, by name. ``notices`` are sentences about missing
    information. ``refresh_s`` is for a page that is updated while its run continues.
    """
    costs, notices = costs or {}, [*notices]
    single = len(runs) == 1
    for name, run in runs.items():
        notices += [gap if single else f"{name}: {gap}" for gap in run.gaps]
    configurations = {name: _configuration(run.path, notices) for name, run in runs.items()}
    closed = {name: run for name, run in runs.items() if len(run.rounds()["round"])}
    if not closed:
        notices.append("No round has closed: there is nothing to draw yet.")
    (first_name, first), *_ = runs.items()
    sections = [
        None if single else _compared(runs, costs),
        *(_drawn(closed) if closed else ()),
        _settings(configurations),
        *(_events("" if single else name, run) for name, run in runs.items()),
    ]
    return Page(
        kind="Run" if single else "Runs",
        title=first_name if single else f"{len(runs)} runs",
        says=[_sentence(first)] if single else [],
        notices=notices,
        glance=_glance(first, costs.get(first_name)) if single else [],
        sections=[section for section in sections if section is not None],
        refresh_s=refresh_s,
    )


def _drawn(runs: Mapping[str, RecordedRun]) -> list[Section]:
    """Return the sections with pictures, for runs that have closed at least one round."""
    names = ["timeline", "finished_jobs", "losses", "worker_seconds"]
    if not any(len(run.models()["loss"]) for run in runs.values()):
        names.remove("losses")
    heat_map = PICTURES["heat_map"]
    stragglers: list[tuple[Picture, Any]] = [
        (heat_map, run)
        if len(runs) == 1
        else (replace(heat_map, title=f"{heat_map.title}: {name}", wide=False), run)
        for name, run in runs.items()
    ]
    stragglers += [(PICTURES[name], runs) for name in ("bursts", "completion_times")]
    return [
        Section(title="The rounds", pictures=[(PICTURES[name], runs) for name in names]),
        Section(title="Who straggled", pictures=stragglers),
    ]


def _sentence(run: RecordedRun) -> str:
    rounds = run.rounds()
    ended = f"it ended: {run.outcome}" if run.outcome is not None else "it has not ended yet"
    began = f", started {_moment(run.started_at)}" if run.started_at else ""
    return (
        f"{run.scheme or 'An unknown scheme'} on {run.workers:,} workers{began}; after "
        f"{len(rounds['round']):,} rounds {ended}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunTotals:
    """The totals of a run."""

    seconds: float
    rounds: int
    jobs: int
    waited_out: int
    straggling: float  # fraction of all tasks
    failed: int
    worker_s: float

    @classmethod
    def of(cls, run: RecordedRun) -> _RunTotals:
        rounds, answers, jobs = run.rounds(), run.answers(), run.jobs()
        closed = len(rounds["round"])
        took_s = answers["took_s"].astype(np.float64)
        return cls(
            seconds=float(rounds["closed_s"].max()) if closed else 0.0,
            rounds=closed,
            jobs=len(jobs["job"]),
            waited_out=int(np.count_nonzero(rounds["waited_out"])),
            straggling=float(rounds["stragglers"].sum() / rounds["workers"].sum())
            if closed
            else 0.0,
            failed=int(np.count_nonzero(answers["outcome"] == "failed")),
            worker_s=float(np.nansum(took_s)),
        )

    @property
    def jobs_per_minute(self) -> float:
        return 60 * self.jobs / self.seconds if self.seconds else float("nan")


def _glance(run: RecordedRun, cost: str | None) -> list[Tile]:
    totals = _RunTotals.of(run)
    tiles = [
        Tile(name="time", value=_duration(totals.seconds), about="until the last round closed"),
        Tile(name="jobs finished", value=totals.jobs, about="gradients decoded"),
        Tile(name="jobs per minute", value=totals.jobs_per_minute),
        Tile(name="rounds", value=totals.rounds),
        Tile(
            name="waited out",
            value=totals.waited_out,
            unit="rounds",
            about="kept open for answers that a job needs",
        ),
        Tile(
            name="stragglers",
            value=percent(totals.straggling),
            about="of all workers, each round",
        ),
        Tile(name="failed tasks", value=totals.failed),
        Tile(name="worker time", value=_duration(totals.worker_s), about="of all tasks together"),
    ]
    if losses := _last_losses(run):
        best = min(losses, key=lambda name: losses[name])
        about = f"the latest loss of {best}"
        tiles.append(Tile(name="lowest loss", value=losses[best], about=about))
    if cost is not None:
        tiles.append(Tile(name="cost", value=cost))
    return tiles


def _moment(text: str) -> str:
    """Return an ISO 8601 time in a more readable form; return any other text unchanged."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment:%Y-%m-%d %H:%M %Z}".strip()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _last_losses(run: RecordedRun) -> dict[str, float]:
    """Return the latest finite loss of each model."""
    table = run.models()
    finite = np.isfinite(table["loss"].astype(np.float64))
    order = np.argsort(table["step"][finite], kind="stable")
    names, losses = table["model"][finite][order], table["loss"][finite][order]
    return dict(zip(names.tolist(), losses.astype(np.float64).tolist(), strict=True))


def _compared(runs: Mapping[str, RecordedRun], costs: Mapping[str, str]) -> Section:
    heading = [
        "run", "scheme", "workers", "ended", "time, s", "rounds", "waited out", "jobs",
        "jobs per minute", "stragglers", "failed tasks", "worker-seconds", "cost",
    ]  # fmt: skip
    rows = []
    for name, run in runs.items():
        totals = _RunTotals.of(run)
        ended = "not yet" if run.outcome is None else run.outcome
        rows.append(
            (name, run.scheme, run.workers, ended, totals.seconds, totals.rounds,
             totals.waited_out, totals.jobs, totals.jobs_per_minute, percent(totals.straggling),
             totals.failed, totals.worker_s, costs.get(name, "–"))
        )  # fmt: skip
    return Section(title="At a glance", table=PageTable(heading, rows))


# ---- configuration and events --------------------------------------------------------------------


def _configuration(folder: Path, notices: list[str]) -> dict[str, str]:
    """Return the main settings of a run. If they cannot be read, add a notice and return {}."""
    try:
        values = read_toml(folder / "config.toml")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        notices.append(f"The configuration is unknown: config.toml: {one_line(why)}.")
        return {}
    settings: dict[str, str] = {name: _short(values[name]) for name in _SETTINGS if name in values}
    models = values.get("models")
    if isinstance(models, list):
        for place, model in enumerate(models[:_MOST_MODELS]):
            if isinstance(model, dict):
                about = [f"{key} {_short(model[key])}" for key in _MODEL_SETTINGS if key in model]
                settings[f"model {_short(model.get('name', place))}"] = ", ".join(about)
        if len(models) > _MOST_MODELS:
            settings["more models"] = f"{len(models) - _MOST_MODELS:,}; config.toml has all"
    return settings


def _short(value: Any) -> str:
    return one_line(value, limit=_LONGEST)


def _settings(configurations: Mapping[str, Mapping[str, str]]) -> Section | None:
    """Return the configuration of a run, or the settings in which several runs differ."""
    if len(configurations) == 1:
        (settings,) = configurations.values()
        return Section(title="Configuration", facts=settings) if settings else None
    keys = dict.fromkeys(key for settings in configurations.values() for key in settings)
    rows = [
        (key, *values)
        for key in keys
        if len(set(values := [each.get(key, "–") for each in configurations.values()])) > 1
    ]
    title = "Differences of the configurations"
    if not rows:
        return Section(title=title, says=["None in the settings that are shown here."])
    return Section(title=title, table=PageTable(["", *configurations], rows))


def _events(name: str, run: RecordedRun) -> Section | None:
    notices = run.notices()
    total = len(notices["kind"])
    if not total:
        return None
    last = slice(max(0, total - _MOST_NOTICES), None)
    says = [f"The last {_MOST_NOTICES} of {total:,}."] if total > _MOST_NOTICES else []
    rows = list(zip(*(notices[key][last] for key in ("at_s", "kind", "text")), strict=True))
    title = "Other events" + (f": {name}" if name else "")
    return Section(title=title, says=says, table=PageTable(["at, s", "what", ""], rows))


# ---- watching ------------------------------------------------------------------------------------


def watch(
    folder: Path,
    make: Callable[[], bool],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call ``make`` each time the log of a run has grown, until ``make`` returns True.

    The first call is immediate. The log grows when a round closes. The pause between two calls is
    at least one second, and at least four times the duration of the last call, because the page of
    a longer run takes longer to make.

    Raises
    ------
    ParameterError
        If the log has disappeared.
    """
    size = _size(folder)
    while True:
        began = clock()
        if make():
            return
        sleep(max(_PAUSE_S, _PAUSE_RATIO * (clock() - began)))
        drawn = size
        while (size := _size(folder)) == drawn:
            sleep(_PAUSE_S)


def _size(folder: Path) -> int:
    try:
        return (folder / LOG).stat().st_size
    except OSError as error:
        raise no_run(folder, f"{LOG}: {error.strerror}") from None

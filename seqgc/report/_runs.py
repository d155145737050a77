"""The page of runs: what each was and came to, and what its rounds waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from seqgc._bounded import read_toml
from seqgc.errors import one_line
from seqgc.report._elements import number, percent, rows_table
from seqgc.report._gallery import delay_pictures, heat_map, run_pictures
from seqgc.report._page import Figure, Page, Section
from seqgc.runs import RecordedRun

__all__ = ["run_page"]

_MOST_NOTICES: Final = 40
_MOST_MODELS: Final = 12
_LONGEST: Final = 120
_SHOWN: Final = (
    "scheme", "workers", "steps", "jobs_per_round", "mu", "wait_out", "timeout_s", "max_attempts",
    "probe", "retune", "backend", "payload", "precision", "stale", "audit", "max_usd",
)  # fmt: skip
_OF_A_MODEL: Final = "module", "data", "optimizer", "lr", "batch_size"


def run_page(
    runs: Mapping[str, RecordedRun],
    *,
    costs: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    refresh_s: int | None = None,
) -> Page:
    """Return the page of runs by name, one or several.

    ``costs`` are what each has cost, in words; ``notices`` are sentences on what is not known;
    ``refresh_s`` is for a page that is written again while its run goes on.
    """
    notices = [*notices]
    for name, run in runs.items():
        notices += [f"{name}: {gap}" if len(runs) > 1 else gap for gap in run.gaps]
    configurations = {name: _configuration(run.path, notices) for name, run in runs.items()}
    closed = {name: run for name, run in runs.items() if len(run.rounds()["round"])}
    sections: list[Section | None] = []
    if len(runs) > 1:
        sections.append(_compared(runs, costs or {}))
    if closed:
        alone = len(closed) == 1
        title = "Each worker in each round"
        heat_maps = [
            heat_map(run, title=title if alone else f"{title}: {name}", wide=alone)
            for name, run in closed.items()
        ]
        sections += [
            Section(title="The rounds", pictures=run_pictures(closed)),
            Section(title="Who straggled", pictures=[*heat_maps, *delay_pictures(closed)]),
        ]
    else:
        notices.append("No round has closed: there is nothing to draw yet.")
    sections.append(_settings(configurations))
    sections += [_happened(name if len(runs) > 1 else "", run) for name, run in runs.items()]
    (first_name, first), *_ = runs.items()
    single = len(runs) == 1
    return Page(
        kind="Run" if single else "Runs",
        title=first_name if single else f"{len(runs)} runs",
        says=[_sentence(first)] if single else [],
        notices=notices,
        glance=_glance(first, (costs or {}).get(first_name)) if single else [],
        sections=[section for section in sections if section is not None],
        refresh_s=refresh_s,
    )


def _sentence(run: RecordedRun) -> str:
    rounds = run.rounds()
    ended = f"it ended: {run.outcome}" if run.outcome is not None else "it has no end yet"
    began = f", begun {_moment(run.started_at)}" if run.started_at else ""
    return (
        f"{run.scheme or 'A scheme that is not known'} on {run.workers:,} workers{began}; after "
        f"{len(rounds['round']):,} rounds {ended}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """What a run came to."""

    seconds: float
    rounds: int
    jobs: int
    waited_out: int
    straggling: float  # the share of all tasks
    failed: int
    worker_s: float

    @classmethod
    def of(cls, run: RecordedRun) -> _Sums:
        rounds, answers, jobs = run.rounds(), run.answers(), run.jobs()
        closed = len(rounds["round"])
        took_s = answers["took_s"].astype(np.float64)
        return cls(
            seconds=float(rounds["closed_s"].max()) if closed else 0.0,
            rounds=closed,
            jobs=len(jobs["job"]),
            waited_out=int(np.count_nonzero(rounds["waited_out"])),
            straggling=float(rounds["stragglers"].mean()) / run.workers if closed else 0.0,
            failed=int(np.count_nonzero(answers["outcome"] == "failed")),
            worker_s=float(np.nansum(took_s)),
        )

    @property
    def jobs_per_minute(self) -> float:
        return 60 * self.jobs / self.seconds if self.seconds else float("nan")


def _glance(run: RecordedRun, cost: str | None) -> list[Figure]:
    sums = _Sums.of(run)
    losses = _last_losses(run)
    figures = [
        Figure(name="time", value=_duration(sums.seconds), about="until the last round closed"),
        Figure(name="jobs finished", value=sums.jobs, about="gradients decoded"),
        Figure(name="jobs per minute", value=sums.jobs_per_minute),
        Figure(name="rounds", value=sums.rounds),
        Figure(
            name="waited out",
            value=sums.waited_out,
            unit="rounds",
            about="kept open for answers that a job needs",
        ),
        Figure(
            name="stragglers",
            value=percent(sums.straggling),
            about="of all workers, each round",
        ),
        Figure(name="failed tasks", value=sums.failed),
        Figure(name="worker time", value=_duration(sums.worker_s), about="of all tasks together"),
    ]
    if losses:
        best = min(losses, key=lambda name: losses[name])
        figures.append(
            Figure(name="lowest loss", value=losses[best], about=f"the latest of {best}")
        )
    if cost is not None:
        figures.append(Figure(name="cost", value=cost))
    return figures


def _moment(text: str) -> str:
    """Return a moment of ISO 8601 as people write it, or whatever the text is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{moment:%Y-%m-%d %H:%M %Z}".strip()


def _duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _last_losses(run: RecordedRun) -> dict[str, float]:
    """Return each model's latest loss that is a number."""
    table = run.models()
    known = np.isfinite(table["loss"].astype(np.float64))
    order = np.argsort(table["step"][known], kind="stable")
    names, losses = table["model"][known][order], table["loss"][known][order]
    return dict(zip(names.tolist(), losses.astype(np.float64).tolist(), strict=True))


def _compared(runs: Mapping[str, RecordedRun], costs: Mapping[str, str]) -> Section:
    heading = [
        "run", "scheme", "workers", "ended", "time, s", "rounds", "waited out", "jobs",
        "jobs per minute", "stragglers", "failed tasks", "worker-seconds", "cost",
    ]  # fmt: skip
    rows = []
    for name, run in runs.items():
        sums = _Sums.of(run)
        ended = "not yet" if run.outcome is None else run.outcome
        rows.append(
            (name, run.scheme, run.workers, ended, sums.seconds, sums.rounds, sums.waited_out,
             sums.jobs, sums.jobs_per_minute, percent(sums.straggling), sums.failed, sums.worker_s,
             costs.get(name, "–"))
        )  # fmt: skip
    return Section(title="At a glance", table=rows_table(heading, rows))


# ---- what was asked for, and what happened besides -----------------------------------------------


def _configuration(folder: Path, notices: list[str]) -> dict[str, str]:
    """Return the main lines of a run's configuration; of one that cannot be read, none."""
    try:
        values = read_toml(folder / "config.toml")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        notices.append(f"What was asked for is not known: config.toml: {one_line(why)}.")
        return {}
    lines: dict[str, str] = {name: _said(values[name]) for name in _SHOWN if name in values}
    models = values.get("models")
    if isinstance(models, list):
        for place, model in enumerate(models[:_MOST_MODELS]):
            if isinstance(model, dict):
                name = one_line(model.get("name", place), limit=_LONGEST)
                about = [f"{key} {_said(model[key])}" for key in _OF_A_MODEL if key in model]
                lines[f"model {name}"] = ", ".join(about)
        if len(models) > _MOST_MODELS:
            lines["more models"] = f"{len(models) - _MOST_MODELS:,}; config.toml has all"
    return lines


def _said(value: Any) -> str:
    return one_line(value, limit=_LONGEST)


def _settings(configurations: Mapping[str, Mapping[str, str]]) -> Section | None:
    """Return what was asked for; of several runs, in what they differ."""
    if len(configurations) == 1:
        (lines,) = configurations.values()
        return Section(title="What was asked for", facts=lines) if lines else None
    keys = dict.fromkeys(key for lines in configurations.values() for key in lines)
    rows = [
        (key, *values)
        for key in keys
        if len(set(values := [lines.get(key, "–") for lines in configurations.values()])) > 1
    ]
    title = "In what the configurations differ"
    if not rows:
        return Section(title=title, says=["In nothing of what is shown here."])
    return Section(title=title, table=rows_table(["", *configurations], rows))


def _happened(name: str, run: RecordedRun) -> Section | None:
    notices = run.notices()
    total = len(notices["kind"])
    if not total:
        return None
    shown = slice(max(0, total - _MOST_NOTICES), None)
    says = [f"The last {_MOST_NOTICES} of {total:,}."] if total > _MOST_NOTICES else []
    rows = zip(*(notices[key][shown] for key in ("at_s", "kind", "text")), strict=True)
    title = "What happened besides" + (f": {name}" if name else "")
    return Section(title=title, says=says, table=rows_table(["at, s", "what", ""], rows))

"""The page of a comparison: the best defences, the table of all defences, and the conditions."""

from __future__ import annotations

from typing import Final

from seqgc.comparison import Comparison, Row, interval_words
from seqgc.plot import PICTURES
from seqgc.plot.tables import number
from seqgc.report._page import Page, PageTable, Section, Tile

__all__ = ["comparison_page"]

_KINDS: Final = (
    "Exact gradients are those of the whole batch. Approximate gradients lack the points of the "
    "slowest workers. Stale gradients are taken at weights that lack the latest steps."
)
_COLUMNS: Final = (
    "A clock is one batch of data; a bundle is the models whose gradients are one job. Clocks, "
    "seconds and dollars are counted until all models reach the target, all at one learning rate "
    "({lr}, the best for exact gradients); each is the median of the seeds. Between: {interval}. "
    "Best: the seconds at each defence's own best rate. A rate with * is the smallest or largest "
    "that was tried: a better one may lie beyond. The bound is the time of a master that knows all "
    "delays in advance. Staleness is the average number of clocks whose updates the weights of a "
    "task lack. Wasted is the work asked of workers beyond one batch per clock, in batches."
)


def comparison_page(result: Comparison, *, name: str) -> Page:
    """Return the page of a comparison; ``name`` is the title, the name of the delays."""
    lr = f"{result.trial.rate(result.lr)}{'*' if result.lr_is_edge else ''}"
    columns = _COLUMNS.format(lr=lr, interval=interval_words(result.trial.seeds or 1))
    picture = PICTURES["comparison"], result
    return Page(
        kind="Comparison",
        title=name,
        says=[result.premise, result.advice],
        notices=_missing(result),
        glance=_glance(result),
        sections=[
            Section(title="Time and cost", says=[_KINDS], pictures=[picture]),
            Section(title="Each defence", says=[columns], table=_table(result)),
            Section(title="How it was compared", facts=_facts(result)),
        ],
    )


def _missing(result: Comparison) -> list[str]:
    notices = [f"{row.label}: {row.failed}." for row in result.rows if row.failed]
    names = [row.label for row in result.rows if row.seconds_to_target is None and not row.failed]
    if names:
        most = result.trial.most
        notices.append(f"Not at the target within {most} clocks of a model: {'; '.join(names)}.")
    return notices


def _glance(result: Comparison) -> list[Tile]:
    """Return the tiles: the best defence of each kind, the cheapest one, and the bound."""
    reached = [row for row in result.rows if row.seconds_to_target is not None]
    best: dict[str, Row] = {}
    for row in reached:
        best.setdefault(row.kind, row)
    tiles = [
        Tile(name=f"soonest, {kind}", value=row.seconds_to_target, unit="s", about=row.label)
        for kind, row in best.items()
    ]
    cheapest = min(reached, key=lambda row: row.usd or 0.0, default=None)
    if cheapest is not None:
        dollars = f"${number(cheapest.usd)}"
        tiles.append(Tile(name="cheapest", value=dollars, about=cheapest.defence))
    tiles.append(Tile(name="bound", value=result.bound_s, unit="s", about="for a clock of data"))
    return tiles


def _table(result: Comparison) -> PageTable:
    heading = (
        "defence", "gradients", "bundle", "s per clock", "times the bound", "clocks", "seconds",
        "between", "$", "best, s", "at rate", "staleness", "wasted",
        "vectors received", "vectors sent",
    )  # fmt: skip
    rows = [
        (
            row.label,
            row.kind,
            row.jobs_per_round,
            row.seconds_per_clock,
            row.over_bound,
            row.clocks_to_target,
            row.seconds_to_target,
            row.seconds_between and " to ".join(map(number, row.seconds_between)),
            row.usd,
            row.best_seconds,
            row.best_lr and f"{number(row.best_lr)}{'*' if row.best_is_edge else ''}",
            row.staleness_mean,
            row.wasted,
            row.received,
            row.sent,
        )
        for row in result.rows
    ]
    return PageTable(heading, rows)


def _facts(result: Comparison) -> dict[str, str]:
    trial = result.trial
    stay = (
        "resident, for the whole run" if result.workers == "resident" else "functions, one per task"
    )
    return {
        "workers": f"{result.n:,}: {stay}",
        "delays": f"read as {result.reading}",
        **({} if result.alpha is None else {"alpha": f"{number(result.alpha)} s per unit of load"}),
        "models": f"{result.models:,}, bundle by bundle in turn",
        "timed": f"{result.clocks:,} clocks of data",
        "trained": f"{trial.what}, in virtual time",
        "target": f"a loss of {number(trial.target)}",
        **({"batch": f"{trial.batch:,} points"} if trial.plan is None else {}),
        "learning rates": trial.rate(*(trial.lrs or ())),
        "seeds": f"{trial.seeds or 1:,}; the page shows medians",
    }

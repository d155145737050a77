"""The page of a comparison: what to take, what each defence comes to, and how that was found."""

from __future__ import annotations

from typing import Final

from seqgc.comparison import Comparison, Row, interval_words
from seqgc.report._elements import Element, number, rows_table
from seqgc.report._gallery import comparison_picture
from seqgc.report._page import Figure, Page, Section

__all__ = ["comparison_page"]

_KINDS: Final = (
    "Exact gradients are those of the whole batch. Approximate ones lack the slowest workers' "
    "points. Stale ones are of weights that lack the latest steps."
)
_COLUMNS: Final = (
    "A clock is a batch of data, a bundle the models whose gradients are one job. Clocks, seconds "
    "and dollars are those until all models are at the target, all at one learning rate ({lr}, "
    "the best for exact gradients), medians of the seeds. Between: {interval}. Best: seconds at "
    "each defence's own best rate; a rate with * is the smallest or largest that was tried, and a "
    "better one may lie beyond. The bound is the "
    "time of a master who knows all delays beforehand. Staleness is how many clocks' updates the "
    "weights of a task lack, on average. Wasted is what workers were asked for beyond one batch a "
    "clock, in batches."
)


def comparison_page(found: Comparison, *, name: str) -> Page:
    """Return the page of what `seqgc.compare` has found on the delays of this ``name``."""
    return Page(
        kind="Comparison",
        title=name,
        says=[found.premise, found.advice],
        notices=_missing(found),
        glance=_glance(found),
        sections=[
            Section(title="Time and cost", says=[_KINDS], pictures=[comparison_picture(found)]),
            Section(
                title="Each defence",
                says=[_columns(found)],
                table=_table(found),
            ),
            Section(title="How it was compared", facts=_facts(found)),
        ],
    )


def _columns(found: Comparison) -> str:
    lr = f"{found.trial.rate(found.lr)}{'*' if found.lr_is_edge else ''}"
    return _COLUMNS.format(lr=lr, interval=interval_words(found.trial.seeds or 1))


def _missing(found: Comparison) -> list[str]:
    notices = [f"{row.label}: {row.failed}." for row in found.rows if row.failed]
    names = [row.label for row in found.rows if row.seconds_to_target is None and not row.failed]
    if names:
        most = found.trial.most
        notices.append(f"Not at the target within {most} clocks of a model: {'; '.join(names)}.")
    return notices


def _glance(found: Comparison) -> list[Figure]:
    """Return the tiles: the best of each kind, and the cheapest."""
    best: dict[str, Row] = {}
    there = [row for row in found.rows if row.seconds_to_target is not None]
    for row in there:
        best.setdefault(row.kind, row)
    tiles = [
        Figure(name=f"soonest, {kind}", value=row.seconds_to_target, unit="s", about=row.label)
        for kind, row in best.items()
    ]
    cheapest = min(there, key=lambda row: row.usd or 0.0, default=None)
    if cheapest is not None:
        dollars = f"${number(cheapest.usd)}"
        tiles.append(Figure(name="cheapest", value=dollars, about=cheapest.defence))
    tiles.append(Figure(name="bound", value=found.bound_s, unit="s", about="for a clock of data"))
    return tiles


def _table(found: Comparison) -> Element:
    heading = (
        "defence", "gradients", "bundle", "s a clock", "times the bound", "clocks", "seconds",
        "between", "$", "best, s", "at rate", "staleness", "wasted",
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
            _between(row),
            row.usd,
            row.best_seconds,
            _at_rate(row),
            row.staleness_mean,
            row.wasted,
        )
        for row in found.rows
    ]
    return rows_table(heading, rows)


def _at_rate(row: Row) -> str | None:
    edge = "*" if row.best_is_edge else ""
    return None if row.best_lr is None else f"{number(row.best_lr)}{edge}"


def _between(row: Row) -> str | None:
    if row.seconds_between is None:
        return None
    least, most = map(number, row.seconds_between)
    return f"{least} to {most}"


def _facts(found: Comparison) -> dict[str, str]:
    trial = found.trial
    stay = "stay for the whole run" if found.workers == "resident" else "an invocation for a task"
    return {
        "workers": f"{found.n:,}: {stay}",
        "delays": f"read as {found.reading}",
        **({} if found.alpha is None else {"alpha": f"{number(found.alpha)} s per unit of load"}),
        "models": f"{found.models:,}, bundle by bundle in turn",
        "timed": f"{found.clocks:,} clocks of data",
        "trained": f"{trial.what}, in virtual time",
        "target": f"a loss of {number(trial.target)}",
        **({"batch": f"{trial.batch:,} points"} if trial.plan is None else {}),
        "learning rates": trial.rate(*(trial.lrs or ())),
        "seeds": f"{trial.seeds or 1:,}, of which medians count",
    }

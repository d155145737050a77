"""The page of an explanation: the verdict, the slow workers, and what would have been faster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from seqgc.explanation import Explanation
from seqgc.plot.tables import number, percent
from seqgc.report._page import Page, PageTable, Section, Tile

__all__ = ["explanation_page"]

_COST = (
    "The cost is the time that the run would have saved if the worker, phase or round had been "
    "typical. Costs do not add up: if two workers are equally slow, replacing one saves nothing."
)
_WHAT_IF = (
    "Each row is a replay of the recorded times, with the time of the master added. The interval "
    "is a block bootstrap over rounds, with random draws for the times of cancelled tasks."
)


def explanation_page(found: Explanation, *, name: str) -> Page:
    """Return the page of an explanation; ``name`` is the title, the name of the run or trace."""
    sections = [Section(title="Workers", says=[_COST], table=_table(found.by_worker))]
    if found.by_phase:
        sections.append(Section(title="Phases of a task", table=_table(found.by_phase)))
    if found.by_round:
        half = f"Half of the waiting is in {found.half_in_rounds} of {found.rounds} rounds."
        sections.append(
            Section(title="Rounds that cost most", says=[half], table=_table(found.by_round))
        )
    if found.counterfactuals:
        sections.append(
            Section(
                title="What the same run would have taken",
                says=[_WHAT_IF],
                table=_table(found.counterfactuals),
            )
        )
    if found.predictions:
        sections.append(Section(title="Predictions", table=_table(found.predictions)))
    return Page(
        kind="Explanation",
        title=name,
        says=found.verdict,
        notices=found.missing,
        glance=_glance(found),
        sections=sections,
    )


def _table(rows: Any) -> PageTable:
    listed = [asdict(row) for row in rows]
    heading = [name.replace("_s", ", s").replace("_", " ") for name in listed[0]]
    return PageTable(heading, [tuple(row.values()) for row in listed])


def _glance(found: Explanation) -> list[Tile]:
    tiles = [Tile(name="time", value=number(found.seconds), unit="s")]
    if found.agreement is not None:
        for name, seconds in (("waiting", found.waiting_s), ("master", found.master_s)):
            share = percent(seconds / found.seconds)
            tiles.append(Tile(name=name, value=number(seconds), unit="s", about=f"{share} of it"))
    best = min(
        (each for each in found.counterfactuals if each.what != "nobody slow"),
        key=lambda each: each.seconds,
        default=None,
    )
    if best is not None:
        about = f"{number(best.seconds)} s"
        tiles.append(Tile(name="fastest replayed", value=best.scheme, about=about))
    return tiles

"""Which pictures a page has: what each is called and shows, also to those who cannot see it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from seqgc import plot
from seqgc.plot import tables
from seqgc.ports import Table
from seqgc.profiles import DelayProfile
from seqgc.report._elements import number, percent
from seqgc.report._pictures import Picture
from seqgc.runs import RecordedRun

__all__ = ["delay_pictures", "run_pictures"]


def delay_pictures(data: DelayProfile | RecordedRun) -> list[Picture]:
    """Return the pictures of who straggled when, in a profile or in one run."""
    heat = tables.heat_map(data)
    return [
        Picture(
            title="Each worker in each round",
            caption="A column is a round, a row a worker; marked cells are stragglers.",
            alt=_heat_alt(heat),
            draw=lambda ax: plot.heat_map(data, ax=ax),
            table=heat,
            wide=True,
        )
    ]


def _heat_alt(heat: Table) -> str:
    straggling, slowest = heat["straggling"].astype(float), heat["slowest_s"].astype(float)
    first, last, worst = heat["round"][0], heat["round"][-1], int(np.nanargmax(straggling))
    known = slowest[np.isfinite(slowest)]
    most = f"{percent(float(straggling[worst]))} in round {heat['round'][worst]}"
    words = (
        f"Heat map, rounds {first} to {last}: {percent(float(np.nanmean(straggling)))} of all "
        f"cells straggle, at most {most}."
    )
    if not known.size:
        return words
    return f"{words} The slowest answer took {number(float(known.max()))} s."


def run_pictures(runs: Mapping[str, RecordedRun]) -> list[Picture]:
    """Return the pictures of what runs came to, over one another; each has closed a round."""
    line = tables.timeline(runs)
    return [
        Picture(
            title="What each round waited for",
            caption="A bar is as wide and high as its round was long; its colour is why it closed.",
            alt=_timeline_alt(line),
            draw=lambda ax: plot.timeline(runs, ax=ax),
            table=line,
            wide=True,
        )
    ]


def _timeline_alt(line: Table) -> str:
    reasons, counts = np.unique(line["reason"].astype(str), return_counts=True)
    why = ", ".join(f"{n:,} by {reason}" for reason, n in zip(reasons, counts, strict=True))
    longest = float(np.max(line["closed_s"] - line["began_s"]))
    rounds = f"{len(line['round']):,} rounds"
    return f"Timeline of {rounds}, closed {why}; the longest took {number(longest)} s."

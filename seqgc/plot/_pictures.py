"""The description of each picture: its title, caption, table, and text for screen readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from seqgc.plot import tables
from seqgc.plot._delays import bursts, completion_times, heat_map
from seqgc.plot._runs import finished_jobs, losses, timeline, worker_seconds
from seqgc.plot._searches import comparison, landscape, pareto, ratios
from seqgc.plot.tables import number, percent
from seqgc.ports import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PICTURES", "Picture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The description of a picture.

    ``draw`` draws the picture on the axes ``ax``. ``table`` returns the table of its data. ``alt``
    turns this table into a text for readers who cannot see the picture. A ``wide`` picture needs
    the full width of a page, and a ``high`` picture has many rows.
    """

    title: str
    caption: str
    draw: Callable[..., Axes]
    table: Callable[[Any], Table]
    alt: Callable[[Table], str]
    wide: bool = False
    high: bool = False


def _heat_map_alt(table: Table) -> str:
    straggling, worst = table["straggling"], int(np.nanargmax(table["straggling"]))
    words = (
        f"Heat map, rounds {table['round'][0]} to {table['round'][-1]}: "
        f"{percent(float(np.nanmean(straggling)))} of all cells straggle, at most "
        f"{percent(float(straggling[worst]))} in round {table['round'][worst]}."
    )
    if np.isfinite(table["slowest_s"]).any():
        words += f" The slowest answer took {_largest(table['slowest_s'])} s."
    return words


def _timeline_alt(table: Table) -> str:
    reasons, counts = np.unique(table["reason"].astype(str), return_counts=True)
    why = ", ".join(f"{n:,} by {reason}" for reason, n in zip(reasons, counts, strict=True))
    longest = _largest(table["closed_s"] - table["began_s"])
    return (
        f"Timeline of {len(table['round']):,} rounds, closed {why}; the longest took {longest} s."
    )


def _comparison_alt(table: Table) -> str:
    reached = np.isfinite(table["seconds_to_target"])
    words = f"Dots of {np.count_nonzero(reached)} defences"
    if reached.any():
        seconds = table["seconds_to_target"][reached]
        front = "; ".join(table["defence"][table["front"]].tolist())
        words += (
            f", from {number(seconds.min())} to {_largest(seconds)} s; no defence is both sooner "
            f"and cheaper than these: {front}"
        )
    return f"{words}."


def _landscape_alt(table: Table) -> str:
    best = int(np.argmax(table["best"]))
    scheme, parameter = table["scheme"][best], table["parameter"][best]
    return (
        "Heat map of run times by B, W and lam or s. "
        f"The winner is {scheme}, with {parameter} for lam or s."
    )


def _largest(column: np.ndarray) -> str:
    values = column[np.isfinite(column)]
    return number(values.max()) if values.size else "0"


PICTURES: Final[Mapping[str, Picture]] = {
    "heat_map": Picture(
        title="Each worker in each round",
        caption="A column is a round, a row a worker; marked cells are stragglers.",
        draw=heat_map,
        table=tables.heat_map,
        alt=_heat_map_alt,
        wide=True,
    ),
    "bursts": Picture(
        title="How long straggling lasts",
        caption="A burst is a worker's uninterrupted sequence of straggling rounds.",
        draw=bursts,
        table=tables.bursts,
        alt=lambda table: (
            "Bars: the number of bursts by their length in rounds, up to "
            f"{_largest(table['rounds'])}."
        ),
    ),
    "completion_times": Picture(
        title="How late answers are",
        caption="The fraction of all tasks that were answered within a number of seconds.",
        draw=completion_times,
        table=tables.completion_times,
        alt=lambda table: (
            "Rising curves of the fraction of tasks answered, up to "
            f"{percent(float(table['answered'].max(initial=0)))} at {_largest(table['seconds'])} s."
        ),
    ),
    "timeline": Picture(
        title="What each round waited for",
        caption=(
            "The width and height of a bar are the duration of a round; its colour says why the "
            "round closed."
        ),
        draw=timeline,
        table=tables.timeline,
        alt=_timeline_alt,
        wide=True,
    ),
    "finished_jobs": Picture(
        title="Jobs finished",
        caption="A job is one step of the models that share it, its gradient decoded.",
        draw=finished_jobs,
        table=tables.finished_jobs,
        alt=lambda table: (
            f"Rising curves: {_largest(table['jobs'])} jobs by {_largest(table['finished_s'])} s."
        ),
    ),
    "losses": Picture(
        title="Loss",
        caption="The loss of each model on its batch, before the step was taken.",
        draw=losses,
        table=tables.losses,
        alt=lambda table: (
            f"Curves of the losses of {len(set(table['model'].tolist()))} models over time."
        ),
    ),
    "worker_seconds": Picture(
        title="Load and cost",
        caption=(
            "Worker-seconds by the outcome of the tasks. Functions are billed for all of them."
        ),
        draw=worker_seconds,
        table=tables.worker_seconds,
        alt=lambda table: (
            f"Bars of worker-seconds: up to {_largest(table['total_s'])} s for one run."
        ),
    ),
    "landscape": Picture(
        title="The landscape",
        caption="Run time over the parameters of the best schemes; the winner is marked.",
        draw=landscape,
        table=tables.landscape,
        alt=_landscape_alt,
        wide=True,
        high=True,
    ),
    "ratios": Picture(
        title="Distance to the bound",
        caption=(
            "The run time of each scheme's best setting over the bound, the time of a master that "
            "knows all delays in advance."
        ),
        draw=ratios,
        table=tables.ratios,
        alt=lambda table: (
            f"Dots: from {number(table['ratio'].min())} to {_largest(table['ratio'])}."
        ),
        high=True,
    ),
    "pareto": Picture(
        title="Time and cost",
        caption=(
            "The bill in worker-seconds over the run time; no setting is both faster and cheaper "
            "than the settings on the line."
        ),
        draw=pareto,
        table=tables.pareto,
        alt=lambda table: (
            f"Dots of {len(table['setting']):,} settings and the line of the best of them."
        ),
        high=True,
    ),
    "comparison": Picture(
        title="Dollars over seconds to the target",
        caption="Both axes are logarithmic. No defence beats a ringed one in both time and cost.",
        draw=comparison,
        table=tables.comparison,
        alt=_comparison_alt,
        wide=True,
        high=True,
    ),
}
"""The description of each picture, by the name of the function that draws it."""

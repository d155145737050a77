"""Pictures of delays: who straggles when, in bursts how long, and how late."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.plot import tables
from seqgc.plot._canvas import (
    VERMILION,
    axes_for,
    color_bar,
    draw_steps,
    labelled,
    legend_above,
    plain_log,
)  # fmt: skip
from seqgc.plot._sources import Delays, Source, grid_of, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bursts", "completion_times", "heat_map"]

_YELLOW: Final = "#F0E442"  # among blue cells, not on the page's ground
_LONG_TAIL: Final = 8.0  # times the median: an axis of seconds is logarithmic then
_LEAST_S: Final = 1e-6
_COLOURED: Final = 0.99  # share of cells whose colours differ; the slowest have one colour


def heat_map(data: Source, *, ax: Axes | None = None, mu: float = 1.0) -> Axes:
    """Draw how long each worker took in each round, with the stragglers marked (Fig. 1a).

    Of a profile stragglers are those later than ``(1 + mu)`` times their round's first answer; of a
    run, those that its rounds closed without, and ``mu`` is not used. Where there are more rounds
    or workers than a picture has room for, a cell shows the slowest of several, and is marked as
    deep as the share of them that straggled. Colours end where 99 in 100 cells do, so that one
    stall of many seconds does not make all others pale.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 3.0, 1.1]])
    >>> heat_map(profile).get_xlabel()
    'round'
    """
    grid = grid_of(data, mu=mu)
    ax = axes_for(ax)
    from matplotlib.colors import LogNorm, to_rgba
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    show = partial(
        ax.imshow,
        extent=(grid.first - 0.5, grid.last + 0.5, -0.5, grid.workers - 0.5),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    silent = np.isnan(grid.slowest_s)
    seconds = np.maximum(grid.slowest_s, _LEAST_S)
    coloured = seconds[~silent & (grid.straggling < 1)]  # the others are not seen
    low, high = np.quantile(coloured, (0.0, _COLOURED)) if coloured.size else (1.0, 1.0)
    span = float(low), max(float(high), 1.001 * float(low))
    above = coloured.size and coloured.max() > span[1]
    image = show(seconds.T, norm=LogNorm(*span), cmap="Blues")
    over = np.zeros((*grid.straggling.T.shape, 4))
    over[...] = to_rgba(VERMILION)
    over[..., 3] = np.nan_to_num(grid.straggling.T)
    unanswered = silent & (grid.straggling > 0)
    over[unanswered.T] = to_rgba(_YELLOW)
    show(over)
    ax.set_xlabel("round")
    ax.set_ylabel("worker")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    color_bar(ax, image, span=span, label="seconds to the answer", above=bool(above))
    entries = [("straggler", VERMILION)] * bool(((grid.straggling > 0) & ~silent).any())
    entries += [("straggler, no answer", _YELLOW)] * bool(unanswered.any())
    if entries:
        patches = [Patch(color=color) for _, color in entries]
        legend_above(ax, patches, [text for text, _ in entries])
    return ax


def bursts(data: Delays, *, ax: Axes | None = None, mu: float = 1.0) -> Axes:
    """Draw how many bursts of straggling lasted how many rounds (Fig. 1b).

    Stragglers are those of `heat_map`. Of several profiles or runs each has the share of its own
    bursts.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 5.0, 2.0], [4.0, 1.0, 1.0]])
    >>> bursts(profile).get_xlabel()
    'rounds that a burst of straggling lasted'
    """
    parts = {name: tables.bursts(each, mu=mu) for name, each in named(data).items()}
    ax = axes_for(ax)
    from matplotlib.ticker import MaxNLocator

    width = 0.8 / len(parts)
    column = "bursts" if len(parts) == 1 else "share"
    for place, (name, table) in enumerate(parts.items()):
        left = table["rounds"] - 0.4 + width * place
        ax.bar(left, table[column], width, align="edge", label=labelled(name))
    ax.set_xlabel("rounds that a burst of straggling lasted")
    ax.set_ylabel("bursts" if len(parts) == 1 else "share of the bursts")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlim(0.4, 0.6 + max(len(table["rounds"]) or 1 for table in parts.values()))
    tallest = max(float(table[column].max(initial=0)) for table in parts.values())
    if len(parts) == 1 and tallest > 50:
        plain_log(ax, "y")
        ax.set_ylim(bottom=0.7)
    if len(parts) > 1:
        legend_above(ax, *ax.get_legend_handles_labels())
    return ax


def completion_times(data: Delays, *, ax: Axes | None = None) -> Axes:
    """Draw which share of all tasks had been answered after so many seconds each (Fig. 1c).

    A run's tasks that nobody waited for to the end count as not answered, so its line may end below
    1. The axis of seconds is logarithmic where the slowest answer takes many times the median.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> completion_times(DelayProfile.from_times([[2.0, 1.0, 4.0, 3.0]])).get_ylabel()
    'share of tasks answered'
    """
    parts = {name: tables.completion_times(each) for name, each in named(data).items()}
    ax = axes_for(ax)
    lines = {
        name: (np.maximum(table["seconds"], _LEAST_S), table["answered"])
        for name, table in parts.items()
    }
    draw_steps(ax, lines)
    every = np.concatenate([seconds for seconds, _ in lines.values()])
    if every.size and every.max() > _LONG_TAIL * np.median(every):
        plain_log(ax, "x")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("seconds from task to answer")
    ax.set_ylabel("share of tasks answered")
    return ax

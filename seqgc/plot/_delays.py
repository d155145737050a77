"""Pictures of delays: each worker in each round, bursts of straggling, completion times."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.plot import tables
from seqgc.plot._axes import (
    VERMILION,
    axes_for,
    color_bar,
    draw_steps,
    labelled,
    legend_above,
    plain_log,
)  # fmt: skip
from seqgc.plot.tables import Delays, Source, cells_of, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bursts", "completion_times", "heat_map"]

_YELLOW: Final = "#F0E442"  # used only between blue cells, not on the background of a page
_LONG_TAIL: Final = 8.0  # slowest answer over the median, beyond which seconds are logarithmic
_LEAST_S: Final = 1e-6
_COLOURED: Final = 0.99  # quantile at which the colour scale ends


def heat_map(data: Source, *, ax: Axes | None = None, mu: float = 1.0) -> Axes:
    """Draw the seconds of each worker in each round, with the stragglers marked (Fig. 1a).

    In a profile, a worker straggles if it answers later than ``(1 + mu)`` times the first answer of
    the round. In a run, a worker straggles if the round closed without its answer; ``mu`` is not
    used. If there are more rounds or workers than pixels, a cell stands for several answers: it
    shows the seconds of the slowest answer, and the opacity of its mark is the fraction of
    stragglers. The colour scale ends at the 99th percentile, so that one long stall does not make
    all other cells pale.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 3.0, 1.1]])
    >>> heat_map(profile).get_xlabel()
    'round'
    """
    cells = cells_of(data, mu=mu)
    ax = axes_for(ax)
    from matplotlib.colors import LogNorm, to_rgba
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    show = partial(
        ax.imshow,
        extent=(cells.first - 0.5, cells.last + 0.5, -0.5, cells.workers - 0.5),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    silent = np.isnan(cells.slowest_s)
    seconds = np.maximum(cells.slowest_s, _LEAST_S)
    coloured = seconds[~silent & (cells.straggling < 1)]  # an opaque mark hides the other cells
    low, high = np.quantile(coloured, (0.0, _COLOURED)) if coloured.size else (1.0, 1.0)
    span = float(low), max(float(high), 1.001 * float(low))
    above = coloured.size and coloured.max() > span[1]
    image = show(seconds.T, norm=LogNorm(*span), cmap="Blues")
    marks = np.zeros((*cells.straggling.T.shape, 4))
    marks[...] = to_rgba(VERMILION)
    marks[..., 3] = np.nan_to_num(cells.straggling.T)
    unanswered = silent & (cells.straggling > 0)
    marks[unanswered.T] = to_rgba(_YELLOW)
    show(marks)
    ax.set_xlabel("round")
    ax.set_ylabel("worker")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    color_bar(ax, image, span=span, label="seconds to the answer", above=bool(above))
    entries = [("straggler", VERMILION)] * bool(((cells.straggling > 0) & ~silent).any())
    entries += [("straggler, no answer", _YELLOW)] * bool(unanswered.any())
    if entries:
        patches = [Patch(color=color) for _, color in entries]
        legend_above(ax, patches, [text for text, _ in entries])
    return ax


def bursts(data: Delays, *, ax: Axes | None = None, mu: float = 1.0) -> Axes:
    """Draw the number of bursts of straggling by their length in rounds (Fig. 1b).

    Stragglers are defined as in `heat_map`. If there are several profiles or runs, the bars show
    fractions of all bursts instead of numbers.

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
        edges = table["rounds"] - 0.4 + width * place
        ax.bar(edges, table[column], width, align="edge", label=labelled(name))
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
    """Draw the fraction of all tasks that were answered within a number of seconds (Fig. 1c).

    A task of a run counts as unanswered if the run gave it up, so the curve may end below 1. The
    axis of seconds is logarithmic if the slowest answer took many times the median.

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
    seconds = np.concatenate([each for each, _ in lines.values()])
    if seconds.size and seconds.max() > _LONG_TAIL * np.median(seconds):
        plain_log(ax, "x")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("seconds from task to answer")
    ax.set_ylabel("share of tasks answered")
    return ax

"""Pictures of delays: who straggles when, in bursts how long, and how late."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.plot._canvas import VERMILION, axes_for, legend_above
from seqgc.plot._sources import grid_of
from seqgc.profiles import DelayProfile
from seqgc.runs import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["heat_map"]

_YELLOW: Final = "#F0E442"  # among blue cells, not on the page's ground


def heat_map(data: DelayProfile | RecordedRun, *, ax: Axes | None = None, mu: float = 1.0) -> Axes:
    """Draw how long each worker took in each round, with the stragglers marked (Fig. 1a).

    Of a profile stragglers are those later than ``(1 + mu)`` times their round's first answer; of a
    run, those that its rounds closed without, and ``mu`` is not used. Where there are more rounds
    or workers than a picture has room for, a cell shows the slowest of several, and is marked as
    deep as the share of them that straggled.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 3.0, 1.1]])
    >>> heat_map(profile).get_xlabel()
    'round'
    """
    grid = grid_of(data, mu=mu)
    ax = axes_for(ax)
    from matplotlib.colors import LogNorm, to_rgba
    from matplotlib.patches import Patch
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    show = partial(
        ax.imshow,
        extent=(grid.first - 0.5, grid.last + 0.5, -0.5, grid.workers - 0.5),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    silent = np.isnan(grid.slowest_s)
    known = grid.slowest_s[~silent]
    low, high = (known.min(), known.max()) if known.size else (1.0, 1.0)
    norm = LogNorm(vmin=low, vmax=max(high, 1.001 * low))
    image = show(grid.slowest_s.T, norm=norm, cmap="Blues")
    over = np.zeros((*grid.straggling.T.shape, 4))
    over[...] = to_rgba(VERMILION)
    over[..., 3] = np.nan_to_num(grid.straggling.T)
    over[silent.T & (grid.straggling.T == 1)] = to_rgba(_YELLOW)
    show(over)
    ax.set_xlabel("round")
    ax.set_ylabel("worker")
    bar = ax.figure.colorbar(image, ax=ax, label="seconds to the answer", pad=0.02)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    handles, labels = [Patch(color=VERMILION)], ["straggler"]
    if (silent & (grid.straggling == 1)).any():
        handles, labels = [*handles, Patch(color=_YELLOW)], [*labels, "straggler, no answer"]
    legend_above(ax, handles, labels)
    return ax

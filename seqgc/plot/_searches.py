"""Pictures of what `seqgc.tune` found: the landscape, the ratio to the bound, time and bill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.plot import tables
from seqgc.plot._canvas import (
    BLUE,
    GREY,
    VERMILION,
    axes_for,
    color_bar,
    labelled,
    legend_above,
    thinned,
)  # fmt: skip
from seqgc.ports import FloatArray
from seqgc.search import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["landscape", "pareto", "ratios"]

_MOST_ROWS: Final = 40  # of a landscape
_MOST_TICKS: Final = 12
_NEAR: Final = 0.03  # of an axis: numbers of points this near would overlap
_MOST_NAMES: Final = 6  # of settings on the front that the legend names


def landscape(tuning: Tuning, *, ax: Axes | None = None) -> Axes:
    """Draw the run time over the parameters of the schemes, with the winner marked (Fig. 17).

    A row is a scheme with its B and W, a column its lam or s (those that a search has ranked, which
    need not be evenly spaced); a cell's colour is the shortest run time that the search ranked
    there, as a multiple of the winner's. Shown are the 40 best rows.
    See `seqgc.plot.tables.landscape` on how to have all of it ranked.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, tune
    >>> from seqgc.search import SearchSpace
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> rehearsal, space = Rehearsal(profile=profile, alpha=1.0), SearchSpace(families=("gc-rep",))
    >>> landscape(tune(rehearsal, space=space)).get_xlabel()
    'lam or s (blank: not ranked)'
    """
    table = tables.landscape(tuning)
    least = dict.fromkeys(table["scheme"], np.inf)
    for name, seconds in zip(table["scheme"], table["runtime_s"], strict=True):
        least[name] = min(least[name], seconds)
    best = set(sorted(least, key=least.__getitem__)[:_MOST_ROWS])
    names = [name for name in least if name in best]
    shown = np.array([name in best for name in table["scheme"]])
    row = np.array([names.index(name) for name in table["scheme"][shown]])
    values, column = np.unique(table["parameter"][shown], return_inverse=True)
    seconds = table["runtime_s"][shown]
    ax = axes_for(ax, height=1.8 + 0.18 * len(names), rows=True)
    from matplotlib.colors import LogNorm

    cells = np.full((len(names), len(values)), np.nan)
    cells[row, column] = seconds / tuning.best.runtime_s
    slowest = max(float(np.nanmax(cells)), 1.01)
    image = ax.imshow(
        cells, norm=LogNorm(1.0, slowest), cmap="cividis_r", aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    color_bar(ax, image, span=(1.0, slowest), label="run time over the winner's")
    winner = np.flatnonzero(table["best"][shown])[0]
    (mark,) = ax.plot(
        column[winner], row[winner], "o", markersize=11, markerfacecolor="none",
        markeredgecolor=VERMILION, markeredgewidth=2.2, linestyle="none",
    )  # fmt: skip
    ticks = thinned(len(values), most=_MOST_TICKS)
    ax.set_xticks(ticks, [str(value) for value in values[ticks]])
    ax.set_yticks(np.arange(len(names)), [labelled(name) for name in names], fontsize="small")
    ax.set_xlabel("lam or s (blank: not ranked)")
    legend_above(ax, [mark], [f"winner: {labelled(tuning.best.setting.label)}"])
    return ax


def ratios(tuning: Tuning, *, ax: Axes | None = None) -> Axes:
    """Draw how far the best setting of each scheme is from the clairvoyant bound.

    The bound is that for as many jobs a round, on the held-out rounds if there are any.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, tune
    >>> from seqgc.search import SearchSpace
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> rehearsal, space = Rehearsal(profile=profile, alpha=1.0), SearchSpace(families=("gc-rep",))
    >>> ratios(tune(rehearsal, space=space)).get_xlabel()
    'run time over the clairvoyant bound'
    """
    table = tables.ratios(tuning)
    rows = np.arange(len(table["ratio"]))
    ax = axes_for(ax, height=1.2 + 0.4 * len(rows), rows=True)
    ax.hlines(rows, 1.0, table["ratio"], colors=BLUE, linewidth=2)
    ax.plot(table["ratio"], rows, "o", color=BLUE)
    ax.axvline(1.0, color=GREY, linewidth=1)
    for row, ratio in zip(rows, table["ratio"], strict=True):
        ax.annotate(f"{ratio:.3g}", (ratio, row), (7, 0), textcoords="offset points", va="center")
    halves = [setting.partition(", mu=") for setting in table["setting"]]
    names = [f"{labelled(spec)}\n{labelled(f'mu={rule}')}" for spec, _, rule in halves]
    ax.set_yticks(rows, names, fontsize="small")
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlabel("run time over the clairvoyant bound")
    return ax


def pareto(tuning: Tuning, *, ax: Axes | None = None, usd_per_s: float = 0.0) -> Axes:
    """Draw run time and bill of what a search ranked, and those that nothing beats in both.

    With ``usd_per_s``, the price of a worker-second, the bill is in US dollars. `tune` finds the
    whole front with ``pareto=True``.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, tune
    >>> from seqgc.search import SearchSpace
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> rehearsal, space = Rehearsal(profile=profile, alpha=1.0), SearchSpace(families=("gc-rep",))
    >>> pareto(tune(rehearsal, space=space, pareto=True)).get_xlabel()
    'run time, seconds'
    """
    table = tables.pareto(tuning)
    ax = axes_for(ax, height=4.4)
    seconds, bill = table["runtime_s"], table["billed_worker_s"] * (usd_per_s or 1.0)
    front = table["front"]
    (others,) = ax.plot(seconds[~front], bill[~front], ".", color=GREY, rasterized=len(front) > 500)
    (line,) = ax.plot(
        seconds[front], bill[front], "o-", color=BLUE, drawstyle="steps-post", linewidth=1.4
    )
    handles, labels = [line], ["nothing is both faster and cheaper"]
    if not front.all():
        handles, labels = [*handles, others], [*labels, "also ranked"]
    places = np.flatnonzero(front)[:_MOST_NAMES]
    for number, place in enumerate(places, start=1):
        (mark,) = ax.plot([], [], linestyle="none", marker=f"${number}$", color=BLUE)
        handles, labels = [*handles, mark], [*labels, labelled(str(table["setting"][place]))]
    # Below its front there is nothing.
    for text, place in _numbers(seconds[places] / (np.ptp(seconds) or 1.0)).items():
        where = seconds[places[place]], bill[places[place]]
        ax.annotate(text, where, (0, -15), textcoords="offset points", ha="center")
    ax.margins(y=0.12)
    ax.set_xlabel("run time, seconds")
    ax.set_ylabel("bill, US dollars" if usd_per_s else "bill, worker-seconds")
    legend_above(ax, handles, labels, letters=72)
    return ax


def _numbers(x: FloatArray) -> dict[str, int]:
    """Return texts that number ascending points (m,), and of which point: neighbours share one.

    Examples
    --------
    >>> _numbers(np.array([0.0, 0.01, 0.9]))
    {'1, 2': 0, '3': 2}
    """
    begins = np.flatnonzero(np.diff(x, prepend=-np.inf) > _NEAR)
    groups = np.split(np.arange(1, len(x) + 1), begins[1:])
    texts = [", ".join(map(str, group)) for group in groups]
    return dict(zip(texts, begins.tolist(), strict=True))

"""Pictures of searches (`seqgc.tune`) and of comparisons (`seqgc.compare`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.comparison import Comparison
from seqgc.plot import tables
from seqgc.plot._axes import (
    BLUE,
    GREEN,
    GREY,
    VERMILION,
    axes_for,
    color_bar,
    labelled,
    legend_above,
    name_points,
    plain_log,
    thinned,
)  # fmt: skip
from seqgc.ports import FloatArray
from seqgc.schemes import Kind
from seqgc.search import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["comparison", "landscape", "pareto", "ratios"]

_MOST_ROWS: Final = 40  # for a landscape
_MOST_TICKS: Final = 12
_NEAR: Final = 0.03  # fraction of the axis within which the numbers of two points would overlap
_MOST_NAMES: Final = 6  # of settings on the front, in the legend
_MARKS: Final[Mapping[Kind, tuple[str, str, str]]] = {
    "exact": ("o", BLUE, "exact gradients"),
    "approximate": ("s", GREEN, "approximate"),
    "stale": ("^", VERMILION, "stale"),
}
_MARGIN: Final = 0.12  # fraction of an axis that is free for names, at either end
_FEW_TICKS: Final = 0.8  # an axis of fewer powers of ten needs more ticks than 1, 2 and 5
_LEAST_SPAN: Final = 0.15  # least span of an axis, in powers of ten


def landscape(tuning: Tuning, *, ax: Axes | None = None) -> Axes:
    """Draw the run time over the parameters of the schemes, with the winner marked (Fig. 17).

    A row is a scheme with its B and W; a column is a value of lam or s that the search ranked. The
    columns may be unevenly spaced. The colour of a cell is the shortest run time of its ranked
    settings, as a multiple of the winner's run time. Only the 40 best rows are drawn.
    `seqgc.plot.tables.landscape` explains how to rank the whole landscape.

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
    drawn = np.array([name in best for name in table["scheme"]])
    row = np.array([names.index(name) for name in table["scheme"][drawn]])
    values, column = np.unique(table["parameter"][drawn], return_inverse=True)
    seconds = table["runtime_s"][drawn]
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
    winner = np.flatnonzero(table["best"][drawn])[0]
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
    """Draw the run time of the best setting of each scheme over its clairvoyant bound.

    The bound is for the same number of jobs per round, on the held-out rounds if there are any.

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
    """Draw the run time and bill of each ranked setting, with a line along the Pareto front.

    If the price ``usd_per_s`` of a worker-second is given, the bill is in US dollars. `tune` finds
    the whole front if it is called with ``pareto=True``.

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
    # The numbers stand below the front, where there are no points.
    for text, place in _numbers(seconds[places] / (np.ptp(seconds) or 1.0)).items():
        where = seconds[places[place]], bill[places[place]]
        ax.annotate(text, where, (0, -15), textcoords="offset points", ha="center")
    ax.margins(y=0.12)
    ax.set_xlabel("run time, seconds")
    ax.set_ylabel("bill, US dollars" if usd_per_s else "bill, worker-seconds")
    legend_above(ax, handles, labels)
    return ax


def comparison(result: Comparison, *, ax: Axes | None = None) -> Axes:
    """Draw US dollars over seconds to the target for each defence, on logarithmic axes.

    The shape of a mark shows the kind of the defence's gradients. If no other defence is better in
    both time and cost, a defence has a ring; a line joins all rings. The legend counts the defences
    that did not reach the target.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, compare
    >>> from seqgc.comparison import Trial
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> rehearsal, trial = Rehearsal(profile=profile, alpha=1.0), Trial(lrs=(4.0,), seeds=1)
    >>> result = compare(rehearsal, ["uncoded", "gc-rep:s=1"], trial=trial)
    >>> comparison(result).get_ylabel()
    'US dollars'
    """
    table = tables.comparison(result)
    ax = axes_for(ax, height=4.4)
    reached = np.isfinite(table["seconds_to_target"])
    seconds, usd = table["seconds_to_target"][reached], table["usd"][reached]
    front = table["front"][reached]
    ax.set_xlabel(f"seconds to a loss of {result.trial.target:g}")
    ax.set_ylabel("US dollars")
    for axis in ("x", "y"):
        plain_log(ax, axis)
    if len(seconds):
        places = np.column_stack([_spread(ax, "x", seconds), _spread(ax, "y", usd)])
        corners = np.repeat(places[front], 2, axis=0)  # right, then down, to each next point
        line = np.column_stack([corners[1:, 0], corners[:-1, 1]])
        name_points(ax, places, table["defence"][reached].tolist(), line=line)
    (steps,) = ax.plot(
        seconds[front], usd[front], "o-", drawstyle="steps-post", color=GREY, linewidth=1.2,
        markersize=13, markerfacecolor="none", zorder=1,
    )  # fmt: skip
    handles, labels = [steps], ["unbeaten in time and cost"]
    for kind, (marker, color, words) in _MARKS.items():
        of = table["kind"][reached] == kind
        if of.any():
            (mark,) = ax.plot(seconds[of], usd[of], marker, color=color, markersize=7)
            handles, labels = [*handles, mark], [*labels, words]
    if not reached.all():
        (nothing,) = ax.plot([], [], linestyle="none")
        missing = int(np.count_nonzero(~reached))
        handles, labels = [*handles, nothing], [*labels, f"not at the target: {missing}"]
    legend_above(ax, handles, labels)
    return ax


def _spread(ax: Axes, which: str, values: FloatArray) -> FloatArray:
    """Set the limits of an axis with room for names, and return the places of its values (> 0).

    A place is a fraction of the axis.
    """
    from matplotlib.ticker import MaxNLocator, NullLocator

    logs = np.log10(values)
    middle, span = (logs.min() + logs.max()) / 2, max(float(np.ptp(logs)), _LEAST_SPAN)
    width = span / (1 - 2 * _MARGIN)
    low = middle - width / 2
    ax.set(**{f"{which}lim": (10**low, 10 ** (low + width))})
    if width < _FEW_TICKS:
        axis = ax.xaxis if which == "x" else ax.yaxis
        axis.set_major_locator(MaxNLocator(nbins=7))
        axis.set_minor_locator(NullLocator())
    places: FloatArray = (logs - low) / width
    return places


def _numbers(x: FloatArray) -> dict[str, int]:
    """Return the labels of ascending points (m,) numbered from 1, with the index of each point.

    Points that are close to each other share a label, which has the index of the first.

    Examples
    --------
    >>> _numbers(np.array([0.0, 0.01, 0.9]))
    {'1, 2': 0, '3': 2}
    """
    begins = np.flatnonzero(np.diff(x, prepend=-np.inf) > _NEAR)
    groups = np.split(np.arange(1, len(x) + 1), begins[1:])
    texts = [", ".join(map(str, group)) for group in groups]
    return dict(zip(texts, begins.tolist(), strict=True))

"""The picture of a comparison: what each defence costs, and when it is at the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.comparison import Comparison
from seqgc.plot import tables
from seqgc.plot._canvas import BLUE, GREEN, GREY, VERMILION, axes_for, legend_above, plain_log
from seqgc.plot._labels import name_points
from seqgc.ports import FloatArray
from seqgc.schemes import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["comparison"]

_MARKS: Final[Mapping[Kind, tuple[str, str, str]]] = {
    "exact": ("o", BLUE, "exact gradients"),
    "approximate": ("s", GREEN, "approximate"),
    "stale": ("^", VERMILION, "stale"),
}
_BESIDE: Final = 0.12  # of an axis, kept free on either side for names
_ROUND_TICKS: Final = 0.8  # powers of ten in which 1, 2 and 5 come at least twice
_LEAST_SPAN: Final = 0.15  # of an axis, in powers of ten: what is alike is not torn apart


def comparison(found: Comparison, *, ax: Axes | None = None) -> Axes:
    """Draw dollars over seconds to the target, of each defence, both axes logarithmic.

    A mark says of what kind a defence's gradients are. Ringed, and joined by a line, are those that
    no other beats in both. What does not reach the target is only counted, in the legend.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, compare
    >>> from seqgc.comparison import Trial
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> rehearsal, trial = Rehearsal(profile=profile, alpha=1.0), Trial(lrs=(4.0,), seeds=1)
    >>> found = compare(rehearsal, ["uncoded", "gc-rep:s=1"], trial=trial)
    >>> comparison(found).get_ylabel()
    'US dollars'
    """
    table = tables.comparison(found)
    ax = axes_for(ax, height=4.4)
    there = np.isfinite(table["seconds_to_target"])
    seconds, usd = table["seconds_to_target"][there], table["usd"][there]
    front = table["front"][there]
    ax.set_xlabel(f"seconds to a loss of {found.trial.target:g}")
    ax.set_ylabel("US dollars")
    for axis in ("x", "y"):
        plain_log(ax, axis)
    if len(seconds):
        places = np.column_stack([_spread(ax, "x", seconds), _spread(ax, "y", usd)])
        corners = np.repeat(places[front], 2, axis=0)  # right, then down, to each next one
        line = np.column_stack([corners[1:, 0], corners[:-1, 1]])
        name_points(ax, places, table["defence"][there].tolist(), line=line)
    (steps,) = ax.plot(
        seconds[front], usd[front], "o-", drawstyle="steps-post", color=GREY, linewidth=1.2,
        markersize=13, markerfacecolor="none", zorder=1,
    )  # fmt: skip
    handles, labels = [steps], ["unbeaten in time and cost"]
    for kind, (marker, color, words) in _MARKS.items():
        of = table["kind"][there] == kind
        if of.any():
            (mark,) = ax.plot(seconds[of], usd[of], marker, color=color, markersize=7)
            handles, labels = [*handles, mark], [*labels, words]
    if not there.all():
        (nothing,) = ax.plot([], [], linestyle="none")
        missing = int(np.count_nonzero(~there))
        handles, labels = [*handles, nothing], [*labels, f"not at the target: {missing}"]
    legend_above(ax, handles, labels, letters=130)
    return ax


def _spread(ax: Axes, which: str, values: FloatArray) -> FloatArray:
    """Give an axis limits around values > 0 with room for names; return where these then are."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    logs = np.log10(values)
    middle, span = (logs.min() + logs.max()) / 2, max(float(np.ptp(logs)), _LEAST_SPAN)
    whole = span / (1 - 2 * _BESIDE)
    low = middle - whole / 2
    ax.set(**{f"{which}lim": (10**low, 10 ** (low + whole))})
    if whole < _ROUND_TICKS:
        axis = ax.xaxis if which == "x" else ax.yaxis
        axis.set_major_locator(MaxNLocator(nbins=7))
        axis.set_minor_locator(NullLocator())
    places: FloatArray = (logs - low) / whole
    return places

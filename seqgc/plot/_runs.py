"""Pictures of runs: what each round waited for, jobs, losses, load and cost."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from seqgc.plot import tables
from seqgc.plot._canvas import (
    BLUE,
    GREEN,
    GREY,
    OLIVE,
    PURPLE,
    RED,
    SKY,
    VERMILION,
    axes_for,
    labelled,
    legend_above,
)  # fmt: skip
from seqgc.plot._sources import Runs, named
from seqgc.ports import FloatArray, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["timeline"]

_MOST_BARS: Final = 1000  # of a run
_PALE: Final = "#7F7F7F59"  # grey, a third of it

# Why a round closed when it did, as `RoundRecord` has it: what that means, and its colour.
REASONS: Final = {
    "everyone": ("everyone had answered", GREEN),
    "tolerance": ("enough had, at its closing time", BLUE),
    "wait-out": ("waited on for answers it needed", VERMILION),
    "exhausted": ("nobody else could answer", PURPLE),
    "timeout": ("reached its time limit", RED),
    "dealt": ("all pieces were in", SKY),
    "again": ("closed again, resumed", OLIVE),
    "idle": ("nothing to do", GREY),
}


def timeline(runs: Runs, *, ax: Axes | None = None) -> Axes:
    """Draw when each round began and closed, how long it took, and why it closed then.

    A bar is as wide and as high as its round was long; its grey part is before the first answer.
    Several runs are above one another, the first on top. Where there are more than 1000 rounds, a
    bar stands for several: it has the height and the reason of the longest.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, Setting, parse_scheme, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> setting = Setting(scheme=parse_scheme("gc:s=1", n=3))
    >>> timeline(replay(setting, Rehearsal(profile=profile, alpha=0.0))).get_xlabel()
    'seconds since the run began'
    """
    lanes = {name: _bars(tables.timeline(run)) for name, run in named(runs).items()}
    ax = axes_for(ax, height=2.2 + 0.9 * len(lanes))
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    longest = max((float(bars.height.max(initial=0)) for bars in lanes.values()), default=0) or 1.0
    shown: set[str] = set()
    for lane, bars in enumerate(reversed(lanes.values())):
        floor = 1.2 * longest * lane
        for reason in dict.fromkeys(bars.reason):
            shown.add(reason)
            _, color = REASONS.get(reason, (reason, GREY))
            of = bars.reason == reason
            spans = (bars.began, bars.answered, _PALE), (bars.answered, bars.closed, color)
            for left, right, face in spans:
                corners = _rectangles(left[of], right[of], floor, bars.height[of])
                ax.add_collection(PolyCollection(list(corners), facecolor=face, linewidth=0))
    ax.set_xlim(0, max(float(bars.closed.max(initial=0)) for bars in lanes.values()) or 1.0)
    ax.set_ylim(0, 1.2 * longest * len(lanes))
    ax.set_xlabel("seconds since the run began")
    if len(lanes) == 1:
        ax.set_ylabel("seconds of a round")
    else:
        floors = [1.2 * longest * lane for lane in range(len(lanes))]
        ax.set_yticks(floors, [labelled(name) for name in reversed(lanes)])
        ax.set_ylabel(f"height: seconds of a round,\nup to {longest:.3g}")
    entries = [("before the first answer", _PALE)]
    entries += [entry for reason, entry in REASONS.items() if reason in shown]
    entries += [("unknown", GREY)] * bool(shown - set(REASONS))
    legend_above(ax, [Patch(color=color) for _, color in entries], [text for text, _ in entries])
    return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bars:
    """Bars (bars,): seconds from left to right, their heights, and why their rounds closed."""

    began: FloatArray
    answered: FloatArray
    closed: FloatArray
    height: FloatArray
    reason: npt.NDArray[np.object_]


def _bars(table: Table) -> _Bars:
    """Return a bar for each round, or for as many in succession as there is room for."""
    began = table["began_s"]
    answered = table["first_answer_s"]
    closed = table["closed_s"]
    height, reason = closed - began, table["reason"]
    if len(began) > _MOST_BARS:
        edges = np.linspace(0, len(began), _MOST_BARS + 1).astype(np.intp)
        parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
        longest = np.array([part.start + height[part].argmax() for part in parts])
        first, last = edges[:-1], edges[1:] - 1
        paler = (answered - began)[longest] / np.maximum(height[longest], 1e-9)
        began, closed = began[first], closed[last]
        answered = began + paler * (closed - began)
        height, reason = height[longest], reason[longest]
    return _Bars(began=began, answered=answered, closed=closed, height=height, reason=reason)


def _rectangles(
    left: FloatArray, right: FloatArray, floor: float, height: FloatArray
) -> FloatArray:
    """Return the corners of rectangles, (bars, 4, 2)."""
    low = np.full_like(left, floor)
    x = np.stack([left, left, right, right], axis=1)
    y = np.stack([low, low + height, low + height, low], axis=1)
    return np.stack([x, y], axis=2)

"""Pictures of runs: their rounds, finished jobs, losses, and worker-seconds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.plot import tables
from seqgc.plot._axes import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    OLIVE,
    PURPLE,
    RED,
    SKY,
    STYLES,
    VERMILION,
    axes_for,
    draw_steps,
    labelled,
    legend_above,
    thinned,
)  # fmt: skip
from seqgc.plot.tables import Recorded, Runs, named
from seqgc.ports import FloatArray, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["finished_jobs", "losses", "timeline", "worker_seconds"]

_MOST_BARS: Final = 1000  # for one run
_MOST_MODELS: Final = 64
_MOST_POINTS: Final = 6000  # for all lines together
_FEWEST_STEPS: Final = 40  # for one line
_PALE: Final = "#7F7F7F59"  # grey, one third opaque

# The text in the legend, and the colour, of each `reason` of a `RoundRecord`.
REASONS: Final = {
    "everyone": ("everyone answered", GREEN),
    "tolerance": ("enough answered", BLUE),
    "wait-out": ("waited for answers it needed", VERMILION),
    "exhausted": ("no other worker could answer", PURPLE),
    "timeout": ("time limit", RED),
    "dealt": ("all pieces came in", SKY),
    "again": ("closed again (resumed)", OLIVE),
    "idle": ("nothing to do", GREY),
}
_OUTCOMES: Final = {
    "used": ("answers used", BLUE),
    "dropped": ("answers too late", VERMILION),
    "unanswered": ("given up, unanswered", GREY),
    "failed": ("failed", PURPLE),
}


def timeline(runs: Runs, *, ax: Axes | None = None) -> Axes:
    """Draw the beginning, end and duration of each round, coloured by the reason why it closed.

    The width and the height of a bar are the duration of its round; the grey part is the time
    before the first answer. Several runs are stacked, the first run on top. If a run has more than
    1000 rounds, a bar stands for several rounds, and has the height and the reason of the longest.

    Examples
    --------
    >>> from seqgc import DelayProfile, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> timeline(replay("gc:s=1", profile, alpha=0.0)).get_xlabel()
    'seconds since the run began'
    """
    lanes = {name: _bars(tables.timeline(run)) for name, run in named(runs).items()}
    ax = axes_for(ax, height=2.2 + 0.9 * len(lanes), rows=True)
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    longest = (
        max((float(bars["height"].max(initial=0)) for bars in lanes.values()), default=0) or 1.0
    )
    reasons: set[str] = set()
    for lane, bars in enumerate(reversed(lanes.values())):
        floor = 1.2 * longest * lane
        for reason in dict.fromkeys(bars["reason"][bars["height"] > 0]):
            reasons.add(reason)
            _, color = REASONS.get(reason, (reason, GREY))
            of = bars["reason"] == reason
            spans = (
                (bars["began"], bars["answered"], _PALE),
                (bars["answered"], bars["closed"], color),
            )
            for left, right, face in spans:
                corners = _rectangles(left[of], right[of], floor, bars["height"][of])
                ax.add_collection(PolyCollection(list(corners), facecolor=face, linewidth=0))
    ax.set_xlim(0, max(float(bars["closed"].max(initial=0)) for bars in lanes.values()) or 1.0)
    ax.set_ylim(0, 1.2 * longest * len(lanes))
    ax.set_xlabel("seconds since the run began")
    if len(lanes) == 1:
        ax.set_ylabel("seconds of a round")
    else:
        floors = [1.2 * longest * lane for lane in range(len(lanes))]
        ax.set_yticks(floors, [labelled(name) for name in reversed(lanes)])
        ax.set_ylabel(f"height: seconds of a round,\nup to {longest:.3g}")
    entries = [("before the first answer", _PALE)]
    entries += [entry for reason, entry in REASONS.items() if reason in reasons]
    entries += [("unknown", GREY)] * bool(reasons - set(REASONS))
    patches, texts = [Patch(color=color) for _, color in entries], [text for text, _ in entries]
    legend_above(ax, patches, texts)
    return ax


def finished_jobs(runs: Runs, *, ax: Axes | None = None) -> Axes:
    """Draw the number of finished jobs of each run over time (Fig. 2a).

    Examples
    --------
    >>> from seqgc import DelayProfile, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> runs = {spec: replay(spec, profile, alpha=0.0) for spec in ("uncoded", "gc:s=1")}
    >>> ax = finished_jobs(runs)
    >>> ax.get_legend_handles_labels()[1]
    ['uncoded', 'gc:s=1']
    """
    ax = axes_for(ax)
    lines = {}
    for name, run in named(runs).items():
        table = tables.finished_jobs(run)
        zero = np.zeros(1)
        lines[name] = (
            np.concatenate([zero, table["finished_s"]]), np.concatenate([zero, table["jobs"]])
        )  # fmt: skip
    draw_steps(ax, lines)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("seconds since the run began")
    ax.set_ylabel("jobs finished")
    return ax


def losses(runs: Recorded, *, ax: Axes | None = None) -> Axes:
    """Draw the loss of each model over time (Fig. 2b), or over steps if the log has no times.

    If there are several runs, or more than eight models, all models of a run have one colour. At
    most 64 models are drawn, evenly spread. A point of a long line is the mean of several steps.
    """
    table_of = {name: run.models() for name, run in named(runs).items()}
    by = "step" if all(np.isnan(table["at_s"]).all() for table in table_of.values()) else "at_s"
    ax = axes_for(ax)
    for place, (name, table) in enumerate(table_of.items()):
        curves = _curves(table, by=by)
        labels = [labelled(model) for model in curves]
        style, color = "-", None
        if len(table_of) > 1 or len(curves) > len(COLORS):
            count = f": {len(curves)} models" if len(curves) > 1 else ""
            labels = [labelled(name) + count, *[""] * len(curves)]
            style, color = STYLES[place % len(STYLES)], COLORS[place % len(COLORS)]
        for label, (x, loss) in zip(labels, curves.values(), strict=False):
            ax.plot(x, loss, style, color=color, label=label or None, linewidth=1.2)
    ax.set_xlabel("steps" if by == "step" else "seconds since the run began")
    ax.set_ylabel("loss of a model before its step")
    handles, shown = ax.get_legend_handles_labels()
    if shown:
        legend_above(ax, handles, shown)
    return ax


def worker_seconds(runs: Recorded, *, ax: Axes | None = None, usd_per_s: float = 0.0) -> Axes:
    """Draw the worker-seconds of each run by the outcome of the tasks, with load and run time.

    If the run gave up a task, the seconds until then count. Its function continues to run, and is
    billed (`seqgc cost` has the bill). If the price ``usd_per_s`` of a worker-second is given, the
    axis shows US dollars.
    """
    run_of = named(runs)
    table = tables.worker_seconds(run_of)
    ax = axes_for(ax, height=1.6 + 0.5 * len(run_of), rows=True)
    factor = usd_per_s or 1.0
    rows = np.arange(len(run_of))
    ends = np.zeros(len(run_of))
    for outcome, (text, color) in _OUTCOMES.items():
        width = factor * table[f"{outcome}_s"]
        if width.any():
            ax.barh(rows, width, left=ends, color=color, label=text, height=0.6)
        ends = ends + width
    loads = ["" if np.isnan(load) else f", load {load:.3g}" for load in table["load"]]
    lasted = [f"{seconds:.4g} s" for seconds in table["seconds"]]
    names = [labelled(name) for name in run_of]
    lines = zip(names, lasted, loads, strict=True)
    ax.set_yticks(rows, [f"{name}\n{seconds}{load}" for name, seconds, load in lines])
    ax.set_ylim(len(run_of) - 0.4, -0.6)
    ax.set_xlim(0, 1.02 * (ends.max() or 1.0))
    ax.set_xlabel("US dollars" if usd_per_s else "worker-seconds")
    handles, shown = ax.get_legend_handles_labels()
    if shown:
        legend_above(ax, handles, shown)
    return ax


def _curves(table: Table, *, by: str) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return (x, loss) of each model; points of a long curve are means over successive steps."""
    models, first, count = np.unique(table["model"], return_index=True, return_counts=True)
    drawn = thinned(len(models), most=_MOST_MODELS)
    most = max(_FEWEST_STEPS, _MOST_POINTS // max(len(drawn), 1))
    curves = {}
    for model, start, size in zip(models[drawn], first[drawn], count[drawn], strict=True):
        of = slice(start, start + size)  # the table is sorted by model
        x, loss = table[by][of].astype(float), table["loss"][of]
        x, loss = x[~np.isnan(x)], loss[~np.isnan(x)]
        if len(x) > most:
            starts = np.linspace(0, len(x), most + 1).astype(np.intp)
            x, loss = (np.add.reduceat(each, starts[:-1]) / np.diff(starts) for each in (x, loss))
        curves[str(model)] = (x, loss)
    return curves


def _bars(rounds: Table) -> Table:
    """Return a bar for each round, or at most 1000 bars that stand for successive rounds.

    The columns are ``began``, ``answered`` and ``closed``, in seconds; ``height``; and ``reason``.
    """
    began, answered, closed = (rounds[f"{name}_s"] for name in ("began", "first_answer", "closed"))
    height, reason = closed - began, rounds["reason"]
    if len(began) > _MOST_BARS:
        edges = np.linspace(0, len(began), _MOST_BARS + 1).astype(np.intp)
        longest = np.array([a + height[a:b].argmax() for a, b in itertools.pairwise(edges)])
        pale = (answered - began)[longest] / np.maximum(height[longest], 1e-9)
        began, closed = began[edges[:-1]], closed[edges[1:] - 1]
        answered = began + pale * (closed - began)
        height, reason = height[longest], reason[longest]
    columns = {"began": began, "answered": answered, "closed": closed}
    return {**columns, "height": height, "reason": reason}


def _rectangles(
    left: FloatArray, right: FloatArray, floor: float, height: FloatArray
) -> FloatArray:
    """Return the corners of rectangles, (bars, 4, 2)."""
    low = np.full_like(left, floor)
    x = np.stack([left, left, right, right], axis=1)
    y = np.stack([low, low + height, low + height, low], axis=1)
    return np.stack([x, y], axis=2)

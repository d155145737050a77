"""What all pictures share: colours, axes to draw on, labels from outside, legends beside the data.

The page that shows a picture may be light or dark, and one picture is to do for both. So a colour
that means something has a luminance between 0.15 and 0.26: its contrast is above 3.4 both on white
and on near black, which is what marks need (WCAG 2, 1.4.11). All else has matplotlib's own text
colour, which whoever draws sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from seqgc.errors import ParameterError, one_line
from seqgc.ports import FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

__all__ = [
    "COLORS", "axes_for", "color_bar", "draw_steps", "labelled", "legend_above", "plain_log",
    "thinned",
]  # fmt: skip

# Okabe and Ito's, darkened where they are too light for white; grey is for what does not matter.
COLORS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#B0609A", "#8C7A00", "#3F8FC4", "#C44E52", "#7F7F7F",
)  # fmt: skip
BLUE, VERMILION, GREEN, PURPLE, OLIVE, SKY, RED, GREY = COLORS
STYLES: Final = "-", "--", "-.", ":"  # lines are told apart by more than colour
_LONGEST_LABEL: Final = 64
_MOST_POINTS: Final = 500  # of a line


def axes_for(ax: Axes | None, *, height: float = 3.2, rows: bool = False) -> Axes:
    """Return the axes to draw on: those given, or a new figure's, ``height`` inches high.

    With ``rows``, of which there may be many, a given figure is made as high, if it is lower and
    has no other axes.

    Raises
    ------
    ParameterError
        If matplotlib is not installed.
    """
    if ax is not None:
        figure = ax.get_figure(root=True)
        if rows and figure is not None and figure.axes == [ax]:
            figure.set_figheight(max(height, figure.get_figheight()))
        return ax
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        rule = f"needs what is not installed ({error})"
        raise ParameterError("plot", rule, "matplotlib", "pip install 'seqgc[plot]'") from None
    _, ax = plt.subplots(figsize=(7.2, height), layout="constrained")
    ax.set_prop_cycle(color=COLORS)
    return ax


def labelled(name: str) -> str:
    r"""Return a name from outside as matplotlib shows it: one line, no formula, no hidden entry.

    Examples
    --------
    >>> labelled("_a$b$")
    ' _a\\$b\\$'
    """
    text = one_line(name, limit=_LONGEST_LABEL).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def thinned(count: int, *, most: int = _MOST_POINTS) -> IntArray:
    """Return which of so many points are drawn, evenly spread, the first and the last among them.

    Examples
    --------
    >>> thinned(5, most=3).tolist()
    [0, 2, 4]
    """
    places: IntArray = np.linspace(0, count - 1, min(count, most)).round().astype(np.intp)
    return places


def draw_steps(ax: Axes, lines: Mapping[str, tuple[FloatArray, FloatArray]]) -> None:
    """Draw rising steps, (x, y) by name, and a legend if there are several."""
    for place, (name, (x, y)) in enumerate(lines.items()):
        shown = thinned(len(x))
        style = STYLES[place % len(STYLES)]
        ax.step(x[shown], y[shown], style, where="post", label=labelled(name), linewidth=1.6)
    if len(lines) > 1:
        legend_above(ax, *ax.get_legend_handles_labels())


def plain_log(ax: Axes, which: Literal["x", "y"]) -> None:
    """Make the x or the y axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def color_bar(
    ax: Axes,
    image: ScalarMappable,
    *,
    span: tuple[float, float],
    label: str,
    above: bool = False,
) -> None:
    """Show what the colours of an image mean, on a logarithmic scale with plain numbers.

    ``above``: some values are beyond the span, and have the colour of its end.
    """
    low, high = span
    ticks = [d * 10.0**e for e in range(-9, 13) for d in (1, 2, 5) if low <= d * 10.0**e <= high]
    if len(ticks) < 3:
        ticks = list(np.geomspace(low, high, 4))
    extend = "max" if above else "neither"
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.02, extend=extend)
    bar.ax.yaxis.set_ticks(ticks, [f"{tick:.3g}" for tick in ticks])
    bar.ax.yaxis.set_ticks([], minor=True)


def legend_above(
    ax: Axes, handles: Sequence[Artist], labels: Sequence[str], *, letters: int = 96
) -> None:
    """Show a legend above the axes, where no data are, about so many ``letters`` wide."""
    longest = max(map(len, labels), default=0)
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=max(1, min(len(labels), letters // (longest + 6))),
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.6,
    )

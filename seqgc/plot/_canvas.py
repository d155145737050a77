"""What all pictures share: colours, axes to draw on, labels from outside, legends beside the data.

The page that shows a picture may be light or dark, and one picture is to do for both. So a colour
that means something has a luminance between 0.15 and 0.26: its contrast is above 3.4 both on white
and on near black, which is what marks need (WCAG 2, 1.4.11). All else has matplotlib's own text
colour, which whoever draws sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from seqgc.errors import ParameterError, one_line

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = ["COLORS", "axes_for", "labelled", "legend_above"]

# Okabe and Ito's, darkened where they are too light for white; grey is for what does not matter.
COLORS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#B0609A", "#8C7A00", "#3F8FC4", "#C44E52", "#7F7F7F",
)  # fmt: skip
BLUE, VERMILION, GREEN, PURPLE, OLIVE, SKY, RED, GREY = COLORS
_LONGEST_LABEL: Final = 48


def axes_for(ax: Axes | None, *, height: float = 3.2) -> Axes:
    """Return the axes to draw on: those given, or a new figure's, ``height`` inches high.

    Raises
    ------
    ParameterError
        If matplotlib is not installed.
    """
    if ax is not None:
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


def legend_above(ax: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Show a legend above the axes, where no data are."""
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=min(len(labels), 3),
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.2,
    )

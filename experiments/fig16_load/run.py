"""The seconds that more load takes (Fig. 16): a line through recordings at several loads.

python -m experiments.fig16_load.run FOLDER [--output FOLDER]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.delays import series
from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS
from seqgc.profiles import DelayProfile, ProfileMeta, fit_load_model

SERIES = {"canada": "cnn-canada", "london": "cnn-london", "resnet18": "resnet18-canada"}
TIMES = "series", "load", "rounds", "mean_s", "median_s"
LINES = "series", "through", "alpha", "low", "high", "intercept_s", "r_squared"


def times(name: str, recorded: Sequence[DelayProfile]) -> Iterator[dict[str, object]]:
    for profile in recorded:
        yield {
            "series": name,
            "load": f"{profile.meta.base_load:g}",
            "rounds": profile.num_rounds,
            "mean_s": f"{profile.times.mean():.3f}",
            "median_s": f"{np.median(profile.times):.3f}",
        }


def line(name: str, through: str, rows: Sequence[Mapping[str, str]]) -> dict[str, object]:
    """Return the line through a series' means or medians, and its slope's 95 % interval."""
    points = [
        DelayProfile.from_times(
            [[float(row[f"{through}_s"])]], meta=ProfileMeta(base_load=float(row["load"]))
        )
        for row in rows
    ]
    model = fit_load_model(points)
    low, high = model.alpha_interval or (np.nan, np.nan)
    return {
        "series": name,
        "through": through,
        "alpha": f"{model.alpha:.2f}",
        "low": f"{low:.2f}",
        "high": f"{high:.2f}",
        "intercept_s": f"{model.intercept_s:.2f}",
        "r_squared": f"{model.r_squared:.3f}",
    }


def lines(rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, object]]:
    for name in dict.fromkeys(row["series"] for row in rows):
        for through in ("mean", "median"):
            yield line(name, through, [row for row in rows if row["series"] == name])


def draw(rows: Sequence[Mapping[str, str]], fitted: Sequence[Mapping[str, str]], to: Path) -> None:
    picture = figure(width=9.6, height=3.4)
    for ax, name in zip(picture.subplots(1, len(SERIES)), SERIES, strict=True):
        mine = [row for row in rows if row["series"] == name]
        loads = np.array([float(row["load"]) for row in mine])
        for color, through in zip(COLORS, ("mean", "median"), strict=False):
            seconds = [float(row[f"{through}_s"]) for row in mine]
            ax.plot(loads, seconds, "o", color=color, label=through)
            (fit,) = (row for row in fitted if (row["series"], row["through"]) == (name, through))
            ax.plot(loads, float(fit["intercept_s"]) + float(fit["alpha"]) * loads, color=color)
        ax.set(title=name, xlabel="normalized load", ylabel="seconds to the answer", ylim=(0, None))
        ax.legend(frameon=False, loc="lower right")
    save(picture, to)


def main() -> None:
    parser = folder_arguments(__doc__, __file__)
    parser.add_argument("recordings", type=Path)
    given = parser.parse_args()
    table = Table(given.output / "times.csv", TIMES, keys=1)
    for name, files in SERIES.items():
        if (name,) not in table:
            table.append(times(name, series(given.recordings, files)))
    fitted = Table(given.output / "lines.csv", LINES, keys=2)
    for row in lines(table.rows()):
        if (row["series"], row["through"]) not in fitted:
            fitted.append([row])
    draw(table.rows(), fitted.rows(), given.output / "loads.svg")


if __name__ == "__main__":
    main()

"""Every defence on recorded delays, as functions and as workers that stay, to a loss of 0.25.

python -m experiments.which_defence.run FOLDER [--output FOLDER]

FOLDER has the recordings of `RECORDINGS`, each of 256 workers. Codes are chosen on the first half
of a recording's rounds; `seqgc.compare` runs all defences on the second half, for two alphas
(seconds that a whole batch takes one worker):

- *functions*: delays are latencies, each task is an invocation; one model, then four, in the
  bundles (models whose gradients are one job) that suit a code best, or else the largest bundles;
- *residents*: delays are speeds. A recording at nearly zero load has no speed. Therefore alpha adds
  the load that an uncoded batch gives each worker, 1/256. All these seconds count as work, and a
  worker with twice the load takes twice as long. One model.

Codes are the best that `seqgc.tune` finds, with rounds closed by mu = 0 and `feasible`; for
residents the smallest code. All are trained at one learning rate, the best for exact gradients
(``lr``); ``best_s`` is at each defence's own best rate, ``best_lr``. Rates are halved and doubled
until the best lies inside; ``edge`` is 1 if it did not. ``low_s`` and ``high_s`` enclose the median
with 95 % confidence: functions have ten seeds, residents six, four models one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.results import Table, figure, folder_arguments, save
from experiments.which_scheme.run import RECORDINGS
from seqgc import compare
from seqgc.comparison import Row, Trial
from seqgc.plot import COLORS
from seqgc.profiles import DelayProfile, read_profile
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, SearchSpace, hold_out, tune

ALPHAS = (1.12, 60.0)
TUNED = {  # what is searched, and from which families
    "code": ("gc-rep", "gc-binary"),
    "ra-sgc": ("ra-sgc",),
    "uncoded": ("uncoded",),
}
FIELDS = (
    "workers", "models", "recording", "alpha_s", "defence", "setting", "kind", "clock_s",
    "over_bound", "lr", "clocks", "seconds", "low_s", "high_s", "usd", "best_lr", "best_s", "edge",
    "stale", "wasted",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A comparison: the kind of workers, the number of models, and the defences."""

    workers: Literal["function", "resident"]
    models: int
    seeds: int
    defences: tuple[str, ...]


RUNS = (
    Field(
        workers="function",
        models=1,
        seeds=10,
        defences=(
            "code", "deal", "uncoded", "ssp:slack=1", "ssp:slack=3", "asp", "backup:b=16",
            "backup:b=64", "lb-bsp",
        ),
    ),
    Field(
        workers="resident",
        models=1,
        seeds=6,
        defences=(
            "gc-rep:s=1", "uncoded", "ssp:slack=1", "ssp:slack=3", "asp", "asp-dds:M=1",
            "backup:b=16", "backup:b=64", "lb-bsp", "antdt-nd",
        ),
    ),
    Field(
        workers="function",
        models=4,
        seeds=1,
        defences=("code", "ra-sgc", "deal", "uncoded", "ssp:slack=1", "ssp:slack=3", "asp"),
    ),
)  # fmt: skip


def setting_of(defence: str, on: Rehearsal, field: Field) -> Setting:
    """Return the setting of a defence; for codes, the best setting that the search finds."""
    if defence not in TUNED or field.workers == "resident":
        scheme = parse_scheme(defence, n=on.profile.num_workers)
        return Setting(scheme=scheme, jobs_per_round=field.models)
    space = SearchSpace(
        families=TUNED[defence], mus=(0.0,), wait_outs=("feasible",),
        jobs_per_round=tuple(k for k in (4, 2, 1) if field.models % k == 0),
        max_delay=3,
    )  # fmt: skip
    on = replace(on, repeat=True, models=field.models, num_jobs=30 * field.models)
    return tune(on, space=space, top=1).best.setting


def case(profile: DelayProfile, *, alpha: float, field: Field) -> dict[str, dict[str, object]]:
    """Return the row of each defence, by its name."""
    resident = field.workers == "resident"
    if resident:
        profile = profile.at_load(1 / profile.num_workers, alpha=alpha)
    first, second = hold_out(profile, fraction=0.5)
    chosen, judged = (Rehearsal(profile=half, alpha=alpha) for half in (first, second))
    settings = {setting_of(defence, chosen, field): defence for defence in field.defences}
    found = compare(
        judged,
        list(settings),
        models=field.models,
        reading="speed" if resident else "latency",
        workers=field.workers,
        trial=Trial(seeds=field.seeds),
    )
    labels = {setting_label(setting): name for setting, name in settings.items()}
    rows = {labels[f"{row.label}; {row.jobs_per_round}"]: row for row in found.rows}
    return {name: _cells(row, lr=found.lr) for name, row in rows.items()}


def setting_label(setting: Setting) -> str:
    """Return the label of a setting's row."""
    rule = f", {setting.rule.label}" if setting.rule != ClosingRule() else ""
    return f"{setting.scheme.spec}{rule}; {setting.jobs_per_round}"


def _cells(row: Row, *, lr: float) -> dict[str, object]:
    low_s, high_s = row.seconds_between or (np.nan, np.nan)
    bundle = f"; {row.jobs_per_round} jobs a round" if row.jobs_per_round > 1 else ""
    return {
        "setting": f"{row.label.replace(', ', '; ')}{bundle}",
        "kind": row.kind,
        "clock_s": f"{row.seconds_per_clock:.4g}",
        "over_bound": f"{row.over_bound:.3f}",
        "lr": f"{lr:g}",
        "clocks": "" if row.clocks_to_target is None else f"{row.clocks_to_target:g}",
        "seconds": "" if row.seconds_to_target is None else f"{row.seconds_to_target:.4g}",
        "low_s": f"{low_s:.4g}",
        "high_s": f"{high_s:.4g}",
        "usd": "" if row.usd is None else f"{row.usd:.4g}",
        "best_lr": "" if row.best_lr is None else f"{row.best_lr:g}",
        "best_s": "" if row.best_seconds is None else f"{row.best_seconds:.4g}",
        "edge": int(row.best_is_edge),
        "stale": f"{row.staleness_mean:.3g}",
        "wasted": f"{row.wasted:.3g}",
    }


def profiles(recordings: Path) -> Iterator[tuple[str, DelayProfile]]:
    """Yield the recordings, each with its load."""
    for name, (file, base_load) in RECORDINGS.items():
        profile = read_profile(recordings / file)
        yield name, replace(profile, meta=replace(profile.meta, base_load=base_load))


def tables(folder: Path, recordings: Path) -> Table:
    """Compute the rows that the table lacks, one comparison after the other."""
    table = Table(folder / "defences.csv", FIELDS, keys=5)
    known = dict(profiles(recordings))
    for field, (name, profile), alpha in product(RUNS, known.items(), ALPHAS):
        about = field.workers, field.models, name, alpha
        if (*about, field.defences[0]) not in table:
            cells = case(profile, alpha=alpha, field=field)
            table.append(
                dict(zip(FIELDS, (*about, defence), strict=False)) | cells[defence]
                for defence in field.defences
            )
    return table


def draw(table: Table, path: Path) -> None:
    """Draw seconds to the target of one model, with the interval that holds the median."""
    names = list(RECORDINGS)
    fields = [field for field in RUNS if field.models == 1]
    picture = figure(width=9.6, height=5.6)
    axes = picture.subplots(len(fields), len(names), sharey="row")
    for (row, field), (column, name) in product(enumerate(fields), enumerate(names)):
        ax = axes[row][column]
        for (shift, alpha), (place, defence) in product(
            enumerate(ALPHAS), enumerate(field.defences)
        ):
            mine = found(table, workers=field.workers, models="1", recording=name, defence=defence)
            there = [each for each in mine if float(each["alpha_s"]) == alpha and each["seconds"]]
            for each in there:
                y, color = place + 0.24 * (shift - 0.5), COLORS[shift]
                ends = float(each["low_s"]), float(each["high_s"])
                ax.plot(ends, [y, y], color=color, linewidth=1.4)
                label = f"α = {alpha:g} s" if not (place or row or column) else None
                ax.plot(float(each["seconds"]), y, "o", color=color, markersize=4, label=label)
        ax.set(xscale="log", title=f"{name}, {field.workers}s" if row == 0 else f"{field.workers}s")
        ax.set_xticks(
            [10, 20, 50, 100, 200, 500, 1000], map(str, (10, 20, 50, 100, 200, 500, 1000))
        )
        ax.set_xticks([], minor=True)
        ax.set_yticks(np.arange(len(field.defences)), list(field.defences))
        ax.grid(visible=True, axis="y", linewidth=0.4)
    for row in axes:
        row[0].invert_yaxis()
    axes[-1][1].set_xlabel("seconds to a loss of 0.25")
    handles = axes[0][0].get_legend_handles_labels()
    picture.legend(*handles, loc="outside upper center", ncols=2, frameon=False)
    save(picture, path)


def found(table: Table, **asked: str) -> list[Mapping[str, str]]:
    """Return the rows with these fields."""
    return [row for row in table.rows() if asked.items() <= row.items()]


def main() -> None:
    parser: argparse.ArgumentParser = folder_arguments(__doc__, __file__)
    parser.add_argument("recordings", type=Path, help="Folder of the recordings.")
    given = parser.parse_args()
    draw(tables(given.output, given.recordings), given.output / "defences.svg")


if __name__ == "__main__":
    main()

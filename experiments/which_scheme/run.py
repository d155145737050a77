"""Every scheme, closing rule and bundle on recorded delays: chosen on half of them, judged on half.

python -m experiments.which_scheme.run FOLDER [--output FOLDER]

FOLDER has the recordings of `RECORDINGS`. For each of them and each alpha (seconds that a whole
batch takes one worker) the fastest setting of every scheme is found on the first half of the
rounds, and replayed on the second. Four models are trained, so that a delay of three rounds is the
longest, with 60 gradients; and sixteen models, with 240 gradients, by the promising families.
Halves are repeated for that many gradients. ``low`` and ``high`` are an
interval of 95 %: the held-out rounds are drawn again in blocks of three (`bootstrap_total`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS
from seqgc.profiles import DelayProfile, read_profile
from seqgc.schemes import Deal
from seqgc.search import (
    Ranked,
    Reading,
    Rehearsal,
    SearchSpace,
    bootstrap_total,
    deal,
    hold_out,
    replay,
    tune,
)

RECORDINGS = {  # name: file, and the load that it was recorded at
    "Canada d": ("cnn-canada-batch2048-load0.000-30rounds-d.csv", 0.0),
    "London a": ("cnn-london-batch256-load0.000-10rounds-a.csv", 0.0),
    "ResNet f": ("resnet18-canada-batch256-load0.020-25rounds-f.csv", 0.02),
}
ALPHAS = (1.12, 5.0, 20.0, 60.0)
SPACES = {  # how many models are trained, and what is searched then
    4: SearchSpace(max_delay=3),
    16: SearchSpace(
        families=("uncoded", "gc-rep", "gc-binary", "ra-sgc", "deal"),
        mus=(0.0, 0.1, 0.25),
        wait_outs=("feasible",),
        jobs_per_round=(4, 8, 16),
    ),
}
JOBS = {4: 60, 16: 240}
FIELDS = (
    "models", "recording", "alpha_s", "scheme", "setting", "job_s", "low_s", "high_s", "over_r1",
)  # fmt: skip
FAMILIES = {  # the rows of the picture, and what is summed up in each
    "deal, to functions that stay": ("deal, resident",),
    "deal, each round anew (no backend)": ("deal",),
    "ra-sgc": ("ra-sgc",),
    "repetition, binary": ("gc-rep", "gc-binary"),
    "sr-sgc": ("sr-sgc", "sr-sgc-rep"),
    "m-sgc": ("m-sgc", "m-sgc-rep", "m-sgc-binary"),
    "gc (cyclic)": ("gc",),
    "uncoded": ("uncoded",),
}


def name_of(row: Ranked) -> str:
    scheme = row.setting.scheme.spec.partition(":")[0]
    return f"{scheme}, resident" if row.reading.resident else scheme


def judged(row: Ranked, held: Rehearsal) -> tuple[float, float, float]:
    """Return seconds per job on the held-out rounds, and the interval."""
    if isinstance(row.setting.scheme, Deal):
        run = deal(row.setting, replace(held, reading=row.reading)).replay
    else:
        run = replay(row.setting, held)
    rounds = held.profile.num_rounds
    seconds = run.round_seconds
    times = len(seconds) // rounds  # that the held-out rounds were gone through
    drawn = seconds[: times * rounds].reshape(times, rounds).mean(axis=0) if times else seconds
    low, high = bootstrap_total(drawn / drawn.sum(), seed=0)
    mean_s = run.runtime_s / (held.num_jobs or 1)
    return mean_s, mean_s * low, mean_s * high


def cases(
    name: str, profile: DelayProfile, *, alpha: float, models: int
) -> Iterator[dict[str, object]]:
    """Yield the row of each scheme."""
    rehearsal = Rehearsal(
        profile=profile,
        num_jobs=JOBS[models],
        alpha=alpha,
        repeat=True,
        models=models,
        reading=Reading(resident=True),
    )
    _, held_rounds = hold_out(profile, fraction=0.5)
    held = replace(rehearsal, profile=held_rounds)
    bound_s = held.ideal_s(JOBS[models]) / JOBS[models]
    best: dict[str, Ranked] = {}
    rows = list(tune(rehearsal, space=SPACES[models], holdout=0.5, top=1).ranking)
    # As if functions that do not stay could be dealt work.
    local = replace(profile, meta=replace(profile.meta, provider="local"))
    anew = replace(rehearsal, profile=local, reading=Reading())
    dealt = replace(SPACES[models], families=("deal",))
    rows += tune(anew, space=dealt, holdout=0.5, top=1).ranking
    for row in rows:
        best.setdefault(name_of(row), row)
    for scheme, row in sorted(best.items()):
        job_s, low_s, high_s = judged(row, held)
        yield {
            "models": models,
            "recording": name,
            "alpha_s": alpha,
            "scheme": scheme,
            "setting": row.setting.label.replace(", ", "; "),
            "job_s": f"{job_s:.4g}",
            "low_s": f"{low_s:.4g}",
            "high_s": f"{high_s:.4g}",
            "over_r1": f"{job_s / bound_s:.3f}",
        }


def tables(folder: Path, recordings: Path) -> Table:
    """Compute the rows that the table lacks."""
    table = Table(folder / "schemes.csv", FIELDS, keys=3)
    for name, (file, base_load) in RECORDINGS.items():
        profile = read_profile(recordings / file)
        profile = replace(profile, meta=replace(profile.meta, base_load=base_load))
        for models, alpha in product(SPACES, ALPHAS):
            if (models, name, alpha) not in table:
                table.append(cases(name, profile, alpha=alpha, models=models))
    return table


def draw(table: Table, path: Path) -> None:
    """Draw seconds per job of each family's best setting over the bound of perfect knowledge."""
    rows = [row for row in table.rows() if row["models"] == "4"]
    names = list(dict.fromkeys(row["recording"] for row in rows))
    picture = figure(width=9.6, height=4.2)
    for ax, name in zip(picture.subplots(1, len(names), sharey=True), names, strict=True):
        for place, members in enumerate(FAMILIES.values()):
            for color, alpha in zip(COLORS, ALPHAS, strict=False):
                mine = [
                    row
                    for row in rows
                    if row["recording"] == name
                    and float(row["alpha_s"]) == alpha
                    and row["scheme"] in members
                ]
                if not mine:
                    continue
                row = min(mine, key=lambda row: float(row["job_s"]))
                unit_s = float(row["job_s"]) / float(row["over_r1"])
                low, high = (float(row[field]) / unit_s for field in ("low_s", "high_s"))
                y = place + 0.16 * (ALPHAS.index(alpha) - 1.5)
                ax.plot([low, high], [y, y], color=color, linewidth=1.4)
                label = f"α = {alpha:g} s" if not place else None
                ax.plot(float(row["over_r1"]), y, "o", color=color, markersize=4, label=label)
        ax.axvline(1.0, color="0.6", linewidth=1)
        ax.set(xscale="log", title=name)
        ax.set_xticks([0.02, 0.1, 0.5, 1, 2, 5], ["0.02", "0.1", "0.5", "1", "2", "5"])
        ax.set_xticks([], minor=True)
    axes = picture.axes
    axes[0].set_yticks(np.arange(len(FAMILIES)), list(FAMILIES))
    axes[0].invert_yaxis()
    axes[1].set_xlabel("seconds per job over those of perfect knowledge, a round each job")
    picture.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False
    )
    save(picture, path)


def main() -> None:
    parser: argparse.ArgumentParser = folder_arguments(__doc__, __file__)
    parser.add_argument("recordings", type=Path, help="Folder of the recordings.")
    given = parser.parse_args()
    draw(tables(given.output, given.recordings), given.output / "schemes.svg")


if __name__ == "__main__":
    main()

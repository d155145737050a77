"""Draw README's picture and print its numbers: ``python docs/images/finished_jobs.py [RECORDING]``.

The program replays 60 jobs on 64 generated Lambda functions, as README does. It prints the seconds
of each scheme in the picture, and their means over 100 such profiles. RECORDING is a delay profile
(.npz or .csv) of 64 workers or more. The program then also prints the seconds on each 64 of its
workers, with the rounds repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np

from seqgc import plot, read_profile, replay
from seqgc.profiles import LAMBDA_CNN, DelayProfile
from seqgc.search import Replay

SPECS = "uncoded", "m-sgc:B=1,W=2,lam=8", "gc-rep:s=3", "ra-sgc:s=1,q=0.3,r=1"
WORKERS, JOBS, SEED, SEEDS = 64, 60, 3, 100
GREY = "#767676"  # stands out on white and on black


def generated(seed: int) -> DelayProfile:
    """Return a profile of the library's own generator."""
    return LAMBDA_CNN.profile(JOBS + 1, workers=WORKERS, rng=np.random.default_rng(seed))


def recorded(path: str | Path) -> list[DelayProfile]:
    """Return each 64 workers of a recording; without an alpha it gets the generator's."""
    profile = read_profile(path)
    meta = replace(profile.meta, alpha=profile.meta.alpha or LAMBDA_CNN.alpha)
    stops = range(WORKERS, profile.num_workers + 1, WORKERS)
    times = [profile.awaited().times[:, stop - WORKERS : stop] for stop in stops]
    return [DelayProfile.from_times(part, meta=meta) for part in times]


def run(spec: str, profile: DelayProfile) -> Replay:
    """Replay a scheme; a profile that ends too soon begins again."""
    return replay(spec, profile, num_jobs=JOBS, repeat=True)


def seconds(spec: str, profiles: Iterable[DelayProfile]) -> list[float]:
    """Return a scheme's run time on each profile, in seconds."""
    return [run(spec, profile).runtime_s for profile in profiles]


def draw() -> None:
    """Write the picture beside this file."""
    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "seqgc", "font.family": "sans-serif"}
        | {f"{part}.color": GREY for part in ("text", "xtick", "ytick")}
        | {f"axes.{part}": GREY for part in ("edgecolor", "labelcolor")}
    )
    runs = {spec: run(spec, generated(SEED)) for spec in SPECS}
    ax = plot.finished_jobs({f"{spec}: {run.runtime_s:.1f} s": run for spec, run in runs.items()})
    ax.figure.savefig(Path(__file__).with_suffix(".svg"), transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw()
    profiles = [generated(seed) for seed in range(SEEDS)]
    for spec in SPECS:
        every = seconds(spec, profiles)
        print(f"{spec}: {every[SEED]:.1f} s; mean of {SEEDS} profiles: {np.mean(every):.1f} s")
        for path in sys.argv[1:]:
            print(f"  {path}: {', '.join(f'{s:.1f} s' for s in seconds(spec, recorded(path)))}")

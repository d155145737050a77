"""Measure whether leaving out workers that were slow so far is worth it.

python experiments/search/slow_workers.py RECORDING.csv [--alpha 5 --alpha 20 --alpha 60]

Some workers are slow in every round. The first half of the rounds determines which (by their mean
time), and the scheme with which the other workers are fastest; the second half judges. The bound is
the clairvoyant one for all workers, slow ones included, so that the ratios of one alpha compare.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from seqgc.profiles import DelayProfile, read_profile
from seqgc.search import Ranked, Rehearsal, SearchSpace, hold_out, tune

FAMILIES = ("uncoded", "gc-rep", "gc-binary", "m-sgc-rep")
MUS = (0.0, 0.1, 0.2, 0.3)


def judged(profile: DelayProfile, *, workers: int, alpha: float) -> Ranked:
    """Return the winner among the workers that the first half of the rounds shows to be fastest."""
    seen, _ = hold_out(profile, fraction=0.5)
    fastest = np.sort(np.argsort(seen.times.mean(axis=0), kind="stable")[:workers])
    kept = DelayProfile.from_times(profile.times[:, fastest], meta=profile.meta)
    space = SearchSpace(families=FAMILIES, mus=MUS, jobs_per_round=(1,))
    jobs = 8 * seen.num_rounds  # long enough for a delay's tail not to count
    return tune(
        Rehearsal(profile=kept, num_jobs=jobs, alpha=alpha), space=space, holdout=0.5, top=1
    ).best


def main() -> None:
    """Print a table for each alpha."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording")
    parser.add_argument("--alpha", type=float, action="append")
    given = parser.parse_args()
    profile = read_profile(given.recording)
    seen, held = hold_out(profile, fraction=0.5)
    for alpha in given.alpha or (5.0, 20.0, 60.0):
        jobs = 8 * seen.num_rounds
        bounds = [Rehearsal(profile=part, alpha=alpha).ideal_s(jobs) for part in (seen, held)]
        table = Table("workers", "scheme", "mu", "ratio, first half", "ratio, second half")
        table.title = f"alpha = {alpha:g} s per unit load"
        for share in (1.0, 0.95, 0.875, 0.75, 0.625, 0.5):
            workers = round(share * profile.num_workers)
            best = judged(profile, workers=workers, alpha=alpha)
            ratios = [best.runtime_s / bounds[0], (best.holdout_s or np.nan) / bounds[1]]
            shown = [f"{ratio:.3f}" for ratio in ratios]
            table.add_row(
                str(workers), best.setting.scheme.spec, f"{best.setting.rule.mu:g}", *shown
            )
        Console(width=100).print(table)


if __name__ == "__main__":
    main()

"""Measure dealing on the second half of a recording; nothing is tuned on the first half.

python experiments/search/dealing.py RECORDING.csv [--alpha 5 --alpha 60] [--rtt 0.02] [--after 0]
    [--dying 0.005] [--resident --models 4] [--times 1] [--seed 0]

Ratios are seconds per job over R1, the clairvoyant bound of rounds of one job. The rounds are
played ``--times`` times. ``--dying``: this share of the workers, drawn again in each round, stops
for the rest of the round, at a moment between its start and the bound, without notice.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from seqgc.ports import FloatArray
from seqgc.profiles import read_profile
from seqgc.rounds import Setting
from seqgc.schemes import Deal
from seqgc.search import Reading, Rehearsal, deal, hold_out


def deaths(rehearsal: Rehearsal, *, share: float, seed: int) -> FloatArray:
    """Return the time at which workers stop, (rounds, n) seconds; for most it is infinite."""
    rng, jobs = np.random.default_rng(seed), rehearsal.num_jobs or 0
    rounds = np.arange(jobs) % rehearsal.profile.num_rounds
    here_s, bound_s = rehearsal.profile.times[rounds], rehearsal.ideal_s(jobs) / jobs
    at = rng.uniform(np.minimum(here_s, bound_s), bound_s)
    stops: FloatArray = np.where(rng.random(at.shape) < share, at, np.inf)
    return stops


def main() -> None:
    """Print a row for each alpha."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording")
    parser.add_argument("--alpha", type=float, action="append")
    parser.add_argument("--rtt", type=float, default=0.02)
    parser.add_argument("--after", type=float, default=0.0)
    parser.add_argument("--dying", type=float, default=0.0)
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--models", type=int, default=1)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    reading = Reading(rtt_s=given.rtt, after=given.after, resident=given.resident)
    _, held = hold_out(read_profile(given.recording), fraction=0.5)
    jobs = given.times * held.num_rounds
    n = held.num_workers
    setting = Setting(scheme=Deal(n=n, pieces=3 * n if given.models == 1 else None))
    table = Table("alpha", "R1", "s per job", "over R1", "own bound over R1", "computed")
    table.title = f"{reading.label}, rtt {given.rtt:g} s, {given.dying:.1%} die, seed {given.seed}"
    for alpha in given.alpha or (1.12, 5.0, 20.0, 60.0):
        rehearsal = Rehearsal(
            profile=held,
            num_jobs=jobs,
            alpha=alpha,
            repeat=True,
            reading=reading,
            models=given.models,
        )
        silent_s = deaths(rehearsal, share=given.dying, seed=given.seed) if given.dying else None
        run = deal(setting, rehearsal, silent_s=silent_s)
        r1_s, own_s = rehearsal.ideal_s(jobs), rehearsal.bound_s(setting)
        table.add_row(
            f"{alpha:g}",
            f"{r1_s / jobs:.3f} s",
            f"{run.replay.runtime_s / jobs:.4f}",
            f"{run.replay.runtime_s / r1_s:.3f}",
            f"{own_s / r1_s:.3f}",
            f"{run.computed_load:.3f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

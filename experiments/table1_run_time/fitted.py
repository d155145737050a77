"""The recordings' numbers: stalls, rounds with stalls, and the generator fitted to them.

python -m experiments.table1_run_time.fitted FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from experiments.delays import STALL_S, at_no_load, series
from experiments.table1_run_time.run import ALPHA, PAPER, WORKERS
from seqgc.profiles import DelayProfile, fit
from seqgc.schemes import parse_scheme
from seqgc.stragglers import straggler_stats


def stalls(profile: DelayProfile) -> list[int]:
    """Return the number of stalls in each round that has any."""
    counts = (profile.times > STALL_S).sum(axis=1)
    return [int(count) for count in counts if count]


def line(name: str, profile: DelayProfile) -> str:
    counts, rounds = stalls(profile), profile.num_rounds
    low, high = binomtest(len(counts), rounds).proportion_ci()
    stats = straggler_stats(profile, mu=1.0)
    first = profile.times.min(axis=1)
    return (
        f"| {name} | {rounds} | {sum(counts)} | {len(counts)} | {100 * len(counts) / rounds:.1f} "
        f"({100 * low:.1f} to {100 * high:.1f}) | {np.median(first):.2f} | {stats.rate:.3f} | "
        f"{stats.smallest_s} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("| recording | rounds | stalls | rounds with any | in 100 (95 %) ", end="")
    print("| first answer, s | P(S) | most stragglers |\n|---|---|---|---|---|---|---|---|")
    for name in ("canada", "london"):
        recorded = series(folder, f"cnn-{name}")
        for profile in recorded:
            print(line(f"{name}, load {profile.meta.base_load:g}", profile))
        print(line(f"{name}, all less their load", at_no_load(recorded)))
    for name in ("canada", "london"):
        recorded = series(folder, f"cnn-{name}")
        slow = [profile.times[profile.times > STALL_S] for profile in recorded]
        seconds = np.concatenate(slow)
        counts = [stalls(profile) for profile in recorded]
        print(f"\n{name}: stalls by load {counts}, of {seconds.min():.1f} to {seconds.max():.1f} s")
        print(fit(recorded[0]))
        first = float(np.median(recorded[0].times.min(axis=1)))
        for family, (spec, *_) in PAPER.items():
            load = parse_scheme(spec, n=WORKERS).normalized_load
            print(f"{family}: twice the usual first answer is {2 * (first + ALPHA * load):.3f} s")


if __name__ == "__main__":
    main()

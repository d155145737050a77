"""Compare a recorded delay profile with profiles of its fitted generator and of the shipped one.

python experiments/gilbert_elliott/compare.py RECORDING.csv [--rounds 600] [--seed 0]
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from seqgc.profiles import LAMBDA_CNN, DelayProfile, fit, read_profile

MU = 1.0
QUANTILES = (0.5, 0.95, 0.99, 0.999)


def facts(profile: DelayProfile) -> list[float]:
    """P(S), P(S|S), median first answer (s), and quantiles of all answers (s)."""
    times = profile.times
    straggles = times > (1 + MU) * times.min(axis=1, keepdims=True)
    again = straggles[1:][straggles[:-1]]
    return [
        float(straggles.mean()),
        float(again.mean()) if again.size else float("nan"),
        float(np.median(times.min(axis=1))),
        *np.quantile(times, QUANTILES).tolist(),
        float(times.max()),
    ]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    recorded = read_profile(given.recording)

    rows = {"recorded": recorded}
    for name, generator in {"fitted to it": fit(recorded, mu=MU), "shipped": LAMBDA_CNN}.items():
        rng = np.random.default_rng(given.seed)
        rows[name] = generator.profile(given.rounds, workers=recorded.num_workers, rng=rng)

    quantiles = [f"q{100 * q:g}" for q in QUANTILES]
    table = Table("", "P(S)", "P(S|S)", "κ", *quantiles, "max", title=f"mu = {MU}, seconds")
    for name, profile in rows.items():
        table.add_row(name, *(f"{value:.3f}" for value in facts(profile)))
    Console().print(table)


if __name__ == "__main__":
    main()

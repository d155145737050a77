"""Who wins when computing is dearer, and how far from the clairvoyant bound?

python experiments/search/dear_computing.py RECORDING.csv [--alpha 5 --alpha 20 --alpha 60]
    [--jobs 20] [--jobs-per-round 1 --jobs-per-round 2 --jobs-per-round 4] [--schemes gc-rep,...]

For each alpha (seconds per unit load) and bundle size: the best of every scheme over all closing
rules, with a finer grid of mu than the command line's. Ratios are to the bound for the same bundle.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from seqgc.profiles import DelayProfile, read_profile
from seqgc.search import Ranked, Rehearsal, SearchSpace, tune

MUS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)


def best_of_each(
    profile: DelayProfile, *, alpha: float, jobs: int, bundle: int, schemes: tuple[str, ...]
) -> list[Ranked]:
    """Return the best candidate of every scheme, the fastest first."""
    space = SearchSpace(families=schemes, mus=MUS, jobs_per_round=(bundle,))
    found = tune(
        Rehearsal(profile=profile, num_jobs=jobs, alpha=alpha, repeat=True), space=space, top=1
    )
    return list(found.ranking)


def main() -> None:
    """Print a table for each alpha."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording")
    parser.add_argument("--alpha", type=float, action="append")
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--jobs-per-round", type=int, action="append")
    parser.add_argument("--schemes", type=lambda text: tuple(text.split(",")), default=())
    given = parser.parse_args()
    profile = read_profile(given.recording)
    console = Console(width=110)
    for alpha in given.alpha or (5.0, 20.0, 60.0):
        table = Table("jobs/round", "scheme", "rule", "s per job", "bound", "ratio", "load × n")
        table.title = f"alpha = {alpha:g} s per unit load, {given.jobs} jobs"
        for bundle in given.jobs_per_round or (1, 2, 4):
            rows = best_of_each(
                profile, alpha=alpha, jobs=given.jobs, bundle=bundle, schemes=given.schemes
            )
            for row in rows:
                table.add_row(
                    str(bundle),
                    row.setting.scheme.spec,
                    f"{row.setting.rule.wait_out}, mu {row.setting.rule.mu:g}",
                    f"{row.runtime_s / given.jobs:.4f}",
                    f"{row.ideal_s / given.jobs:.4f}",
                    f"{row.ratio:.3f}",
                    f"{row.normalized_load * profile.num_workers:.2f}",
                )
            table.add_section()
        console.print(table)


if __name__ == "__main__":
    main()

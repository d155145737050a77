"""1,000 jobs of ResNet-18 on recorded delays of functions that answer by a file system (Fig. 20).

python -m experiments.fig20_resnet18.run FOLDER [--output FOLDER]

FOLDER has the recordings of series f: 25 rounds of 256 functions at each of five loads. Their
rounds, in blocks of five drawn at random, are the delays; the parameters of each family are the
fastest on 80 other rounds, as in Table 1. The text that we have has lost the paper's tolerance, so
several are tried. The recordings show no cost of load, so a second, assumed cost is tried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from experiments.delays import RecordedRounds, at_no_load, series
from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS
from seqgc.profiles import ProfileGenerator, fit_load_model
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, SearchSpace, replay, tune

WORKERS, JOBS, MODELS, SEEDS, PROBED = 256, 1000, 4, 5, 80
FAMILIES = ("uncoded", "gc", "sr-sgc", "m-sgc")
MUS = (1.0, 2.0, 5.0, 10.0)
DRAWN = 5.0  # the tolerance of the picture
DEAR = 20.0  # seconds per unit load
RUNS = ("alpha_s", "mu", "seed", "family", "scheme", "runtime_s", "waited_out")
CURVES = ("alpha_s", "family", "seconds", "jobs")


def rehearsal(delays: ProfileGenerator, alpha: float, *, seed: int, probe: bool) -> Rehearsal:
    """Return delays for the run, or other delays for the choice of parameters."""
    jobs = PROBED if probe else JOBS
    rng = np.random.default_rng([seed, probe])
    profile = delays.profile(jobs + MODELS - 1, workers=WORKERS, rng=rng)
    return Rehearsal(profile=profile, num_jobs=jobs, alpha=alpha, models=MODELS)


def runs(
    delays: ProfileGenerator, alpha: float, *, mu: float, seed: int, curves: Table
) -> Iterator[dict[str, object]]:
    """Yield a run of each family; keep the curves of the first run at the drawn tolerance."""
    rule = ClosingRule(mu=mu, wait_out="all")
    probed, whole = (rehearsal(delays, alpha, seed=seed, probe=probe) for probe in (True, False))
    for family in FAMILIES:
        scheme = parse_scheme("uncoded", n=WORKERS)
        if family != "uncoded":
            space = SearchSpace(
                families=(family,), mus=(mu,), wait_outs=("all",),
                jobs_per_round=(1,), max_delay=MODELS - 1,
            )  # fmt: skip
            scheme = tune(probed, space=space).best.setting.scheme
        run = replay(Setting(scheme=scheme, rule=rule), whole)
        if (mu, seed) == (DRAWN, 0):
            ends = np.cumsum(run.round_seconds)[np.sort(run.job_finish_round)]
            curves.append(
                {
                    "alpha_s": f"{alpha:.2f}",
                    "family": family,
                    "seconds": f"{ends[jobs - 1]:.0f}",
                    "jobs": jobs,
                }
                for jobs in range(20, JOBS + 1, 20)
            )
        yield {
            "alpha_s": f"{alpha:.2f}",
            "mu": mu,
            "seed": seed,
            "family": family,
            "scheme": scheme.spec,
            "runtime_s": f"{run.runtime_s:.0f}",
            "waited_out": int(run.waited_out.sum()),
        }


def tables(folder: Path, recordings: Path) -> tuple[Table, Table]:
    """Compute the rows that the tables lack."""
    table = Table(folder / "runs.csv", RUNS, keys=3)
    curves = Table(folder / "curves.csv", CURVES, keys=2)
    recorded = series(recordings, "resnet18-canada")
    alphas = (fit_load_model(recorded).alpha, DEAR)
    delays = RecordedRounds(recorded=at_no_load(recorded))
    for alpha, mu, seed in product(alphas, MUS, range(SEEDS)):
        if (f"{alpha:.2f}", mu, seed) not in table:
            table.append(runs(delays, alpha, mu=mu, seed=seed, curves=curves))
    return table, curves


def draw(curves: Table, path: Path) -> None:
    rows = curves.rows()
    alphas = list(dict.fromkeys(row["alpha_s"] for row in rows))
    picture = figure(width=9.6)
    for ax, alpha in zip(picture.subplots(1, len(alphas), sharey=True), alphas, strict=True):
        for color, family in zip(COLORS, FAMILIES, strict=False):
            points = [
                (float(row["seconds"]), int(row["jobs"]))
                for row in rows
                if (row["alpha_s"], row["family"]) == (alpha, family)
            ]
            ax.plot(*zip(*points, strict=True), color=color, label=family, linewidth=1.4)
        ax.set(xlabel="seconds", title=f"α = {float(alpha):g} s, μ = {DRAWN:g}")
    picture.axes[0].set_ylabel("jobs finished")
    handles = picture.axes[0].get_legend_handles_labels()
    picture.legend(*handles, loc="outside upper center", ncols=len(FAMILIES), frameon=False)
    save(picture, path)


def main() -> None:
    parser = folder_arguments(__doc__, __file__)
    parser.add_argument("recordings", type=Path, help="The folder of the recordings.")
    given = parser.parse_args()
    _, curves = tables(given.output, given.recordings)
    draw(curves, given.output / "fig20.svg")


if __name__ == "__main__":
    main()

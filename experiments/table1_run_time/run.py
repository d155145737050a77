"""The run time of four schemes under the paper's rule, ten times (Table 1).

python -m experiments.table1_run_time.run [--recordings FOLDER] [--output FOLDER]

480 jobs of 4 models, 256 workers; a round stays open until twice its first answer, and then, if
the stragglers do not conform to the scheme's promise, until all have answered (mu = 1, all). The
delays are those of `experiments.delays`; with ``--recordings`` also the recorded rounds themselves,
drawn again. The schemes have the paper's parameters, or those that the paper's procedure (appendix
J) finds: the fastest of a family on 80 rounds of other delays of the same kind. A seed is one run
of everything; a row that is in ``runs.csv`` is not computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.delays import GENERATORS, RecordedRounds, at_no_load, series
from experiments.results import Table, figure, folder_arguments, save
from seqgc.plot import COLORS
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile, ProfileGenerator
from seqgc.rounds import ClosingRule
from seqgc.schemes import by_rounds, parse_scheme
from seqgc.search import Rehearsal, SearchSpace, batch_replay, tune

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORKERS, JOBS, MODELS, SEEDS, PROBED = 256, 480, 4, 10, 80
ALPHA = 2.24  # seconds per unit load: 1.12 at the recordings' batch of 2048, and 4096 here
RULE = ClosingRule(mu=1.0, wait_out="all")
PAPER = {  # family: parameters, run time, its standard deviation over 10 runs, rounds waited out
    "uncoded": ("uncoded", 1321, 87, 480),
    "gc": ("gc:s=15", 1095, 51, 129),
    "sr-sgc": ("sr-sgc:B=2,W=3,lam=23", 1019, 50, 242),
    "m-sgc": ("m-sgc:B=1,W=2,lam=27", 916, 63, 296),
}
FAMILIES = tuple(PAPER)
PARAMETERS = {"paper": "its parameters", "tuned": "tuned"}
STUDENT = 2.262  # Student's t, 97.5 %, 9 degrees of freedom
RUNS = "delays", "parameters", "seed", "family", "scheme", "runtime_s", "waited_out"
OTHERS = "gc", "sr-sgc"  # that schemes are compared with, run by run
SUMMARY = (
    *("delays", "parameters", "family", "runtime_s", "interval_s", "sd_s", "waited_out"),
    *(f"less_than_{other}_{what}" for other in OTHERS for what in ("s", "interval_s")),
)


def rehearsal(generator: ProfileGenerator, seed: int, *, jobs: int, probe: bool) -> Rehearsal:
    """Return delays for a number of jobs; parameters are chosen on other delays."""
    rounds = jobs + MODELS - 1  # a scheme's delay is less than the number of models
    rng = np.random.default_rng([seed, probe])
    profile: DelayProfile = generator.profile(rounds, workers=WORKERS, rng=rng)
    return Rehearsal(profile=profile, num_jobs=jobs, alpha=ALPHA, models=MODELS)


def chosen(generator: ProfileGenerator, seed: int) -> list[str]:
    """Return the setting of each family that the paper's procedure finds on 80 rounds."""
    probed = rehearsal(generator, seed, jobs=PROBED, probe=True)
    specs = ["uncoded"]
    for family in FAMILIES[1:]:
        space = SearchSpace(
            families=(family,), mus=(RULE.mu,), wait_outs=(RULE.wait_out,),
            jobs_per_round=(1,), max_delay=MODELS - 1,
        )  # fmt: skip
        specs.append(tune(probed, space=space).best.setting.scheme.spec)
    return specs


def runs(
    name: str, generator: ProfileGenerator, parameters: str, seed: int
) -> Iterator[dict[str, object]]:
    specs = [PAPER[family][0] for family in FAMILIES]
    if parameters == "tuned":
        specs = chosen(generator, seed)
    schemes = [by_rounds(parse_scheme(spec, n=WORKERS), "Table 1") for spec in specs]
    batch = batch_replay(schemes, rehearsal(generator, seed, jobs=JOBS, probe=False), rule=RULE)
    for place, family in enumerate(FAMILIES):
        yield {
            "delays": name,
            "parameters": parameters,
            "seed": seed,
            "family": family,
            "scheme": specs[place],
            "runtime_s": f"{batch.runtime_s[place]:.1f}",
            "waited_out": int(batch.waited_out[place]),
        }


@dataclass(frozen=True, slots=True)
class Mean:
    value: float
    half: float  # of its 95 % interval
    sd: float

    @classmethod
    def of(cls, values: FloatArray) -> Mean:
        sd = float(np.std(values, ddof=1))
        return cls(float(np.mean(values)), STUDENT * sd / len(values) ** 0.5, sd)


def summary(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, object]]:
    """Yield each family's mean, and its advantage over the other families, run by run."""
    cases: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        cases.setdefault((row["delays"], row["parameters"]), []).append(row)
    for (name, parameters), mine in cases.items():
        runs_of = {family: [row for row in mine if row["family"] == family] for family in FAMILIES}
        if min(map(len, runs_of.values())) < SEEDS:
            continue  # it was interrupted
        seconds = {f: np.array([float(row["runtime_s"]) for row in runs_of[f]]) for f in FAMILIES}
        for family in FAMILIES:
            mean = Mean.of(seconds[family])
            yield {
                "delays": name,
                "parameters": parameters,
                "family": family,
                "runtime_s": f"{mean.value:.0f}",
                "interval_s": f"{mean.half:.0f}",
                "sd_s": f"{mean.sd:.0f}",
                "waited_out": f"{np.mean([int(row['waited_out']) for row in runs_of[family]]):.0f}",
            } | differences(family, seconds)


def differences(family: str, seconds: Mapping[str, FloatArray]) -> dict[str, object]:
    cells: dict[str, object] = {}
    for other in OTHERS:
        if family != other:
            less = Mean.of(seconds[other] - seconds[family])
            cells[f"less_than_{other}_s"] = f"{less.value:.0f}"
            cells[f"less_than_{other}_interval_s"] = f"{less.half:.0f}"
    return cells


def draw(ax: Axes, rows: Sequence[dict[str, str]]) -> None:
    """Draw the means and intervals, a row for the paper and for each kind of delays."""
    labels = ["the paper"]
    values = {("the paper", f): (PAPER[f][1], STUDENT * PAPER[f][2] / SEEDS**0.5) for f in FAMILIES}
    for row in rows:
        label = f"{row['delays']}; {PARAMETERS[row['parameters']]}"
        if label not in labels:
            labels.append(label)
        values[label, row["family"]] = float(row["runtime_s"]), float(row["interval_s"])
    for place, family in enumerate(FAMILIES):
        points = [values[label, family] for label in labels]
        y = np.arange(len(labels)) + 0.15 * (place - 1.5)
        x, half = zip(*points, strict=True)
        ax.errorbar(x, y, xerr=half, fmt="o", markersize=4, color=COLORS[place], label=family)
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xticks([500, 700, 1000, 1500, 2000, 3000, 4000])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.set_xlabel("seconds: mean of 10 and its 95 % interval")


def tables(folder: Path, sources: dict[str, ProfileGenerator], *, seeds: int = SEEDS) -> Table:
    table = Table(folder / "runs.csv", RUNS, keys=3)
    for name, generator in sources.items():
        for parameters in PARAMETERS:
            for seed in range(seeds):
                if (name, parameters, seed) not in table:
                    table.append(runs(name, generator, parameters, seed))
    return table


def main() -> None:
    parser = folder_arguments(__doc__, __file__)
    parser.add_argument("--recordings", type=Path, help="The folder of the recordings.")
    given = parser.parse_args()
    sources = dict(GENERATORS)
    if given.recordings is not None:
        for name in ("canada", "london"):
            recorded = at_no_load(series(given.recordings, f"cnn-{name}"))
            sources[f"{name}, as recorded"] = RecordedRounds(recorded=recorded)
    rows = tables(given.output, sources).rows()
    (given.output / "summary.csv").unlink(missing_ok=True)
    table = Table(given.output / "summary.csv", SUMMARY, keys=3)
    table.append(summary(rows))
    picture = figure(height=1.0 + 0.26 * (1 + len(table.rows()) // len(FAMILIES)))
    ax = picture.subplots()
    draw(ax, table.rows())
    handles = ax.get_legend_handles_labels()
    picture.legend(*handles, loc="outside upper center", ncols=len(FAMILIES), frameon=False)
    save(picture, given.output / "run_times.svg")


if __name__ == "__main__":
    main()

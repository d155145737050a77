"""The parameters that are chosen on T_probe rounds, and their run times (Table 3).

python -m experiments.table3_probe.run [--output FOLDER]

Table 1's procedure (`experiments.table1_run_time.run`) with 10 to 80 rounds to choose on: the
fastest of a family on the first T_probe rounds of delays, and its run time of 480 jobs on other
delays of the same kind; ten times, each with its own delays. Delays are like ``canada d``, with its
stalls and without. A row that is in ``runs.csv`` is not computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.delays import CANADA
from experiments.results import Table, figure, folder_arguments, save
from experiments.table1_run_time.run import (
    JOBS,
    MODELS,
    PROBED,
    RULE,
    STUDENT,
    WORKERS,
    Mean,
    rehearsal,
)
from seqgc.plot import COLORS
from seqgc.profiles import ProfileGenerator
from seqgc.schemes import by_rounds, parse_scheme
from seqgc.search import Rehearsal, SearchSpace, batch_replay, tune

PROBES = 10, 20, 40, 60, 80
SEEDS = 10
FAMILIES = "m-sgc", "sr-sgc", "gc"
DELAYS: dict[str, ProfileGenerator] = {"stalls": CANADA, "no stalls": CANADA.base}
PAPER = {  # family: T_probe -> parameters, mean and standard deviation of 10 run times
    "m-sgc": {
        10: ("1, 2, 24", 872.78, 80.67), 20: ("1, 2, 24", 872.78, 80.67),
        40: ("1, 2, 27", 871.99, 59.76), 60: ("1, 2, 27", 871.99, 59.76),
        80: ("1, 2, 27", 871.99, 59.76),
    },
    "sr-sgc": {
        10: ("2, 3, 15", 1226.90, 93.53), 20: ("2, 3, 15", 1226.90, 93.53),
        40: ("2, 3, 20", 1060.61, 62.72), 60: ("2, 3, 22", 964.06, 53.48),
        80: ("2, 3, 23", 984.37, 51.02),
    },
    "gc": {
        10: ("9", 1288.57, 94.15), 20: ("10", 1261.61, 80.87), 40: ("11", 1168.67, 77.60),
        60: ("14", 1142.01, 38.41), 80: ("15", 1067.56, 40.92),
    },
}  # fmt: skip
RUNS = "delays", "seed", "probe", "family", "scheme", "load", "runtime_s"
SUMMARY = (
    *("delays", "family", "probe", "different", "most_chosen", "times"),
    *("load", "runtime_s", "interval_s"),
)


def probed(generator: ProfileGenerator, seed: int, probe: int) -> Rehearsal:
    """Return the first ``probe`` of the rounds on which Table 1 chooses parameters."""
    whole = rehearsal(generator, seed, jobs=PROBED, probe=True)
    rounds = probe + MODELS - 1  # as many jobs as the paper's rounds, whatever a scheme's delay
    return replace(whole, profile=whole.profile.select_rounds(0, stop=rounds), num_jobs=probe)


def chosen(generator: ProfileGenerator, seed: int, probe: int, family: str) -> str:
    space = SearchSpace(
        families=(family,), mus=(RULE.mu,), wait_outs=(RULE.wait_out,),
        jobs_per_round=(1,), max_delay=MODELS - 1,
    )  # fmt: skip
    return tune(probed(generator, seed, probe), space=space).best.setting.scheme.spec


def runs(delays: str, seed: int, *, probes: Sequence[int] = PROBES) -> Iterator[dict[str, object]]:
    """Yield the run time of each family's choice on each number of rounds, in the same run."""
    generator = DELAYS[delays]
    cases = [(probe, family) for probe in probes for family in FAMILIES]
    specs = [chosen(generator, seed, probe, family) for probe, family in cases]
    schemes = [by_rounds(parse_scheme(spec, n=WORKERS), "Table 3") for spec in specs]
    batch = batch_replay(schemes, rehearsal(generator, seed, jobs=JOBS, probe=False), rule=RULE)
    for place, (probe, family) in enumerate(cases):
        yield {
            "delays": delays,
            "seed": seed,
            "probe": probe,
            "family": family,
            "scheme": specs[place],
            "load": f"{schemes[place].normalized_load:.6f}",
            "runtime_s": f"{batch.runtime_s[place]:.1f}",
        }


def summary(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, object]]:
    """Yield each case's mean run time, and the parameters that most of the ten runs chose."""
    for delays in DELAYS:
        for family in FAMILIES:
            for probe in PROBES:
                case = (delays, family, str(probe))
                mine = [row for row in rows if (row["delays"], row["family"], row["probe"]) == case]
                if len(mine) < SEEDS:
                    continue  # it was interrupted
                mean = Mean.of(np.array([float(row["runtime_s"]) for row in mine]))
                choices = Counter(row["scheme"] for row in mine)
                ((most, times),) = choices.most_common(1)
                yield {
                    "delays": delays,
                    "family": family,
                    "probe": probe,
                    "different": len(choices),
                    "most_chosen": most if times > 1 else "",
                    "times": times,
                    "load": f"{np.mean([float(row['load']) for row in mine]):.4f}",
                    "runtime_s": f"{mean.value:.0f}",
                    "interval_s": f"{mean.half:.0f}",
                }


def draw(rows: Sequence[dict[str, str]], to: Path) -> None:
    """Draw mean run times over T_probe with their 95 % intervals: the paper's, and ours."""
    picture = figure(width=9.6, height=3.4)
    axes = picture.subplots(1, 1 + len(DELAYS), sharex=True)
    for place, family in enumerate(FAMILIES):
        paper = [(p, m, STUDENT * sd / SEEDS**0.5) for p, (_, m, sd) in PAPER[family].items()]
        points: dict[str, list[tuple[float, float, float]]] = {"the paper": paper}
        for row in rows:
            if row["family"] == family:
                point = float(row["probe"]), float(row["runtime_s"]), float(row["interval_s"])
                points.setdefault(row["delays"], []).append(point)
        for ax, (name, mine) in zip(axes, points.items(), strict=True):
            x, y, half = zip(*mine, strict=True)
            x = [value + 1.2 * (place - 1) for value in x]
            ax.errorbar(x, y, yerr=half, fmt="o-", markersize=4, color=COLORS[place], label=family)
            ax.set(title=name, xlabel="rounds to choose on", ylim=(500, 1500))
    axes[0].set_ylabel("seconds, 480 jobs")
    axes[0].legend(frameon=False)
    save(picture, to)


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    table = Table(folder / "runs.csv", RUNS, keys=2)
    for delays in DELAYS:
        for seed in range(SEEDS):
            if (delays, seed) not in table:
                table.append(runs(delays, seed))
    (folder / "summary.csv").unlink(missing_ok=True)
    means = Table(folder / "summary.csv", SUMMARY, keys=3)
    means.append(summary(table.rows()))
    draw(means.rows(), folder / "run_times.svg")


if __name__ == "__main__":
    main()

"""Stragglers, the length of their bursts, and the lateness of answers (Fig. 1).

python -m experiments.fig1_profile.run [RECORDING.csv --output FOLDER]

Of 100 rounds that `experiments.delays.CANADA` generates, or of a recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.delays import CANADA, STALL_S
from experiments.results import Table, figure, folder_arguments, save
from seqgc import plot
from seqgc.profiles import DelayProfile, read_profile
from seqgc.stragglers import straggler_pattern, straggler_stats

MU, ROUNDS, WORKERS, SEED = 1.0, 100, 256, 1
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)


def generated() -> DelayProfile:
    return CANADA.profile(ROUNDS, workers=WORKERS, rng=np.random.default_rng(SEED))


def statistics(profile: DelayProfile) -> Iterator[dict[str, object]]:
    """Yield the numbers that Fig. 1 shows."""
    stats = straggler_stats(profile, mu=MU)
    per_round = straggler_pattern(profile, mu=MU).sum(axis=1)
    lasting = np.append(stats.bursts, [0, 0, 0])
    after = stats.rate_after_straggling
    values: dict[str, float | str] = {
        "rounds": profile.num_rounds,
        "P(S)": f"{stats.rate:.4f}",
        "P(S after S)": "" if after is None else f"{after:.4f}",
        "stragglers in a round, median": f"{np.median(per_round):g}",
        "stragglers in a round, most": int(per_round.max()),
        "bursts of 1 round": int(lasting[0]),
        "bursts of 2 rounds": int(lasting[1]),
        "bursts of 3 or more": int(lasting[2:].sum()),
        "rounds with a stall": int((profile.times > STALL_S).any(axis=1).sum()),
    }
    for share, seconds in zip(QUANTILES, np.quantile(profile.times, QUANTILES), strict=True):
        values[f"seconds, {100 * share:g} % answered"] = f"{seconds:.2f}"
    for what, value in values.items():
        yield {"statistic": what, "value": value}


def tables(folder: Path, profile: DelayProfile) -> Table:
    table = Table(folder / "statistics.csv", ("statistic", "value"), keys=1)
    if ("rounds",) not in table:
        table.append(statistics(profile))
    return table


def main() -> None:
    parser = folder_arguments(__doc__, __file__)
    parser.add_argument("recording", type=Path, nargs="?")
    given = parser.parse_args()
    profile = generated()
    if given.recording is not None:
        if given.output == Path(__file__).parent:
            parser.error(
                "a recording needs --output FOLDER: this folder is the generated profile's"
            )
        profile = read_profile(given.recording)
    tables(given.output, profile)
    picture = figure(width=9.6, height=6.4)
    panels = picture.subplot_mosaic([["heat", "heat"], ["bursts", "times"]])
    plot.heat_map(profile, ax=panels["heat"], mu=MU)
    plot.bursts(profile, ax=panels["bursts"], mu=MU)
    plot.completion_times(profile, ax=panels["times"])
    save(picture, given.output / "profile.svg")


if __name__ == "__main__":
    main()

"""One job's decoding against the fastest round (Table 4, appendix K.1).

OMP_NUM_THREADS=1 python -m experiments.table4_decoding.run [--output FOLDER]

The schemes and delays of Table 1 (`experiments.table1_run_time`), first run, on generated delays
like ``canada d``. The answers are replayed, and every job is decoded from float32 results of
269,998 parameters. A job's time, from its last round's end to its gradient, consists of the
decoding vector and the part of the combination that was not done while answers arrived. It is the
thread's CPU time, as on a core without other work. A scheme that is in ``times.csv`` is not
measured again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from experiments.codes.decode_times import PARAMETERS, jobs, require_one_thread
from experiments.delays import CANADA
from experiments.results import Table, figure, folder_arguments, save
from experiments.table1_run_time.run import PAPER, RULE, WORKERS, rehearsal
from seqgc.plot import COLORS
from seqgc.rounds import Setting
from seqgc.schemes import Scheme, by_rounds, parse_scheme
from seqgc.search import replay

SEED, JOBS = 0, 40
TABLE_4: Final = {  # family: one job, its standard deviation, the longest; fastest round: all ms
    "m-sgc": (290.0, 18.7, 479.0, 1177.0),
    "sr-sgc": (309.0, 20.1, 401.0, 1349.0),
    "gc": (204.0, 20.6, 408.0, 1379.0),
}
FIELDS = (
    *("family", "scheme", "jobs", "median_ms", "mean_ms", "sd_ms", "longest_ms"),
    *("fastest_round_ms", "longest_per_round"),
)


def fresh(family: str) -> Scheme:
    """Return a family's scheme of Table 1, with a code that has cached no decoding vectors."""
    return by_rounds(parse_scheme(PAPER[family][0], n=WORKERS), "Table 4")


def fastest_round_ms(family: str, *, num_jobs: int = JOBS) -> float:
    seconds = replay(
        Setting(scheme=fresh(family), rule=RULE),
        rehearsal(CANADA, SEED, jobs=num_jobs, probe=False),
    ).round_seconds
    return float(1e3 * seconds[seconds > 0].min())  # SR-SGC's last round may be idle


def measured(
    family: str, *, num_jobs: int = JOBS, parameters: int = PARAMETERS
) -> Iterator[dict[str, object]]:
    setting = Setting(scheme=fresh(family), rule=RULE)
    delays = rehearsal(CANADA, SEED, jobs=num_jobs, probe=False)
    run, times = replay(setting, delays), delays.times(setting)
    clock = time.thread_time
    each = jobs(fresh(family), run.responded, times, parameters=parameters, clock=clock)
    ms = 1e3 * np.array(list(each))
    fastest = fastest_round_ms(family, num_jobs=num_jobs)
    yield {
        "family": family,
        "scheme": setting.scheme.spec,
        "jobs": len(ms),
        "median_ms": f"{np.median(ms):.3g}",
        "mean_ms": f"{ms.mean():.3g}",
        "sd_ms": f"{ms.std(ddof=1):.2g}",
        "longest_ms": f"{ms.max():.3g}",
        "fastest_round_ms": f"{fastest:.0f}",
        "longest_per_round": f"{ms.max() / fastest:.2g}",
    }


def draw(rows: Sequence[dict[str, str]], to: Path) -> None:
    """Draw the mean and longest decoding and the fastest round: the paper's, and ours."""
    picture = figure(height=2.6)
    for ax, ours in zip(picture.subplots(1, 2, sharex=True, sharey=True), (0, 1), strict=True):
        for place, row in enumerate(rows):
            mean, _, longest, fastest = TABLE_4[row["family"]]
            if ours:
                names = "mean_ms", "longest_ms", "fastest_round_ms"
                mean, longest, fastest = (float(row[name]) for name in names)
            ax.plot([mean, longest], [place] * 2, color=COLORS[0])
            for value, mark in ((mean, "o"), (longest, "|"), (fastest, "s")):
                color = COLORS[1 if mark == "s" else 0]
                ax.plot(value, place, mark, color=color, markersize=8)
        ax.set(xscale="log", title=("the paper", "here")[ours])
    ax.set_yticks(range(len(rows)), [row["family"] for row in rows])
    ax.invert_yaxis()
    picture.supxlabel(
        "ms: decoding (● mean, | longest), and ■ the fastest round", fontsize="medium"
    )
    save(picture, to)


def main() -> None:
    parser = folder_arguments(__doc__, __file__)
    require_one_thread(parser)
    folder: Path = parser.parse_args().output
    table = Table(folder / "times.csv", FIELDS, keys=1)
    for family in TABLE_4:
        if (family,) not in table:
            table.append(measured(family))
    draw(table.rows(), folder / "times.svg")


if __name__ == "__main__":
    main()

"""The run time of every SR-SGC and M-SGC on probed delays, and the fastest (Fig. 17).

python -m experiments.fig17_search.run [--output FOLDER]

The whole search of Table 1's first tuned run (`experiments.table1_run_time.run`): 80 jobs on 80
rounds of delays like ``canada d``, under the paper's rule, and the same rounds without stalls. An
existing table is not made again, nor is its picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.delays import CANADA
from experiments.results import Table, figure, folder_arguments, save
from experiments.table1_run_time.run import MODELS, PROBED, RULE, WORKERS, rehearsal
from seqgc import plot
from seqgc.schemes import MSGC, SRSGC
from seqgc.search import Rehearsal, SearchSpace, batch_replay, tune

SEED = 0
DELAYS = {"stalls": CANADA, "no_stalls": CANADA.base}
FAMILIES = "sr-sgc", "m-sgc"
FIELDS = "family", "B", "W", "lam", "runtime_s"


def probed(delays: str) -> Rehearsal:
    return rehearsal(DELAYS[delays], SEED, jobs=PROBED, probe=True)


def space(family: str) -> SearchSpace:
    """Return the schemes of a family that 4 models have time for, under the paper's rule."""
    return SearchSpace(
        families=(family,), mus=(RULE.mu,), wait_outs=(RULE.wait_out,),
        jobs_per_round=(1,), max_delay=MODELS - 1,
    )  # fmt: skip


def schemes(family: str) -> list[SRSGC | MSGC]:
    return [each for each in space(family).schemes(WORKERS) if isinstance(each, SRSGC | MSGC)]


def landscape(delays: str, chosen: Sequence[SRSGC | MSGC]) -> Iterator[dict[str, object]]:
    seconds = batch_replay(chosen, probed(delays), rule=RULE).runtime_s
    for scheme, runtime_s in zip(chosen, seconds, strict=True):
        yield {
            "family": scheme.spec.partition(":")[0],
            "B": scheme.B,
            "W": scheme.W,
            "lam": scheme.lam,
            "runtime_s": f"{runtime_s:.1f}",
        }


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    for delays in DELAYS:
        table = Table(folder / f"{delays}.csv", FIELDS, keys=1)
        if table.rows():
            continue
        table.append(row for each in FAMILIES for row in landscape(delays, schemes(each)))
        picture = figure(width=9.6, height=6.0)
        for ax, family in zip(picture.subplots(len(FAMILIES)), FAMILIES, strict=True):
            found = tune(probed(delays), space=space(family), top=100_000, prune=False)
            plot.landscape(found, ax=ax)
        save(picture, folder / f"{delays}.svg")


if __name__ == "__main__":
    main()

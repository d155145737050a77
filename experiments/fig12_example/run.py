"""The tasks of workers that all straggle in every other round (Fig. 12, Example F.1).

python -m experiments.fig12_example.run [--output FOLDER]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.results import Table, figure, folder_arguments, save
from seqgc.ports import MiniTask
from seqgc.schemes import Scheme, by_rounds, parse_scheme
from seqgc.stragglers import Bursty

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORKERS, JOBS = 4, 5
SCHEMES = "sr-sgc:B=1,W=2,lam=4", "m-sgc:B=1,W=2,lam=4"
FIELDS = ("scheme", "round", "worker", "straggles", "computes", "load", "finished")
GREY = "#d0d0d0"


def scheme_of(spec: str) -> Scheme:
    return by_rounds(parse_scheme(spec, n=WORKERS), "this example")


def played(spec: str) -> Iterator[dict[str, object]]:
    """Run a scheme; yield each worker's work, its part of a batch, and the jobs that it finished.

    ``gK(T)`` is the partial gradient of job T on chunk K, ``l(T)`` a combination of several.
    """
    scheme = scheme_of(spec)
    schedule = scheme.begin(JOBS)
    for number in range(schedule.num_rounds):
        everyone_straggles = number % 2 == 0
        tasks = list(schedule.assignment())
        responded = np.full(WORKERS, not everyone_straggles)
        finished = schedule.close_round(responded)
        for worker, mine in enumerate(tasks):
            fractions = [scheme.chunk_fractions[task.chunks].sum() for task in mine]
            yield {
                "scheme": spec,
                "round": number,
                "worker": worker,
                "straggles": int(everyone_straggles),
                "computes": " ".join(map(name, mine)),
                "load": f"{sum(fractions):g}",
                "finished": " ".join(map(str, finished)),
            }


def name(task: MiniTask) -> str:
    what = f"g{task.chunks[0]}" if len(task.chunks) == 1 else "l"
    return f"{what}({task.job})"


def loads(spec: str) -> dict[str, object]:
    """Return a scheme's load, and the least load that tolerates the same stragglers."""
    scheme = scheme_of(spec)
    least = Bursty(B=1, W=2, lam=WORKERS).load_lower_bound(WORKERS, delay=scheme.delay)
    return {"scheme": spec, "load": f"{scheme.normalized_load:g}", "bound": f"{least:g}"}


def draw(ax: Axes, rows: Sequence[dict[str, str]]) -> None:
    """Draw a scheme's rounds (columns) and workers (rows); stragglers are grey."""
    rounds = 1 + max(int(row["round"]) for row in rows)
    for row in rows:
        x, y = int(row["round"]), int(row["worker"])
        color = GREY if row["straggles"] == "1" else "white"
        ax.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], facecolor=color, edgecolor="black")
        what = row["computes"].replace(" ", "\n")
        ax.text(x + 0.5, y + 0.5, what, ha="center", va="center", fontsize=8)
    finished = {int(row["round"]): row["finished"] for row in rows}
    below = [f"{t}\n{'finishes ' + finished[t] if finished[t] else '–'}" for t in range(rounds)]
    ax.set_xticks(np.arange(rounds) + 0.5, below)
    ax.set_yticks(np.arange(WORKERS) + 0.5, [str(worker) for worker in range(WORKERS)])
    ax.set(xlim=(0, rounds), ylim=(WORKERS, 0), ylabel="worker", title=rows[0]["scheme"])
    ax.set_xlabel("round, and the jobs that it finishes (grey: all straggle)")
    ax.tick_params(length=0)


def tables(folder: Path) -> Table:
    tasks = Table(folder / "tasks.csv", FIELDS, keys=1)
    compared = Table(folder / "loads.csv", ("scheme", "load", "bound"), keys=1)
    for spec in SCHEMES:
        if (spec,) not in tasks:
            tasks.append(played(spec))
        if (spec,) not in compared:
            compared.append([loads(spec)])
    return tasks


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    tasks = tables(folder)
    picture = figure(height=5.6)
    for ax, spec in zip(picture.subplots(len(SCHEMES)), SCHEMES, strict=True):
        draw(ax, [row for row in tasks.rows() if row["scheme"] == spec])
    save(picture, folder / "tasks.svg")


if __name__ == "__main__":
    main()

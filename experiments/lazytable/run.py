"""What staleness costs and saves: Figures 3, 4, 5 and 8 of the paper on bounded staleness.

python -m experiments.lazytable.run [--output FOLDER]

In virtual time, with the apps of `seqgc.tables.apps` (Cui et al., "Exploiting bounded staleness to
speed up big data analytics", USENIX ATC 2014): 8 workers, 48 iterations. An iteration is one pass
over the data, and takes each worker a second of computing on average; the seconds vary from clock
to clock by a lognormal factor (sigma 0.3). Each clock also takes the worker 0.15 s to fetch the
tables and to send its changes. A configuration {wpc, slack} is ``passes=wpc`` with ``ssp:slack``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.results import Table, figure, folder_arguments, save
from seqgc.profiles import ByRound
from seqgc.tables import App, AppRun, run_app
from seqgc.tables.apps import (
    LDA,
    MatrixFactorization,
    PageRank,
    help_texts,
    photograph,
    python_imports,
)

WORKERS, ITERATIONS, MESSAGE_S, SIGMA = 8, 48, 0.15, 0.3
ANY = "inf"  # no limit of staleness
FIELDS = ("figure", "app", "wpc", "slack", "message_s", "iteration", "seconds", "objective")
FIGURES = {
    "3a": ("lda", [(1, 0), (2, 0), (4, 0), (8, 0)]),
    "3b": ("lda", [(1, 0), (1, 1), (1, 3), (1, 7), (1, ANY)]),
    "3c": ("lda", [(1, 0), (4, 0), (1, 3), (2, 1)]),
    "5 mf": ("mf", [(1, 0), (2, 0), (4, 0), (1, 1), (1, 3), (2, 1)]),
    "5 pagerank": ("pagerank", [(1, 0), (2, 0), (4, 0), (1, 1), (1, 3), (2, 1)]),
}
MESSAGES = {"8": ("pagerank", [(2, 0), (1, 1)], (0.0, MESSAGE_S))}


def app_of(name: str) -> App:
    if name == "mf":
        return MatrixFactorization(ratings=photograph())
    if name == "pagerank":
        return PageRank(graph=python_imports())
    return LDA(documents=help_texts(most=40))


def pace(message_s: float = MESSAGE_S) -> ByRound:
    """Return the seconds of the workers; a worker's share of a pass is 1/8 of the data."""
    factors = np.random.default_rng(1).lognormal(-(SIGMA**2) / 2, SIGMA, (ITERATIONS, WORKERS))
    return ByRound(latencies_s=np.full((1, WORKERS), message_s), rates=WORKERS * factors)


def ran(app: App, wpc: int, slack: int | str, message_s: float = MESSAGE_S) -> AppRun:
    spec = "asp" if slack == ANY else f"ssp:slack={slack}"
    return run_app(app, spec, workers=pace(message_s), clocks=ITERATIONS // wpc, passes=wpc)


def measured(number: str) -> Iterator[dict[str, object]]:
    """Yield the rows of one figure: the objective after each clock."""
    name, configurations = FIGURES[number] if number in FIGURES else MESSAGES[number][:2]
    messages = MESSAGES[number][2] if number in MESSAGES else (MESSAGE_S,)
    app = app_of(name)
    for message_s in messages:
        for wpc, slack in configurations:
            run = ran(app, wpc, slack, message_s)
            for clock, (at_s, value) in enumerate(zip(run.at_s, run.objectives, strict=True)):
                fields = number, name, wpc, slack, message_s, clock * wpc
                rest = f"{at_s:.3f}", f"{value:.6g}"
                yield dict(zip(FIELDS, (*fields, *rest), strict=True))


def curves(rows: list[dict[str, str]], number: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a figure by configuration, ``{wpc, slack}``."""
    found = dict[str, list[dict[str, str]]]()
    for row in rows:
        if row["figure"] == number:
            more = f", {row['message_s']} s" if number in MESSAGES else ""
            found.setdefault(f"{{{row['wpc']}, {row['slack']}}}{more}", []).append(row)
    return found


def main() -> None:
    """Make the table, as far as it is missing, and the picture."""
    folder = folder_arguments(__doc__, __file__).parse_args().output
    table = Table(folder / "curves.csv", FIELDS, keys=1)
    for number in (*FIGURES, *MESSAGES):
        if (number,) not in table:
            table.append(measured(number))
    rows = table.rows()
    picture = figure(width=9.6, height=8.4)
    axes = picture.subplots(3, 3).ravel()
    for ax, number in zip(axes, [*FIGURES, "8"], strict=False):
        for name, of_it in curves(rows, number).items():
            seconds = [float(row["seconds"]) for row in of_it]
            ax.plot(seconds, [float(row["objective"]) for row in of_it], label=name)
        ax.set(title=f"Fig. {number}", xlabel="seconds", ylabel="objective")
        ax.set_yscale("log" if number != "3a" and not number.startswith("3") else "linear")
        ax.legend(fontsize="x-small")
    speed, effect, waits = axes[6:]
    for number in ("3a", "3b"):
        for name, of_it in curves(rows, number).items():
            iterations = [int(row["iteration"]) for row in of_it]
            speed.plot([float(row["seconds"]) for row in of_it], iterations, label=name)
            effect.plot(iterations, [float(row["objective"]) for row in of_it], label=name)
    speed.set(title="Fig. 3, iteration speed", xlabel="seconds", ylabel="iterations")
    effect.set(title="Fig. 3, effectiveness", xlabel="iterations", ylabel="objective")
    names = dict[str, float]()
    for number in ("3a", "3b"):
        for name, of_it in curves(rows, number).items():
            names[name] = float(of_it[-1]["seconds"]) / ITERATIONS
    computing = float(pace().rates.mean() / WORKERS)
    waits.bar(list(names), [computing] * len(names), label="computing")
    waits.bar(
        list(names),
        [each - computing for each in names.values()],
        bottom=[computing] * len(names),
        label="waiting and messages",
    )
    waits.tick_params(axis="x", rotation=90, labelsize="x-small")
    waits.set(title="Fig. 4", ylabel="seconds per iteration")
    waits.legend(fontsize="x-small")
    save(picture, folder / "curves.svg")


if __name__ == "__main__":
    main()

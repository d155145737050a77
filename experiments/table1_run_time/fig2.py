"""Jobs and loss over time of Table 1's schemes (Fig. 2).

python -m experiments.table1_run_time.fig2 [--output FOLDER]

The first run of Table 1 on delays like ``canada d``, with the paper's parameters. All schemes
decode the same gradients, so the loss after a step is the same with each of them. It comes from
one training without stragglers (a small network on the digits), and the time of a step from the
scheme's own run. Needs the extra ``demo``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from experiments.delays import CANADA
from experiments.results import Table, figure, folder_arguments, save
from experiments.table1_run_time.run import (
    FAMILIES,
    JOBS,
    MODELS,
    PAPER,
    RULE,
    WORKERS,
    rehearsal,
)
from seqgc.plot import COLORS
from seqgc.rounds import Setting
from seqgc.schemes import by_rounds, parse_scheme
from seqgc.search import replay

SEED = 0
DONE = "family", "job", "finished_s"
LOSSES = "step", "loss"


def finished(family: str, *, jobs: int = JOBS) -> Iterator[dict[str, object]]:
    """Yield the time at which each job of the first model was finished."""
    scheme = by_rounds(parse_scheme(PAPER[family][0], n=WORKERS), "Fig. 2")
    delays = rehearsal(CANADA, SEED, jobs=jobs, probe=False)
    table = replay(Setting(scheme=scheme, rule=RULE), delays).jobs()
    for job, seconds in zip(table["job"].tolist(), table["finished_s"].tolist(), strict=True):
        if job % MODELS == 0:
            yield {"family": family, "job": job, "finished_s": f"{seconds:.2f}"}


def losses(steps: int) -> Iterator[dict[str, object]]:
    """Train a network; yield its loss before each step."""
    import torch

    from seqgc import read_run, workers
    from seqgc.schemes import Uncoded
    from seqgc.training import Model, TrainingPlan, digits, make_module, train

    model = Model(
        name="digits",
        module=make_module("mlp", seed=0),
        loss=torch.nn.CrossEntropyLoss(),
        dataset=digits().train,
        optimizer=partial(torch.optim.Adam, lr=0.01),
        batch_size=1024,
        seed=0,
    )
    plan = TrainingPlan(models=[model], scheme=Uncoded(n=1), steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        result = train(plan, workers.local(1), run=Path(folder, "run"))
        table = read_run(result.run).models()
    for step, loss in zip(table["step"].tolist(), table["loss"].tolist(), strict=True):
        yield {"step": step, "loss": f"{loss:.4g}"}


def draw(done: Sequence[dict[str, str]], loss: Sequence[dict[str, str]], path: Path) -> None:
    picture = figure(width=9.6, height=3.6)
    jobs, over_time = picture.subplots(1, 2)
    for color, family in zip(COLORS, FAMILIES, strict=False):
        mine = [row for row in done if row["family"] == family]
        seconds = [float(row["finished_s"]) for row in mine]
        line = jobs.plot(seconds, [int(row["job"]) + 1 for row in mine], color=color)
        line[0].set_label(PAPER[family][0])
        # The loss before a step is known when the step's job is done.
        over_time.plot(seconds, [float(row["loss"]) for row in loss[: len(mine)]], color=color)
    jobs.set(xlabel="seconds", ylabel="jobs finished, all models")
    over_time.set(xlabel="seconds", ylabel="loss of the first model", yscale="log")
    picture.legend(loc="outside upper center", ncols=len(FAMILIES), frameon=False)
    save(picture, path)


def main() -> None:
    folder: Path = folder_arguments(__doc__, __file__).parse_args().output
    done = Table(folder / "finished.csv", DONE, keys=1)
    for family in FAMILIES:
        if (family,) not in done:
            done.append(finished(family))
    loss = Table(folder / "losses.csv", LOSSES, keys=1)
    if ("0",) not in loss:
        loss.append(losses(JOBS // MODELS))
    draw(done.rows(), loss.rows(), folder / "fig2.svg")


if __name__ == "__main__":
    main()

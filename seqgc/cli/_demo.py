"""``seqgc demo``: the main job on this machine, uncoded and coded side by side."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from seqgc.cli._options import AsJson, apply, configured
from seqgc.cli._run import make_delays, make_workers, prepare
from seqgc.cli._show import print_json
from seqgc.cli._train import facts_of
from seqgc.cli.config import MOST_MODELS, Values, validated
from seqgc.errors import require_int
from seqgc.schemes import parse_scheme

if TYPE_CHECKING:
    from seqgc.training import TrainResult

LEAST_ACCURACY = 0.95
STEPS = 50
LEARNING = {"lr": 0.02, "batch_size": 512}


@configured("scheme", "workers", "steps", "delays.scale")
def demo(
    flags: Values,
    models: Annotated[int, "Models trained at once."] = 4,
    seed: Annotated[int, "Of the injected delays."] = 0,
    run: Annotated[Path, "Folder of the two run folders."] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Train models on real handwritten digits, uncoded and coded, under injected stragglers."""
    count = require_int("models", models, least=1, most=MOST_MODELS)
    values: Values = {
        "steps": STEPS,
        "models": [{"name": f"model-{i}", "seed": i, **LEARNING} for i in range(count)],
        "delays": {"seed": seed},
    }
    apply(flags, values)
    config = validated(values)
    spec = parse_scheme(config.scheme, n=config.workers).spec
    configs = [config.model_copy(update={"scheme": each}) for each in ("uncoded", spec)]
    with ExitStack() as stack:
        crews = [stack.enter_context(make_workers(c, delays=make_delays(c))) for c in configs]
        from seqgc.training import new_run_path

        paths = [new_run_path(run, f"demo-{each.scheme}") for each in configs]
        # both, before the first one runs
        runs = [prepare(each, crew) for each, crew in zip(configs, crews, strict=True)]
        uncoded, coded = (each.train(run=path) for each, path in zip(runs, paths, strict=True))
    if as_json:
        print_json({"uncoded": _facts(uncoded), "coded": _facts(coded), "seed": seed})
    else:
        _print(uncoded, coded, seed=seed)
    worst = min(_accuracies(uncoded) + _accuracies(coded))
    if worst < LEAST_ACCURACY:
        sys.stderr.write(
            f"seqgc: the worst model's accuracy is {worst:.3f}, below {LEAST_ACCURACY}: "
            f"train longer than {config.steps} steps\n"
        )
        raise typer.Exit(1)


def _accuracies(result: TrainResult) -> list[float]:
    return [seen.accuracy or 0.0 for seen in result.evaluations.values()]


def _facts(result: TrainResult) -> Values:
    seconds = sum(result.counts.round_seconds)
    return facts_of(result) | {"round_seconds": seconds, "accuracy": _accuracies(result)}


def _print(uncoded: TrainResult, coded: TrainResult, *, seed: int) -> None:
    both = (uncoded, coded)
    table = Table(title="The same models, workers and delays, twice")
    table.add_column("")
    for result in both:
        table.add_column(result.scheme, justify="right")
    rows = {
        "run time": [f"{r.seconds:.1f} s" for r in both],
        "rounds": [str(len(r.counts.round_seconds)) for r in both],
        "median round": [f"{median(r.counts.round_seconds):.3f} s" for r in both],
        "slowest round": [f"{max(r.counts.round_seconds):.3f} s" for r in both],
        "stragglers survived": [str(r.counts.stragglers) for r in both],
        "wait-outs": [str(r.counts.waited_out) for r in both],
        "test accuracy, worst model": [f"{min(_accuracies(r)):.3f}" for r in both],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    console.print(f"{coded.scheme} took {coded.seconds / uncoded.seconds:.0%} of the uncoded time.")
    where = f"Runs: {uncoded.run} and {coded.run}"
    console.print(f"Delays: generated, seed {seed}. {where}", markup=False)

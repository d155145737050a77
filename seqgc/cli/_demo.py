"""``seqgc demo``: the same training on this machine three times: uncoded, coded and dealt.

In a dealt training (`deal`), workers fetch a new piece of a batch whenever they are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from seqgc._grid import MOST_MODELS
from seqgc.cli._messages import say
from seqgc.cli._options import apply, configured
from seqgc.cli._run import prepare
from seqgc.cli._show import WAIT_OUT, Screen, TableOutput
from seqgc.cli._train import facts_of
from seqgc.config._making import make_delays, make_workers
from seqgc.config._tables import Values, validated
from seqgc.errors import require_int
from seqgc.plot import tables
from seqgc.runs import read_run
from seqgc.schemes import parse_scheme

if TYPE_CHECKING:
    from seqgc.training import TrainResult

LEAST_ACCURACY = 0.95
STEPS = 50
LEARNING = {"lr": 0.02, "batch_size": 512}


@configured("scheme", "workers", "steps", "delays.scale", defaults={"steps": STEPS})
def demo(
    flags: Values,
    models: Annotated[int, "Number of models that are trained at the same time."] = 4,
    delay_seed: Annotated[int, "Seed of the injected delays."] = 0,
    runs: Annotated[Path, "Folder in which each run gets a new folder."] = Path("runs"),
    *,
    output: TableOutput,
) -> None:
    """Train models on handwritten digits with stragglers, three times: uncoded, coded, dealt."""
    count = require_int("models", models, least=1, most=MOST_MODELS)
    values: Values = {
        "steps": STEPS,
        "models": [{"name": f"model-{i}", "seed": i, **LEARNING} for i in range(count)],
        "delays": {"seed": delay_seed},
    }
    apply(flags, values)
    config = validated(values)
    spec = parse_scheme(config.scheme, n=config.workers).spec
    specs = dict.fromkeys(["uncoded", spec, "deal"])  # without duplicates
    configs = [config.model_copy(update=_closing(each) | {"scheme": each}) for each in specs]
    with ExitStack() as stack:
        crews = [stack.enter_context(make_workers(c, delays=make_delays(c))) for c in configs]
        from seqgc.training import new_run_path

        paths = [new_run_path(runs, f"demo-{each.scheme}") for each in configs]
        # Prepare all runs before the first one starts, so that an error appears at once.
        plans = [prepare(each, crew) for each, crew in zip(configs, crews, strict=True)]
        results = [each.train(run=path) for each, path in zip(plans, paths, strict=True)]
    uncoded, coded, dealt = results[0], results[list(specs).index(spec)], results[-1]
    table = tables.trainings(results)
    named = {"uncoded": uncoded, "coded": coded, "dealt": dealt}
    facts = {name: _facts(result) for name, result in named.items()} | {"seed": delay_seed}
    output.show(table, facts=facts, text=lambda: _print(tables.rows_of(table), seed=delay_seed))
    worst = min(accuracy for result in results for accuracy in _accuracies(result))
    if worst < LEAST_ACCURACY:
        say(
            "inaccurate",
            f"seqgc: the worst model's accuracy is {worst:.3f}, below {LEAST_ACCURACY}: "
            f"train longer than {config.steps} steps",
            level="error",
        )
        raise typer.Exit(1)


def _accuracies(result: TrainResult) -> list[float]:
    return [each.accuracy or 0.0 for each in result.evaluations.values()]


def _facts(result: TrainResult) -> Values:
    seconds = float(read_run(result.run).rounds()["duration_s"].sum())
    return facts_of(result) | {"round_seconds": seconds, "accuracy": _accuracies(result)}


def _closing(spec: str) -> Values:
    """Return the values that a scheme requires for its closing rule; `deal` has no rounds."""
    return {"mu": 0.0, "wait_out": "feasible"} if spec == "deal" else {}


def _print(rows: Sequence[dict[str, Any]], *, seed: int) -> None:
    table = Table(title="The same models, workers and delays in each run")
    table.add_column("")
    for row in rows:
        table.add_column(row["scheme"], justify="right")
    lines = {
        "run time": ("seconds", "{:.1f} s"),
        "rounds": ("rounds", "{}"),
        "median round": ("median_round_s", "{:.3f} s"),
        "slowest round": ("slowest_round_s", "{:.3f} s"),
        "stragglers survived": ("stragglers", "{}"),
        "wait-outs": ("waited_out", "{}"),
        "test accuracy, worst model": ("worst_accuracy", "{:.3f}"),
    }
    for name, (column, form) in lines.items():
        table.add_row(name, *(form.format(row[column]) for row in rows))
    console = Screen()
    console.print(table)
    console.print(f"A wait-out is {WAIT_OUT}.")
    for row in rows[1:]:
        share = row["seconds"] / rows[0]["seconds"]
        console.print(f"{row['scheme']} took {share:.0%} of the uncoded time.")
    console.print(
        "A worker of deal starts once and then stays; other workers pay the start-up delay in each "
        "round. With deal, a round is a job, and several jobs are in progress at the same time."
    )
    where = ", ".join(row["run"] for row in rows)
    console.print(f"Delays: generated, seed {seed}. Runs: {where}", markup=False)

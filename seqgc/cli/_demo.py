"""``seqgc demo``: the same training on this machine three times: uncoded, coded and dealt.

In a dealt training (`deal`), workers fetch a new piece of a batch whenever they are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from seqgc._grid import MOST_MODELS
from seqgc.cli._messages import say
from seqgc.cli._options import AsJson, apply, configured
from seqgc.cli._run import prepare
from seqgc.cli._show import WAIT_OUT, Screen, print_json
from seqgc.cli._train import facts_of
from seqgc.config._making import make_delays, make_workers
from seqgc.config._tables import Values, validated
from seqgc.errors import require_int
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
    as_json: AsJson = False,
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
    if as_json:
        named = {"uncoded": uncoded, "coded": coded, "dealt": dealt}
        print_json({name: _facts(result) for name, result in named.items()} | {"seed": delay_seed})
    else:
        _print(results, seed=delay_seed)
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


def _round_seconds(result: TrainResult) -> list[float]:
    """Return the recorded seconds of each round, from its dispatch to its close."""
    seconds: list[float] = read_run(result.run).rounds()["duration_s"].tolist()
    return seconds


def _facts(result: TrainResult) -> Values:
    seconds = sum(_round_seconds(result))
    return facts_of(result) | {"round_seconds": seconds, "accuracy": _accuracies(result)}


def _closing(spec: str) -> Values:
    """Return the values that a scheme requires for its closing rule; `deal` has no rounds."""
    return {"mu": 0.0, "wait_out": "feasible"} if spec == "deal" else {}


def _print(results: Sequence[TrainResult], *, seed: int) -> None:
    uncoded, *others = results
    table = Table(title="The same models, workers and delays in each run")
    table.add_column("")
    for result in results:
        table.add_column(result.scheme, justify="right")
    rounds = [_round_seconds(r) for r in results]
    rows = {
        "run time": [f"{r.seconds:.1f} s" for r in results],
        "rounds": [str(len(seconds)) for seconds in rounds],
        "median round": [f"{median(seconds):.3f} s" for seconds in rounds],
        "slowest round": [f"{max(seconds):.3f} s" for seconds in rounds],
        "stragglers survived": [str(r.counts.stragglers) for r in results],
        "wait-outs": [str(r.counts.waited_out) for r in results],
        "test accuracy, worst model": [f"{min(_accuracies(r)):.3f}" for r in results],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console = Screen()
    console.print(table)
    console.print(f"A wait-out is {WAIT_OUT}.")
    for each in others:
        console.print(
            f"{each.scheme} took {each.seconds / uncoded.seconds:.0%} of the uncoded time."
        )
    console.print(
        "A worker of deal starts once and then stays; other workers pay the start-up delay in each "
        "round. With deal, a round is a job, and several jobs are in progress at the same time."
    )
    where = ", ".join(str(r.run) for r in results)
    console.print(f"Delays: generated, seed {seed}. Runs: {where}", markup=False)

"""``seqgc train`` and ``seqgc resume``."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from seqgc.cli._cost import show_forecast
from seqgc.cli._options import AsJson, apply, configured
from seqgc.cli._run import prepare
from seqgc.cli._show import show, waited_out
from seqgc.config._making import make_delays, make_workers
from seqgc.config._tables import (
    Values,
    import_plugins,
    read_config,
    read_run_config,
    validated,
    with_models,
)
from seqgc.errors import ModelError, ParameterError
from seqgc.progress import why_switched
from seqgc.runs import read_predictions
from seqgc.schemes import parse_scheme

if TYPE_CHECKING:
    from seqgc.training import TrainResult


_OF_WORKERS: Final = ("workers", "backend", "dask_scheduler", "function.resident")
"""The keys of the configuration that may change when a run is resumed."""


@configured(
    defaults={
        "scheme": "deal on local workers, else gc-rep:s=1",
        "workers": "without a scheme, one for each core on local workers; else 16",
    }
)
def train(
    flags: Values,
    config: Annotated[Path | None, typer.Argument(help="TOML file. Options override it.")] = None,
    models: Annotated[
        int | None,
        typer.Option(
            help="Number of models that differ only by their seed.",
            show_default="the models of the file, or 4",
        ),
    ] = None,
    dry_run: Annotated[
        bool, "--dry-run", "Estimate the sizes of messages and the cost; start nothing."
    ] = False,
    run: Annotated[
        Path | None, typer.Option(help="New folder for the run.", show_default="a new one in runs/")
    ] = None,
    or_resume: Annotated[
        bool,
        "--or-resume",
        "If the folder of --run exists, resume its run. For supervisors that restart masters.",
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train several models at once on unreliable workers; exact schemes give exact gradients."""
    if or_resume and run is None:
        raise ParameterError("or_resume", "needs --run, the folder of the run", True)
    values = with_models(read_config(config) if config is not None else {}, models)
    apply(flags, values)
    if or_resume and run is not None:
        values = _as_begun(run, values)
    settings = validated(values)
    parse_scheme(settings.scheme, n=settings.workers)  # raise before long work
    delays = make_delays(settings)
    if dry_run:
        show_forecast(prepare(settings, make_workers(settings, dry_run=True)), as_json=as_json)
        return
    with make_workers(settings, delays=delays) as workers:
        prepared = prepare(settings, workers)
        if or_resume and run is not None:
            result = prepared.train_or_resume(run)
        else:
            result = prepared.train(run=run)
    show_result(result, as_json=as_json)


def _as_begun(run: Path, values: Values) -> Values:
    """Return the values, completed with the scheme and the workers of the run, if the run exists.

    The defaults may be others now: a restarted master may have another number of cores, and
    `seqgc resume` may have moved the run to workers of another kind.

    Raises
    ------
    ParameterError
        If the values name another backend.
    """
    if not os.path.isfile(run / "config.toml"):  # noqa: PTH113 (`Path.is_file` may raise)
        return values
    begun = read_run_config(run)
    values = {key: begun[key] for key in ("scheme", *_OF_WORKERS) if key in begun} | values
    function, own = begun.get("function"), values.setdefault("function", {})
    if isinstance(function, dict) and isinstance(own, dict):
        own.setdefault("resident", function.get("resident", False))
    backend = values.get("backend")
    if backend != (before := begun.get("backend", backend)):
        remedy = f"to continue on it: seqgc resume {run} --backend {backend}"
        raise ParameterError("backend", f"must be {before}, as in this run", backend, remedy)
    return values


@configured(
    *_OF_WORKERS,
    defaults={
        "workers": "as before",
        "backend": "as before",
        "dask_scheduler": "as before, or a cluster on this machine",
        "function.resident": "as before",
    },
)
def resume(
    flags: Values,
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    accept_changes: Annotated[
        bool,
        "--accept-changes",
        "Report changes since the run began, and continue if the run's state can be loaded.",
    ] = False,
    max_usd: Annotated[
        float | None, "New budget for the whole run, in USD. By default the budget is unchanged."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint, to the same weights.

    With another number of workers, weights differ in the last digits.
    """
    values = read_run_config(run)
    if "backend" in flags and flags["backend"] != values.get("backend"):
        values.pop("dask_scheduler", None)
        flags.setdefault("function.resident", False)
    import_plugins(cast("list[str]", flags.pop("plugins", [])))
    apply(flags, values)
    settings = validated(values)
    other_workers = settings if flags else None
    if other_workers is not None:
        parse_scheme(settings.scheme, n=settings.workers)  # raise before long work
    if max_usd is not None:
        settings = settings.model_copy(update={"max_usd": max_usd})
    delays = make_delays(settings)
    with make_workers(settings, delays=delays) as workers:
        prepared = prepare(settings, workers)
        result = prepared.resume(run, accept_changes=accept_changes, other_workers=other_workers)
    show_result(result, as_json=as_json)


def show_result(result: TrainResult, *, as_json: bool) -> None:
    """Print the result of a run; then raise `ModelError` if a model failed or was not evaluated."""
    try:
        show(facts_of(result), _pairs(result), as_json=as_json, saved=True)
        sys.stdout.flush()  # here, so that an error can name the run
    except BrokenPipeError:  # nothing reads the output, so no message is needed
        raise
    except OSError as error:
        error.add_note(f"the run: {result.run}")
        raise
    faults = {name: _unevaluated(why) for name, why in result.unevaluated.items()}
    faults |= {name: str(each) for name, each in result.failed.items()}
    if faults:
        failed = ModelError(faults)
        failed.add_note(f"the run: {result.run}")
        raise failed


def facts_of(result: TrainResult) -> Values:
    """Return the result of a run for ``--json``."""
    return {
        "run": str(result.run),
        "jobs": result.jobs,
        "seconds": result.seconds,
        "models": [{"name": name, **asdict(each)} for name, each in result.evaluations.items()],
        "ranking": list(result.ranking),
        "payload": result.payload,
        "scheme": result.scheme,
        "schemes": result.schemes,
        "predictions": [asdict(each) for each in read_predictions(result.run)],
        "switches": [switch.fields for switch in result.switches],
        "best": {name: asdict(each) for name, each in result.best.items()},
        "unevaluated": result.unevaluated,
        "parked": {name: asdict(each) for name, each in result.parked.items()},
        **asdict(result.counts),
    }


def _pairs(result: TrainResult) -> dict[str, str]:
    counts = result.counts
    pairs = {
        "run": str(result.run),
        "scheme": ", then ".join(result.schemes),
        "payload": result.payload,
        "jobs": f"{result.jobs} in {counts.rounds} rounds, {result.seconds:.1f} s",
        "stragglers survived": str(counts.stragglers),
        "rounds waited out": waited_out(counts.waited_out),
        "failed tasks": str(counts.failures),
    }
    if counts.approximate:
        bound = f"error bound up to {counts.largest_error:.2g}"
        pairs["decoded approximately"] = f"{counts.approximate} jobs, {bound}"
    if counts.expelled:
        pairs["excluded workers"] = ", ".join(map(str, counts.expelled))
    others = {"parts applied again": counts.repeated, "results not compared": counts.uncompared}
    pairs |= {name: str(count) for name, count in others.items() if count}
    pairs |= _searches(result)
    names = [*result.ranking, *result.evaluations, *result.unevaluated, *result.failed]
    for name in dict.fromkeys(names):
        words = []
        if name in result.unevaluated:
            words = [_unevaluated(result.unevaluated[name])]
        elif name not in result.failed:
            each = result.evaluations[name]
            accuracy = "" if each.accuracy is None else f", accuracy {each.accuracy:.3f}"
            words = [f"loss {each.loss:.4f}{accuracy}"]
        if name in result.parked:
            words.append(str(result.parked[name]))
        pairs[name] = "; ".join(words)
    return pairs


def _searches(result: TrainResult) -> dict[str, str]:
    """Return what became of predictions, and of searches during the run."""
    from seqgc.training.tuner import SearchFailure

    pairs = {}
    for switch in result.switches:
        pairs[f"switched before round {switch.first_round}"] = why_switched(switch.fields)
    for number, answer in enumerate(result.answers):
        if isinstance(answer, SearchFailure):
            pairs[f"search {number} failed"] = answer.reason
    for each in read_predictions(result.run):
        pairs[f"{each.source}: {each.scheme}"] = each.words
    return pairs


def _unevaluated(why: str) -> str:
    return f"could not be evaluated: {why}"

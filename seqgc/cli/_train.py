"""``seqgc train``: a TOML file and flags to trained models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqgc.cli._config import read_toml, validated
from seqgc.cli._dry_run import print_dry_run
from seqgc.cli._run import prepare, why_switched
from seqgc.cli._show import print_json, print_pairs
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from seqgc.training import TrainResult

__all__ = ["train"]

Values = dict[str, object]


def train(
    config: Annotated[Path | None, typer.Argument(help="TOML file; flags override it.")] = None,
    scheme: Annotated[str | None, typer.Option(help="Scheme spec, for example gc-rep:s=1.")] = None,
    workers: Annotated[int | None, typer.Option("-n", "--workers", help="Local workers.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each model.")] = None,
    models: Annotated[
        int | None, typer.Option(help="Models that differ by their seed only.")
    ] = None,
    module: Annotated[
        str | None, typer.Option(help="Network: a name, or package.module:f.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data: digits, or package.module:f.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="A class of torch.optim.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Data points per step.")] = None,
    mu: Annotated[float | None, typer.Option(help="Tolerance of the closing rule.")] = None,
    wait_out: Annotated[str | None, typer.Option(help="all, conform or feasible.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Hard limit of a round, seconds.")] = None,
    jobs_per_round: Annotated[int | None, typer.Option(help="Models a job (bundle).")] = None,
    stale: Annotated[
        bool | None, typer.Option(help="Fewer models than delay + 1: gradients T rounds late.")
    ] = None,
    probe: Annotated[
        int | None, typer.Option(help="Train uncoded for N rounds, then find the best scheme.")
    ] = None,
    retune: Annotated[
        int | None, typer.Option(help="Look for a better scheme every N rounds.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Seconds per unit of load, for --probe and --retune.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or float64.")] = None,
    payload: Annotated[
        str | None, typer.Option(help="Results travel in float64, float32, float16 or bfloat16.")
    ] = None,
    stochastic_rounding: Annotated[
        bool | None, typer.Option(help="Round results to the payload at random, unbiased.")
    ] = None,
    delays: Annotated[
        str | None, typer.Option(help="Inject delays: a profile's file, or lambda-cnn.")
    ] = None,
    delay_scale: Annotated[float | None, typer.Option(help="Times the delays' seconds.")] = None,
    delay_seed: Annotated[int | None, typer.Option(help="Seed of generated delays.")] = None,
    delay_alpha: Annotated[
        float | None, typer.Option(help="The delays' seconds per unit of load.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="local, lambda-local, lambda or dask.")
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="To functions: boto3, http or curl.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Of functions: auto, directory, s3 or inline.")
    ] = None,
    environments: Annotated[
        int | None, typer.Option(help="Functions at once, at most (lambda-local).")
    ] = None,
    mount: Annotated[
        str | None, typer.Option(help="Where the functions' file system is mounted here.")
    ] = None,
    deployment: Annotated[
        str | None, typer.Option(help="What `seqgc deploy` wrote (lambda).")
    ] = None,
    dask_scheduler: Annotated[
        str | None, typer.Option(help="Address of a running dask scheduler.")
    ] = None,
    max_usd: Annotated[
        float | None, typer.Option(help="Stop before functions cost more, US dollars.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent; start and write nothing.")
    ] = False,
    run: Annotated[Path | None, typer.Option(help="New folder of the run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train several models at once on unreliable workers, exactly."""
    values = read_toml(config) if config is not None else {}
    _override(
        values,
        {
            "scheme": scheme,
            "workers": workers,
            "steps": steps,
            "mu": mu,
            "wait_out": wait_out,
            "timeout_s": timeout_s,
            "jobs_per_round": jobs_per_round,
            "stale": stale,
            "probe": probe,
            "retune": retune,
            "alpha": alpha,
            "precision": precision,
            "payload": payload,
            "stochastic_rounding": stochastic_rounding,
            "backend": backend,
            "dask_scheduler": dask_scheduler,
            "max_usd": max_usd,
        },
    )
    _override_table(
        values,
        "function",
        {
            "transport": transport,
            "store": store,
            "environments": environments,
            "mount": mount,
            "deployment": deployment,
        },
    )
    each: Values = {
        "module": module,
        "data": data,
        "optimizer": optimizer,
        "lr": lr,
        "batch_size": batch_size,
    }
    _override_models(values, each, count=models)
    _override_table(
        values,
        "delays",
        {"source": delays, "scale": delay_scale, "seed": delay_seed, "alpha": delay_alpha},
    )
    prepared = prepare(validated(values))
    if dry_run:
        print_dry_run(prepared, as_json=as_json)
        return
    result = prepared.train(run=run)
    report = _report(result)
    if as_json:
        print_json(report)
    else:
        _print_report(result)


def _override(values: Values, flags: Values) -> None:
    values.update({key: value for key, value in flags.items() if value is not None})


def _override_models(values: Values, each: Values, *, count: int | None) -> None:
    """Apply flags to every model; ``count`` models take the place of the file's (4 without any)."""
    if count is not None and count < 1:
        raise ParameterError("models", "must be >= 1", count)
    if count is not None or "models" not in values:
        values["models"] = [{"name": f"model-{i}", "seed": i} for i in range(count or 4)]
    entries = values["models"]
    if isinstance(entries, list):
        for entry in entries:
            if isinstance(entry, dict):
                _override(entry, each)


def _override_table(values: Values, name: str, flags: Values) -> None:
    if any(flag is not None for flag in flags.values()):
        table = values.setdefault(name, {})
        if isinstance(table, dict):
            _override(table, flags)


def _report(result: TrainResult) -> Values:
    return {
        "run": str(result.run),
        "jobs": result.jobs,
        "seconds": result.seconds,
        "models": [
            {"name": name, "loss": seen.loss, "accuracy": seen.accuracy}
            for name, seen in result.evaluations.items()
        ],
        "payload": result.payload,
        "scheme": result.scheme,
        "schemes": list(result.schemes),
        "switches": [switch.fields for switch in result.switches],
        "waited_out": result.counts.waited_out,
        "rounds": len(result.counts.round_seconds),
        "stragglers": result.counts.stragglers,
        "failures": result.counts.failures,
        "dropped": result.counts.dropped,
        "approximate": result.counts.approximate,
        "largest_error": result.counts.largest_error,
    }


def _print_report(result: TrainResult) -> None:
    from seqgc.training.adaptive import SearchFailure

    counts = result.counts
    pairs = {
        "run": str(result.run),
        "scheme": ", then ".join(result.schemes),
        "payload": result.payload,
        "jobs": f"{result.jobs} in {len(counts.round_seconds)} rounds, {result.seconds:.1f} s",
        "stragglers survived": str(counts.stragglers),
        "rounds waited out": str(counts.waited_out),
        "failed tasks": str(counts.failures),
    }
    if counts.approximate:
        bound = f"error bound up to {counts.largest_error:.2g}"
        pairs["decoded approximately"] = f"{counts.approximate} jobs, {bound}"
    for switch in result.switches:
        pairs[f"switched before round {switch.first_round}"] = why_switched(switch)
    for number, answer in enumerate(result.answers):
        if isinstance(answer, SearchFailure):
            pairs[f"search {number} failed"] = answer.reason
    for name, seen in result.evaluations.items():
        accuracy = "" if seen.accuracy is None else f", accuracy {seen.accuracy:.3f}"
        pairs[name] = f"loss {seen.loss:.4f}{accuracy}"
    print_pairs(pairs)

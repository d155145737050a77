"""``seqgc cost``: what a plan would cost on Lambda, or what a run has cost; ``train --dry-run``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from seqgc.cli._config import read_toml, validated
from seqgc.cli._options import AsJson
from seqgc.cli._run import PreparedRun, make_plan
from seqgc.cli._show import print_json, print_pairs
from seqgc.deploy import (
    INIT_LIMIT_S,
    START_S,
    Architecture,
    Estimate,
    Prices,
    Usage,
    estimate_plan,
    estimate_run,
    prices_date,
    read_prices,
)
from seqgc.errors import ParameterError
from seqgc.profiles import read_profile
from seqgc.workers import Forecast, FunctionWorkers, Reach, forecast, require_fit

__all__ = ["cost", "print_dry_run"]

Facts = dict[str, object]


def cost(
    target: Annotated[Path, typer.Argument(help="A run's folder, or the TOML file of one to be.")],
    memory_mb: Annotated[int | None, typer.Option("--memory", help="Of a function, MB.")] = None,
    arch: Annotated[str | None, typer.Option(help="arm64 or x86_64.")] = None,
    region: Annotated[str | None, typer.Option(help="Whose prices.")] = None,
    timeout_s: Annotated[
        float | None, typer.Option(help="Of a function, seconds: what bounds the cost.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="How long a task is expected to run (a plan).")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Expect the mean answer of this delay profile (a plan).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what a plan will cost on AWS Lambda, or what a run has cost (or would have)."""
    flags = {
        "memory_mb": memory_mb,
        "arch": arch,
        "region": region,
        "timeout_s": timeout_s,
        "expected_s": seconds if profile is None else _mean_answer(profile, seconds),
    }
    ran = target.is_dir()
    config_file = target / "config.toml" if ran else target
    values = read_toml(config_file)
    table = values.setdefault("function", {})
    if isinstance(table, dict):
        table.update({key: value for key, value in flags.items() if value is not None})
    config = validated(values)
    # Priced by [function], in a run's file as deployed, and the flags: no deployment is read.
    plan = make_plan(config.model_copy(update={"backend": "local"}))
    reach = Reach(deployed=config.backend == "lambda")
    predicted = forecast(plan, config.workers, config.function, reach=reach)
    if ran:
        estimate = estimate_run(
            target,
            function=predicted.setup,
            traffic=predicted.traffic,
            warm_ups=predicted.warm_ups,
        )
    else:
        require_fit(predicted.sizes, predicted.where)
        estimate = estimate_plan(predicted.use)
    settings = predicted.settings
    prices = read_prices(settings.region)
    facts: Facts = {
        "target": str(target),
        "kind": "run" if ran else "plan",
        "region": settings.region,
        "arch": settings.arch,
        **asdict(predicted.setup),
        "store": predicted.where,
        "why": predicted.store.reason,
        "warm_ups": predicted.warm_ups,
        **_cost_facts(estimate, prices, settings.arch),
    }
    if as_json:
        print_json(facts)
    else:
        about = f"{settings.memory_mb} MB, {settings.arch}, {settings.region}"
        warmed = f"{predicted.warm_ups:,} invocations before the first round"
        pairs = {"functions": about, "store": str(predicted.store), "warm-up": warmed}
        print_pairs(pairs | _cost_pairs(estimate, prices, settings.arch))


def print_dry_run(prepared: PreparedRun, *, as_json: bool) -> None:
    """Print a run's messages and price; start and write nothing.

    Raises
    ------
    ParameterError
        If its budget could not pay for the first round.
    """
    config, plan, workers = prepared.config, prepared.plan, prepared.workers
    if config.max_usd is not None:
        workers.budget(plan, config.max_usd)
    if isinstance(workers, FunctionWorkers):
        predicted = workers.forecast(plan)
    else:
        predicted = forecast(plan, workers.n, config.function, reach=Reach(deployed=False))
    about = {"backend": config.backend, "scheme": plan.setting(workers.n).scheme.spec}
    facts: Facts = {**about, **_forecast_facts(predicted), "max_usd": config.max_usd}
    pairs = about | _forecast_pairs(predicted)
    if isinstance(workers, FunctionWorkers):
        estimate, arch = estimate_plan(predicted.use), predicted.settings.arch
        prices = read_prices(predicted.settings.region)
        facts |= _cost_facts(estimate, prices, arch)
        pairs |= _cost_pairs(estimate, prices, arch)
    else:
        facts |= {"usd": 0.0, "usd_at_most": 0.0}
        pairs["cost"] = "none on your own machines; `seqgc cost` has functions' prices"
    if as_json:
        print_json(facts)
    else:
        print_pairs(pairs)


def _cost_facts(estimate: Estimate, prices: Prices, arch: Architecture) -> Facts:
    """Return an estimate as ``--json`` has it."""
    likely = None if estimate.likely is None else _facts_of(estimate.likely, prices, arch)
    return {
        "prices_as_of": prices_date().isoformat(),
        "usd": None if likely is None else likely["usd"],
        "usd_at_most": prices.bill(estimate.at_most, architecture=arch).usd,
        "start_s": START_S,
        "init_limit_s": INIT_LIMIT_S,
        "likely": likely,
        "at_most": _facts_of(estimate.at_most, prices, arch),
        "unanswered": estimate.unanswered,
    }


def _cost_pairs(estimate: Estimate, prices: Prices, arch: Architecture) -> dict[str, str]:
    """Return an estimate as people read it."""
    pairs = {}
    shown = estimate.at_most if estimate.likely is None else estimate.likely
    bill = prices.bill(shown, architecture=arch)
    pairs["requests"] = f"{shown.requests:,}  (${bill.requests:.4f})"
    pairs["GB-seconds"] = f"{shown.gb_seconds:,.1f}  (${bill.functions:.4f})"
    if shown.efs_read_bytes or shown.efs_write_bytes:
        read, written = shown.efs_read_bytes / 2**30, shown.efs_write_bytes / 2**30
        pairs["EFS"] = f"{read:,.2f} GB read, {written:,.2f} GB written  (${bill.efs:.4f})"
    if shown.s3_gets or shown.s3_puts:
        pairs["S3"] = f"{shown.s3_gets:,} GET, {shown.s3_puts:,} PUT  (${bill.s3:.4f})"
    if shown.transfer_out_bytes:
        out = shown.transfer_out_bytes / 2**30
        pairs["transfer"] = f"{out:,.2f} GB to a master outside the region  (${bill.transfer:.4f})"
    if estimate.likely is None:
        pairs["cost"] = "not known: expect a time with --seconds or --profile"
    else:
        pairs["cost"] = f"${bill.usd:.4f}"
    worst = prices.bill(estimate.at_most, architecture=arch).usd
    pairs["starts"] = f"billed (INIT): {START_S:g} s expected each, at most {INIT_LIMIT_S:g} s"
    pairs["at most"] = (
        f"${worst:.4f}, if what is not known is a cold start and runs to the time-out"
    )
    pairs["prices"] = f"as of {prices_date()}; check them"
    return pairs


def _facts_of(usage: Usage, prices: Prices, arch: Architecture) -> Facts:
    bill = prices.bill(usage, architecture=arch)
    return {**asdict(usage), "usd": bill.usd, "usd_by_kind": asdict(bill)}


def _mean_answer(path: Path, seconds: float | None) -> float:
    if seconds is not None:
        raise ParameterError("seconds", "must be left out where a profile is given", seconds)
    profile = read_profile(path)
    answered = profile.times[profile.status == 0]
    if not answered.size:
        raise ParameterError("profile", "must have an answered task", str(path))
    return float(np.mean(answered))


def _forecast_facts(predicted: Forecast) -> Facts:
    sizes = predicted.sizes
    return {
        "workers": predicted.workers,
        "rounds": predicted.rounds,
        "jobs": predicted.jobs,
        "where": predicted.where,
        "why": predicted.store.reason,
        "weights_bytes": sizes.weights_bytes,
        "weights_files": sizes.weights_files,
        "result_bytes": sizes.result_bytes,
        "request_bytes": predicted.request_bytes,
        "reply_bytes": sizes.reply_bytes,
        "limit_bytes": sizes.limit_bytes,
        "warm_up_rounds": predicted.settings.warm_up,
        "master_outside": predicted.settings.master_outside,
        "invocations": predicted.invocations,
        "warm_ups": predicted.warm_ups,
        "request_fits": predicted.request_fits,
        "reply_fits": sizes.reply_fits,
        "results_stored": predicted.traffic.results_stored,
    }


def _forecast_pairs(predicted: Forecast) -> dict[str, str]:
    sizes = predicted.sizes
    limit = f"{sizes.limit_bytes / 1e6:.2f} MB"
    reply = "fits"
    if not sizes.reply_fits:
        reply = f"goes through the store, over the {limit} of a reply"
    request = "fits" if predicted.request_fits else f"over the {limit} of a request"
    return {
        "rounds": f"{predicted.rounds} of {predicted.workers} tasks, for {predicted.jobs} jobs",
        "invocations": f"{predicted.invocations:,}, without repeated attempts",
        "warm-up": f"{predicted.warm_ups:,} invocations before the first round",
        "weights of a job": f"{sizes.weights_bytes:,} bytes",
        "store": str(predicted.store),
        "largest request": f"{predicted.request_bytes:,} bytes as JSON: {request}",
        "largest reply": f"{sizes.reply_bytes:,} bytes as JSON: {reply}",
    }

"""``seqgc profile``, which records delay profiles on live workers, checks them and fits models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from seqgc import profiles
from seqgc.cli import _trace
from seqgc.cli._help import Group, Verb
from seqgc.cli._options import AsJson, ProfileFile, apply, configured, naming, numbers, with_plugins
from seqgc.cli._show import (
    Screen,
    TableOutput,
    busy,
    print_json,
    print_pairs,
    show,
    text_table,
)
from seqgc.cli.progress import run_progress
from seqgc.config._making import make_delays, make_models, make_workers
from seqgc.config._tables import RunConfig, Values, validated
from seqgc.errors import ParameterError, ProfileError, require_int
from seqgc.plot import tables
from seqgc.runs import read_delays
from seqgc.stragglers import StragglerStats, straggler_stats

BaseLoads = Annotated[
    str | None,
    "Loads at which the files were recorded, for example 0.1,0.5. By default read from the files.",
]
Tolerance = Annotated[float, "Tolerance (mu) beyond which an answer is late."]

_BATCH_SIZE = 512

app = typer.Typer(cls=Group, help="Record a delay profile on live workers, or analyse one.")


@app.callback(invoke_without_command=True)
@configured(
    "backend", "workers", "timeout_s", "models.module", "models.data", "models.batch_size",
    "delays.source", "delays.scale", "delays.seed",
    "function.transport", "function.mount", "function.deployment",
    "function.resident", "function.master_address", "function.timeout_s",
    defaults={"models.batch_size": _BATCH_SIZE},
)  # fmt: skip
def record(
    context: typer.Context,
    flags: Values,
    rounds: Annotated[int, "Number of rounds at each load."] = 10,
    loads: Annotated[
        str, "Normalized loads to record at, separated by commas. 0 means one data point."
    ] = "0,0.5,1",
    warm_up_rounds: Annotated[
        int, "Rounds at each load that come before the recording and are not recorded."
    ] = 1,
    output: Annotated[Path | None, "-o", "--output", "New .npz file."] = None,
    every_load: Annotated[
        bool, "--every-load", "Write a file for each load. By default only for the first load."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Record a delay profile on live workers, or check and analyse one (lint, fit, stats)."""
    if context.invoked_subcommand is not None:
        return
    chosen = numbers("loads", loads, float)
    paths = _new_files(output, loads=sorted(chosen) if every_load else chosen[:1])
    name = str(flags.get("models.module", "digits-cnn")).replace(":", ".")
    model = {"name": name, "batch_size": _BATCH_SIZE}
    values: Values = {"scheme": "uncoded", "models": [model]}
    apply(flags, values)
    if "delays" in values and "delays.source" not in flags:
        del values["delays"]  # without a source, other options of delays have no effect
    config = validated(values)
    require_int("rounds", rounds, least=1, most=profiles.MOST_TIMES // config.workers)
    if config.delays is not None and config.backend != "local":
        rule = "must be left out unless the backend is local: other workers have real delays"
        raise ParameterError("delays", rule, config.delays.source)
    recordings = _record(config, rounds=rounds, loads=chosen, warm_up_rounds=warm_up_rounds)
    for path, profile in zip(paths, recordings, strict=False):
        profiles.write_profile(profile, path=path)
    _report(paths, recordings, as_json=as_json)


@app.command(
    "lint",
    cls=Verb,
    help="Check a profile for errors of measurement. The exit status is 1 if it cannot be used.\n\n"
    "Only the first file is checked. If there are several, their loads are compared.",
)
@with_plugins
def lint_files(
    file: ProfileFile,
    others: Annotated[
        list[Path] | None, typer.Argument(help="Profiles of the same workers at other loads.")
    ] = None,
    base_loads: BaseLoads = None,
    *,
    output: TableOutput,
) -> None:
    """Check a profile for errors of measurement; exit with status 1 if it cannot be used."""
    recordings = _read([file, *(others or [])], base_loads=base_loads)
    findings = profiles.lint(recordings[0]) + profiles.lint_series(recordings)
    errors = sum(each.severity == "error" for each in findings)

    def text() -> None:
        _print_findings(findings)
        typer.echo(f"{file}: {errors} errors, {len(findings) - errors} warnings")

    facts = {"file": str(file), "errors": errors, "findings": findings}
    output.show(tables.findings(findings), facts=facts, text=text)
    if errors:
        raise typer.Exit(1)


@app.command(
    "fit",
    cls=Verb,
    help="Fit a delay generator, and the cost of load.\n\n"
    "The generator is fitted to the first profile, and the cost of load to all profiles. The cost "
    "of load is reported even if no generator fits.",
)
@with_plugins
def fit_files(
    files: Annotated[
        list[Path],
        typer.Argument(help="A profile, then others of the same workers at other loads."),
    ],
    base_loads: BaseLoads = None,
    mu: Tolerance = 1.0,
    per_worker: Annotated[bool, "--per-worker", "Also fit alpha for each worker."] = False,
    as_json: AsJson = False,
) -> None:
    """Fit a generator to the first profile; fit its stalls and the cost of load to all profiles.

    The cost of load is reported even if no generator fits.
    """
    recordings = _read(files, base_loads=base_loads)
    several = len(recordings) > 1
    with naming(*files):
        line = profiles.fit_load_model(recordings, per_worker=per_worker) if several else None
    findings = [
        replace(finding, message=f"{file}: {finding.message}")
        for file, recording in zip(files, recordings, strict=True)
        for finding in profiles.lint(recording)
        if finding.severity == "error"
    ]
    findings += profiles.lint_series(recordings)
    problem, generator = "", None
    try:
        generator = profiles.fit(recordings[0], mu=mu, others=recordings[1:])
    except ProfileError as error:
        if line is None:
            raise ProfileError(f"{files[0]}: {error}") from None
        problem = str(error)
    if generator is not None and line is not None:
        generator = replace(generator, alpha=max(line.alpha, 0.0))
    if as_json:
        facts: Values = {"file": str(files[0]), "generator": None, "problem": problem}
        if generator is not None:
            facts["generator"] = asdict(generator) | {"repr": repr(generator)}
        print_json(facts | {"load_model": _load_facts(line), "findings": findings})
        return
    _print_findings(findings)
    pairs = {"generator": problem} if generator is None else _generator_pairs(generator)
    print_pairs(pairs | _load_pairs(line))


@app.command(
    "stats",
    cls=Verb,
    help="Show how often and how long workers straggle. Also show the straggler models that fit.",
)
@with_plugins
def stats_of_file(
    file: ProfileFile,
    mu: Tolerance = 1.0,
    max_window: Annotated[int, "Longest window of the straggler models, in rounds."] = 5,
    *,
    output: TableOutput,
) -> None:
    """Show how often and how long workers straggle, and the straggler models that fit."""
    profile = read_delays(file)
    require_int("max_window", max_window, least=1, most=max(5, profile.num_rounds))
    stats = straggler_stats(profile, mu=mu, max_window=max_window)
    table = tables.straggler_models(stats)

    def text() -> None:
        _print_stats(profile, stats)
        cells = {
            "W": lambda row: str(row["window_rounds"]),
            "B": lambda row: str(row["burst_rounds"]),
            "(B, W, λ)-bursty": lambda row: str(row["bursty_lam"] or "none"),
            "(N=B, W, λ)-arbitrary": lambda row: str(row["arbitrary_lam"] or "none"),
        }
        title = "Smallest λ that the pattern conforms to"
        Screen().print(text_table(tables.rows_of(table), cells, title=title))

    facts = {"file": str(file), **_shape(profile), **asdict(stats)}
    output.show(table, facts=facts, text=text)


app.command("import", cls=Verb, help=_trace.HELP)(with_plugins(_trace.import_file))


# ---- recording ----------------------------------------------------------------------------------


def _record(
    config: RunConfig, *, rounds: int, loads: Sequence[float], warm_up_rounds: int
) -> list[profiles.DelayProfile]:
    with make_workers(config, delays=make_delays(config, rounds=rounds)) as workers:
        with busy("importing PyTorch"):
            from seqgc.training import RecordingPlan, record_profile

            (model,) = make_models(config)
        plan = RecordingPlan(
            model=model,
            rounds=rounds,
            loads=loads,
            warmup=warm_up_rounds,
            timeout_s=config.timeout_s,
        )
        with run_progress("recording", total=len(loads) * (warm_up_rounds + rounds)) as progress:
            return record_profile(plan, workers, observers=[progress])


def _new_files(output: Path | None, *, loads: Sequence[float]) -> list[Path]:
    """Return the path of a new file for each load, or raise `ParameterError`."""
    first = _trace.new_file(output)
    paths = [first, *(first.with_name(f"{first.stem}-load{x!r}.npz") for x in loads[1:])]
    for path in paths[1:]:
        _trace.require_new(path)
    return paths


def _report(paths: list[Path], recordings: list[profiles.DelayProfile], *, as_json: bool) -> None:
    first = recordings[0]
    line = profiles.fit_load_model(recordings) if len(recordings) > 1 else None
    is_answer = first.status == 0
    median_s, unanswered = float(np.median(first.times[is_answer])), int((~is_answer).sum())
    warnings = len(profiles.lint(first))
    facts: Values = {
        "file": str(paths[0]),
        **_shape(first),
        "median_s": median_s,
        "base_load": first.meta.base_load,
        "alpha": first.meta.alpha,
        "rtt_s": first.meta.rtt_s,
        "load_model": _load_facts(line),
        "unanswered": unanswered,
        "warnings": warnings,
        "other_files": [str(path) for path in paths[1:]],
    }
    rtt_s = first.meta.rtt_s
    pairs = {
        "file": ", ".join(map(str, paths)),
        "recorded": f"{first.dimensions} at each load",
        "median answer": f"{median_s:.3f} s at load {first.meta.base_load:.3g}",
        "round trip": "unknown" if rtt_s is None else f"{rtt_s * 1000:.3g} ms (of an empty task)",
        "unanswered": str(unanswered),
        "suspicious": f"{warnings}  (seqgc profile lint {paths[0]})",
    }
    show(facts, pairs | _load_pairs(line), as_json=as_json, saved=True)


# ---- what is printed ----------------------------------------------------------------------------


def _shape(profile: profiles.DelayProfile) -> Values:
    return {"rounds": profile.num_rounds, "workers": profile.num_workers}


def _read(files: Sequence[Path], *, base_loads: str | None) -> list[profiles.DelayProfile]:
    """Read profiles; if ``base_loads`` is given, replace the load at which each was recorded."""
    recordings = [read_delays(file) for file in files]
    if base_loads is None:
        return recordings
    base = numbers("base_loads", base_loads, float)
    if len(base) != len(recordings):
        rule = f"must be {len(recordings)} numbers, one for each file"
        raise ParameterError("base_loads", rule, len(base))
    return [
        replace(profile, meta=replace(profile.meta, base_load=load))
        for profile, load in zip(recordings, base, strict=True)
    ]


def _print_findings(findings: Sequence[profiles.Finding]) -> None:
    for each in findings:
        typer.echo(f"{each.severity} ({each.rule}): {each.message}")


def _load_facts(line: profiles.LoadModel | None) -> Values | None:
    return None if line is None else asdict(line) | {"alpha_interval": line.alpha_interval}


def _load_pairs(line: profiles.LoadModel | None) -> dict[str, str]:
    if line is None:
        return {}
    interval = "no confidence interval: two loads determine a line"
    if line.alpha_interval is not None:
        low, high = line.alpha_interval
        interval = f"95% interval {low:.4f} … {high:.4f}"
        if low <= 0:
            interval += ": the cost of load cannot be told from noise"
    pairs = {
        "alpha": f"{line.alpha:.4f} s per unit of load ({interval})",
        "without load": f"{line.intercept_s:.4f} s",
        "variance explained": f"{line.r_squared:.2%} (R²), over {len(line.loads)} loads",
    }
    if line.worker_alpha is not None:
        low, median, high = np.quantile(line.worker_alpha, [0.25, 0.5, 0.75])
        pairs["alpha of workers"] = f"{median:.4f} (half of them in {low:.4f} … {high:.4f})"
    return pairs


def _generator_pairs(generator: profiles.GilbertElliott) -> dict[str, str]:
    slow = [
        f"{worker} ({factor:.2f} times as long)"
        for worker, factor in enumerate(generator.factors)
        if factor > 1
    ]
    low, high = generator.stall_s
    share = f"{generator.stalled_workers:.2%} of a group of 64 consecutive workers"
    return {
        "generator": repr(generator),
        "P(bad after good)": f"{generator.p_bad:.4f}",
        "P(bad after bad)": f"{generator.stay_bad:.4f}",
        "straggler rate": f"{generator.straggler_rate:.4f}" + " of the others" * bool(slow),
        "always slow": f"workers {', '.join(slow)}" if slow else "no worker",
        "base": f"{generator.base_s:.4f} s, spread {generator.base_spread:.4f}",
        "excess": f"{generator.excess:.4f}, spread {generator.excess_spread:.4f}",
        "tail": f"{generator.tail:.4f}",
        "stalls": f"{share}, in {generator.stalled_groups:.2%} of the group's rounds; "
        f"{low:.1f} … {high:.1f} s",
    }


def _print_stats(profile: profiles.DelayProfile, stats: StragglerStats) -> None:
    def percent(rate: float | None) -> str:
        return "no such round" if rate is None else f"{rate:.2%}"

    bursts = (
        f"{count} × {k} round{'s' if k > 1 else ''}"
        for k, count in enumerate(stats.bursts.tolist(), 1)
        if count
    )
    print_pairs(
        {
            "recorded": profile.dimensions,
            "straggle": f"{stats.rate:.2%}, at tolerance mu = {stats.mu:g}",
            "after straggling": percent(stats.rate_after_straggling),
            "after answering": percent(stats.rate_after_answering),
            "bursts": ", ".join(bursts) or "none",
            "s-per-round": f"s = {stats.smallest_s}",
        }
    )

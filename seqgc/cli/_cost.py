"""``seqgc cost`` and ``seqgc train --dry-run``: the cost of a plan or a run on AWS Lambda.

The headline is the likely cost, with the time of a task that it assumes (`_TaskTime`). The upper
bound, and the likely cost on other services of AWS, are shown next to it.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from seqgc import costs, workers
from seqgc.cli._options import apply, naming
from seqgc.cli._run import PreparedRun
from seqgc.cli._show import TableOutput, show
from seqgc.config._making import make_plan
from seqgc.config._names import FUNCTIONS
from seqgc.config._tables import RunConfig, Values, checked, read_config, read_run_config, validated
from seqgc.errors import ParameterError
from seqgc.plot import tables
from seqgc.rounds import Setting
from seqgc.runs import read_delays, read_run_header

if TYPE_CHECKING:
    from seqgc.training import TrainingPlan

Pairs = dict[str, str]

_SERVICES: Final[dict[costs.ComputeService, str]] = {
    "functions": "as functions",
    "resident": "as functions that stay",
    "microvms": "as MicroVMs",
    "managed": "as Managed Instances",
    "machine": "as one machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskTime:
    """The time of a task, in seconds, that an estimate assumes, and where it comes from.

    ``seconds`` is None if the time is not known; then ``about`` gives the reason.
    """

    seconds: float | None
    source: Literal["expected_s", "profile", "measured", "recorded", "unknown"]
    about: str


def cost(
    target: Annotated[Path, typer.Argument(help="Folder of a run, or the TOML file of a plan.")],
    memory_mb: Annotated[int | None, "Memory of a function, in MB."] = None,
    arch: Annotated[str | None, "Processor of the functions: arm64 or x86_64."] = None,
    region: Annotated[
        str | None, "AWS region of the prices. By default the file's region, or AWS_REGION."
    ] = None,
    function_timeout_s: Annotated[
        float | None, "Time limit of a function, in seconds. It bounds the cost."
    ] = None,
    snapstart: Annotated[
        bool, "--snapstart", "Functions start from a snapshot (SnapStart)."
    ] = False,
    expected_s: Annotated[
        float | None,
        "Expected time of a task, or of a piece (deal, flexrr), in seconds. Only for a plan.",
    ] = None,
    profile: Annotated[
        Path | None,
        "Expect the mean time of the answers in this profile, at the load of the plan's tasks or "
        "pieces. Only for a plan.",
    ] = None,
    *,
    output: TableOutput,
) -> None:
    """Estimate what a plan will cost on AWS Lambda, or what a run has cost."""
    flags = {
        "function.memory_mb": memory_mb,
        "function.arch": arch,
        "function.region": region,
        "function.timeout_s": function_timeout_s,
        "function.expected_s": expected_s,
        "function.snapstart": snapstart or None,
    }
    if profile is not None and expected_s is not None:
        raise ParameterError("expected_s", "must be left out if a profile is given", expected_s)
    is_run = os.path.isdir(target)  # noqa: PTH112 (`Path.is_dir` raises for some names)
    for name, value in (("expected_s", expected_s), ("profile", profile)):
        if is_run and value is not None:
            rule = "must be left out for the folder of a run, whose times were recorded"
            raise ParameterError(name, rule, value)
    values = read_run_config(target) if is_run else read_config(target)
    apply({path: value for path, value in flags.items() if value is not None}, values)
    # The price follows from the table [function] and the options, not from a deployment.
    assumed = ""
    if is_run:  # the folder may come from a stranger: import no module that its file names
        if not {"models", "grid"} & values.keys():  # a run that Python code began has no settings
            values = {"models": [{"name": "model"}], "scheme": "uncoded", **values}
            assumed = (
                " (assumed: config.toml of the run has no settings; set --memory-mb, --arch, ...)"
            )
        config = checked(values)
        predicted, estimate = _hindsight(target, config)
        use = predicted.use
        time, predicted = _recorded(predicted, estimate)
    else:
        if "probe" not in values:  # the defaults of functions, also without a backend
            values.setdefault("scheme", RunConfig.model_fields["scheme"].default)
        config = validated(values)
        plan = make_plan(config.model_copy(update={"backend": "local"}))
        if config.backend in FUNCTIONS:  # raise if functions could not run the plan
            workers.undeployed(config.workers, config.function).forecast(plan)
        reach = _reach_of(config.backend)
        predicted = workers.forecast(plan, config.workers, config.function, reach=reach)
        predicted.check()
        if profile is not None:
            seconds = _expected_s(profile, plan.on(config.workers).setting)
            about = f"the mean of the answers in {profile}"
            time = _TaskTime(seconds=seconds, source="profile", about=about)
        else:
            time = _task_time(plan, predicted)
        predicted = _taking(predicted, time)
        use = predicted.use
        estimate = costs.estimate_plan(use)
    settings = predicted.settings
    facts: Values = {
        "target": str(target),
        "kind": "run" if is_run else "plan",
        **settings.model_dump(include={"region", "arch", "memory_mb", "timeout_s"}),
        "store": predicted.where,
        "why": predicted.store.reason,
        "warm_ups": use.warm_ups,
    }
    pairs = {
        "functions": f"{settings.memory_mb} MB, {settings.arch}, {settings.region}{assumed}",
        "store": str(predicted.store),
        "warm-up": f"{use.warm_ups:,} invocations before the first round",
    }
    cost_facts, cost_pairs = _priced(estimate, predicted, time)
    usages = {"likely": estimate.likely, "at most": estimate.at_most}
    table = tables.bills(
        {name: usage for name, usage in usages.items() if usage is not None},
        prices=costs.find_prices(settings.region).prices,
        architecture=settings.arch,
    )
    output.show(table, facts=facts | cost_facts, text=pairs | cost_pairs)


def cost_in_words(run: Path) -> str | None:
    """Return the cost of a run as text, or None if the run did not use cloud functions.

    Raises
    ------
    ParameterError
        If the run's folder lacks data for the estimate.
    """
    try:
        values = read_run_config(run)
    except ParameterError:
        return None
    if values.get("backend") not in FUNCTIONS:
        return None
    predicted, estimate = _hindsight(run, checked(values))
    settings = predicted.settings
    prices = costs.find_prices(settings.region).prices
    bill = prices.bill(estimate.likely or estimate.at_most, architecture=settings.arch)
    return f"${bill.usd:.4f}" if estimate.likely else f"at most ${bill.usd:.4f}"


def _hindsight(run: Path, config: RunConfig) -> tuple[workers.Forecast, costs.Estimate]:
    """Return the forecast and the estimated usage of a run that was recorded."""
    header = read_run_header(run)
    adapts = config.probe is not None or config.retune is not None
    reach = _reach_of(config.backend)
    predicted = workers.hindsight(header, config.function, reach=reach, adapts=adapts)
    use = predicted.use
    return predicted, costs.estimate_run(
        run,
        function=use.function,
        traffic=use.traffic,
        warm_ups=use.warm_ups,
        resident=use.resident,
    )


def _reach_of(backend: str) -> workers.Reach:
    """Return the stores that the functions of a backend can reach."""
    on_aws = backend != "lambda-local"
    return workers.Reach(deployed=on_aws, s3=on_aws)


def show_forecast(run: PreparedRun, *, as_json: bool) -> None:
    """Print the message sizes and the price of a planned run.

    Raises `ParameterError` if the budget is too small to begin the run.
    """
    config, plan, crew = run.config, run.plan, run.workers
    if config.max_usd is not None:
        crew.budget(plan, config.max_usd)
    scheme = plan.on(crew.n).setting.scheme.spec
    reach = _reach_of(config.backend)
    predicted = run.forecast or workers.forecast(plan, crew.n, config.function, reach=reach)
    if run.forecast is not None:
        time = _task_time(plan, predicted)
        predicted = _taking(predicted, time)
        cost_facts, cost_pairs = _priced(costs.estimate_plan(predicted.use), predicted, time)
    else:
        cost_facts = {"usd": 0.0, "usd_at_most": 0.0}
        cost_pairs = {"cost": "none on your own machines; see `seqgc cost` for AWS Lambda"}
    about = {"backend": config.backend, "scheme": scheme}
    facts: Values = {**about, "deployed": crew.deployed}
    if not crew.deployed:
        s = predicted.settings
        like = f"{s.memory_mb} MB, {s.timeout_s:g} s, {s.arch}, {s.region}"
        about["functions"] = f"not deployed yet; assumed: {like} (see [function])"
    facts |= _forecast_facts(predicted) | {"max_usd": config.max_usd} | cost_facts
    show(facts, about | _forecast_pairs(predicted) | cost_pairs, as_json=as_json)


def _task_time(plan: TrainingPlan, predicted: workers.Forecast) -> _TaskTime:
    """Return the expected time of a task of a plan; measure it if the settings do not have it.

    A function with less than one processor takes longer than the measured time, in proportion.
    """
    given_s, function = predicted.settings.expected_s, predicted.settings.setup
    if given_s is not None:
        return _TaskTime(seconds=given_s, source="expected_s", about="as given (expected_s)")
    try:
        measured_s = plan.on(predicted.use.workers).measure_task_s()
    except ParameterError as error:
        return _TaskTime(seconds=None, source="unknown", about=f"it was not measured: {error}")
    seconds = measured_s / min(1.0, function.vcpus)
    about = f"measured: {measured_s:.3g} s on a processor of this machine, without messages"
    if function.vcpus < 1:
        about += f"; a function of {function.memory_mb} MB has {function.vcpus:.2g} of one"
    return _TaskTime(seconds=seconds, source="measured", about=about)


def _taking(predicted: workers.Forecast, time: _TaskTime) -> workers.Forecast:
    return replace(predicted, use=replace(predicted.use, seconds_per_task=time.seconds))


def _recorded(
    predicted: workers.Forecast, estimate: costs.Estimate
) -> tuple[_TaskTime, workers.Forecast]:
    """Return the mean time of the answers of a recorded run, and the use of as many tasks."""
    use, answers = predicted.use, estimate.answers
    if estimate.answer_s is None:
        return _TaskTime(seconds=None, source="unknown", about="no task was answered"), predicted
    if use.pieces:
        use = replace(use, jobs=max(1, round(answers / use.pieces)))
    else:
        use = replace(use, rounds=max(1, math.ceil(answers / use.workers)))
    about = f"the mean of the run's {answers:,} answers"
    time = _TaskTime(seconds=estimate.answer_s, source="recorded", about=about)
    return time, _taking(replace(predicted, use=use), time)


def _priced(
    estimate: costs.Estimate, predicted: workers.Forecast, time: _TaskTime
) -> tuple[Values, Pairs]:
    """Return the priced estimate twice: as facts for ``--json``, and as pairs for people."""
    settings = predicted.settings
    dated, arch = costs.find_prices(settings.region), settings.arch
    prices = dated.prices
    function = settings.setup
    snapshot_usd = prices.snapshot_usd_a_day(function)

    def facts_of(usage: costs.Usage) -> Values:
        bill = prices.bill(usage, architecture=arch)
        return {**asdict(usage), "usd": bill.usd, "usd_by_kind": asdict(bill)}

    likely = None if estimate.likely is None else facts_of(estimate.likely)
    own = "resident" if predicted.use.resident else "functions"
    services = predicted.compare(prices)
    if estimate.likely is not None:  # a recorded use differs from that of a plan
        usd = prices.bill(estimate.likely, architecture=arch).usd
        services = [replace(each, usd=usd) if each.service == own else each for each in services]
    at_most_usd = prices.bill(estimate.at_most, architecture=arch).usd
    facts: Values = {
        "prices_as_of": dated.as_of.isoformat(),
        "prices_source": dated.source,
        "prices_missed": dated.missed,
        "usd": None if likely is None else likely["usd"],
        "usd_at_most": at_most_usd,
        "start_s": function.start_s,
        "snapshot_usd_a_day": snapshot_usd,
        "init_limit_s": costs.INIT_LIMIT_S,
        "likely": likely,
        "at_most": facts_of(estimate.at_most),
        "unanswered": estimate.unanswered,
        "seconds_per_task": time.seconds,
        "seconds_source": time.source,
        "seconds_about": time.about,
        "services": [asdict(each) for each in services],
        "prices": {name: _price_facts(dated, name, usd) for name, usd in asdict(prices).items()},
    }
    shown = estimate.likely or estimate.at_most
    bill, gb = prices.bill(shown, architecture=arch), 2**30
    cost = f"unknown, as the time of a task is: {time.about}; give --expected-s"
    if likely is not None:
        cost = f"${bill.usd:.4f}"
    if likely is not None and time.seconds is not None:
        cost += f", if a task takes {time.seconds:.3g} s ({time.about})"
    bound = "if every invocation whose end is unknown is a cold start and runs to its time limit"
    pairs = {
        "cost": cost,
        "at most": f"${at_most_usd:.4f}, {bound}; --max-usd stops a run earlier",
        "requests": f"{shown.requests:,}  (${bill.requests:.4f})",
        "GB-seconds": f"{shown.gb_seconds:,.1f}  (${bill.functions:.4f})",
    }
    if shown.efs_read_bytes or shown.efs_write_bytes:
        read, written = shown.efs_read_bytes / gb, shown.efs_write_bytes / gb
        pairs["EFS"] = f"{read:,.2f} GB read, {written:,.2f} GB written  (${bill.efs:.4f})"
    if shown.s3_gets or shown.s3_puts:
        pairs["S3"] = f"{shown.s3_gets:,} GET, {shown.s3_puts:,} PUT  (${bill.s3:.4f})"
    if shown.transfer_out_bytes:
        out = shown.transfer_out_bytes / gb
        pairs["transfer"] = f"{out:,.2f} GB to a master outside the region  (${bill.transfer:.4f})"
    pairs |= _start_pairs(function, shown, bill, snapshot_usd)
    for each in services:
        price = f"${each.usd:.4f}" if each.usd is not None else f"unknown, as {each.why}"
        pairs[_SERVICES[each.service]] = f"{price} ({each.uses})"
    days: dict[str, list[str]] = {}
    for day, source in {dated.origin(name) for name in asdict(prices)}:
        days.setdefault(source, []).append(day.isoformat())
    spans = [
        f"{min(each)}{f' to {max(each)}' if len(each) > 1 else ''}, {source}"
        for source, each in sorted(days.items())
    ]
    missed = (
        f"; check them, because AWS's price list was not read: {dated.missed}"
        if dated.missed
        else ""
    )
    pairs["prices"] = f"of {settings.region}, {'; '.join(spans)}{missed}"
    return facts, pairs


def _start_pairs(
    function: costs.FunctionSetup, usage: costs.Usage, bill: costs.Bill, snapshot_usd: float | None
) -> Pairs:
    """Return the time and price of starts. ``snapshot_usd`` is the price of a snapshot a day."""
    start_s, most_s = function.start_s, costs.INIT_LIMIT_S
    if not function.snapstart:
        return {"starts": f"billed (INIT): {start_s:g} s each are expected, at most {most_s:g} s"}
    restored = f"{usage.restored_gb:,.1f} GB restored (${bill.restores:.4f})"
    a_day = "unknown" if snapshot_usd is None else f"${snapshot_usd:.2f} a day"
    return {
        "starts": f"from a snapshot: {start_s:g} s each are expected; {restored}",
        "snapshot": f"{a_day} for each deployed version, which is not in the cost",
    }


def _price_facts(dated: costs.DatedPrices, name: str, usd: float | None) -> Values:
    """Return a price with its day and source; a price that is not known has neither."""
    if usd is None:
        return {"usd": None, "as_of": None, "source": None}
    day, source = dated.origin(name)
    return {"usd": usd, "as_of": day.isoformat(), "source": source}


def _expected_s(path: Path, setting: Setting) -> float:
    """Return the mean seconds of a task or piece of a setting, from the answers in a profile.

    The load changes the recorded seconds as in a replay (`DelayProfile.times_at`). Workers that
    compute pieces stay, so that a piece takes only the seconds of its load. If the profile has no
    ``alpha``, an answer is the time of a worker's whole part of the batch.
    """
    profile, scheme = read_delays(path), setting.scheme
    if not profile.answered.any():
        raise ParameterError("profile", "must have at least one task that was answered", str(path))
    bundle, pieces, times = setting.jobs_per_round, scheme.num_pieces, profile.times
    if profile.meta.alpha is None:
        parts = pieces / scheme.n if pieces else 1.0
        return float(times[profile.answered].mean()) / parts
    if pieces:
        return profile.slope() * bundle / pieces
    with naming(path):
        times = profile.times_at(bundle * float(scheme.loads_of(None).mean()))
    return float(times[profile.answered].mean())


def _forecast_facts(predicted: workers.Forecast) -> Values:
    use, sizes, settings = predicted.use, predicted.sizes, predicted.settings
    return {
        "workers": use.workers,
        "rounds": use.rounds,
        "jobs": use.jobs,
        "where": predicted.where,
        "why": predicted.store.reason,
        **asdict(sizes),
        "request_bytes": predicted.request_bytes,
        "reply_bytes": sizes.reply_bytes,
        "step_result_bytes": predicted.step_result_bytes,
        "warm_up_rounds": settings.warm_up,
        "master_outside": settings.master_outside,
        "invocations": use.tasks,
        "warm_ups": use.warm_ups,
        "request_fits": predicted.request_fits,
        "reply_fits": sizes.reply_fits,
        "results_stored": use.traffic.results_stored,
    }


def _forecast_pairs(predicted: workers.Forecast) -> Pairs:
    use, sizes = predicted.use, predicted.sizes
    limit = f"{sizes.limit_bytes / 1e6:.2f} MB"
    stored = f"goes through the store, because it exceeds {limit}"
    reply = stored if use.traffic.results_stored else "fits"
    fits = predicted.request_fits or use.resident
    request = "fits" if fits else f"exceeds the {limit} of a request"
    work = f"{use.rounds} of {use.workers} tasks, for {use.jobs} jobs"
    if use.pieces:
        pieces = "1 piece" if use.pieces == 1 else f"{use.pieces} pieces"
        work = f"none: {use.jobs} jobs of {pieces}, for {use.workers} workers"
    functions = {
        "invocations": f"{use.tasks:,}, without repeated attempts",
        "warm-up": f"{use.warm_ups:,} invocations before the first round",
    }
    if use.resident:
        stay_s = use.function.timeout_s
        functions = {
            "functions": f"{use.workers} resident, each replaced after at most {stay_s:g} s"
        }
    each = f"{use.pieces or use.workers:,} x {sizes.result_bytes:,}"
    versions = f", in up to {sizes.versions:,} versions" if sizes.versions > 1 else ""
    return {
        "rounds": work,
        **functions,
        "weights of a job": f"{sizes.weights_bytes:,} bytes{versions}",
        "store": str(predicted.store),
        "largest request": f"{predicted.request_bytes:,} bytes as JSON: {request}",
        "largest reply": f"{sizes.reply_bytes:,} bytes as JSON: {reply}",
        "results of a step": f"{predicted.step_result_bytes:,} bytes ({each})",
    }

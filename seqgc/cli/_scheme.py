"""``seqgc scheme`` describes a scheme. ``seqgc replay`` replays a scheme on recorded delays."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from seqgc.cli._options import (
    CaseResult,
    NumWorkers,
    ProfileFile,
    RehearsalOptions,
    show_cases,
)
from seqgc.cli._show import TableOutput, waited_out
from seqgc.config._tables import MOST_WORKERS
from seqgc.errors import require_int
from seqgc.plot import tables
from seqgc.rounds import ClosingRule, PolicyDefence, Setting, WaitOut
from seqgc.schemes import Deal, Scheme, parse_scheme
from seqgc.search import Rehearsal, Replay, deal
from seqgc.search import replay as replay_setting


def scheme(
    spec: Annotated[
        str, typer.Argument(help="For example gc:s=15, m-sgc:B=1,W=2,lam=27 or ssp:slack=1.")
    ],
    workers: NumWorkers,
    output: TableOutput,
) -> None:
    """Show the load of a scheme or another defence, and the stragglers that it tolerates."""
    parsed = parse_scheme(spec, n=require_int("n", workers, most=MOST_WORKERS))
    n, load = parsed.n, parsed.normalized_load
    table = tables.schemes([parsed])
    tolerated = parsed.tolerated if isinstance(parsed, Scheme) else None
    tolerates = table["tolerates"][0]
    facts = {
        "scheme": parsed.spec,
        "n": n,
        "s": tolerated,
        "kind": parsed.kind,
        "delay": parsed.delay,
        "normalized_load": load,
        "tolerates": tolerates,
        "load_lower_bound": parsed.load_lower_bound,
    }
    pairs = {
        "scheme": parsed.spec,
        "workers": str(n),
        "gradients": parsed.kind,
        "delay": f"{parsed.delay} rounds",
    }
    if pieces := parsed.num_pieces:
        pairs["pieces of a job"] = f"{pieces}, each a task; faster workers take more of them"
    else:
        pairs["normalized load"] = f"{load:.6f}  ({load * n:.3f} times the uncoded)"
    if isinstance(parsed, Scheme):
        bound = "lower bound of load" + ("" if parsed.exact else ", if exact")
        least = f"{parsed.load_lower_bound:.6f}"
        pairs[bound] = f"{least}  (no scheme tolerates the same with a lower load)"
    pairs["tolerates"] = tolerates
    if isinstance(parsed, PolicyDefence):
        facts["staleness"] = parsed.staleness
        lacks = {None: "any number", 0: "none"}.get(parsed.staleness, f"at most {parsed.staleness}")
        pairs["jobs that weights lack"] = lacks
    elif tolerated is not None:
        pairs["inner code tolerates"] = f"{tolerated} missing of {n}"
    output.show(table, facts=facts, text=pairs)


def replay(
    profile: ProfileFile,
    scheme: Annotated[
        str, "--scheme", "--defence", "Spec of a scheme or another defence, for example gc-rep:s=7."
    ],
    options: RehearsalOptions,
    mu: Annotated[float, "Tolerance of the closing rule (mu)."] = 0.0,
    wait_out: Annotated[
        str,
        "Close a round when no job is lost (feasible), or the scheme's model holds (conform, all).",
    ] = "feasible",
    jobs_per_round: Annotated[int, "Models in a job (a bundle)."] = 1,
    *,
    output: TableOutput,
) -> None:
    """Replay a scheme or another defence on recorded delays: run time, stragglers, wait-outs."""
    rehearsal = options.of(profile)
    setting = Setting(
        scheme=parse_scheme(scheme, n=rehearsal.profile.num_workers),
        rule=ClosingRule(mu=mu, wait_out=cast("WaitOut", wait_out)),
        jobs_per_round=jobs_per_round,
    )
    show_cases(output, [_replay_result(setting, case) for case in rehearsal.alpha_cases()])


def _replay_result(setting: Setting, rehearsal: Rehearsal) -> CaseResult:
    """Replay a setting; return its table, and the result for programs and for people."""
    rehearsal.require_no_starts(setting)  # first, because it names all options that are missing
    jobs = rehearsal.jobs(setting.scheme, jobs_per_round=setting.jobs_per_round)
    ideal_s = rehearsal.bound_s(setting)
    run, more_facts, more_pairs = _replayed(setting, rehearsal)
    table = tables.replays({setting.scheme.spec: run}, ideal_s=ideal_s)
    (row,) = tables.rows_of(table)
    facts = {
        "runtime_s": run.runtime_s,
        "round_seconds": run.round_seconds,
        "stragglers_per_round": run.rounds()["stragglers"],
        "waited_out": run.waited_out,
        "job_finish_round": run.job_finish_round,
        "ideal_s": ideal_s,
        "scheme": setting.scheme.spec,
        "jobs": jobs,
        "recorded": rehearsal.recorded,
        **more_facts,
    }
    if rehearsal.recorded == "speed":
        bound = "workers never idle"
    elif rehearsal.stays(setting):
        bound = "all work shared evenly"
    else:
        bound = "clairvoyant bound"
    ratio = f"the run takes {row['ratio']:.3f} times that"
    pairs = {
        "scheme": setting.scheme.spec,
        "jobs": f"{jobs} in {row['rounds']} rounds",
        "run time": f"{run.runtime_s:.4f} s",
        bound: f"{ideal_s:.4f} s ({ratio})",
        **more_pairs,
        "rounds": f"{row['mean_round_s']:.3f} s on average, {row['longest_round_s']:.3f} s at most",
        "stragglers": f"{row['stragglers']} in all, {row['most_stragglers']} in a round at most",
        "rounds waited out": waited_out(row["waited_out"]),
    }
    return CaseResult(case=rehearsal, table=table, facts=facts, text=pairs)


def _replayed(
    setting: Setting, rehearsal: Rehearsal
) -> tuple[Replay, dict[str, object], dict[str, str]]:
    """Return the replay and its additional facts and pairs, which only `deal` has."""
    if not isinstance(setting.scheme, Deal):
        return replay_setting(setting, rehearsal), {}, {}
    run, reading, rtt_s = deal(setting, rehearsal), rehearsal.reading, rehearsal.rtt_s
    facts = {
        "reading": reading.label,
        "rtt_s": rtt_s,
        "in_flight": rehearsal.in_flight(setting),
        "computed_load": run.computed_load,
        "billed_worker_s": run.billed_worker_s,
    }
    pairs = {
        "reading": f"{reading.label}, {rtt_s * 1000:g} ms to a worker and back",
        "jobs in flight": str(rehearsal.in_flight(setting)),
        "computed": f"{run.computed_load:.3f} batches for each that is needed",
    }
    return run.replay, facts, pairs

"""``seqgc replay``: what a scheme's run comes to on recorded delays."""

from __future__ import annotations

from typing import Annotated, cast

import numpy as np

from seqgc.cli._options import AsJson, ProfileFile, RehearsalOptions
from seqgc.cli._show import show
from seqgc.rounds import ClosingRule, Setting, WaitOut
from seqgc.schemes import parse_scheme
from seqgc.search import replay as replay_setting


def replay(
    profile: ProfileFile,
    scheme: Annotated[str, "Scheme spec, for example gc-rep:s=7."],
    options: RehearsalOptions,
    mu: Annotated[float, "Tolerance of the closing rule."] = 0.0,
    wait_out: Annotated[str, "all, conform or feasible."] = "feasible",
    jobs_per_round: Annotated[int, "Models in a job (bundle)."] = 1,
    as_json: AsJson = False,
) -> None:
    """Replay a scheme on recorded delays: run time, stragglers, wait-outs."""
    rehearsal = options.of(profile)
    setting = Setting(
        scheme=parse_scheme(scheme, n=rehearsal.profile.num_workers),
        rule=ClosingRule(mu=mu, wait_out=cast("WaitOut", wait_out)),
        jobs_per_round=jobs_per_round,
    )
    jobs = rehearsal.jobs(setting.scheme, jobs_per_round=jobs_per_round)
    ideal_s = rehearsal.ideal_s(jobs, jobs_per_round=jobs_per_round)
    run = replay_setting(setting, rehearsal)
    seconds, stragglers = run.round_seconds, np.count_nonzero(~run.responded, axis=1)
    facts = {
        "runtime_s": run.runtime_s,
        "round_seconds": seconds,
        "stragglers_per_round": stragglers,
        "waited_out": run.waited_out,
        "job_finish_round": run.job_finish_round,
        "ideal_s": ideal_s,
        "scheme": setting.scheme.spec,
        "jobs": jobs,
    }
    ratio = f"the run takes {run.runtime_s / ideal_s:.3f} times that"
    pairs = {
        "scheme": setting.scheme.spec,
        "jobs": f"{jobs} in {len(seconds)} rounds",
        "run time": f"{run.runtime_s:.4f} s",
        "clairvoyant bound": f"{ideal_s:.4f} s ({ratio})",
        "rounds": f"{seconds.mean():.3f} s on average, {seconds.max():.3f} s at most",
        "stragglers": f"{stragglers.sum()} in all, {stragglers.max()} in a round at most",
        "rounds waited out": str(np.count_nonzero(run.waited_out)),
    }
    show(facts, pairs, as_json=as_json)

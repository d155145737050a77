"""``seqgc replay``: what a scheme's run comes to on recorded delays."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np
import typer

from seqgc.cli._options import AsJson, ProfileFile, RehearsalOptions, as_wait_out
from seqgc.cli._show import print_json, print_pairs
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import Scheme, parse_scheme
from seqgc.search import Replay
from seqgc.search import replay as replay_setting

__all__ = ["replay"]


class _Facts(TypedDict):
    """The keys of ``seqgc replay --json``."""

    runtime_s: float
    round_seconds: list[float]
    stragglers_per_round: list[int]
    waited_out: list[bool]
    job_finish_round: list[int]
    ideal_s: float
    scheme: str
    jobs: int


def replay(
    profile: ProfileFile,
    scheme: Annotated[str, typer.Option(help="Scheme spec, for example gc-rep:s=7.")],
    options: RehearsalOptions,
    mu: Annotated[float, typer.Option(help="Tolerance of the closing rule.")] = 0.0,
    wait_out: Annotated[str, typer.Option(help="all, conform or feasible.")] = "feasible",
    jobs_per_round: Annotated[int, typer.Option(help="Models in a job (bundle).")] = 1,
    as_json: AsJson = False,
) -> None:
    """Replay a scheme on recorded delays: run time, stragglers, wait-outs."""
    rehearsal = options.of(profile)
    setting = Setting(
        scheme=parse_scheme(scheme, n=rehearsal.profile.num_workers),
        rule=ClosingRule(mu=mu, wait_out=as_wait_out(wait_out)),
        jobs_per_round=jobs_per_round,
    )
    count = rehearsal.jobs(setting.scheme, jobs_per_round=jobs_per_round)
    ideal_s = rehearsal.ideal_s(count, jobs_per_round=jobs_per_round)
    replayed = replay_setting(setting, rehearsal)
    facts = _facts(setting.scheme, replayed, jobs=count, ideal_s=ideal_s)
    if as_json:
        print_json({**facts})
    else:
        _print(facts)


def _facts(scheme: Scheme, replayed: Replay, *, jobs: int, ideal_s: float) -> _Facts:
    return {
        "runtime_s": replayed.runtime_s,
        "round_seconds": replayed.round_seconds.tolist(),
        "stragglers_per_round": np.count_nonzero(~replayed.responded, axis=1).tolist(),
        "waited_out": replayed.waited_out.tolist(),
        "job_finish_round": replayed.job_finish_round.tolist(),
        "ideal_s": ideal_s,
        "scheme": scheme.spec,
        "jobs": jobs,
    }


def _print(facts: _Facts) -> None:
    seconds = facts["round_seconds"]
    print_pairs(
        {
            "scheme": facts["scheme"],
            "jobs": f"{facts['jobs']} in {len(seconds)} rounds",
            "run time": f"{facts['runtime_s']:.4f} s",
            "clairvoyant bound": f"{facts['ideal_s']:.4f} s "
            f"(the run takes {facts['runtime_s'] / facts['ideal_s']:.3f} times that)",
            "rounds": f"{np.mean(seconds):.3f} s on average, {max(seconds):.3f} s at most",
            "stragglers": f"{sum(facts['stragglers_per_round'])} in all, "
            f"{max(facts['stragglers_per_round'])} in a round at most",
            "rounds waited out": str(sum(facts["waited_out"])),
        }
    )

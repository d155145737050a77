"""The search among defences that deal: few candidates, each replayed, no closing rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seqgc.errors import ParameterError
from seqgc.rounds import Setting
from seqgc.search._dealt_run import deal
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._search import SLACK, Ranked
from seqgc.search._space import SearchSpace

__all__ = ["deal_candidates", "rank_deals"]


def deal_candidates(seen: Rehearsal, space: SearchSpace) -> list[Setting]:
    """Return the candidates that deal; none where the recorded workers cannot be dealt work.

    Raises
    ------
    ParameterError
        If there are none, and nothing else is searched.
    """
    jobs = seen.num_jobs or 1
    candidates = [
        Setting(scheme=scheme, jobs_per_round=k)
        for k in (space.jobs_per_round if seen.can_deal else ())
        if jobs % k == 0 and seen.longest_delay(jobs_per_round=k) >= 0
        for scheme in space.deals(seen.profile.num_workers)
    ]
    if candidates or space.has_schemes:
        return candidates
    if not seen.can_deal:
        rule = "must be able to run on the recorded workers: work is dealt to workers that stay"
        provider = seen.profile.meta.provider or "workers of an unknown kind"
        remedy = f"these are {provider}: let functions stay (--resident), or name a backend whose "
        remedy += "workers do (--backend local)"
        raise ParameterError("schemes", rule, ",".join(space.families), remedy)
    rule = "must admit a candidate: jobs_per_round must divide the jobs and the models"
    raise ParameterError("jobs_per_round", rule, space.jobs_per_round)


def rank_deals(
    candidates: Sequence[Setting],
    seen: Rehearsal,
    held: Rehearsal | None,
    *,
    most_s: float,
    prune: bool,
) -> list[Ranked]:
    """Replay the candidates; with ``prune`` those alone that may be best, or take ``most_s``."""
    best_s, rows = math.inf, list[Ranked]()
    for setting in sorted(candidates, key=seen.bound_s):
        if not prune or seen.bound_s(setting) * SLACK <= max(best_s, most_s):
            rows.append(_ranked(setting, seen, held))
            best_s = min(best_s, rows[-1].runtime_s)
    return rows


def _ranked(setting: Setting, seen: Rehearsal, held: Rehearsal | None) -> Ranked:
    run = deal(setting, seen)
    return Ranked(
        setting=setting,
        reading=seen.reading,
        runtime_s=run.replay.runtime_s,
        ideal_s=seen.bound_s(setting),
        billed_worker_s=run.billed_worker_s,
        holdout_s=deal(setting, held).replay.runtime_s if held else None,
        holdout_ideal_s=held.bound_s(setting) if held else None,
    )

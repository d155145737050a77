"""Searches that run each candidate separately in virtual time.

If delays are read as speeds, the time of a round depends on the earlier work of its workers.
Therefore candidates cannot be replayed in batches, and fewer are searched (see `speeds_space`).
Schemes that deal their work are searched here too; they have few candidates and no closing rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from seqgc.errors import ParameterError
from seqgc.rounds import Setting
from seqgc.schemes import Deal, entry_of
from seqgc.search._pruned_search import SLACK, Progress, Ranked, Stop, with_accuracy
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._replay import accuracy, deal, decode_some, paced_run
from seqgc.search._space import SearchSpace

__all__ = [
    "MOST_AT_SPEED",
    "deal_candidates",
    "rank_deals",
    "rank_speeds",
    "short_list",
    "speeds_space",
]

MOST_AT_SPEED: Final = 16
"""The largest number of schemes of one name that a search on speeds evaluates."""


def speeds_space(space: SearchSpace) -> SearchSpace:
    """Return the part of a space that is searched if delays are read as speeds.

    The part has only the first tolerance and the first wait-out rule, and at most 16 schemes of
    each name, spread evenly over all schemes of the name.
    """
    most = MOST_AT_SPEED if space.most is None else min(space.most, MOST_AT_SPEED)
    return replace(space, mus=space.mus[:1], wait_outs=space.wait_outs[:1], most=most)


def rank_speeds(
    seen: Rehearsal,
    held: Rehearsal | None,
    space: SearchSpace,
    *,
    exact: bool,
    progress: Progress,
    stop: Stop,
) -> list[Ranked]:
    """Run all exact candidates, or all inexact candidates; return the results, the best first.

    The search ends early if ``stop`` returns True after a candidate. The results are sorted by
    `Ranked.equivalent_s`, which is the run time of exact candidates, and combines time and error of
    inexact candidates.

    Raises
    ------
    ParameterError
        If the space has no candidate.
    """
    settings = _settings(seen, space, exact=exact)
    rows = list[Ranked]()
    for setting in settings:
        if rows and stop():
            break
        row = _ranked(setting, seen, held)
        rows.append(row if exact else with_accuracy(row, accuracy(setting, seen), held))
        progress(len(rows), len(settings))
    return sorted(rows, key=lambda row: row.equivalent_s)


def short_list(rows: list[Ranked], top: int) -> list[Ranked]:
    """Return the first ``top`` rows, and the best row of every other scheme name."""
    names = [entry_of(row.setting.scheme).name for row in rows]
    return [row for i, row in enumerate(rows) if i < top or names[i] not in names[:i]]


def _settings(seen: Rehearsal, space: SearchSpace, *, exact: bool) -> list[Setting]:
    n, jobs = seen.profile.num_workers, seen.num_jobs or 1
    schemes = list(space.schemes(n, exact=exact) if space.has_schemes else ())
    settings = [
        Setting(scheme=scheme, rule=closing.rule, jobs_per_round=closing.jobs_per_round)
        for closing in space.closings()
        for scheme in schemes
        if jobs % closing.jobs_per_round == 0
        and scheme.delay <= seen.longest_delay(jobs_per_round=closing.jobs_per_round)
    ]
    if exact:
        settings += _dealt_settings(seen, space)
    if not settings:
        kind = "exact" if exact else "inexact"
        rule = f"must admit an {kind} candidate whose bundles divide the jobs and the models"
        raise ParameterError("schemes", rule, space.families)
    return settings


def _run(setting: Setting, on: Rehearsal) -> tuple[float, float]:
    """Return the run time and the billed worker-seconds of a setting."""
    if isinstance(setting.scheme, Deal):
        run = deal(setting, on)
        return run.replay.runtime_s, run.billed_worker_s
    replay, billed_s = paced_run(setting, on, observe=decode_some)
    on.require_possible(setting, replay.runtime_s, num_jobs=on.jobs(setting.scheme))
    return replay.runtime_s, billed_s


def deal_candidates(seen: Rehearsal, space: SearchSpace) -> list[Setting]:
    """Return the candidates that deal work; an empty list if the recorded workers do not stay.

    Raises
    ------
    ParameterError
        If no candidate deals work, and the space has no other schemes.
    """
    candidates = _dealt_settings(seen, space)
    if candidates or space.has_schemes:
        return candidates
    if not seen.can_deal:
        rule = (
            "must be able to run on the recorded workers: work is dealt only to workers that stay"
        )
        provider = seen.profile.meta.provider or "workers of an unknown kind"
        remedy = f"these are {provider}; let functions stay (--resident), or name a backend whose "
        remedy += "workers stay (--backend local)"
        raise ParameterError("schemes", rule, ",".join(space.families), remedy)
    rule = "must admit a candidate: jobs_per_round must divide the jobs and the models"
    raise ParameterError("jobs_per_round", rule, space.jobs_per_round)


def _dealt_settings(seen: Rehearsal, space: SearchSpace) -> list[Setting]:
    """Return the distinct settings that deal work, with pieces of at least one data point."""
    jobs, most = seen.num_jobs or 1, math.inf if seen.batch is None else seen.batch
    candidates = [
        Setting(scheme=scheme, jobs_per_round=k)
        for k in (space.jobs_per_round if seen.can_deal else ())
        if jobs % k == 0 and seen.longest_delay(jobs_per_round=k) >= 0
        for scheme in space.deals(seen.profile.num_workers)
        if (scheme.pieces or 0) <= most
    ]
    fitted = [
        replace(each, scheme=each.scheme.fitted(seen.in_flight(each), batch=seen.batch))
        for each in candidates
    ]
    return list(dict.fromkeys(fitted))


def rank_deals(
    candidates: Sequence[Setting],
    seen: Rehearsal,
    held: Rehearsal | None,
    *,
    prune: bool,
    stop: Stop,
) -> list[Ranked]:
    """Replay the candidates in order of their bounds, and return the results.

    If ``prune`` is True, candidates whose bounds are above the best time are skipped. The search
    ends early if ``stop`` returns True after a candidate.
    """
    best_s, rows = math.inf, list[Ranked]()
    for setting in sorted(candidates, key=seen.bound_s):
        if rows and stop():
            break
        if not prune or seen.bound_s(setting) * SLACK <= best_s:
            rows.append(_ranked(setting, seen, held))
            best_s = min(best_s, rows[-1].runtime_s)
    return rows


def _ranked(setting: Setting, seen: Rehearsal, held: Rehearsal | None) -> Ranked:
    seconds, billed_s = _run(setting, seen)
    return Ranked(
        setting=setting,
        reading=seen.reading,
        runtime_s=seconds,
        ideal_s=seen.bound_s(setting),
        billed_worker_s=billed_s,
        holdout_s=None if held is None else _run(setting, held)[0],
        holdout_ideal_s=None if held is None else held.bound_s(setting),
    )

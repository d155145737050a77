"""The search among defences that deal: few candidates, each replayed, no closing rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from seqgc.errors import ParameterError
from seqgc.rounds import Setting
from seqgc.search._dealt_run import deal
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._search import Ranked
from seqgc.search._space import SearchSpace
from seqgc.search._virtual_workers import Reading

__all__ = ["deal_candidates", "rank_deals"]


def deal_candidates(seen: Rehearsal, space: SearchSpace) -> list[tuple[Setting, Reading]]:
    """Return what there is to look at, and how it is to be read.

    Where workers may be resident, everything is read both ways: per round as well.
    """
    jobs = seen.num_jobs or 1
    readings = dict.fromkeys((seen.reading, replace(seen.reading, resident=False)))
    candidates = [
        (Setting(scheme=scheme, jobs_per_round=k), reading)
        for k in space.jobs_per_round
        if jobs % k == 0 and seen.longest_delay(jobs_per_round=k) >= 0
        for scheme in space.deals(seen.profile.num_workers)
        for reading in readings
    ]
    if not candidates and not space.has_schemes:
        rule = "must admit a candidate: jobs_per_round must divide the jobs and the models"
        raise ParameterError("jobs_per_round", rule, space.jobs_per_round)
    return candidates


def rank_deals(
    candidates: Sequence[tuple[Setting, Reading]], seen: Rehearsal, held: Rehearsal | None
) -> Iterator[Ranked]:
    """Yield what each comes to on the rounds seen and, if there are any, on those held out."""
    for setting, reading in candidates:
        stages = (replace(seen, reading=reading), held and replace(held, reading=reading))
        yield _ranked(setting, *stages)


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

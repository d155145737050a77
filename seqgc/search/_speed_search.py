"""The search on delays that are read as speeds: each candidate runs in virtual time.

The cost of a round then depends on what its workers have done before, so that candidates cannot be
replayed many at a time. The search looks at fewer of them: see `speeds_space`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from seqgc.errors import ParameterError
from seqgc.rounds import Setting
from seqgc.schemes import Deal, Scheme, entry_of
from seqgc.search._dealt_run import deal
from seqgc.search._paced_run import paced_run
from seqgc.search._recorded_run import accuracy, decode_some
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._search import Ranked, with_accuracy
from seqgc.search._space import SearchSpace

__all__ = ["MOST_AT_SPEED", "rank_speeds", "short_list", "speeds_space"]

MOST_AT_SPEED: Final = 16
"""The largest number of schemes of one name that a search on speeds looks at."""


def speeds_space(space: SearchSpace) -> SearchSpace:
    """Return the part of a space that is searched on speeds.

    It has the first tolerance and the first wait-out rule, and at most 16 schemes of each name,
    spread evenly over all schemes of that name.
    """
    most = MOST_AT_SPEED if space.most is None else min(space.most, MOST_AT_SPEED)
    return replace(space, mus=space.mus[:1], wait_outs=space.wait_outs[:1], most=most)


def rank_speeds(
    seen: Rehearsal,
    held: Rehearsal | None,
    space: SearchSpace,
    *,
    exact: bool,
    progress: Callable[[int, int], None],
) -> list[Ranked]:
    """Run every exact, or every inexact, candidate; return the results, the fastest first.

    Of those that are not exact time and error count together (`Ranked.equivalent_s`).

    Raises
    ------
    ParameterError
        If the space has no candidate.
    """
    settings = _settings(seen, space, exact=exact)
    rows = list[Ranked]()
    for setting in settings:
        seconds, billed_s = _run(setting, seen)
        row = Ranked(
            setting=setting,
            reading=seen.reading,
            runtime_s=seconds,
            ideal_s=seen.bound_s(setting),
            billed_worker_s=billed_s,
            holdout_s=None if held is None else _run(setting, held)[0],
            holdout_ideal_s=None if held is None else held.bound_s(setting),
        )
        rows.append(row if exact else with_accuracy(row, accuracy(setting, seen), held))
        progress(len(rows), len(settings))
    return sorted(rows, key=lambda row: row.equivalent_s)


def short_list(rows: list[Ranked], top: int) -> list[Ranked]:
    """Return the first ``top`` rows, and the best row of every other name of a scheme."""
    names = [entry_of(row.setting.scheme).name for row in rows]
    return [row for i, row in enumerate(rows) if i < top or names[i] not in names[:i]]


def _settings(seen: Rehearsal, space: SearchSpace, *, exact: bool) -> list[Setting]:
    n, jobs = seen.profile.num_workers, seen.num_jobs or 1
    schemes = list[Scheme | Deal](space.schemes(n, exact=exact) if space.has_schemes else ())
    if exact and seen.can_deal:
        schemes += space.deals(n)
    settings = [
        Setting(scheme=scheme, rule=closing.rule, jobs_per_round=closing.jobs_per_round)
        for closing in space.closings()
        for scheme in schemes
        if jobs % closing.jobs_per_round == 0
        and scheme.delay <= seen.longest_delay(jobs_per_round=closing.jobs_per_round)
    ]
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

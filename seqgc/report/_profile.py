"""The page of a delay profile: who straggles, which scheme suits it, what looks like accidents."""

from __future__ import annotations

import numpy as np

from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import DelayProfile, lint
from seqgc.report._elements import Element, number, percent, rows_table
from seqgc.report._gallery import delay_pictures, heat_map, search_pictures
from seqgc.report._page import Figure, Page, Section
from seqgc.report._search import SEARCH_S, TOLERANCE, Search, search
from seqgc.search import Ranked, Rehearsal
from seqgc.stragglers import StragglerStats, straggler_stats

__all__ = ["profile_page"]

_MOST_FINDINGS, _MOST_RANKED = 30, 15


def profile_page(
    profile: DelayProfile,
    *,
    name: str,
    alpha: float | None = None,
    search_s: float | None = SEARCH_S,
) -> Page:
    """Return the page of a profile.

    ``search_s`` is for about how many seconds schemes are searched (None: not at all), with
    ``alpha`` seconds per unit of load; None: the profile's own. Raises `ParameterError` if it can
    be no such number.
    """
    if alpha is not None:
        profile.slope(alpha)  # a wrong one is its user's to mend; the page says what is missing
    stats = straggler_stats(profile, mu=TOLERANCE, max_window=1)
    sections = [
        Section(
            title="Who straggles",
            says=[
                f"A straggler answers later than {1 + TOLERANCE:g} times its round's first answer."
            ],
            pictures=[
                heat_map(profile, title="Each worker in each round"),
                *delay_pictures(profile),
            ],
        )
    ]
    best: list[Figure] = []
    if search_s is not None:
        section, best = _searched(profile, alpha=alpha, seconds=search_s)
        sections.append(section)
    sections += [_findings(profile), _facts(profile)]
    return Page(
        kind="Delay profile",
        title=name,
        says=[f"{profile.num_rounds:,} rounds of {profile.num_workers:,} workers."],
        glance=[*_glance(profile, stats), *best],
        sections=sections,
    )


def _glance(profile: DelayProfile, stats: StragglerStats) -> list[Figure]:
    answered = profile.times[profile.answered]
    failed = 1 - profile.answered.mean()
    figures = []
    if answered.size:
        median, late = np.quantile(answered, [0.5, 0.99])
        figures = [
            Figure(name="median answer", value=float(median), unit="s"),
            Figure(name="99 % within", value=float(late), unit="s"),
            Figure(name="slowest answer", value=float(answered.max()), unit="s"),
        ]
    figures.append(Figure(name="stragglers", value=percent(stats.rate), about="of all answers"))
    if stats.rate_after_straggling is not None:
        again = percent(stats.rate_after_straggling)
        figures.append(Figure(name="straggle again", value=again, about="in the next round"))
    figures.append(Figure(name="most in a round", value=stats.smallest_s, about="stragglers"))
    figures.append(Figure(name="longest burst", value=len(stats.bursts), unit="rounds"))
    if failed:
        figures.append(Figure(name="no answer", value=percent(failed)))
    return figures


def _searched(
    profile: DelayProfile, *, alpha: float | None, seconds: float
) -> tuple[Section, list[Figure]]:
    title = "What would suit it"
    try:
        found = search(Rehearsal(profile=profile, alpha=alpha), seconds=seconds)
    except (ParameterError, ProfileError) as error:
        return Section(title=title, says=[f"Schemes were not searched: {error}"]), []
    best = found.tuning.best
    section = Section(
        title=title,
        says=[_verdict(found, best), found.says],
        pictures=search_pictures(found.tuning),
        table=_ranking(found),
    )
    return section, [
        Figure(name="fastest by rounds", value=best.setting.scheme.spec),
        Figure(
            name="time to the bound", value=best.ratio, about="1 is a master who knows all delays"
        ),
    ]


def _verdict(found: Search, best: Ranked) -> str:
    words = (
        f"Of schemes that work by rounds {best.setting.scheme.spec} was the fastest: "
        f"{number(best.runtime_s)} s, {number(best.ratio)} times the bound that a master who knows "
        "all delays beforehand cannot beat."
    )
    if found.dealt is None:
        return f"{words} Work is dealt out to workers that stay only, so that was not tried."
    dealt, ratio = found.dealt.setting.scheme.spec, number(found.dealt.ratio)
    return f"{words} Dealing work out ({dealt}) came to {ratio} times its own bound."


def _ranking(found: Search) -> Element:
    heading = ["scheme", "load", "delay, rounds", "time, s", "times the bound", "worker-seconds"]
    rows = [
        (
            row.setting.scheme.spec,
            row.setting.scheme.normalized_load,
            row.setting.scheme.delay,
            row.runtime_s,
            row.ratio,
            row.billed_worker_s,
        )
        for row in found.tuning.ranking[:_MOST_RANKED]
    ]
    return rows_table(heading, rows)


def _findings(profile: DelayProfile) -> Section:
    found = lint(profile)
    title = "What looks like an accident"
    if not found:
        return Section(title=title, says=["Nothing: seqgc profile lint finds no fault."])
    shown = found[:_MOST_FINDINGS]
    says = (
        [f"The first {len(shown)} of {len(found)} findings; seqgc profile lint has all."]
        if len(found) > len(shown)
        else []
    )
    rows = [(each.severity, each.rule, each.row, each.column, each.message) for each in shown]
    return Section(
        title=title, says=says, table=rows_table(["", "rule", "round", "worker", "what"], rows)
    )


def _facts(profile: DelayProfile) -> Section:
    meta = profile.meta
    known = {
        "base load": number(meta.base_load),
        "alpha": None if meta.alpha is None else f"{number(meta.alpha)} s per unit of load",
        "batch": meta.batch and number(meta.batch),
        "model": meta.model,
        "provider": meta.provider,
        "region": meta.region,
        "recorded at": meta.recorded_at,
        "source": meta.source,
        "round trip": None if meta.rtt_s is None else f"{number(meta.rtt_s)} s",
    }
    facts = {name: number(value) for name, value in known.items() if value}
    return Section(title="What it was recorded on", facts=facts)

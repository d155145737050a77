"""The page of a delay profile: its stragglers, schemes that suit it, and suspicious entries.

A search on the full grid of `seqgc.search.tune` would take minutes for hundreds of workers.
Therefore the search begins with a few evenly spaced schemes of the grid, and is repeated with four
times as many schemes until its time is over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, ProfileError
from seqgc.plot import PICTURES
from seqgc.plot.tables import number, percent
from seqgc.profiles import DelayProfile, lint
from seqgc.report._page import Page, PageTable, Section, Tile
from seqgc.schemes import Scheme, registered
from seqgc.search import Ranked, Rehearsal, SearchSpace, Tuning, tune
from seqgc.stragglers import StragglerStats, straggler_stats

__all__ = ["SEARCH_S", "profile_page", "search_section"]

SEARCH_S: Final = 10.0  # seconds that the search of a page may take

_TOLERANCE: Final = 1.0  # the paper's mu, on the whole page
_MOST_FINDINGS, _MOST_RANKED = 30, 15
_MOST_CELLS: Final = 2**14  # rounds × workers that are replayed
_FEWEST_ROUNDS: Final = 10
_FIRST: Final = 4  # number of schemes of each family in the first search
_FINER: Final = 4  # factor by which this number grows with each search
_FINE_UP_TO: Final = 64  # for more workers than this, a coarser grid is used
_NO_LIMIT: Final = 2**31


def profile_page(
    profile: DelayProfile,
    *,
    name: str,
    alpha: float | None = None,
    search_s: float | None = SEARCH_S,
) -> Page:
    """Return the page of a profile.

    A search for suitable schemes takes about ``search_s`` seconds; if ``search_s`` is None, there
    is no search. ``alpha`` is the slope in seconds per unit of load; if it is None, the slope of
    the profile is used. Raises `ParameterError` if ``alpha`` is not a valid slope.
    """
    if alpha is not None:
        profile.slope(alpha)  # a missing slope is reported on the page, an invalid one is refused
    stats = straggler_stats(profile, mu=_TOLERANCE, max_window=1)
    pictures = [(PICTURES[each], profile) for each in ("heat_map", "bursts", "completion_times")]
    rule = f"A straggler answers later than {1 + _TOLERANCE:g} times its round's first answer."
    sections = [Section(title="Who straggles", says=[rule], pictures=pictures)]
    best: list[Tile] = []
    if search_s is not None:
        section, best = search_section(profile, alpha=alpha, seconds=search_s)
        sections.append(section)
    sections += [_findings(profile), _facts(profile)]
    return Page(
        kind="Delay profile",
        title=name,
        says=[f"{profile.dimensions}."],
        glance=[*_glance(profile, stats), *best],
        sections=sections,
    )


def _glance(profile: DelayProfile, stats: StragglerStats) -> list[Tile]:
    answered = profile.times[profile.answered]
    failed = 1 - profile.answered.mean()
    tiles = []
    if answered.size:
        median, late = np.quantile(answered, [0.5, 0.99])
        tiles = [
            Tile(name="median answer", value=float(median), unit="s"),
            Tile(name="99 % within", value=float(late), unit="s"),
            Tile(name="slowest answer", value=float(answered.max()), unit="s"),
        ]
    tiles.append(Tile(name="stragglers", value=percent(stats.rate), about="of all answers"))
    if stats.rate_after_straggling is not None:
        again = percent(stats.rate_after_straggling)
        tiles.append(Tile(name="straggle again", value=again, about="in the next round"))
    tiles.append(Tile(name="most in a round", value=stats.smallest_s, about="stragglers"))
    tiles.append(Tile(name="longest burst", value=len(stats.bursts), unit="rounds"))
    if failed:
        tiles.append(Tile(name="no answer", value=percent(failed)))
    return tiles


def _findings(profile: DelayProfile) -> Section:
    findings = lint(profile)
    title = "What looks like an accident"
    if not findings:
        return Section(title=title, says=["Nothing: seqgc profile lint finds no fault."])
    first = findings[:_MOST_FINDINGS]
    says = [f"The first {len(first)} of {len(findings)} findings; seqgc profile lint lists all."]
    rows = [(each.severity, each.rule, each.row, each.column, each.message) for each in first]
    return Section(
        title=title,
        says=says if len(findings) > len(first) else [],
        table=PageTable(["", "rule", "round", "worker", "what"], rows),
    )


def _facts(profile: DelayProfile) -> Section:
    meta = profile.meta
    values = {
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
    facts = {name: number(value) for name, value in values.items() if value}
    return Section(title="What it was recorded on", facts=facts)


# ---- the search ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfileSearch:
    """The result of the search.

    ``complete`` is True if every scheme of the grid was evaluated. ``dealt`` is the result of the
    defence ``deal``, or None if it cannot run on these workers.
    """

    tuning: Tuning
    rounds: int
    dealt: Ranked | None
    complete: bool


def _search(rehearsal: Rehearsal, *, seconds: float) -> _ProfileSearch:
    """Search the schemes that work in rounds for about ``seconds``, and evaluate ``deal``.

    The first, coarsest search is always completed. Raises `ParameterError` or `ProfileError` if
    schemes cannot be evaluated on the profile.
    """
    profile = rehearsal.profile
    rounds = max(_FEWEST_ROUNDS, _MOST_CELLS // profile.num_workers)
    if rounds < profile.num_rounds:
        rehearsal = rehearsal.on_part(profile.select_rounds(0, stop=rounds))
    space = SearchSpace(
        families=tuple(
            name for name, each in registered().items() if issubclass(each.kind, Scheme)
        ),
        mus=(_TOLERANCE,),
        wait_outs=("feasible",),
        jobs_per_round=(1,),
        coarse=profile.num_workers > _FINE_UP_TO,
        most=_FIRST,
    )
    dealt = None
    if rehearsal.can_deal:
        dealt = _tune(rehearsal, replace(space, families=("deal",))).best
    began = lap = time.monotonic()
    tuning = _tune(rehearsal, space)
    complete = False
    while not complete:
        now = time.monotonic()
        if now - began + _FINER * (now - lap) > seconds:
            break
        lap, evaluated = now, tuning.evaluated
        space = replace(space, most=_FINER * (space.most or 1))
        tuning = _tune(rehearsal, space)
        complete = tuning.evaluated == evaluated
    return _ProfileSearch(tuning=tuning, rounds=profile.num_rounds, dealt=dealt, complete=complete)


def _tune(rehearsal: Rehearsal, space: SearchSpace) -> Tuning:
    return tune(rehearsal, space=space, top=_NO_LIMIT, prune=False, pareto=True, quiet=True)


def search_section(
    profile: DelayProfile, *, alpha: float | None = None, seconds: float = SEARCH_S
) -> tuple[Section, list[Tile]]:
    """Search for about ``seconds``; return the section with the result, and tiles for the head."""
    title = "What would suit it"
    try:
        result = _search(Rehearsal(profile=profile, alpha=alpha), seconds=seconds)
    except (ParameterError, ProfileError) as error:
        return Section(title=title, says=[f"Schemes were not searched: {error}"]), []
    best = result.tuning.best
    section = Section(
        title=title,
        says=[_verdict(result, best), _extent(result)],
        pictures=[(PICTURES[each], result.tuning) for each in ("landscape", "ratios", "pareto")],
        table=_ranking(result.tuning),
    )
    return section, [
        Tile(name="fastest by rounds", value=best.setting.scheme.spec),
        Tile(
            name="time to the bound", value=best.ratio, about="1 is a master that knows all delays"
        ),
    ]


def _verdict(result: _ProfileSearch, best: Ranked) -> str:
    words = (
        f"Of the schemes that work in rounds, {best.setting.scheme.spec} was the fastest: "
        f"{number(best.runtime_s)} s, {number(best.ratio)} times the bound, which is the "
        "time of a master that knows all delays in advance."
    )
    if result.dealt is None:
        return f"{words} Dealing work out was not tried: it needs resident workers."
    dealt, ratio = result.dealt.setting.scheme.spec, number(result.dealt.ratio)
    return f"{words} Dealing work out ({dealt}) took {ratio} times its own bound."


def _extent(result: _ProfileSearch) -> str:
    schemes = "every scheme" if result.complete else "evenly spread schemes"
    return (
        f"Searched: {result.tuning.evaluated:,} candidates, {schemes} of a grid, with one model a "
        f"round. A round closes at (1 + {_TOLERANCE:g}) times its first answer, or when every job "
        f"can still finish. Each candidate was replayed for {result.tuning.num_jobs:,} jobs on "
        f"{result.rounds:,} recorded rounds. seqgc tune also searches closing rules and bundles, "
        "and judges on held-out rounds."
    )


def _ranking(tuning: Tuning) -> PageTable:
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
        for row in tuning.ranking[:_MOST_RANKED]
    ]
    return PageTable(heading, rows)

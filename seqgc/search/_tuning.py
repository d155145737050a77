"""`tune`, which searches the best setting for recorded delays, and checks its lead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from seqgc._tabular import Summarised, columns, number
from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.progress import working
from seqgc.runs import ProfileSource
from seqgc.schemes import entry_of
from seqgc.search._pruned_search import Progress, PrunedSearch, Ranked, Stop, pareto_front
from seqgc.search._rehearsal import Rehearsal, ReplaySettings
from seqgc.search._replay import replay
from seqgc.search._space import SearchSpace
from seqgc.search._unbatched_search import (
    deal_candidates,
    rank_deals,
    rank_speeds,
    short_list,
    speeds_space,
)

__all__ = ["Lead", "Tuning", "bootstrap_total", "hold_out", "tune"]

_CONFIDENCE = 0.95
_FEWEST_ROUNDS = 10  # a block bootstrap over fewer rounds gives too narrow intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The lead of the winner over the best row of another scheme with the same bundle size.

    ``saved_s`` are the seconds that the winner saves, on held-out rounds if there are any.
    ``low_s`` and ``high_s`` are the ends of the confidence interval of ``saved_s`` at level
    ``confidence``, from a moving-block bootstrap over ``rounds`` recorded rounds.
    """

    runner_up: Ranked
    saved_s: float
    low_s: float
    high_s: float
    confidence: float
    rounds: int

    @property
    def real(self) -> bool:
        """True if the interval shows that the winner is faster, from at least ten rounds."""
        return self.low_s > 0 and self.rounds >= _FEWEST_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tuning(Summarised):
    """The result of a search.

    ``ranking`` is sorted by ``runtime_s``. It contains the ``top`` best candidates, and the best
    candidate of every scheme name. If requested, ``pareto`` is the Pareto front of ``runtime_s``
    and ``billed_worker_s``, sorted by ``runtime_s``. If requested, ``inexact`` is a separate
    ranking of the schemes whose gradients are approximations, by ``equivalent_s``, which combines
    time and error. ``evaluated`` is the number of candidates that were replayed. ``pruned`` is the
    number of candidates that were not replayed, because they cannot be in the ranking or because
    the search was stopped. ``unfit`` is the number of candidates that need a longer profile.

    ``num_rounds`` is the number of recorded rounds by which the search chooses, and
    ``rounds_seen[k]`` is the number of these rounds that bundles of k models used. If it is 0,
    bundles of k models were not searched, because k does not divide the jobs or the models.
    ``left_out`` are the requested names that cannot run on the recorded workers
    (`Rehearsal.can_deal`). If ``stopped`` is True, the search was ended before it had tried all
    candidates, and a better one may exist.
    """

    ranking: tuple[Ranked, ...]
    num_jobs: int
    evaluated: int
    pareto: tuple[Ranked, ...] = ()
    lead: Lead | None = None
    pruned: int = 0
    unfit: int = 0
    inexact: tuple[Ranked, ...] = ()
    num_rounds: int = 0
    rounds_seen: Mapping[int, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    stopped: bool = False

    def summary(self) -> dict[str, object]:
        best, lead = self.best, self.lead
        found: dict[str, object] = {
            "best": best.setting.label,
            "run time": f"{number(best.runtime_s)} s",
            "times the bound": best.ratio,
            "jobs": self.num_jobs,
            "tried": self.evaluated + self.pruned,
        }
        if lead is not None:
            sure = "real" if lead.real else "may be chance"
            found["lead"] = f"{number(lead.saved_s)} s, {sure}"
        return found | ({"stopped": True} if self.stopped else {})

    def summary_table(self) -> dict[str, npt.NDArray[Any]]:
        return columns(
            {
                "setting": row.setting.label,
                "run time, s": row.runtime_s,
                "times the bound": row.ratio,
                "bill, worker-s": row.billed_worker_s,
            }
            for row in self.ranking
        )

    @property
    def best(self) -> Ranked:
        """The first row of the ranking."""
        return self.ranking[0]


def tune(
    on: Rehearsal | ProfileSource,
    *,
    space: SearchSpace | None = None,
    holdout: float | None = None,
    top: int = 20,
    pareto: bool = False,
    prune: bool = True,
    seed: int | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    quiet: bool = False,
    **settings: Unpack[ReplaySettings],
) -> Tuning:
    """Search the scheme, its parameters and the closing rule that are fastest on recorded delays.

    ``on`` is a profile, the path of one, or the name of a generator (`seqgc.runs.read_delays`).
    It may also be a `Rehearsal`, whose fields are the ``settings`` of the replays.

    A candidate is skipped if a lower bound of its run time is above the run times of the ``top``
    best and of the best candidate of its own scheme. All other candidates are replayed. The ranking
    is therefore the same as if all candidates were replayed. The only exception is `deal`, whose
    replays take long: a candidate is skipped if it cannot be the best `deal`. If a batch is given,
    schemes that cut it into more pieces than it has points are omitted, unless all schemes do this.

    If the rehearsal has no number of gradients, the profile is repeated so that every bundle size
    uses every round equally often, and all candidates compute the same number of gradients. If the
    profile may not be repeated (``repeat=False``), large bundles use only a part of it
    (`Tuning.rounds_seen`). By default, the candidates are all exact schemes that can run on the
    recorded workers. If delays are read as speeds, each candidate needs a separate run in virtual
    time. Then fewer candidates are tried: only the first tolerance and the first wait-out rule of
    the space, and at most 16 schemes of each name.

    ``holdout`` is the fraction of the rounds that are held out from the search, and are used to
    evaluate its choice (`hold_out`). Both parts are repeated as often as the jobs need. At least
    ``top`` candidates are ranked. If ``pareto`` is True, the Pareto front of run time and bill is
    computed too, for which more candidates are replayed. If ``prune`` is False, all candidates are
    replayed. ``seed`` determines the position of the held-out rounds, and the bootstrap; if it is
    None, the last rounds are held out, and the bootstrap uses 0. ``progress`` is called with the
    number of candidates that were replayed or skipped, and with the total. ``stop`` is called
    between replays; once it returns True, the search ends with the candidates replayed so far. If
    there is no ``progress``, a terminal or notebook shows it after a second, unless ``quiet`` is
    True.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or no candidate fits the profile.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> found = tune(profile, alpha=1.0, space=SearchSpace(families=("uncoded", "gc-rep")))
    >>> found
    <Tuning: best gc-rep:s=1, mu=0, feasible, 4 jobs a round; run time 6.5 s; ...>
    >>> found.best.setting.label, found.num_jobs, found.rounds_seen
    ('gc-rep:s=1, mu=0, feasible, 4 jobs a round', 8, {1: 2, 2: 2, 4: 2})
    """
    space, rehearsal = space or SearchSpace(), Rehearsal.of(on, **settings)
    require_int("seed", seed or 0, least=0)
    require_int("top", top, least=1)
    with working("search", quiet=quiet or progress is not None) as tell:
        return _search(
            rehearsal,
            space,
            holdout=holdout,
            top=top,
            pareto=pareto,
            prune=prune,
            seed=seed,
            tell=progress or (lambda settled, total: tell("search", settled / max(total, 1))),
            stops=stop or (lambda: False),
        )


def _search(
    rehearsal: Rehearsal,
    space: SearchSpace,
    *,
    holdout: float | None,
    top: int,
    pareto: bool,
    prune: bool,
    seed: int | None,
    tell: Progress,
    stops: Stop,
) -> Tuning:
    seen, held = _stages(rehearsal, space, holdout=holdout, seed=seed)
    if rehearsal.recorded == "speed":
        space = speeds_space(space)
        return _at_speed(seen, held, space, top=top, pareto=pareto, tell=tell, stop=stops)
    deals = deal_candidates(seen, space)
    search = partial(
        PrunedSearch,
        seen,
        held,
        space=space,
        top=top,
        pareto=pareto,
        prune=prune,
        progress=lambda settled, total: tell(settled, total + len(deals)),
        stop=stops,
    )
    exact = search(exact=True) if space.has_schemes else None
    inexact = search(exact=False) if space.inexact else None  # raises before the first replay
    found = exact.run() if exact else None
    ranking, front = (found.ranking(), found.front()) if found else ([], [])
    deals = [] if found and stops() else deals
    dealt = rank_deals(deals, seen, held, prune=prune and not pareto, stop=stops)
    total = len(deals) + (found.total if found else 0)
    if not stops():
        tell(total, total)
    ranking = short_list(sorted([*ranking, *dealt], key=lambda row: row.runtime_s), top)
    evaluated = len(dealt) + (found.evaluated if found else 0)
    return Tuning(
        ranking=tuple(ranking),
        pareto=tuple(_front([*front, *dealt])) if pareto else (),
        lead=_lead(ranking, on=held or seen, seed=seed or 0),
        num_jobs=seen.num_jobs or 0,
        evaluated=evaluated,
        pruned=total - evaluated,
        unfit=found.unfit if found else 0,
        inexact=tuple(inexact.run().ranking()) if inexact and not stops() else (),
        num_rounds=seen.profile.num_rounds,
        rounds_seen=_rounds_seen(seen, space),
        left_out=() if seen.can_deal else space.dealing,
        stopped=stops(),
    )


def _at_speed(
    seen: Rehearsal,
    held: Rehearsal | None,
    space: SearchSpace,
    *,
    top: int,
    pareto: bool,
    tell: Progress,
    stop: Stop,
) -> Tuning:
    """Search in virtual time.

    There is no lead, because the rounds of a run do not correspond to recorded rounds.
    """
    rank = partial(rank_speeds, seen, held, space, progress=tell, stop=stop)
    rows = rank(exact=True)
    inexact = rank(exact=False) if space.inexact and not stop() else []
    return Tuning(
        ranking=tuple(short_list(rows, top)),
        pareto=tuple(_front(rows)) if pareto else (),
        num_jobs=seen.num_jobs or 0,
        evaluated=len(rows) + len(inexact),
        inexact=tuple(short_list(inexact, top)),
        num_rounds=seen.profile.num_rounds,
        rounds_seen=_rounds_seen(seen, space),
        left_out=() if seen.can_deal else space.dealing,
        stopped=stop(),
    )


def _rounds_seen(seen: Rehearsal, space: SearchSpace) -> dict[int, int]:
    """Return, by bundle size, the number of recorded rounds used; 0 if the size is not searched."""
    jobs, rounds = seen.num_jobs or 1, seen.profile.num_rounds
    fits = {
        k: jobs % k == 0 and seen.longest_delay(jobs_per_round=k) >= 0 for k in space.jobs_per_round
    }
    return {k: min(jobs // k, rounds) if fits[k] else 0 for k in space.jobs_per_round}


def _front(rows: Sequence[Ranked]) -> list[Ranked]:
    """Return the rows on the Pareto front of run time and bill."""
    seconds = np.array([row.runtime_s for row in rows])
    bills = np.array([row.billed_worker_s for row in rows])
    return [rows[i] for i in pareto_front(seconds, bills=bills)]


def _stages(
    rehearsal: Rehearsal, space: SearchSpace, *, holdout: float | None, seed: int | None
) -> tuple[Rehearsal, Rehearsal | None]:
    """Return the rehearsal for the search, and the rehearsal of the held-out rounds or None."""
    seen, held = rehearsal.profile, None
    if holdout is not None:
        seen, held = hold_out(seen, fraction=holdout, seed=seed)
    at_speed = rehearsal.recorded == "speed"
    repeat, num_jobs = rehearsal.repeat is not False or held is not None, rehearsal.num_jobs
    if num_jobs is None:
        bundle, rounds = math.lcm(*space.jobs_per_round), seen.num_rounds
        if not (repeat or at_speed):  # reserve rounds for delays, but use at least half of all
            rounds = max(max(rounds - space.max_delay, rounds // 2) // bundle, 1)
        num_jobs = bundle * rounds  # every bundle size uses every round equally often
    alpha = rehearsal.alpha if at_speed else rehearsal.slope
    stage = replace(rehearsal.on_part(seen), num_jobs=num_jobs, alpha=alpha, repeat=repeat)
    if at_speed:
        stage.pace()  # raises if the profile cannot be used at all
    else:
        stage.ideal_s(num_jobs)  # raises in the same case
    return stage, None if held is None else stage.on_part(held)


def _lead(ranking: Sequence[Ranked], *, on: Rehearsal, seed: int) -> Lead | None:
    """Compare the winner, round by round, with the next scheme of the same bundle size."""
    best = ranking[0]
    others = [
        row
        for row in ranking
        if row.setting.jobs_per_round == best.setting.jobs_per_round
        and entry_of(row.setting.scheme).name != entry_of(best.setting.scheme).name
    ]
    if not others:
        return None
    winner, other = (
        replay(row.setting, replace(on, reading=row.reading)).round_seconds
        for row in (best, others[0])
    )
    # A run that has ended takes no time in further rounds: extra rounds of the other run count.
    saved = np.zeros(max(len(winner), len(other)))
    saved[: len(other)] += other
    saved[: len(winner)] -= winner
    each = round_totals(saved, rounds=on.profile.num_rounds)
    low, high = bootstrap_total(each, seed=seed, confidence=_CONFIDENCE)
    return Lead(
        runner_up=others[0],
        saved_s=float(saved.sum()),
        low_s=low,
        high_s=high,
        confidence=_CONFIDENCE,
        rounds=len(each),
    )


def hold_out(
    profile: DelayProfile, *, fraction: float, seed: int | None = None
) -> tuple[DelayProfile, DelayProfile]:
    """Split a profile into the rounds for a search and the held-out rounds for its evaluation.

    The held-out rounds are consecutive, because bursts extend over several rounds. If ``seed`` is
    None, they are the last rounds of the profile; otherwise they are a block at a random position.
    ``fraction`` is their fraction of all rounds. Each part has at least one round.

    Raises
    ------
    ParameterError
        If the fraction is not between 0 and 1, or the profile has only one round.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0], [2.0], [3.0], [4.0]])
    >>> chosen, held_out = hold_out(profile, fraction=0.5)
    >>> chosen.times.ravel(), held_out.times.ravel()
    (array([1., 2.]), array([3., 4.]))
    """
    if not 0 < fraction < 1:
        raise ParameterError("holdout", "must satisfy 0 < holdout < 1 (share of rounds)", fraction)
    rounds = profile.num_rounds
    if rounds < 2:
        raise ParameterError("holdout", "must be left out for a profile of one round", fraction)
    size = min(rounds - 1, max(1, round(fraction * rounds)))
    start = rounds - size
    if seed is not None:
        start = int(np.random.default_rng(seed).integers(rounds - size + 1))
    kept = np.delete(np.arange(rounds), np.s_[start : start + size])
    held = profile.select_rounds(start, stop=start + size)
    return replace(profile, times=profile.times[kept], status=profile.status[kept]), held


def round_totals(seconds: FloatArray, *, rounds: int) -> FloatArray:
    """Return the sums (min(rounds, m),) of ``seconds`` (m,) over repetitions of recorded rounds.

    Repetitions of a recorded round are not independent, so their seconds are added.
    """
    totals: FloatArray = np.zeros(min(rounds, len(seconds)))
    np.add.at(totals, np.arange(len(seconds)) % rounds, seconds)
    return totals


def bootstrap_total(
    differences: FloatArray, *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Return a confidence interval for the sum of a series whose consecutive values are dependent.

    The interval is computed by the moving-block bootstrap (Künsch 1989). From ``differences`` (m,),
    blocks of ``ceil(m^(1/3))`` consecutive values are drawn with replacement until there are m
    values. The ends of the interval are percentiles of the sums of ``resamples`` such series.
    """
    totals = bootstrap_totals(differences, seed=seed, resamples=resamples)
    low, high = np.quantile(totals, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def bootstrap_totals(differences: FloatArray, *, seed: int, resamples: int) -> FloatArray:
    """Return the sums (resamples,) of series drawn in blocks from ``differences`` (m,).

    See `bootstrap_total`.
    """
    m = len(differences)
    block = math.ceil(m ** (1 / 3))
    rng = np.random.default_rng(seed)
    starts = rng.integers(m - block + 1, size=(resamples, math.ceil(m / block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :m]
    totals: FloatArray = differences[rows].sum(axis=1)
    return totals

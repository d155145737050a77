"""The search: replay every candidate that may matter, and rank them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.schemes import entry_of
from seqgc.search._dealt_search import deal_candidates, rank_deals
from seqgc.search._recorded_run import replay
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._search import Progress, Ranked, Search, pareto_front
from seqgc.search._space import SearchSpace
from seqgc.search._speed_search import rank_speeds, short_list, speeds_space

__all__ = ["Lead", "Tuning", "bootstrap_total", "hold_out", "tune"]

_CONFIDENCE = 0.95
_FEWEST_ROUNDS = 10  # a block bootstrap over fewer is too sure of itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """The winner against the best of another scheme with as many jobs per round.

    ``saved_s`` is the seconds that the winner saves, on held-out rounds if there are any, and
    ``low_s … high_s`` its interval at ``confidence`` from a moving-block bootstrap over the
    ``rounds`` recorded.
    """

    runner_up: Ranked
    saved_s: float
    low_s: float
    high_s: float
    confidence: float
    rounds: int

    @property
    def real(self) -> bool:
        """Whether the interval leaves no doubt who is faster; of a few rounds none can."""
        return self.low_s > 0 and self.rounds >= _FEWEST_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a search found.

    ``ranking`` is sorted by ``runtime_s`` and holds the best of every scheme beside the best of
    all; ``pareto`` (where asked for) trades ``runtime_s`` for ``billed_worker_s``, the fastest
    first. ``inexact`` (where asked for) ranks, apart, schemes whose gradients are approximations,
    by ``equivalent_s``: time and error together. ``evaluated`` candidates were replayed, ``pruned``
    ones cannot be ranked, and ``unfit`` ones would have needed a longer profile.

    ``num_rounds`` recorded rounds were there to choose by, and bundles of k models saw
    ``rounds_seen[k]`` of them; 0: bundles of k were not searched, because k does not divide the
    jobs or the models. ``left_out`` are names that were to be searched and cannot run on the
    recorded workers (`Rehearsal.can_deal`).
    """

    ranking: tuple[Ranked, ...]
    pareto: tuple[Ranked, ...]
    lead: Lead | None
    num_jobs: int
    evaluated: int
    pruned: int
    unfit: int
    inexact: tuple[Ranked, ...] = ()
    num_rounds: int = 0
    rounds_seen: Mapping[int, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def best(self) -> Ranked:
        """The winner."""
        return self.ranking[0]


def tune(
    rehearsal: Rehearsal,
    *,
    space: SearchSpace | None = None,
    holdout: float | None = None,
    top: int = 20,
    pareto: bool = False,
    prune: bool = True,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Find the scheme, its parameters and the closing rule that are fastest on recorded delays.

    Every candidate is replayed, but for those that cannot be ranked: whose run time's floor is
    above the ``top`` best and the best of their own scheme. The ranking is that of the whole space;
    given a batch, without schemes that cut it finer than it has points, unless all do.

    Unless the rehearsal says how many gradients there are, the profile is repeated so that every
    bundle size sees every round equally often: all candidates compute as many gradients. If it is
    not to be repeated (``repeat=False``), large bundles see a part of it only
    (`Tuning.rounds_seen`). Candidates are, by default, all that are exact and can run on the
    recorded workers. ``holdout`` is the share of the rounds that the choice does not see and is
    judged by (`hold_out`); both parts are repeated as often as the jobs need. At least ``top`` are
    ranked. If delays are read as speeds, each candidate takes a run of its own in virtual time, and
    fewer are tried: the first tolerance and the first wait-out rule of the space, and at most 16
    schemes of each name. ``pareto`` also finds the whole trade between run time and bill, which
    prunes less; ``prune=False`` replays everything. ``seed`` is for the place of the held-out
    rounds and for the bootstrap; None: the last rounds, and 0. ``progress`` is called with the
    number of candidates settled so far, and of all.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or no candidate fits the profile.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> rehearsal = Rehearsal(profile=profile, alpha=1.0)
    >>> found = tune(rehearsal, space=SearchSpace(families=("uncoded", "gc-rep")))
    >>> found.best.setting.label, found.num_jobs, found.rounds_seen
    ('gc-rep:s=1, mu=0, feasible, 4 jobs a round', 8, {1: 2, 2: 2, 4: 2})
    """
    space = space or SearchSpace()
    require_int("seed", seed or 0, least=0)
    require_int("top", top, least=1)
    seen, held = _stages(rehearsal, space, holdout=holdout, seed=seed)
    tell = progress or (lambda _settled, _total: None)
    if rehearsal.recorded == "speed":
        return _at_speed(seen, held, speeds_space(space), top=top, pareto=pareto, tell=tell)
    deals = deal_candidates(seen, space)
    search = partial(
        Search,
        seen,
        held,
        space=space,
        top=top,
        pareto=pareto,
        prune=prune,
        progress=lambda settled, total: tell(settled, total + len(deals)),
    )
    exact = search(exact=True) if space.has_schemes else None
    inexact = search(exact=False) if space.inexact else None  # refused before anything is replayed
    found = exact.run() if exact else None
    ranking, front = (found.ranking(), found.front()) if found else ([], [])
    most_s = found.threshold() if found else math.inf
    dealt = rank_deals(deals, seen, held, most_s=most_s, prune=prune and not pareto)
    total = len(deals) + (found.total if found else 0)
    tell(total, total)
    most_s = max(most_s, min((row.runtime_s for row in dealt), default=0.0))
    short = [row for row in dealt if row.runtime_s <= most_s]
    ranking = sorted([*ranking, *short], key=lambda row: row.runtime_s)
    evaluated = len(dealt) + (found.evaluated if found else 0)
    return Tuning(
        ranking=tuple(ranking),
        pareto=tuple(_front([*front, *dealt])) if pareto else (),
        lead=_lead(ranking, on=held or seen, seed=seed or 0),
        num_jobs=seen.num_jobs or 0,
        evaluated=evaluated,
        pruned=total - evaluated,
        unfit=found.unfit if found else 0,
        inexact=tuple(inexact.run().ranking()) if inexact else (),
        num_rounds=seen.profile.num_rounds,
        rounds_seen=_rounds_seen(seen, space),
        left_out=() if seen.can_deal else space.dealing,
    )


def _at_speed(
    seen: Rehearsal,
    held: Rehearsal | None,
    space: SearchSpace,
    *,
    top: int,
    pareto: bool,
    tell: Progress,
) -> Tuning:
    rows = rank_speeds(seen, held, space, exact=True, progress=tell)
    inexact = list[Ranked]()
    if space.inexact:
        inexact = rank_speeds(seen, held, space, exact=False, progress=tell)
    return Tuning(
        ranking=tuple(short_list(rows, top)),
        pareto=tuple(_front(rows)) if pareto else (),
        lead=None,  # its rounds are not those of the recording
        num_jobs=seen.num_jobs or 0,
        evaluated=len(rows) + len(inexact),
        pruned=0,
        unfit=0,
        inexact=tuple(short_list(inexact, top)),
        num_rounds=seen.profile.num_rounds,
        rounds_seen=_rounds_seen(seen, space),
        left_out=() if seen.can_deal else space.dealing,
    )


def _rounds_seen(seen: Rehearsal, space: SearchSpace) -> dict[int, int]:
    """Return how many recorded rounds bundles of each size see; 0: they are not searched."""
    jobs, rounds = seen.num_jobs or 1, seen.profile.num_rounds
    fits = {
        k: jobs % k == 0 and seen.longest_delay(jobs_per_round=k) >= 0 for k in space.jobs_per_round
    }
    return {k: min(jobs // k, rounds) if fits[k] else 0 for k in space.jobs_per_round}


def _front(rows: Sequence[Ranked]) -> list[Ranked]:
    """Return those that are best for some price of time against worker-seconds."""
    seconds = np.array([row.runtime_s for row in rows])
    bills = np.array([row.billed_worker_s for row in rows])
    return [rows[i] for i in pareto_front(seconds, bills=bills)]


def _stages(
    rehearsal: Rehearsal, space: SearchSpace, *, holdout: float | None, seed: int | None
) -> tuple[Rehearsal, Rehearsal | None]:
    """Return what to choose by and, if rounds are held out, what to judge by."""
    seen, held = rehearsal.profile, None
    if holdout is not None:
        seen, held = hold_out(seen, fraction=holdout, seed=seed)
    at_speed = rehearsal.recorded == "speed"
    repeat, num_jobs = rehearsal.repeat is not False or held is not None, rehearsal.num_jobs
    if num_jobs is None:
        bundle, rounds = math.lcm(*space.jobs_per_round), seen.num_rounds
        if not (repeat or at_speed):  # as many as have a round with every delay, or half if more
            rounds = max(max(rounds - space.max_delay, rounds // 2) // bundle, 1)
        num_jobs = bundle * rounds  # repeated, every bundle size sees every round equally often
    alpha = rehearsal.alpha if at_speed else rehearsal.slope
    stage = replace(rehearsal, profile=seen, num_jobs=num_jobs, alpha=alpha, repeat=repeat)
    if at_speed:
        stage.pace()  # checks that the profile can be used at all
    else:
        stage.ideal_s(num_jobs)  # as well
    return stage, None if held is None else replace(stage, profile=held)


def _lead(ranking: Sequence[Ranked], *, on: Rehearsal, seed: int) -> Lead | None:
    """Compare the winner, round by round, with the next scheme that bundles as many jobs."""
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
    # A run that has ended takes no more time: the tail that a delay costs counts in full.
    saved = np.zeros(max(len(winner), len(other)))
    saved[: len(other)] += other
    saved[: len(winner)] -= winner
    # A round that is played again is no further evidence.
    rounds = on.profile.num_rounds
    each: FloatArray = np.zeros(min(rounds, len(saved)))
    np.add.at(each, np.arange(len(saved)) % rounds, saved)
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
    """Cut a profile's rounds into those to choose by and those to judge by.

    Held out are consecutive rounds, because bursts last: the profile's last ones, or with a seed
    a block at a place drawn with it. ``fraction`` is their share; each part gets one round at
    least.

    Raises
    ------
    ParameterError
        If the fraction is not between 0 and 1, or there is but one round.

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
        raise ParameterError("holdout", "needs a profile of two rounds or more", fraction)
    size = min(rounds - 1, max(1, round(fraction * rounds)))
    start = rounds - size
    if seed is not None:
        start = int(np.random.default_rng(seed).integers(rounds - size + 1))
    kept = np.delete(np.arange(rounds), np.s_[start : start + size])
    held = profile.select_rounds(start, stop=start + size)
    return replace(profile, times=profile.times[kept], status=profile.status[kept]), held


def bootstrap_total(
    differences: FloatArray, *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Return an interval for the sum of a series whose neighbours depend on each other.

    Moving-block bootstrap (Künsch 1989) of ``differences`` (m,): blocks of ``ceil(m^(1/3))``
    consecutive values, drawn with replacement until there are m; percentiles of the sums.
    """
    m = len(differences)
    block = math.ceil(m ** (1 / 3))
    rng = np.random.default_rng(seed)
    starts = rng.integers(m - block + 1, size=(resamples, math.ceil(m / block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :m]
    totals = differences[rows].sum(axis=1)
    low, high = np.quantile(totals, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)

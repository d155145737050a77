"""The search: replay every candidate that may matter, and rank them (spec, sections 6 and 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.rounds import WaitOut
from seqgc.schemes import parse_scheme
from seqgc.search._ideal import known_alpha
from seqgc.search._search import Found, Progress, Search, Stage
from seqgc.search._space import Rule, SearchSpace
from seqgc.search._statistics import bootstrap_total, hold_out
from seqgc.search.kernel import Conformity
from seqgc.stragglers import load_lower_bound

__all__ = ["Lead", "Ranked", "Tuning", "tune"]

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One candidate, and what its run comes to.

    Parameters
    ----------
    normalized_load, load_lower_bound : float
        Of one model's batch; the bound is that of any scheme with the same promise.
    runtime_s, ideal_s : float
        Seconds on the rounds that the search chose by; of the run, and of the clairvoyant bound
        for as many jobs a round.
    holdout_s, holdout_ideal_s : float, optional
        The same on the rounds that were held out.
    billed_worker_s : float
        Worker-seconds of all tasks sent, in full: a function that is cancelled runs to its end.
    """

    scheme: str
    mu: float
    wait_out: WaitOut
    jobs_per_round: int
    delay: int
    normalized_load: float
    load_lower_bound: float
    runtime_s: float
    ideal_s: float
    billed_worker_s: float
    holdout_s: float | None = None
    holdout_ideal_s: float | None = None

    @property
    def ratio(self) -> float:
        """Run time over the clairvoyant bound, on the held-out rounds if there are any."""
        if self.holdout_s is None or self.holdout_ideal_s is None:
            return self.runtime_s / self.ideal_s
        return self.holdout_s / self.holdout_ideal_s


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
    first. ``evaluated`` candidates were replayed, ``pruned`` ones cannot be ranked, and ``unfit``
    ones would have needed a longer profile.
    """

    ranking: tuple[Ranked, ...]
    pareto: tuple[Ranked, ...]
    lead: Lead | None
    num_jobs: int
    evaluated: int
    pruned: int
    unfit: int

    @property
    def best(self) -> Ranked:
        """The winner."""
        return self.ranking[0]


def tune(
    profile: DelayProfile,
    *,
    num_jobs: int | None = None,
    alpha: float | None = None,
    space: SearchSpace | None = None,
    holdout: float | None = None,
    top: int = 20,
    repeat: bool = False,
    conformity: Conformity = "scheme",
    pareto: bool = False,
    prune: bool = True,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """Find the scheme, its parameters and the closing rule that are fastest on a profile.

    Every candidate is replayed, but for those that cannot be ranked: whose run time's floor is
    above the ``top`` best and the best of their own scheme. The ranking is that of the whole space.

    Parameters
    ----------
    num_jobs
        Gradients of one model each; by default as many as the profile holds.
    alpha
        Seconds per unit of load, instead of the profile's own.
    space
        The candidates, by default all.
    holdout
        Share of the rounds that the choice does not see and is judged by; see `hold_out`. Both
        parts are repeated as often as the jobs need.
    top
        How many are ranked, at least.
    repeat
        Begin again at the profile's first round when it ends.
    conformity
        What conforms; see `batch_replay`.
    pareto
        Also find the whole trade between run time and bill, which prunes less.
    prune
        False replays everything.
    seed
        Of the held-out block's place and of the bootstrap; None is the last rounds, and 0.
    progress
        Is told how far the search is.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or no candidate fits the profile.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0, 1.0], [3.0, 1.0, 1.5, 1.0]])
    >>> space = SearchSpace(jobs_per_round=(1,), mus=(0.0, 1.0))
    >>> tune(profile, num_jobs=2, alpha=1.0, space=space).best.scheme
    'gc-rep:s=1'
    """
    space = space or SearchSpace()
    if seed is not None and seed < 0:
        raise ParameterError("seed", "must be >= 0", seed)
    profile = profile.awaited()
    seen, held = profile, None
    if holdout is not None:
        seen, held = hold_out(profile, fraction=holdout, seed=seed)
    repeat = repeat or held is not None
    stage = Stage(
        profile=seen,
        num_jobs=_default_jobs(seen, space, repeat=repeat) if num_jobs is None else num_jobs,
        alpha=known_alpha(profile, alpha),
        repeat=repeat,
        conformity=conformity,
    )
    search = Search(stage, space=space, top=top, pareto=pareto, prune=prune, progress=progress)
    search.run()
    judge = stage if held is None else replace(stage, profile=held)
    ranking = [_ranked(found, stage=stage, judge=judge) for found in search.ranking()]
    return Tuning(
        ranking=tuple(ranking),
        pareto=tuple(_ranked(found, stage=stage, judge=judge) for found in search.front()),
        lead=_lead(ranking, stage=judge, seed=seed or 0),
        num_jobs=stage.num_jobs,
        evaluated=search.evaluated,
        pruned=search.total - search.evaluated,
        unfit=search.unfit,
    )


def _default_jobs(profile: DelayProfile, space: SearchSpace, *, repeat: bool) -> int:
    """As many jobs as the profile holds for every delay, or half of it where that is more.

    Where it repeats, so many that every bundle size sees every round equally often.
    """
    bundle = math.lcm(*space.jobs_per_round)
    if repeat:
        return bundle * profile.num_rounds
    rounds = max(profile.num_rounds - space.max_delay, profile.num_rounds // 2, 1)
    return max(rounds - rounds % bundle, 1)


def _ranked(found: Found, *, stage: Stage, judge: Stage) -> Ranked:
    scheme, rule = found.scheme, found.rule
    holdout_s = holdout_ideal_s = None
    if judge is not stage:
        holdout_s = judge.replay([scheme], rule=rule).runtime_s.item()
        holdout_ideal_s = judge.ideal_s(rule.jobs_per_round)
    return Ranked(
        scheme=scheme.spec,
        mu=rule.mu,
        wait_out=rule.wait_out,
        jobs_per_round=rule.jobs_per_round,
        delay=scheme.delay,
        normalized_load=found.normalized_load,
        load_lower_bound=load_lower_bound(scheme),
        runtime_s=found.runtime_s,
        ideal_s=stage.ideal_s(rule.jobs_per_round),
        billed_worker_s=found.billed_worker_s,
        holdout_s=holdout_s,
        holdout_ideal_s=holdout_ideal_s,
    )


def _lead(ranking: Sequence[Ranked], *, stage: Stage, seed: int) -> Lead | None:
    """Compare the winner, round by round, with the next scheme that bundles as many jobs."""
    best = ranking[0]
    others = [
        row
        for row in ranking
        if row.jobs_per_round == best.jobs_per_round and _family(row) != _family(best)
    ]
    if not others:
        return None
    winner, other = (_rounds(row, stage) for row in (best, others[0]))
    # A run that has ended takes no more time: the tail that a delay costs counts in full.
    saved = np.zeros(max(len(winner), len(other)))
    saved[: len(other)] += other
    saved[: len(winner)] -= winner
    # A round that is played again is no further evidence.
    rounds = stage.profile.num_rounds
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


def _family(row: Ranked) -> str:
    return row.scheme.partition(":")[0]


def _rounds(row: Ranked, stage: Stage) -> FloatArray:
    scheme = parse_scheme(row.scheme, n=stage.profile.num_workers)
    rule = Rule(mu=row.mu, wait_out=row.wait_out, jobs_per_round=row.jobs_per_round)
    seconds: FloatArray = stage.replay([scheme], rule=rule).round_seconds[0]
    return seconds

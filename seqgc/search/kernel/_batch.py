"""`batch_replay`: the general replay of thousands of schemes at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.rounds import ClosingRule, WaitOut
from seqgc.schemes import Scheme
from seqgc.search.kernel._conditions import Conditions, Conformity
from seqgc.search.kernel._groups import by_groups, decisions
from seqgc.search.kernel._result import BatchReplay

__all__ = ["batch_replay"]


def batch_replay(
    schemes: Sequence[Scheme],
    profile: DelayProfile,
    *,
    num_jobs: int,
    mu: float,
    wait_out: WaitOut,
    alpha: float | None = None,
    jobs_per_round: int = 1,
    repeat: bool = False,
    conformity: Conformity = "scheme",
) -> BatchReplay:
    """Replay many schemes under one closing rule: what `seqgc.search.replay` gives, bit for bit.

    Parameters
    ----------
    num_jobs, mu, wait_out, alpha, jobs_per_round, repeat
        As for `seqgc.search.replay`.
    conformity
        What conforms: each scheme's own model, or for SR-SGC and M-SGC the (B, W, lam)-bursty one.

    Raises
    ------
    ParameterError, ProfileError
        Where a replay of one of the schemes would.

    Examples
    --------
    >>> from seqgc.schemes import GC, Uncoded
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> schemes = [Uncoded(n=3), GC(n=3, s=1)]
    >>> batch = batch_replay(schemes, profile, num_jobs=2, mu=0.0, wait_out="feasible", alpha=0.0)
    >>> batch.runtime_s, batch.waited_out
    (array([8. , 3.5]), array([2, 2]))
    """
    conditions = Conditions(
        profile=profile.awaited(),
        num_jobs=num_jobs,
        mu=mu,
        wait_out=wait_out,
        alpha=alpha,
        jobs_per_round=jobs_per_round,
        repeat=repeat,
        conformity=conformity,
    )
    ClosingRule(mu=mu, wait_out=wait_out)
    if not schemes:
        none = np.zeros(0, dtype=np.intp)
        return BatchReplay(round_seconds=np.zeros((0, 0)), num_rounds=none, waited_out=none)
    loads = np.array([scheme.normalized_load for scheme in schemes])
    _refuse_what_replay_refuses(schemes, loads, conditions)
    slope = profile.meta.alpha if alpha is None else alpha
    if slope is None:  # refused above
        raise ParameterError("alpha", "must be given: the profile does not know its own", None)
    # As `DelayProfile.at_load` computes it, operation for operation.
    shifts = slope * (jobs_per_round * loads - profile.meta.base_load)
    first: dict[Hashable, int] = {}
    same = np.array([first.setdefault(decisions(s, conditions), len(first)) for s in schemes])
    _, distinct = np.unique(same, return_index=True)
    batch = by_groups([schemes[i] for i in distinct], shifts[distinct], conditions)
    return BatchReplay(
        round_seconds=batch.round_seconds[same],
        num_rounds=batch.num_rounds[same],
        waited_out=batch.waited_out[same],
    )


def _refuse_what_replay_refuses(
    schemes: Sequence[Scheme], loads: FloatArray, conditions: Conditions
) -> None:
    """Raise what a replay would raise: for one of these schemes if for any."""
    profile = conditions.profile
    if (
        conditions.num_jobs < 1
        or conditions.jobs_per_round < 1
        or conditions.num_jobs % conditions.jobs_per_round
    ):
        conditions.replay(schemes[0])
    for scheme in schemes:
        too_long = conditions.bundles + scheme.delay > profile.num_rounds and not conditions.repeat
        if too_long or scheme.n != profile.num_workers:
            conditions.replay(scheme)
    for load in (float(loads.min()), float(loads.max())):
        profile.at_load(conditions.jobs_per_round * load, alpha=conditions.alpha)

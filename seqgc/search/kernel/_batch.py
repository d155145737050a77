"""`batch_replay`: the general replay of thousands of schemes at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from seqgc.rounds import ClosingRule
from seqgc.schemes import Scheme
from seqgc.search._rehearsal import Rehearsal
from seqgc.search.kernel._conditions import Conditions
from seqgc.search.kernel._dispatch import kernel_of
from seqgc.search.kernel._groups import by_groups
from seqgc.search.kernel._result import BatchReplay

__all__ = ["batch_replay"]


def batch_replay(
    schemes: Sequence[Scheme],
    rehearsal: Rehearsal,
    *,
    rule: ClosingRule,
    jobs_per_round: int = 1,
) -> BatchReplay:
    """Replay many schemes under one closing rule: what `seqgc.search.replay` gives, bit for bit.

    Parameters
    ----------
    schemes
        The candidates.
    rehearsal
        What they run on, with its number of jobs.
    rule, jobs_per_round
        As in a `seqgc.rounds.Setting`.

    Raises
    ------
    ParameterError, ProfileError
        Where a replay of one of the schemes would.

    Examples
    --------
    >>> from seqgc.profiles import DelayProfile
    >>> from seqgc.schemes import GC, Uncoded
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> rehearsal = Rehearsal(profile=profile, num_jobs=2, alpha=0.0)
    >>> batch = batch_replay([Uncoded(n=3), GC(n=3, s=1)], rehearsal, rule=ClosingRule())
    >>> batch.runtime_s, batch.waited_out
    (array([8. , 3.5]), array([2, 2]))
    """
    conditions = Conditions(rehearsal=rehearsal, rule=rule, jobs_per_round=jobs_per_round)
    if not schemes:
        none = np.zeros(0, dtype=np.intp)
        return BatchReplay(round_seconds=np.zeros((0, 0)), num_rounds=none, waited_out=none)
    _refuse_what_replay_refuses(schemes, conditions)
    loads = np.stack([scheme.worker_loads for scheme in schemes])
    for load in (float(loads.min()), float(loads.max())):
        rehearsal.profile.times_at(jobs_per_round * load, alpha=rehearsal.alpha)
    # As `DelayProfile.times_at` computes it, operation for operation.
    shifts = rehearsal.slope * (jobs_per_round * loads - rehearsal.profile.meta.base_load)
    # Where all workers of a scheme have one load, their order is that of every such scheme.
    even = (loads == loads[:, :1]).all(axis=1).tolist()
    kernels = [kernel_of(s, conditions) if e else None for s, e in zip(schemes, even, strict=True)]
    first: dict[Hashable, int] = {}
    keys = [s if k is None else k.decisions for s, k in zip(schemes, kernels, strict=True)]
    same = np.array([first.setdefault(key, len(first)) for key in keys])
    _, distinct = np.unique(same, return_index=True)
    candidates = [(schemes[i], kernels[i]) for i in distinct]
    batch = by_groups(candidates, shifts[distinct, 0], conditions)
    return BatchReplay(
        round_seconds=batch.round_seconds[same],
        num_rounds=batch.num_rounds[same],
        waited_out=batch.waited_out[same],
    )


def _refuse_what_replay_refuses(schemes: Sequence[Scheme], conditions: Conditions) -> None:
    """Raise what a replay would raise: for one of these schemes if for any."""
    profile = conditions.rehearsal.profile
    for scheme in schemes:
        too_long = conditions.bundles(scheme) + scheme.delay > profile.num_rounds
        if scheme.n != profile.num_workers or (too_long and not conditions.rehearsal.repeat):
            conditions.rehearsal.times(conditions.setting(scheme))

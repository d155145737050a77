"""`batch_replay`, which replays thousands of schemes at the same time.

A search replays tens of thousands of candidates. The general replay (`seqgc.search.replay`) follows
a schedule for each candidate, and asks the schedule in every round which answers suffice. This
package makes the same decisions for many candidates together, with a few array operations per
round. It is based on three observations.

1. *All candidates share the order of arrival.* A candidate's load adds one constant to every time
   of the profile, so that each round is sorted once (`Arrivals`). The answers with which a round
   can close are then a prefix of this order, and one integer describes them: their number.

2. *More answers never hurt.* This is part of every schedule's contract (`Schedule.feasible`,
`Schedule.conforms`). Therefore a prefix suffices if it has at least a certain length, the round's
*threshold*: one integer for each candidate. `Thresholds` computes the threshold from the past, in
closed form, for each kind of scheme. For GC it is constant, or the position of the answer that
completes a group; for M-SGC it is the largest of several such positions (`_gc`, `_sr_sgc`,
`_m_sgc`).

3. *The threshold and the closing rule determine when the round closes* (`Closings`). If enough
workers have answered by ``(1+mu) * kappa``, it closes at this time; otherwise it closes when the
answer at the threshold arrives (with ``all``, the last answer). All workers that answered by this
instant count, the thresholds are updated, and the next round begins.

Example: 4 workers answer after 1, 2, 3 and 9 s; the rule is mu = 0, ``feasible``. GC with s = 1 has
the threshold 3, and the round lasts 3 s. For repetition in two groups {0, 1} and {2, 3}, and
arrivals in the order 0, 2, 1, 3, the threshold is 2, and the round lasts 2 s.

Candidates with the same decisions are computed once (`Kernel.decisions`), and candidates with the
same rule are computed together in blocks that fit the processor's cache. Times are added and
compared in the order of the operations of the general replay, so that the results agree to the last
bit; ``tests/search/test_same_decisions.py`` compares them. The general replay is used for a scheme
without a kernel, and for a scheme whose workers have unequal loads, and therefore another order of
arrival. None of the three observations holds for RA-SGC, because its loads depend on earlier
stragglers: `_ra_sgc` replays it differently.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from seqgc.ports import FloatArray, IntArray
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import Scheme, by_rounds
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._replay import replay
from seqgc.search.kernel._arrivals import Arrivals
from seqgc.search.kernel._dispatch import Kernel, Stage, kernel_of

__all__ = ["BatchReplay", "batch_replay"]

_BLOCK = 2**20  # largest product of workers and candidates in a block
_LEAST_WIDTH = 32  # least number of candidates in a block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchReplay:
    """The outcome of the runs of many candidates on recorded times.

    ``round_seconds`` (candidates, most rounds) is in seconds, 0 after a candidate's last round.
    ``loads`` has the same shape, and is the mean load of a worker, as a fraction of a model's
    batch. ``num_rounds`` is (candidates,). ``waited_out`` (candidates,) is the number of rounds
    that stayed open beyond ``(1+mu) * kappa``. All arrays are read-only.
    """

    round_seconds: FloatArray
    loads: FloatArray
    num_rounds: IntArray
    waited_out: IntArray

    def __post_init__(self) -> None:
        for array in (self.round_seconds, self.loads, self.num_rounds, self.waited_out):
            array.flags.writeable = False

    @property
    def runtime_s(self) -> FloatArray:
        """The total seconds of all rounds, (candidates,)."""
        seconds = np.empty(len(self.num_rounds))
        for rounds in np.unique(self.num_rounds):
            rows = self.num_rounds == rounds
            # Without padding, so that the sum is `Replay.runtime_s` to the last bit.
            own = np.ascontiguousarray(self.round_seconds[rows, :rounds])
            seconds[rows] = own.sum(axis=1)
        return seconds


def batch_replay(
    schemes: Sequence[Scheme], rehearsal: Rehearsal, *, rule: ClosingRule, jobs_per_round: int = 1
) -> BatchReplay:
    """Replay many schemes under one closing rule; the results equal those of `replay` to the bit.

    The rehearsal determines the number of jobs. A candidate is the `seqgc.rounds.Setting` of one of
    the schemes with ``rule`` and ``jobs_per_round``.

    Raises
    ------
    ParameterError, ProfileError
        If `replay` would raise the same error for one of the schemes.

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
    if not schemes:
        none = np.zeros(0, dtype=np.intp)
        empty = np.zeros((0, 0))
        return BatchReplay(round_seconds=empty, loads=empty, num_rounds=none, waited_out=none)
    settings = [Setting(scheme=s, rule=rule, jobs_per_round=jobs_per_round) for s in schemes]
    num_rounds = np.array([rehearsal.num_rounds(setting) for setting in settings])
    loads = np.stack([scheme.loads_of(rehearsal.batch) for scheme in schemes])
    means = np.repeat(loads.mean(axis=1)[:, None], int(num_rounds.max()), axis=1)
    for load in (float(loads.min()), float(loads.max())):
        rehearsal.profile.times_at(jobs_per_round * load, alpha=rehearsal.alpha)
    recorded, most = rehearsal.profile.times, int(num_rounds.max())
    arrivals = Arrivals(recorded[np.arange(most) % len(recorded)])
    seconds = np.zeros((len(schemes), most))
    waits = np.zeros(len(schemes), dtype=np.intp)
    blocks, same = _blocks(settings, loads, rehearsal)
    for kernel, block in blocks:
        rounds = int(num_rounds[block[0]])
        if kernel is None:
            run = replay(settings[block[0]], rehearsal)
            seconds[block, :rounds], means[block, :rounds] = run.round_seconds, run.loads
            waits[block] = np.count_nonzero(run.waited_out)
            continue
        stage = Stage(
            rehearsal=rehearsal,
            arrivals=arrivals,
            num_rounds=rounds,
            rule=rule,
            jobs_per_round=jobs_per_round,
        )
        played = kernel.play([schemes[i] for i in block], stage)
        seconds[block, :rounds] = played.seconds.T
        waits[block] = played.waited_out.sum(axis=0)
        if played.loads is not None:
            means[block, :rounds] = played.loads.T
    return BatchReplay(
        round_seconds=seconds[same],
        loads=means[same],
        num_rounds=num_rounds,
        waited_out=waits[same],
    )


def _blocks(
    settings: Sequence[Setting], loads: FloatArray, rehearsal: Rehearsal
) -> tuple[list[tuple[Kernel | None, list[int]]], list[int]]:
    """Group settings into blocks that are computed together; omit settings with equal decisions.

    Return the blocks, and for each setting the index of a setting in a block that has the same
    decisions. A block fits the processor's cache. A setting without a kernel is a separate block.
    """
    # All schemes whose workers have equal loads share the order of arrival. No kernel supports
    # mini-tasks that are left out.
    even = (loads == loads[:, :1]).all(axis=1).tolist()
    first: dict[Hashable, int] = {}
    same: list[int] = []
    groups: dict[Hashable, tuple[Kernel | None, list[int]]] = {}
    for i, setting in enumerate(settings):
        scheme, kernel = by_rounds(setting.scheme, "a replay round by round"), None
        if even[i] and not rehearsal.leaves_out(scheme):
            kernel = kernel_of(
                scheme,
                feasible=setting.rule.wait_out == "feasible",
                bursty_only=rehearsal.conformity == "bursty",
            )
        decisions: Hashable = scheme
        if kernel is not None:  # if batches are cut into points, loads may still differ
            decisions = (kernel.decisions, loads[i, 0])
        same.append(first.setdefault(decisions, i))
        if same[i] == i:
            group = i if kernel is None else (kernel.group, scheme.delay)
            groups.setdefault(group, (kernel, []))[1].append(i)
    width = max(_LEAST_WIDTH, _BLOCK // loads.shape[1])
    blocks = [
        (kernel, group[start : start + width])
        for kernel, group in groups.values()
        for start in range(0, len(group), width)
    ]
    return blocks, same

"""On the loop, with gradients: weights hold what the slack promises, whatever fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc import ports
from seqgc.clocks import Clocks
from seqgc.master import Held, Holding, run
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.profiles import ByRound, ByTime
from seqgc.rounds import ClosingRule
from seqgc.virtual import RandomFaults, VirtualBackend
from tests.kit import SOAK

Applied = tuple[int, int]  # a job, and a part of it


class Versions:
    """A workload whose weights are the set of the parts that have been applied."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.applied: list[Applied] = []

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (all that there is)
        return True

    def begin(self, job: int) -> None:
        """Weights are whatever they are when a task leaves."""

    def result_form(self, job: int) -> None:
        """As the first one's."""

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = mini_task.chunks.tolist()
        self._check(mini_task.job, part, set(self.applied))
        ref = WeightRef(model="m", version=mini_task.job, digest="", dtype="float64", size=2)
        points, one = np.array([part]), np.ones(1)
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=one),)

    def _check(self, job: int, part: int, held: set[Applied]) -> None:
        """Weights of (t, p) hold every part of clocks <= t - s - 1, and p's own of <= t - 1."""
        clocks, wpc = self._clocks, self._clocks.wpc
        first = job // wpc * wpc  # of the clock's jobs
        assert {(j, part) for j in range(first)} <= held
        if clocks.slack is not None:
            known = range(first - clocks.slack * wpc)
            assert {(j, p) for j in known for p in range(clocks.n)} <= held
        assert (job, part) not in held

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        assert decoding.part is not None
        assert decoding.part.of == self._clocks.n
        applied = (decoding.job, decoding.part.index)
        np.testing.assert_array_equal(gradient, applied)
        assert applied not in self.applied
        self.applied.append(applied)

    def whole(self, jobs: int) -> bool:
        return sorted(self.applied) == [(j, p) for j in range(jobs) for p in range(self._clocks.n)]


def compute(parts: Sequence[WeightedPoints]) -> FloatArray:
    """A result that says what it is of."""
    (part,) = parts
    return np.array([float(part.weights.version), float(part.points[0])])


class BrokenOff(Exception):
    """The master is killed."""


@st.composite
def runs(draw):
    clocks = Clocks(
        n=draw(st.integers(1, 4)),
        slack=draw(st.none() | st.integers(0, 2)),
        wpc=draw(st.integers(1, 2)),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    seconds = rng.uniform(0.1, 1.0, (5, clocks.n))
    slow = rng.random((2, clocks.n)) < 0.4
    slow[:, rng.integers(clocks.n)] = False  # if nobody is heard for two time limits, a run ends
    seconds[1::2] += 4 * slow  # too long, for a while
    limit_s = draw(st.sampled_from([3.0, math.inf]))
    rule = ClosingRule(timeout_s=limit_s, max_attempts=draw(st.integers(1, 4)))
    fail = 0.0 if clocks.n == 1 else draw(st.sampled_from([0.0, 0.1, 0.3]))
    faults = RandomFaults(seed=draw(st.integers(0, 99)), fail=fail / 2, die=fail / 2)
    resident = draw(st.booleans())

    def backend() -> VirtualBackend:
        pace = ByTime(rates=np.ones((5, clocks.n)), width_s=1.7, latencies_s=seconds)
        workers = "resident" if resident else "function"
        return VirtualBackend(clocks.n, pace, workers=workers, compute=compute, faults=faults)

    return clocks, rule, draw(st.integers(1, 6)), backend


@settings(max_examples=5_000 if SOAK else 100)
@given(runs())
def test_weights_hold_all_that_is_promised_and_each_part_once(case) -> None:
    clocks, rule, jobs, backend = case
    workload = Versions(clocks)
    run(clocks.policy(rule, num_jobs=jobs), backend(), workload)
    assert workload.whole(jobs)


@settings(max_examples=5_000 if SOAK else 100)
@given(runs(), st.integers(0, 40))
def test_so_it_is_in_a_run_that_is_broken_off_and_goes_on(case, rests: int) -> None:
    clocks, rule, jobs, backend = case
    workload, kept, left = Versions(clocks), [], rests

    def rest(hold: Holding) -> None:
        nonlocal left
        kept[:] = [policy.snapshot(), hold(), list(workload.applied)]
        left -= 1
        if left < 0:
            raise BrokenOff

    policy = clocks.policy(rule, num_jobs=jobs)
    try:
        run(policy, backend(), workload, rest=rest)
    except BrokenOff:
        state, held, workload.applied = kept
        policy = clocks.policy(rule, num_jobs=jobs)
        policy.restore(state)
        assert isinstance(held, Held)
        run(policy, backend(), workload, held=held)
    assert workload.whole(jobs)


def test_who_dies_for_good_is_done_without() -> None:
    clocks, workload = Clocks(n=3, slack=1), Versions(Clocks(n=3, slack=1))
    pace = ByRound(latencies_s=np.ones((1, 3)), rates=np.ones((1, 3)))

    def faults(task: ports.Task):
        return RandomFaults(seed=0, die=1.0)(task) if task.worker == 1 and task.round > 1 else None

    backend = VirtualBackend(3, pace, compute=compute, faults=faults)
    policy = clocks.policy(ClosingRule(), num_jobs=6)
    run(policy, backend, workload)
    assert workload.whole(6)
    assert policy.snapshot()["owners"] == [0, 2, 2]

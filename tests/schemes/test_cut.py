"""How batches are cut: whole points, few for the busiest worker, and nothing asked without any."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError, ScheduleError
from seqgc.ports import BoolArray, Decoding, IntArray
from seqgc.schemes import GC, MSGC, Assignment, Schedule, Scheme, chunk_sizes, parse_scheme
from tests.kit import SOAK
from tests.schemes.catalogue import all_schemes, small_schemes
from tests.schemes.patterns import CoverCheck, GradientCheck

SMALL = [scheme for scheme in small_schemes(3) if scheme.n > 1]
PAPER = MSGC(n=256, B=1, W=2, lam=27)


def busiest(scheme: Scheme, sizes: IntArray) -> int:
    touched = scheme.points_touched(sizes)
    assert touched is not None
    return int(touched.max())


@pytest.mark.parametrize(
    ("batch", "points", "by_remainder"), [(512, 4, 4), (4096, 32, 43), (10_000, 76, 82)]
)
def test_the_papers_setting_keeps_its_load(batch: int, points: int, by_remainder: int) -> None:
    nominal = batch * PAPER.normalized_load
    assert busiest(PAPER, PAPER.cut(batch)) == points <= 1.04 * nominal
    assert busiest(PAPER, chunk_sizes(batch, PAPER.chunk_fractions)) == by_remainder


@pytest.mark.parametrize("n", [12, 16])
def test_no_cut_is_worse_than_by_largest_remainder_and_all_sum_to_the_batch(n: int) -> None:
    better = 0
    for scheme in all_schemes(n, 3)[::7]:
        for batch in (1, 7, 16, 50, 100, 333):
            sizes, usual = scheme.cut(batch), chunk_sizes(batch, scheme.chunk_fractions)
            assert sizes.sum() == batch
            assert sizes.min() >= 0
            assert not sizes.flags.writeable
            assert busiest(scheme, sizes) <= busiest(scheme, usual), f"{scheme}, {batch}"
            better += busiest(scheme, sizes) < busiest(scheme, usual)
    assert better > 20


@given(batch=st.integers(1, 300), s=st.integers(0, 11))
def test_chunks_of_one_size_differ_by_a_point_wherever_they_are(batch: int, s: int) -> None:
    sizes = GC(n=12, s=s).cut(batch)
    for length in range(1, 12):
        windows = [sizes[first : first + length].sum() for first in range(13 - length)]
        fair = Fraction(batch * length, 12)
        assert all(abs(int(window) - fair) < 2 for window in windows)
    assert set(sizes.tolist()) <= {batch // 12, -(-batch // 12)}


def test_a_batch_has_at_least_one_point() -> None:
    with pytest.raises(ParameterError, match="`batch_size` must be >= 1; got 0"):
        PAPER.cut(0)


@pytest.mark.parametrize("scheme", SMALL, ids=lambda s: f"n={s.n}-{s.spec}")
def test_no_task_touches_more_points_than_the_load_says(scheme: Scheme) -> None:
    rng = np.random.default_rng(0)
    for batch in (1, 5, 11, 40):
        sizes, most = scheme.cut(batch), 0
        loads = scheme.loads_of(batch)
        schedule = scheme.begin(2 * scheme.delay + 3, batches=(batch,))
        while schedule.round < schedule.num_rounds:
            tasks = schedule.assignment()
            points = [sum(int(sizes[m.chunks].sum()) for m in own) for own in tasks]
            most = max(most, *points)
            schedule.close_round(feasible_answers(schedule, rng))
        assert most <= loads.max() * batch + 1e-9
    assert (scheme.loads_of(None) == scheme.worker_loads).all()


# ---- batches smaller than the number of chunks ---------------------------------------------------


def feasible_answers(schedule: Schedule, rng: np.random.Generator) -> BoolArray:
    """Answers that suffice, few of them at first."""
    responded = rng.random(schedule.n) < rng.choice([0.0, 0.3, 0.6])
    for worker in rng.permutation(schedule.n):
        if schedule.feasible(responded):
            break
        responded[worker] = True
    return responded


class PointCheck(GradientCheck):
    """Compares gradients of batches in which some chunks hold no point."""

    def __init__(self, scheme: Scheme, sizes: IntArray) -> None:
        super().__init__(scheme)
        self.partials[sizes == 0] = 0.0
        self.direct = self.partials.sum(axis=0)
        self._size = float(np.linalg.norm(self.direct))


@pytest.mark.parametrize("scheme", SMALL, ids=lambda s: f"n={s.n}-{s.spec}")
def test_gradients_are_exact_and_nothing_without_points_is_asked_for(scheme: Scheme) -> None:
    chunks = len(scheme.chunk_fractions)
    for batch in sorted({1, 2, chunks // 2, chunks - 1} - {0}):
        sizes = scheme.cut(batch)
        check, covers = PointCheck(scheme, sizes), CoverCheck()
        for seed in range(4 if SOAK else 2):
            rng = np.random.default_rng(seed)
            schedule = scheme.begin(4, batches=(batch,))
            given_out: list[Assignment] = []
            finished: list[int] = []
            while schedule.round < schedule.num_rounds:
                tasks = schedule.assignment()
                given_out.append(tasks)
                asked = [m for own in tasks for m in own]
                assert all(sizes[m.chunks].sum() > 0 for m in asked), "a mini-task without points"
                assert not any(tasks[i] for i in np.flatnonzero(schedule.excused))
                assert tasks.idle == (not asked)
                for job in schedule.close_round(feasible_answers(schedule, rng)):
                    decoding: Decoding = schedule.decoding(job)
                    check(job, decoding, tuple(given_out))
                    covers(job, decoding, tuple(given_out))
                    finished.append(job)
            assert sorted(finished) == [0, 1, 2, 3]


def test_what_is_left_out_counts_as_received() -> None:
    # Worker 0 alone holds points: nobody else is asked, or waited for.
    schedule = parse_scheme("uncoded", n=3).begin(1, batches=(1,))
    assert schedule.leaves_out
    holder = ~schedule.excused
    assert holder.sum() == 1
    assert schedule.feasible(holder)
    assert schedule.conforms(holder)
    assert not schedule.feasible(~holder)
    # D1 takes all points of M-SGC's batch: who repeats nothing sends nothing for D2.
    scheme = MSGC(n=3, B=1, W=2, lam=1)
    schedule = scheme.start(1)
    schedule.leave_out(np.array([False] * 3 + [True] * 3))
    schedule.close_round(np.array([True, True, False]))
    assert [len(tasks) for tasks in schedule.assignment()] == [0, 0, 1]
    assert schedule.feasible(np.array([False, False, True]))
    with pytest.raises(ScheduleError, match="round 1 is open"):
        schedule.leave_out(np.zeros(6, dtype=np.bool_))


def test_of_batches_of_several_sizes_only_what_none_fills_is_left_out() -> None:
    scheme = GC(n=8, s=0)
    few, some = (scheme.begin(1, batches=(size,)).excused for size in (2, 4))
    both = scheme.begin(1, batches=(2, 4)).excused
    assert (both == (few & some)).all()
    assert few.sum() == 6

"""Backup workers: exactly b answers are dropped, what that loses is said, and is as bounded."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from seqgc.errors import NotDecodableError
from seqgc.master import run
from seqgc.ports import Close, Decoding, FloatArray, Seen
from seqgc.profiles import read_profile
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.schemes import Backup
from seqgc.search import Rehearsal, ReplayBackend, replay
from seqgc.testing import ChunkWorkload, check_scheme


def decodings(scheme: Backup, answers: list[tuple[int, ...]]) -> list[Decoding]:
    """What each job is decoded from, when these workers answer, round by round."""
    schedule, found = scheme.start(len(answers)), []
    for round, workers in enumerate(answers):
        responded = np.zeros(scheme.n, dtype=np.bool_)
        responded[list(workers)] = True
        assert schedule.close_round(responded) == (round,)
        found.append(schedule.decoding(round))
    return found


@pytest.mark.parametrize("b", range(5))
def test_it_keeps_the_contract(b: int) -> None:
    check_scheme(Backup(n=5, b=b), patterns=6)


def test_whoever_answers_a_job_is_made_of_exactly_n_minus_b_results_and_knows_its_loss() -> None:
    scheme = Backup(n=5, b=2)
    enough = [c for size in (3, 4, 5) for c in itertools.combinations(range(5), size)]
    for workers, decoding in zip(enough, decodings(scheme, enough), strict=True):
        used = [term.worker for term in decoding.terms]
        assert len(used) == 3
        assert used == sorted(workers)[:3]
        assert {term.weight for term in decoding.terms} == {5 / 3}
        assert sorted([*used, *decoding.lost]) == list(range(5))  # worker i's chunk is chunk i
        assert decoding.error == pytest.approx(math.sqrt(2 / 3))


def test_fewer_answers_are_waited_for() -> None:
    schedule = Backup(n=3, b=1).start(1)
    with pytest.raises(NotDecodableError, match="job 0 is due in round 0"):
        schedule.close_round(np.array([False, True, False]))
    assert schedule.close_round(np.array([False, True, True])) == (0,)


def test_the_error_is_that_of_the_worst_gradients_and_of_no_gradient_on_average() -> None:
    scheme, rng = Backup(n=6, b=2), np.random.default_rng(0)
    every = list(itertools.combinations(range(6), 4))
    partials = rng.normal(size=(6, 3))
    made = []
    for decoding in decodings(scheme, every):
        kept = [term.worker for term in decoding.terms]
        made.append(6 / 4 * partials[kept].sum(axis=0))
        # Of opposite gradients where data is lost, and is not, the bound is what they are off by.
        worst = np.where(np.isin(np.arange(6), decoding.lost), -4.0, 2.0)
        off = abs(6 / 4 * worst[kept].sum() - worst.sum())
        bound = decoding.error * math.sqrt(6 * (worst**2).sum())
        assert off == pytest.approx(bound)
    np.testing.assert_allclose(np.mean(made, axis=0), partials.sum(axis=0), rtol=1e-12)


def test_a_round_closes_with_the_last_answer_that_it_needs() -> None:
    times = np.array([[3.0, 1.0, 2.0, 9.0], [1.0, 1.0, 1.0, 1.0], [4.0, 4.0, 5.0, 1.0]])
    seen: list[Seen] = []
    scheme = Backup(n=4, b=2)
    workload = ChunkWorkload(scheme, seed=1)
    policy = RoundPolicy(scheme.start(3), ClosingRule())
    run(policy, ReplayBackend(times, compute=workload.compute), workload, observe=seen.append)
    records = [each.record for each in seen if isinstance(each, Close)]
    assert [record.duration_s for record in records] == [2.0, 1.0, 4.0]
    assert [record.missed for record in records] == [2, 0, 1], "equals come together"
    assert sorted(workload.errors) == [0, 1, 2]


def test_to_go_over_as_much_data_as_other_schemes_takes_more_rounds(
    recorded_profiles: Path,
) -> None:
    name = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    profile, scheme = read_profile(recorded_profiles / name), Backup(n=256, b=32)
    rounds = math.ceil(30 * 256 / (256 - 32))  # each is made of 224 chunks
    rehearsal = Rehearsal(profile=profile, num_jobs=rounds, alpha=1.12, repeat=True)
    assert rounds == 35
    assert replay(Setting(scheme=scheme), rehearsal).runtime_s == pytest.approx(27.9421, abs=1e-4)


@pytest.mark.parametrize("b", [1, 3])
def test_among_equals_it_is_no_faster_than_uncoded_and_drops_as_many(b: int) -> None:
    times: FloatArray = np.ones((4, 8))
    seen: list[Seen] = []
    run(
        RoundPolicy(Backup(n=8, b=b).start(4), ClosingRule()),
        ReplayBackend(times),
        observe=seen.append,
    )
    assert [each.record.duration_s for each in seen if isinstance(each, Close)] == [1.0] * 4
    everybody = tuple(range(8))
    assert all(len(each.lost) == b for each in decodings(Backup(n=8, b=b), [everybody] * 4))

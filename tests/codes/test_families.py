"""What is particular to a family: supports and groups."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from seqgc.codes import BinaryCode, CyclicCode, FractionalRepetitionCode
from tests.codes.registry import masks, without

EVERY = [(n, s) for n in range(1, 13) for s in range(n)]
LARGE = [(256, s) for s in (0, 1, 15, 20, 127, 254, 255)]


@pytest.mark.parametrize(("n", "s"), [*EVERY, (256, 15)])
def test_cyclic_workers_hold_consecutive_chunks_in_cyclic_order(n: int, s: int) -> None:
    code = CyclicCode(n, s)
    for worker in range(n):
        assert code.support(worker).tolist() == [(worker + j) % n for j in range(s + 1)]
    np.testing.assert_array_equal(code.chunk_fractions, np.full(n, 1 / n))
    assert code.load == (s + 1) / n


@pytest.mark.parametrize(("n", "s"), [*EVERY, (256, 15), (256, 20)])
def test_cyclic_matrix_has_the_least_rank_that_any_straggler_set_allows(n: int, s: int) -> None:
    code = CyclicCode(n, s)
    assert np.linalg.matrix_rank(code.encoding_matrix) == n - s
    rows = np.array([code.coefficients(worker) for worker in range(n)])
    if n % (s + 1) == 0:
        np.testing.assert_array_equal(rows, np.ones((n, s + 1)))
    else:
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-14)
        assert (rows[:, 0] > 0).all()


def test_cyclic_takes_the_first_class_that_answered_as_a_whole() -> None:
    code = CyclicCode(6, 2)
    assert code.decoding_vector(without(6, [])).tolist() == [1, 0, 0, 1, 0, 0]
    assert code.decoding_vector(without(6, [0, 4])).tolist() == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in [*EVERY, *LARGE] if n % (s + 1) == 0])
def test_repetition_groups_hold_their_own_chunks(n: int, s: int) -> None:
    code = FractionalRepetitionCode(n, s)
    count = n // (s + 1)
    for number in range(count):
        group = [worker for worker in range(n) if worker % count == number]
        assert sorted(code.covers[0][:, number].tolist()) == group
        for worker in group:
            assert code.place_of(worker) == (0, number)
            own = range(number * (s + 1), (number + 1) * (s + 1))
            assert code.support(worker).tolist() == list(own)
    assert set(np.unique(code.encoding_matrix)) <= {0.0, 1.0}
    assert code.load == (s + 1) / n


def test_repetition_takes_the_lowest_answer_of_each_group() -> None:
    code = FractionalRepetitionCode(6, 2)  # groups 024 and 135
    assert code.decoding_vector(without(6, [0, 1, 3])).tolist() == [0, 0, 1, 0, 0, 1]
    assert not code.can_decode(without(6, [1, 3, 5]))


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in [*EVERY, *LARGE] if 2 * (s + 1) <= n])
def test_no_two_neighbours_share_a_group(n: int, s: int) -> None:
    for kind in (FractionalRepetitionCode, BinaryCode):
        if kind is BinaryCode or n % (s + 1) == 0:
            places = [kind(n, s).place_of(worker) for worker in range(n)]
            assert all(one != other for one, other in itertools.pairwise(places))


@pytest.mark.parametrize(("n", "s"), [*EVERY, *LARGE])
def test_binary_workers_hold_a_chunk_each_and_chunks_are_spread_evenly(n: int, s: int) -> None:
    code = BinaryCode(n, s)
    count = n // (s + 1)
    chunks = [code.support(worker).tolist() for worker in range(n)]
    assert chunks == [[worker % count] for worker in range(n)]
    assert set(np.bincount(np.concatenate(chunks))) <= {n // count, -(-n // count)}
    np.testing.assert_array_equal(code.chunk_fractions, np.full(count, 1 / count))
    assert set(np.unique(code.encoding_matrix)) <= {0.0, 1.0}
    assert code.load == 1 / count


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in EVERY if n <= 8])
def test_binary_decodes_from_an_answer_to_every_chunk(n: int, s: int) -> None:
    code = BinaryCode(n, s)
    chunk = np.arange(n) % (n // (s + 1))
    for responded in masks(n):
        held = set(chunk[responded].tolist())
        assert code.can_decode(responded) == (held == set(chunk.tolist()))
        if code.can_decode(responded):
            lowest = [int(np.flatnonzero(responded & (chunk == each))[0]) for each in sorted(held)]
            assert np.flatnonzero(code.decoding_vector(responded)).tolist() == sorted(lowest)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in EVERY if n % (s + 1) == 0])
def test_binary_is_as_light_as_repetition_where_that_exists(n: int, s: int) -> None:
    assert BinaryCode(n, s).load == pytest.approx(FractionalRepetitionCode(n, s).load, rel=1e-15)

"""What is particular to a family: supports, groups, sub-collections."""

from __future__ import annotations

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
    groups = code.covers[0].T.tolist()
    assert [worker for group in groups for worker in group] == list(range(n))
    for number, group in enumerate(groups):
        assert len(group) == s + 1
        for worker in group:
            assert code.place_of(worker) == (0, number)
            assert code.support(worker).tolist() == group
    assert set(np.unique(code.encoding_matrix)) <= {0.0, 1.0}
    assert code.load == (s + 1) / n


def test_repetition_takes_the_lowest_answer_of_each_group() -> None:
    code = FractionalRepetitionCode(6, 2)
    assert code.decoding_vector(without(6, [0, 3, 4])).tolist() == [0, 1, 0, 0, 0, 1]
    assert not code.can_decode(without(6, [3, 4, 5]))


def rows_of_covers(code: BinaryCode) -> list[list[int]]:
    return [workers for cover in code.covers for workers in cover.tolist()]


@pytest.mark.parametrize(("n", "s"), [*EVERY, *LARGE])
def test_binary_subcollections_cover_every_chunk_once(n: int, s: int) -> None:
    code = BinaryCode(n, s)
    subcollections = rows_of_covers(code)
    sizes = [len(workers) for workers in subcollections]
    assert len(sizes) == s + 1
    assert set(sizes) <= {n // (s + 1), -(-n // (s + 1))}
    assert [worker for workers in subcollections for worker in workers] == list(range(n))
    assert set(np.unique(code.encoding_matrix)) <= {0.0, 1.0}
    for workers in subcollections:
        rows = code.encoding_matrix[workers]
        np.testing.assert_array_equal(rows.sum(axis=0), np.ones(rows.shape[1]))
        np.testing.assert_allclose(rows @ code.chunk_fractions, 1 / len(workers), rtol=1e-13)
    assert code.load == 1 / (n // (s + 1))
    assert (code.chunk_fractions > 0).all()


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in EVERY if n <= 8])
def test_binary_decodes_from_a_whole_subcollection(n: int, s: int) -> None:
    code = BinaryCode(n, s)
    for workers in rows_of_covers(code):
        only = ~without(n, workers)
        assert code.can_decode(only)
        assert np.flatnonzero(code.decoding_vector(only)).tolist() == workers
    for responded in masks(n):
        if any(responded[workers].all() for workers in rows_of_covers(code)):
            vector = code.decoding_vector(responded)
            assert set(np.unique(vector)) <= {0.0, 1.0}


def test_binary_lets_workers_of_equal_shares_stand_for_each_other() -> None:
    code = BinaryCode(7, 2)  # sub-collections 01, 23, 456
    assert code.decoding_vector(without(7, [1, 2, 4])).tolist() == [1, 0, 0, 1, 0, 0, 0]
    assert code.decoding_vector(without(7, [0, 2])).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert not code.can_decode(without(7, [0, 2, 6]))


@pytest.mark.parametrize(("n", "s"), [(n, s) for n, s in EVERY if n % (s + 1) == 0])
def test_binary_is_as_light_as_repetition_where_that_exists(n: int, s: int) -> None:
    assert BinaryCode(n, s).load == pytest.approx(FractionalRepetitionCode(n, s).load, rel=1e-15)

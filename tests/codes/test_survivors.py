"""The sets of stragglers that codes are judged by, and the search for the worst of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from seqgc.codes import CyclicCode, make_code, worst_survivors
from seqgc.codes import _survivors as survivors
from seqgc.codes._decoders import Solutions
from seqgc.ports import IntArray
from tests.codes.registry import masks

SEED = 4


def solutions(n: int, s: int) -> Solutions:
    return Solutions.of(CyclicCode(n, s).encoding_matrix, n - s)


def every_set(n: int, s: int) -> IntArray:
    return np.array(list(itertools.combinations(range(n), s)))


@pytest.mark.parametrize(("n", "s"), [(7, 2), (12, 5), (12, 11), (16, 1), (31, 14)])
@pytest.mark.parametrize("kind", ["random", "contiguous", "strided", "residue"])
def test_every_set_has_s_different_workers(n: int, s: int, kind: str) -> None:
    sets = {
        "random": lambda: survivors.random_sets(n, s, 20, np.random.default_rng(SEED)),
        "contiguous": lambda: survivors.contiguous_sets(n, s),
        "strided": lambda: survivors.strided_sets(n, s),
        "residue": lambda: survivors.residue_sets(n, s),
    }[kind]()
    assert sets.ndim == 2
    assert sets.shape[1] == s
    for stragglers in sets:
        assert len(set(stragglers.tolist())) == s
        assert set(stragglers.tolist()) <= set(range(n))


def test_random_sets_miss_every_worker_as_often() -> None:
    sets = survivors.random_sets(10, 3, 4000, np.random.default_rng(SEED))
    frequencies = np.bincount(sets.ravel(), minlength=10) / 4000
    assert np.abs(frequencies - 0.3).max() < 0.03


def test_the_kinds_of_sets_are_what_they_are_called() -> None:
    assert survivors.contiguous_sets(5, 2).tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]]
    assert survivors.strided_sets(8, 3).tolist() == [[0, 2, 4], [0, 3, 6]]
    assert survivors.residue_sets(8, 3).tolist() == [[0, 2, 4], [0, 3, 6], [0, 1, 4]]


def test_masks_are_the_complements() -> None:
    sets = np.array([[0, 2], [3, 1]])
    expected = [[False, True, False, True], [True, False, True, False]]
    assert survivors.responded_without(4, sets).tolist() == expected
    assert survivors.responded_without(4, sets[1]).tolist() == expected[1]


@pytest.mark.parametrize(("n", "s"), [(9, 3), (10, 5), (13, 4)])
def test_lengths_are_those_of_the_decoding_vectors(n: int, s: int) -> None:
    code, sets = CyclicCode(n, s), every_set(n, s)
    lengths = solutions(n, s).lengths(sets)
    for mask, length in zip(survivors.responded_without(n, sets), lengths, strict=True):
        assert length == pytest.approx(np.linalg.norm(code.decoding_vector(mask)), rel=1e-7)


def test_a_set_without_a_solution_is_infinitely_bad_and_spoils_no_other() -> None:
    sound = solutions(9, 3)
    broken = Solutions(shortest=sound.shortest, null_space=sound.null_space * (np.arange(9) != 4))
    sets = every_set(9, 3)
    lengths, without_4 = broken.lengths(sets), ~(sets == 4).any(axis=1)
    assert np.isinf(lengths[~without_4]).all()
    assert lengths[without_4] == pytest.approx(sound.lengths(sets)[without_4])


@pytest.mark.parametrize("d", [4, 5, 8])  # equations for so many, of which 4 are used
def test_the_best_swap_is_the_best_of_all_swaps(d: int) -> None:
    equations, rng = solutions(14, d), np.random.default_rng(SEED)
    sets = survivors.random_sets(14, 4, 30, rng)
    swapped, factors = equations.best_swaps(sets)
    corrections = lambda found: np.sqrt(  # noqa: E731
        np.square(equations.lengths(found)) - np.square(equations.shortest).sum()
    )
    for stragglers, new, factor in zip(sets, swapped, factors, strict=True):
        others = np.setdiff1d(np.arange(14), stragglers)
        swaps = np.array(
            [np.where(stragglers == old, v, stragglers) for old in stragglers for v in others]
        )
        best = corrections(swaps).max()
        assert corrections(new[None])[0] == pytest.approx(best, rel=1e-6)
        assert factor == pytest.approx(best / corrections(stragglers[None])[0], rel=1e-6)


@pytest.mark.parametrize(("n", "s"), [(9, 3), (10, 5), (13, 4), (16, 2)])
def test_at_small_n_the_search_finds_the_worst_of_all_sets(n: int, s: int) -> None:
    code = CyclicCode(n, s)
    assert not code.covers
    worst = max(code.amplification(code.decoding_vector(m)) for m in masks(n, missing=s))
    responded, amplification = worst_survivors(code, seed=SEED)
    assert amplification == pytest.approx(worst, rel=1e-6)
    assert np.count_nonzero(~responded) == s
    assert amplification == pytest.approx(code.amplification(code.decoding_vector(responded)))


def test_the_search_beats_chance_by_far_and_repeats_itself() -> None:
    code = CyclicCode(64, 10)
    drawn = survivors.random_sets(64, 10, 1000, np.random.default_rng(SEED))
    by_chance = solutions(64, 10).lengths(drawn).max() / np.sqrt(64)
    responded, amplification = worst_survivors(code, seed=1, budget=1e8)
    again, same = worst_survivors(code, seed=1, budget=1e8)
    assert amplification > 100 * by_chance
    assert (responded == again).all()
    assert amplification == same


def test_a_small_budget_still_finds_a_set() -> None:
    responded, amplification = worst_survivors(CyclicCode(64, 10), budget=1.0)
    assert np.count_nonzero(~responded) == 10
    assert 1.0 <= amplification < np.inf


def test_a_code_that_cannot_lose_some_set_is_infinitely_bad() -> None:
    sound = solutions(30, 6)
    broken = Solutions(shortest=sound.shortest, null_space=sound.null_space * (np.arange(30) != 17))
    stragglers, length = survivors.worst_of(broken, 6)
    assert 17 in stragglers
    assert length == np.inf


@pytest.mark.parametrize("s", [3, 5])
def test_fewer_stragglers_than_a_code_tolerates_are_judged_too(s: int) -> None:
    code, equations = CyclicCode(16, 6), solutions(16, 6)
    stragglers, length = survivors.worst_of(equations, s, seed=SEED)
    vector = code.decoding_vector(survivors.responded_without(16, stragglers))
    assert length == pytest.approx(np.linalg.norm(vector))
    assert length == pytest.approx(equations.lengths(every_set(16, s)).max())


@pytest.mark.parametrize(("kind", "s"), [("rep", 3), ("binary", 4), ("cyclic", 3)])
def test_where_answers_are_only_added_no_set_is_worse(kind: str, s: int) -> None:
    code = make_code(kind, 16, s)
    responded, amplification = worst_survivors(code)
    assert np.count_nonzero(~responded) == s
    assert amplification == 1.0
    assert code.amplification(code.decoding_vector(responded)) == pytest.approx(1.0)

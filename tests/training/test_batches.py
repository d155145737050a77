"""Batches are slices of endless permutations, chunks are shares of a batch."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError
from seqgc.schemes import chunk_sizes
from seqgc.training import batch_indices

shares = st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any)


@given(size=st.integers(1, 30), batch=st.integers(1, 70), seed=st.integers(0, 9))
def test_batches_laid_end_to_end_are_the_permutations_of_the_epochs(
    size: int, batch: int, seed: int
) -> None:
    steps = 1 + 3 * size // batch
    stream = np.concatenate(
        [batch_indices(size, batch_size=batch, seed=seed, step=q) for q in range(steps)]
    )
    epochs = [
        np.random.default_rng([seed, e]).permutation(size) for e in range(1 + len(stream) // size)
    ]
    assert stream.tolist() == np.concatenate(epochs)[: len(stream)].tolist()


def test_a_batch_is_the_same_without_the_steps_before_it_and_read_only() -> None:
    batch = batch_indices(1000, batch_size=64, seed=3, step=10_000)
    assert batch.tolist() == batch_indices(1000, batch_size=64, seed=3, step=10_000).tolist()
    assert batch.tolist() != batch_indices(1000, batch_size=64, seed=4, step=10_000).tolist()
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 0


@pytest.mark.parametrize("argument", ["dataset_size", "batch_size", "seed", "step"])
def test_a_size_or_step_out_of_range_is_named(argument: str) -> None:
    arguments = {"dataset_size": 5, "batch_size": 2, "seed": 0, "step": 0, argument: -1}
    with pytest.raises(ParameterError) as caught:
        batch_indices(arguments.pop("dataset_size"), **arguments)
    assert caught.value.argument == argument


@given(batch=st.integers(1, 500), parts=shares)
def test_chunk_sizes_are_the_quotas_rounded_up_or_down_and_sum_to_the_batch(
    batch: int, parts: list[int]
) -> None:
    sizes = chunk_sizes(batch, np.array(parts) / sum(parts))
    quotas = [Fraction(batch * part, sum(parts)) for part in parts]
    assert sizes.sum() == batch
    assert all(abs(int(size) - quota) < 1 for size, quota in zip(sizes, quotas, strict=True))


@given(batch=st.integers(1, 500), parts=shares)
def test_points_left_over_go_to_the_largest_remainders_lowest_index_first(
    batch: int, parts: list[int]
) -> None:
    # Exact arithmetic beside the function's floating point: ties must not hang on rounding.
    quotas = [Fraction(batch * part, sum(parts)) for part in parts]
    expected = [int(quota) for quota in quotas]
    order = sorted(range(len(parts)), key=lambda c: (expected[c] - quotas[c], c))
    for c in order[: batch - sum(expected)]:
        expected[c] += 1
    assert chunk_sizes(batch, np.array(parts) / sum(parts)).tolist() == expected


def test_the_worked_example_of_the_specification_has_chunks_of_three_and_one_points() -> None:
    fractions = np.array([3 / 32] * 8 + [1 / 32] * 8)
    assert chunk_sizes(32, fractions).tolist() == [3] * 8 + [1] * 8


def test_a_batch_smaller_than_the_number_of_chunks_leaves_chunks_empty() -> None:
    assert chunk_sizes(2, np.full(5, 0.2)).tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "fractions", [[0.5, 0.4], [1.5, -0.5], [np.nan, 1.0], [[0.5, 0.5]], [np.inf, 0.0]]
)
def test_fractions_that_do_not_share_out_a_batch_are_refused(fractions: list[float]) -> None:
    with pytest.raises(ParameterError, match="`fractions` must be non-negative and sum to 1"):
        chunk_sizes(8, np.array(fractions))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ParameterError, match="`batch_size` must be >= 1"):
        chunk_sizes(0, np.ones(1))

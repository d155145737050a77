"""Who responded, round by round, comes back as it was put in."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from seqgc.rounds import Answers


@pytest.mark.parametrize("n", [1, 7, 8, 256])
def test_masks_come_back_and_rounds_can_be_closed_otherwise(n: int) -> None:
    masks = np.random.default_rng(n).random((9, n)) < 0.7
    answers = Answers()
    for mask in masks:
        answers.append(mask)
    assert np.array_equal(list(answers), masks)
    answers.forget_from(4)
    answers.append(~masks[4])
    assert len(answers) == 5
    assert np.array_equal(answers[4], ~masks[4])
    with pytest.raises(IndexError):
        answers[5]
    with pytest.raises(ValueError, match="read-only"):
        answers[0][0] = True


def test_late_answers_come_back_and_are_forgotten_with_their_round() -> None:
    """Rounds of a segment are numbered from its first on: earlier ones are negative."""
    answers, nobody = Answers(), np.zeros(9, dtype=np.bool_)
    taken = {1: [(0, 8), (-2, 0), (0, 3)], 4: [(2, 1)], 5: [(4, 0), (4, 8)]}
    for round in range(6):
        answers.append(nobody, taken.get(round, ()))
    assert dict(answers.late) == {each: tuple(sorted(taken[each])) for each in taken}
    assert len(answers.late) == 3
    assert answers.late.get(2) is None
    answers.forget_from(4)
    assert dict(answers.late) == {1: ((-2, 0), (0, 3), (0, 8))}
    answers.append(nobody, [(3, 7)])
    assert answers.late[4] == ((3, 7),)


def test_late_answers_are_kept_in_a_bit_a_worker() -> None:
    n, rounds = 256, 300
    everyone, late = np.ones(n, dtype=np.bool_), [(-1, worker) for worker in range(0, n, 4)]
    answers = Answers()
    tracemalloc.start()
    try:
        for _ in range(rounds):
            answers.append(everyone, late)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / rounds < 150, "32 bytes for who responded, 48 for who was late, and some room"

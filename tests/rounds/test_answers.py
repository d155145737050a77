"""Who responded, round by round, comes back as it was put in."""

from __future__ import annotations

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

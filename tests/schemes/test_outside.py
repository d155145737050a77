"""Whatever pattern comes: rounds that wait for a few more answers lose nothing and decode right."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.ports import BoolArray
from seqgc.schemes import parse_scheme
from tests.kit import SOAK
from tests.schemes.catalogue import OF_FOUR
from tests.schemes.patterns import GradientCheck, Run, masks

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
N, ROUNDS = 4, 5


def waited_for(run: Run, answers: BoolArray, first: int) -> BoolArray:
    """Return on whose answers a round closes: those, and as many more, in turn, as it takes."""
    answers = answers.copy()
    for worker in range(first, first + N):
        if run.schedule.feasible(answers):
            return answers
        answers[worker % N] = True
    assert run.schedule.feasible(answers), "with all answers nothing is lost"
    return answers


@pytest.mark.parametrize("spec", OF_FOUR)
def test_every_pattern_of_five_rounds_of_four_workers_is_decoded(spec: str) -> None:
    """All 2**20 in a soak, as a tree: what rounds close on is all that later ones see."""
    scheme, rng = parse_scheme(spec, n=N), np.random.default_rng(3)
    check, patterns, kept = GradientCheck(scheme), 0, 16 if SOAK else 3
    stack = [(Run(scheme.start(ROUNDS - scheme.delay)), 1)]  # and by how many patterns it is met
    while stack:
        run, times = stack.pop()
        if run.done:
            patterns += times
            continue
        met: dict[bytes, int] = {}
        for answers in rng.permutation(masks(N))[:kept]:
            closed = waited_for(run, answers, run.schedule.round).tobytes()
            met[closed] = met.get(closed, 0) + times
        for closed, count in met.items():
            after = run.after(np.frombuffer(closed, dtype=np.bool_), check)
            stack.append((after, count))
    assert patterns == kept**ROUNDS

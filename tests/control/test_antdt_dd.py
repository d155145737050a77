"""AntDT-DD: unlike workers end together, each block in its memory, from one measurement."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.control import AntDTDD
from seqgc.errors import ParameterError
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule
from tests.control.runs import virtual

TWO_KINDS = ByRound(latencies_s=[[0.0]], rates=768 / np.repeat([300.0, 100.0], 4)[None])
"""Workers that compute 300 and 100 points a second, of batches of 768."""


def test_two_kinds_of_workers_are_as_fast_as_in_the_paper() -> None:
    run = virtual("antdt-dd:most=128", TWO_KINDS, num_jobs=8, batches=[768])
    uncoded = virtual("uncoded", TWO_KINDS, num_jobs=1, batches=[768])
    bounded = virtual("lb-bsp:most=128", TWO_KINDS, num_jobs=2, batches=[768])
    assert run.shares == [(0, [96] * 8), (5, [144] * 4 + [48] * 4)]
    assert run.policy.segments[-1].setting.scheme.spec == (  # type: ignore[attr-defined]
        "balanced:shares=144x4-48x4,blocks=2x4-1x4"
    )
    assert uncoded.round_seconds[-1] == pytest.approx(0.96)
    assert bounded.round_seconds[-1] == pytest.approx(0.64)
    assert run.round_seconds == pytest.approx([0.96] * 5 + [0.48] * 3)


def test_it_measures_the_mean_of_some_rounds_and_never_again() -> None:
    rates = np.ones((12, 2))
    rates[:2, 0] = 2.0, 4.0  # on average the speed is 3/8 of the other's
    rates[4:, 0] = 9.0
    run = virtual(
        "antdt-dd:probe=2", ByRound(latencies_s=[[0.0]], rates=rates), num_jobs=12, batches=[110]
    )
    assert run.shares == [(0, [55, 55]), (2, [30, 80])]


def test_a_share_that_does_not_fit_is_computed_in_blocks_from_the_start() -> None:
    first = AntDTDD(n=3, most=10).first(parts=70)
    assert first.parts.tolist() == [24, 23, 23]
    assert first.cut(70).max() <= 10
    with pytest.raises(
        ParameterError, match=r"`most` must be 0 or >= 5, .* 5 blocks hold .* of 24 points"
    ):
        AntDTDD(n=3, most=4).policy(ClosingRule(), num_jobs=1, batches=[70])


@pytest.mark.parametrize("field", ["least", "probe"])
def test_what_cannot_be_is_refused(field: str) -> None:
    with pytest.raises(ParameterError, match=f"`{field}` must be an integer >= 1; got 0"):
        AntDTDD(n=2, **{field: 0})

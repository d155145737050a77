"""The straggler models, against their definitions (paper, section 2.1)."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, EveryGroup, PerRound, StragglerModel

patterns = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6))
small = st.integers(0, 4)


def windows(pattern: BoolArray, width: int) -> list[list[list[bool]]]:
    """Every window, cut at the first and last round, in plain Python."""
    rows = pattern.tolist()
    return [rows[max(0, t) : t + width] for t in range(1 - width, len(rows))]


@given(patterns, small, small, small)
def test_bursty_is_its_definition(pattern: BoolArray, burst: int, more: int, lam: int) -> None:
    burst, window = burst + 1, burst + 1 + more

    def fits(rows: list[list[bool]]) -> bool:
        when = [[t for t, row in enumerate(rows) if row[i]] for i in range(len(rows[0]))]
        spans = [w[-1] - w[0] for w in when if w]
        return len(spans) <= lam and all(span <= burst - 1 for span in spans)

    expected = all(fits(w) for w in windows(pattern, window))
    assert Bursty(B=burst, W=window, lam=lam).conforms(pattern) == expected


@given(patterns, small, small, small)
def test_arbitrary_is_its_definition(pattern: BoolArray, most: int, more: int, lam: int) -> None:
    window = max(1, most + more)

    def fits(rows: list[list[bool]]) -> bool:
        counts = [sum(row[i] for row in rows) for i in range(len(rows[0]))]
        return sum(c > 0 for c in counts) <= lam and all(c <= most for c in counts)

    expected = all(fits(w) for w in windows(pattern, window))
    assert Arbitrary(N=most, W=window, lam=lam).conforms(pattern) == expected


@given(patterns, small)
def test_per_round_is_its_definition(pattern: BoolArray, s: int) -> None:
    assert PerRound(s=s).conforms(pattern) == all(sum(row) <= s for row in pattern.tolist())


def test_every_group_wants_one_answer_of_each() -> None:
    model = EveryGroup(size=2)
    assert model.conforms(np.array([[True, True, False, False], [False, False, True, True]]))
    assert not model.conforms(np.array([[True, False, True, False]]))


@given(patterns)
def test_a_mixture_judges_each_window_on_its_own(pattern: BoolArray) -> None:
    models = (Bursty(B=1, W=2, lam=9), PerRound(s=1))
    expected = all(any(m.conforms(np.array(w)) for m in models) for w in windows(pattern, 3))
    assert AnyOf(span=3, models=models).conforms(pattern) == expected


@given(patterns, st.integers(0, 5), st.integers(0, 5))
def test_fewer_stragglers_never_break_a_promise(pattern: BoolArray, t: int, i: int) -> None:
    fewer = pattern.copy()
    fewer[t % len(pattern), i % pattern.shape[1]] = False
    for model in (
        PerRound(s=1),
        Bursty(B=2, W=3, lam=2),
        Arbitrary(N=1, W=3, lam=2),
        AnyOf(span=4, models=(Bursty(B=2, W=3, lam=2), Arbitrary(N=2, W=4, lam=2))),
    ):
        assert not model.conforms(pattern) or model.conforms(fewer)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PerRound(s=-1), "`s` must be an integer >= 0"),
        (lambda: EveryGroup(size=0), "`size` must be an integer >= 1"),
        (lambda: Bursty(B=3, W=2, lam=1), "`B` must satisfy 1 <= B <= W (bursty), W=2; got 3"),
        (lambda: Bursty(B=1, W=2, lam=-1), "`lam` must be an integer >= 0"),
        (lambda: Bursty(B=0, W=2, lam=1), "`B` must be an integer >= 1; got 0"),
        (lambda: Arbitrary(N=1.0, W=2, lam=1), "`N` must be an integer >= 0; got 1.0"),
        (lambda: Arbitrary(N=3, W=2, lam=1), "`N` must satisfy 0 <= N <= W"),
        (lambda: Arbitrary(N=1, W=2, lam=-1), "`lam` must be an integer >= 0"),
        (lambda: AnyOf(span=1, models=()), "`models` must contain"),
        (
            lambda: AnyOf(span=1, models=(Bursty(B=1, W=2, lam=1),)),
            "`span` must be >= 2, the longest window",
        ),
        (lambda: PerRound(s=1).conforms(np.ones(3, dtype=np.bool_)), "`pattern` must be a boolean"),
        (lambda: PerRound(s=1).conforms(np.ones((2, 3))), "`pattern` must be a boolean"),
    ],
)
def test_bad_parameters_are_named(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ParameterError) as caught:
        build()
    assert message in str(caught.value)


def test_integers_of_numpy_are_kept_as_ints() -> None:
    model = Bursty(B=np.int16(200), W=np.int16(200), lam=np.int8(1))  # 200 * 200 > 2**15
    assert model == Bursty(B=200, W=200, lam=1)
    assert "np." not in repr(model)
    assert model.load_lower_bound(256, delay=0) > 0


@pytest.mark.parametrize("model", [PerRound(s=1), Bursty(B=1, W=2, lam=1), EveryGroup(size=1)])
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ([[True, False]], "must be a boolean array (rounds, n); got ('list', (1, 2))"),
        (np.ones((2, 2)), "must be a boolean array (rounds, n); got (dtype('float64'), (2, 2))"),
        (np.ones(2, dtype=np.bool_), "must be a boolean array"),
        (np.ones((0, 2), dtype=np.bool_), "must have at least one round; got (0, 2)"),
    ],
)
def test_what_is_no_pattern_is_refused(
    model: StragglerModel, pattern: object, message: str
) -> None:
    for each in (model, AnyOf(span=2, models=(model,))):
        with pytest.raises(ParameterError, match=f"`pattern` {re.escape(message)}"):
            each.conforms(pattern)  # type: ignore[arg-type]

"""How a job is cut into the pieces that are dealt."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc.errors import ParameterError
from seqgc.schemes import Deal, by_rounds, parse_scheme
from tests.kit import SOAK


@settings(max_examples=1000 if SOAK else 25, deadline=None)
@given(st.integers(1, 300), st.integers(1, 1000), st.integers(1, 5000))
def test_pieces_are_as_many_as_asked_for_and_fall(n: int, pieces: int, batch: int) -> None:
    deal = Deal(n=n, pieces=pieces)
    shares = deal.chunk_fractions
    assert len(shares) == pieces
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) <= 1e-15).all()
    assert shares[-1] >= shares[0] * (0.24 if shares[0] <= 1 / 18 else 0.149)
    if pieces >= n > 1:
        assert shares[0] <= 1 / n + 1e-12
    else:
        assert n == 1 or shares[0] == pytest.approx(1 / pieces)
    cut = deal.cut(batch)
    assert cut.sum() == batch
    assert cut.max() <= np.ceil(shares.max() * batch) + 1


@settings(max_examples=1000 if SOAK else 25, deadline=None)
@given(st.integers(1, 50), st.none() | st.integers(1, 500))
def test_a_deal_is_its_spec_and_its_repr(n: int, pieces: int | None) -> None:
    deal = Deal(n=n, pieces=pieces)
    assert (
        parse_scheme(deal.spec, n=n) == deal == eval(repr(deal)) == pickle.loads(pickle.dumps(deal))
    )
    assert deal.spec == (f"deal:pieces={pieces}" if pieces else "deal")


def test_what_is_left_open_is_decided_for_the_models_that_take_turns() -> None:
    assert Deal(n=10).fitted(1) == Deal(n=10, pieces=100)
    assert Deal(n=10).fitted(4) == Deal(n=10).fitted(4, batch=16) == Deal(n=10, pieces=3)
    assert Deal(n=10, pieces=7).fitted(4) == Deal(n=10, pieces=7).fitted(1) == Deal(n=10, pieces=7)
    assert Deal(n=10).jobs_in_flight(4) == 4
    assert parse_scheme("gc:s=1", n=10).jobs_in_flight(4) == 1


@pytest.mark.parametrize(
    ("n", "batch", "pieces"),
    [
        (10, 6400, 100),
        (10, 6399, 99),  # of 64 points on average
        (10, 16, 30),  # but no fewer than three per worker
        (399, None, 3990),
        (401, None, 4000),  # many small messages are too much for the master
        (3000, None, 6000),
    ],
)
def test_there_are_ten_pieces_per_worker_of_64_points_up_to_a_bound(
    n: int, batch: int | None, pieces: int
) -> None:
    fitted = Deal(n=n).fitted(1, batch=batch)
    assert fitted.pieces == pieces
    if batch is None:
        assert Deal(n=n).chunk_fractions.tolist() == fitted.chunk_fractions.tolist()


@pytest.mark.parametrize(
    ("pieces", "rule"),
    [
        ("0", "`pieces` must satisfy 1 <= pieces <= 100000 (deal); got 0 "),
        ("-3", "`pieces` must satisfy 1 <= pieces <= 100000 (deal); got -3 "),
        ("100001", "`pieces` must satisfy 1 <= pieces <= 100000 (deal); got 100001 "),
        ("9" * 30, "`scheme` deal: pieces must be an integer"),
        ("1.5", "`scheme` deal: pieces must be an integer"),
        ("None", "`scheme` deal: pieces must be an integer"),
    ],
)
def test_pieces_that_cannot_be_are_refused_in_one_line(pieces: str, rule: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(rule)) as refusal:
        parse_scheme(f"deal:pieces={pieces}", n=4)
    assert "\n" not in str(refusal.value)


def test_what_needs_rounds_refuses_it_in_one_line() -> None:
    assert by_rounds(scheme := parse_scheme("gc:s=1", n=4), "an audit") is scheme
    with pytest.raises(ParameterError, match=r"`scheme` must have rounds for an audit; got 'deal'"):
        by_rounds(Deal(n=4), "an audit")

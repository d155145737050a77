"""`can_decode` against the span of the survivors' rows, exactly, for every set up to n = 8."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pytest

from seqgc.codes import CyclicCode, GradientCode, make_code
from tests.codes.registry import codes, masks

Rows: TypeAlias = list[list[Fraction]]

LARGEST = 8
CASES = [pytest.param(*case, id="{}-{}-{}".format(*case)) for case in codes(LARGEST)]


def echelon(rows: Rows) -> tuple[Rows, list[int]]:
    """Return the reduced echelon form without zero rows, and its pivot columns."""
    rows, pivots, done = [list(row) for row in rows], [], 0
    for column in range(len(rows[0]) if rows else 0):
        found = next((i for i in range(done, len(rows)) if rows[i][column]), None)
        if found is None:
            continue
        rows[done], rows[found] = rows[found], rows[done]
        lead = rows[done][column]
        rows[done] = [value / lead for value in rows[done]]
        for i, row in enumerate(rows):
            if i != done and (factor := row[column]):
                rows[i] = [a - factor * b for a, b in zip(row, rows[done], strict=True)]
        pivots.append(column)
        done += 1
    return rows[:done], pivots


def ones_are_in_the_span(rows: Rows) -> bool:
    basis, pivots = echelon(rows)
    if not basis:
        return False
    # In reduced form a vector of the span has the pivot entries as its coordinates.
    return all(sum(row[k] for row in basis) == 1 for k in range(len(basis[0])) if k not in pivots)


def exact_rows(code: GradientCode) -> Rows:
    """Return the encoding matrix as rational numbers.

    Codes of ones are what they are. The other cyclic codes' coefficients are rounded, so that they
    span nothing exactly; what they round is the null vectors of a parity matrix H, which the
    singular value decomposition finds again, taken here with H @ 1 == 0 to the last bit.
    """
    if code.covers:
        return [[Fraction(int(value)) for value in row] for row in code.encoding_matrix]
    n, s = code.n, code.s
    parity = [
        [Fraction(float(value)) for value in row]
        for row in np.linalg.svd(code.encoding_matrix)[2][n - s :]
    ]
    for row in parity:
        row[-1] = -sum(row[:-1], Fraction(0))
    rows = []
    for worker in range(n):
        window = code.support(worker)
        reduced, pivots = echelon([[row[k] for k in window] for row in parity])
        (free,) = set(range(s + 1)) - set(pivots)
        vector = [Fraction(0)] * n
        vector[window[free]] = Fraction(1)
        for row, pivot in zip(reduced, pivots, strict=True):
            vector[window[pivot]] = -row[free]
        rows.append(vector)
    return rows


@pytest.mark.parametrize(("kind", "n", "s"), CASES)
def test_can_decode_is_the_span(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    rows = exact_rows(code)
    for responded in masks(n):
        spanned = ones_are_in_the_span([rows[i] for i in np.flatnonzero(responded)])
        assert code.can_decode(responded) == spanned, responded


@pytest.mark.parametrize(("kind", "n", "s"), CASES)
def test_what_cannot_decode_is_not_nearly_decodable(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    for responded in masks(n):
        if not code.can_decode(responded):
            assert code.approximation_error(responded) > 1e-6, responded


@pytest.mark.parametrize(("n", "s"), [(n, s) for n in range(3, 9) for s in range(1, n - 1)])
def test_the_exact_rows_are_the_code(n: int, s: int) -> None:
    code = CyclicCode(n, s)
    exact = np.array(exact_rows(code), dtype=np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    rows = code.encoding_matrix / np.linalg.norm(code.encoding_matrix, axis=1, keepdims=True)
    cosines = np.abs((exact * rows).sum(axis=1))
    np.testing.assert_allclose(cosines, 1.0, atol=1e-12)


def test_the_all_ones_cyclic_code_decodes_from_one_class() -> None:
    code = make_code("cyclic", 6, 2)
    assert code.can_decode(np.array([True, False, False, True, False, False]))
    assert not code.can_decode(np.array([True, True, True, False, False, False]))

"""The experiments on codes measure what they say, on codes small enough for a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.codes import accuracy, approximate, constructions, decode_times
from experiments.results import Table
from seqgc.schemes import GC, parse_scheme


@pytest.mark.parametrize(
    ("payload", "low", "high"), [("float64", 0.0, 1e-10), ("float16", 1e-5, 1.0)]
)
def test_errors_are_those_of_the_payload(payload: str, low: float, high: float) -> None:
    rows = [row for family in accuracy.FAMILIES for row in accuracy.measured(family, 8, 2, payload)]
    assert [row["family"] for row in rows[::3]] == ["auto", "binary", "cyclic", "Gaussian H"]
    assert [row["sets"] for row in rows[:3]] == ["random", "contiguous", "worst found"]
    for row in rows:
        assert low <= float(row["median"]) <= float(row["worst"]) <= high, row
        assert row["lost"] == 0


def test_every_construction_is_a_code_of_its_load(tmp_path: Path) -> None:
    table = Table(tmp_path / "none.csv", constructions.FIELDS, keys=3)
    names = [name for name, _, _ in constructions.outstanding(table, [(8, 2)])]
    slack_1 = {name for name in constructions.CONSTRUCTIONS if name.endswith("slack 1")}
    assert set(names) == constructions.CONSTRUCTIONS.keys() - slack_1, "3 + 1 divides 8"
    for name in sorted({*names} - {"60 draws, worst found"}):  # which takes seconds
        construct, slack = constructions.CONSTRUCTIONS[name]
        matrix = construct(8, 2 + slack, np.random.default_rng(0))
        np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1.0, err_msg=name)
        assert (np.count_nonzero(np.abs(matrix) > 1e-9, axis=1) <= 3 + slack).all(), name
        vector = np.linalg.lstsq(matrix[2:].T, np.ones(8))[0]
        np.testing.assert_allclose(vector @ matrix[2:], 1.0, atol=1e-6, err_msg=name)
    for name, load in {"Gaussian H": 3 / 8, "library, slack 2": 5 / 8}.items():
        row = constructions.measured(name, 8, 2, sets=20)
        assert float(row["load"]) == pytest.approx(load)
        assert 0 < float(row["median"]) <= float(row["worst_found"]) < 1e3, row


def test_what_is_timed_is_decoded() -> None:
    vectors = decode_times.vectors("cyclic", 8, 2, sets=4, solved=2)
    assert {what: len(seconds) for what, seconds in vectors.items()} == {
        **dict.fromkeys(("new set", "one more", "another one more", "cached"), 4),
        "numpy lstsq": 2,
    }
    assert len(decode_times.combination(10, repeats=2)["w @ G"]) == 2
    rounds = decode_times.random_rounds(parse_scheme("gc:s=2", n=8), rounds=3, parameters=10)
    assert len(rounds["after the last arrival"]) == 3


def test_approximation_trades_errors_for_rounds() -> None:
    exact, loose = (
        approximate.measured(GC(n=16, s=0, family="rep", allow_error=error), steps=3, replayed=True)
        for error in (0.0, 0.5)
    )
    assert (exact["approximate"], exact["largest_error"]) == (0, "0.000")
    assert loose["approximate"] == 3
    assert 0 < float(loose["mean_error"]) <= float(loose["largest_error"]) <= 0.5
    assert float(loose["seconds"]) < float(exact["seconds"]), "on a hand-wound clock"

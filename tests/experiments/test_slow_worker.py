"""The live runs beside a slow worker: each defence trains the same weights, small."""

from __future__ import annotations

import pytest

from experiments.slow_worker import live


def test_each_way_of_being_slow_is_met_and_the_weights_are_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    live.main(["--workers", "3", "--steps", "4", "--share", "0.01"])
    header, *rows = [line.split(", ") for line in capsys.readouterr().out.splitlines()]
    assert [(row[0], row[1].partition(":")[0]) for row in rows] == [
        ("work", "uncoded"), ("work", "lb-bsp"), ("before", "uncoded"), ("before", "antdt-nd"),
    ]  # fmt: skip
    assert len({row[header.index("test accuracy")] for row in rows}) == 1

"""The live runs beside a slow worker, small: exact defences train the same weights."""

from __future__ import annotations

import pytest

from experiments.slow_worker import live


def test_each_way_of_being_slow_is_met_and_exact_defences_train_the_same_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    live.main(["--workers", "3", "--steps", "4", "--share", "0.01"])
    header, *rows = [line.split(", ") for line in capsys.readouterr().out.splitlines()]
    named = [(row[0], row[1].partition(":")[0]) for row in rows]
    exact = [("work", "uncoded"), ("work", "lb-bsp"), ("before", "uncoded"), ("before", "antdt-nd")]
    assert named == [*exact, ("before", "asp"), ("before", "asp-dds"), ("before", "antdt-nd-asp")]
    assert len({row[header.index("test accuracy")] for row in rows[: len(exact)]}) == 1

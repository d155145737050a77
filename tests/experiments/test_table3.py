"""Table 3 again: a cheap choice, and what its README says of the others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from experiments.results import Table
from experiments.table1_run_time.run import Mean
from experiments.table3_probe import run
from seqgc.ports import FloatArray

FOLDER = Path(run.__file__).parent
ROWS = Table(FOLDER / "runs.csv", run.RUNS, keys=2).rows()
TEXT = (FOLDER / "README.md").read_text()


def seconds(delays: str, family: str, probe: int) -> FloatArray:
    """Return a case's ten run times, by seed."""
    case = delays, family, str(probe)
    mine = [row for row in ROWS if (row["delays"], row["family"], row["probe"]) == case]
    assert [row["seed"] for row in mine] == [str(seed) for seed in range(run.SEEDS)]
    return np.array([float(row["runtime_s"]) for row in mine])


@pytest.mark.parametrize("delays", run.DELAYS)
def test_a_choice_on_ten_rounds_is_made_again(delays: str) -> None:
    case = delays, "4", "10", "gc"
    (row,) = (r for r in ROWS if (r["delays"], r["seed"], r["probe"], r["family"]) == case)
    assert run.chosen(run.DELAYS[delays], 4, 10, "gc") == row["scheme"]


def test_the_summary_and_the_readme_are_those_of_the_runs() -> None:
    made = [{name: str(cell) for name, cell in row.items()} for row in run.summary(ROWS)]
    assert made == Table(FOLDER / "summary.csv", run.SUMMARY, keys=3).rows()
    for family, probes in run.PAPER.items():
        for probe, (chosen, mean, sd) in probes.items():
            cells = [family, str(probe), f"({chosen})", f"{mean:.0f} ± {sd:.0f}"]
            for row in made:
                if (row["family"], row["probe"]) == (family, str(probe)):
                    most = f"`{row['most_chosen']}` ({row['times']})" if row["most_chosen"] else "–"
                    cells += [row["different"], most, row["load"]]
                    cells.append(f"{row['runtime_s']} ± {row['interval_s']}")
            assert "| " + " | ".join(cells) + " |" in TEXT


@pytest.mark.parametrize(
    ("delays", "slower", "faster"),
    [
        ("stalls", ("gc", 10), ("gc", 80)),
        ("stalls", ("sr-sgc", 10), ("sr-sgc", 80)),
        ("stalls", ("m-sgc", 10), ("m-sgc", 80)),
        ("no stalls", ("gc", 10), ("gc", 80)),
        ("no stalls", ("sr-sgc", 10), ("sr-sgc", 80)),
        ("no stalls", ("m-sgc", 40), ("m-sgc", 80)),
        ("no stalls", ("m-sgc", 10), ("m-sgc", 80)),
        ("no stalls", ("sr-sgc", 80), ("m-sgc", 20)),
        ("no stalls", ("sr-sgc", 80), ("m-sgc", 40)),
        ("no stalls", ("sr-sgc", 80), ("m-sgc", 10)),
    ],
)
def test_differences_that_the_readme_states(
    delays: str, slower: tuple[str, int], faster: tuple[str, int]
) -> None:
    less = Mean.of(seconds(delays, *slower) - seconds(delays, *faster))
    assert re.search(rf"(?<!\d){less.value:.0f} ± {less.half:.0f}\b", TEXT)


def test_with_stalls_no_family_is_told_apart_from_another() -> None:
    for probe in run.PROBES:
        for one, other in (("m-sgc", "sr-sgc"), ("m-sgc", "gc"), ("sr-sgc", "gc")):
            less = Mean.of(seconds("stalls", one, probe) - seconds("stalls", other, probe))
            assert abs(less.value) < less.half, (probe, one, other)

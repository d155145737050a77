"""Table 4 again: jobs are timed, rounds replayed, and the README says what its table says."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.results import Table
from experiments.table4_decoding import run

FOLDER = Path(run.__file__).parent


def test_fastest_rounds_are_those_of_the_table() -> None:
    rows = Table(FOLDER / "times.csv", run.FIELDS, keys=1).rows()
    assert [row["family"] for row in rows] == list(run.TABLE_4)
    (gc,) = (row for row in rows if row["family"] == "gc")
    assert gc["fastest_round_ms"] == f"{run.fastest_round_ms('gc'):.0f}"


def test_every_job_is_timed() -> None:
    (row,) = run.measured("gc", num_jobs=3, parameters=10)
    assert row["jobs"] == 3
    assert 0 < float(str(row["median_ms"])) <= float(str(row["longest_ms"]))


def test_the_readme_has_the_table_and_decoding_fits_into_a_round() -> None:
    text = (FOLDER / "README.md").read_text()
    longest = 0.0
    for row in Table(FOLDER / "times.csv", run.FIELDS, keys=1).rows():
        line = re.search(rf"^\| `{row['scheme']}` \|(.*)\|$", text, flags=re.MULTILINE)
        assert line, row
        mean, sd, most, fastest = run.TABLE_4[row["family"]]
        paper = f"{mean:g} ± {sd:g}", f"{most:g}", f"{fastest:g}", f"{most / fastest:.2f}"
        assert [cell.strip() for cell in line[1].split("|")] == [
            f"{row['mean_ms']} ± {row['sd_ms']}",
            row["median_ms"],
            *(row[name] for name in run.FIELDS[6:]),
            *paper,
        ]
        longest = max(longest, float(row["longest_per_round"]))
    factor = re.search(r"by a factor of (\d+) or more", text)
    assert factor
    assert int(factor[1]) * longest <= 1

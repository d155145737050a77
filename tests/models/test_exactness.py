"""The table "Exact or refused" of ``docs/training.md`` has a case for each row, and each is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models.exactness import CASES

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def rows() -> dict[str, str]:
    """Return the table's second column by its first."""
    section = PAGE.read_text().partition("## Exact or refused\n")[2].partition("\n## ")[0]
    cells = [
        re.split(r"(?<!\\\\)\|", line)[1:3] for line in section.splitlines() if line[:1] == "|"
    ]
    return {case.strip(): verdict.strip() for case, verdict in cells[2:]}


def test_the_table_and_the_cases_are_the_same_list() -> None:
    assert list(rows()) == list(CASES)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", rows())
def test_a_row_is_as_it_says(case: str, tmp_path: Path) -> None:
    assert CASES[case].verdict == rows()[case]
    CASES[case].check(tmp_path)

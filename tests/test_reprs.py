"""Results are short as text, and small tables in a notebook, whatever is in them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from seqgc import DelayProfile, SearchSpace, explain, read_run, replay, tune
from seqgc.models.evaluation import Evaluation
from seqgc.profiles import ProfileMeta
from seqgc.training import RunCounts, TrainResult
from tests.comparison.made import comparison_of
from tests.runs.logs import write_run

EVIL = "<img src=x onerror=alert(1)>&\x1b[31m"
PROFILE = DelayProfile.from_times(
    np.random.default_rng(0).uniform(1, 2, (200, 20)), meta=ProfileMeta(model=EVIL, alpha=1.0)
)


def result(kind: str, folder: Path) -> object:
    match kind:
        case "profile":
            return PROFILE
        case "replay":
            return replay("gc-rep:s=1", PROFILE)
        case "search":
            space = SearchSpace(families=("gc-rep", "gc"), mus=(0.0, 1.0), jobs_per_round=(1,))
            return tune(PROFILE, space=space, top=30)
        case "comparison":
            return comparison_of((EVIL, "exact", 20.0, 1.0), ("bsp", "exact", None, None))
        case "explanation":
            return explain("lambda-cnn:workers=4,rounds=8")
        case "run":
            return read_run(write_run(folder / EVIL.replace("/", ""), [[1.0, 2.0]] * 50))
    return TrainResult(
        run=folder,
        scheme="uncoded",
        jobs=3,
        seconds=1.0,
        counts=RunCounts(rounds=3),
        evaluations={
            EVIL: Evaluation(loss=0.5, accuracy=None),
            "net": Evaluation(loss=0.25, accuracy=0.9),
        },
        payload="float32",
        unevaluated={"other": EVIL},
    )


@pytest.mark.parametrize(
    "kind", ["profile", "replay", "search", "comparison", "explanation", "run", "training"]
)
def test_a_result_is_short_and_escaped(kind: str, tmp_path: Path) -> None:
    shown = result(kind, tmp_path)
    text = repr(shown)
    assert text.startswith(f"<{type(shown).__name__}: ")
    assert len(text) < 500
    assert text.isprintable()
    html = shown._repr_html_()  # type: ignore[attr-defined]
    assert len(html) < 8000
    tables = ET.fromstring(f"<div>{html}</div>")  # well-formed, and nothing but tables
    tags = {element.tag for element in tables.iter()}
    assert tags <= {"div", "table", "caption", "tr", "th", "td"}
    cells = {"".join(element.itertext()) for element in tables.iter("td")}
    assert len(cells) >= 4
    if kind == "search":
        (last,) = [cell for cell in cells if cell.endswith(" more")]
        assert last == f"… and {len(shown.ranking) - 20} more"  # type: ignore[attr-defined]
    if kind in ("profile", "comparison", "training"):
        assert any("<img src=x onerror=alert(1)>&" in cell for cell in cells)

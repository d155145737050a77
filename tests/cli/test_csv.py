"""``--csv``: the table that a verb prints is the table that Python has, with all its digits."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc import (
    Rehearsal,
    SearchSpace,
    Setting,
    Trial,
    compare,
    explain,
    parse_scheme,
    replay,
    sweep,
    tune,
)
from seqgc.cli import main
from seqgc.costs import Usage, read_prices
from seqgc.pipeline import Chain, Layer, Level, Source, plan, write_chain
from seqgc.plot import tables
from seqgc.ports import Table
from seqgc.profiles import lint, named_profile
from seqgc.stragglers import straggler_stats
from tests.cli.inside import command

Out = pytest.CaptureFixture[str]

NAME = "lambda-cnn:workers=8,rounds=12,seed=3"
SOURCE = Source(module="mlp", data="digits", loss="cross-entropy", batch_size=8, seed=0)
CHAIN = Chain((Layer("a", 0.1, 0.2, 30, 40), Layer("b", 0.2, 0.3, 10, 80)), SOURCE)
SLOW = {"demo", "pipeline profile"}  # they train or measure: other tests look at their tables
PLAN = """
scheme = "gc:s=1"
workers = 4
steps = 5
backend = "lambda-local"
function = {expected_s = 0.5, arch = "x86_64", master = "inside"}
models = [{name = "a", module = "paper-cnn", batch_size = 100}]
"""


def replayed() -> Table:
    setting, rehearsal = Setting(scheme="gc-rep:s=1").on(8), Rehearsal.of(NAME)
    return tables.replays(
        {"gc-rep:s=1": replay(setting, rehearsal)}, ideal_s=rehearsal.bound_s(setting)
    )


def tuned() -> Table:
    space = SearchSpace(families=("uncoded", "gc-rep"), mus=(0.0,))
    return tables.rankings(tune(NAME, space=space, pareto=True, top=4))


def compared() -> Table:
    trial = Trial(seeds=1, lrs=(8.0,))
    return tables.defences(compare(NAME, ["uncoded", "ssp:slack=1"], trial=trial))


CASES: dict[str, tuple[list[str], Callable[[], Table]]] = {
    "scheme": (["gc:s=1", "-n", "4"], lambda: tables.schemes([parse_scheme("gc:s=1", n=4)])),
    "replay": ([NAME, "--scheme", "gc-rep:s=1"], replayed),
    "tune": ([NAME, "--schemes", "uncoded,gc-rep", "--mu", "0", "--pareto", "--top", "4"], tuned),
    "compare": (
        [NAME, "--seeds", "1", "--lr", "8", "--defence", "uncoded", "--defence", "ssp:slack=1"],
        compared,
    ),
    "sweep": (
        ["uncoded", "gc-rep:s=1", "--on", NAME, "--on", "lambda-cnn:workers=4", "--seeds", "2"],
        lambda: sweep(["uncoded", "gc-rep:s=1"], [NAME, "lambda-cnn:workers=4"], seeds=2),
    ),
    "profile lint": (["odd.csv"], lambda: tables.findings(lint(named_profile(NAME)))),
    "profile stats": (
        [NAME],
        lambda: tables.straggler_models(straggler_stats(named_profile(NAME), mu=1.0)),
    ),
    "explain": ([NAME], lambda: tables.counterfactuals(explain(NAME))),
    "cost": (["plan.toml"], lambda: tables.bills({"likely": Usage()}, prices=read_prices())),
    "pipeline plan": (
        ["net.json", "--level", "3x1e9"],
        lambda: tables.stages(plan(CHAIN, [Level.parse("3x1e9")])),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_folder_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    times = named_profile(NAME).times.copy()
    times[0, 0] = 1e-5
    Path("odd.csv").write_text("\n".join(",".join(map(repr, row)) for row in times.tolist()))
    Path("plan.toml").write_text(PLAN)
    write_chain(CHAIN, Path("net.json"))


def test_every_verb_that_prints_a_table_writes_csv() -> None:
    verbs: dict[str, Any] = dict(command().commands)
    for group in [name for name, verb in verbs.items() if hasattr(verb, "commands")]:
        verbs |= {f"{group} {name}": verb for name, verb in verbs.pop(group).commands.items()}
    with_csv = {n for n, verb in verbs.items() if any("--csv" in p.opts for p in verb.params)}
    assert with_csv == CASES.keys() | SLOW


@pytest.mark.parametrize("verb", CASES)
def test_the_csv_of_a_verb_is_its_table_in_python(verb: str, capsys: Out) -> None:
    words, make = CASES[verb]
    line = [*verb.split(), *words]
    status = main([*line, "--csv", "-"])
    text = capsys.readouterr().out
    table = make()
    heading, *rows = csv.reader(io.StringIO(text))
    assert heading == list(table)
    assert rows
    if verb not in {"cost", "profile lint"}:  # their inputs are not quite those of Python here
        assert text == tables.csv_text(table)
    assert main([*line, "--csv", "to.csv", "--json"]) == status
    assert Path("to.csv").read_text() == text
    json.loads(capsys.readouterr().out)
    assert main([*line, "--csv", "again.csv"]) == status
    assert len(capsys.readouterr().out) > 20  # the text for people is printed too


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--csv", "-", "--json"], "`csv`"),
        (["--csv", "no/such/folder.csv"], "`csv`.*existing folder.*no/such/folder.csv"),
        (["--csv", "."], "`csv`.*folder"),
    ],
)
def test_wrong_places_for_csv_are_refused_before_the_work(
    more: list[str], words: str, capsys: Out
) -> None:
    assert main(["tune", "no-such.npz", *more]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_a_cell_without_a_value_is_empty_and_text_is_quoted() -> None:
    table = {
        "text": np.array(['a "b", c', None], dtype=object),
        "seconds": np.array([np.nan, 1 / 3]),
        "waits": np.array([True, False]),
    }
    assert tables.csv_text(table).splitlines() == [
        "text,seconds,waits", '"a ""b"", c",,True', f",{1 / 3!r},False"
    ]  # fmt: skip

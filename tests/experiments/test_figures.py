"""The experiments that make pictures: what is checked in is what their commands make."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from experiments import results
from experiments.agileml import run as agileml
from experiments.delays import series
from experiments.fig1_profile import run as fig1
from experiments.fig11_bounds import run as fig11
from experiments.fig12_example import run as fig12
from experiments.fig16_load import run as fig16
from experiments.fig17_search import run as fig17
from experiments.flexrr import run as flexrr
from experiments.lazytable import run as lazytable
from experiments.proteus import run as proteus
from experiments.table1_run_time import fig2
from experiments.table1_run_time import run as table1
from tests.kit import SOAK

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.mark.parametrize("experiment", [agileml, fig11, fig12], ids=lambda module: module.__name__)
def test_the_tables_that_are_checked_in_are_remade(experiment: ModuleType, tmp_path: Path) -> None:
    experiment.tables(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made
    there = Path(str(experiment.__file__)).parent
    assert made == {name: (there / name).read_text() for name in made}
    experiment.tables(tmp_path)
    assert made == {name: (tmp_path / name).read_text() for name in made}, "each row once"


def test_the_statistics_of_fig_1_are_remade() -> None:
    folder = EXPERIMENTS / "fig1_profile"
    made = [{k: str(v) for k, v in row.items()} for row in fig1.statistics(fig1.generated())]
    assert made == results.Table(folder / "statistics.csv", ("statistic", "value"), keys=1).rows()
    text = (folder / "README.md").read_text()
    for row in made:
        assert f"| {row['statistic']} | {row['value']} |" in text


def test_the_lines_of_fig_16_go_through_its_times() -> None:
    folder = EXPERIMENTS / "fig16_load"
    times = results.Table(folder / "times.csv", fig16.TIMES, keys=2).rows()
    lines = results.Table(folder / "lines.csv", fig16.LINES, keys=2).rows()
    assert list(fig16.lines(times)) == lines
    text = (folder / "README.md").read_text()
    for row in lines:
        assert f"| {row['alpha']} ({row['low']} to {row['high']}) | {row['r_squared']} |" in text


def test_the_times_of_fig_16_are_those_recorded(recorded_profiles: Path) -> None:
    name = "london"
    made = list(fig16.times(name, series(recorded_profiles, fig16.SERIES[name])))
    rows = results.Table(EXPERIMENTS / "fig16_load" / "times.csv", fig16.TIMES, keys=2).rows()
    mine = [row for row in rows if row["series"] == name]
    assert mine == [{k: str(v) for k, v in row.items()} for row in made]


@pytest.mark.parametrize(("delays", "column"), [("no_stalls", 0), ("stalls", 2)])
def test_some_of_fig_17_is_replayed_again(delays: str, column: int) -> None:
    folder = EXPERIMENTS / "fig17_search"
    table = results.Table(folder / f"{delays}.csv", fig17.FIELDS, keys=4).rows()
    some = [scheme for family in fig17.FAMILIES for scheme in fig17.schemes(family)[::600]]
    for row in fig17.landscape(delays, some):
        assert {name: str(cell) for name, cell in row.items()} in table
    least: dict[str, tuple[float, int]] = {}
    for row in table:
        found = float(row["runtime_s"]), int(row["lam"])
        name = f"{row['family']} ({row['B']}, {row['W']})"
        least[name] = min(least.get(name, found), found)
    assert len(least) == 12
    text = (folder / "README.md").read_text()
    for name, (fastest, lam) in least.items():
        line = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", text, flags=re.MULTILINE)
        assert line, name
        cells = [cell.strip() for cell in line[1].split("|")]
        assert cells[column : column + 2] == [f"{fastest:.1f}", str(lam)]


def test_the_uneven_work_of_flexrr_is_run_again() -> None:
    folder = EXPERIMENTS / "flexrr"
    rows = results.Table(folder / "clocks.csv", flexrr.FIELDS, keys=1).rows()
    made = [{key: str(value) for key, value in row.items()} for row in flexrr.uneven()]
    assert made == [row for row in rows if row["figure"] == "12"]
    line = " | ".join(row["clocks"] for row in made)
    assert f"(Fig. 12) | {line} |" in (folder / "README.md").read_text()


def test_a_curve_of_lazytable_is_run_again() -> None:
    folder = EXPERIMENTS / "lazytable"
    rows = results.Table(folder / "curves.csv", lazytable.FIELDS, keys=1).rows()
    curve = lazytable.curves(rows, "5 mf")["{2, 1}"]
    run = lazytable.ran(lazytable.app_of("mf"), 2, 1)
    assert [row["seconds"] for row in curve] == [f"{at_s:.3f}" for at_s in run.at_s]
    objectives = [float(row["objective"]) for row in curve]
    assert run.objectives.tolist() == pytest.approx(objectives, rel=1e-3)  # of another JPEG library
    reached = next(row["seconds"] for row in curve if float(row["objective"]) <= 0.0165)
    assert f"| {float(reached):.1f} |\n| page rank" in (folder / "README.md").read_text()


def test_the_readme_of_agileml_says_what_its_table_says() -> None:
    folder = EXPERIMENTS / "agileml"
    rows = results.Table(folder / "slowdowns.csv", agileml.FIELDS, keys=1).rows()
    text = (folder / "README.md").read_text()
    for row in rows:
        machines = f"{row['reliable']} : {row['transient']}"
        cells = [row["figure"], row["stage"], machines, row["servers"]]
        line = f"| {' | '.join(cells)} | {row['summed']} | {row['overlapped']} |"
        assert (line in text) == (row["figure"] != "stages" and row["stage"] != "traditional")
    traffic = agileml.fitted("summed")
    assert f"takes {traffic.worker:.1%}".replace("%", " %") in text
    assert f"{traffic.model / traffic.worker:.1f} times as large" in text
    page = " ".join((EXPERIMENTS.parent / "docs" / "elastic.md").read_text().split())
    one = [row["summed"] for row in rows if (row["figure"], row["reliable"]) == ("stages", "1")]
    first, second, third = (f"{float(each):.1f} times" for each in one)
    assert f"takes {first} as long as on 64 machines that stay in stage 1, {second} in" in page
    assert f"and {third} in stage 3" in page


def test_the_bytes_of_agileml_by_hand() -> None:
    """A worker's traffic is 1, the model 8; links have two directions, the busier one counts."""
    traffic = agileml.Traffic(worker=1.0, model=8.0)
    links = {
        stage: [
            traffic.link(kind, cluster)
            for cluster in (agileml.stage(stage, reliable=2, transient=6),)
            for kind in cluster.kinds
        ]
        for stage in ("1", "2", "3")
    }
    # 1: a server is read by 7 other workers, a half each, and its own worker reads the other half.
    # 2: 4 servers, which push 2 each; a reliable machine takes half the model, and has a worker.
    # 3: there are 6 workers, and the backups have their links for themselves.
    assert links == {
        "1": [7 / 2 + 1 / 2, 1.0],
        "2": [7 / 4 + 3 / 4 + 2, 1.0, 1.0 + 4],
        "3": [5 / 4 + 3 / 4 + 2, 1.0, 4.0],
    }
    # A unit of time is 64 machines' computation: 8 machines take 8, 6 take 64/6.
    assert traffic.iteration(agileml.stage("2", reliable=2, transient=6), "summed") == 8 + 5
    assert traffic.iteration(agileml.stage("3", reliable=2, transient=6), "overlapped") == 64 / 6


@pytest.mark.skipif(not SOAK, reason="SEQGC_SOAK=1 draws every picture")
@pytest.mark.parametrize(
    "experiment",
    [agileml, fig1, fig11, fig12, fig17, fig2, proteus, table1],
    ids=lambda module: module.__name__,
)
def test_commands_draw_what_is_checked_in(
    experiment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path(str(experiment.__file__)).parent
    for table in there.glob("*.csv"):
        if experiment not in (agileml, fig1, fig11, fig12, fig17):  # all else takes minutes
            shutil.copy(table, tmp_path)
    monkeypatch.setattr(sys, "argv", ["run", "--output", str(tmp_path)])
    experiment.main()
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert any(name.endswith(".svg") for name in made)
    assert made == {name: (there / name).read_text() for name in made}


def test_the_same_numbers_make_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        picture = results.figure(height=1)
        ax = picture.subplots()
        ax.fill([0, 1, 1], [0, 0, 1], clip_on=True, hatch="/")
        ax.set_xlabel("seconds")
        results.save(picture, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert (tmp_path / "b.svg").read_text() == text
    assert ">seconds</text>" in text, "text is text"
    assert not re.search(r"20\d\d-\d\d-\d\d", text), "no date"


def test_the_readme_of_fig_11_says_what_its_table_says() -> None:
    folder = EXPERIMENTS / "fig11_bounds"
    stated = re.findall(
        r"^\| (\d+), (\d), (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
        (folder / "README.md").read_text(),
        flags=re.MULTILINE,
    )
    assert len(stated) == 9
    table = {
        (row["n"], row["B"], row["lam"], row["W"]): [
            f"{float(row[column]) / float(row['bound']):.2f}"
            for column in ("m_sgc", "sr_sgc", "gc")
            if row[column]
        ]
        for row in results.Table(folder / "loads.csv", fig11.FIELDS, keys=4).rows()
    }
    for *case, m_sgc, sr_sgc, gc in stated:
        assert table[tuple(case)] == [m_sgc, sr_sgc, gc], case

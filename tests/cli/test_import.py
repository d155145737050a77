"""``seqgc profile import``, and verbs that are given a trace of another tool."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.errors import ProfileWarning
from seqgc.profiles import read_profile
from seqgc.runs import read_delays
from tests.cli.refused import refused
from tests.profiles.traces import EXPECTED, compressed, write

Out = pytest.CaptureFixture[str]
# One of each kind of file: JSON, log lines, compressed JSON, joined objects, parquet.
FIVE = ("lithops", "cloudwatch-text", "ray-timeline", "dask", "straggler-analysis")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_import_writes_a_profile_and_reports_every_decision(capsys: Out) -> None:
    write("ray-tasks", Path("tasks.json"))
    assert main(["profile", "import", "tasks.json", "-o", "p.npz", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    profile = read_profile("p.npz")
    assert profile.times.tolist() == EXPECTED["ray-tasks"].times
    assert (profile.meta.base_load, profile.meta.provider) == (0.5, "custom")
    assert (report["format"], report["rounds"], report["workers"]) == ("Ray tasks", 2, 2)
    assert report["columns"]["worker"] == "worker_id"
    assert any("1 of 4 answers have several rows" in note for note in report["notes"])
    assert main(["profile", "import", "tasks.json", "-o", "q.npz"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 rounds of 2 workers" in shown
    for note in report["notes"]:
        assert note in shown


def test_a_dry_run_shows_the_first_times_and_writes_nothing(capsys: Out) -> None:
    path = write("rows", Path("rows.csv"))
    assert main(["profile", "import", "rows.csv", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for cell in ("1.5", "2.25", "1.25", "dry run"):
        assert cell in shown
    assert list(Path().iterdir()) == [path]


def test_columns_are_named_by_options(capsys: Out) -> None:
    cells = [
        ("a", 0, 1500, "ok"),
        ("b", 0, 2250, "ok"),
        ("a", 1, 1250, "ok"),
        ("b", 1, 9000, "lost"),
    ]
    rows = [
        {"node": {"name": name}, "epoch": epoch, "took": took, "state": state}
        for name, epoch, took, state in [*cells, ("driver", 0, 1, "main")]
    ]
    Path("t").write_text("\n".join(map(json.dumps, rows)))
    options = ["--worker", "node.name", "--round", "epoch", "--duration", "took", "--unit", "ms"]
    options += ["--failed", "state=lost", "--base-load", "0.125", "-o", "p.npz", "--json"]
    assert main(["profile", "import", "t", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["names"] == {"rounds": ["0", "1"], "workers": ["a", "b", "driver"]}
    assert report["unanswered"] == 2
    profile = read_profile("p.npz")
    assert profile.times.tolist() == [[1.5, 2.25, 0.001], [1.25, 9.0, 1.25]]
    assert profile.status.tolist() == [[0, 0, 0], [0, 1, 1]]
    assert profile.meta.base_load == 0.125
    Path("p.npz").unlink()
    assert main(["profile", "import", "t", *options, "--where", "state=ok"]) == 0
    assert json.loads(capsys.readouterr().out)["names"]["workers"] == ["a", "b"]


STATES = "worker,round,took_ms,status\na,0,10,ok\nb,0,20,error\na,1,10,ok\nb,1,30,ok\n"


def test_a_column_that_may_name_failures_is_never_passed_over_in_silence(capsys: Out) -> None:
    Path("t.csv").write_text(STATES)
    words = ["profile", "import", "t.csv", "--worker", "worker", "--round", "round"]
    words += ["--duration", "took_ms", "--dry-run", "--json"]
    expected = {
        (): (0, "the column status (error, ok) is not used"),
        ("--failed", "status=lost"): (0, "no row has status=lost: its values are error, ok"),
        ("--failed", "status=Error"): (1, "1 of 4 calls failed"),
    }
    for options, (unanswered, note) in expected.items():
        assert main([*words, *options]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["unanswered"] == unanswered
        assert any(note in each for each in report["notes"]), report["notes"]
        assert any(note in each for each in report["warnings"]) == (not unanswered)


def test_a_likely_mistake_is_shown_as_a_warning(capsys: Out) -> None:
    lines = [f"{i},{i},{2000 * i + 900}" for i in range(8)]
    Path("t.csv").write_text("\n".join(["step,begin_ms,end_ms", *lines]))
    words = ["profile", "import", "t.csv", "--worker", "order", "--dry-run"]
    for options, size, column in (
        (["--round", "step", "--duration", "end_ms"], "8 rounds of 1 worker", "end_ms"),
        (["--round", "gap", "--start", "begin_ms", "--end", "end_ms"], "1 round of 8", "COLUMN"),
    ):
        assert main([*words, *options]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert size in shown
        assert column in shown.partition(" warnings ")[2].partition(" decisions ")[0]


def test_a_refused_trace_is_named_once_with_the_command_that_takes_it(capsys: Out) -> None:
    Path("t.csv").write_text(STATES)
    for words in (["explain", "t.csv"], ["replay", "t.csv", "--scheme", "uncoded"]):
        line = refused(capsys, *words)
        assert line.count("t.csv: ") == 1
        assert "…" not in line
        for part in ("--worker", "worker, round, took_ms, status", "seqgc profile import"):
            assert part in line
    assert refused(capsys, "explain", "gone.npz").count("gone.npz") == 1


def test_however_long_a_refusal_is_it_says_what_to_do(capsys: Out) -> None:
    folder = Path("recordings_of_the_second_week" * 4)
    folder.mkdir()
    path = folder / "mine.csv"
    path.write_text("worker," + ",".join(f"measured_{i}" for i in range(98)) + "\n1" + ",1" * 98)
    line = refused(capsys, "explain", str(path))
    for option in ("--worker", "--round", "--duration", "--start", "--end", "profile import`"):
        assert option in line


@pytest.mark.filterwarnings("always::seqgc.errors.ProfileWarning")
@pytest.mark.parametrize("name", FIVE)
def test_a_trace_of_a_known_format_goes_wherever_a_profile_goes(name: str, capsys: Out) -> None:
    path = write(name, Path("trace.txt"))
    if name == "ray-timeline":
        compressed(path)
    assert main(["replay", "--scheme", "uncoded", "trace.txt", "--json"]) == 0
    out, err = capsys.readouterr()
    times = EXPECTED[name].times
    slowest = [max(4.0 if s is None else s for s in row) for row in times]  # it failed after 4 s
    free, proportional = json.loads(out)["cases"]
    assert free["runtime_s"] == sum(slowest)
    assert proportional["runtime_s"] == sum(slowest), "the load is that of the recording"
    assert f"imported as {EXPECTED[name].format}" in err
    assert f"base load {1 / len(times[0]):.4g}" in err
    assert "seqgc profile import trace.txt --dry-run" in err
    assert max(map(len, err.splitlines())) < 200


@pytest.mark.filterwarnings("always::seqgc.errors.ProfileWarning")
@pytest.mark.parametrize("name", FIVE)
def test_a_trace_of_a_known_format_is_explained_in_one_command(name: str, capsys: Out) -> None:
    write(name, Path("trace"))
    assert main(["explain", "trace", "--json"]) == 0
    out, err = capsys.readouterr()
    assert f"imported as {EXPECTED[name].format}" in err
    found = json.loads(out)
    times = [[4.0 if s is None else s for s in row] for row in EXPECTED[name].times]
    assert found["seconds"] == sum(map(max, times))
    assert (found["rounds"], found["workers"]) == (len(times), len(times[0]))
    assert found["alpha"] is None
    assert "of the time was waiting" in found["verdict"][0]
    free, proportional = (
        {row["what"]: row["seconds"] for row in case["counterfactuals"]}
        for case in found["alpha_cases"]
    )
    assert free["code"] <= found["seconds"], "redundant work is free"
    assert free["code"] <= proportional["code"]
    assert main(["explain", "trace"]) == 0
    assert "With --alpha 0: " in capsys.readouterr().out


@pytest.mark.filterwarnings("always::seqgc.errors.ProfileWarning")
def test_one_round_is_explained_but_nobody_is_always_slow(capsys: Out) -> None:
    write("faas", Path("trace"))
    assert main(["explain", "trace", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rounds"], found["workers"], found["seconds"]) == (1, 3, 7.5)
    assert not any(row["always"] for row in found["by_worker"])
    assert main(["explain", "trace"]) == 0
    out, err = capsys.readouterr()
    assert "1 round of 3 workers" in out
    assert "1 round of 3 workers" in err
    assert "gap:SECONDS" in err


def test_python_takes_a_trace_wherever_it_takes_a_profile() -> None:
    write("lithops", Path("stats.json"))
    with pytest.warns(ProfileWarning, match="imported as Lithops stats.*base load"):
        profile = read_delays("stats.json")
    assert profile.times.tolist() == EXPECTED["lithops"].times


@pytest.mark.filterwarnings("always::seqgc.errors.ProfileWarning")
def test_tune_shows_both_extremes_if_a_trace_does_not_tell_what_load_costs(capsys: Out) -> None:
    write("lithops", Path("stats.json"))
    search = ["--schemes", "uncoded,gc-rep", "--jobs-per-round", "1", "--mu", "0", "--quiet"]
    assert main(["tune", "stats.json", *search, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    free, proportional = report["cases"]
    assert not report["alpha_known"]
    assert free["alpha"] == 0.0
    # The median is 0.6875 s, and each of three workers had a third of a job.
    assert proportional["alpha"] == pytest.approx(0.999 * 0.6875 * 3)
    assert (free["best"]["scheme"], proportional["best"]["scheme"]) == ("gc-rep:s=2", "uncoded")
    for verb in (["tune", *search], ["replay", "--scheme", "gc-rep:s=2"]):
        assert main([verb[0], "stats.json", *verb[1:]]) == 0
        shown = capsys.readouterr().out
        assert "--alpha 0: " in shown
        assert "--alpha 2.06 --base-load 0.3333" in shown
    assert main(["tune", "stats.json", *search, "--alpha", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == free["best"]


@pytest.mark.filterwarnings("always::seqgc.errors.ProfileWarning")
def test_compare_shows_both_extremes_and_draws_neither(capsys: Out) -> None:
    write("lithops", Path("stats.json"))
    command = ["compare", "stats.json", "--defence", "uncoded", "--defence", "gc-rep:s=2"]
    command += ["--seeds", "1", "--lr", "8", "--quiet"]
    assert main([*command, "--json"]) == 0
    free, proportional = json.loads(capsys.readouterr().out)["cases"]
    assert (free["alpha"], free["rows"][0]["defence"]) == (0.0, "gc-rep:s=2")
    assert proportional["rows"][0]["defence"] == "uncoded"
    assert main([*command, "-o", "page.html"]) == 2
    assert "`output` must be left out if alpha is unknown" in capsys.readouterr().err
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("import rows.csv", "`output` must name a new .npz file"),
        ("import other.csv --worker nod --round epoch --duration took", "did you mean 'node'"),
        ("import rows.csv -o p.csv", "`output` must end in .npz"),
        ("import rows.csv -o old.npz", "`output` must not exist"),
        ("import absent -o p.npz", "absent"),
        ("import other.csv -o p.npz", "node, epoch, took.*--worker.*--duration"),
        ("import other.csv --worker node -o p.npz", "`round` must name"),
        ("import other.csv --worker node --round epoch -o p.npz", "`duration` must name"),
        (
            "import other.csv --worker node --round epoch --duration took -o p.npz",
            "`unit` must be given",
        ),
        ("import rows.csv --attempts both -o p.npz", "`attempts` must be span"),
        ("stats other.csv", "other.csv: .*seqgc profile import"),
        ("stats notes.txt", "notes.txt: .*seqgc profile import"),
    ],
)
def test_what_cannot_be_decided_is_refused_and_nothing_is_written(
    arguments: str, named: str, capsys: Out
) -> None:
    write("rows", Path("rows.csv"))
    Path("old.npz").touch()
    Path("other.csv").write_text("node,epoch,took\na,0,3\nb,0,4\n")
    Path("notes.txt").write_text("my workers are slow\ntoday\n")
    message = refused(capsys, "profile", *arguments.split())
    assert re.search(named, message), message
    assert not Path("p.npz").exists()

"""``seqgc compare`` as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import LAMBDA_CNN, DelayProfile, ProfileMeta, write_profile
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]
QUICK = ["--alpha", "3", "--seeds", "1", "--lr", "4", "--train-batch", "512"]
KEYS = {
    "defence", "kind", "jobs_per_round", "seconds_per_clock", "over_bound", "clocks_to_target",
    "seconds_to_target", "usd", "staleness_mean", "staleness_max", "wasted",
}  # fmt: skip


@pytest.fixture(autouse=True)
def a_profile_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profile = LAMBDA_CNN.profile(10, workers=8, rng=np.random.default_rng(2))
    write_profile(profile, path="p.npz")


def compared(capsys: Out, *words: str) -> dict[str, list[dict[str, object]]]:
    assert main(["compare", "p.npz", *QUICK, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_any_named_all_that_the_field_knows_are_compared_the_same_way_twice(
    capsys: Out,
) -> None:
    found = compared(capsys)
    names = [str(row["defence"]).partition(":")[0] for row in found["rows"]]
    assert {"uncoded", "ssp", "asp", "asp-dds", "backup", "lb-bsp", "antdt-nd"} <= {*names}
    assert all(row.keys() >= KEYS for row in found["rows"])
    assert found["rows"] == compared(capsys)["rows"]
    exact = {row["clocks_to_target"] for row in found["rows"] if row["kind"] == "exact"}
    assert len(exact) == 1


def test_people_read_what_was_assumed_first_and_what_to_take_last(capsys: Out) -> None:
    words = ["--defence", "uncoded", "--defence", "ssp:slack=1"]
    assert main(["compare", "p.npz", *QUICK, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Delays read as latency")
    assert "reaches 0.25 in" in " ".join(lines[-2:])


def test_a_target_that_is_not_reached_is_a_row_that_says_so(capsys: Out) -> None:
    words = ["--defence", "uncoded", "--target", "1e-9", "--most", "3"]
    assert main(["compare", "p.npz", *QUICK, *words]) == 0
    assert "not in 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--defence", "spp:slack=1"], "did you mean"),
        (["--defence", "ssp:slack=-1"], "slack"),
        (["--defence", "m-sgc:B=1,W=2,lam=1"], "models"),
        (["--target", "0"], "target"),
        (["--lr", "fast"], "lr"),
        (["--region", "nowhere"], "region"),
        (["--reading", "speed"], "base load"),
        (["--arch", "z80", "--target", "1e-9", "--most", "1"], "arch"),
        (["--memory-mb", "5", "--target", "1e-9", "--most", "1"], "memory"),
        (["--jobs", "3"], "use --clocks"),
        (["--resident"], "use --worker-kind resident"),
        (["--conformity", "bursty"], "conformity"),
        (["--target", "3"], "`target` must be below"),
        (["--seeds", f"{10**20}"], "`seeds` must be an integer >= 1 and <= 1000"),
        (["--most", f"{10**25}"], "`most` must be an integer >= 1 and <= 10000000"),
        (["--models", f"{10**11}"], "`models` must be an integer >= 1 and <= 1000"),
        (["--clocks", f"{10**11}"], "`clocks` must be an integer >= 1 and <= 8388608"),
        (["--clocks", f"{10**19 - 1}"], "`clocks` must be an integer >= 1 and <= 8388608"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(capsys: Out, words: list[str], what: str) -> None:
    assert what in refused(capsys, "compare", "p.npz", *QUICK, *words)


def test_a_refusal_names_all_that_pieces_need_and_then_they_run(capsys: Out) -> None:
    Path("plain.csv").write_text("1.0,2.0\n2.0,1.0\n")
    ways = [["--reading", "speed"], ["--base-load", "0.5"], ["--worker-kind", "resident"]]
    pieces = ["compare", "plain.csv", "--defence", "flexrr:slack=1", *QUICK]
    for given in ([], ways[0], [*ways[0], *ways[1]], ways[2]):
        said = refused(capsys, *pieces, *given)
        missing = [way for way in ways if way[0] not in given]
        assert "got 'flexrr:slack=1'" in said
        assert [way for way in ways if way[0] in said] == missing
    assert main([*pieces, *(word for way in ways for word in way)]) == 0
    capsys.readouterr()
    replay = ["replay", "plain.csv", "--scheme", "bsp-rr"]
    said = refused(capsys, *replay)
    assert [way for way in ways if way[0] in said] == ways[:2]  # workers of a replay stay
    assert main([*replay, *ways[0], *ways[1]]) == 0


def test_a_profile_of_one_round_will_do(capsys: Out) -> None:
    profile = LAMBDA_CNN.profile(1, workers=4, rng=np.random.default_rng(2))
    write_profile(profile, path="p.npz")
    assert len(compared(capsys, "--defence", "uncoded", "--defence", "asp")["rows"]) == 2


def test_a_bound_of_no_time_at_all_is_exceeded_infinitely(capsys: Out) -> None:
    times = [[0.6, 1.7, 1.6, 0.9]]  # less 0.7 s at load 0, of which one has a latency below 0
    meta = ProfileMeta(base_load=7.0, alpha=0.1)
    write_profile(DelayProfile.from_times(times, meta=meta), path="p.npz")
    asked = ["compare", "p.npz", "--defence", "ssp:slack=1", "--seeds", "1", "--most", "3"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound_s"] == 0
    assert found["rows"][0]["over_bound"] is None
    assert main([*asked, "-o", "page.html"]) == 0


def test_several_models_are_a_bundle_unless_it_is_said_how_many(capsys: Out) -> None:
    words = ["--models", "4", "--defence", "gc-rep:s=1", "--defence", "asp"]
    bundles = {row["jobs_per_round"] for row in compared(capsys, *words)["rows"]}
    assert bundles == {4}
    bundles = {
        row["jobs_per_round"] for row in compared(capsys, *words, "--jobs-per-round", "2")["rows"]
    }
    assert bundles == {2}
    assert main(["compare", "p.npz", *QUICK, *words]) == 0
    assert "bundle" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--jobs-per-round", "2"], "needs --defence"),
        (["--defence", "uncoded", "--jobs-per-round", "2"], "divide the number of models"),
        (["--defence", "uncoded", "--jobs-per-round", "0"], "jobs_per_round"),
    ],
)
def test_a_bundle_that_cannot_be_is_refused(capsys: Out, words: list[str], what: str) -> None:
    said = refused(capsys, "compare", "p.npz", *QUICK, "--models", "3", *words)
    assert what in said


def test_a_recording_of_one_load_is_compared_in_both_cases(capsys: Out) -> None:
    times = LAMBDA_CNN.profile(10, workers=4, rng=np.random.default_rng(2)).times.copy()
    times[::2] *= 1.5  # the rounds that choose and those that judge have other medians
    meta = ProfileMeta(base_load=0.25)
    write_profile(DelayProfile.from_times(times, meta=meta), path="one-load.npz")
    words = ["--defence", "uncoded", "--holdout", "0.5", *QUICK[2:], "--json"]
    assert main(["compare", "one-load.npz", *words]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["rows"][0]["defence"] for case in cases] == ["uncoded", "uncoded"]


def test_speeds_need_no_alpha_whatever_verb_reads_them(capsys: Out) -> None:
    Path("two.csv").write_text("1,9\n9,1\n", encoding="utf-8")
    speeds = ["two.csv", "--reading", "speed", "--base-load", "0.5", "--json"]
    words = ["--defence", "gc-rep:s=1", "--target", "2.3", "--most", "1", "--seeds", "1"]
    assert main(["compare", *speeds, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["alpha"], found["reading"]) == (None, "speed")
    assert found["rows"][0]["over_bound"] == pytest.approx(2)
    assert main(["replay", *speeds, "--scheme", "gc-rep:s=1"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["runtime_s"], replayed["ideal_s"]) == pytest.approx((20, 10))
    assert replayed["recorded"] == "speed"
    assert main(["tune", *speeds, "--schemes", "uncoded,gc-rep", "--jobs-per-round", "1"]) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["recorded"] == "speed"
    assert [(row["scheme"], row["runtime_s"]) for row in tuned["ranking"]] == [
        ("uncoded", pytest.approx(18)),
        ("gc-rep:s=1", pytest.approx(20)),
    ]


def test_people_see_how_many_seeds_there_were_and_where_a_rate_is_an_edge(capsys: Out) -> None:
    words = ["compare", "p.npz", "--alpha", "3", "--train-batch", "64", "--target", "1"]
    words += ["--defence", "uncoded", "--seeds", "7"]
    for lr, is_edge in (("0.5,1", True), ("0.25,1,64", False)):
        assert main([*words, "--lr", lr]) == 0
        printed = capsys.readouterr().out
        assert ("(1*)" in printed, "(1)" in printed) == (is_edge, not is_edge)
        assert "7 seed(s)" in printed
        assert "between" in printed


OWN = """steps = 15
[[models]]
name = "net"
module = "mlp"
optimizer = "sgd"
lr = 1.0
batch_size = 200
"""


def test_models_of_a_file_are_trained_instead(capsys: Out) -> None:
    Path("own.toml").write_text(OWN, encoding="utf-8")
    words = ["compare", "p.npz", "--alpha", "3", "--seeds", "1", "--train", "own.toml"]
    words += ["--target", "1.8", "--defence", "gc-rep:s=1", "--defence", "asp"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(1 <= row["clocks_to_target"] <= 15 for row in found["rows"])
    trial = found["trial"]
    assert (trial["what"], trial["most"], trial["lrs"], trial["plan"]) == ("net", 15, [1.0], None)
    assert all(row["best_is_edge"] for row in found["rows"])
    assert main([*words, "--lr", "1e-9"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1e-09 times the models' own" in printed
    assert "not in 15" in printed


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--train", "own.toml"], "`target` must be given with --train"),
        (["--train", "own.toml", "--target", "1", "--train-batch", "9"], "train_batch"),
        (["--train", "own.toml", "--target", "1", "--models", "2"], "`models` must be left out"),
        (["--train", "none.toml", "--target", "1"], "none.toml"),
        (["--train", "p.npz", "--target", "1"], "must be TOML"),
    ],
)
def test_a_file_of_models_that_cannot_be_is_refused(
    capsys: Out, words: list[str], what: str
) -> None:
    Path("own.toml").write_text(OWN, encoding="utf-8")
    assert what in refused(capsys, "compare", "p.npz", "--defence", "uncoded", *words)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--target", "-1"], "`target`"),
        (["--lr", "nan"], "`lr`"),
        (["--seeds", "0"], "`seeds`"),
        (["--most", "0"], "`most`"),
        (["--clocks", "0"], "`clocks`"),
        (["--models", "2"], "`models` must be left out, or 1"),
        (["--reading", "x"], "`reading`"),
        (["--worker-kind", "x"], "`workers`"),
        (["--defence", "nonsense"], "nonsense"),
        (["--defence", "m-sgc:B=1,W=2,lam=1"], "models"),
        (["--memory-mb", "1"], "memory"),
        (["--region", "x"], "region"),
        (["--alpha", "nan"], "`alpha`"),
    ],
)
def test_no_module_of_ones_own_is_run_before_all_flags_are_right(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    Path("marking.py").write_text("open('was-run', 'w').close()", encoding="utf-8")
    Path("own.toml").write_text(OWN.replace("mlp", "marking:net"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "marking", raising=False)
    given = ["--alpha", "3", "--train", "own.toml", "--target", "1", *words]
    assert what in refused(capsys, "compare", "p.npz", *given)


def test_an_app_is_compared_like_a_model(capsys: Out) -> None:
    words = ["--train", "pagerank", "--worker-kind", "resident", "--seeds", "1", "--json"]
    words += ["--defence", "bsp", "--defence", "ssp:slack=1", "--defence", "deal:pieces=16"]
    assert main(["compare", "p.npz", "--alpha", "3", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["defence"]: row for row in found["rows"]}
    assert found["trial"]["what"] == "PageRank"
    assert rows["bsp"]["clocks_to_target"] <= rows["deal:pieces=16"]["clocks_to_target"]
    assert rows["ssp:slack=1"]["clocks_to_target"] >= rows["bsp"]["clocks_to_target"]
    traffic = {name: (row["received"], row["sent"]) for name, row in rows.items()}
    assert traffic["bsp"] == traffic["ssp:slack=1"] == (8.0, 8.0)
    assert traffic["deal:pieces=16"][0] == 8.0
    assert traffic["deal:pieces=16"][1] >= 16.0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--train", "pagernk"], "did you mean 'pagerank'"),
        (["--train", "json:dumps"], "`train`"),
        (["--train", "collections:Counter", "--target", "1"], "'initial'"),
        (["--train", "pagerank", "--lr", "2", "--defence", "bsp"], "rated"),
        (["--train", "pagerank", "--models", "2"], "`models` must be 1"),
        (["--train", "pagerank", "--train-batch", "8"], "train_batch"),
        (["--train", "pagerank", "--defence", "asp-dds:M=2"], "PageRank has a state"),
    ],
)
def test_what_an_app_cannot_do_is_refused(words: list[str], what: str, capsys: Out) -> None:
    assert what in refused(capsys, "compare", "p.npz", "--alpha", "3", "--seeds", "1", *words)


STEPS = """
import numpy as np

class Steps:
    items = 32
    def initial(self, rng):
        return {"to": np.zeros(1)}
    def process(self, tables, items, rng):
        for _ in items:
            tables["to"] += 0.02 * (1 - tables["to"])
    def objective(self, tables):
        return float((1 - tables["to"][0]) ** 2)

class Broken(Steps):
    def objective(self, tables):
        raise ZeroDivisionError
"""


def test_clocks_of_an_exact_defence_depend_on_how_it_cuts_the_items(
    capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("steps.py").write_text(STEPS, encoding="utf-8")
    words = ["--alpha", "3", "--worker-kind", "resident", "--seeds", "1"]
    words += ["--target", "1e-6", "--train", "steps:Steps"]
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    assert "PYTHONPATH" in refused(capsys, "compare", "p.npz", *words)
    monkeypatch.syspath_prepend(str(tmp_path))
    specs = ["bsp", "gc-rep:s=1", "deal:pieces=16", "deal"]
    given = [word for spec in specs for word in ("--defence", spec)]
    assert main(["compare", "p.npz", "--json", *words, *given]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    clocks = {row["defence"]: row["clocks_to_target"] for row in rows}
    for spec, chunks in zip([*specs[:3], "deal:pieces=24"], (8, 8, 16, 24), strict=True):
        step, rest, expected = (
            sum(1 - 0.98 ** len(each) for each in np.array_split(range(32), chunks)),
            1.0,
            0,
        )
        while rest**2 > 1e-6:
            rest, expected = rest * (1 - step), expected + 1
        assert clocks[spec] == expected
    words[-1] = "steps:Broken"
    assert "ZeroDivisionError" in refused(capsys, "compare", "p.npz", *words)

"""``seqgc replay`` and ``seqgc tune`` as a user types them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import DelayProfile, ProfileMeta, write_profile
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, SearchSpace, Tuning, replay, tune
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]

CANADA = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
ALPHA = "1.1217530061354162"
PAPERS_RULE = ["--alpha", ALPHA, "--jobs", "20", "--mu", "1", "--wait-out", "all", "--json"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Eight rounds of six workers, one of which is slow in each round."""
    times = 0.5 + np.random.default_rng(5).exponential(0.1, size=(8, 6))
    times[np.arange(8), np.arange(8) % 6] += 3.0
    path = tmp_path / "measured.npz"
    write_profile(DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.4)), path=path)
    return path


def answer(capsys: Out, *arguments: str) -> dict[str, object]:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert isinstance(found, dict)
    return found


# ---- replay -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "conformity", "seconds"),
    [
        ("uncoded", "scheme", 31.5164),
        ("gc:s=14", "scheme", 25.8292),
        ("gc:s=15", "scheme", 26.0001),
        ("sr-sgc:B=1,W=2,lam=22", "scheme", 25.4769),
        ("sr-sgc:B=1,W=2,lam=23", "scheme", 25.4874),
        ("m-sgc:B=1,W=2,lam=26", "scheme", 27.1192),
        ("m-sgc:B=1,W=2,lam=27", "scheme", 27.1196),
        ("m-sgc:B=2,W=3,lam=27", "scheme", 29.4542),
        ("m-sgc:B=2,W=3,lam=27", "bursty", 30.7264),
    ],
)
def test_replay_reproduces_the_papers_rule(
    recorded_profiles: Path, capsys: Out, spec: str, conformity: str, seconds: float
) -> None:
    recording = str(recorded_profiles / CANADA)
    arguments = ["--scheme", spec, "--conformity", conformity, *PAPERS_RULE]
    assert answer(capsys, "replay", recording, *arguments)["runtime_s"] == pytest.approx(
        seconds, abs=1e-4
    )


def test_replay_prints_the_documented_keys(profile: Path, capsys: Out) -> None:
    found = answer(capsys, "replay", str(profile), "--scheme", "m-sgc:B=1,W=2,lam=1", "--json")
    keys = "runtime_s round_seconds stragglers_per_round waited_out job_finish_round ideal_s"
    assert list(found)[:6] == keys.split()
    assert found["jobs"] == 7  # eight rounds, and a delay of one
    assert found["job_finish_round"] == list(range(1, 8))
    round_seconds = found["round_seconds"]
    assert isinstance(round_seconds, list)
    assert len(round_seconds) == 8
    assert found["runtime_s"] == pytest.approx(sum(round_seconds))


def test_replay_speaks_to_people_too(profile: Path, capsys: Out) -> None:
    assert main(["replay", str(profile), "--scheme", "gc:s=1", "--jobs-per-round", "2"]) == 0
    shown = capsys.readouterr().out
    assert "16 in 8 rounds" in shown
    assert "clairvoyant bound" in shown


def test_replay_says_how_it_read_what_is_dealt(profile: Path, capsys: Out) -> None:
    dealt = ["replay", str(profile), "--scheme", "deal:pieces=6", "--json", "--rtt", "0.01"]
    each_round = answer(capsys, *dealt)
    assert each_round["reading"] == "per round"
    assert each_round["runtime_s"] > each_round["ideal_s"]  # type: ignore[operator]
    assert answer(capsys, *dealt, "--after", "0.5")["reading"] == "per round, 50% after"
    stay = answer(capsys, *dealt, "--resident", "--models", "2")
    assert (stay["reading"], stay["in_flight"], stay["rtt_s"]) == ("resident", 2, 0.01)
    assert stay["ideal_s"] == pytest.approx(8 * 0.4 / 6)  # all the work, shared evenly
    assert stay["ideal_s"] < stay["runtime_s"] < each_round["runtime_s"]  # type: ignore[operator]
    assert main(["replay", str(profile), "--scheme", "deal", "--resident"]) == 0
    shown = capsys.readouterr().out
    assert "resident, 20 ms to a worker and back" in shown
    assert "all work shared evenly" in shown


def test_tune_names_each_reading_and_takes_resident_ones_on_demand(
    profile: Path, capsys: Out
) -> None:
    arguments = ["tune", str(profile), "--schemes", "deal,gc-rep", "--mu", "0", "--jobs", "8"]
    assert main(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "seqgc train --scheme gc-rep" in shown
    assert "not searched: deal" in shown
    assert "4 in bundles of 2" in shown
    dealt = answer(capsys, *arguments, "--backend", "local", "--json")["ranking"]
    assert {row["reading"] for row in dealt} == {"per round"}  # type: ignore[attr-defined]
    # A worker's load is settled beforehand of schemes by rounds alone.
    for row in dealt:  # type: ignore[attr-defined]
        assert (row["normalized_load"] is None) == row["scheme"].startswith("deal:")
        assert (row["normalized_load"] or 1) >= row["load_lower_bound"]
    best = answer(capsys, *arguments, "--json", "--resident", "--models", "4")["best"]
    assert best["reading"] == "resident"  # type: ignore[index]
    assert main([*arguments, "--resident", "--models", "4"]) == 0
    shown = capsys.readouterr().out
    assert f"{best['scheme']} (resident)" in shown  # type: ignore[index]
    (command,) = [line for line in shown.splitlines() if line.startswith("seqgc train")]
    assert f"--scheme {best['scheme']} -n 6 " in command  # type: ignore[index]
    assert " --models 4 " in command


def test_replay_repeats_a_profile_when_told_to(profile: Path, capsys: Out) -> None:
    spec = ["--scheme", "gc:s=1", "--json"]
    once = answer(capsys, "replay", str(profile), *spec, "--jobs", "8")
    twice = answer(capsys, "replay", str(profile), *spec, "--jobs", "16", "--repeat")
    assert twice["runtime_s"] == pytest.approx(2 * once["runtime_s"])  # type: ignore[operator]


def test_a_bound_of_no_time_at_all_is_exceeded_infinitely(profile: Path, capsys: Out) -> None:
    free = ["--resident", "--alpha", "0"]  # whose jobs bound nothing
    found = answer(capsys, "replay", str(profile), "--scheme", "deal", *free, "--json")
    assert found["ideal_s"] == 0
    assert main(["replay", str(profile), "--scheme", "deal", *free]) == 0
    assert "the run takes inf times that" in capsys.readouterr().out
    best = answer(capsys, "tune", str(profile), "--schemes", "deal", *free, "--json")["best"]
    assert isinstance(best, dict)
    assert best["ratio"] is None


def test_replay_takes_the_base_load_from_its_flag(profile: Path, capsys: Out) -> None:
    spec = ["replay", str(profile), "--scheme", "uncoded", "--json"]
    recorded_at_zero = answer(capsys, *spec)["runtime_s"]
    recorded_uncoded = answer(capsys, *spec, "--base-load", str(1 / 6))["runtime_s"]
    assert isinstance(recorded_at_zero, float)
    assert recorded_uncoded == pytest.approx(recorded_at_zero - 8 * 0.4 / 6)


def test_a_batch_is_charged_as_it_is_cut(profile: Path, capsys: Out) -> None:
    # 6 workers and 2 stragglers, 9 points: somebody holds 5 of them, where a load of 1/2 is 4.5.
    spec = ["replay", str(profile), "--scheme", "gc:s=2", "--json", "--wait-out", "all"]
    nominal, cut = answer(capsys, *spec), answer(capsys, *spec, "--batch", "9")
    more = 0.4 * (5 / 9 - 1 / 2)
    rounds = zip(nominal["round_seconds"], cut["round_seconds"], strict=True)  # type: ignore[call-overload]
    assert all(after - before == pytest.approx(more) for before, after in rounds)
    found = answer(capsys, "tune", str(profile), "--batch", "9", "--schemes", "gc,m-sgc", "--json")
    best = found["best"]
    assert isinstance(best, dict)
    replayed = answer(
        capsys,
        "replay",
        str(profile),
        "--scheme",
        best["scheme"],
        "--batch",
        "9",
        "--mu",
        str(best["mu"]),
        "--wait-out",
        best["wait_out"],
        "--jobs",
        str(found["jobs"]),
        "--jobs-per-round",
        str(best["jobs_per_round"]),
        "--repeat",
        "--json",
    )
    assert replayed["runtime_s"] == best["runtime_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "`batch` must be an integer >= 1"),
        (["--jobs", "9"], "`jobs` plus the delay must not exceed the profile's 8 rounds"),
        (["--jobs", "0"], "`jobs` must be an integer >= 1"),
        (["--jobs", "400000000", "--repeat"], "`jobs` must be an integer >= 1 and <= 10000000"),
        (["--jobs", "8", "--jobs-per-round", "3"], "`jobs_per_round` must be >= 1 and divide"),
        (["--jobs-per-round", "0"], "`jobs_per_round` must be an integer >= 1"),
        (["--wait-out", "some"], "`wait_out` must be one of all, conform, feasible"),
        (["--conformity", "mild"], "`conformity` must be one of scheme, bursty"),
        (["--mu", "-1"], "`mu` must be a finite number >= 0"),
        (
            ["--alpha", "9", "--base-load", "0.5"],
            "`alpha` must leave the median time positive",
        ),
        (["--alpha", "1e18"], "`alpha` must be a finite number >= 0 and <= 1e+15; got 1e+18"),
        (["--base-load", "1e16"], "`base_load` must be a finite number >= 0 and <= 1e+15; got"),
        (["--scheme", "deal", "--rtt", "1e308"], "`rtt` must be a finite number >= 0 and <= 1e+15"),
        (["--scheme", "gc:s=6"], "`s` must satisfy 0 <= s < n"),
        (
            ["--scheme", "m-sgc:B=1,W=2,lam=2", "--models", "1"],
            "`models` must number at least T * jobs_per_round + 1 = 2, because a gradient may",
        ),
        (
            ["--models", "3", "--jobs-per-round", "2"],
            "`jobs_per_round` must be >= 1 and divide the number of models, M=3; got 2",
        ),
        (
            ["--scheme", "m-sgc:B=4,W=6,lam=1"],
            "must have more than 8 rounds, the delay of m-sgc:B=4,W=6,lam=1; got 8",
        ),
    ],
)
def test_replay_refuses_in_one_line(
    profile: Path, capsys: Out, arguments: list[str], message: str
) -> None:
    scheme = [] if "--scheme" in arguments else ["--scheme", "gc:s=1"]
    assert message in refused(capsys, "replay", str(profile), *scheme, *arguments)


@pytest.mark.parametrize("spec", ["antdt-nd:trans=1e-300,per=1e-300", "lb-bsp"])
def test_windows_and_loads_at_their_limits_replay(profile: Path, capsys: Out, spec: str) -> None:
    heavy = ["--base-load", "0", "--alpha", "1e15"]  # the windows are nothing beside the rounds
    found = answer(capsys, "replay", str(profile), "--defence", spec, *heavy, "--json")
    assert len(found["round_seconds"]) == 8  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", [["replay", "--scheme", "uncoded"], ["tune"]])
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            "1.0,2.0\n1.0,oops\n",
            "must be a number, or empty if the worker did not answer; got 'oops'",
        ),
        ("1.0,2.0\n1.0,-2.0\n", "row 1, column 1"),
        ("1.0,2.0\n1.0\n", "has 1 columns"),
        ("", "holds no times"),
        (
            "1.0,2.0\n1.0,1e308\n",
            "row 1, column 1 (round, worker; from 0): a time must be 1e-09 to",
        ),
        ("1.0,5e-324\n", "to 1e+15 s; got 5e-324"),
    ],
)
def test_a_bad_profile_is_refused_with_its_place(
    tmp_path: Path, capsys: Out, verb: list[str], cells: str, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(cells)
    assert message in refused(capsys, verb[0], str(path), *verb[1:], "--alpha", "1")


# ---- tune ---------------------------------------------------------------------------------------


def test_tune_prints_the_documented_keys_and_replay_agrees(profile: Path, capsys: Out) -> None:
    found = answer(
        capsys, "tune", str(profile), "--jobs", "4", "--max-delay", "2", "--json", "--top", "5"
    )
    assert list(found)[:5] == ["best", "ranking", "searched", "seconds", "ideal_s"]
    ranking = found["ranking"]
    assert isinstance(ranking, list)
    assert found["best"] == ranking[0]
    keys = "scheme mu wait_out jobs_per_round normalized_load runtime_s holdout_s"
    for row in ranking:
        assert list(row)[:7] == keys.split()
        again = answer(
            capsys,
            "replay",
            str(profile),
            *("--scheme", row["scheme"], "--jobs", "4", "--mu", str(row["mu"])),
            *("--wait-out", row["wait_out"], "--jobs-per-round", str(row["jobs_per_round"])),
            "--json",
        )
        assert again["runtime_s"] == row["runtime_s"]
        assert again["ideal_s"] == row["ideal_s"]


def test_an_interrupted_search_prints_what_it_has_found(
    profile: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> Tuning:
        signal.raise_signal(signal.SIGINT)
        return tune(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("seqgc.cli._tune.search_rehearsal", interrupted)
    # A shell's background job ignores SIGINT, and so would the tests that it runs.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["tune", str(profile), "--alpha", "1"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, inherited)
    printed = capsys.readouterr().out
    assert "interrupted" in printed
    assert "seqgc train --scheme" in printed


def test_tune_looks_where_it_is_told(profile: Path, capsys: Out) -> None:
    found = answer(
        capsys,
        *("tune", str(profile), "--schemes", "gc, uncoded", "--mu", "0.5", "--wait-out", "all"),
        *("--jobs-per-round", "2", "--jobs", "4", "--top", "100", "--json"),
    )
    ranking = found["ranking"]
    assert isinstance(ranking, list)
    assert found["searched"] == 6  # uncoded, and gc with s = 1 … 5
    assert {(row["mu"], row["wait_out"], row["jobs_per_round"]) for row in ranking} == {
        (0.5, "all", 2)
    }


def test_tune_judges_on_held_out_rounds(profile: Path, capsys: Out) -> None:
    schemes = ["--schemes", "gc,uncoded", "--jobs-per-round", "1", "--jobs", "4"]
    found = answer(capsys, "tune", str(profile), *schemes, "--holdout", "0.5", "--json")
    best, lead = found["best"], found["lead"]
    assert isinstance(best, dict)
    assert isinstance(lead, dict)
    with np.load(profile) as stored:
        held = DelayProfile.from_times(stored["times"][4:])
    run = replay(
        Setting(
            scheme=parse_scheme(best["scheme"], n=6),
            rule=ClosingRule(mu=best["mu"], wait_out=best["wait_out"]),
        ),
        Rehearsal(profile=held, num_jobs=4, alpha=0.4),
    )
    assert best["holdout_s"] == run.runtime_s
    assert lead["runner_up"]["scheme"] == "uncoded"
    assert lead["real"] is False, "four rounds are too few to tell"


def test_tune_speaks_to_people_too(profile: Path, capsys: Out) -> None:
    arguments = ["--schemes", "gc,uncoded", "--holdout", "0.25", "--pareto"]
    assert main(["tune", str(profile), *arguments]) == 0
    captured = capsys.readouterr()
    assert "gc:s=" in captured.out
    assert "held out" in captured.out
    assert "run time against the bill" in captured.out
    assert "the lead may be chance" in " ".join(captured.out.split()), (
        "two held-out rounds are too few to tell"
    )
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--jobs", "99", "--no-repeat"],
            "profile's 8 rounds; got 99 (take fewer jobs, or repeat the profile)",
        ),
        (["--backend", "lambada"], "`backend` must be one of"),
        (["--schemes", "deal", "--backend", "lambda"], "let functions stay (--resident)"),
        (["--schemes", "gcc"], "`schemes` must be among"),
        (["--mu", "0,x"], "`mu` must be numbers, separated by commas; got 'x'"),
        (["--jobs-per-round", "1.5"], "`jobs_per_round` must be integers"),
        (["--wait-out", "none"], "`wait_out` must be one of"),
        (["--mu", ","], "`mus` must have at least one value"),
        (["--holdout", "1.5"], "`holdout` must satisfy 0 < holdout < 1"),
        (
            ["--alpha", "9", "--base-load", "0.5"],
            "`alpha` must leave the median time positive",
        ),
        (["--top", "0"], "`top` must be an integer >= 1"),
        (["--models", "0"], "`models` must be an integer >= 1"),
        (["--models", "1e9"], "got '1e9'"),
        (
            ["--schemes", "gc-rep,lb-bsp", "--inexact"],
            "deal their work; got 'lb-bsp' (compare it with other schemes by `seqgc compare`",
        ),
    ],
)
def test_tune_refuses_in_one_line(
    profile: Path, capsys: Out, arguments: list[str], message: str
) -> None:
    assert message in refused(capsys, "tune", str(profile), "--max-delay", "1", *arguments)


OWN_CODE = """
from dataclasses import dataclass
import numpy as np
from seqgc.codes import GradientCode, Layout, register_code

@register_code("striped")
@dataclass(frozen=True)
class Striped(GradientCode):
    def _make_layout(self):
        chunks = self.n // (self.s + 1)
        supports = tuple(np.arange(self.n)[:, None] % chunks)
        return Layout(supports=supports, sizes=np.ones(chunks))
"""


@pytest.mark.usefixtures("plugins_are_forgotten")
def test_verbs_take_a_code_that_is_only_registered(
    profile: Path, capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_code_of_a_user.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    plugin = ["--plugin", "own_code_of_a_user", "--json"]
    run = answer(capsys, "replay", str(profile), "--scheme", "gc-striped:s=1", *plugin)
    searched = ["--schemes", "gc-striped,uncoded", "--jobs-per-round", "1", "--mu", "0"]
    found = answer(capsys, "tune", str(profile), *searched, *plugin)
    explained = answer(capsys, "scheme", "gc-striped:s=1", "-n", "6", *plugin)
    plan = ["--scheme", "gc-striped:s=1", "-n", "6", "--dry-run"]
    assert main(["train", *plan, *plugin[:2]]) == 0
    # Every one of three chunks has two holders, and one worker is slow in each round.
    assert run["runtime_s"] == pytest.approx(found["best"]["runtime_s"])  # type: ignore[index]
    assert found["best"]["scheme"] == "gc-striped:s=1"  # type: ignore[index]
    assert explained["normalized_load"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("verb", [["replay", "--scheme", "uncoded"], ["tune"]])
def test_a_profile_of_failures_is_refused(tmp_path: Path, capsys: Out, verb: list[str]) -> None:
    path = tmp_path / "silent.npz"
    failed = np.ones((3, 4), dtype=np.int8)
    write_profile(DelayProfile(times=np.ones((3, 4)), status=failed), path=path)
    message = refused(capsys, verb[0], str(path), *verb[1:], "--alpha", "1")
    assert "silent.npz: row 0: nobody answered in this round" in message


def test_tune_judges_its_choice_on_other_held_out_rounds_for_each_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = 1 + np.random.default_rng(0).exponential(size=(20, 4))
    profile = DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.4))
    path = tmp_path / "p.npz"
    write_profile(profile, path=path)
    space = ["--schemes", "uncoded,gc-rep", "--jobs-per-round", "1", "--mu", "0", "--quiet"]
    command = ["tune", str(path), *space, "--holdout", "0.25", "--seeds", "3"]
    assert main([*command, "--json", "--csv", str(tmp_path / "t.csv")]) == 0
    by_seed = json.loads(capsys.readouterr().out)["by_seed"]
    searched = SearchSpace(families=("uncoded", "gc-rep"), jobs_per_round=(1,), mus=(0.0,))
    expected = [tune(profile, space=searched, holdout=0.25, seed=seed).best for seed in range(3)]
    assert [row["holdout_s"] for row in by_seed] == [row.holdout_s for row in expected]
    assert len({row["holdout_s"] for row in by_seed}) > 1, "the blocks differ"
    written = (tmp_path / "t.csv").read_text()
    assert all(f"seed {k}," in written for k in range(3))
    assert main(command) == 0
    assert (
        f"{np.mean([row.holdout_s for row in expected]):.3f} s on average"
        in capsys.readouterr().out
    )
    assert main([*command[:-4], "--seeds", "2"]) == 2
    assert "`seeds` needs --holdout" in capsys.readouterr().err

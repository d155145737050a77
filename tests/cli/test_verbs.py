"""The verbs as a user types them: what they print, and how they refuse."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from seqgc import read_run
from seqgc.cli import main
from seqgc.testing import PATIENCE_S, eventually
from tests.cli.kit import closed_rounds
from tests.cli.refused import refused
from tests.kit import interrupts

SMALL = ["--scheme", "gc:s=1", "-n", "3", "--steps", "2", "--models", "2", "--batch-size", "40"]

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_scheme_prints_the_documented_keys(capsys: Out) -> None:
    assert main(["scheme", "m-sgc:B=1,W=2,lam=27", "-n", "256", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == [
        "scheme",
        "n",
        "s",
        "kind",
        "delay",
        "normalized_load",
        "tolerates",
        "load_lower_bound",
    ]
    assert facts["normalized_load"] == pytest.approx(0.007543, abs=5e-7)
    assert (facts["n"], facts["s"], facts["delay"]) == (256, 27, 1)
    assert facts["load_lower_bound"] < facts["normalized_load"]


def test_scheme_speaks_to_people_too(capsys: Out) -> None:
    assert main(["scheme", "gc:s=15", "-n", "256"]) == 0
    shown = capsys.readouterr().out
    assert "0.062500  (16.000 times the uncoded)" in shown
    assert "at most 15 stragglers in each round" in shown


def test_train_reports_its_result_as_one_json_object(capsys: Out) -> None:
    assert main(["train", *SMALL, "--run", "r", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert {"run", "jobs", "seconds", "models", "scheme", "waited_out"} <= report.keys()
    assert (report["run"], report["jobs"], report["scheme"]) == ("r", 2, "gc:s=1")
    assert report["payload"] == "float32"
    assert tomllib.loads(Path("r/config.toml").read_text())["payload"] == "float32"
    assert [set(model) for model in report["models"]] == [
        {"name", "loss", "accuracy", "metrics"}
    ] * 2
    first, *_, last = err.splitlines()
    assert first == "starting 3 workers (local)"
    assert last.startswith("gc:s=1: 2 of 2 rounds, stragglers: ")
    assert "; loss: model-0 " in last


@pytest.mark.parametrize(("allow_error", "allowed"), [("0.6", True), ("0.4", False)])
def test_train_says_what_was_decoded_approximately(
    allow_error: str, allowed: bool, capsys: Out
) -> None:
    # Each of four workers has a quarter, and a round closes as soon as it may: without the last
    # one, at an error of sqrt(1/4), where that much is allowed.
    spec = f"gc-rep:s=0,allow_error={allow_error}"
    sizes = ["-n", "4", "--steps", "3", "--models", "1", "--batch-size", "40"]
    delays = ["--delays", "lambda-cnn", "--delay-scale", "0.05"]
    assert main(["train", "--scheme", spec, *sizes, *delays, "--run", "r", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["approximate"] > 0) == allowed
    assert report["largest_error"] == pytest.approx(0.5 if allowed else 0.0)


def test_a_config_file_says_it_all_and_flags_override_it(capsys: Out) -> None:
    Path("run.toml").write_text(
        """
        scheme = "m-sgc:B=1,W=2,lam=1"
        workers = 3
        steps = 5
        [delays]
        scale = 0.01
        [[models]]
        name = "small"
        module = "mlp"
        optimizer = "SGD"
        lr = 0.1
        momentum = 0.9
        [[models]]
        name = "smaller"
        module = "mlp"
        batch_size = 10
        """
    )
    assert main(["train", "run.toml", "--steps", "1", "--run", "r", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"], report["rounds"]) == (2, 3)
    written = tomllib.loads(Path("r/config.toml").read_text())
    assert (written["steps"], written["scheme"]) == (1, "m-sgc:B=1,W=2,lam=1")
    assert [m["name"] for m in written["models"]] == ["small", "smaller"]
    assert written["models"][0]["momentum"] == 0.9
    assert written["delays"]["scale"] == 0.01


def test_the_written_config_repeats_the_run(capsys: Out) -> None:
    assert main(["train", *SMALL, "--precision", "float64", "--run", "a", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["train", "a/config.toml", "--run", "b", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    for one, two in zip(first["models"], second["models"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-9)


def test_results_travel_in_the_format_that_file_or_flag_names(capsys: Out) -> None:
    flags = ["--payload", "float16", "--stochastic-rounding"]
    assert main(["train", *SMALL, *flags, "--run", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["payload"] == "float16"
    written = tomllib.loads(Path("a/config.toml").read_text())
    assert (written["payload"], written["stochastic_rounding"]) == ("float16", True)
    again = ["train", "a/config.toml", "--payload", "bfloat16", "--no-stochastic-rounding"]
    assert main([*again, "--run", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["payload"] == "bfloat16"
    written = tomllib.loads(Path("b/config.toml").read_text())
    assert (written["payload"], written["stochastic_rounding"]) == ("bfloat16", False)


def write_own_config(*models: str) -> None:
    """Write ``own.py``, a line to fit and its data, and ``own.toml``, which fits so many of it."""
    Path("own.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "def net():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Linear(2, 1)\n"
        "def data():\n"
        "    x = torch.tensor([[0., 1.], [1., 0.], [1., 1.], [0., 0.]])\n"
        "    y = x.sum(1, keepdim=True)\n"
        "    return TensorDataset(x, y), TensorDataset(x, y)\n"
    )
    tables = (
        f'[[models]]\nname = "{name}"\nmodule = "own:net"\ndata = "own:data"\nloss = "mse"\n'
        'optimizer = "adam"\nlr = 0.1\nbatch_size = 4\n'
        for name in models
    )
    settings = 'scheme = "gc-rep:s=1"\nworkers = 2\nsteps = 60\n'
    Path("own.toml").write_text(settings + "".join(tables))


def test_a_users_own_module_and_data_are_found_beside_the_config(capsys: Out) -> None:
    write_own_config("line")
    try:
        assert main(["train", "own.toml", "--run", "r", "--json"]) == 0
    finally:
        sys.path.remove(str(Path.cwd()))
        sys.modules.pop("own", None)
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["loss"] < 0.05
    assert model["accuracy"] is None


def test_the_demo_compares_uncoded_with_coded_in_numbers_and_in_words(
    capsys: Out,
) -> None:
    demo = ["demo", "-n", "4", "--models", "1", "--delay-scale", "0.005"]
    assert main([*demo, "--steps", "50", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["uncoded"]["scheme"] == "uncoded"
    assert report["uncoded"]["stragglers"] == 0
    assert report["coded"]["stragglers"] > 0
    assert report["dealt"]["scheme"] == "deal:pieces=12"
    for each in ("uncoded", "coded", "dealt"):
        assert min(report[each]["accuracy"]) >= 0.95
        assert Path(report[each]["run"], "events.jsonl").exists()
    uncoded, dealt = (report[each]["models"][0]["loss"] for each in ("uncoded", "dealt"))
    assert dealt == pytest.approx(uncoded, abs=0.01)


def test_a_demo_that_has_not_learnt_is_a_failure(capsys: Out) -> None:
    quick = ["-n", "2", "--models", "1", "--steps", "1", "--delay-scale", "0.005"]
    assert main(["demo", *quick, "--csv", "demo.csv"]) == 1
    heading, *rows = csv.reader(Path("demo.csv").read_text().splitlines())
    table = {name: [row[at] for row in rows] for at, name in enumerate(heading)}
    assert table["scheme"][0] == "uncoded"
    assert [float(seconds) > 0 for seconds in table["median_round_s"]] == [True] * 3
    assert len(read_run(table["run"][0]).rounds()["round"]) == int(table["rounds"][0])
    out, err = capsys.readouterr()
    for row in ("run time", "stragglers survived", "wait-outs", "test accuracy", "Runs: runs/"):
        assert row in out
    assert err.splitlines()[-1].endswith(", below 0.95: train longer than 1 steps")


BAD = {
    "scheme gc:s=99 -n 4": "`s` must satisfy 0 <= s < n (GC), n=4; got 99",
    "scheme m-sgd:B=1 -n 4": "(did you mean 'm-sgc'?)",
    "scheme gc:s=1": "Missing option",
    "scheme gc:s=1 -n 0": "`n` must be >= 1 (workers); got 0",
    "scheme gc:s=1 -n x": "'-n' / '--workers'",
    "train --scheme gc:s=16": "`s` must satisfy 0 <= s < n (GC), n=16; got 16",
    "train --sheme gc:s=1": "--scheme",
    "train --payload float8": "`payload` should be 'float64', 'float32', 'float16' or 'bfloat16'",
    "train --payload float64": "`payload` must not be wider than the precision, float32",
    "train --stochastic-rounding": "`stochastic_rounding` must be off, as nothing is rounded",
    "train --steps 0": "`steps` should be greater than or equal to 1; got 0",
    "train --mu -1": "`mu` should be greater than or equal to 0; got -1.0",
    "train --wait-out any": "`wait_out` should be 'all', 'conform' or 'feasible'; got 'any'",
    "train --models 0": "`models` must be an integer >= 1 and <= 1000; got 0",
    "train --optimizer adan": "(did you mean 'adam'?)",
    "train --optimizer lbfgs": "`optimizer` must step from one gradient, not from a closure",
    "train --dry-run --optimizer os:getcwd": "`optimizer` must make an optimizer of the model's",
    "train --dry-run --scheduler os:getcwd": "`scheduler` must make a learning-rate scheduler of",
    "train --optimizer adafactor --lr 0": "`models.0.lr` should be greater than 0; got 0.0",
    "train --module digits-cm": "(did you mean 'digits-cnn'?)",
    "train --module paper-cnn": "`module` must take the dataset's points",
    "train --lr inf": "`models.0.lr` should be a finite number; got inf",
    "train --workers 100000000": "`workers` should be less than or equal to 10000",
    "train --steps 100000000000": "`steps` should be less than or equal to 1000000000",
    "train --run broken.toml/x": "`run` must be a folder that can be made",
    "train --module nowhere:f": "`module` must be an importable package.module:function",
    # (Tests of experiments may have registered more names.)
    "train --data nosuch": "`data` must be one of ",
    "train --delays nothing.csv": "nothing.csv",
    "train --jobs-per-round 5": "`jobs_per_round` must be >= 1 and at most",
    "train missing.toml": "`config` must be a file; got 'missing.toml'",
    "train broken.toml": "`config` must be TOML",
    "train typo.toml": "`schema` is not a key of the configuration",
    "train typo-in-model.toml": "(did you mean 'batch_size'?)",
    "train --run there": "`run` must not exist: a run never overwrites another; got 'there'",
    "train --models 1 --scheme m-sgc:B=1,W=2,lam=3": "`models` must number at least",
    "demo --scheme gc-rep:s=2": "`s` must be such that s + 1 divides n (GC-Rep), n=16; got 2",
    "train --delays lambda-cnnn": "(did you mean 'lambda-cnn'?)",
    "train --delays plain.csv -n 2 --scheme gc:s=1": "`delays.alpha` must be given",
    "train --delays plain.csv -n 4 --scheme gc:s=1": "must have a column for each of the 4 workers",
    f"replay plain.csv --scheme uncoded --batch {10**400}": "`batch` must be an integer >= 1",
    "train --delay-scale inf": "`delays.scale` should be a finite number; got inf",
    "demo --models 0": "`models` must be an integer >= 1 and <= 1000; got 0",
    "demo --models 1 --scheme m-sgc:B=1,W=2,lam=3": "`models` must number at least",
    "demo --runs broken.toml": "`run` must be a folder that can be made",
    "demo --steps 0": "`steps` should be greater than or equal to 1; got 0",
    "dem": "Did you mean 'demo'?",
    "scheme deal:pices=3 -n 4": "deal takes pieces; got 'pices=3' (did you mean 'pieces'?)",
    "train --scheme deal --wait-out all": "`wait_out` must be left out with deal",
    "train --scheme deal --audit": "`scheme` must have rounds for an audit; got 'deal:pieces=4'",
    "train --scheme deal --retune 5 --alpha 1": "must have rounds for --probe and --retune",
    "train --scheme deal --backend lambda-local": "resident functions (--resident)",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(line: str, capsys: Out) -> None:
    Path("broken.toml").write_text("steps = = 1")
    Path("typo.toml").write_text('schema = "gc:s=1"\n[[models]]\nname = "a"\n')
    Path("typo-in-model.toml").write_text('[[models]]\nname = "a"\nbach_size = 3\n')
    Path("plain.csv").write_text("1.0,2.0\n2.0,1.0\n")
    Path("there").mkdir()
    assert BAD[line] in refused(capsys, *line.split())


def test_a_bound_of_load_is_only_said_of_schemes(capsys: Out) -> None:
    for spec, pieces in ("flexrr:slack=1", 4 * 20), ("bsp-rr:pieces=3", 12), ("deal:pieces=5", 5):
        assert main(["scheme", spec, "-n", "4"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"pieces of a job {pieces}, " in shown
        assert "load" not in shown
    for spec, is_bounded in ("ssp:slack=1", False), ("gc:s=1", True):
        assert main(["scheme", spec, "-n", "4"]) == 0
        assert ("lower bound of load" in capsys.readouterr().out) == is_bounded


def test_help_is_printed_without_arguments(capsys: Out) -> None:
    assert main([]) == 0
    assert "scheme" in capsys.readouterr().out


def _session_of(leader: int) -> list[int]:
    """Pids of the processes whose session ``leader`` leads, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")
def test_ctrl_c_stops_at_once_keeps_the_checkpoints_and_leaves_no_process() -> None:
    write_own_config("model-0", "model-1")
    run = ["train", "own.toml", "--scheme", "gc:s=1", "-n", "3", "--run", "r", "--steps", "100000"]
    command = [sys.executable, "-m", "seqgc", *run]
    with interrupts():
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    try:
        eventually(lambda: closed_rounds("r") > 5, "round 5")
        # As a terminal does: to everyone in the foreground.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    *lines, last = err.splitlines()
    assert last.startswith("seqgc: interrupted; ")
    assert last.endswith("continue with: seqgc resume r")
    said = "seqgc: loading ", "starting ", "gc:s=1: "
    assert all(line.startswith(said) for line in lines), "workers do not hear of it"
    log = [json.loads(line) for line in Path("r/events.jsonl").read_text().splitlines()]
    assert (log[-1]["event"], log[-1]["outcome"]) == ("end", "interrupted")
    assert sorted(path.name for path in Path("r/checkpoints").glob("*.safetensors")) == [
        "model-0.safetensors",
        "model-1.safetensors",
    ]
    eventually(lambda: not _session_of(process.pid), "the end of the session")

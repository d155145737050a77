"""Runs on functions and on dask: the same weights, nothing left, and a price."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from seqgc.cli import main
from seqgc.cli._config import validated
from seqgc.cli._engine import _unique, store_ref
from seqgc.deploy import Deployment, write_deployment
from seqgc.ports import Task
from seqgc.profiles import read_profile
from seqgc.stores.s3 import split_s3
from seqgc.wire import StoreRef
from tests.backends.dask import warm as warm
from tests.backends.lambda_.in_memory import open_backend

Out = pytest.CaptureFixture[str]

SGD = ["--module", "mlp", "--optimizer", "sgd", "--lr", "0.05", "--precision", "float64"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(run: str) -> np.ndarray:
    files = sorted(Path(run, "checkpoints").iterdir())
    tensors = [load_file(file) for file in files]
    return np.concatenate([np.ravel(t[name]) for t in tensors for name in sorted(t)])


def last_event(run: str) -> dict[str, object]:
    return json.loads(Path(run, "events.jsonl").read_text().splitlines()[-1])


def test_functions_on_this_machine_train_the_same_weights_as_local_processes(
    capsys: Out, in_an_empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = ["--scheme", "m-sgc:B=1,W=2,lam=4", "-n", "16", "--models", "2", "--steps", "2"]
    delays = ["--delays", "lambda-cnn", "--delay-scale", "0.02", "--batch-size", "64"]
    command = ["train", *scheme, *SGD, *delays, "--json"]
    assert main([*command, "--run", "local"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(tempfile, "tempdir", str(in_an_empty_folder))
    functions = ["--backend", "lambda-local", "--environments", "16"]
    assert main([*command, *functions, "--run", "functions"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"], report["rounds"]) == (4, 5)
    assert report["stragglers"] > 0
    assert report["failures"] == 0
    np.testing.assert_allclose(weights("functions"), weights("local"), rtol=0, atol=1e-8)
    assert list(in_an_empty_folder.glob("seqgc-*")) == []  # what stood for a file system is gone
    check_the_cost_of_the_run(capsys)


def check_the_cost_of_the_run(capsys: Out) -> None:
    """What `seqgc cost` makes of it, against its own events."""
    assert main(["cost", "functions", "--memory", "1024", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    events = [json.loads(line) for line in Path("functions/events.jsonl").read_text().splitlines()]
    answered = [event["elapsed_s"] for event in events if event["event"] == "arrival"]
    assert facts["likely"]["requests"] == 16 * 5
    assert facts["unanswered"] == 80 - len(answered)
    assert facts["likely"]["gb_seconds"] >= sum(answered)
    # an mlp of the digits has 64 * 32 + 32 + 32 * 10 + 10 parameters or so, of 8 bytes: per task
    assert facts["likely"]["efs_read_bytes"] % 80 == 0
    assert facts["usd"] <= facts["usd_at_most"]


def test_a_budget_stops_a_run_before_it_is_passed(capsys: Out) -> None:
    # A round of two tasks costs at most 2 * (60 s * 2.5 GB * $0.0000133334 + $0.0000002), which is
    # $0.00400042, and as much the warm-up before it: with what the first round has cost, the second
    # could pass $0.0080009.
    sizes = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "3"]
    functions = ["--backend", "lambda-local", "--transport", "asyncio", "--store", "inline"]
    run = ["--run", "r", "--max-usd", "0.0080009"]
    Path("inside.toml").write_text('[function]\nmaster = "inside"\n')
    assert main(["train", "inside.toml", *sizes, *SGD, *functions, *run]) == 1
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if line.startswith("round ")][-1][:8] == "round 0:"
    line = err.splitlines()[-1]
    assert line.startswith(
        "seqgc: stopped before round 1: it could cost up to $0.004000, with $0.004"
    )
    assert "of a budget of $0.00800" in line
    assert str(last_event("r")["outcome"]).startswith("stopped: stopped before round 1")
    assert main(["train", *sizes, *SGD, "--steps", "1", "--run", "one step"]) == 0
    np.testing.assert_allclose(weights("r"), weights("one step"), rtol=0, atol=1e-8)


def test_one_s_own_machines_cost_nothing(capsys: Out) -> None:
    small = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "1"]
    assert main(["train", *small, "--max-usd", "0", "--run", "r", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 1


def test_dask_trains_the_same_weights_as_local_processes(capsys: Out) -> None:
    sizes = ["--scheme", "gc:s=1", "-n", "3", "--models", "1", "--steps", "2", "--batch-size", "30"]
    assert main(["train", *sizes, *SGD, "--run", "local"]) == 0
    capsys.readouterr()
    assert main(["train", *sizes, *SGD, "--run", "dask", "--backend", "dask", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"], report["failures"]) == (2, 0)
    np.testing.assert_allclose(weights("dask"), weights("local"), rtol=0, atol=1e-8)


def test_functions_are_profiled_after_they_are_warm(capsys: Out) -> None:
    sizes = ["-n", "2", "--rounds", "2", "--loads", "0,1", "--module", "mlp"]
    functions = ["--backend", "lambda-local", "--transport", "http"]
    assert main(["profile", *functions, *sizes, "-o", "seen.npz", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["rounds"], facts["workers"], facts["unanswered"]) == (2, 2, 0)
    profile = read_profile("seen.npz")
    assert profile.meta.provider == "lambda-local"
    # Starting an environment imports torch, which takes more than a second: none of that is seen.
    assert profile.times.max() < 1.0


# ---- before anything is started -----------------------------------------------------------------

ONE = {"models": [{"name": "a"}]}

PLAN = """
scheme = "gc:s=1"
workers = 4
steps = 5
backend = "lambda-local"
[function]
memory_mb = 1024
timeout_s = 10
expected_s = 0.5
arch = "x86_64"
master = "inside"
[[models]]
name = "a"
module = "paper-cnn"
batch_size = 100
"""


def test_a_dry_run_says_what_would_be_sent_and_starts_nothing(
    capsys: Out, in_an_empty_folder: Path
) -> None:
    Path("run.toml").write_text(PLAN)
    assert main(["train", "run.toml", "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [path.name for path in in_an_empty_folder.iterdir()] == ["run.toml"]
    assert (facts["rounds"], facts["jobs"], facts["invocations"]) == (5, 5, 20)
    assert facts["weights_bytes"] == 269_998 * 4
    assert facts["result_bytes"] == 269_999 * 4  # and the loss
    # half of 100 points of 16 bytes each, base64 in JSON
    assert 1068 < facts["request_bytes"] < 1068 + 6500
    assert 269_999 * 4 * 4 / 3 < facts["reply_bytes"] < 269_999 * 4 * 4 / 3 + 6000
    assert facts["request_fits"]
    assert facts["reply_fits"]
    assert not facts["results_stored"]
    assert facts["warm_ups"] == 4
    # 24 * 0.5 s * 1 GB, 24 requests, 20 readings and 5 writings of the weights
    efs = (20 * 0.03 + 5 * 0.06) * 1_079_992 / 2**30
    assert facts["usd"] == pytest.approx(12 * 0.0000166667 + 24 * 0.0000002 + efs)
    assert facts["usd_at_most"] == pytest.approx(240 * 0.0000166667 + 24 * 0.0000002 + efs)
    Path("run.toml").write_text(PLAN.replace("inside", "outside"))
    assert main(["train", "run.toml", "--dry-run", "--json"]) == 0
    outside = json.loads(capsys.readouterr().out)
    replies = 20 * 269_999 * 4 * 4 / 3
    assert outside["likely"]["transfer_out_bytes"] == pytest.approx(replies, abs=20)
    assert outside["usd"] == pytest.approx(facts["usd"] + replies / 2**30 * 0.09)


def test_a_dry_run_speaks_to_people_too(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    assert main(["train", "run.toml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "5 of 4 tasks, for 5 jobs" in shown
    assert "4 invocations before the first round" in shown
    assert "fits" in shown
    assert "check them" in shown


def test_functions_that_are_deployed_are_taken_as_they_are(capsys: Out) -> None:
    made = Deployment(
        stack="seqgc",
        region="us-west-2",
        alias_arn="arn:aws:lambda:us-west-2:123456789012:function:seqgc-Worker-x:live",
        function_url="",
        bucket="a-bucket",
        prefix="runs",
        mount_path="/mnt/seqgc",
        file_system_id="fs-1",
        access_point_id="fsap-1",
        security_group_id="sg-1",
        caller_policy_arn="arn:1",
        store_policy_arn="arn:2",
        architecture="x86_64",
        memory_mb=512,
        timeout_s=20,
    )
    write_deployment(Path("made.toml"), made)
    sizes = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "1", "--module", "mlp"]
    lambdas = ["--backend", "lambda", "--deployment", "made.toml"]
    assert main(["train", *sizes, *lambdas, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["where"] == "s3"
    assert facts["at_most"]["gb_seconds"] == 40.0  # 2 tasks and 2 before, of 20 s, half a GB
    assert (facts["at_most"]["s3_puts"], facts["at_most"]["s3_gets"]) == (1, 2)
    transfer = facts["at_most"]["transfer_out_bytes"] / 2**30 * 0.09  # a master without a mount
    assert transfer > 0
    assert facts["usd_at_most"] == pytest.approx(
        40 * 0.0000166667 + 4 * 0.0000002 + 0.000005 + 2 * 0.0000004 + transfer
    )
    assert main(["train", *sizes, *lambdas, "--mount", "/mnt/x", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["where"] == "directory"
    config = validated({"backend": "lambda", "function": {"deployment": "made.toml"}, **ONE})
    run = "20260101-gc"
    assert store_ref(config, run) == StoreRef(kind="s3", location=f"s3://a-bucket/runs/{run}")


def test_a_plan_is_priced_as_it_is_asked_for(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    flags = ["--memory", "2048", "--arch", "arm64", "--region", "us-west-2", "--seconds", "2"]
    assert main(["cost", "run.toml", *flags, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["memory_mb"], facts["arch"]) == ("plan", 2048, "arm64")
    assert facts["likely"]["gb_seconds"] == 96.0  # 24 of 2 s, 2 GB
    assert facts["likely"]["usd_by_kind"]["functions"] == pytest.approx(96 * 0.0000133334)
    assert main(["cost", "run.toml"]) == 0
    assert "$0.0011" in capsys.readouterr().out


@pytest.mark.parametrize("store", ["", 'store = "auto"'])
def test_what_is_deployed_without_a_mount_is_priced_on_s3(store: str, capsys: Out) -> None:
    text = PLAN.replace("lambda-local", "lambda").replace("[function]", f"[function]\n{store}")
    Path("run.toml").write_text(text)
    assert main(["cost", "run.toml", "--json"]) == 0
    used = json.loads(capsys.readouterr().out)["likely"]
    assert (used["s3_puts"], used["s3_gets"], used["efs_read_bytes"]) == (5, 20, 0)


def test_a_profile_says_how_long_tasks_take(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    Path("seen.csv").write_text("1.0,2.0\n3.0,6.0\n")
    assert main(["cost", "run.toml", "--profile", "seen.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["likely"]["gb_seconds"] == 72.0  # 24 of 3 s
    assert main(["cost", "run.toml", "--profile", "seen.csv", "--seconds", "1"]) == 2
    assert "`seconds` must be left out" in capsys.readouterr().err


def test_results_too_large_for_a_reply_need_a_store(capsys: Out, in_an_empty_folder: Path) -> None:
    sizes = ["--scheme", "m-sgc:B=1,W=3,lam=2", "-n", "4", "--models", "4", "--module", "paper-cnn"]
    lambdas = ["--backend", "lambda-local", "--precision", "float64"]
    assert main(["train", *sizes, *lambdas, "--store", "inline", "--run", "r"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "`function.store` must be a store where a reply exceeds the " in err or (
        "`request` must not exceed the" in err
    )
    assert list(in_an_empty_folder.iterdir()) == []
    assert main(["train", *sizes, *lambdas, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["result_bytes"] == 3 * 269_999 * 8  # W - 1 + B mini-tasks
    assert facts["results_stored"]


@pytest.mark.parametrize("backend", ["lambda-local", "lambda"])
@pytest.mark.parametrize(
    ("flag", "value"), [("--module", "mine.nets:resnet"), ("--data", "mine.data:all")]
)
def test_functions_run_no_code_that_their_image_does_not_have(
    backend: str, flag: str, value: str, capsys: Out, in_an_empty_folder: Path
) -> None:
    assert main(["train", "--backend", backend, flag, value, "--run", "r"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"seqgc: `{flag[2:]}` must be one of ")
    assert "SEQGC_FACTORIES" in err
    assert list(in_an_empty_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--backend", "lambda"], "`deployment` must be a file that `seqgc deploy` wrote"),
        (["--backend", "lambda-local", "--store", "s3"], "`function.store` must be auto"),
        (["--backend", "ray"], "`backend` "),
        (["--transport", "fax"], "`function.transport` "),
        (["--dask-scheduler", "tcp://127.0.0.1:1"], "`dask_scheduler` must be left out"),
        (["--max-usd", "-1"], "`max_usd` "),
        (["--max-usd", "9", "--probe", "2", "--alpha", "1"], "`max_usd` must be left out with "),
    ],
)
def test_what_a_backend_cannot_have_is_refused_in_one_line(
    flags: list[str], rule: str, capsys: Out, in_an_empty_folder: Path
) -> None:
    assert main(["train", *flags, "--run", "r"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"seqgc: {rule}")
    assert err.count("\n") == 1
    assert list(in_an_empty_folder.iterdir()) == []


def test_a_profile_of_functions_has_delays_of_its_own(capsys: Out) -> None:
    flags = ["--backend", "lambda-local", "--delays", "lambda-cnn", "-o", "p.npz"]
    assert main(["profile", *flags]) == 2
    assert "`delays` must be left out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a run", "été", ".hidden", "-", "x" * 300, "../..", "plain"])
def test_every_name_makes_a_run_of_its_own_that_every_store_takes(name: str) -> None:
    first, second = _unique(name), _unique(name)
    assert first != second
    for each in (first, second):
        assert split_s3(f"s3://bucket/runs/{each}") == ("bucket", f"runs/{each}")
        assert len(each) <= 100
    assert _unique("plain").startswith("plain-")


def test_runs_of_one_name_round_alike_although_they_are_told_apart() -> None:
    rounding = {"payload": "float16", "stochastic_rounding": True, "rounding_name": "a run"}
    seeds = []
    for other in ({}, {}, {"rounding_name": "another"}):
        backend, wire = open_backend(run_id=_unique("a run"), **(rounding | other))
        with backend:
            backend.dispatch(0, [Task(round=0, worker=0, attempt=0, items=())])
            seeds.append(wire.asked(0).asked.rounding_seed)
    assert seeds[0] == seeds[1] != seeds[2]

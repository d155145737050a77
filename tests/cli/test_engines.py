"""Runs on functions of this machine and on dask: the same weights, and nothing left."""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pytest
from distributed import LocalCluster

from seqgc.cli import main
from seqgc.ports import Task
from seqgc.profiles import read_profile
from seqgc.stores import DirectoryStore, unique_name
from seqgc.stores.s3 import split_s3
from tests.backends.dask import warm as warm
from tests.backends.lambda_.in_memory import open_backend
from tests.cli.kit import TRAIN, Out, events, weights
from tests.cli.kit import local_weights as local_weights
from tests.cli.refused import refused


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_functions_on_this_machine_train_the_same_weights_as_local_processes(
    capsys: Out,
    in_an_empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    local_weights: np.ndarray,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(in_an_empty_folder))
    scheme = ["--scheme", "m-sgc:B=1,W=2,lam=4", "-n", "8"]
    delays = ["--delays", "lambda-cnn", "--delay-scale", "0.02"]
    functions = ["--backend", "lambda-local", "--environments", "8", "--transport", "curl"]
    assert main([*TRAIN, *scheme, *delays, *functions, "--run", "functions", "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (report["jobs"], report["rounds"]) == (4, 5)
    assert report["stragglers"] > 0
    assert report["failures"] == 0
    np.testing.assert_allclose(weights("functions"), local_weights, rtol=0, atol=1e-8)
    assert list(in_an_empty_folder.glob("seqgc-*")) == []  # what stood for a file system is gone
    chosen = "store: directory (a folder of this machine, in place of EFS)"
    assert said.err.splitlines()[:2] == ["starting 8 workers (lambda-local)", chosen]
    written = tomllib.loads(Path("functions/config.toml").read_text())
    assert written["function"]["store"] == "directory"
    check_the_cost_of_the_run(capsys)


def check_the_cost_of_the_run(capsys: Out) -> None:
    """What `seqgc cost` makes of it, against its own events."""
    assert main(["cost", "functions", "--memory-mb", "1024", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    answered = [event["elapsed_s"] for event in events("functions") if event["event"] == "arrival"]
    assert facts["store"] == "directory"
    assert facts["likely"]["requests"] == 8 * (1 + 5)  # a warm-up each, and five rounds
    assert facts["unanswered"] == 40 - len(answered)
    assert facts["likely"]["gb_seconds"] >= sum(answered)
    # an mlp of the digits has 64 * 32 + 32 + 32 * 10 + 10 parameters or so, of 8 bytes: per task
    assert facts["likely"]["efs_read_bytes"] % 40 == 0
    assert facts["usd"] <= facts["usd_at_most"]
    took = [event["took_s"] for event in events("functions") if event["event"] == "arrival"]
    assert facts["seconds_source"] == "recorded"
    assert facts["seconds_per_task"] == pytest.approx(sum(took) / len(took))
    assert facts["services"][0]["usd"] == facts["usd"]
    assert all(each["usd"] > 0 for each in facts["services"])


def test_one_s_own_machines_cost_nothing(capsys: Out) -> None:
    small = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "1"]
    assert main(["train", *small, "--max-usd", "0", "--run", "r", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 1


def test_dask_trains_the_same_weights_as_local_processes(
    capsys: Out, local_weights: np.ndarray
) -> None:
    where = {"processes": False, "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=2, **where) as cluster:
        dask = ["--backend", "dask", "--dask-scheduler", cluster.scheduler_address, "-n", "3"]
        for scheme, run in ("gc:s=1", "coded"), ("deal:pieces=5", "dealt"):
            assert main([*TRAIN, *dask, "--scheme", scheme, "--run", run, "--json"]) == 0
            report = json.loads(capsys.readouterr().out)
            assert (report["jobs"], report["failures"]) == (4, 0)
            np.testing.assert_allclose(weights(run), local_weights, rtol=0, atol=1e-8)


def test_functions_that_stay_are_dealt_work_as_far_as_the_budget_goes_and_the_rest_on_resuming(
    capsys: Out, local_weights: np.ndarray
) -> None:
    dealt = ["--backend", "lambda-local", "--resident", "--scheme", "deal:pieces=3", "-n", "2"]
    least = re.search(r"at least \$(\S+),", refused(capsys, *TRAIN, *dealt, "--max-usd", "1e-6"))
    assert least is not None
    reserved = float(least[1])  # what two functions may cost that stay as long as they may
    budget = ["--max-usd", f"{reserved + 1e-5:.6f}"]
    assert main([*TRAIN, *dealt, *budget, "--run", "dealt"]) == 3
    err = capsys.readouterr().err
    assert "reserved for the functions that may still run" in err
    assert "continue with: seqgc resume dealt" in err
    assert main(["resume", "dealt", "--max-usd", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["jobs"], report["failures"]) == (4, 0)
    np.testing.assert_allclose(weights("dealt"), local_weights, rtol=0, atol=1e-8)


def test_a_profile_of_functions_that_stay_has_the_time_of_a_message_to_them(capsys: Out) -> None:
    flags = ["--backend", "lambda-local", "--resident", "-n", "1", "--module", "mlp"]
    assert main(["profile", *flags, "--rounds", "1", "--loads", "1", "-o", "p.npz", "--json"]) == 0
    meta = read_profile("p.npz").meta
    assert json.loads(capsys.readouterr().out)["rtt_s"] == meta.rtt_s
    assert meta.rtt_s is not None
    assert meta.rtt_s > 0


# ---- before anything is started -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--backend", "lambda"], "`deployment` must be a file that `seqgc deploy` wrote"),
        (["--backend", "lambda-local", "--store", "s3"], "`function.store` must be auto"),
        (["--backend", "ray"], "`backend` "),
        (["--transport", "fax"], "`function.transport` "),
        (
            ["--transport", "asyncio"],
            "`function.transport` should be 'boto3', 'http' or 'curl'; got 'asyncio' (use curl",
        ),
        (["--dask-scheduler", "tcp://127.0.0.1:1"], "`dask_scheduler` must be left out"),
        (["--backend", "dask", "--dask-scheduler", "here"], "`dask_scheduler` must be the address"),
        (["--max-usd", "-1"], "`max_usd` "),
        (["--max-usd", "9", "--probe", "2", "--alpha", "1"], "`max_usd` must be left out with "),
    ],
)
def test_what_a_backend_cannot_have_is_refused_in_one_line(
    flags: list[str], rule: str, capsys: Out
) -> None:
    assert refused(capsys, "train", *flags, "--run", "r").startswith(f"seqgc: {rule}")


def test_a_profile_of_functions_has_delays_of_its_own(capsys: Out) -> None:
    flags = ["--backend", "lambda-local", "--delays", "lambda-cnn", "-o", "p.npz"]
    assert "`delays` must be left out" in refused(capsys, "profile", *flags)


@pytest.mark.parametrize("name", ["a run", "été", ".hidden", "-", "x" * 300, "../..", "plain"])
def test_every_name_makes_a_run_of_its_own_that_every_store_takes(
    name: str, tmp_path: Path
) -> None:
    first, second = unique_name(name), unique_name(name)
    assert first != second
    for each in (first, second):
        assert split_s3(f"s3://bucket/runs/{each}") == ("bucket", f"runs/{each}")
        assert len(each) <= 100
        DirectoryStore(tmp_path / each).publish("model", 0, np.zeros(1))
    assert unique_name("plain").startswith("plain-")


def test_runs_of_one_name_round_alike_although_they_are_told_apart() -> None:
    rounding = {"payload": "float16", "stochastic_rounding": True, "rounding_name": "a run"}
    seeds = []
    for other in ({}, {}, {"rounding_name": "another"}):
        backend, wire = open_backend(run_id=unique_name("a run"), **(rounding | other))
        with backend:
            backend.dispatch(0, [Task(round=0, worker=0, attempt=0, items=())])
            seeds.append(wire.asked(0).request.rounding_seed)
    assert seeds[0] == seeds[1] != seeds[2]

"""What a run would send and cost: ``train --dry-run`` and ``cost``."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import registered_model, workers
from seqgc.cli import main
from seqgc.training import TrainingPlan, train
from tests.cli.kit import Out, deploy
from tests.cli.refused import refused
from tests.training.test_adaptive import replayed


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
# Five models' weights in one request.
LARGE = "jobs_per_round = 5\n" + PLAN.replace("[function]", '[function]\nstore = "inline"')
LARGE += "".join(PLAN[PLAN.index("[[models]]") :].replace('"a"', f'"{i}"') for i in range(4))


def test_a_dry_run_says_what_would_be_sent_and_starts_nothing(
    capsys: Out, in_an_empty_folder: Path
) -> None:
    Path("run.toml").write_text(PLAN)
    assert main(["train", "run.toml", "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [path.name for path in in_an_empty_folder.iterdir()] == ["run.toml"]
    assert (facts["rounds"], facts["jobs"], facts["invocations"]) == (5, 5, 20)
    assert facts["weights_bytes"] == 269_998 * 4
    assert facts["result_bytes"] == 270_015 * 4  # and what is behind it
    # half of 100 points of 16 bytes each, base64 in JSON
    assert 1068 < facts["request_bytes"] < 1068 + 7000
    assert 270_015 * 4 * 4 / 3 < facts["reply_bytes"] < 270_015 * 4 * 4 / 3 + 6000
    assert facts["request_fits"]
    assert facts["reply_fits"]
    assert not facts["results_stored"]
    assert facts["warm_ups"] == 4
    # 20 * 0.5 s * 1 GB, 4 starts of 2.5 s, 24 requests, 20 readings and 5 writings of the weights
    efs = (20 * 0.03 + 5 * 0.06) * 1_079_992 / 2**30
    assert facts["usd"] == pytest.approx(20 * 0.0000166667 + 24 * 0.0000002 + efs)
    # each invocation a start of 10 s, and 10 s to the time-out
    assert facts["usd_at_most"] == pytest.approx(480 * 0.0000166667 + 24 * 0.0000002 + efs)
    Path("run.toml").write_text(PLAN.replace("inside", "outside"))
    assert main(["train", "run.toml", "--dry-run", "--json"]) == 0
    outside = json.loads(capsys.readouterr().out)
    replies = 20 * 270_015 * 4 * 4 / 3
    assert outside["likely"]["transfer_out_bytes"] == pytest.approx(replies, abs=20)
    assert outside["usd"] == pytest.approx(facts["usd"] + replies / 2**30 * 0.09)


@pytest.mark.parametrize(
    ("backend", "store"),
    [("local", "inline"), ("dask", "inline"), ("lambda", "inline"), ("lambda-local", "directory")],
)
def test_a_dry_run_and_the_cost_of_its_plan_agree_on_the_store(
    backend: str, store: str, capsys: Out
) -> None:
    Path("run.toml").write_text(PLAN.replace("lambda-local", backend))
    assert main(["train", "run.toml", "--dry-run", "--json"]) == 0
    sent = json.loads(capsys.readouterr().out)
    assert main(["cost", "run.toml", "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert (sent["where"], sent["why"]) == (priced["store"], priced["why"])
    assert sent["where"] == store


def test_a_run_of_python_has_a_cost_as_well(capsys: Out) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    plan = TrainingPlan(
        models=[registered_model("net", module="mlp", optimizer=sgd)], scheme="gc:s=1", steps=3
    )
    train(plan, workers.custom(2, replayed(np.ones((3, 2)))), run="run")
    assert main(["cost", "run", "--memory-mb", "1024", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["memory_mb"], facts["store"]) == ("run", 1024, "inline")
    assert facts["at_most"]["requests"] == 2 + 3 * 2  # warm-ups, and three rounds of two tasks
    assert main(["cost", "run"]) == 0
    assert "config.toml of the run has no settings" in " ".join(capsys.readouterr().out.split())
    for name, value in (("expected-s", "2"), ("profile", "seen.csv")):
        assert main(["cost", "run", f"--{name}", value]) == 2
        assert f"`{name.replace('-', '_')}`" in capsys.readouterr().err


def test_a_dry_run_speaks_to_people_too(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    assert main(["train", "run.toml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "5 of 4 tasks, for 5 jobs" in shown
    assert "4 invocations before the first round" in shown
    assert "fits" in shown
    assert "directory (a folder of this machine, in place of EFS)" in shown
    assert "billed (INIT): 2.5 s each are expected, at most 10 s" in shown
    assert "AWS's price list was not read" in " ".join(shown.split())


def test_what_lambda_would_cost_is_known_before_there_is_a_stack_or_anybody_to_pay(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    Path("run.toml").write_text(PLAN)
    local = ["train", "run.toml", "--store", "directory", "--mount", "mnt", "--dry-run"]
    assert main([*local, "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    cloud = [*local, "--backend", "lambda"]
    assert main([*cloud, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts.pop("deployed"), here.pop("deployed")) == (False, True)
    assert (facts.pop("backend"), here.pop("backend")) == ("lambda", "lambda-local")
    assert facts == here  # the same functions, at the same prices
    assert main([*cloud, "--max-usd", "0.000001"]) == 2
    capsys.readouterr()
    assert main(cloud) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not deployed yet; assumed: 1024 MB, 10 s, x86_64, us-west-2" in said
    resident = ["--resident", "--scheme", "deal:pieces=4"]
    assert main([*cloud, *resident, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["usd_at_most"] > 0
    # A file that is named must be there, and a run is not begun.
    assert main([*cloud, "--deployment", "mine.toml"]) == 2
    assert main([*cloud[:-3], "--backend", "lambda"]) == 2
    assert [path.name for path in Path().iterdir()] == ["run.toml"]


@pytest.mark.parametrize("verb", [["cost"], ["train", "--dry-run"]])
@pytest.mark.parametrize("backend", ["lambda", "lambda-local"])
def test_what_functions_cannot_run_has_no_price(capsys: Out, verb: list[str], backend: str) -> None:
    dealt = PLAN.replace("gc:s=1", "deal:pieces=4").replace("lambda-local", backend)
    Path("run.toml").write_text(dealt)
    assert "resident functions (--resident)" in refused(capsys, *verb, "run.toml")
    Path("run.toml").write_text(dealt.replace("[function]", "[function]\nresident = true"))
    assert main([*verb, "run.toml"]) == 0


def test_functions_that_are_deployed_are_taken_as_they_are(capsys: Out) -> None:
    deploy()
    sizes = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "1", "--module", "mlp"]
    dry_run = ["train", *sizes, "--backend", "lambda", "--dry-run", "--json"]
    assert main([*dry_run, "--store", "s3"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["where"], facts["why"]) == ("s3", "as configured")
    # 2 tasks and 2 before, half a GB, each of 10 s for a start and of 30 s to the time-out
    assert facts["at_most"]["gb_seconds"] == 80.0
    assert (facts["at_most"]["s3_puts"], facts["at_most"]["s3_gets"]) == (1, 2)
    transfer = facts["at_most"]["transfer_out_bytes"] / 2**30 * 0.09  # a master without a mount
    assert transfer > 0
    assert facts["usd_at_most"] == pytest.approx(
        80 * 0.0000166667 + 4 * 0.0000002 + 0.000005 + 2 * 0.0000004 + transfer
    )
    for reach in ([], ["--mount", "/mnt/x"]):
        assert main([*dry_run, *reach]) == 0
        assert json.loads(capsys.readouterr().out)["where"] == "inline"  # it is small


def test_a_budget_that_no_round_fits_is_refused_before_the_run(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    dry_run = ["train", "run.toml", "--dry-run", "--json", "--max-usd"]
    least = "for the warm-up and a round of cold starts that run to the time-out; got 0.001"
    # eight of 20 s at 1 GB, eight requests, four readings and a writing of the weights
    usd = 160 * 0.0000166667 + 8 * 0.0000002 + (4 * 0.03 + 0.06) * 1_079_992 / 2**30
    said = refused(capsys, *dry_run, "0.001")
    assert said == f"seqgc: `max_usd` must be at least ${usd:.6f}, {least}\n"
    assert main([*dry_run, f"{usd + 1e-6:.6f}"]) == 0
    assert json.loads(capsys.readouterr().out)["usd_at_most"] > 2 * usd  # which is not reserved
    assert main(["train", "run.toml", "--dry-run", "--max-usd", "0.01"]) == 0
    assert "--max-usd stops a run earlier" in " ".join(capsys.readouterr().out.split())


def test_a_plan_is_priced_as_it_is_asked_for(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    flags = ["--memory-mb", "2048", "--arch", "arm64", "--region", "us-west-2", "--expected-s", "2"]
    assert main(["cost", "run.toml", *flags, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["kind"], facts["memory_mb"], facts["arch"]) == ("plan", 2048, "arm64")
    assert facts["likely"]["gb_seconds"] == 100.0  # 20 of 2 s, 4 starts of 2.5 s, 2 GB
    assert facts["likely"]["usd_by_kind"]["functions"] == pytest.approx(100 * 0.0000133334)
    assert main(["cost", "run.toml"]) == 0
    shown = capsys.readouterr().out
    assert "$0.0012" in shown
    assert "directory (a folder" in shown


def test_starts_from_a_snapshot_are_priced_and_exclude_a_file_system(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    flags = ["--memory-mb", "2048", "--region", "us-west-2", "--expected-s", "2", "--snapstart"]
    assert main(["cost", "run.toml", *flags, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["likely"]["gb_seconds"] == pytest.approx(2 * (20 * 2 + 4 * 0.05))
    assert facts["likely"]["restored_gb"] == 8.0
    assert facts["likely"]["usd_by_kind"]["restores"] == pytest.approx(8 * 0.0001397998)
    assert facts["snapshot_usd_a_day"] == pytest.approx(2 * 86_400 * 0.0000015046)
    assert main(["cost", "run.toml", *flags]) == 0
    shown = capsys.readouterr().out
    assert "8.0 GB" in shown
    assert "$0.26 a day" in shown
    dry_run = ["train", "run.toml", "--dry-run", "--backend", "lambda", "--snapstart"]
    for needing in (["--resident"], ["--mount", "x"]):
        said = refused(capsys, *dry_run, *needing)
        assert said.startswith("seqgc: `function.snapstart` must be false with `")
    said = refused(capsys, *dry_run, "--store", "directory")
    assert said.startswith("seqgc: `function.store` must be another store with `snapstart`")


def test_a_run_on_this_machine_from_a_snapshot_is_priced_and_resumed(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    line = ["--steps", "1", "--snapstart", "--scheme", "uncoded", "-n", "2", "--models", "1"]
    assert main(["train", "run.toml", *line, "--run", "r", "--json"]) == 0
    capsys.readouterr()
    assert main(["cost", "r", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["store"], facts["likely"]["restored_gb"]) == ("directory", 2.0)  # 2 of 1 GB
    assert main(["resume", "r"]) == 0  # its settings, which name the store, are still valid


@pytest.mark.parametrize(
    ("more", "puts", "gets", "store"),
    [
        ("", 0, 0, "inline"),  # 1.1 MB of weights fit a request
        ('store = "s3"', 5, 20, "s3"),
        ("", 5, 256 * 5, "s3"),  # but not 256 times
    ],
)
def test_what_is_deployed_is_priced_by_way_of_its_store(
    more: str, puts: int, gets: int, store: str, capsys: Out
) -> None:
    text = PLAN.replace("lambda-local", "lambda").replace("[function]", f"[function]\n{more}")
    Path("run.toml").write_text(text.replace("workers = 4", f"workers = {max(4, gets // 5)}"))
    assert main(["cost", "run.toml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["store"] == store
    used = facts["likely"]
    assert (used["s3_puts"], used["s3_gets"], used["efs_read_bytes"]) == (puts, gets, 0)


@pytest.mark.parametrize(
    ("scheme", "more", "puts", "versions"),
    [
        ("ssp:slack=1", "", 20, 4),  # each part of a batch may be sent with other weights,
        ("ssp:slack=1", 'refresh = "needed"', 5, 1),  # unless those of before will do
        ("ssp:slack=1", 'apply = "clock"', 5, 1),  # or change once a batch
        ("bsp", "", 5, 1),
        ("asp-dds:M=2", "", 20, 4),
    ],
)
def test_weights_that_are_published_for_each_part_are_priced(
    scheme: str, more: str, puts: int, versions: int, capsys: Out
) -> None:
    text = (
        PLAN.replace("gc:s=1", scheme)
        .replace("lambda-local", "lambda")
        .replace("[function]", f'{more}\n[function]\nstore = "s3"')
    )
    Path("run.toml").write_text(text + 'optimizer = "sgd"\n')
    assert main(["cost", "run.toml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["likely"]["s3_puts"] == puts
    assert main(["train", "run.toml", "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (f"in up to {versions} versions" in shown) == (versions > 1)
    assert "5 of 4 tasks, for 5 jobs" in shown


def test_a_part_in_pieces_changes_the_weights_once(capsys: Out) -> None:
    options = ["--scheme", "flexrr:slack=1", "--workers", "4", "--optimizer", "sgd"]
    assert main(["train", *options, "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "of 80 pieces" in shown
    assert "in up to 4 versions" in shown


def test_a_dry_run_counts_the_bytes_that_pieces_return(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN + 'optimizer = "sgd"\n')
    for scheme, tasks in ("gc:s=1", 4), ("deal:pieces=8", 8), ("flexrr:slack=1", 4 * 20):
        line = ["train", "run.toml", "--dry-run", "--backend", "local", "--scheme", scheme]
        assert main([*line, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["step_result_bytes"] == tasks * 270_015 * 4
        assert facts["invocations"] == 5 * tasks
        assert main(line) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"{tasks * 1_080_060:,} bytes ({tasks} x 1,080,060)" in shown


def test_what_does_not_go_with_parts_is_refused_before_anything_starts(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN.replace("gc:s=1", "ssp:slack=1"))
    line = ["train", "run.toml", "--dry-run"]
    said = refused(capsys, *line)
    assert "`optimizer` must be plain SGD" in said
    assert "got 'Adam'" in said
    assert "--apply clock)" in said
    assert main([*line, "--apply", "clock"]) == 0
    capsys.readouterr()
    said = refused(capsys, *line, "--optimizer", "sgd", "--retune", "3", "--alpha", "1")
    assert "`scheme` must have rounds for --probe and --retune; got 'ssp:slack=1'" in said
    assert (
        "`aware` must be left out with gc:s=1, whose gradients are applied as a whole"
        in refused(capsys, *line, "--scheme", "gc:s=1", "--staleness-aware")
    )
    assert (
        "`apply` must be left out with lb-bsp, whose gradients are applied as a whole"
        in refused(capsys, *line, "--scheme", "lb-bsp", "--apply", "clock")
    )
    assert "`apply` must be clock" in refused(
        capsys, *line, "--apply", "update", "--refresh", "late"
    )


def test_a_profile_says_how_long_tasks_take(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    Path("seen.csv").write_text("1.0,2.0\n3.0,6.0\n")
    assert main(["cost", "run.toml", "--profile", "seen.csv", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["likely"]["gb_seconds"] == 70.0
    )  # 20 of 3 s, and 4 starts
    Path("loads.csv").write_text('# seqgc-meta: {"base_load": 0.25, "alpha": 4.0}\n1,2\n3,6\n')
    assert main(["cost", "run.toml", "--profile", "loads.csv", "--json"]) == 0
    # 20 of 3 s + 4 s * (0.5 - 0.25), and 4 starts
    assert json.loads(capsys.readouterr().out)["likely"]["gb_seconds"] == 90.0
    both = ["--profile", "seen.csv", "--expected-s", "1"]
    assert "`expected_s` must be left out" in refused(capsys, "cost", "run.toml", *both)


def test_a_task_of_unknown_length_is_measured(capsys: Out) -> None:
    plan = PLAN.replace("expected_s = 0.5\n", "").replace("paper-cnn", "mlp")
    Path("run.toml").write_text(plan)
    measured = []
    for memory_mb in (1769, 512):
        for verb in (["cost"], ["train", "--dry-run"]):
            flags = ["run.toml", "--json", "--memory-mb", str(memory_mb)]
            assert main([*verb, *flags]) == 0
            facts = json.loads(capsys.readouterr().out)
            assert facts["seconds_source"] == "measured"
            assert 0 < facts["usd"] < facts["usd_at_most"]
            start_s, gb = 4 * 2.5, memory_mb / 1024
            spent = gb * (20 * facts["seconds_per_task"] + start_s)
            assert facts["likely"]["gb_seconds"] == pytest.approx(spent, abs=24 * 0.001 * gb)
        measured.append(facts["seconds_about"])
    assert "has" not in measured[0]
    assert "a function of 512 MB has 0.29 of one" in measured[1]
    assert main(["cost", "run.toml"]) == 0
    assert "s (measured: " in " ".join(capsys.readouterr().out.split())


def test_a_model_that_cannot_be_measured_leaves_the_bound(capsys: Out) -> None:
    plan = PLAN.replace("expected_s = 0.5\n", "")  # its images are too small for this network
    Path("run.toml").write_text(plan)
    assert main(["cost", "run.toml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["usd"], facts["services"], facts["seconds_source"]) == (None, [], "unknown")
    assert facts["usd_at_most"] > 0
    assert main(["cost", "run.toml"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "was not measured: `module` must compute a part of a batch" in shown


def test_the_cost_is_compared_with_that_of_other_services(capsys: Out) -> None:
    Path("run.toml").write_text(PLAN)
    assert main(["cost", "run.toml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    services = {each["service"]: each for each in facts["services"]}
    assert list(services) == ["functions", "resident", "microvms", "managed", "machine"]
    assert services["functions"]["usd"] == pytest.approx(facts["usd"])
    # 4 workers of 0.58 vCPU for a minute
    assert services["machine"]["usd"] == pytest.approx(4 * 0.044625 / 60)
    for name, price in facts["prices"].items():
        assert price["usd"] is not None, name
        assert price["as_of"] >= "2026"
        assert "table" in price["source"]
    assert facts["prices"]["ec2_x86_64_vcpu_hour"]["usd"] == 0.044625
    assert facts["seconds_source"] == "expected_s"
    resident = PLAN.replace("[function]", "[function]\nresident = true")
    Path("run.toml").write_text(resident)
    assert main(["cost", "run.toml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["usd"] == pytest.approx(facts["services"][1]["usd"])
    assert [each["usd"] for each in facts["services"]] == pytest.approx(
        [each["usd"] for each in services.values()]
    )
    assert main(["train", "run.toml", "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "as one machine $0.0030 (1 x c7i.xlarge for 60 s, with the master)" in shown


@pytest.mark.parametrize("scheme", ["deal:pieces=8", "flexrr:slack=1", "flexrr:slack=1,pieces=5"])
def test_a_piece_takes_its_share_of_the_time_in_a_profile(scheme: str, capsys: Out) -> None:
    stays = PLAN.replace("gc:s=1", scheme).replace("timeout_s = 10", "timeout_s = 100")
    stays = stays.replace("[function]", "[function]\nresident = true") + 'optimizer = "sgd"\n'
    Path("run.toml").write_text(stays)
    for meta, seconds in (
        ("", 5 * 3),  # the mean answer is that of a worker's part, in each of five steps
        ('# seqgc-meta: {"base_load": 0.25, "alpha": 4.0}\n', 5 * 4 / 4),  # a quarter of a batch
    ):
        Path("seen.csv").write_text(f"{meta}1.0,2.0\n3.0,6.0\n")
        assert main(["cost", "run.toml", "--profile", "seen.csv", "--json"]) == 0
        likely = json.loads(capsys.readouterr().out)["likely"]
        assert likely["gb_seconds"] == pytest.approx(4 * (seconds + 2.5), abs=0.01)  # and a start


def test_results_too_large_for_a_reply_need_a_store(capsys: Out) -> None:
    sizes = ["--scheme", "m-sgc:B=1,W=3,lam=2", "-n", "4", "--models", "4", "--module", "paper-cnn"]
    lambdas = ["--backend", "lambda-local", "--precision", "float64"]
    inline = ["--store", "inline", "--run", "r"]
    assert "`request` must not exceed" in refused(capsys, "train", *sizes, *lambdas, *inline)
    assert main(["train", *sizes, *lambdas, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["result_bytes"] == 3 * 270_015 * 8  # W - 1 + B mini-tasks
    assert facts["results_stored"]


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["nowhere.toml"], "`config` must be a file; got 'nowhere.toml' (No such file"),
        (
            ["."],
            "`run` must be the folder of a run (config.toml: No such file or directory); got '.'",
        ),
        (["run.toml", "--memory-mb", "64"], "`function.memory_mb` should be greater than"),
        (["run.toml", "--arch", "arm"], "`function.arch` should be 'arm64' or 'x86_64'"),
        (["run.toml", "--region", "moon-1"], "`region` must be one of us-east-1"),
        (["run.toml", "--function-timeout-s", "901"], "`function.timeout_s` should be less than"),
        (["run.toml", "--expected-s", "-1"], "`function.expected_s` should be greater than"),
        (["run.toml", "--profile", "no.npz"], "no.npz"),
        (["large.toml"], "`request` must not exceed the 6291456 bytes that Lambda accepts"),
        (["large.toml", "--colour"], "No such option: --colour"),
    ],
)
def test_what_cannot_be_priced_is_refused_in_one_line(
    flags: list[str], rule: str, capsys: Out
) -> None:
    Path("run.toml").write_text(PLAN)
    Path("large.toml").write_text(LARGE)
    assert refused(capsys, "cost", *flags).startswith(f"seqgc: {rule}")

"""``seqgc deploy`` as a user types it."""

from __future__ import annotations

import json
import shlex
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.deploy import deploy, put_data
from tests.deploy.test_deploy import Sam, parameters_of, tags_of

Out = pytest.CaptureFixture[str]


def test_outputs_are_printed_and_written_where_train_looks(
    account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setattr("seqgc.cli._deploy.open_session", lambda *, region: account)  # noqa: ARG005
    with_stand_in = partial(deploy, run=Sam())
    monkeypatch.setattr("seqgc.cli._deploy.deploy_stack", with_stand_in)
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "--stack", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    written = tomllib.loads((tmp_path / "seqgc-lambda.toml").read_text())
    assert shown.pop("file") == "seqgc-lambda.toml"
    assert written.pop("schema") == 1
    assert shown == written
    assert written["stack"] == "mine"
    assert written["alias_arn"].endswith(":live")


def test_a_dry_run_prints_commands_that_can_be_pasted_and_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setattr("seqgc.cli._deploy.open_session", None)  # not to be called
    monkeypatch.chdir(tmp_path)
    line = ["deploy", "--dry-run", "--region", "eu-north-1", "--memory-mb", "1769"]
    line += ["--tag", "team=ml", "--tag", "stage=test", "--no-monitoring"]
    assert main(line) == 0
    build, deployed = map(shlex.split, capsys.readouterr().out.splitlines())
    assert build[:3] == ["sam", "build", "ImageWorker"]
    assert deployed[:2] == ["sam", "deploy"]
    assert parameters_of(deployed) == parameters_of(build)
    assert parameters_of(deployed)["MemoryMb"] == "1769"
    assert parameters_of(deployed)["Monitoring"] == "no"
    assert tags_of(deployed) == {"team": "ml", "stage": "test"}
    assert deployed[deployed.index("--region") + 1] == "eu-north-1"
    assert list(tmp_path.iterdir()) == []
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commands"] == [build, deployed]


def test_a_plan_says_whether_functions_need_a_vpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["deploy", "--dry-run", "--plan", "run.toml", "--package", "zip"]
    base = 'backend = "lambda"\nworkers = 2\n[[models]]\nname = "a"\nmodule = "mlp"\n[function]\n'
    for setting, vpc in (
        ("", "no"),
        ("resident = true\n", "yes"),
        ('store = "directory"\n', "yes"),
    ):
        Path("run.toml").write_text(base + setting)
        assert main(line) == 0
        shown = capsys.readouterr()
        _, deployed = map(shlex.split, shown.out.splitlines())
        assert parameters_of(deployed)["Vpc"] == vpc
        assert parameters_of(deployed)["S3PrefixListId"] == ("PREFIX-LIST" if setting else "")
        assert "run.toml" in shown.err.splitlines()[-1]
    assert main([*line, "--no-vpc"]) == 2
    assert "must have a file system for `store` in run.toml" in capsys.readouterr().err


def test_data_that_exceed_the_memory_of_a_function_need_a_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQGC_DATA", str(tmp_path / "data"))
    x = np.zeros((1 << 16, 1, 16, 16), dtype=np.float32)  # 64 MiB
    np.savez("large.npz", x=x, y=np.zeros(1 << 16, dtype=np.int64))
    put_data("large", Path("large.npz"), tmp_path / "data")
    Path("wide_nets.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = '[[models]]\nname = "a"\nmodule = "wide_nets:net"\ndata = "large"\n'
    Path("run.toml").write_text(f'scheme = "uncoded"\nworkers = 2\n{model}')
    for memory_mb, says in (
        ("256", "a VPC with a file system: needed for the data of run.toml, which exceed 256 MB"),
        ("1024", "no VPC: weights of run.toml go in requests (0.0"),
    ):
        line = ["deploy", "--dry-run", "--plan", "run.toml", "--memory-mb", memory_mb]
        assert main(line) == 0
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--memory-mb", "1"], "`memory_mb` must be an integer >= 256 and <= 10240; got 1"),
        (["--template", "none.yaml"], "`template` must be a SAM template"),
        (["--vpc-id", "vpc-1", "--subnets", "subnet-1"], "`subnets` must be two subnets of"),
        (["--output", "no/such/folder.toml"], "`output` must be in an existing folder"),
        (["--output", "."], "`output` must be a file, not a folder"),
        (
            ["--output", "x" * 300],
            "`output` must be a file that can be written (File name too long)",
        ),
        (["--template", "x" * 300], "`template` must be a SAM template"),
        (["--requirements", "x" * 300], "`requirements` must be a file"),
        (["--include", "x" * 300], "`include` must be an existing file"),
        (["--dry-run", "--context", "x" * 300], "`context` must be a new or an empty folder"),
        (["--dry-run", "--context", "loop"], "`context` must be a new or an empty folder"),
        (["--output", "loop/x"], "`output` must be in an existing folder"),
        (["--include", "links.bin"], "`include` must not look like a secret"),
        (["--tag", "team"], "`tag` must be KEY=VALUE of letters"),
        (["--tag", "aws:x=1"], "`tag` must be KEY=VALUE of letters"),
        (["--tag", "a=1", "--tag", "a=2"], "`tag` must be KEY=VALUE of letters"),
        (["--alarm-topic-arn", "arn:1", "--no-monitoring"], "`alarm_topic_arn` must be left out"),
        (["--vpc", "--snapstart"], "`snapstart` must be left out with a file system"),
        (["--plan", "none.toml"], "`config`"),
        (["--region", "eu central"], "`region` must be the name of an AWS region"),
    ],
)
def test_a_wrong_parameter_is_one_line_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out, given: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("links.bin").write_bytes(b"https://\xff\xfe:word@host")  # no text, and a password
    assert main(["deploy", *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"seqgc: {says}")


def test_without_sam_one_line_names_the_remedy(
    account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setattr("seqgc.cli._deploy.open_session", lambda *, region: account)  # noqa: ARG005
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["deploy"]) == 1
    _, line = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `sam` is not on the PATH (pip install aws-sam-cli")
    assert list(tmp_path.iterdir()) == []

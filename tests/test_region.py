"""`AWS_REGION`, which botocore does not read, holds wherever no region is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqgc.backends.lambda_ import Boto3Transport
from seqgc.cli import main
from seqgc.deploy import open_session
from seqgc.workers import FunctionSettings
from tests.deploy.kit import TEMPLATE

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_LAMBDA"):
        monkeypatch.delenv(name, raising=False)
    configured = tmp_path / "config"
    configured.write_text("[default]\nregion = eu-west-3\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(configured))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    monkeypatch.setenv("AWS_REGION", "us-west-2")


def regions(capsys: Out) -> list[str]:
    """What each place takes where no region is named."""
    transport = Boto3Transport("f")
    transport.close()
    assert main(["deploy", "--template", str(TEMPLATE), "--dry-run", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["commands"][0]
    return [
        open_session().region_name,
        transport._client.meta.region_name,
        FunctionSettings().region,
        command[command.index("--region") + 1],
    ]


def test_the_environment_says_the_region(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    assert regions(capsys) == ["us-west-2"] * 4
    assert open_session(region="eu-north-1").region_name == "eu-north-1"
    monkeypatch.delenv("AWS_REGION")
    assert regions(capsys) == ["eu-west-2"] * 4
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert regions(capsys) == ["eu-west-3", "eu-west-3", "us-east-1", "REGION"]


def test_a_run_is_priced_and_run_where_its_region_is(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = 'scheme = "uncoded"\nworkers = 2\nsteps = 1\n[[models]]\nname = "a"\nmodule = "mlp"\n'
    Path("run.toml").write_text(plan)
    for words, expected in ([], "us-west-2"), (["--region", "us-east-2"], "us-east-2"):
        assert main(["cost", "run.toml", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["region"] == expected

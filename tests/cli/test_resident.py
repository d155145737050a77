"""``--resident``: where it is refused, and what it says that it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqgc.cli import main
from seqgc.deploy import Deployment, write_deployment
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]
ARN = "arn:aws:lambda:us-east-1:123456789012:function:f:live"
BAD = {
    "train --resident": "`function.resident` must be left out with backend local",
    "train --resident --backend dask": "must be left out with backend dask",
    "train --resident --backend lambda": "needs a master in the VPC and security group of",
    "train --resident --backend lambda --master outside": "(run it there, with --mount or --mas",
    "train --resident --backend lambda-local --function-timeout-s 5": "`limit_s` must be longer",
    "train --resident --backend lambda-local --master-address 0.0.0.0": "must be left out",
    "profile --resident --backend lambda-local --master-address 10.0.0.7 -o p.npz": "be left out",
    "train --resident --backend lambda-local --dry-run --max-usd 0.01": (
        "`max_usd` must be at least $0.0"
    ),
}


@pytest.fixture(autouse=True)
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty = dict.fromkeys(("caller_policy_arn", "store_policy_arn"), "")
    names = dict.fromkeys(("stack", "bucket", "prefix", "file_system_id", "access_point_id"), "x")
    found: dict[str, Any] = empty | names
    deployment = Deployment(
        **found,
        region="us-east-1",
        alias_arn=ARN,
        reaches_s3=True,
        mount_path="/mnt/seqgc",
        security_group_id="sg-1",
        architecture="arm64",
        memory_mb=2560,
        timeout_s=900,
    )
    write_deployment(Path("seqgc-lambda.toml"), deployment)


@pytest.mark.parametrize("line", BAD)
def test_where_nobody_could_call_it_is_refused_with_the_remedy(line: str, capsys: Out) -> None:
    assert BAD[line] in refused(capsys, *line.split())


def test_a_doctor_refuses_a_bad_address_wherever_it_is(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("seqgc-lambda.toml").unlink()
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    said = refused(capsys, "doctor", "--resident", "--master-address", "nonsense")
    assert "`master_address` must be one IP address" in said
    said = refused(capsys, "doctor", "--master-address", "10.0.0.7")
    assert "`master_address` must be used with --resident; got '10.0.0.7'" in said


def test_a_dry_run_says_what_functions_that_stay_would_cost(capsys: Out) -> None:
    line = "train --resident --backend lambda --master-address 10.0.0.5 --store s3 --models 1"
    line += " --expected-s 2 --steps 20 -n 4 --dry-run --json"
    assert main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warm_ups"] == 0
    assert found["results_stored"] is False
    # 20 rounds of 2 s, and a start of 2.5 s, of each of four functions of 2.5 GB
    assert found["likely"]["gb_seconds"] == pytest.approx(4 * 42.5 * 2.5)
    assert found["likely"]["requests"] == 4

"""``--backend lambda`` from end to end; the service of this machine stands for AWS.

Everything else is as it would be: a deployment's file, credentials and endpoint from botocore's own
variables, and a folder that is mounted on both sides. AWS's own is that signatures are checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from seqgc.backends.lambda_ import Target
from seqgc.backends.local_lambda import LocalLambda
from seqgc.cli import main
from seqgc.deploy import Deployment, write_deployment
from seqgc.errors import ParameterError
from seqgc.profiles import read_profile

Out = pytest.CaptureFixture[str]

HANDLER = "lambda_handlers.gradient_worker.handler.handler"
REGION = "us-west-2"
SIZES = ["--scheme", "gc-rep:s=1", "-n", "4", "--models", "2", "--steps", "2", "--batch-size", "64"]
SGD = ["--module", "mlp", "--optimizer", "sgd", "--lr", "0.05", "--precision", "float64"]
LAMBDA = ["--backend", "lambda", "--mount", "shared"]
TRAIN = ["train", *SIZES, *SGD]
PROFILE = ["profile", "-n", "2", "--rounds", "2", "--loads", "0,1", "--module", "mlp"]
VARIABLES = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_LAMBDA")


@pytest.fixture(autouse=True)
def a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Whoever has deployed the functions, in an empty folder but for what `seqgc deploy` wrote."""
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:9")  # nobody answers there
    Path("shared").mkdir()
    deploy("seqgc-worker", url="")
    return tmp_path


def deploy(function_name: str, *, url: str) -> None:
    made = Deployment(
        stack="seqgc",
        region=REGION,
        alias_arn=f"arn:aws:lambda:{REGION}:123456789012:function:{function_name}:live",
        function_url=url,
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
        timeout_s=30,
    )
    write_deployment(Path("seqgc-lambda.toml"), made)


@pytest.fixture
def aws(a_user: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLambda]:
    factories = "seqgc.train.factories,sklearn.datasets"
    with LocalLambda(
        HANDLER,
        concurrency=16,
        timeout_s=30.0,
        mount=a_user / "shared",
        environment={"SEQGC_FACTORIES": factories},
        region=REGION,
    ) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", service.endpoint_url)
        yield service


def weights(run: str) -> np.ndarray:
    files = sorted(Path(run, "checkpoints").iterdir())
    tensors = [load_file(file) for file in files]
    return np.concatenate([np.ravel(t[name]) for t in tensors for name in sorted(t)])


def refusal(capsys: Out) -> str:
    """Return the one line that was said."""
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def untouched(folder: Path) -> bool:
    return sorted(p.name for p in folder.rglob("*")) == ["seqgc-lambda.toml", "shared"]


def test_deployed_functions_train_the_same_weights_by_every_transport(
    aws: LocalLambda, capsys: Out
) -> None:
    assert main([*TRAIN, "--run", "local"]) == 0
    for transport, url in [("boto3", ""), ("asyncio", ""), ("http", ""), ("http", "theirs")]:
        deploy(aws.function_name, url=url and aws.function_url)
        run, before = transport + url, aws.statistics().requests
        capsys.readouterr()
        assert main([*TRAIN, *LAMBDA, "--transport", transport, "--run", run, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["jobs"], report["failures"]) == (4, 0)
        np.testing.assert_allclose(weights(run), weights("local"), rtol=0, atol=1e-8)
        assert aws.statistics().requests > before  # it was not somebody else who answered
    assert list(Path("shared").iterdir()) == []
    capsys.readouterr()
    assert main(["cost", "boto3", "--json"]) == 0  # as it was deployed, not by defaults
    facts = json.loads(capsys.readouterr().out)
    priced = {name: facts[name] for name in ("memory_mb", "arch", "region", "timeout_s")}
    assert priced == {"memory_mb": 512, "arch": "x86_64", "region": REGION, "timeout_s": 30.0}

    assert main([*PROFILE, *LAMBDA, "-o", "seen.npz"]) == 0
    assert read_profile("seen.npz").meta.provider == "lambda"
    assert list(Path("shared").iterdir()) == []

    coded = ["--scheme", "m-sgc:B=1,W=2,lam=4", "--run", "stopped"]
    assert main([*TRAIN, *LAMBDA, *coded, "--max-usd", "0.0021"]) == 1  # 8 * 15 GB s: $0.002
    assert "stopped before round 1" in capsys.readouterr().err
    assert list(Path("shared").iterdir()) == []  # also of what had not been decoded


@pytest.mark.parametrize("verb", [[*TRAIN, "--run", "r"], [*PROFILE, "-o", "p.npz"]])
def test_what_is_missing_is_said_before_anything_is_written(
    verb: list[str], a_user: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*verb, *LAMBDA, "--deployment", "other.toml"]) == 2
    assert refusal(capsys).startswith("seqgc: `deployment` must be a file that `seqgc deploy`")
    assert main([*verb, "--backend", "lambda", "--mount", "typo"]) == 2
    assert refusal(capsys).startswith("seqgc: `function.mount` must be the folder where")
    assert main([*verb, *LAMBDA]) == 1
    assert refusal(capsys).startswith("seqgc: no worker answers in the warm-up: EndpointConn")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "somewhere")
    for transport in ("boto3", "http", "asyncio"):
        assert main([*verb, *LAMBDA, "--transport", transport]) == 2
        assert refusal(capsys).startswith("seqgc: `endpoint_url` must be ")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main([*verb, *LAMBDA]) == 2
    assert "missing: AWS_SECRET_ACCESS_KEY" in refusal(capsys)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert main([*verb, *LAMBDA]) == 2
    assert refusal(capsys).startswith("seqgc: `credentials` must be given or found")
    assert untouched(a_user)


def test_a_directory_must_be_mounted_here_too(a_user: Path, capsys: Out) -> None:
    assert main([*TRAIN, "--backend", "lambda", "--store", "directory", "--run", "r"]) == 2
    assert refusal(capsys).startswith("seqgc: `function.mount` must be the folder where")
    assert untouched(a_user)


def test_a_dry_run_asks_nobody(a_user: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "somewhere")
    assert main([*TRAIN, *LAMBDA, "--dry-run", "--json", "--run", "r"]) == 0
    assert json.loads(capsys.readouterr().out)["invocations"] == 16
    assert untouched(a_user)


def test_a_budget_below_the_first_round_starts_nothing(a_user: Path, capsys: Out) -> None:
    assert main([*TRAIN, *LAMBDA, "--max-usd", "0.0000001", "--run", "r"]) == 2
    assert refusal(capsys).startswith("seqgc: `max_usd` must be at least $0.002")
    assert untouched(a_user)


def test_endpoints_are_those_of_every_client_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/2015-03-31/functions/f/invocations"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://vpce-1.example/")
    monkeypatch.delenv("AWS_ENDPOINT_URL_LAMBDA")
    assert Target.invoke_api("f", region=REGION).url == f"https://vpce-1.example{path}"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    china = Target.invoke_api("f", region="cn-north-1")
    assert china.url == f"https://lambda.cn-north-1.amazonaws.com.cn{path}"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ParameterError, match="`endpoint_url` must be given where botocore finds"):
        Target.invoke_api("f", region=REGION)

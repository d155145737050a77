"""``--backend lambda`` from end to end; the service of this machine stands for AWS.

Everything else is as it would be: a deployment's file, credentials and endpoint from botocore's own
variables, and a folder that is mounted on both sides.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import registered_model
from seqgc.backends.lambda_ import Target
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.local_lambda import DeployedAs, LocalLambda
from seqgc.profiles import read_profile
from seqgc.stores import DirectoryStore, S3Store, open_store
from seqgc.training import TrainingPlan, train
from seqgc.wire import StoreRef
from seqgc.workers import FunctionSettings, functions
from tests.cli.kit import REGION, TRAIN, Out, deploy, events, weights
from tests.cli.kit import local_weights as local_weights
from tests.cli.refused import refused

HANDLER = "lambda_handlers.gradient_worker.handler.handler"
LAMBDA = ["--backend", "lambda", "--mount", "shared"]
CODED = [*TRAIN, "--scheme", "gc-rep:s=1", "-n", "4"]
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
    deploy()
    return tmp_path


@pytest.fixture
def aws(a_user: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLambda]:
    factories = "seqgc.models.factories,sklearn.datasets"
    with LocalLambda(
        HANDLER,
        concurrency=16,
        timeout_s=30.0,
        mount=a_user / "shared",
        environment={"SEQGC_FACTORIES": factories},
        deployed=DeployedAs(region=REGION),
    ) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", service.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", service.keys.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", service.keys.secret_access_key)
        yield service


def untouched(folder: Path) -> bool:
    return sorted(p.name for p in folder.rglob("*")) == ["seqgc-lambda.toml", "shared"]


def test_deployed_functions_train_the_same_weights_by_every_transport(
    aws: LocalLambda, capsys: Out, local_weights: np.ndarray
) -> None:
    directory, shared = ["--mount", "shared", "--store", "directory"], Path("shared")
    deploy(aws.function_name)
    for transport, reach, store in [
        ("boto3", [], "inline"),
        ("curl", directory, "directory"),
    ]:
        run, before = transport, aws.statistics().requests
        called = ["--backend", "lambda", "--transport", transport, *reach, "--run", run]
        assert main([*CODED, *called, "--json"]) == 0
        said = capsys.readouterr()
        report = json.loads(said.out)
        assert (report["jobs"], report["failures"]) == (4, 0)
        np.testing.assert_allclose(weights(run), local_weights, rtol=0, atol=1e-8)
        assert aws.statistics().requests > before  # it was not somebody else who answered
        assert said.err.splitlines()[0] == "starting 4 workers (lambda)"
        assert said.err.splitlines()[1].startswith(f"store: {store} (")
        assert ", at most $0.00" in said.err.splitlines()[-1]  # without a limit, too
        assert tomllib.loads(Path(run, "config.toml").read_text())["function"]["store"] == store
    assert list(shared.iterdir()) == []
    assert main(["cost", "boto3", "--json"]) == 0  # as it was deployed, not by defaults
    facts = json.loads(capsys.readouterr().out)
    priced = {name: facts[name] for name in ("memory_mb", "arch", "region", "timeout_s", "store")}
    assert priced == {
        "memory_mb": 512,
        "arch": "x86_64",
        "region": REGION,
        "timeout_s": 30.0,
        "store": "inline",
    }

    assert main([*PROFILE, *LAMBDA, "--transport", "http", "-o", "seen.npz", "--json"]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert (facts["rounds"], facts["workers"], facts["unanswered"]) == (2, 2, 0)
    assert said.err.splitlines()[1].startswith("store: inline (")
    assert read_profile("seen.npz").meta.provider == "lambda"

    # A round of four tasks costs at most 4 * 40 s * half a GB and its weights' way, which is
    # $0.001345, and the warm-up before it $0.001334: with what the first round has cost, no less
    # than its requests, the second could pass this.
    DirectoryStore(shared / "theirs-0123456789ab").put(f"result-0-0-0-{0:032x}", b"answer")
    delayed = ["--scheme", "m-sgc:B=1,W=2,lam=4", "--backend", "lambda", *directory]
    assert main([*CODED, *delayed, "--max-usd", "0.00268", "--run", "stopped"]) == 3
    said_first, *_, said_last = capsys.readouterr().err.splitlines()
    assert said_first.startswith(f"prices of {REGION}, ")
    assert "the table that comes with seqgc" in said_first
    assert said_last.startswith("seqgc: stopped before round 1, which could cost $0.0013")
    assert "budget of $0.002680" in said_last
    assert str(events("stopped")[-1]["outcome"]).startswith("stopped: stopped before round 1,")
    # Nothing is left of the results that had not been decoded; files of other runs are kept.
    assert [each.name for each in shared.iterdir()] == ["theirs-0123456789ab"]

    # What is published under a run is for the next one: of this nobody could train anything.
    published = list[str]()

    class Deploying:
        def on_step(self, model: str, step: int, loss: float, metrics: object) -> None:  # noqa: ARG002
            if step == 1 and not published:
                published.append(aws.publish("json.dumps"))

    sgd = partial(torch.optim.SGD, lr=0.05)
    model = registered_model("m", module="mlp", optimizer=sgd, batch_size=64)
    plan = TrainingPlan(models=[model], scheme="uncoded", steps=3)
    with functions(2, FunctionSettings(mount="shared", transport="boto3")) as crew:
        assert train(plan, crew, run="under", callbacks=[Deploying()]).counts.failures == 0
    work = plan.on(2).work(Path("run-7"))
    with functions(2, FunctionSettings(store="s3")) as crew, crew.open(work) as opened:
        where = opened.store.location  # type: ignore[attr-defined]
    assert where.startswith("s3://a-bucket/runs/run-7")
    ref = StoreRef(kind="s3", location=where)
    assert isinstance(open_store(ref, s3_allowed=["s3://a-bucket/runs"]), S3Store)  # of the image
    assert main(["resume", "stopped", "--max-usd", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 4
    np.testing.assert_allclose(weights("stopped"), local_weights, rtol=0, atol=1e-8)
    pins = [json.loads(line) for line in Path("stopped", "journal.jsonl").read_text().splitlines()]
    (pin,) = [each for each in pins if each["kind"] == "pin"]
    assert (pin["version"].split(":")[6:], pin["memory_mb"]) == ([aws.function_name, "1"], "512")
    deploy("another")
    assert main(["resume", "stopped", "--max-usd", "1"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("seqgc: `run` must continue with the functions that it began with")
    deploy(aws.function_name)
    assert main([*CODED, *LAMBDA, "--run", "newer"]) == 1
    assert "TypeError: dumps()" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("verb", [[*CODED, "--run", "r"], [*PROFILE, "-o", "p.npz"]])
def test_what_is_missing_is_said_before_anything_is_written(
    verb: list[str], a_user: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = refused(capsys, *verb, *LAMBDA, "--deployment", "other.toml")
    assert line.startswith("seqgc: `deployment` must be a file that `seqgc deploy`")
    line = refused(capsys, *verb, "--backend", "lambda", "--mount", "typo")
    assert line.startswith("seqgc: `function.mount` must be the folder where")
    assert main([*verb, *LAMBDA]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: cannot look up the published version of the functions: Could")
    assert untouched(a_user)
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "somewhere")
    for transport in ("boto3", "http", "curl"):
        line = refused(capsys, *verb, *LAMBDA, "--transport", transport)
        assert line.startswith("seqgc: `endpoint_url` must be ")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "missing: AWS_SECRET_ACCESS_KEY" in refused(capsys, *verb, *LAMBDA)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    line = refused(capsys, *verb, *LAMBDA)
    assert line.startswith("seqgc: `credentials` must be configured")


def test_a_directory_must_be_mounted_here_too(capsys: Out) -> None:
    directory = ["--backend", "lambda", "--store", "directory"]
    line = refused(capsys, *CODED, *directory, "--run", "r")
    assert line.startswith("seqgc: `function.mount` must be the folder where")
    elsewhere = ["--backend", "lambda", "--store", "inline", "--mount", "typo"]
    assert main([*CODED, *elsewhere, "--run", "r"]) == 1  # there it is not needed
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("seqgc: cannot look up the published version")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--resident", "--scheme", "deal"], "`function.resident` needs a VPC"),
        (["--store", "directory"], "`function.store` needs a VPC"),
        (["--mount", "shared"], "`function.mount` needs a VPC"),
    ],
)
def test_functions_without_a_vpc_refuse_what_needs_one(
    capsys: Out, given: list[str], named: str
) -> None:
    deploy(vpc=False)
    verb = [*TRAIN, "-n", "4", "--backend", "lambda", *given]
    for line in (verb, [*verb, "--dry-run"]):
        said = refused(capsys, *line)
        assert said.startswith(f"seqgc: {named} with a file system, which the stack seqgc does not")
        kept = "--architecture x86_64 --memory-mb 512 --function-timeout-s 30"
        assert f"run `seqgc deploy --stack seqgc --region us-west-2 {kept} --vpc`)" in said


def test_a_deployment_says_whether_functions_start_from_a_snapshot(capsys: Out) -> None:
    verb = [*CODED, "--backend", "lambda", "--dry-run", "--json"]
    for snapstart in (False, True):
        deploy(vpc=False, snapstart=snapstart)
        assert main(verb) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["at_most"]["restored_gb"] > 0) == snapstart


def test_functions_without_a_vpc_get_weights_in_requests_or_by_s3(capsys: Out) -> None:
    deploy(vpc=False)
    verb = [*CODED, "--backend", "lambda", "--dry-run", "--json"]
    assert main(verb) == 0
    assert json.loads(capsys.readouterr().out)["where"] == "inline"
    assert main([*verb, "--store", "s3"]) == 0
    assert json.loads(capsys.readouterr().out)["where"] == "s3"


def test_a_dry_run_asks_nobody(a_user: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "somewhere")
    assert main([*CODED, *LAMBDA, "--dry-run", "--json", "--run", "r"]) == 0
    assert json.loads(capsys.readouterr().out)["invocations"] == 16
    assert untouched(a_user)


def test_a_budget_below_the_first_round_starts_nothing(capsys: Out) -> None:
    line = refused(capsys, *CODED, *LAMBDA, "--max-usd", "0.0000001", "--run", "r")
    assert line.startswith("seqgc: `max_usd` must be at least $0.002")


def test_endpoints_are_those_of_every_client_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/2015-03-31/functions/f/invocations"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://vpce-1.example/")
    monkeypatch.delenv("AWS_ENDPOINT_URL_LAMBDA")
    assert Target.invoke_api("f", region=REGION).url == f"https://vpce-1.example{path}"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    china = Target.invoke_api("f", region="cn-north-1")
    assert china.url == f"https://lambda.cn-north-1.amazonaws.com.cn{path}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nowhere")
    with pytest.raises(ParameterError, match=r"`endpoint_url` must be given.*us-west-2"):
        Target.invoke_api("f", region=REGION)

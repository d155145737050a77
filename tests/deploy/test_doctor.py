"""`doctor`: every check on a healthy account, and on one thing broken at a time.

AWS is moto's. It has no GetAccountSettings, no quotas of Lambda, and runs no function: these calls
are answered here, in shapes that botocore's own model of the API checks, and the function's by the
real worker on a folder and moto's S3.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from lambda_handlers.gradient_worker.setup import make_worker
from seqgc.backends.lambda_ import MASTER_PORTS, Address
from seqgc.cli import main
from seqgc.deploy import Check, Deployment, deploy, diagnose, write_deployment
from seqgc.deploy import DeployOptions as Options
from tests.deploy.cloud import client, new_session
from tests.deploy.kit import REGION
from tests.deploy.test_deploy import Sam

ACCOUNT_CHECKS = ["credentials", "clock", "region", "concurrency", "quota", "starts", "microvms"]
OTHERS = ["payload", "deployment", "function", "alias", "snapshot"]
OTHERS += ["network", "subnets", "mount", "master"]
PROBES = ["probe-directory", "probe-s3", "resident"]
WORKERS = 256


def scripted(session: Any, event: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let a call be answered here, if the answer has the shape that the API's model gives it."""
    from botocore.validate import ParamValidator

    def respond(model: Any, params: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        parsed = answer(params)
        report = ParamValidator().validate(parsed, model.output_shape)
        assert not report.has_errors(), report.generate_report()
        failed = {"x-amz-function-error": "Unhandled"} if "FunctionError" in parsed else {}
        meta = {"HTTPStatusCode": 200, "HTTPHeaders": failed}
        return SimpleNamespace(status_code=200), parsed | {"ResponseMetadata": meta}

    name = f"before-call.{event}"
    session.events.unregister(name, unique_id=name)  # the last word counts
    session.events.register_first(name, respond, unique_id=name)


def limit_concurrency(session: Any, *, total: int, unreserved: int) -> None:
    limits = {"ConcurrentExecutions": total, "UnreservedConcurrentExecutions": unreserved}
    scripted(session, "lambda.GetAccountSettings", lambda _: {"AccountLimit": limits})


def set_quota(session: Any, value: float, **others: float) -> None:
    """Set the quota on concurrent executions, and others by name."""
    quota = {"QuotaCode": "L-B99A9384", "ServiceCode": "lambda", "Value": value}
    quotas = [quota | {"QuotaName": "Concurrent executions"}]
    quotas += [
        {"QuotaName": name.replace("_", " "), "Value": each} for name, each in others.items()
    ]
    scripted(session, "service-quotas.GetServiceQuota", lambda _: {"Quota": quota})
    scripted(session, "service-quotas.ListServiceQuotas", lambda _: {"Quotas": quotas})


@pytest.fixture
def made(account: Any, tmp_path: Path) -> Deployment:
    """Deployed functions, which answer."""
    return answering(account, tmp_path, vpc=True)


def answering(account: Any, tmp_path: Path, **options: Any) -> Deployment:
    made = deploy(Options(**options), session=account, run=Sam())
    limit_concurrency(account, total=1000, unreserved=1000)
    set_quota(account, 1000.0)
    variables = client("lambda").get_function_configuration(FunctionName=made.function_name)
    environment = variables["Environment"]["Variables"]
    if made.has_vpc:
        environment |= {"SEQGC_MOUNT": str(tmp_path / "efs")}
    environment["SEQGC_FACTORIES"] = "lambda_handlers.gradient_worker.numpy_factories"
    (tmp_path / "efs").mkdir()
    worker = make_worker(environment)

    def invoke(params: dict[str, Any]) -> dict[str, Any]:
        named = unquote(params["url_path"]).split("/")[3].rpartition(":")[2]
        assert "1" in (named, params["query_string"].get("Qualifier"))  # as a run does
        reply = json.dumps(worker.serve(json.loads(params["body"])).reply).encode()
        return {"StatusCode": 200, "Payload": io.BytesIO(reply)}

    scripted(account, "lambda.Invoke", invoke)
    return made


def examined(session: Any, made: Deployment | None, **changed: Any) -> dict[str, Check]:
    options: dict[str, Any] = {"workers": WORKERS, "payload_bytes": 400_000, "probes": False}
    checks = diagnose(made, session=session, **(options | changed))
    assert [each.name for each in checks] == ACCOUNT_CHECKS + OTHERS + PROBES
    assert all(bool(each.remedy) == (each.status == "failed") for each in checks)
    assert all("\n" not in each.detail + each.remedy for each in checks)
    return {each.name: each for each in checks}


def failures(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if check.status == "failed"]


def test_all_is_well_with_what_was_just_deployed(
    account: Any, made: Deployment, tmp_path: Path
) -> None:
    checks = examined(account, made, probes=True, address=Address())
    ok = dict.fromkeys(checks, "ok") | {"microvms": "skipped"}
    ok |= dict.fromkeys(("snapshot", "master"), "skipped")
    assert {name: check.status for name, check in checks.items()} == ok
    assert " ms; replaced every 60 s" in checks["resident"].detail
    # The probes' answers went through both stores.
    (folder,) = (tmp_path / "efs").iterdir()
    assert [each for each in folder.rglob("*") if each.is_file()]
    assert client("s3").list_objects_v2(Bucket=made.bucket)["KeyCount"] == 1
    keys = [each["Key"] for each in client("s3").list_objects_v2(Bucket=made.bucket)["Contents"]]
    assert keys[0].startswith("runs/doctor-")


def test_before_anything_is_deployed_the_account_is_looked_at(account: Any) -> None:
    limit_concurrency(account, total=10, unreserved=10)
    set_quota(account, 10.0)
    checks = examined(account, None)
    assert failures(checks) == ["concurrency", "quota", "deployment"]
    assert checks["deployment"].remedy == "seqgc deploy"
    assert "--desired-value 1000" in checks["concurrency"].remedy
    assert {checks[name].status for name in (*OTHERS[2:], *PROBES)} == {"skipped"}


def test_a_reservation_below_the_number_of_workers_is_found(account: Any, made: Deployment) -> None:
    client("lambda").put_function_concurrency(
        FunctionName=made.function_name, ReservedConcurrentExecutions=100
    )
    checks = examined(account, made)
    assert failures(checks) == ["concurrency"]
    assert checks["concurrency"].remedy == f"{made.deploy_command} --reserved-concurrency 256"


def test_a_time_out_too_short_to_stay_is_found(account: Any, made: Deployment) -> None:
    check = examined(account, replace(made, timeout_s=5), address=Address())["resident"]
    assert "6 heartbeats" in check.detail
    assert check.remedy == f"seqgc deploy --stack seqgc --region {REGION} --function-timeout-s 900"


def test_functions_that_stay_need_as_many_again_for_their_successors(
    account: Any, made: Deployment
) -> None:
    client("lambda").put_function_concurrency(
        FunctionName=made.function_name, ReservedConcurrentExecutions=WORKERS
    )
    assert failures(examined(account, made)) == []
    check = examined(account, made, address=Address())["concurrency"]
    assert check.remedy == f"{made.deploy_command} --reserved-concurrency {2 * WORKERS}"
    limit_concurrency(account, total=10, unreserved=10)
    set_quota(account, 10.0)
    asked = examined(account, None, address=Address(), workers=600)["quota"].remedy
    assert "--desired-value 1300" in asked


def test_what_a_plan_may_use_is_said(account: Any, made: Deployment) -> None:
    set_quota(account, 1000.0, Concurrent_MicroVMs=40.0, RunMicrovm_requests_per_second=5.0)
    checks = examined(account, made)
    assert checks["quota"].detail.endswith("at most 1000 workers")
    assert checks["microvms"].detail == "Concurrent MicroVMs: 40; RunMicrovm requests per second: 5"
    checks = examined(account, made, address=Address(), workers=500)
    assert checks["quota"].detail.endswith("at most 500 workers")
    assert checks["starts"].detail.endswith("1000 needed: the last ones after 0 s")
    checks = examined(account, made, address=Address(), workers=501)
    assert failures(checks) == ["concurrency", "quota"]
    assert checks["starts"].detail.endswith("1002 needed: the last ones after 10 s")


@pytest.mark.parametrize(("off_s", "wrong"), [(290, False), (310, True), (-310, True)])
def test_a_clock_beyond_what_signatures_allow_is_found(
    account: Any, made: Deployment, off_s: float, wrong: bool
) -> None:
    checks = examined(account, made, now=lambda: time.time() + off_s)
    assert failures(checks) == (["clock"] if wrong else [])


def test_a_region_that_is_another_is_found(made: Deployment) -> None:
    elsewhere = new_session("us-east-2")
    limit_concurrency(elsewhere, total=1000, unreserved=1000)
    set_quota(elsewhere, 1000.0)
    checks = examined(elsewhere, made)
    assert failures(checks) == ["region"]
    assert checks["region"].remedy == f"export AWS_REGION={REGION}"


def test_a_function_that_is_gone_is_found_and_the_rest_is_still_looked_at(
    account: Any, made: Deployment
) -> None:
    client("lambda").delete_function(FunctionName=made.function_name)
    checks = examined(account, made)
    assert {"function", "alias"} <= set(failures(checks))
    assert checks["network"].status == "ok"
    assert checks["function"].remedy == f"seqgc deploy --stack seqgc --region {REGION}"
    assert "ResourceNotFoundException" in checks["function"].detail


def test_an_alias_that_is_gone_is_found(account: Any, made: Deployment) -> None:
    client("lambda").delete_alias(FunctionName=made.function_name, Name=made.alias)
    assert "alias" in failures(examined(account, made))


def test_a_function_of_other_memory_or_time_out_is_found(account: Any, made: Deployment) -> None:
    checks = examined(account, replace(made, memory_mb=1024))
    assert failures(checks) == ["function"]
    assert checks["function"].detail == (
        "the function has 2560 MB, 60 s, but 1024 MB, 60 s were deployed"
    )


def test_a_function_that_is_not_ready_is_found(account: Any, made: Deployment) -> None:
    vpc = client("lambda").get_function_configuration(FunctionName=made.function_name)["VpcConfig"]
    answer = {"State": "Pending", "StateReason": "being made", "VpcConfig": vpc}
    scripted(account, "lambda.GetFunctionConfiguration", lambda _: answer)
    checks = examined(account, made)
    assert failures(checks) == ["function"]
    assert "state Pending" in checks["function"].detail
    assert checks["function"].remedy.startswith("aws lambda wait function-active-v2")


def test_a_version_without_its_snapshot_is_found(account: Any, tmp_path: Path) -> None:
    made = answering(account, tmp_path, snapstart=True)
    for status, wrong in (("On", False), ("Off", True)):
        answer = {
            "Version": "7",
            "MemorySize": made.memory_mb,
            "Timeout": made.timeout_s,
            "SnapStart": {"ApplyOn": "PublishedVersions", "OptimizationStatus": status},
        }
        scripted(account, "lambda.GetFunctionConfiguration", lambda _, said=answer: said)
        checks = examined(account, made)
        assert failures(checks) == (["snapshot"] if wrong else [])
        assert "version 7" in checks["snapshot"].detail
    assert checks["snapshot"].remedy == f"seqgc deploy --stack seqgc --region {REGION} --snapstart"
    assert examined(account, replace(made, snapstart=False))["snapshot"].status == "skipped"
    scripted(account, "lambda.GetFunctionConfiguration", lambda _: answer | {"State": "Inactive"})
    checks = examined(account, made)
    assert failures(checks) == ["snapshot"]  # the next invocation would fail
    wake, wait = checks["snapshot"].remedy.split("; ")
    assert wake.startswith("aws lambda invoke --function-name seqgc-")
    assert wait.startswith("aws lambda wait published-version-active --function-name seqgc-")
    assert f"--qualifier 7 --region {REGION}" in wake
    assert wait.endswith(f"--qualifier 7 --region {REGION}")


@pytest.mark.parametrize("way", ["ingress", "egress"])
def test_a_rule_that_is_missing_is_found(account: Any, made: Deployment, way: str) -> None:
    revoke = getattr(client("ec2"), f"revoke_security_group_{way}")
    revoke(GroupId=made.security_group_id, IpPermissions=[nfs(made)])
    checks = examined(account, made)
    assert failures(checks) == ["network"]
    assert "no rule for port 2049" in checks["network"].detail


def test_a_rule_that_lets_others_in_is_found(account: Any, made: Deployment) -> None:
    anyone = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
    client("ec2").authorize_security_group_ingress(
        GroupId=made.security_group_id,
        IpPermissions=[anyone | {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}],
    )
    assert failures(examined(account, made)) == ["network"]


@pytest.mark.parametrize("way", ["ingress", "egress"])
def test_functions_that_stay_need_a_way_to_their_master(
    account: Any, made: Deployment, way: str
) -> None:
    ports = {"FromPort": MASTER_PORTS[0], "ToPort": MASTER_PORTS[-1]}
    revoke = getattr(client("ec2"), f"revoke_security_group_{way}")
    revoke(GroupId=made.security_group_id, IpPermissions=[nfs(made) | ports])
    assert failures(examined(account, made)) == []  # without --resident
    checks = examined(account, made, address=Address())
    assert failures(checks) == ["resident"]
    assert "no rule for ports 9840 to 9855" in checks["resident"].detail


def test_a_master_that_nobody_reaches_is_told_where_to_run(account: Any, made: Deployment) -> None:
    def fail(params: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 (the call's)
        said = {"errorType": "WorkerError", "errorMessage": "the master does not answer"}
        body = io.BytesIO(json.dumps(said).encode())
        return {"StatusCode": 200, "FunctionError": "Unhandled", "Payload": body}

    scripted(account, "lambda.Invoke", fail)
    check = examined(account, made, address=Address())["resident"]
    assert check.status == "failed"
    assert "the master does not answer" in check.detail
    assert f"as a member of {made.security_group_id}" in check.remedy


def nfs(made: Deployment) -> dict[str, Any]:
    rule: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
    return rule | {"UserIdGroupPairs": [{"GroupId": made.security_group_id}]}


def test_a_mount_target_that_is_missing_is_found(account: Any, made: Deployment) -> None:
    efs = client("efs")
    target = efs.describe_mount_targets(FileSystemId=made.file_system_id)["MountTargets"][0]
    efs.delete_mount_target(MountTargetId=target["MountTargetId"])
    checks = examined(account, made)
    assert failures(checks) == ["mount"]
    assert target["SubnetId"] in checks["mount"].detail


def test_a_mount_target_of_another_group_is_found(account: Any, made: Deployment) -> None:
    efs = client("efs")
    target = efs.describe_mount_targets(FileSystemId=made.file_system_id)["MountTargets"][1]
    efs.modify_mount_target_security_groups(
        MountTargetId=target["MountTargetId"], SecurityGroups=["sg-0123456789"]
    )
    assert failures(examined(account, made)) == ["mount"]


def test_a_payload_beyond_six_megabytes_comes_with_the_remedy(
    account: Any, made: Deployment
) -> None:
    most = 6 * 2**20 * 3 // 4 - 4096 - 1024
    assert failures(examined(account, made, payload_bytes=most)) == []
    checks = examined(account, made, payload_bytes=most + 4096)
    assert failures(checks) == ["payload"]
    assert "float16" in checks["payload"].remedy
    resnet = examined(account, made, payload_bytes=2 * 11_227_812)["payload"]
    assert "22455624 bytes" in resnet.detail
    assert resnet.remedy == "seqgc train --store s3 (or directory, with EFS)"


def test_a_function_that_fails_is_found_with_what_it_says(account: Any, made: Deployment) -> None:
    said = b'{"errorMessage": "no module named seqgc", "errorType": "ImportError"}'
    scripted(
        account,
        "lambda.Invoke",
        lambda _: {"StatusCode": 200, "FunctionError": "Unhandled", "Payload": io.BytesIO(said)},
    )
    checks = examined(account, made, probes=True, address=Address())
    assert failures(checks) == PROBES
    assert "no module named seqgc" in checks["probe-s3"].detail
    assert checks["probe-s3"].remedy == (
        f"aws logs tail /seqgc/seqgc --since 10m --region {REGION}"
    )


def test_a_file_system_that_cannot_be_written_fails_its_probe_alone(
    account: Any, made: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "efs").rmdir()
    (tmp_path / "efs").write_text("a file where a folder should be")
    assert failures(examined(account, made, probes=True)) == ["probe-directory"]


def test_where_functions_have_no_way_to_s3_it_is_not_tried(account: Any, made: Deployment) -> None:
    checks = examined(account, replace(made, reaches_s3=False), probes=True)
    assert failures(checks) == []
    assert checks["probe-s3"].status == "skipped"
    assert checks["probe-directory"].status == "ok"


def test_without_a_vpc_what_needs_one_is_skipped(account: Any, tmp_path: Path) -> None:
    made = answering(account, tmp_path)
    checks = examined(account, made, probes=True)
    assert failures(checks) == []
    skipped = {name for name, check in checks.items() if check.status == "skipped"}
    assert skipped >= {"network", "subnets", "mount", "probe-directory", "resident"}
    assert checks["probe-s3"].status == "ok"
    asked = examined(account, made, address=Address())["resident"]
    assert (asked.status, asked.remedy) == ("failed", f"{made.deploy_command} --vpc")
    quick = examined(account, replace(made, snapstart=True), address=Address())["resident"]
    assert quick.remedy == asked.remedy  # `deploy` refuses --snapstart with --vpc


def test_a_remedy_keeps_what_was_deployed(account: Any, made: Deployment) -> None:
    other = replace(made, memory_mb=1024, timeout_s=900, architecture="x86_64")
    remedy = examined(account, other)["function"].remedy
    options = "--architecture x86_64 --memory-mb 1024 --function-timeout-s 900"
    assert remedy == f"seqgc deploy --stack seqgc --region {REGION} {options}"


def test_an_answer_that_is_no_frame_is_found(account: Any, made: Deployment) -> None:
    scripted(
        account, "lambda.Invoke", lambda _: {"StatusCode": 200, "Payload": io.BytesIO(b'"hello"')}
    )
    assert failures(examined(account, made, probes=True, address=Address())) == PROBES


def test_without_credentials_every_check_still_says_what_to_do(
    made: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            environment.delenv(name, raising=False)
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            environment.setenv(name, str(tmp_path / "none"))
        checks = examined(new_session(), made)
    assert {"credentials", "clock", "function", "mount"} <= set(failures(checks))
    assert checks["credentials"].remedy == "run `aws configure`, or `aws sso login`"


# ---- the verb ------------------------------------------------------------------------------------


def test_the_verb_prints_what_was_found_and_its_status_says_it(
    account: Any,
    made: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("seqgc.cli._deploy.open_session", lambda *, region: account)  # noqa: ARG005
    monkeypatch.chdir(tmp_path)
    write_deployment(tmp_path / "seqgc-lambda.toml", made)
    assert main(["doctor", "-n", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    statuses = {each["name"]: each["status"] for each in found["checks"]}
    assert list(statuses) == ACCOUNT_CHECKS + OTHERS + PROBES
    assert statuses["payload"] == "skipped"

    assert main(["doctor", "-n", "2000", "--no-invoke", "--parameters", "11227812"]) == 1
    shown = capsys.readouterr().out
    assert "aws service-quotas request-service-quota-increase" in " ".join(shown.split())
    assert shown.count("failed") == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--deployment", "x.toml"], "`deployment` must be a file that `seqgc deploy` wrote"),
        (["-n", "0"], "`workers` must be an integer >= 1; got 0"),
        (["--parameters", "0"], "`parameters` must be an integer >= 1; got 0"),
        (["--payload", "int8"], "Invalid value for '--payload'"),
        (["--region", "!!"], "`region` must be the name of an AWS region"),
    ],
)
def test_a_wrong_parameter_is_one_line(
    given: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *given]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"seqgc: {says}")
    assert said.out == ""

"""Which version of the functions a run is held to; AWS is moto's.

moto without Docker looks up no function that is invoked, so invocations are answered here, by the
versions that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from seqgc.deploy import Deployment, pin_version
from seqgc.errors import ParameterError, SeqgcError
from tests.deploy.cloud import client
from tests.deploy.kit import ACCOUNT, REGION

SETUP = {"memory_mb": "2560", "timeout_s": "60"}


def answering(session: Any, call: str, answer: Callable[[dict[str, Any]], str]) -> None:
    """Let a call be answered by the code of a refusal, or well if that is empty."""

    def respond(params: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        code = answer(params)
        error = {"Error": {"Code": code, "Message": "no"}} if code else {}
        status = 400 if code else 204
        meta = {"HTTPStatusCode": status, "HTTPHeaders": {}}
        return SimpleNamespace(status_code=status), error | {"ResponseMetadata": meta}

    session.events.register_first(f"before-call.lambda.{call}", respond)


@pytest.fixture
def made(account: Any) -> Deployment:
    trust = '{"Version": "2012-10-17", "Statement": []}'
    role = client("iam").create_role(RoleName="worker", AssumeRolePolicyDocument=trust)["Role"]
    lambda_, name = client("lambda"), "seqgc-ImageWorker-x"
    lambda_.create_function(
        FunctionName=name, Role=role["Arn"], Runtime="python3.13", Handler="worker.handler",
        Code={"ZipFile": b"first"}, Publish=True,
    )  # fmt: skip
    lambda_.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}:live"
    empty = {each.name: "" for each in fields(Deployment) if each.type == "str"}
    known = {"region": REGION, "alias_arn": arn, "architecture": "arm64"}
    made = Deployment(**empty | known, reaches_s3=True, memory_mb=2560, timeout_s=60)

    def invoke(params: dict[str, Any]) -> str:
        assert params["headers"]["X-Amz-Invocation-Type"] == "DryRun"
        asked = unquote(params["url_path"]).split("/")[3]
        there = client("lambda").list_versions_by_function(FunctionName=name)["Versions"]
        known = any(each["FunctionArn"] == asked for each in there)
        return "" if known else "ResourceNotFoundException"

    answering(account, "Invoke", invoke)
    return made


def publish(made: Deployment) -> None:
    """Do what `seqgc deploy` makes CloudFormation do."""
    lambda_, name = client("lambda"), made.function_name
    lambda_.update_function_code(FunctionName=name, ZipFile=b"second")
    version = lambda_.publish_version(FunctionName=name)["Version"]
    lambda_.update_alias(FunctionName=name, Name=made.alias, FunctionVersion=version)


def test_the_version_that_was_recorded_is_kept_when_another_is_deployed(
    account: Any, made: Deployment
) -> None:
    begun = pin_version(made, session=account, before={})
    assert begun == {"version": f"{made.function_arn}:1", **SETUP}
    publish(made)
    assert pin_version(made, session=account, before=begun) == begun
    assert pin_version(made, session=account, before={})["version"] == f"{made.function_arn}:2"


def test_a_run_that_cannot_go_on_with_its_version_is_refused_in_one_line(
    account: Any, made: Deployment
) -> None:
    begun = pin_version(made, session=account, before={})

    def refusal(deployment: Deployment) -> str:
        with pytest.raises(ParameterError) as info:
            pin_version(deployment, session=account, before=begun)
        return str(info.value)

    other = replace(made, alias_arn=made.alias_arn.replace("ImageWorker", "ZipWorker"))
    assert f"{other.function_arn};" in refusal(other)
    larger = refusal(replace(made, memory_mb=4096, timeout_s=90))
    assert "deployment: memory_mb was 2560, is 4096, timeout_s was 60, is 90; got 'arn:" in larger
    assert "snapstart was no, is yes" in refusal(replace(made, snapstart=True))
    publish(made)
    client("lambda").delete_function(FunctionName=made.function_name, Qualifier="1")
    line = refusal(made)
    assert line.startswith("`run` must continue with the functions that it began with: ")
    assert f"has been deleted; got '{made.function_arn}:1' (--accept-changes" in line


def test_who_may_not_ask_is_sent_to_the_doctor(account: Any, made: Deployment) -> None:
    answering(account, "GetAlias", lambda _: "AccessDeniedException")
    with pytest.raises(SeqgcError) as info:
        pin_version(made, session=account, before={})
    assert str(info.value).startswith(
        "cannot look up the published version of the functions: An error"
    )
    assert str(info.value).endswith("(see `seqgc doctor`)")

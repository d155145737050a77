"""`deploy`: the commands that it runs, and the stack that it then finds.

AWS is moto's, and `sam` a stand-in that makes the expanded template's resources with the parameters
of the command line: what is asserted is what is there afterwards.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seqgc.deploy import (
    DeployError,
    Deployment,
    DeployOptions,
    RunNeeds,
    choose_network,
    deploy,
    deploy_commands,
    open_session,
)
from seqgc.errors import ParameterError
from tests.deploy.cloud import client, make_stack
from tests.deploy.kit import ACCOUNT, IMAGE, REGION, expanded


class Sam:
    """Does what `sam deploy` makes CloudFormation do; keeps what it was asked."""

    def __init__(self, *, fails: str = "") -> None:
        self.commands: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.folders: list[Path] = []
        self.fails = fails

    def __call__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
        self.commands.append(list(command))
        self.folders.append(folder)
        self.environments.append(environment)
        if self.fails == command[1]:
            return 1
        if command[1] == "deploy":
            name = command[command.index("--stack-name") + 1]
            make_stack(name, parameters_of(command), tags=tags_of(command))
        return 0


def tags_of(command: Sequence[str]) -> dict[str, str]:
    if "--tags" not in command:
        return {}
    words = command[command.index("--tags") + 1 :]
    pairs = itertools.takewhile(lambda word: not word.startswith("--"), words)
    return {name: value for name, _, value in (each.partition("=") for each in pairs)}


def parameters_of(command: Sequence[str]) -> dict[str, str]:
    pairs = command[command.index("--parameter-overrides") + 1 :]
    return {name: value.strip('"') for name, _, value in (each.partition("=") for each in pairs)}


def test_every_parameter_is_the_template_s() -> None:
    given = DeployOptions(vpc=True).parameters()
    known = expanded()["Parameters"]
    assert given.keys() == known.keys() - {"VpcCidr", "BucketExpiryDays"}
    for name, value in given.items():
        assert value == str(known[name]["Default"]) or name == "Setup"  # a digest of the others


def test_what_is_deployed_is_there(account: Any) -> None:
    sam = Sam()
    options = DeployOptions(
        stack="mine",
        memory_mb=1769,
        timeout_s=33,
        reserved_concurrency=300,
        tag=("team=ml", "cost/centre=42"),
        vpc=True,
    )
    made = deploy(options, session=account, run=sam)
    assert (made.stack, made.region) == ("mine", REGION)
    assert (made.memory_mb, made.timeout_s) == (1769, 33)

    function = client("lambda").get_function(FunctionName=made.function_name, Qualifier=made.alias)
    config = function["Configuration"]
    assert (config["MemorySize"], config["Timeout"]) == (1769, 33)
    assert config["PackageType"] == "Image"
    assert function["Code"]["ImageUri"] == IMAGE
    assert config["VpcConfig"]["SecurityGroupIds"] == [made.security_group_id]
    assert config["Environment"]["Variables"]["SEQGC_S3"] == f"s3://{made.bucket}/{made.prefix}"
    assert config["Environment"]["Variables"]["SEQGC_MOUNT"] == made.mount_path
    concurrency = client("lambda").get_function_concurrency(FunctionName=made.function_name)
    assert concurrency["ReservedConcurrentExecutions"] == 300
    retries = client("lambda").get_function_event_invoke_config(FunctionName=made.function_name)
    assert retries["MaximumRetryAttempts"] == 0

    (stack,) = client("cloudformation").describe_stacks(StackName="mine")["Stacks"]
    tags = {each["Key"]: each["Value"] for each in stack["Tags"]}
    assert tags == {"team": "ml", "cost/centre": "42"}  # CloudFormation hands them on

    (system,) = client("efs").describe_file_systems(FileSystemId=made.file_system_id)["FileSystems"]
    assert system["Encrypted"]
    targets = client("efs").describe_mount_targets(FileSystemId=made.file_system_id)
    subnets = {each["SubnetId"] for each in targets["MountTargets"]}
    assert subnets == set(config["VpcConfig"]["SubnetIds"])
    assert len(subnets) == 2
    encryption = client("s3").get_bucket_encryption(Bucket=made.bucket)
    (rule,) = encryption["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    for arn in (made.caller_policy_arn, made.store_policy_arn):
        assert client("iam").get_policy(PolicyArn=arn)["Policy"]["AttachmentCount"] == 0
    (group,) = client("logs").describe_log_groups(logGroupNamePrefix="/seqgc/mine")["logGroups"]
    assert int(group["retentionInDays"]) == 14  # moto answers with text


def test_s3_is_let_out_to_by_the_region_s_own_prefix_list(account: Any) -> None:
    made = deploy(DeployOptions(vpc=True), session=account, run=Sam())
    lists = client("ec2").describe_managed_prefix_lists(
        Filters=[{"Name": "prefix-list-name", "Values": [f"com.amazonaws.{REGION}.s3"]}]
    )["PrefixLists"]
    (group,) = client("ec2").describe_security_groups(GroupIds=[made.security_group_id])[
        "SecurityGroups"
    ]
    out = [rule["PrefixListIds"] for rule in group["IpPermissionsEgress"] if rule["PrefixListIds"]]
    assert out == [[{"PrefixListId": lists[0]["PrefixListId"]}]]
    (endpoint,) = client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
    assert endpoint["ServiceName"] == f"com.amazonaws.{REGION}.s3"
    assert f"arn:aws:s3:::{made.bucket}/{made.prefix}/*" in endpoint["PolicyDocument"]


def test_a_zip_is_built_for_its_architecture_and_pushes_no_image(account: Any) -> None:
    sam = Sam()
    options = DeployOptions(package="zip", architecture="x86_64")
    made = deploy(options, session=account, run=sam)
    build, deployed = sam.commands
    assert build[:3] == ["sam", "build", "ZipWorker"]
    assert {each["SEQGC_ARCHITECTURE"] for each in sam.environments} == {"x86_64"}
    assert len(set(sam.folders)) == 1
    assert not sam.folders[0].exists()  # it was a temporary one
    assert "--resolve-image-repos" not in deployed
    unused = deployed[deployed.index("--image-repository") + 1]
    assert unused.startswith(f"{ACCOUNT}.dkr.ecr.{REGION}.")
    config = client("lambda").get_function_configuration(FunctionName=made.function_name)
    assert (config["PackageType"], config["Runtime"]) == ("Zip", "python3.13")
    assert config["Architectures"] == ["x86_64"]


def test_an_image_that_is_there_already_is_not_built() -> None:
    (command,) = deploy_commands(
        DeployOptions(image_uri=IMAGE),
        region=REGION, account=ACCOUNT,
    )  # fmt: skip
    assert command[:2] == ["sam", "deploy"]
    assert command[command.index("--template-file") + 1] == "template.yaml"
    assert parameters_of(command)["ImageUri"] == IMAGE


def test_a_command_never_asks_and_never_grants_more_than_iam() -> None:
    _, command = deploy_commands(
        DeployOptions(),
        region=REGION, account=ACCOUNT,
    )  # fmt: skip
    assert "--no-confirm-changeset" in command
    assert command[command.index("--capabilities") + 1] == "CAPABILITY_IAM"
    assert 'VpcId=""' in command


def deployed(account: Any, **options: Any) -> tuple[Deployment, list[str]]:
    """The deployment that these options make, and what is said on the way."""
    said: list[str] = []
    made = deploy(DeployOptions(**options), session=account, say=said.append, run=Sam())
    return made, said


def resources() -> set[str]:
    listed = client("cloudformation").list_stack_resources(StackName="seqgc")
    return {each["ResourceType"] for each in listed["StackResourceSummaries"]}


def test_a_model_whose_weights_go_by_messages_or_s3_gets_no_network(account: Any) -> None:
    made, said = deployed(account)
    assert said == [f"no VPC: {RunNeeds().weights}; --vpc adds a file system"]
    assert not {each for each in resources() if each.startswith(("AWS::EC2", "AWS::EFS"))}
    assert client("efs").describe_file_systems()["FileSystems"] == []
    config = client("lambda").get_function_configuration(FunctionName=made.function_name)
    assert not config.get("VpcConfig", {}).get("SubnetIds")
    variables = config["Environment"]["Variables"]
    assert (variables["SEQGC_MOUNT"], variables["SEQGC_DATA"]) == ("", f"s3://{made.bucket}/data")
    assert (made.has_vpc, made.reaches_s3, made.mount_path, made.snapstart) == (
        False,
        True,
        "",
        False,
    )


def test_a_stack_keeps_its_kind_until_it_is_told_otherwise(account: Any) -> None:
    made, _ = deployed(account, vpc=True, timeout_s=120)
    commands: list[list[str]] = []

    def again(command: Sequence[str], *_: object) -> int:  # moto cannot change the stack
        commands.append(list(command))
        return 0

    assert deploy(DeployOptions(memory_mb=1769), session=account, run=again).has_vpc
    assert {parameters_of(each)["Vpc"] for each in commands} == {"yes"}
    assert {parameters_of(each)["TimeoutS"] for each in commands} == {"60"}
    commands.clear()
    with pytest.raises(ParameterError, match=r"`vpc` must stay: .*fs-.*--drop-file-system"):
        deploy(DeployOptions(vpc=False), session=account, run=again)
    with pytest.raises(ParameterError, match=r"`snapstart` .*--no-vpc --drop-file-system"):
        deploy(DeployOptions(snapstart=True), session=account, run=again)
    assert commands == []
    said: list[str] = []
    options = DeployOptions(vpc=False, drop_file_system=True)
    deploy(options, session=account, say=said.append, run=again)
    assert {parameters_of(each)["Vpc"] for each in commands} == {"no"}
    assert f"delete-file-system --file-system-id {made.file_system_id}`; its VPC" in said[0]
    without = choose_network(DeployOptions(), needs=RunNeeds(), outputs={"AliasArn": "arn"})
    assert str(without) == "no VPC: the stack seqgc has no VPC"


@pytest.mark.parametrize(
    ("options", "needs", "chosen"),
    [
        ({}, RunNeeds(), "no VPC: weights go in requests"),
        (
            {},
            RunNeeds(file_system="`resident` in a.toml"),
            "a VPC with a file system: needed for `r",
        ),
        ({"vpc_id": "vpc-1", "subnets": ("subnet-1", "subnet-2")}, RunNeeds(), "a VPC with a file"),
        ({"throughput_mode": "bursting"}, RunNeeds(), "a VPC with a file system: needed for `thr"),
        ({"vpc": True}, RunNeeds(), "a VPC with a file system: as requested"),
        ({"vpc": False, "snapstart": True}, RunNeeds(), "no VPC: as requested"),
    ],
)
def test_the_kind_of_a_new_stack_follows_from_what_is_asked_for(
    options: dict[str, Any], needs: RunNeeds, chosen: str
) -> None:
    choice = choose_network(DeployOptions(**options), needs=needs, outputs={})
    assert str(choice).startswith(chosen)
    assert choice.options.parameters()["Vpc"] == ("no" if chosen.startswith("no") else "yes")


@pytest.mark.parametrize(
    ("options", "needs", "says"),
    [
        ({"vpc": True, "snapstart": True}, RunNeeds(), r"`snapstart` .*EFS; got True .*--no-vpc"),
        ({"snapstart": True, "throughput_mode": "bursting"}, RunNeeds(), "leave out `throughput"),
        ({"vpc": False}, RunNeeds(file_system="`store` in a.toml"), r"`vpc` .*`store` in a.*--vpc"),
        (
            {"vpc": False, "provisioned_mibps": 9},
            RunNeeds(),
            r"`provisioned_mibps` must be left out with --no-vpc; got 9",
        ),
        ({"drop_file_system": True}, RunNeeds(), "`drop_file_system` must be used with --no-vpc"),
        ({"drop_file_system": True, "vpc": True}, RunNeeds(), "`drop_file_system` must be used"),
        (
            {"snapstart": True},
            RunNeeds(file_system="`resident` in a.toml"),
            r"`snapstart` must be left out with a file system .*`resident` in a",
        ),
    ],
)
def test_what_excludes_another_option_is_one_line(
    options: dict[str, Any], needs: RunNeeds, says: str
) -> None:
    with pytest.raises(ParameterError, match=says):
        choose_network(DeployOptions(**options), needs=needs, outputs={})


@pytest.mark.parametrize("step", ["build", "deploy"])
def test_where_sam_fails_nothing_further_is_run(account: Any, step: str) -> None:
    sam = Sam(fails=step)
    with pytest.raises(DeployError, match=f"`sam {step}` ended with status 1"):
        deploy(DeployOptions(), session=account, run=sam)
    assert [each[1] for each in sam.commands] == ["build", "deploy"][: 1 + (step == "deploy")]
    assert client("cloudformation").describe_stacks()["Stacks"] == []


def test_a_stack_that_is_not_seqgc_s_is_said_to_be_so(account: Any) -> None:
    client("cloudformation").create_stack(
        StackName="seqgc",
        TemplateBody='{"Resources": {"B": {"Type": "AWS::S3::Bucket"}}}',
    )
    with pytest.raises(DeployError, match="has no output 'AliasArn'"):
        deploy(DeployOptions(), session=account, run=lambda *_: 0)


def test_a_stack_that_is_missing_is_said_to_be_so(account: Any) -> None:
    with pytest.raises(DeployError, match=r"cannot read stack 'seqgc': .*does not exist"):
        deploy(DeployOptions(), session=account, run=lambda *_: 0)


def test_a_template_that_is_missing_is_refused_before_any_call(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"`template` must be a SAM template"):
        deploy(DeployOptions(), session=None, template=tmp_path / "t.yaml")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"memory_mb": 100}, "`memory_mb` must be an integer >= 256 and <= 10240; got 100"),
        ({"timeout_s": 901}, "`timeout_s` must be an integer >= 1 and <= 900; got 901"),
        ({"stack": "a b"}, "`stack` must be letters, digits and hyphens; got 'a b'"),
        (
            {"vpc_id": "vpc-1", "subnets": ("subnet-1", "subnet-1")},
            "`subnets` must be two subnets of",
        ),
        ({"route_table_id": "rtb-1"}, "`vpc_id` must be set with"),
        ({"image_uri": IMAGE, "package": "zip"}, "`image_uri` requires package 'image'"),
    ],
)
def test_a_wrong_option_is_one_line(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError) as refused:
        DeployOptions(**wrong)
    assert str(refused.value).startswith(says)


def test_without_a_region_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(DeployError, match="pass --region, or export AWS_REGION"):
        open_session()


# ---- the real way to run a program ---------------------------------------------------------------


def program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_a_program_runs_in_the_folder_and_speaks_on_stderr(
    account: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    program(tmp_path, "sam", 'echo "$PWD $SEQGC_ARCHITECTURE $1 $2"; exit 3')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = DeployOptions(package="zip", architecture="x86_64")
    with pytest.raises(DeployError, match="`sam build` ended with status 3"):
        deploy(options, session=account, context=tmp_path / "context")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == f"{tmp_path}/context x86_64 build ZipWorker"


def test_without_sam_the_remedy_is_named(
    account: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeployError, match=r"`sam` is not on the PATH .pip install aws-sam-cli"):
        deploy(DeployOptions(), session=account)

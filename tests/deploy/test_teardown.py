"""`seqgc destroy`: what goes, what stays, and what is said of a deletion that fails half-way.

AWS is moto's: what is asserted is what is there afterwards. Waiting is not tried, for moto deletes
at once; nor is Lambda's own slow farewell to the network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from seqgc.cli import main
from seqgc.deploy import (
    DeployError,
    Deployment,
    DeployOptions,
    deploy,
    plan_teardown,
    tear_down,
    write_deployment,
)
from seqgc.errors import ParameterError
from tests.deploy.cloud import client
from tests.deploy.kit import REGION, TEMPLATE
from tests.deploy.test_deploy import Sam

Out = pytest.CaptureFixture[str]


@pytest.fixture
def deployed(account: Any) -> Deployment:
    """A stack whose bucket has objects, versions of them and an upload that was given up."""
    subnets = client("ec2").describe_subnets()["Subnets"]  # moto cannot delete a VPC of a stack
    network = {
        "vpc_id": subnets[0]["VpcId"],
        "subnets": (subnets[0]["SubnetId"], subnets[1]["SubnetId"]),
    }
    options = DeployOptions(stack="mine", **network)
    made = deploy(options, session=account, template=TEMPLATE, run=Sam())
    s3 = client("s3")
    s3.put_bucket_versioning(Bucket=made.bucket, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"old", b"new"):
        s3.put_object(Bucket=made.bucket, Key="runs/a", Body=body)
    s3.delete_object(Bucket=made.bucket, Key="runs/a")
    s3.create_multipart_upload(Bucket=made.bucket, Key="runs/b")
    companion(f"{made.stack}-0a1b2c3d-CompanionStack")
    return made


def companion(name: str) -> None:
    """What `sam deploy --resolve-image-repos` makes, with an image in it."""
    repository = {
        "Type": "AWS::ECR::Repository",
        "Properties": {"RepositoryName": name.lower()},
        "DeletionPolicy": "Retain",  # else moto, unlike AWS, fails where it has been deleted before
    }
    body = json.dumps({"Resources": {"Images": repository}})
    client("cloudformation").create_stack(StackName=name, TemplateBody=body)
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": {"digest": "sha256:1"}}
    client("ecr").put_image(
        repositoryName=name.lower(),
        imageManifest=json.dumps(manifest | {"layers": []}),
        imageManifestMediaType=kind,
    )


def stacks() -> list[str]:
    return [each["StackName"] for each in client("cloudformation").describe_stacks()["Stacks"]]


def left() -> tuple[int, int, int]:
    """How many buckets, file systems and image repositories there are."""
    return (
        len(client("s3").list_buckets()["Buckets"]),
        len(client("efs").describe_file_systems()["FileSystems"]),
        len(client("ecr").describe_repositories()["repositories"]),
    )


def go_on(account: Any, deployed: Deployment) -> None:
    """Delete the data that a deleted stack has left."""
    plan = plan_teardown(deployed.stack, session=account, data=True)
    assert plan.stack_id == ""
    efs = client(
        "efs"
    )  # moto makes mount targets anew when it is asked for a deleted stack's parts
    for each in efs.describe_mount_targets(FileSystemId=deployed.file_system_id)["MountTargets"]:
        efs.delete_mount_target(MountTargetId=each["MountTargetId"])
    tear_down(plan, session=account, say=print)


def refusing(account: Any, operation: str, message: str) -> Callable[[], None]:
    """Have AWS refuse an operation; return what ends that."""
    from botocore.exceptions import ClientError

    def refuse(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, operation)

    account.events.register(f"before-call.{operation}", refuse)
    return partial(account.events.unregister, f"before-call.{operation}", refuse)


def test_what_fails_is_said_and_after_it_is_mended_the_same_goes_on(
    account: Any, deployed: Deployment
) -> None:
    iam, ec2 = client("iam"), client("ec2")
    iam.create_role(RoleName="master", AssumeRolePolicyDocument="{}")
    iam.attach_role_policy(RoleName="master", PolicyArn=deployed.caller_policy_arn)
    with pytest.raises(DeployError, match=r"role master has the policy .*detach-role-policy"):
        plan_teardown("mine", session=account)
    iam.detach_role_policy(RoleName="master", PolicyArn=deployed.caller_policy_arn)
    targets = client("efs").describe_mount_targets(FileSystemId=deployed.file_system_id)
    started = ec2.run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1,
        SubnetId=targets["MountTargets"][0]["SubnetId"],
        SecurityGroupIds=[deployed.security_group_id],
    )  # fmt: skip
    machine = started["Instances"][0]["InstanceId"]
    with pytest.raises(DeployError, match=f"instance {machine} is in the security group"):
        plan_teardown("mine", session=account)
    interface = started["Instances"][0]["NetworkInterfaces"][0]["NetworkInterfaceId"]
    other = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
    ec2.modify_network_interface_attribute(NetworkInterfaceId=interface, Groups=[other])

    plan = plan_teardown("mine", session=account, data=True)
    mend = refusing(account, "cloudformation.DeleteStack", "is protected")
    with pytest.raises(DeployError, match=r"not deleted: stack mine: .*is protected") as raised:
        tear_down(plan, session=account, say=print)
    assert deployed.bucket in str(raised.value)
    assert left() == (1, 1, 1)  # data stays as long as there may be functions
    mend()

    mend = refusing(account, "efs.DeleteFileSystem", "not you")
    system = deployed.file_system_id
    with pytest.raises(
        DeployError, match=rf"not deleted: file system {system}: .*not you"
    ) as raised:
        tear_down(plan, session=account, say=print)
    assert "bucket" not in str(raised.value)
    assert left() == (0, 1, 0)
    mend()
    go_on(account, deployed)
    assert left() == (0, 0, 0)


def test_without_a_vpc_only_the_bucket_stays_and_nothing_is_slow(account: Any) -> None:
    made = deploy(DeployOptions(stack="mine"), session=account, run=Sam())
    said: list[str] = []
    plan = plan_teardown("mine", session=account)
    assert {part.kind for part in plan.stays} == {"AWS::S3::Bucket"}  # moto has no bucket policy
    tear_down(plan, session=account, say=said.append)
    assert said == ["deleting stack mine"]
    assert [each["Name"] for each in client("s3").list_buckets()["Buckets"]] == [made.bucket]


def test_what_is_not_seqgc_s_is_left_alone(account: Any) -> None:
    body = json.dumps({"Description": "a shop", "Resources": {"Q": {"Type": "AWS::SQS::Queue"}}})
    client("cloudformation").create_stack(StackName="shop", TemplateBody=body)
    with pytest.raises(DeployError, match="'shop' is not a stack of seqgc"):
        plan_teardown("shop", session=account)
    with pytest.raises(DeployError, match=f"there is no stack 'mine' in {REGION}"):
        plan_teardown("mine", session=account)


@pytest.mark.parametrize("stack", ["", "my stack", "x" * 129, "\x1b[2J", "arn:aws:x y"])
def test_what_can_be_no_stack_is_refused_before_aws_is_asked(stack: str) -> None:
    session = boto3.session.Session(region_name=REGION)
    with pytest.raises(ParameterError, match=r"`stack` must be the name of a stack, or its id"):
        plan_teardown(stack, session=session)


def test_a_stack_of_which_nothing_is_left_is_said_to_be_gone(account: Any) -> None:
    bucket = {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "left-behind"}}
    body = {
        "Description": "seqgc: a part",
        "Resources": {"B": bucket | {"DeletionPolicy": "Retain"}},
    }
    client("cloudformation").create_stack(StackName="mine", TemplateBody=json.dumps(body))
    tear_down(plan_teardown("mine", session=account), session=account, say=print)
    tear_down(plan_teardown("mine", session=account, data=True), session=account, say=print)
    with pytest.raises(DeployError, match=r"'mine' has been deleted"):
        plan_teardown("mine", session=account, data=True)


def test_the_verb_lists_asks_and_leaves_data_that_can_be_deleted_later(
    account: Any, deployed: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setattr("seqgc.cli._deploy.open_session", lambda *, region: account)  # noqa: ARG005
    monkeypatch.chdir(tmp_path)
    file = Path("seqgc-lambda.toml")
    write_deployment(file, deployed)
    assert main(["destroy"]) == 2  # nobody is there to be asked
    assert capsys.readouterr().err.startswith("seqgc: `yes` must be given")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert main(["destroy", "--delete-data"]) == 1
    asked = capsys.readouterr().err
    assert deployed.bucket in asked
    assert asked.endswith("nothing was deleted\n")
    assert main(["destroy", "--delete-data", "--dry-run", "--json"]) == 0
    would = json.loads(capsys.readouterr().out)
    assert (would["deleted"], would["stays"]) == (False, [])
    assert left() == (1, 1, 1)
    assert file.exists()

    companion("mine-too-0a1b2c3d-CompanionStack")  # of another stack
    assert main(["destroy", "--yes", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    kinds = {part["kind"] for part in done["goes"]}
    assert kinds >= {"AWS::EC2::SecurityGroup", "AWS::IAM::Role", "AWS::ECR::Repository"}
    stays = {part["kind"].rpartition(":")[2]: part["name"] for part in done["stays"]}
    assert (stays["Bucket"], stays["FileSystem"]) == (deployed.bucket, deployed.file_system_id)
    assert stacks() == ["mine-too-0a1b2c3d-CompanionStack"]
    assert left() == (1, 1, 1)
    assert not file.exists()
    go_on(account, deployed)
    assert left() == (0, 0, 1)

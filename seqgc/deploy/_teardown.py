"""The removal of a deployment.

CloudFormation deletes the stack, except for three resources with the data of runs: the bucket, its
policy and the file system. If ``data`` is set, they are also deleted, after the stack, when no
function can write to them any more. A second stack is deleted as well: `sam deploy` has made it for
the repository of the image.

Three obstacles would stop CloudFormation half-way after ten minutes or more: a role that still has
a policy of the stack, a machine in the stack's security group, and a running task of the stack's
master. They are checked at the start and cause an error. If another step fails, the remaining steps
are still done, and one error lists the resources that remain. The same command then continues the
removal, because CloudFormation lists the resources of a deleted stack for 90 days.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from seqgc._aws import open_client
from seqgc.deploy._aws import DeployError, calls, client_config, describe_stack, in_one_line
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

Say = Callable[[str], None]
_User: TypeAlias = tuple[str, str, str]  # name, description, what to do

_DESCRIPTION: Final = "seqgc:"  # beginning of the template's description
_BUCKET, _FILES = "AWS::S3::Bucket", "AWS::EFS::FileSystem"
_KEPT: Final = (_BUCKET, "AWS::S3::BucketPolicy", _FILES)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}|arn:[\w:/-]{1,1000}", re.ASCII)
_POLL_S, _POLLS = 15, 240  # an hour: Lambda may take 40 minutes to release its interfaces
_BATCH: Final = 1000  # objects that S3 deletes in one request


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedPart:
    """A resource: its type in CloudFormation, and its name or id."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Teardown:
    """The resources that `tear_down` will delete (``goes``) and keep (``stays``).

    ``stack_id`` is empty if the stack has already been deleted and only its data exist.
    ``image_stack`` is the stack that `sam` has made for the image, or an empty string.
    """

    stack: str
    stack_id: str
    image_stack: str
    goes: tuple[DeployedPart, ...]
    stays: tuple[DeployedPart, ...]


def plan_teardown(stack: str, *, session: Session, data: bool = False) -> Teardown:
    """Plan the removal of a stack; if ``data`` is set, also of its bucket and file system.

    Raises
    ------
    ParameterError
        If ``stack`` is not a valid name or id.
    DeployError
        If the stack does not exist, is not a stack of seqgc, or a part of it is still in use.
    """
    if not _NAME.fullmatch(stack):
        raise ParameterError("stack", "must be the name of a stack, or its id", stack)
    cloud = open_client(session, "cloudformation", config=client_config())
    with calls(f"find stack {stack!r}"):
        description = _find(cloud, stack)
        if description is None:
            message = f"there is no stack {stack!r} in {session.region_name}"
            raise DeployError(message, "check --stack and --region")
        if not str(description.get("Description", "")).startswith(_DESCRIPTION):
            raise DeployError(f"stack {stack!r} is not a stack of seqgc", "nothing is deleted")
        is_deleted = description["StackStatus"] == "DELETE_COMPLETE"
        parts = _parts(cloud, description["StackId"])
        data_parts = [part for part in parts if part.kind in _KEPT]
        if is_deleted:
            data_parts = [part for part in data_parts if _exists(part, session)]
        image_stack = _image_stack(cloud, stack)
        image = _parts(cloud, image_stack) if image_stack else []
    goes = [] if is_deleted else [part for part in parts if part.kind not in _KEPT]
    goes += image
    if not is_deleted:
        _require_unused(goes, session)
    elif not goes and not data_parts:
        raise DeployError(f"stack {stack!r} has been deleted", "nothing remains of it")
    return Teardown(
        stack=stack,
        stack_id="" if is_deleted else description["StackId"],
        image_stack=image_stack,
        goes=tuple(goes + (data_parts if data else [])),
        stays=tuple([] if data else data_parts),
    )


def tear_down(plan: Teardown, *, session: Session, say: Say) -> None:
    """Carry out the plan. Before each step, ``say`` is called with a line that describes the step.

    Raises
    ------
    DeployError
        If a resource remains. The message names the resource and the reason.
    """
    remaining: list[str] = []
    kinds = {kind: [p.name for p in plan.goes if p.kind == kind] for kind in (_BUCKET, _FILES)}
    if plan.stack_id:
        has_vpc = any(part.kind == "AWS::EC2::SecurityGroup" for part in plan.goes)
        slow = " (Lambda may take 40 minutes to release the network)" if has_vpc else ""
        say(f"deleting stack {plan.stack}{slow}")
        with _collecting(remaining, f"stack {plan.stack}"):
            _delete_stack(plan.stack_id, session)
    if remaining:  # functions may still exist, and write to the data
        remaining += [f"{part.kind} {part.name}" for part in plan.goes if part.kind in kinds]
    else:
        if plan.image_stack:
            say("deleting the image")
            with _collecting(remaining, f"stack {plan.image_stack}"):
                _delete_images(plan, session)
        for bucket in kinds[_BUCKET]:
            say(f"emptying and deleting bucket {bucket}")
            with _collecting(remaining, f"bucket {bucket}"):
                _delete_bucket(bucket, session)
        for system in kinds[_FILES]:
            say(f"deleting file system {system}")
            with _collecting(remaining, f"file system {system}"):
                efs = open_client(session, "efs", config=client_config())
                efs.delete_file_system(FileSystemId=system)
    if remaining:
        message = f"not deleted: {'; '.join(remaining)}"
        raise DeployError(message, "remove the cause, then run the same command again")


@contextmanager
def _collecting(remaining: list[str], what: str) -> Iterator[None]:
    """If AWS returns an error in this block, add ``what`` and the reason to ``remaining``."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        remaining.append(f"{what}: {in_one_line(error)[0]}")
    except DeployError as error:
        remaining.append(f"{what}: {error}")


def _find(cloud: Any, stack: str) -> Any:
    """Return the description of a stack, or of the last deleted stack of this name, or None."""
    if (existing := describe_stack(cloud, stack)) is not None:
        return existing
    pages = cloud.get_paginator("list_stacks").paginate(StackStatusFilter=["DELETE_COMPLETE"])
    deleted = [each for p in pages for each in p["StackSummaries"] if each["StackName"] == stack]
    if not deleted:
        return None
    newest = max(deleted, key=lambda each: each["CreationTime"])
    return cloud.describe_stacks(StackName=newest["StackId"])["Stacks"][0]


def _parts(cloud: Any, stack: str) -> list[DeployedPart]:
    pages = cloud.get_paginator("list_stack_resources").paginate(StackName=stack)
    return [
        DeployedPart(kind=each["ResourceType"], name=each["PhysicalResourceId"])
        for page in pages
        for each in page["StackResourceSummaries"]
        if each.get("PhysicalResourceId") and each["ResourceStatus"] != "DELETE_COMPLETE"
    ]


def _image_stack(cloud: Any, stack: str) -> str:
    """Return the name of the stack that `sam` made for the image, or an empty string."""
    pages = cloud.get_paginator("describe_stacks").paginate()
    names = [str(each["StackName"]) for page in pages for each in page["Stacks"]]
    # Eight digits of a digest follow the name, so a stack whose name only begins alike is excluded.
    pattern = re.compile(f"{re.escape(stack)}-.{{8}}-CompanionStack")
    return next(filter(pattern.fullmatch, names), "")


def _exists(part: DeployedPart, session: Session) -> bool:
    from botocore.exceptions import ClientError

    try:
        if part.kind == _FILES:
            efs = open_client(session, "efs", config=client_config())
            efs.describe_file_systems(FileSystemId=part.name)
        else:  # a policy exists as long as its bucket
            open_client(session, "s3", config=client_config()).head_bucket(Bucket=part.name)
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
            return False
        raise
    return True


def _require_unused(goes: list[DeployedPart], session: Session) -> None:
    """Raise a `DeployError` if a part is still in use, so that CloudFormation cannot delete it."""
    own_roles = {part.name for part in goes if part.kind == "AWS::IAM::Role"}
    with calls("check that the stack is not in use"):
        for part in goes:
            if (users_of := _USERS.get(part.kind)) is not None:
                for name, user, remedy in users_of(part.name, session):
                    if name not in own_roles:
                        raise DeployError(user, remedy)


def _users_of_policy(arn: str, session: Session) -> Iterator[_User]:
    iam = open_client(session, "iam", config=client_config())
    users = iam.list_entities_for_policy(PolicyArn=arn)
    for kind in ("Role", "User", "Group"):
        for each in users[f"Policy{kind}s"]:
            name, word = each[f"{kind}Name"], kind.lower()
            how = f"aws iam detach-{word}-policy --{word}-name {name} --policy-arn {arn}"
            yield name, f"{word} {name} has the policy {arn}", f"`{how}`"


def _users_of_group(group: str, session: Session) -> Iterator[_User]:
    ec2 = open_client(session, "ec2", config=client_config())
    members = ec2.describe_network_interfaces(Filters=[{"Name": "group-id", "Values": [group]}])
    for each in members["NetworkInterfaces"]:
        if machine := each.get("Attachment", {}).get("InstanceId"):
            user = f"instance {machine} is in the security group {group}"
            yield machine, user, "terminate it, or remove it from the group"


def _users_of_cluster(cluster: str, session: Session) -> Iterator[_User]:
    ecs = open_client(session, "ecs", config=client_config())
    for task in ecs.list_tasks(cluster=cluster)["taskArns"]:
        how = f"aws ecs stop-task --cluster {cluster} --task {task}"
        yield task, f"the task {task} is running", f"`{how}`"


_USERS: Final[Mapping[str, Callable[[str, Session], Iterator[_User]]]] = {
    "AWS::IAM::ManagedPolicy": _users_of_policy,
    "AWS::EC2::SecurityGroup": _users_of_group,
    "AWS::ECS::Cluster": _users_of_cluster,
}


def _delete_stack(stack_id: str, session: Session) -> None:
    from botocore.exceptions import WaiterError

    cloud = open_client(session, "cloudformation", config=client_config())
    cloud.delete_stack(StackName=stack_id)
    waiter = cloud.get_waiter("stack_delete_complete")
    try:
        waiter.wait(StackName=stack_id, WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _POLLS})
    except WaiterError:
        pages = cloud.get_paginator("list_stack_resources").paginate(StackName=stack_id)
        stuck = [
            f"{each['LogicalResourceId']} {each.get('PhysicalResourceId', '')}"
            f" ({each.get('ResourceStatusReason', each['ResourceStatus'])})"
            for page in pages
            for each in page["StackResourceSummaries"]
            if each["ResourceStatus"] in ("DELETE_FAILED", "DELETE_IN_PROGRESS")
        ]
        raise DeployError(", ".join(stuck) or "it is not deleted yet") from None


def _delete_images(plan: Teardown, session: Session) -> None:
    """Delete the repository of the image, then its stack.

    CloudFormation does not delete a repository that has images.
    """
    ecr = open_client(session, "ecr", config=client_config())
    for part in plan.goes:
        if part.kind == "AWS::ECR::Repository":
            ecr.delete_repository(repositoryName=part.name, force=True)
    _delete_stack(plan.image_stack, session)


def _delete_bucket(bucket: str, session: Session) -> None:
    """Delete all versions of all objects, unfinished uploads, and the bucket."""
    s3 = open_client(session, "s3", config=client_config())
    failed: list[str] = []
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
        listed = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        for first in range(0, len(listed), _BATCH):
            batch = listed[first : first + _BATCH]
            keys = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in batch]
            answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            failed += [f"{each['Key']} ({each['Code']})" for each in answer.get("Errors", [])]
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
        for each in page.get("Uploads", []):
            s3.abort_multipart_upload(Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"])
    if failed:
        raise DeployError(f"{len(failed)} objects, first {failed[0]}")
    s3.delete_bucket(Bucket=bucket)

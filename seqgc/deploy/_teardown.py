"""Taking a deployment down: what goes, what stays, and what is left if AWS refuses half-way.

CloudFormation deletes the stack. The template has it keep three resources: the bucket, its policy
and the file system, which hold what runs have shared. With ``data`` these are deleted after the
stack, once nothing is there any more that could write to them. `sam deploy` has made a second
stack beside it, with the repository of the image, which goes too.

What is found before is refused before: a role that still has one of the stack's policies, a machine
in its security group. Either would let CloudFormation stop half-way, after ten minutes or more.
Whatever still fails, the rest is done, and one line says what is left. To say the same again goes
on: CloudFormation remembers for 90 days what a stack that it has deleted has kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from seqgc._aws import open_client
from seqgc.deploy._aws import DeployError, calls, client_config, in_one_line
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

Say = Callable[[str], None]

_OURS: Final = "seqgc:"  # how the template's description begins
_BUCKET, _FILES = "AWS::S3::Bucket", "AWS::EFS::FileSystem"
_KEPT: Final = (_BUCKET, "AWS::S3::BucketPolicy", _FILES)
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}|arn:[\w:/-]{1,1000}", re.ASCII)
_POLL_S, _POLLS = 15, 240  # an hour: Lambda may take 40 minutes to give interfaces back
_BATCH: Final = 1000  # objects that S3 deletes at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A resource: its type as CloudFormation has it, and its name or id."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Teardown:
    """What `tear_down` will delete, and what stays.

    ``stack_id`` is empty if the stack has been deleted before, and only its data is there.
    ``image_stack`` is the one that `sam` has made for the image, or empty.
    """

    stack: str
    stack_id: str
    image_stack: str
    goes: tuple[Part, ...]
    stays: tuple[Part, ...]


def plan_teardown(stack: str, *, session: Session, data: bool = False) -> Teardown:
    """Return what would go; with ``data``, the bucket and the file system too. Changes nothing.

    Raises
    ------
    ParameterError
        If no stack can have that name or id.
    DeployError
        If there is no such stack, it is not seqgc's, or something holds on to a part of it.
    """
    if not _NAME.fullmatch(stack):
        raise ParameterError("stack", "must be the name of a stack, or its id", stack)
    cloud = open_client(session, "cloudformation", config=client_config())
    with calls(f"find stack {stack!r}"):
        found = _find(cloud, stack)
        if found is None:
            where = f"in {session.region_name}"
            raise DeployError(f"there is no stack {stack!r} {where}", "see --stack and --region")
        if not str(found.get("Description", "")).startswith(_OURS):
            raise DeployError(f"stack {stack!r} is not seqgc's", "nothing is deleted")
        gone = found["StackStatus"] == "DELETE_COMPLETE"
        parts = _parts(cloud, found["StackId"])
        kept = [part for part in parts if part.kind in _KEPT]
        if gone:
            kept = [part for part in kept if _is_there(part, session)]
        image_stack = _image_stack(cloud, stack)
        image = _parts(cloud, image_stack) if image_stack else []
    goes = [] if gone else [part for part in parts if part.kind not in _KEPT]
    goes += image
    if not gone:
        _refuse_users(goes, session)
    elif not goes and not kept:
        raise DeployError(f"stack {stack!r} has been deleted", "nothing is left of it")
    return Teardown(
        stack=stack,
        stack_id="" if gone else found["StackId"],
        image_stack=image_stack,
        goes=tuple(goes + (kept if data else [])),
        stays=tuple([] if data else kept),
    )


def tear_down(plan: Teardown, *, session: Session, say: Say) -> None:
    """Delete what the plan says; ``say`` hears, before each step, what is being deleted.

    Raises
    ------
    DeployError
        If something is left: it says what, and why.
    """
    left: list[str] = []
    kinds = {kind: [p.name for p in plan.goes if p.kind == kind] for kind in (_BUCKET, _FILES)}
    if plan.stack_id:
        say(f"deleting stack {plan.stack} (Lambda may take 40 minutes to let go of the network)")
        with _noted(left, f"stack {plan.stack}"):
            _delete_stack(plan.stack_id, session)
    if left:  # functions may be there still, which write to what follows
        left += [f"{part.kind} {part.name}" for part in plan.goes if part.kind in kinds]
    else:
        if plan.image_stack:
            say("deleting the image")
            with _noted(left, f"stack {plan.image_stack}"):
                _delete_images(plan, session)
        for bucket in kinds[_BUCKET]:
            say(f"emptying and deleting bucket {bucket}")
            with _noted(left, f"bucket {bucket}"):
                _delete_bucket(bucket, session)
        for system in kinds[_FILES]:
            say(f"deleting file system {system}")
            with _noted(left, f"file system {system}"):
                efs = open_client(session, "efs", config=client_config())
                efs.delete_file_system(FileSystemId=system)
    if left:
        raise DeployError(f"left: {'; '.join(left)}", "mend that, then say the same again")


@contextmanager
def _noted(left: list[str], what: str) -> Iterator[None]:
    """Note what is left if AWS refuses, and go on."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        left.append(f"{what}: {in_one_line(error)[0]}")
    except DeployError as error:
        left.append(f"{what}: {error}")


def _find(cloud: Any, stack: str) -> Any:
    """Return the stack of that name, else the newest that has been deleted, or None."""
    from botocore.exceptions import ClientError

    try:
        return cloud.describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "ValidationError":
            raise
    pages = cloud.get_paginator("list_stacks").paginate(StackStatusFilter=["DELETE_COMPLETE"])
    gone = [each for page in pages for each in page["StackSummaries"] if each["StackName"] == stack]
    if not gone:
        return None
    newest = max(gone, key=lambda each: each["CreationTime"])
    return cloud.describe_stacks(StackName=newest["StackId"])["Stacks"][0]


def _parts(cloud: Any, stack: str) -> list[Part]:
    pages = cloud.get_paginator("list_stack_resources").paginate(StackName=stack)
    found = [each for page in pages for each in page["StackResourceSummaries"]]
    return [
        Part(kind=each["ResourceType"], name=each["PhysicalResourceId"])
        for each in found
        if each.get("PhysicalResourceId") and each["ResourceStatus"] != "DELETE_COMPLETE"
    ]


def _image_stack(cloud: Any, stack: str) -> str:
    """Return the name of the stack that `sam deploy --resolve-image-repos` makes, or nothing."""
    pages = cloud.get_paginator("describe_stacks").paginate()
    names = [str(each["StackName"]) for page in pages for each in page["Stacks"]]
    made = [n for n in names if n.startswith(f"{stack}-") and n.endswith("-CompanionStack")]
    # between the two is a digest of eight digits: another stack's name may begin with ours
    return next((n for n in made if len(n) == len(f"{stack}--CompanionStack") + 8), "")


def _is_there(part: Part, session: Session) -> bool:
    from botocore.exceptions import ClientError

    try:
        if part.kind == _FILES:
            efs = open_client(session, "efs", config=client_config())
            efs.describe_file_systems(FileSystemId=part.name)
        else:  # a policy is there as long as its bucket
            open_client(session, "s3", config=client_config()).head_bucket(Bucket=part.name)
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
            return False
        raise
    return True


def _refuse_users(goes: list[Part], session: Session) -> None:
    """Refuse what CloudFormation could not delete, since somebody else uses it."""
    iam = open_client(session, "iam", config=client_config())
    ec2 = open_client(session, "ec2", config=client_config())
    with calls("look who uses the stack"):
        for part in goes:
            if part.kind == "AWS::IAM::ManagedPolicy":
                users = iam.list_entities_for_policy(PolicyArn=part.name)
                for kind in ("Role", "User", "Group"):
                    for each in users[f"Policy{kind}s"]:
                        name, word = each[f"{kind}Name"], kind.lower()
                        how = f"aws iam detach-{word}-policy --{word}-name {name} --policy-arn"
                        who = f"{word} {name} has the policy {part.name}"
                        raise DeployError(who, f"`{how} {part.name}`")
            if part.kind == "AWS::EC2::SecurityGroup":
                members = ec2.describe_network_interfaces(
                    Filters=[{"Name": "group-id", "Values": [part.name]}]
                )["NetworkInterfaces"]
                for each in members:
                    if machine := each.get("Attachment", {}).get("InstanceId"):
                        who = f"instance {machine} is in the security group {part.name}"
                        raise DeployError(who, "end it, or take it out of the group")


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
    """Delete the repository with what is in it, which CloudFormation would not, and its stack."""
    ecr = open_client(session, "ecr", config=client_config())
    for part in plan.goes:
        if part.kind == "AWS::ECR::Repository":
            ecr.delete_repository(repositoryName=part.name, force=True)
    _delete_stack(plan.image_stack, session)


def _delete_bucket(bucket: str, session: Session) -> None:
    """Delete all versions of all objects, what was being uploaded, and the bucket."""
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

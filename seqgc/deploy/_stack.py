"""Building, deploying, and reading the stack that this makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.deploy._aws import DeployError, calls, client_config
from seqgc.deploy._deploy_options import DeployOptions
from seqgc.deploy._deployment import Deployment
from seqgc.deploy._sam import Runner, deploy_commands, run_command
from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["check_template", "deploy", "read_outputs"]


def deploy(
    options: DeployOptions,
    *,
    session: Session,
    template: Path = Path("template.yaml"),
    run: Runner = run_command,
) -> Deployment:
    """Build and deploy the worker functions; return what the stack consists of.

    Needs the SAM CLI, and Docker for an image. What they print goes to stderr.

    Raises
    ------
    ParameterError
        If there is no such template.
    DeployError
        If AWS or the SAM CLI refuses.
    """
    check_template(template)
    region = session.region_name
    with calls("ask AWS who calls"):
        account = session.client("sts", config=client_config()).get_caller_identity()["Account"]
    commands = deploy_commands(
        options,
        template=template,
        region=region,
        account=account,
        prefix_list=s3_prefix_list(session),
    )
    for command in commands:
        # what the zip's Makefile cannot learn from sam
        environment = {"SEQGC_ARCHITECTURE": options.architecture, "SAM_CLI_TELEMETRY": "0"}
        status = run(command, template.resolve().parent, environment)
        if status != 0:
            name = " ".join(command[:2])
            raise DeployError(f"`{name}` ended with status {status}", "what it says is above")
    return read_outputs(options.stack, session=session)


def check_template(template: Path) -> None:
    """Refuse a template that is not there.

    Raises
    ------
    ParameterError
        If there is no such file.
    """
    if not template.is_file():
        remedy = "run it in a checkout of seqgc, or pass --template"
        raise ParameterError("template", "must be seqgc's template.yaml", str(template), remedy)


def s3_prefix_list(session: Session) -> str:
    """Return the id of the region's list of S3's addresses.

    Raises
    ------
    DeployError
        If AWS does not tell.
    """
    name = f"com.amazonaws.{session.region_name}.s3"
    with calls("look up S3's prefix list"):
        lists = session.client("ec2", config=client_config()).describe_managed_prefix_lists(
            Filters=[{"Name": "prefix-list-name", "Values": [name]}]
        )["PrefixLists"]
    if not lists:
        raise DeployError(f"{session.region_name} has no prefix list {name}", "see --region")
    return str(lists[0]["PrefixListId"])


def read_outputs(stack: str, *, session: Session) -> Deployment:
    """Return what a stack consists of.

    Raises
    ------
    DeployError
        If there is no such stack, it is not seqgc's, or its last change failed.
    """
    with calls(f"read stack {stack!r}"):
        client = session.client("cloudformation", config=client_config())
        description = client.describe_stacks(StackName=stack)["Stacks"][0]
    status = str(description["StackStatus"])
    if not status.endswith("_COMPLETE") or "ROLLBACK" in status or "DELETE" in status:
        events = f"aws cloudformation describe-stack-events --stack-name {stack}"
        raise DeployError(f"stack {stack!r} is in state {status}", f"see `{events}`")
    outputs = {each["OutputKey"]: each["OutputValue"] for each in description.get("Outputs", [])}
    return Deployment.from_outputs(stack, session.region_name, outputs)

"""The deployment of a stack with AWS's tool `sam`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from seqgc._aws import open_client
from seqgc._durable import temporary_folder
from seqgc.deploy._aws import DeployError, calls, client_config, describe_stack
from seqgc.deploy._context import OwnCode, context_files, require_room, write_context
from seqgc.deploy._deployment import Deployment, DeployOptions
from seqgc.deploy._network import RunNeeds, choose_network

if TYPE_CHECKING:
    from boto3.session import Session

Runner: TypeAlias = Callable[[Sequence[str], Path, Mapping[str, str]], int]
"""Runs a command in a folder with extra environment variables; returns its exit status."""

_TEMPLATE: Final = "template.yaml"
_BUILD: Final = Path(".aws-sam", "build")  # the default of `sam`


def deploy_commands(
    options: DeployOptions, *, region: str, account: str, prefix_list: str = ""
) -> list[list[str]]:
    """Return the commands that deploy a stack. They must be run in the folder of the build context.

    ``prefix_list`` is the id of S3's prefix list, which functions in a VPC need to reach S3.

    Examples
    --------
    >>> build, deploy = deploy_commands(
    ...     DeployOptions(package="zip"), region="eu-central-1", account="123456789012"
    ... )
    >>> build[:5]
    ['sam', 'build', 'ZipWorker', '--template-file', 'template.yaml']
    >>> deploy[:6]
    ['sam', 'deploy', '--template-file', '.aws-sam/build/template.yaml', '--stack-name', 'seqgc']
    """
    overrides = [
        f"{name}={value or chr(34) * 2}"  # sam wants "" for an empty value
        for name, value in options.parameters(prefix_list=prefix_list).items()
    ]
    # sam requires a repository if the template has an image, even if the image is not built.
    unused = f"{account}.dkr.ecr.{region}.amazonaws.com/unused"
    builds_image = options.package == "image" and not options.image_uri
    build = ["sam", "build", options.function, "--template-file", _TEMPLATE]
    build += ["--build-dir", str(_BUILD), "--region", region, "--parameter-overrides", *overrides]
    deploy = ["sam", "deploy", "--template-file"]
    deploy += [_TEMPLATE if options.image_uri else str(_BUILD / "template.yaml")]
    deploy += ["--stack-name", options.stack, "--region", region, "--resolve-s3"]
    deploy += ["--resolve-image-repos"] if builds_image else ["--image-repository", unused]
    deploy += ["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset"]
    deploy += ["--tags", *options.tag] if options.tag else []
    deploy += ["--no-fail-on-empty-changeset", "--parameter-overrides", *overrides]
    return [deploy] if options.image_uri else [build, deploy]


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Run a command with its output on stderr; return its exit status."""
    program = shutil.which(command[0])
    if program is None:
        remedy = "pip install aws-sam-cli, or see AWS's page 'Installing the AWS SAM CLI'"
        raise DeployError(f"`{command[0]}` is not on the PATH", remedy)
    return subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=dict(os.environ) | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=2,  # stdout is for the output of seqgc
        check=False,
    ).returncode


def deploy(
    options: DeployOptions,
    own: OwnCode | None = None,
    *,
    session: Session,
    template: Path | None = None,
    context: Path | None = None,
    needs: RunNeeds | None = None,
    say: Callable[[str], None] | None = None,
    run: Runner = _run,
) -> Deployment:
    """Build and deploy the worker functions; return the deployment.

    This needs the SAM CLI, and for an image also Docker. Their output goes to stderr. The functions
    contain the user's code in ``own``. ``template`` replaces seqgc's template. If ``context`` names
    a new folder, the build context is made there and kept; by default it is temporary. ``needs``
    describes the run that the functions are for. ``say`` is called with a line that says whether
    the functions are in a VPC, and why (see `choose_network`).

    Raises
    ------
    ParameterError
        If the template does not exist, the user's code cannot be included, or the existing stack
        would lose its file system. Nothing is deployed.
    DeployError
        If AWS or the SAM CLI fails.
    """
    files = context_files(options, own or OwnCode(), template=template)
    with calls("ask AWS for the account"):
        account = open_client(session, "sts", config=client_config()).get_caller_identity()[
            "Account"
        ]
    choice = choose_network(
        options, needs=needs or RunNeeds(), outputs=_existing_outputs(options.stack, session)
    )
    if say is not None:
        say(str(choice))
    options, region = choice.options, session.region_name
    prefix_list = _s3_prefix_list(session) if options.vpc else ""
    commands = deploy_commands(options, region=region, account=account, prefix_list=prefix_list)
    # The Makefile of the zip package reads the architecture, which sam does not pass on.
    environment = {"SEQGC_ARCHITECTURE": options.architecture, "SAM_CLI_TELEMETRY": "0"}
    with ExitStack() as stack:
        if context is None:  # `write_context` needs an empty folder; this one has a lock file
            context = stack.enter_context(temporary_folder("seqgc-deploy-")) / "context"
        write_context(files, folder := Path(os.path.realpath(context)))
        for command in commands:
            status = run(command, folder, environment)
            if status != 0:
                name = " ".join(command[:2])
                raise DeployError(f"`{name}` ended with status {status}", "see its output above")
            if options.package == "zip":
                built = (folder / _BUILD / options.function).rglob("*")
                require_room(options.package, (path for path in built if path.is_file()))
    return _read_outputs(options.stack, session=session)


def _s3_prefix_list(session: Session) -> str:
    """Return the id of the list of S3's addresses in the region."""
    name = f"com.amazonaws.{session.region_name}.s3"
    with calls("look up S3's prefix list"):
        lists = open_client(session, "ec2", config=client_config()).describe_managed_prefix_lists(
            Filters=[{"Name": "prefix-list-name", "Values": [name]}]
        )["PrefixLists"]
    if not lists:
        raise DeployError(f"{session.region_name} has no prefix list {name}", "see --region")
    return str(lists[0]["PrefixListId"])


def _existing_outputs(stack: str, session: Session) -> dict[str, str]:
    """Return the outputs of a stack by name. If the stack does not exist, return none."""
    with calls(f"look for stack {stack!r}"):
        client = open_client(session, "cloudformation", config=client_config())
        return _outputs_of(describe_stack(client, stack) or {})


def _outputs_of(description: Mapping[str, Any]) -> dict[str, str]:
    return {each["OutputKey"]: each["OutputValue"] for each in description.get("Outputs", [])}


def _read_outputs(stack: str, *, session: Session) -> Deployment:
    """Return the deployment of a stack. Raise if the last change of the stack failed."""
    with calls(f"read stack {stack!r}"):
        client = open_client(session, "cloudformation", config=client_config())
        description = client.describe_stacks(StackName=stack)["Stacks"][0]
    status = str(description["StackStatus"])
    if not status.endswith("_COMPLETE") or "ROLLBACK" in status or "DELETE" in status:
        events = f"aws cloudformation describe-stack-events --stack-name {stack}"
        raise DeployError(f"stack {stack!r} is in state {status}", f"see `{events}`")
    return Deployment.from_outputs(stack, session.region_name, _outputs_of(description))

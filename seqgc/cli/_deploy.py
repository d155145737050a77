"""``seqgc deploy``: the worker functions on AWS Lambda."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from seqgc.cli._show import print_json, print_pairs
from seqgc.deploy import (
    DEPLOYMENT_FILE,
    Architecture,
    DeployOptions,
    deploy_commands,
    open_session,
    write_deployment,
)
from seqgc.deploy import deploy as deploy_stack
from seqgc.deploy._deploy_options import Package, ThroughputMode
from seqgc.deploy._stack import check_template
from seqgc.errors import ParameterError

__all__ = ["deploy"]

_Option = typer.Option


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What is deployed (`seqgc.deploy.DeployOptions`)."""

    stack: Annotated[str, _Option(help="Name of the CloudFormation stack.")] = "seqgc"
    package: Annotated[
        Package, _Option(help="image: PyTorch models; needs Docker. zip: numpy workloads only.")
    ] = "image"
    image_uri: Annotated[str, _Option(help="An image that is in ECR already; builds nothing.")] = ""
    architecture: Annotated[Architecture, _Option(help="Processor of the functions.")] = "arm64"
    memory_mb: Annotated[int, _Option(help="Memory of a function, MB.")] = 2560
    timeout_s: Annotated[int, _Option(help="Longest invocation, seconds.")] = 60
    reserved_concurrency: Annotated[
        int, _Option(help="Invocations at a time set aside for the function; 0: none.")
    ] = 0
    vpc_id: Annotated[str, _Option(help="An existing VPC; by default one is made.")] = ""
    subnets: Annotated[str, _Option(help="Two subnets of the existing VPC: A,B.")] = ""
    route_table_id: Annotated[
        str, _Option(help="Their route table, to be given a gateway endpoint for S3.")
    ] = ""
    throughput_mode: Annotated[
        ThroughputMode, _Option(help="Throughput mode of the file system.")
    ] = "elastic"
    provisioned_mibps: Annotated[int, _Option(help="MiB/s, if provisioned.")] = 64
    function_url: Annotated[
        bool, _Option("--function-url", help="Make a URL too; callers sign with IAM credentials.")
    ] = False
    log_retention_days: Annotated[int, _Option(help="Days for which logs are kept.")] = 14

    def checked(self) -> DeployOptions:
        """Return the options, or raise `ParameterError`."""
        subnets = tuple(each.strip() for each in self.subnets.split(",") if each.strip())
        return DeployOptions(**asdict(self) | {"subnets": subnets})


def deploy(
    stack: StackOptions,
    region: Annotated[
        str | None, _Option(help="AWS region; by default the AWS configuration's.")
    ] = None,
    template: Annotated[Path, _Option(help="The SAM template.")] = Path("template.yaml"),
    out: Annotated[
        Path, _Option("-o", "--out", help="Where `train` is to find the deployment.")
    ] = Path(DEPLOYMENT_FILE),
    dry_run: Annotated[
        bool, _Option("--dry-run", help="Print the commands; run none, ask AWS nothing.")
    ] = False,
    as_json: Annotated[bool, _Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build and deploy the worker functions on AWS Lambda."""
    options = stack.checked()
    check_template(template)
    if not out.resolve().parent.is_dir():
        raise ParameterError("out", "must be in a folder that exists", str(out))
    if dry_run:
        _print_commands(options, template=template, region=region or "REGION", as_json=as_json)
        return
    deployment = deploy_stack(options, session=open_session(region=region), template=template)
    write_deployment(out, deployment)
    if as_json:
        print_json({"file": str(out)} | asdict(deployment))
        return
    print_pairs({name: str(value) for name, value in asdict(deployment).items()})
    sys.stdout.write(f"Written to {out}. Next: seqgc doctor --deployment {out}\n")


def _print_commands(options: DeployOptions, *, template: Path, region: str, as_json: bool) -> None:
    """Print what would be run; what AWS has to be asked for is in capitals."""
    commands = deploy_commands(
        options, template=template, region=region, account="ACCOUNT", prefix_list="PREFIX-LIST"
    )
    if as_json:
        print_json({"folder": str(template.resolve().parent), "commands": commands})
        return
    for command in commands:
        sys.stdout.write(shlex.join(command) + "\n")

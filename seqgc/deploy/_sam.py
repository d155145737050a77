"""AWS's own tool for the work: which commands, and how they are run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from seqgc.deploy._aws import DeployError
from seqgc.deploy._deploy_options import DeployOptions

__all__ = ["Runner", "deploy_commands", "run_command"]

Runner: TypeAlias = Callable[[Sequence[str], Path, Mapping[str, str]], int]
"""Runs a command in a folder with more environment variables; returns its exit status."""

_BUILD: Final = Path(".aws-sam", "build")  # where `sam` itself would put it


def deploy_commands(
    options: DeployOptions, *, template: Path, region: str, account: str, prefix_list: str
) -> list[list[str]]:
    """Return the commands that deploy, to be run where the template is.

    Examples
    --------
    >>> build, deploy = deploy_commands(
    ...     DeployOptions(package="zip"), template=Path("template.yaml"), region="eu-central-1",
    ...     account="123456789012", prefix_list="pl-1",
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
    # sam asks for a repository wherever a template has an image, be it built or not
    unused = f"{account}.dkr.ecr.{region}.amazonaws.com/unused"
    builds_image = options.package == "image" and not options.image_uri
    build = ["sam", "build", options.function, "--template-file", template.name]
    build += ["--build-dir", str(_BUILD), "--region", region, "--parameter-overrides", *overrides]
    deploy = ["sam", "deploy", "--template-file"]
    deploy += [template.name if options.image_uri else str(_BUILD / "template.yaml")]
    deploy += ["--stack-name", options.stack, "--region", region, "--resolve-s3"]
    deploy += ["--resolve-image-repos"] if builds_image else ["--image-repository", unused]
    deploy += ["--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset"]
    deploy += ["--no-fail-on-empty-changeset", "--parameter-overrides", *overrides]
    return [deploy] if options.image_uri else [build, deploy]


def run_command(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Run a command; what it prints goes to stderr. Return its exit status.

    Raises
    ------
    DeployError
        If there is no such program.
    """
    program = shutil.which(command[0])
    if program is None:
        remedy = "pip install aws-sam-cli, or see AWS's page 'Installing the AWS SAM CLI'"
        raise DeployError(f"`{command[0]}` is not on the PATH", remedy)
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=dict(os.environ) | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=2,  # stdout is for what this program prints
        check=False,
    )
    return done.returncode

"""``seqgc deploy``: the worker functions on AWS Lambda."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from seqgc._region import environment_region
from seqgc.cli._options import AsJson, Region
from seqgc.cli._show import print_json, show
from seqgc.deploy import (
    DEPLOYMENT_FILE,
    DeployOptions,
    check_template,
    deploy_commands,
    open_session,
    write_deployment,
)
from seqgc.deploy import deploy as deploy_stack
from seqgc.errors import ParameterError


def deploy(
    options: DeployOptions,
    region: Region = None,
    template: Annotated[Path, "The SAM template."] = Path("template.yaml"),
    out: Annotated[Path, "-o", "--out", "Where `train` finds it."] = Path(DEPLOYMENT_FILE),
    dry_run: Annotated[bool, "--dry-run", "Print the commands; run none, ask AWS nothing."] = False,
    as_json: AsJson = False,
) -> None:
    """Build and deploy the worker functions on AWS Lambda."""
    check_template(template)
    if not out.resolve().parent.is_dir():
        raise ParameterError("out", "must be in a folder that exists", str(out))
    if dry_run:  # what AWS has to be asked for is in capitals
        where, prefix_list = region or environment_region() or "REGION", "PREFIX-LIST"
        commands = deploy_commands(
            options, template=template, region=where, account="ACCOUNT", prefix_list=prefix_list
        )
        if as_json:
            print_json({"folder": str(template.resolve().parent), "commands": commands})
        else:
            sys.stdout.writelines(shlex.join(command) + "\n" for command in commands)
        return
    deployment = deploy_stack(options, session=open_session(region=region), template=template)
    write_deployment(out, deployment)
    facts = asdict(deployment)
    pairs = {name: str(value) for name, value in facts.items()}
    pairs |= {"written to": str(out), "next": f"seqgc doctor --deployment {out}"}
    show({"file": str(out)} | facts, pairs, as_json=as_json, saved=True)

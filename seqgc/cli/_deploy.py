"""``seqgc deploy``: the worker functions on AWS Lambda."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from seqgc._aws import environment_region
from seqgc.cli._options import AsJson, Region
from seqgc.cli._outputs import require_place
from seqgc.cli._show import print_json, show
from seqgc.deploy import (
    DEPLOYMENT_FILE,
    DeployOptions,
    OwnCode,
    context_files,
    deploy_commands,
    open_session,
    write_context,
    write_deployment,
)
from seqgc.deploy import deploy as deploy_stack


def deploy(
    options: DeployOptions,
    own: OwnCode,
    region: Region = None,
    template: Annotated[Path | None, "Your own SAM template in place of seqgc's."] = None,
    context: Annotated[Path | None, "New folder to make the build context in, and keep."] = None,
    out: Annotated[Path, "-o", "--out", "Where `train` finds it."] = Path(DEPLOYMENT_FILE),
    dry_run: Annotated[
        bool, "--dry-run", "Print the commands; run none, ask AWS nothing; make the context only."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build and deploy the worker functions on AWS Lambda."""
    files = context_files(options, own, template=template)
    require_place(out, argument="out")  # what has been deployed is to be found again
    if dry_run:  # what AWS has to be asked for is in capitals
        where, prefix_list = region or environment_region() or "REGION", "PREFIX-LIST"
        commands = deploy_commands(
            options, region=where, account="ACCOUNT", prefix_list=prefix_list
        )
        folder = None if context is None else os.path.realpath(context)
        if context is not None:
            write_context(files, context)
        if as_json:
            print_json({"folder": folder, "files": sorted(files), "commands": commands})
        else:
            cd = [] if folder is None else [["cd", folder]]
            sys.stdout.writelines(shlex.join(command) + "\n" for command in cd + commands)
        return
    deployment = deploy_stack(
        options, own, session=open_session(region=region), template=template, context=context
    )
    write_deployment(out, deployment)
    facts = asdict(deployment)
    pairs = {name: str(value) for name, value in facts.items()}
    pairs |= {"written to": str(out), "next": f"seqgc doctor --deployment {out}"}
    show({"file": str(out)} | facts, pairs, as_json=as_json, saved=True)

"""``seqgc destroy``: the deployment is taken down; the data only if that is asked for."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from seqgc.cli._messages import say
from seqgc.cli._options import AsJson, Region
from seqgc.cli._show import show
from seqgc.deploy import (
    DEPLOYMENT_FILE,
    DeployError,
    Teardown,
    open_session,
    plan_teardown,
    read_deployment,
    tear_down,
)
from seqgc.errors import ParameterError


def destroy(
    stack: Annotated[str | None, "The stack; by default the deployment's."] = None,
    deployment: Annotated[Path, "What `seqgc deploy` wrote; it goes too."] = Path(DEPLOYMENT_FILE),
    region: Region = None,
    data: Annotated[bool, "--data", "Delete the bucket and the file system too."] = False,
    yes: Annotated[bool, "--yes", "Do not ask."] = False,
    dry_run: Annotated[bool, "--dry-run", "List what would go, and delete nothing."] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the worker functions and all that was deployed with them."""
    written = read_deployment(deployment) if stack is None else None
    if written is not None:
        stack, region = written.stack, region or written.region
    session = open_session(region=region)
    plan = plan_teardown(stack or "", session=session, data=data)
    if not dry_run:
        if not yes:
            _ask(plan, region=session.region_name)
        tear_down(plan, session=session, say=_say)
        if written is not None:
            deployment.unlink(missing_ok=True)
    facts = {"region": session.region_name, "deleted": not dry_run, **asdict(plan)}
    show(facts, _pairs(plan, deleted=not dry_run), as_json=as_json, saved=True)


def _ask(plan: Teardown, *, region: str) -> None:
    if not sys.stdin.isatty():
        raise ParameterError("yes", "must be given where nobody can be asked", False)
    for name, value in _pairs(plan, deleted=False).items():
        _say(f"{name}: {value}")
    if not typer.confirm(f"Delete this in {region}? Runs that use it end.", err=True):
        raise DeployError("nothing is deleted, as answered")


def _pairs(plan: Teardown, *, deleted: bool) -> dict[str, str]:
    kinds = {"goes" if not deleted else "deleted": plan.goes, "stays": plan.stays}
    return {
        word: ", ".join(f"{part.kind.removeprefix('AWS::')} {part.name}" for part in parts) or "-"
        for word, parts in kinds.items()
    }


def _say(line: str) -> None:
    say("destroy", line)

"""``seqgc deploy``, ``seqgc doctor`` and ``seqgc destroy``: the worker functions on AWS Lambda."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from seqgc._aws import environment_region
from seqgc.backends.lambda_ import Address
from seqgc.cli._messages import say
from seqgc.cli._options import AsJson, NumWorkers, Region
from seqgc.cli._show import Screen, busy, print_json, require_writable, show
from seqgc.config._tables import RunConfig, checked, import_plugins, read_config
from seqgc.deploy import (
    DEPLOYMENT_FILE,
    DeployError,
    DeployOptions,
    OwnCode,
    RunNeeds,
    Teardown,
    choose_network,
    context_files,
    deploy_commands,
    diagnose,
    open_session,
    plan_teardown,
    read_deployment,
    tear_down,
    write_context,
    write_deployment,
)
from seqgc.deploy import deploy as deploy_stack
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Payload, payload_format

_COLOURS: Final = {"ok": "green", "failed": "red", "skipped": "dim"}


def deploy(
    options: DeployOptions,
    own: OwnCode,
    region: Region = None,
    template: Annotated[Path | None, "SAM template to use instead of seqgc's."] = None,
    context: Annotated[
        Path | None, "New folder in which to keep the build context. By default a temporary one."
    ] = None,
    output: Annotated[
        Path, "-o", "--output", "File that describes the deployment; `seqgc train` reads it."
    ] = Path(DEPLOYMENT_FILE),
    plan: Annotated[
        Path | None, "TOML file of a run, which decides whether the functions need a VPC."
    ] = None,
    dry_run: Annotated[
        bool,
        "--dry-run",
        "Print the commands; do not run them or contact AWS. Only --context is written.",
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build the worker functions and deploy them on AWS Lambda."""
    files = context_files(options, own, template=template)
    require_writable(output)  # check it now, because later commands need this file
    needs = RunNeeds() if plan is None else _needs_of(plan, memory_mb=options.memory_mb)
    if dry_run:  # words in capitals stand for values that only AWS knows
        choice = choose_network(options, needs=needs, outputs={})
        where, prefix_list = region or environment_region() or "REGION", "PREFIX-LIST"
        commands = deploy_commands(
            choice.options,
            region=where,
            account="ACCOUNT",
            prefix_list=prefix_list if choice.options.vpc else "",
        )
        folder = None if context is None else os.path.realpath(context)
        if context is not None:
            write_context(files, context)
        _say_network(f"{choice} (if the stack {options.stack} does not exist yet)")
        if as_json:
            print_json({"folder": folder, "files": sorted(files), "commands": commands})
        else:
            cd = [] if folder is None else [["cd", folder]]
            sys.stdout.writelines(shlex.join(command) + "\n" for command in cd + commands)
        return
    deployment = deploy_stack(
        options,
        own,
        session=open_session(region=region),
        template=template,
        context=context,
        needs=needs,
        say=_say_network,
    )
    write_deployment(output, deployment)
    facts = asdict(deployment)
    pairs = {name: "-" if value == "" else str(value) for name, value in facts.items()}
    pairs |= {"written to": str(output), "next": f"seqgc doctor --deployment {output}"}
    show({"file": str(output)} | facts, pairs, as_json=as_json, saved=True)


def _needs_of(plan: Path, *, memory_mb: int) -> RunNeeds:
    """Return the needs of the run in a TOML file, on functions with this memory.

    Raise `ParameterError` if functions cannot run it.
    """
    from seqgc import workers  # imports here: other deployments need neither PyTorch nor the plan
    from seqgc.config._making import make_plan

    values = read_config(plan)
    values.setdefault("scheme", RunConfig.model_fields["scheme"].default)
    config = checked(values)
    function = config.function.model_copy(update={"memory_mb": memory_mb})
    for name, needs in (
        ("resident", function.resident),
        ("store", function.store == "directory"),
        ("mount", function.mount is not None),
    ):
        if needs:
            return RunNeeds(file_system=f"`{name}` in {plan}")
    with busy("importing PyTorch, checking the models"):
        import_plugins(config.plugins)
        made = make_plan(config.model_copy(update={"backend": "local"}))
    n = config.workers
    try:
        predicted = workers.undeployed(n, function, file_system=False).forecast(made)
    except ParameterError as error:
        if error.argument != "function.memory_mb":
            raise
        workers.undeployed(n, function).forecast(made)  # it needs more memory in any case
        return RunNeeds(file_system=f"the data of {plan}, which exceed {memory_mb} MB of memory")
    store = predicted.store
    where = "in requests" if store.kind == "inline" else "by S3"
    return RunNeeds(weights=f"weights of {plan} go {where} ({store.reason})")


def _say_network(line: str) -> None:
    say("deploy", line)


# ---- doctor --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorTrials:
    """Options of the checks of ``seqgc doctor`` that invoke functions."""

    invoke: Annotated[bool, "Send two tasks, at the cost of two invocations."] = True
    resident: Annotated[
        bool, "--resident", "Check that a function can connect to this machine and stay connected."
    ] = False
    master_address: Annotated[
        str | None, "IP address of this machine that functions can reach. Needs --resident."
    ] = None


def doctor(
    trial: DoctorTrials,
    deployment: Annotated[Path, "File that `seqgc deploy` wrote."] = Path(DEPLOYMENT_FILE),
    workers: NumWorkers = 16,
    parameters: Annotated[
        int | None,
        "Number of values in one worker's results of a round, to check their size.",
    ] = None,
    payload: Annotated[
        Payload, "Number format of results: float64, float32, float16 or bfloat16."
    ] = "float32",
    region: Region = None,
    as_json: AsJson = False,
) -> int:
    """Check everything that a run on AWS Lambda needs; return 1 if a check fails."""
    require_int("workers", workers, least=1)
    if parameters is not None:
        require_int("parameters", parameters, least=1)
    if trial.master_address is not None and not trial.resident:
        rule = "must be used with --resident"
        raise ParameterError("master_address", rule, trial.master_address)
    address = Address.in_vpc(trial.master_address) if trial.resident else None
    absent = deployment == Path(DEPLOYMENT_FILE) and not deployment.exists()
    deployed = None if absent else read_deployment(deployment)
    width = payload_format(payload).bits // 8
    checks = diagnose(
        deployed,
        session=open_session(region=region or (deployed.region if deployed else None)),
        workers=workers,
        payload_bytes=None if parameters is None else parameters * width,
        probes=trial.invoke,
        address=address,
    )
    healthy = all(check.status != "failed" for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": checks})
        return 0 if healthy else 1
    table = Table.grid(padding=(0, 2))
    for check in checks:
        colour = _COLOURS[check.status]
        table.add_row(f"[{colour}]{check.status}", check.name, escape(check.detail))
        if check.remedy:
            table.add_row("", "", f"[bold]{escape(check.remedy)}")
    Screen().print(table)
    return 0 if healthy else 1


# ---- destroy -------------------------------------------------------------------------------------


def destroy(
    stack: Annotated[str | None, "Name of the stack. By default the deployment's stack."] = None,
    deployment: Annotated[Path, "File that `seqgc deploy` wrote. It is deleted, too."] = Path(
        DEPLOYMENT_FILE
    ),
    region: Region = None,
    delete_data: Annotated[
        bool, "--delete-data", "Delete the bucket and the file system, too."
    ] = False,
    yes: Annotated[bool, "--yes", "Do not ask for confirmation."] = False,
    dry_run: Annotated[bool, "--dry-run", "List what would be deleted; delete nothing."] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the worker functions and everything deployed with them."""
    written = read_deployment(deployment) if stack is None else None
    if written is not None:
        stack, region = written.stack, region or written.region
    session = open_session(region=region)
    plan = plan_teardown(stack or "", session=session, data=delete_data)
    if not dry_run:
        if not yes:
            _ask(plan, region=session.region_name)
        tear_down(plan, session=session, say=_say_deleting)
        if written is not None:
            deployment.unlink(missing_ok=True)
    facts = {"region": session.region_name, "deleted": not dry_run, **asdict(plan)}
    show(facts, _pairs(plan, deleted=not dry_run), as_json=as_json, saved=True)


def _ask(plan: Teardown, *, region: str) -> None:
    if not sys.stdin.isatty():
        rule = "must be given if standard input is no terminal, because nobody can confirm"
        raise ParameterError("yes", rule, False)
    for name, value in _pairs(plan, deleted=False).items():
        _say_deleting(f"{name}: {value}")
    if not typer.confirm(f"Delete this in {region}? Runs that use it will fail.", err=True):
        raise DeployError("the answer was no; nothing was deleted")


def _pairs(plan: Teardown, *, deleted: bool) -> dict[str, str]:
    kinds = {"goes" if not deleted else "deleted": plan.goes, "stays": plan.stays}
    return {
        word: ", ".join(f"{part.kind.removeprefix('AWS::')} {part.name}" for part in parts) or "-"
        for word, parts in kinds.items()
    }


def _say_deleting(line: str) -> None:
    say("destroy", line)

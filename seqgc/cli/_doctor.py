"""``seqgc doctor``: why a run on AWS Lambda would fail, and what mends it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seqgc.cli._show import print_json
from seqgc.deploy import DEPLOYMENT_FILE, Check, diagnose, open_session, read_deployment
from seqgc.errors import ParameterError
from seqgc.ports import Payload

__all__ = ["doctor"]

_WIDTH_BYTES: Final[dict[Payload, int]] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
}
_COLOURS: Final = {"ok": "green", "failed": "red", "skipped": "dim"}


def doctor(
    deployment: Annotated[Path, typer.Option(help="What `seqgc deploy` wrote.")] = Path(
        DEPLOYMENT_FILE
    ),
    workers: Annotated[int, typer.Option("-n", "--workers", help="Number of workers.")] = 16,
    parameters: Annotated[
        int | None, typer.Option(help="Numbers in one worker's results of a round.")
    ] = None,
    payload: Annotated[Payload, typer.Option(help="Format of these numbers.")] = "float32",
    region: Annotated[
        str | None, typer.Option(help="AWS region; by default the AWS configuration's.")
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Send two tasks, which costs two invocations.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Look at everything that a run on AWS Lambda needs; exit status 1 if something is to mend."""
    if workers < 1:
        raise ParameterError("workers", "must be >= 1", workers)
    if parameters is not None and parameters < 1:
        raise ParameterError("parameters", "must be >= 1", parameters)
    absent = deployment == Path(DEPLOYMENT_FILE) and not deployment.exists()
    found = None if absent else read_deployment(deployment)
    checks = diagnose(
        found,
        session=open_session(region=region or (found.region if found else None)),
        workers=workers,
        payload_bytes=None if parameters is None else parameters * _WIDTH_BYTES[payload],
        probes=probe,
    )
    healthy = all(check.status != "failed" for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        _print(checks)
    return 0 if healthy else 1


def _print(checks: list[Check]) -> None:
    table = Table.grid(padding=(0, 2))
    for check in checks:
        colour = _COLOURS[check.status]
        table.add_row(f"[{colour}]{check.status}", check.name, escape(check.detail))
        if check.remedy:
            table.add_row("", "", f"[bold]{escape(check.remedy)}")
    Console().print(table)

"""``seqgc doctor``: why a run on AWS Lambda would fail, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from rich.markup import escape
from rich.table import Table

from seqgc.backends.lambda_ import Address
from seqgc.cli._options import AsJson, NumWorkers, Region
from seqgc.cli._show import Screen, print_json
from seqgc.deploy import DEPLOYMENT_FILE, diagnose, open_session, read_deployment
from seqgc.errors import require_int
from seqgc.ports import Payload, payload_format

_COLOURS: Final = {"ok": "green", "failed": "red", "skipped": "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What is tried."""

    probe: Annotated[bool, "Send two tasks, which costs two invocations."] = True
    resident: Annotated[bool, "--resident", "Let a function call this machine, and stay."] = False
    master_address: Annotated[str | None, "IP address of this machine, for --resident."] = None


def doctor(
    tried: ProbeOptions,
    deployment: Annotated[Path, "What `seqgc deploy` wrote."] = Path(DEPLOYMENT_FILE),
    workers: NumWorkers = 16,
    parameters: Annotated[int | None, "Numbers in one worker's results of a round."] = None,
    payload: Annotated[Payload, "Format of these numbers."] = "float32",
    region: Region = None,
    as_json: AsJson = False,
) -> int:
    """Look at everything that a run on AWS Lambda needs; exit status 1 if something is to mend."""
    require_int("workers", workers, least=1)
    if parameters is not None:
        require_int("parameters", parameters, least=1)
    address = Address.in_vpc(tried.master_address) if tried.resident else None
    absent = deployment == Path(DEPLOYMENT_FILE) and not deployment.exists()
    found = None if absent else read_deployment(deployment)
    width = payload_format(payload).bits // 8
    checks = diagnose(
        found,
        session=open_session(region=region or (found.region if found else None)),
        workers=workers,
        payload_bytes=None if parameters is None else parameters * width,
        probes=tried.probe,
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

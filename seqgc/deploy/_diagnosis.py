"""All checks, in the order in which to repair what they find."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from seqgc.deploy._aws import in_one_line
from seqgc.deploy._deployment import Deployment
from seqgc.deploy._examinations import (
    ACCOUNT,
    DEPLOYED,
    Finding,
    Patient,
    Status,
    payload,
    probe,
    resident,
)
from seqgc.errors import SeqgcError, one_line
from seqgc.wire import StoreRef

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at and found; ``remedy`` is a command that mends it, empty unless failed."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def diagnose(
    deployment: Deployment | None,
    *,
    session: Session,
    workers: int,
    payload_bytes: int | None = None,
    probes: bool = True,
    address: Address | None = None,
    now: Callable[[], float] = time.time,
) -> list[Check]:
    """Look at everything that a run on Lambda needs; never stop at the first thing found.

    What AWS refuses is what was found, and raised nowhere. Without a ``deployment`` nothing is
    deployed yet, and only the account is looked at. ``workers`` invocations are to run at a time,
    and ``payload_bytes``, if known, are those of one worker's results in a round as they travel.
    ``probes`` are two tasks, which cost two invocations and leave two small files. At the
    ``address``, if given, a function that stays is to call this machine. ``now`` tells the seconds
    since 1970.
    """
    patient = Patient(
        session=session,
        deployment=deployment,
        workers=workers,
        probes=probes,
        address=address,
        now=now,
    )
    examinations = {each.__name__: partial(each, patient) for each in ACCOUNT}
    examinations["payload"] = partial(payload, payload_bytes)
    asks = "aws sts get-caller-identity"
    checks = [_examine(name, each, remedy=asks) for name, each in examinations.items()]
    if deployment is None:
        nothing = "nothing is deployed"
        first = Check(name="deployment", status="failed", detail=nothing, remedy="seqgc deploy")
        others = (*(each.__name__ for each in DEPLOYED), "probe-directory", "probe-s3", "resident")
        return [*checks, first, *(Check(name=n, status="skipped", detail=nothing) for n in others)]
    there = f"stack {deployment.stack!r} in {deployment.region}"
    checks.append(Check(name="deployment", status="ok", detail=there))
    examinations = {each.__name__: partial(each, patient, deployment) for each in DEPLOYED}
    folder = f"doctor-{uuid4().hex[:12]}"  # named as runs' are, which go when they are old
    bucket = f"s3://{deployment.bucket}/{deployment.prefix}/{folder}"
    for store in StoreRef(kind="directory", location=folder), StoreRef(kind="s3", location=bucket):
        examinations[f"probe-{store.kind}"] = partial(probe, patient, deployment, store)
    examinations["resident"] = partial(resident, patient, deployment)
    again = deployment.deploy_command
    return checks + [_examine(name, each, remedy=again) for name, each in examinations.items()]


def _examine(name: str, examination: Callable[[], str], *, remedy: str) -> Check:
    """Make a check; ``remedy`` is for faults and refusals of AWS that name none of their own."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return Check(name=name, status="ok", detail=examination())
    except Finding as finding:
        known, detail, status = finding.remedy, finding.detail, finding.status
    except (BotoCoreError, ClientError) as error:
        (detail, known), status = in_one_line(error), "failed"
    except (SeqgcError, OSError) as error:
        known, detail, status = "", one_line(error), "failed"
    mends = (known or remedy) if status == "failed" else ""
    return Check(name=name, status=status, detail=detail, remedy=mends)

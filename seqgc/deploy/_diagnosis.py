"""All checks, in the order in which to repair what they find."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from seqgc.deploy._check import Check, Finding, Patient, examine
from seqgc.deploy._deployment import Deployment
from seqgc.deploy._examinations import ACCOUNT, DEPLOYED, payload, probe
from seqgc.wire import StoreRef

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["diagnose"]


def diagnose(
    deployment: Deployment | None,
    *,
    session: Session,
    workers: int,
    payload_bytes: int | None = None,
    probes: bool = True,
    now: Callable[[], float] = time.time,
) -> list[Check]:
    """Look at everything that a run on Lambda needs; never stop at the first thing found.

    What AWS refuses is what was found, and raised nowhere. Without a ``deployment`` nothing is
    deployed yet, and only the account is looked at. ``workers`` invocations are to run at a time,
    and ``payload_bytes``, if known, are those of one worker's results in a round as they travel.
    ``probes`` are two tasks, which cost two invocations, and leave two small files until they are
    old (`seqgc.stores.remove_forgotten`, and the bucket's own rule). ``now`` tells the seconds
    since 1970.
    """
    patient = Patient(session=session, deployment=deployment, workers=workers, now=now)
    examinations = {each.__name__: partial(each, patient) for each in ACCOUNT}
    examinations["payload"] = partial(payload, payload_bytes)
    asks = "aws sts get-caller-identity"
    checks = [examine(name, each, remedy=asks) for name, each in examinations.items()]
    if deployment is None:
        nothing = "nothing is deployed"
        first = Check(name="deployment", status="failed", detail=nothing, remedy="seqgc deploy")
        others = (*(each.__name__ for each in DEPLOYED), "probe-directory", "probe-s3")
        return [*checks, first, *(Check(name=n, status="skipped", detail=nothing) for n in others)]
    there = f"stack {deployment.stack!r} in {deployment.region}"
    checks.append(Check(name="deployment", status="ok", detail=there))
    examinations = {each.__name__: partial(each, patient, deployment) for each in DEPLOYED}
    for store in _stores(deployment):
        look = partial(_probe_store, patient, deployment, store, probes=probes)
        examinations[f"probe-{store.kind}"] = look
    again = deployment.deploy_command
    return checks + [examine(name, each, remedy=again) for name, each in examinations.items()]


def _probe_store(patient: Patient, deployment: Deployment, store: StoreRef, *, probes: bool) -> str:
    if store.kind == "s3" and not deployment.reaches_s3:
        raise Finding("the functions have no way to S3, as deployed", status="skipped")
    if not probes:
        raise Finding("not asked for: --no-probe", status="skipped")
    return probe(patient, deployment, store=store)


def _stores(deployment: Deployment) -> tuple[StoreRef, StoreRef]:
    name = f"doctor-{uuid4().hex[:12]}"  # as runs' folders are called, which go when they are old
    where = f"s3://{deployment.bucket}/{deployment.prefix}/{name}"
    return StoreRef(kind="directory", location=name), StoreRef(kind="s3", location=where)

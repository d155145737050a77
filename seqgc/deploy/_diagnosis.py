"""All checks, in the order in which to repair what they find."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from seqgc.deploy import _account, _probe, _resources
from seqgc.deploy._check import Check, Patient, examine, failed, passed, skipped
from seqgc.deploy._deployment import Deployment
from seqgc.wire import StoreRef

if TYPE_CHECKING:
    from boto3.session import Session

__all__ = ["diagnose"]

_ACCOUNT: Final[dict[str, Callable[[Patient], Check]]] = {
    "credentials": _account.credentials,
    "clock": _account.clock,
    "region": _account.region,
    "concurrency": _account.concurrency,
    "quota": _account.quota,
}
_DEPLOYED: Final[dict[str, Callable[[Patient, Deployment], Check]]] = {
    "function": _resources.function,
    "alias": _resources.alias,
    "network": _resources.network,
    "subnets": _resources.subnets,
    "mount": _resources.mount,
}
_PROBES: Final = ("probe-directory", "probe-s3")


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

    Parameters
    ----------
    deployment
        What is deployed; None: nothing is yet, and only the account is looked at.
    session
        The caller's credentials and region.
    workers
        How many invocations are to run at a time.
    payload_bytes
        Of one worker's results in a round, as they travel; None: not known.
    probes
        Whether two tasks are sent, which costs two invocations, and leaves two small files until
        they are old (`seqgc.stores.remove_forgotten`, and the bucket's own rule).
    now
        Seconds since 1970.

    Raises
    ------
    DeployError
        Never for what AWS refuses: that is what was found.
    """
    patient = Patient(session=session, deployment=deployment, workers=workers, now=now)
    asks = "aws sts get-caller-identity"
    checks = [examine(name, partial(each, patient), remedy=asks) for name, each in _ACCOUNT.items()]
    checks.append(
        _probe.payload(payload_bytes)
        if payload_bytes is not None
        else skipped("payload", "how many bytes a result has is not known: --parameters")
    )
    if deployment is None:
        checks.append(failed("deployment", "nothing is deployed", remedy="seqgc deploy"))
        return checks + [skipped(name, "nothing is deployed") for name in (*_DEPLOYED, *_PROBES)]
    checks.append(passed("deployment", f"stack {deployment.stack!r} in {deployment.region}"))
    remedy = _resources.remedy_of(deployment)
    for name, each in _DEPLOYED.items():
        checks.append(examine(name, partial(each, patient, deployment), remedy=remedy))
    for name, store in zip(_PROBES, _stores(deployment), strict=True):
        if store.kind == "s3" and not deployment.reaches_s3:
            checks.append(skipped(name, "the functions have no way to S3, as deployed"))
        elif probes:
            look = partial(_probe.probe, patient, deployment, store=store, name=name)
            checks.append(examine(name, look, remedy=remedy))
        else:
            checks.append(skipped(name, "not asked for: --no-probe"))
    return checks


def _stores(deployment: Deployment) -> tuple[StoreRef, StoreRef]:
    name = f"doctor-{uuid4().hex[:12]}"  # as runs' folders are called, which go when they are old
    where = f"s3://{deployment.bucket}/{deployment.prefix}/{name}"
    return StoreRef(kind="directory", location=name), StoreRef(kind="s3", location=where)

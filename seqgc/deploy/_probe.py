"""Checks of the way itself: whether a result fits a reply, and one task sent and answered."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import numpy as np

from seqgc.deploy._check import Finding, Patient
from seqgc.deploy._deployment import Deployment
from seqgc.ports import Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import (
    MESSAGE_LIMIT_BYTES,
    FailureMessage,
    InvokeMessage,
    ReceiptMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    envelope_bytes,
    from_json,
    to_json,
)

__all__ = ["payload", "probe"]

_FRAME_BYTES: Final = 4096  # of a message, beside its numbers
_PROBE: Final = 3  # numbers that the probe asks for
_REFUSED: Final = 256  # characters of what a function says that failed


def payload(size_bytes: int | None) -> str:
    """Whether so many bytes of results (or weights) fit one request or reply."""
    if size_bytes is None:
        detail = "how many bytes a result has is not known: --parameters"
        raise Finding(detail, status="skipped")
    as_json, limit = envelope_bytes(size_bytes + _FRAME_BYTES), MESSAGE_LIMIT_BYTES
    detail = f"{size_bytes} bytes are {as_json} as JSON, Lambda takes {limit}"
    if as_json > limit:
        half = envelope_bytes(size_bytes // 2 + _FRAME_BYTES) <= limit
        narrower = "seqgc train --payload float16 if it is float32 now, or " if half else ""
        remedy = f"{narrower}seqgc train --store directory (EFS) or --store s3"
        raise Finding(detail, remedy=remedy)
    return detail


def probe(patient: Patient, deployment: Deployment, *, store: StoreRef) -> str:
    """Send one task whose answer has to go through a store; see that it is answered so."""
    from botocore.config import Config

    run_id = f"doctor-{uuid4().hex[:12]}"
    config = Config(
        connect_timeout=5, read_timeout=deployment.timeout_s + 10, retries={"total_max_attempts": 1}
    )
    answer = patient.new_client("lambda", config=config).invoke(
        FunctionName=deployment.alias_arn,
        Payload=to_json(encode(_question(store), run_id=run_id)),
    )
    body = answer["Payload"].read()
    logs = f"aws logs tail /seqgc/{deployment.stack} --since 10m --region {deployment.region}"
    if "FunctionError" in answer:
        reason = " ".join(body.decode(errors="replace").split())[:_REFUSED]
        raise Finding(f"the function failed: {reason}", remedy=logs)
    message = decode(from_json(body), run_id=run_id)
    if isinstance(message, FailureMessage):
        raise Finding(message.reason, remedy=logs)
    if not isinstance(message, ReceiptMessage):
        kind = type(message).__name__
        raise Finding(f"the answer did not go through the store: it is a {kind}")
    return f"one task answered, {message.size_bytes} bytes written to {store.kind}"


def _question(store: StoreRef) -> InvokeMessage:
    """Return a task that every image knows, without weights, too large for any reply."""
    nothing = WeightRef(model="probe", version=0, digest="0" * 64, dtype="float32", size=0)
    part = WeightedPoints(
        model="probe",
        weights=nothing,
        points=np.zeros(1, dtype=np.int64),
        coefficients=np.ones(1),
    )
    task = Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=0, parts=(part,)),))
    return InvokeMessage(
        request=TaskMessage(task=task),
        workload=WorkloadRef(name="constant", settings={"size": _PROBE}),
        store=store,
        inline_limit_bytes=0,
    )

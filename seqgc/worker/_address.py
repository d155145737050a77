"""To which task a request is addressed: for services that know nothing of tasks."""

from __future__ import annotations

from seqgc.errors import WireError
from seqgc.wire import decode_invocation, from_json

__all__ = ["task_address", "worker_address"]


def task_address(body: bytes | bytearray) -> tuple[int, int, int] | None:
    """Return the (round, worker, attempt) of the task in a request; None if it holds none.

    A fault plan (`seqgc.local_lambda.FaultPlan`) may draw by it.

    Examples
    --------
    >>> task_address(b"{}")
    """
    try:
        task = decode_invocation(from_json(body))[1].request.task
    except WireError:
        return None
    return task.round, task.worker, task.attempt


def worker_address(body: bytes | bytearray) -> tuple[int] | None:
    """Return the worker, alone in a tuple, whose task a request holds; None if it holds none.

    Examples
    --------
    >>> worker_address(b"{}")
    """
    address = task_address(body)
    return None if address is None else (address[1],)

"""`ClockState`: what a policy of clocks must remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from seqgc.errors import ParameterError, require_int

__all__ = ["ClockState", "read_state"]


class ClockState(TypedDict):
    """What a `ClockPolicy` must remember, as JSON says it: see its `snapshot`."""

    jobs: int  # of the run, as it stands
    completed: list[int]  # clocks, by part
    owners: list[int]  # workers, by part


def read_state(state: object, *, n: int) -> ClockState:
    """Return what JSON said, if it is a state of ``n`` workers.

    `ValueError`, `KeyError` or `TypeError`: it is none.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a policy's state must be a mapping; got {state!r}")
    completed = [require_int("completed", clock, least=0) for clock in state["completed"]]
    owners = [require_int("owners", worker, least=0, most=n - 1) for worker in state["owners"]]
    if not len(completed) == len(owners) == n:
        rule = f"must be a snapshot of {n} workers' clocks"
        raise ParameterError("state", rule, f"parts of {owners} at {completed}")
    return ClockState(
        jobs=require_int("jobs", state["jobs"], least=0),
        completed=completed,
        owners=owners,
    )

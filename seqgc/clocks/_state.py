"""`ClockState`: the state of a `ClockPolicy` in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from seqgc.errors import ParameterError, require_int

__all__ = ["ClockState", "read_state"]


class ClockState(TypedDict):
    """The state of a `ClockPolicy`, as JSON data; made by its `snapshot`."""

    jobs: int  # the number of jobs of the run
    completed: list[int]  # by part: the number of clocks that it has completed
    owners: list[int]  # by part: the worker that computes it


def read_state(state: object, *, n: int) -> ClockState:
    """Return the state that was read from JSON, after checking it.

    Raises
    ------
    TypeError, KeyError, ValueError
        If it is not the state of a policy of ``n`` workers.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a policy's state must be a mapping; got {state!r}")
    completed = [require_int("completed", clock, least=0) for clock in state["completed"]]
    owners = [require_int("owners", worker, least=0, most=n - 1) for worker in state["owners"]]
    if not len(completed) == len(owners) == n:
        rule = f"must be a snapshot of {n} workers' clocks"
        raise ParameterError("state", rule, f"owners {owners}, completed {completed}")
    return ClockState(
        jobs=require_int("jobs", state["jobs"], least=0),
        completed=completed,
        owners=owners,
    )

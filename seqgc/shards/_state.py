"""`ShardPolicyState`: what a policy of shards must remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from seqgc.errors import ParameterError, require_int
from seqgc.shards._stretches import StretchState

__all__ = ["ShardPolicyState", "read_state"]


class ShardPolicyState(TypedDict):
    """What a `ShardPolicy` must remember, as JSON says it: see its `snapshot`."""

    jobs: int  # of the run, as it stands
    tasks: list[int]  # that each worker has been sent
    shards: StretchState
    givers: list[tuple[int, list[int]]]  # whose answers clocks have that are not closed


def read_state(state: object, *, n: int) -> ShardPolicyState:
    """Return what JSON said, if it is a state of ``n`` workers; its shards are not looked at.

    `ValueError`, `KeyError` or `TypeError`: it is none.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a policy's state must be a mapping; got {state!r}")
    tasks = [require_int("tasks", count, least=0) for count in state["tasks"]]
    if len(tasks) != n:
        raise ParameterError("tasks", f"must be of {n} workers", tasks)
    return ShardPolicyState(
        jobs=require_int("jobs", state["jobs"], least=0),
        tasks=tasks,
        shards=state["shards"],
        givers=[
            (job, [require_int("givers", worker, least=0, most=n - 1) for worker in givers])
            for job, givers in state["givers"]
        ],
    )

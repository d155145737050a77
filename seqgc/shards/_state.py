"""`ShardPolicyState`: the state of a `ShardPolicy` in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from seqgc.errors import ParameterError, require_int
from seqgc.shards._stretches import StretchState

__all__ = ["ShardPolicyState", "read_state"]


class ShardPolicyState(TypedDict):
    """The state of a `ShardPolicy`, as JSON data; made by its `snapshot`."""

    jobs: int  # the number of jobs of the run
    tasks: list[int]  # by worker: the number of tasks that it was sent
    shards: StretchState
    givers: list[tuple[int, list[int]]]  # (job, workers that sent parts), for jobs not closed


def read_state(state: object, *, n: int) -> ShardPolicyState:
    """Return the state that was read from JSON, after checking all of it but its ``shards``.

    Raises
    ------
    TypeError, KeyError, ValueError
        If it is not the state of a policy of ``n`` workers.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a policy's state must be a mapping; got {state!r}")
    tasks = [require_int("tasks", count, least=0) for count in state["tasks"]]
    if len(tasks) != n:
        raise ParameterError("tasks", f"must hold {n} numbers, one for each worker", tasks)
    return ShardPolicyState(
        jobs=require_int("jobs", state["jobs"], least=0),
        tasks=tasks,
        shards=state["shards"],
        givers=[
            (job, [require_int("givers", worker, least=0, most=n - 1) for worker in givers])
            for job, givers in state["givers"]
        ],
    )

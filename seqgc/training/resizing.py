"""`resized`, which converts a checkpoint for another number of workers.

Theory of operation
-------------------
Weights, optimizers, batches and the data queue of a run do not depend on the number n of its
workers. The state of the policy does, and so do the results of jobs that have begun but are not
complete. Therefore a run with another n begins a new segment of its policy at its first incomplete
job, in the initial state of the policy. The other jobs that have begun keep their batches:

- A job whose gradient is applied as a whole is computed again, with the same weights and the same
  points. All its results so far are dropped.
- If parts are applied when they arrive, only the other points of the batch are computed. They are
  cut into parts for the new n. So each point is applied once.
- A job that is complete, although an earlier one is not, has a place in the new segment, but no
  work: its turn becomes idle, or no point of its batch is left. If its gradient waits to be applied
  late, it is computed again, and its loss is not recorded again.

Measurements of the earlier workers and the search for a better scheme begin again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import torch

from seqgc.errors import ParameterError
from seqgc.models.results import LossSums
from seqgc.rounds import PolicyDefence, policy_of, require_skipping
from seqgc.training.adaptive import SlowdownState
from seqgc.training.checkpointer import RunSnapshot
from seqgc.training.jobs import Turn
from seqgc.training.learner import Tensors
from seqgc.training.plan import PlannedRun, in_parts
from seqgc.training.stale import uses_name
from seqgc.training.work import batch_sizes
from seqgc.training.workload import FLIGHT, PartsState, WorkloadState

__all__ = ["require_resizable", "resized"]


def require_resizable(planned: PlannedRun) -> None:
    """Raise `ParameterError` if runs of this defence cannot continue with other workers."""
    scheme = planned.setting.scheme
    if isinstance(scheme, PolicyDefence) and scheme.most_again:
        rule = f"must stay as it is with {scheme.spec}, whose shards may be computed again"
        remedy = "resume the run with the number of workers that it has, or use resume=part"
        raise ParameterError("workers", rule, scheme.n, remedy)
    require_skipping(policy_of(planned.setting, num_jobs=1, batches=_batches(planned)))


def resized(snapshot: RunSnapshot, planned: PlannedRun) -> tuple[RunSnapshot, int]:
    """Return a checkpoint in which all jobs that are not complete begin again on other workers.

    Also return the first of these jobs.

    Raises
    ------
    ParameterError
        If the run is complete, or its policy cannot begin in the middle of a run.
    """
    state, scheme = snapshot.state, planned.setting.scheme
    num_jobs = state.workload.turns.num_jobs or planned.num_jobs
    flight = snapshot.files[FLIGHT]
    if in_parts(scheme):
        first, workload, flight = _of_parts(state.workload, flight, planned)
    else:
        first, workload, flight = _of_gradients(state.workload, flight)
    if first >= num_jobs:
        rule = "must stay as it is: the run is complete"
        raise ParameterError("workers", rule, scheme.n, "leave it out to see the result")
    policy = policy_of(
        planned.setting,
        num_jobs=num_jobs,
        batches=_batches(planned),
        payload=planned.plan.payload,
    )
    require_skipping(policy).skip_to(first, round=snapshot.rounds)
    state = replace(
        state,
        held=[],
        workload=workload,
        director=None,
        slowdown=SlowdownState(),
        policy=json.dumps(policy.snapshot()),
        choices=[],
        switches=[],
    )
    return replace(snapshot, state=state, files={**snapshot.files, FLIGHT: flight}), first


def _batches(planned: PlannedRun) -> tuple[int, ...]:
    return batch_sizes(planned.plan.models)


def _of_gradients(state: WorkloadState, flight: Tensors) -> tuple[int, WorkloadState, Tensors]:
    """Return the first incomplete job of a `TorchWorkload`, its state and its tensors in flight.

    The gradient of a complete job that waits after this job is dropped.
    """
    open_jobs = [job for job in state.unapplied if f"gradient.{job}" not in flight]
    first = min(open_jobs, default=state.begun)
    waiting = [job for job in state.unapplied if job > first and job not in open_jobs]
    dropped = {f"gradient.{job}" for job in waiting}
    ended = [job for job in range(first, state.begun) if job not in state.unapplied]
    kept, in_flight = dict(state.turns.kept), dict(state.in_flight)
    for job in ended:
        kept[job] = Turn(bundle=kept[first].bundle, step=None)
        in_flight[job] = in_flight[first]
    workload = replace(
        state,
        unapplied=sorted([*state.unapplied, *ended]),
        in_flight=dict(sorted(in_flight.items())),
        turns=replace(state.turns, kept=kept),
        noted=sorted({*state.noted, *waiting}),
    )
    return first, workload, {name: each for name, each in flight.items() if name not in dropped}


def _of_parts(
    state: WorkloadState, flight: Tensors, planned: PlannedRun
) -> tuple[int, WorkloadState, Tensors]:
    """Return the first incomplete job of a `StaleWorkload`, its state and its tensors in flight."""
    complete = {job for job, each in state.parts.items() if 0 < each.of == len(each.losses)}
    open_jobs = [job for job in state.unapplied if job not in complete]
    first = min(open_jobs, default=state.begun)
    ended = [job for job in range(first, state.begun) if job not in state.parts]
    kept, parts = dict(state.turns.kept), dict(state.parts)
    for job in ended:
        kept[job] = Turn(bundle=0, step=None)
        parts[job] = PartsState(of=0, losses={}, sums=[])
    applies_parts, tensors = _applies_parts(planned), dict(flight)
    for job in [job for job in parts if job >= first]:
        earlier = _earlier(parts[job]) if applies_parts else []
        parts[job] = PartsState(of=0, losses={}, sums=[], earlier=earlier)
        tensors |= _all_used(job, flight)
    workload = replace(
        state,
        unapplied=sorted(parts),
        parts=dict(sorted(parts.items())),
        turns=replace(state.turns, kept=kept),
        noted=sorted({*state.noted, *(job for job in complete if job > first)}),
    )
    return first, workload, tensors


def _applies_parts(planned: PlannedRun) -> bool:
    scheme = planned.setting.scheme
    return in_parts(scheme) and planned.plan.updates_of(scheme).apply == "update"


def _earlier(parts: PartsState) -> list[LossSums]:
    """Return the sums of each model's loss over all points that have been used; [] if none have."""
    of_parts = [parts.losses[part] for part in sorted(parts.losses)]
    of_parts += [parts.earlier] if parts.earlier else []
    return [LossSums.total(of_model) for of_model in zip(*of_parts, strict=True)]


def _all_used(job: int, flight: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a job's used points, as points that other workers have used."""
    found, index = dict[str, torch.Tensor](), 0
    while (uses := flight.get(name := uses_name(job, index))) is not None:
        found[name], index = (uses > 0).to(torch.int8) * 2, index + 1
    return found

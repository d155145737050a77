"""`resized`, which converts a checkpoint for another number of workers.

Theory of operation
-------------------
Weights, optimizers, batches and the data queue of a run do not depend on the number n of its
workers. The state of the policy depends on n, and so do the results of jobs that have begun but are
not complete. Therefore a run with another n begins a new segment of its policy, in the initial
state of the policy, at its first incomplete job. All jobs that have begun keep their batches:

- If the gradient of an incomplete job is applied as a whole, the job is computed again with the
  same weights and the same points. All its results so far are dropped.
- If parts of gradients are applied when they arrive, only the points of the other parts are
  computed. They are cut into new parts for the new n. So each point is applied once.
- A job may be complete although an earlier job is not. It then has a place in the new segment, but
  no work: its turn becomes idle, or no point of its batch is left. However, if its gradient waits
  to be applied late, the job is computed again. Its loss is not recorded a second time.

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
    """Raise `ParameterError` if a run of this kind cannot continue on other workers."""
    scheme = planned.setting.scheme
    if isinstance(scheme, PolicyDefence) and scheme.most_again:
        rule = f"must stay as it is with {scheme.spec}, whose shards may be computed again"
        remedy = "resume the run with the number of workers that it has, or use resume=part"
        raise ParameterError("workers", rule, scheme.n, remedy)
    require_skipping(policy_of(planned.setting, num_jobs=1, batches=_batches(planned)))


def resized(snapshot: RunSnapshot, planned: PlannedRun) -> tuple[RunSnapshot, int]:
    """Return the checkpoint for the number of workers of ``planned``, and its first open job.

    All jobs that are not complete begin again on the new workers. The first of them is returned.

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

    If a complete job follows this job, and its gradient waits to be applied, the gradient is
    dropped.
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
    """Return the sums of each model's loss over all points used so far; [] without such points."""
    of_parts = [parts.losses[part] for part in sorted(parts.losses)]
    of_parts += [parts.earlier] if parts.earlier else []
    return [LossSums.total(of_model) for of_model in zip(*of_parts, strict=True)]


def _all_used(job: int, flight: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of a job's points (`OpenJob.uses`), with all used points marked by 2."""
    found, index = dict[str, torch.Tensor](), 0
    while (uses := flight.get(name := uses_name(job, index))) is not None:
        found[name], index = (uses > 0).to(torch.int8) * 2, index + 1
    return found

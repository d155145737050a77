"""What may change under a run that goes on with ``--accept-changes``: by the fingerprint's names.

A checkpoint holds more than weights: the optimizers' state and settings, the schedule's place in
its rounds, and results of the jobs in flight. So `KINDS` says of every field what it may do.

*Never* changes what the checkpoint is built on: the scheme and its workers, how batches come in
bundles and results in numbers, models' names and networks. An optimizer and a scheduler take their
settings back from the checkpoint with their state: others would have no effect, and would yet be
said to have been accepted. Of these only the code may change.

What *results* are computed from may change as long as none is left that was computed from what was
there before: a gradient is to be of one code, one batch, one loss. Those of the present round are
dropped, since all of it is asked for again. Those of closed rounds, which a scheme with a delay
has, nobody would ask for again: then such a change is refused. So are batches of other sizes where
points were lost that come again (`seqgc.training._queue`).

All else may change at *any* time: who waits how long, limits, what is done beside the gradients.
What the configuration alone knows (``function.timeout_s``) is of that kind: whatever in it counts
for results is seen by its effect on the plan and its models.

What a validation *measures* may change: the best value so far is then of another kind than those
that come, and is dropped with its weights.

``steps`` may become fewer, as far as none have been taken that would be too many. More would not be
taken: how many jobs there are is part of where a schedule is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from seqgc.errors import ParameterError
from seqgc.training._made_of import digest_tensors, two_sides
from seqgc.training.validation import ValidationState

if TYPE_CHECKING:
    import torch

    from seqgc.rounds import Setting
    from seqgc.training._checkpointer import RunSnapshot
    from seqgc.training._packing import PackedJob
    from seqgc.training._plan import TrainingPlan
    from seqgc.training.model import Model
    from seqgc.training.snapshots import Tensors

__all__ = ["KINDS", "accepted"]

_Kind: TypeAlias = Literal["never", "code", "fewer", "results", "measure", "any"]

KINDS: Final[Mapping[str, _Kind]] = {
    "workers": "never",
    "scheme": "never",
    "jobs_per_round": "never",
    "models": "never",
    "name": "never",
    "precision": "never",
    "payload": "never",
    "stochastic_rounding": "never",
    "stale": "never",
    "updates": "never",
    "adaptation": "never",
    "optimizer's settings": "code",
    "scheduler's settings": "code",
    "steps": "fewer",
    "seqgc": "results",
    "audit": "results",
    "module": "results",
    "initial weights": "any",  # as long as those that are not trained are the checkpoint's
    "loss": "results",
    "dataset": "results",
    "batch_size": "results",
    "seed": "results",
    "recipe": "results",
    "factories": "results",
    "autocast": "results",
    "torch": "any",
    "numpy": "any",
    "callbacks with a state": "any",
    "checkpoint_every_s": "any",
    "max_norm": "any",
    "on_failure": "any",
    "mu": "any",
    "wait_out": "any",
    "timeout_s": "any",
    "max_attempts": "any",
    "test_dataset": "any",
    "optimizer": "any",  # its factory: what it makes counts
    "scheduler": "any",
    "settings": "any",
    "gradient_clip_val": "any",
    "gradient_clip_algorithm": "any",
    "validation": "any",
    "measure": "measure",
    "save_every_n_steps": "any",
}
"""Of every field of a fingerprint but those that the configuration alone has."""

_REMEDY: Final = "undo that, or start a new run: weights are in RUN/checkpoints"


def accepted(
    snapshot: RunSnapshot | None,
    before: Mapping[str, str],
    now: Mapping[str, str],
    *,
    plan: TrainingPlan,
    setting: Setting,
) -> tuple[RunSnapshot | None, list[str]]:
    """Return where a run goes on whose fingerprint has changed, and what is worth a warning.

    Raises
    ------
    ParameterError
        If it cannot go on with one of the changes, which it names.
    """
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    for name in sorted(changed, key=_place):
        kind, one, other = _kind(name), before.get(name), now.get(name)
        if kind == "never" or (kind == "code" and _but_code(one) != _but_code(other)):
            raise _refusal(name, one, other, "must stay as it was")
        if kind == "fewer" and not _fits(plan, setting, snapshot, before=one):
            raise _refusal(name, one, other, "must not be more, nor fewer than have begun")
    if snapshot is None:
        return None, []
    _require_networks(snapshot, before, now, plan=plan)
    _require_batches(snapshot, before, now, plan=plan)
    anew = [m.name for m in plan.models if f"{m.name}: measure" in changed]
    snapshot, warnings = _unmeasured(snapshot, anew, plan=plan)
    of_results = [name for name in changed if _kind(name) == "results"]
    if not of_results:
        return snapshot, warnings
    name, *_ = of_results
    if _needs_results(snapshot):
        rule = f"must stay, as checkpoint {snapshot.rounds} has results of jobs in flight"
        raise _refusal(name, before.get(name), now.get(name), rule)
    held = snapshot.state.held
    if not any(map(_results, held)):
        return snapshot, warnings
    state = replace(snapshot.state, held=[_emptied(job) for job in held])
    text = f"results of jobs in flight are dropped, and computed again: {name} has changed"
    return replace(snapshot, state=state), [*warnings, text]


def _place(name: str) -> int:
    return list(KINDS).index(bare) if (bare := name.rpartition(": ")[2]) in KINDS else len(KINDS)


def _kind(name: str) -> _Kind:
    return KINDS.get(name.rpartition(": ")[2], "any")


def _but_code(text: str | None) -> str | None:
    """Return the settings in a fingerprint of these, without the digest of code at its end."""
    return text and text.rpartition(" ")[0]


def _refusal(name: str, one: str | None, other: str | None, rule: str) -> ParameterError:
    was, is_ = two_sides(one, other)
    return ParameterError(name, f"{rule}, also with --accept-changes: {was}", is_, _REMEDY)


def _fits(
    plan: TrainingPlan, setting: Setting, snapshot: RunSnapshot | None, *, before: str | None
) -> bool:
    """Say if a plan has fewer steps than there were, and none of those is left out that began."""
    if snapshot is None:
        return True  # all of it begins again
    done = max(snapshot.state.workload.turns.begun, default=0)
    fewer = before is not None and before.isdecimal() and plan.steps <= int(before)
    return fewer and done <= plan.steps and snapshot.state.begun <= plan.num_jobs(setting)


def _require_networks(
    snapshot: RunSnapshot, before: Mapping[str, str], now: Mapping[str, str], *, plan: TrainingPlan
) -> None:
    """Refuse networks without a place for the checkpoint's weights, or with other fixed ones."""
    for model in plan.models:
        held, due = snapshot.files.get(f"{model.name}.safetensors", {}), model.module.state_dict()
        name = f"{model.name}: module"
        if _shapes(due) != _shapes(held):
            rule = "must have the weights that the checkpoint has"
            raise _refusal(name, before.get(name), now.get(name), rule)
        name = f"{model.name}: initial weights"
        own, others = _fixed(model, held, held), _fixed(model, due, held)
        if before.get(name) != now.get(name) and own != others:
            rule = "must have the fixed weights that the checkpoint has"
            raise _refusal(name, before.get(name), now.get(name), rule)


def _shapes(weights: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}


def _fixed(model: Model, weights: Tensors, held: Tensors) -> str:
    """Return a digest of what is not trained, in the formats of what is ``held``."""
    every = model.module.named_parameters(remove_duplicate=False)
    fixed = weights.keys() - {name for name, each in every if each.requires_grad}
    return digest_tensors(weights[name].to(held[name].dtype) for name in sorted(fixed))


def _require_batches(
    snapshot: RunSnapshot, before: Mapping[str, str], now: Mapping[str, str], *, plan: TrainingPlan
) -> None:
    """Refuse batches of other sizes where points that were lost have come, or will come, again.

    Which points a batch has follows from their number, and from that of the steps before it.
    """
    for model in plan.models:
        name = f"{model.name}: batch_size"
        if (
            before.get(name) != now.get(name)
            and f"{model.name}.queue.safetensors" in snapshot.files
        ):
            rule = f"must stay, as checkpoint {snapshot.rounds} has points that come again"
            raise _refusal(name, before.get(name), now.get(name), rule)


def _unmeasured(
    snapshot: RunSnapshot, anew: Sequence[str], *, plan: TrainingPlan
) -> tuple[RunSnapshot, list[str]]:
    """Return a snapshot without the best validations of the models that are measured ``anew``."""
    workload, warnings = snapshot.state.workload, []
    files, learners = dict(snapshot.files), list(workload.models)
    for index, model in enumerate(plan.models):
        if model.name not in anew or learners[index].validation == ValidationState():
            continue
        learners[index] = replace(learners[index], validation=ValidationState())
        if files.pop(f"{model.name}.best.safetensors", None) is not None:
            why = "what it is validated by has changed"
            warnings.append(f"{model.name}: its best validation is dropped: {why}")
    state = replace(snapshot.state, workload=replace(workload, models=learners))
    return replace(snapshot, files=files, state=state), warnings


# ---- results of the jobs in flight ---------------------------------------------------------------


def _results(job: PackedJob) -> Sequence[tuple[int, int, int]]:
    """Return what has arrived for a job: workers, rounds and slots."""
    return [*job.stored, *(key for key, _ in job.summed)]


def _needs_results(snapshot: RunSnapshot) -> bool:
    """Say if there are results of jobs in flight that are not asked for again."""
    parts, held = snapshot.state.workload.parts, snapshot.state.held
    if any(each.sums for each in parts.values()):
        return True
    first = snapshot.rounds if not parts else float("inf")  # who asks part by part goes on
    return any(round < first for job in held for _, round, _ in _results(job))


def _emptied(job: PackedJob) -> PackedJob:
    return replace(job, rows={}, stored=[], summed=[], sums=[], asked=[])

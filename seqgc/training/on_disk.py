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
points were lost that come again (`seqgc.training.jobs`).

All else may change at *any* time: who waits how long, limits, what is done beside the gradients.
What the configuration alone knows (``function.timeout_s``) is of that kind: whatever in it counts
for results is seen by its effect on the plan and its models.

What a validation *measures* may change: the best value so far is then of another kind than those
that come, and is dropped with its weights.

``steps`` may become fewer, as far as none have been taken that would be too many. More would not be
taken: how many jobs there are is part of where a schedule is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from shutil import rmtree
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from seqgc._durable import sync_folder
from seqgc.errors import DamageError, ParameterError
from seqgc.models.provenance import digest_tensors, two_sides
from seqgc.models.validation import ValidationState
from seqgc.ports import Observer
from seqgc.runs.folder import RunDirectory
from seqgc.runs.journal import Journal
from seqgc.runs.lease import Lease
from seqgc.runs.snapshots import SnapshotFolder
from seqgc.training.checkpointer import RunSnapshot, RunState
from seqgc.training.fingerprint import changes, completed, require_same
from seqgc.training.history import History, Recorder, read_history
from seqgc.training.plan import TrainingPlan
from seqgc.training.work import Workers

if TYPE_CHECKING:
    import torch

    from seqgc.models.model import Model
    from seqgc.rounds import Setting
    from seqgc.runs.packing import PackedJob
    from seqgc.runs.snapshots import Tensors
    from seqgc.training.checkpointer import RunSnapshot
    from seqgc.training.plan import TrainingPlan

__all__ = ["KINDS", "OnDisk", "accepted", "master_of"]

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnDisk:
    """What is on the disk of a run, new or not."""

    directory: RunDirectory
    recorder: Recorder
    snapshot: RunSnapshot | None
    warnings: Sequence[str]


@contextmanager
def master_of(
    directory: RunDirectory,
    plan: TrainingPlan,
    workers: Workers,
    *,
    now: dict[str, str],
    observers: Sequence[Observer],
    accept_changes: bool = False,
    readmit: Sequence[int] = (),
) -> Iterator[OnDisk]:
    """Be the master of a run, whose fingerprint is ``now`` so, that is to ``readmit`` who lied.

    One that is new, or that was ended before its journal said anything, begins in the journal here;
    of any other it says with what it goes on once the checkpoint has been restored (`Session`).
    """
    setting = plan.setting(workers.n)
    with closing(Lease(directory.path)) as lease:
        history = read_history(directory.journal)
        history.require_expelled(readmit)
        if not history.lines:  # by now, whoever made the folder
            sync_folder(directory.path.absolute().parent)
        snapshot, warnings = _newest(directory, history)
        before = completed(history.fingerprint, now)
        if history.num_workers and not accept_changes:
            require_same(before, now)
        elif history.num_workers:
            warnings += [f"changed: {each}" for each in changes(before, now)]
        if snapshot is not None:  # it may be of before what was accepted last
            before = completed(history.fingerprint_of(snapshot.master), now)
        if history.num_workers and before != now:
            snapshot, dropped = accepted(snapshot, before, now, plan=plan, setting=setting)
            warnings += dropped
        history.keep_limits(setting.rule)
        for left_behind in directory.path.glob("weights*"):  # of the masters before
            rmtree(left_behind, ignore_errors=True)
        with closing(Journal(directory.journal, master=lease.number, lines=history.lines)) as file:
            recorder = Recorder(file, history, lease, observers=observers)
            warnings += recorder.recall()
            recorder.begin(now, workers=workers.n)
            recorder.readmit(readmit)
            yield OnDisk(
                directory=directory, recorder=recorder, snapshot=snapshot, warnings=warnings
            )


def _newest(directory: RunDirectory, history: History) -> tuple[RunSnapshot | None, list[str]]:
    """Return where to go on, None for the very beginning, and what is worth a warning."""
    warnings = []
    if history.torn_bytes:
        warnings.append(f"the journal's last line is torn: {history.torn_bytes} bytes are cut off")
    folder = SnapshotFolder(directory.checkpoints, RunState)
    folder.mend()
    if not folder.numbers:  # the first is written when the first tasks have left
        if closed := len(history.answers):
            where = f"the journal has {closed} closed rounds, and {folder.root} no checkpoint"
            warnings.append(f"{where}: the run begins again at its first round")
        return None, warnings
    if not history.num_workers:
        raise DamageError(
            f"journal {directory.journal} has no beginning, and the run has checkpoints "
            f"({', '.join(map(str, folder.numbers))}): restore the journal from a backup"
        )
    snapshot, damage = folder.newest(knows=history.knows)
    return snapshot, [*warnings, *damage]

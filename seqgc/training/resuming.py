"""`acquire_run`, which loads the state of a run from its folder, and checks changes of the run.

A run that is resumed with ``--accept-changes`` continues if its state can be loaded. Two kinds of
changes still raise an error, because they would make the result silently wrong:

- The fields in ``_FIXED`` must not change. The state of the policy depends on them, and an
  optimizer restores its settings from the checkpoint together with its state. The code of an
  optimizer or a scheduler may change.
- The fields in ``_OF_RESULTS`` must not change if the checkpoint contains results of closed rounds,
  or lost points that will be drawn again. The reason is that all results of a gradient must be
  computed with the same code, batch and loss. Results of the open round are dropped, because its
  tasks are sent again.

The checkpoint must also have weights of the same names and shapes as the networks. Weights that are
not trained must have the same values in both, because workers take such weights from the networks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from shutil import rmtree
from typing import Final

import msgspec
import torch

from seqgc._durable import sync_folder
from seqgc.errors import DamageError, ParameterError
from seqgc.master import PackedJob
from seqgc.models.evaluation import ValidationState
from seqgc.models.provenance import excerpts
from seqgc.ports import Observer
from seqgc.rounds import Setting
from seqgc.runs.folder import RunDirectory
from seqgc.runs.journal import Journal, first_entry
from seqgc.runs.lease import Lease
from seqgc.runs.snapshots import SnapshotFolder
from seqgc.training.checkpointer import RunSnapshot, RunState
from seqgc.training.fingerprint import changes, moved, require_same
from seqgc.training.history import History, Recorder, history_since, read_history
from seqgc.training.plan import PlannedRun, TrainingPlan
from seqgc.training.resizing import require_resizable, resized

__all__ = ["RunRecord", "acquire_run", "begun_with"]

_FIXED: Final = (
    "workers",
    "scheme",
    "jobs_per_round",
    "steps",
    "models",
    "name",
    "precision",
    "payload",
    "stochastic_rounding",
    "stale",
    "updates",
    "adaptation",
    "optimizer's settings",
    "scheduler's settings",
)
_OF_RESULTS: Final = (
    "seqgc",
    "audit",
    "module",
    "loss",
    "dataset",
    "batch_size",
    "seed",
    "recipe",
    "factories",
    "autocast",
    "vectorize",
)
_REMEDY: Final = "undo the change, or start a new run: the weights are in RUN/checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """The state of a new or resumed run on the disk."""

    directory: RunDirectory
    recorder: Recorder
    snapshot: RunSnapshot | None
    warnings: Sequence[str]


def begun_with(plan: TrainingPlan, directory: RunDirectory, *, workers: int) -> TrainingPlan:
    """Return the plan with the numbers from the run's beginning, where the plan leaves them open.

    This applies to the number of jobs per round and, if the run began with this number of
    ``workers``, to the number of pieces of ``deal``. Another version of seqgc may choose other
    numbers.
    """
    if isinstance(plan.scheme, Setting):
        return plan
    begin = first_entry(directory.journal)
    fingerprint = (
        {} if begin is None else msgspec.convert(begin.fields["fingerprint"], dict[str, str])
    )
    jobs = fingerprint.get("jobs_per_round", "")
    if plan.jobs_per_round is None and jobs.isdecimal():
        plan = replace(plan, jobs_per_round=int(jobs))
    deal = rf"Deal\(n={workers}, pieces=(\d+)\)"
    pieces = re.fullmatch(deal, fingerprint.get("scheme", ""))
    if plan.scheme == "deal" and pieces is not None:
        plan = replace(plan, scheme=f"deal:pieces={pieces[1]}")
    return plan


@contextmanager
def acquire_run(
    directory: RunDirectory,
    planned: PlannedRun,
    *,
    plan: TrainingPlan,
    now: dict[str, str],
    observers: Sequence[Observer],
    accept_changes: bool = False,
    other_workers: bool = False,
) -> Iterator[RunRecord]:
    """Acquire the run as its master for the block. ``now`` is the current fingerprint.

    ``plan`` is the plan as the user has given it, and ``planned`` its run on the present workers.
    If ``other_workers`` is True, the number and the kind of the workers may have changed.

    If the journal is empty, its first line is written here. Otherwise `TrainingSession` writes the
    new fingerprint after it has restored the checkpoint.
    """
    with closing(Lease(directory.path)) as lease:
        snapshot, history, warnings = _newest(directory)
        if not history.lines:
            sync_folder(directory.path.absolute().parent)
        _require_workers(history, planned, other_workers=other_workers)
        at = partial(_planned_at, plan, directory)
        before = history.fingerprint
        if history.num_workers and other_workers:
            before = moved(before, now, at)
        if history.num_workers and not accept_changes:
            require_same(before, now)
        elif history.num_workers:
            warnings += [f"changed: {each}" for each in changes(before, now)]
        if snapshot is not None:  # it may be older than the most recently accepted changes
            before = moved(snapshot.state.journal.fingerprint, now, at)
            snapshot, said = _for_workers(snapshot, planned)
            warnings += said
        if history.num_workers and before != now:
            snapshot, dropped = _with_changes(snapshot, before, now, plan=planned.plan)
            warnings += dropped
        history.limit(planned.setting.rule)
        for old_weights in directory.path.glob("weights*"):  # of earlier masters
            rmtree(old_weights, ignore_errors=True)
        with closing(Journal(directory.journal, master=lease.number, lines=history.lines)) as file:
            recorder = Recorder(file, history, lease, observers=observers)
            warnings += recorder.restore_observers()
            recorder.begin(now, workers=planned.setting.scheme.n)
            yield RunRecord(
                directory=directory, recorder=recorder, snapshot=snapshot, warnings=warnings
            )


def _newest(directory: RunDirectory) -> tuple[RunSnapshot | None, History, list[str]]:
    """Return the checkpoint from which the run continues, the history since then, and warnings.

    The checkpoint is None if the run begins at its first round.
    """
    journal, warnings = directory.journal, list[str]()
    folder, snapshot = SnapshotFolder(directory.checkpoints, RunState), None
    folder.mend()
    if folder.numbers:
        if first_entry(journal) is None:
            raise DamageError(
                f"journal {journal} has no beginning, although the run has checkpoints "
                f"({', '.join(map(str, folder.numbers))}): restore the journal from a backup"
            )
        histories = list[History]()

        def fits(found: RunSnapshot) -> bool:
            state, by = found.state.journal, found.master
            history = history_since(journal, state, rounds=found.rounds, by=by)
            histories.extend([] if history is None else [history])
            return history is not None

        snapshot, warnings = folder.newest(fits=fits)
        (history,) = histories
    else:  # the first is written when the first tasks have left
        history = read_history(journal)
        if closed := len(history.closed):
            text = f"the journal has {closed} closed rounds, and {folder.root} has no checkpoint"
            warnings.append(f"{text}: the run begins again at its first round")
    if history.torn_bytes:
        text = f"the journal's last line is incomplete: its {history.torn_bytes} bytes are cut off"
        warnings.insert(0, text)
    return snapshot, history, warnings


def _require_workers(history: History, planned: PlannedRun, *, other_workers: bool) -> None:
    """Raise `ParameterError` if the run cannot continue with this number of workers.

    If the run had another number before, forget the rounds in ``history``, which the present
    workers cannot close again as before.
    """
    n = planned.setting.scheme.n
    if history.num_workers in (0, n):
        return
    if not other_workers:
        rule = f"must be {history.num_workers}, as in this run"
        remedy = f"to continue with {n}: seqgc resume RUN --workers {n}, or other_workers=True"
        raise ParameterError("workers", rule, n, remedy)
    require_resizable(planned)
    history.forget_all()


def _planned_at(plan: TrainingPlan, directory: RunDirectory, workers: int) -> PlannedRun:
    """Return the run of the plan on a number of workers, with the numbers of its beginning."""
    return begun_with(plan, directory, workers=workers).for_workers(workers).on(workers)


def _for_workers(snapshot: RunSnapshot, planned: PlannedRun) -> tuple[RunSnapshot, list[str]]:
    """Return the snapshot, converted to the present number of workers, and warnings."""
    then, n = int(snapshot.state.journal.fingerprint["workers"]), planned.setting.scheme.n
    warnings = list[str]()
    if then != n:
        snapshot, first = resized(snapshot, planned)
        text = f"the run had {then} workers, and continues with {n}"
        warnings.append(f"{text}; job {first} is the first that they compute")
    return snapshot, warnings


# ---- changes that were accepted ------------------------------------------------------------------


def _with_changes(
    snapshot: RunSnapshot | None,
    before: Mapping[str, str],
    now: Mapping[str, str],
    *,
    plan: TrainingPlan,
) -> tuple[RunSnapshot | None, list[str]]:
    """Return the checkpoint for a run whose fingerprint has changed, and warnings.

    Raises
    ------
    ParameterError
        If the run cannot continue with one of the changes; the message names the change.
    """
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]

    def refusal(name: str, rule: str) -> ParameterError:
        was, is_ = excerpts(before.get(name), now.get(name))
        rule = f"{rule}, also with --accept-changes: {was}"
        return ParameterError(name, rule, is_, _REMEDY)

    for name in sorted(filter(_is_fixed, changed), key=lambda name: _FIXED.index(_field(name))):
        if _fixed(name, before) != _fixed(name, now):
            raise refusal(name, "must stay as it was")
    if snapshot is None:
        return None, []
    if (misfit := _misfit(snapshot, plan, changed)) is not None:
        raise refusal(*misfit)
    snapshot, warnings = _without_best(snapshot, plan, changed)
    of_results = [name for name in changed if _field(name) in _OF_RESULTS]
    if of_results and _needs_results(snapshot):
        rule = f"must stay as long as checkpoint {snapshot.rounds} has results of jobs in flight"
        raise refusal(of_results[0], rule)
    held = snapshot.state.held
    if of_results and any(map(_results, held)):
        emptied = [replace(job, rows={}, stored=[], summed=[], sums=[], asked=[]) for job in held]
        snapshot = replace(snapshot, state=replace(snapshot.state, held=emptied))
        warnings.append("results of the open round are dropped, and computed again")
    return snapshot, warnings


def _field(name: str) -> str:
    return name.rpartition(": ")[2]


def _is_fixed(name: str) -> bool:
    return _field(name) in _FIXED


def _fixed(name: str, fingerprint: Mapping[str, str]) -> str | None:
    """Return the part of a field that must not change. The digest of an optimizer's code may."""
    text = fingerprint.get(name)
    return text.rpartition(" ")[0] if text and name.endswith("'s settings") else text


def _misfit(
    snapshot: RunSnapshot, plan: TrainingPlan, changed: Collection[str]
) -> tuple[str, str] | None:
    """Return the field and the rule that a network breaks, or None if all networks fit."""
    for model in plan.models:
        held, own = snapshot.files.get(f"{model.name}.safetensors", {}), model.module.state_dict()
        if {name: t.shape for name, t in own.items()} != {
            name: t.shape for name, t in held.items()
        }:
            return f"{model.name}: module", "must have the weights that the checkpoint has"
        parameters = model.module.named_parameters(remove_duplicate=False)
        fixed = held.keys() - {name for name, each in parameters if each.requires_grad}
        same = all(torch.equal(own[name].to(held[name].dtype), held[name]) for name in fixed)
        if f"{model.name}: initial weights" in changed and not same:
            rule = "must have the fixed weights that the checkpoint has"
            return f"{model.name}: initial weights", rule
    return None


def _without_best(
    snapshot: RunSnapshot, plan: TrainingPlan, changed: Collection[str]
) -> tuple[RunSnapshot, list[str]]:
    """Return the snapshot, and warnings.

    The best validation of a model is removed if the way in which validations are measured has
    changed.
    """
    workload, warnings = snapshot.state.workload, []
    files, learners = dict(snapshot.files), list(workload.models)
    for index, model in enumerate(plan.models):
        if f"{model.name}: measure" in changed:
            learners[index] = replace(learners[index], validation=ValidationState())
            if files.pop(f"{model.name}.best.safetensors", None) is not None:
                why = "the data or metrics of its validation have changed"
                warnings.append(f"{model.name}: its best validation is dropped: {why}")
    state = replace(snapshot.state, workload=replace(workload, models=learners))
    return replace(snapshot, files=files, state=state), warnings


def _results(job: PackedJob) -> Sequence[tuple[int, int, int]]:
    """Return the worker, round and slot of each result that has arrived for a job."""
    return [*job.stored, *(key for key, _ in job.summed)]


def _needs_results(snapshot: RunSnapshot) -> bool:
    """Return True if the snapshot has results or lost points that new tasks will not replace."""
    parts, held = snapshot.state.workload.parts, snapshot.state.held
    if any(each.sums for each in parts.values()):
        return True
    if any(name.endswith(".queue.safetensors") for name in snapshot.files):
        return True
    open_round = snapshot.rounds if not parts else float("inf")  # parts belong to no round
    return any(round < open_round for job in held for _, round, _ in _results(job))

"""What is on the disk of a run when a master begins with it, or goes on; see `master_of`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from shutil import rmtree

from seqgc._durable import sync_folder
from seqgc.errors import DamageError
from seqgc.ports import Observer
from seqgc.training._accepted import accepted
from seqgc.training._checkpointer import RunSnapshot, RunState
from seqgc.training._fingerprint import changes, completed, require_same
from seqgc.training._history import History, Recorder, read_history
from seqgc.training._lease import Lease
from seqgc.training._plan import TrainingPlan
from seqgc.training._work import Workers
from seqgc.training.journal import Journal
from seqgc.training.rundir import RunDirectory
from seqgc.training.snapshots import SnapshotFolder

__all__ = ["OnDisk", "master_of"]


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

"""How many threads a master computes with: one, for the cores are the workers'.

A second thread would spin on one of them. PyTorch has threads of its own, and so has each library
for linear algebra that numpy and scipy bring. The limits are the whole process's, other threads
included, and are lifted as they were when a run ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
)
from pathlib import Path

import torch

from seqgc._fault import fault_of
from seqgc.errors import ModelError, StoreError, reraise_stop
from seqgc.models.evaluation import Evaluation, evaluate
from seqgc.models.model import Model
from seqgc.ports import Backend, Dispatch, Notice, Observer, OutlastingBackend, Seen
from seqgc.runs.folder import RunDirectory, new_run_path, require_new
from seqgc.runs.snapshots import SnapshotFolder
from seqgc.stores import RetiringStore
from seqgc.training.adaptive import Switch
from seqgc.training.checkpointer import RandomState, RunState
from seqgc.training.fingerprint import fingerprint
from seqgc.training.plan import PlannedRun, TrainingPlan
from seqgc.training.results import TrainResult
from seqgc.training.resuming import RunRecord, acquire_run
from seqgc.training.session import Session
from seqgc.training.tuner import BackgroundTuner, Tuner
from seqgc.training.work import Crew, LeaseObserver, Work, Workers
from seqgc.training.workload import ModelsWorkload

__all__ = ["one_thread", "resume", "started", "train"]


@contextmanager
def one_thread() -> Iterator[None]:
    """During the block, have one thread for PyTorch and for linear algebra."""
    from threadpoolctl import threadpool_limits  # which functions and workers need not have

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def train(
    plan: TrainingPlan,
    workers: Workers,
    *,
    run: str | Path | None = None,
    observers: Sequence[Observer] = (),
    config: str = "",
    tuner: Tuner | None = None,
    callbacks: Sequence[object] = (),
) -> TrainResult:
    """Train several models at once on unreliable workers, exactly.

    ``run`` is the folder of the run, which must not exist; a new one in ``runs`` unless given. Into
    its ``config.toml`` goes the text ``config``. ``observers`` (logs, progress, a
    `seqgc.costs.Budget`) are shown all that happens, before it goes on record. The ``tuner``
    searches for better settings, a process in the background unless given; it is closed at the end.
    ``callbacks`` hear of steps, validations, checkpoints and the end, and may stop a model or the
    run: see `Callback`.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; nothing is written then.
    WorkerError
        If a round cannot end; what was trained so far is in the run's checkpoints.
    ModelError
        If every model has failed, or one where the plan says to stop then.
    CallbackError
        If a callback raises; the run can be resumed.
    BudgetError
        If the next tasks could pass the budget of an observer.

    Examples
    --------
    >>> import functools, tempfile, torch
    >>> from seqgc import registered_model, workers
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> model = registered_model("net", module="mlp", optimizer=sgd)
    >>> plan = TrainingPlan(models=[model], scheme="gc:s=1", steps=3)
    >>> with tempfile.TemporaryDirectory() as folder, workers.local(2) as w:
    ...     result = train(plan, w, run=Path(folder, "run"))
    >>> result.jobs, result.counts.rounds, result.scheme
    (3, 3, 'gc:s=1')
    """
    planned = plan.on(workers.n)
    path = new_run_path("runs", planned.setting.scheme.spec) if run is None else Path(run)
    require_new(path)
    work = planned.work(path.absolute())
    now = fingerprint(planned, config=config, callbacks=callbacks)

    def begin() -> AbstractContextManager[RunRecord]:
        directory = RunDirectory(path, config=config)
        return acquire_run(directory, planned, now=now, observers=observers)

    return _execute(
        planned, workers, work, begin, observers=observers, tuner=tuner, callbacks=callbacks
    )


def resume(
    run: str | Path,
    plan: TrainingPlan,
    workers: Workers,
    *,
    observers: Sequence[Observer] = (),
    tuner: Tuner | None = None,
    accept_changes: bool = False,
    callbacks: Sequence[object] = (),
) -> TrainResult:
    """Go on with a run whose master has ended, as if nothing had happened.

    It goes back to the newest checkpoint that is whole; rounds that were closed after it are closed
    on the same workers' answers again, so that weights, optimizers and losses get the same bits. If
    one of these workers fails or stays silent, others will do, and a warning says so. Workers that
    an audit has expelled stay expelled. Where workers go on by themselves (``ssp`` and the like)
    there are no such bits: parts of batches that were under way at the checkpoint are computed anew
    on the weights that it has, which are no staler than allowed; a warning says so, and no part is
    applied twice.
    The configuration in its ``config.toml`` and ``plan`` must be what the run was begun with,
    unless ``accept_changes``: then each difference is told as a warning, and the run continues if
    its state can be loaded. The other arguments are those of `train`.

    Raises
    ------
    ParameterError
        If it is not the folder of a run, another master is at work on it, or the configuration, the
        plan, its code or data, or the versions of seqgc, torch or numpy have changed, or functions
        on AWS cannot have the version that it began with any more; nothing is started then.
    DamageError
        If its journal or all of its checkpoints are damaged; nothing is started then.
    BudgetError
        If it has spent more already than a budget among the observers allows.
    """
    directory, planned = RunDirectory(run, reopened=True), plan.on(workers.n)
    now = fingerprint(planned, config=directory.config, callbacks=callbacks)
    begun = acquire_run(
        directory,
        planned,
        now=now,
        observers=observers,
        accept_changes=accept_changes,
    )
    with begun as record:  # before anything is started: what it costs is on record already
        pin = {} if accept_changes else record.recorder.history.pin
        master = record.recorder.master
        name = record.recorder.history.name
        work = planned.work(directory.path.absolute(), master=master, pin=pin, name=name)
        return _execute(
            planned,
            workers,
            work,
            lambda: nullcontext(record),
            observers=observers,
            tuner=tuner,
            callbacks=callbacks,
        )


def _execute(
    planned: PlannedRun,
    workers: Workers,
    work: Work,
    begin: Callable[[], AbstractContextManager[RunRecord]],
    *,
    observers: Sequence[Observer],
    tuner: Tuner | None,
    callbacks: Sequence[object],
) -> TrainResult:
    plan, switches = planned.plan, list[Switch]()
    workers.check(work)
    RandomState.now()  # refuses what no checkpoint could hold
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        crew = stack.enter_context(workers.open(work))
        store = crew.store
        if crew.grace_s is not None:
            slow = RetiringStore(store, rounds=planned.max_delay, grace_s=crew.grace_s)
            store = slow
            stack.callback(slow.close)
            observers = [_retiring(slow), *observers]
        workload = planned.workload(store=store, callbacks=callbacks)
        workload.require_steps(plan.steps)
        stack.callback(workload.abandon)  # in a run that failed some have not been discarded
        backend = stack.enter_context(started(crew, workers, observers=observers))
        record = stack.enter_context(begin())
        stack.callback(record.recorder.rest)
        warnings = [*record.warnings, *record.recorder.pin(crew.pin), *planned.shortcomings()]
        stack.callback(backend.close)  # while there is still somebody to note what it comes to
        if plan.adaptation is not None:
            tuner = stack.enter_context(closing(BackgroundTuner() if tuner is None else tuner))
        session = Session(
            workload,
            run=planned,
            switches=switches,
            tuner=tuner,
            observers=observers,
            recorder=record.recorder,
            snapshot=record.snapshot,
        )
        try:
            seconds = session.run(backend, record.directory, warnings=warnings)
        except BaseException as error:
            path = record.directory.path
            lost = record.recorder.lease.lost()
            if isinstance(error, ModelError):  # there is nothing to go on with
                error.add_note(f"the run: {path}")
            elif lost:
                if lost not in str(error):
                    error.add_note(lost)
            else:
                left = _under_way(backend, open_usd=record.recorder.open_usd)
                last = _last_checkpoint(record.directory, error)
                error.add_note(f"{left}{last}go on with: seqgc resume {path}")
            raise
    path = record.directory.path
    try:  # it is trained, and all of it on the disk
        seen, unevaluated = _evaluated(workload, plan.models)
        result = TrainResult(
            run=path,
            scheme=planned.setting.scheme.spec,
            jobs=session.num_jobs,
            seconds=seconds,
            counts=session.counts,
            evaluations=seen,
            unevaluated=unevaluated,
            payload=work.payload,
            switches=tuple(switches),
            answers=tuple(session.answers),
            parked=dict(workload.parked),
            modules={name: workload.module(name) for name in workload.names},
            best={name: best for name, (best, _) in workload.best().items()},
        )
        workload.aftermath.callbacks.call("on_end", result)
        workload.aftermath.callbacks.require_none_failed()
    except BaseException as error:
        error.add_note(f"all is trained; see what it came to with: seqgc resume {path}")
        raise
    return result


def _under_way(backend: Backend, *, open_usd: float) -> str:
    """Say how many tasks run on whatever becomes of the master, and what they may still cost."""
    count = backend.under_way if isinstance(backend, OutlastingBackend) else 0
    price = f", which may still cost ${open_usd:.4f}" if open_usd else ""
    return f"{count} tasks are under way{price}; " if count else ""


def _last_checkpoint(directory: RunDirectory, error: BaseException) -> str:
    """Say which one is the last, where a file of the run has ended it."""
    if not isinstance(error, OSError | StoreError):
        return ""
    numbers = SnapshotFolder(directory.checkpoints, RunState).numbers
    last = directory.checkpoints / str(numbers[0]) if numbers else "none yet"
    return f"the last checkpoint: {last}; "


def _evaluated(
    workload: ModelsWorkload, models: Sequence[Model]
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Return the evaluations of models by name, and why other models could not be evaluated.

    A model that raised during the run, and raises again now, is in neither. A model that crashed or
    hung is not evaluated at all.
    """
    found, failed = dict[str, Evaluation](), dict[str, str]()
    for model in models:
        parked = workload.parked.get(model.name)
        if parked is not None and parked.kind in ("crashed", "hung"):
            continue
        data = model.dataset if model.test_dataset is None else model.test_dataset
        module = workload.module(model.name)
        try:
            found[model.name] = evaluate(
                module, loss=model.loss, dataset=data, autocast=model.autocast
            )
        except BaseException as error:  # of the user's own module, loss or data
            reraise_stop(error)
            if parked is None or parked.kind != "raised":
                failed[model.name] = fault_of(error)
    return found, failed


@contextmanager
def started(crew: Crew, workers: Workers, *, observers: Sequence[Observer]) -> Iterator[Backend]:
    """Start a crew, and say so to the observers; closes it at the end of the block."""
    for observer in observers:
        if crew.leases is not None and isinstance(observer, LeaseObserver):
            observer.watch(crew.leases)

    def tell(kind: str, fields: dict[str, object]) -> None:
        for observer in observers:
            observer(Notice(kind=kind, fields=fields))

    tell("start", {"workers": workers.n, "provider": workers.provider})
    began = time.monotonic()
    with closing(crew.start()) as backend:
        tell("ready", {"seconds": time.monotonic() - began, "note": crew.note})
        yield backend


def _retiring(store: RetiringStore) -> Observer:
    """Return an observer that lets old weights go as rounds begin."""

    def retire(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0:
            store.advance(seen.round)

    return retire

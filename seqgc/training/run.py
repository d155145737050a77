"""`train` and `resume`, which execute a run from its first check to its `TrainResult`.

During a run, the master computes with one thread, because the workers need the cores.
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
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from seqgc._fault import fault_of
from seqgc.errors import ModelError, StoreError, reraise_stop
from seqgc.models.evaluation import Evaluation, evaluate
from seqgc.models.group_sizes import GroupChoice
from seqgc.models.model import Model
from seqgc.ports import (
    Backend,
    BlobStore,
    Dispatch,
    Notice,
    Observer,
    OutlastingBackend,
    Seen,
)
from seqgc.progress import RunProgress
from seqgc.rounds import num_rounds
from seqgc.runs import LOG
from seqgc.runs.folder import Forgiving, RunDirectory, log_functions, new_run_path, require_new
from seqgc.runs.snapshots import SnapshotFolder
from seqgc.stores import RetiringStore
from seqgc.training.adaptive import Switch
from seqgc.training.checkpointer import RandomState, RunState
from seqgc.training.fingerprint import fingerprint
from seqgc.training.plan import PlannedRun, TrainingPlan
from seqgc.training.results import TrainResult
from seqgc.training.resuming import RunRecord, acquire_run, begun_with
from seqgc.training.session import TrainingSession
from seqgc.training.tuner import BackgroundTuner, Tuner
from seqgc.training.work import Crew, LeaseObserver, Work, Workers
from seqgc.training.workload import ModelsWorkload, try_models

__all__ = ["one_thread", "resume", "started", "train", "weight_store"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch and linear algebra in this process to one thread during the block."""
    from threadpoolctl import threadpool_limits  # functions and workers do without it

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
    quiet: bool = False,
) -> TrainResult:
    """Train the models of a plan on workers that may be slow or fail.

    ``run`` is the folder of the run, which must not exist. By default, it is a new folder in
    ``runs``. The text ``config`` is written to the file ``config.toml`` of the folder.
    ``observers`` (logs, progress, a `seqgc.costs.Budget`) receive every event before it is
    recorded. If the plan has an ``adaptation``, ``tuner`` searches for better settings, by default
    in a background process. The tuner is closed at the end of the run. ``callbacks`` are called for
    steps, validations, checkpoints and the end, and may stop a model or the run (see `Callback`).
    A terminal or a notebook shows the progress of the run, unless ``quiet`` is True.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; nothing is written then.
    WorkerError
        If a round cannot end; the run can be resumed from its checkpoints.
    ModelError
        If all models have failed, or if one model has failed and the plan has
        ``on_failure="stop"``.
    CallbackError
        If a callback raises an error; the run can be resumed.
    BudgetError
        If the next tasks could exceed the budget of an observer.

    Examples
    --------
    >>> import functools, tempfile, torch
    >>> from seqgc import registered_model, workers
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> model = registered_model("net", module="mlp", optimizer=sgd)
    >>> plan = TrainingPlan(models=[model], scheme="gc:s=1", steps=3)
    >>> with tempfile.TemporaryDirectory() as folder, workers.local(2) as w:
    ...     result = train(plan, w, run=Path(folder, "run"))
    >>> result
    <TrainResult: run /...run; scheme gc:s=1; jobs 3; rounds 3; time ... s; least loss ... (net)>
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
        return acquire_run(directory, planned, plan=plan, now=now, observers=observers)

    return _execute(
        planned,
        workers,
        work,
        begin,
        choose_groups=planned.choose_groups,
        observers=observers,
        tuner=tuner,
        callbacks=callbacks,
        quiet=quiet,
    )


def resume(
    run: str | Path,
    plan: TrainingPlan,
    workers: Workers,
    *,
    observers: Sequence[Observer] = (),
    tuner: Tuner | None = None,
    accept_changes: bool = False,
    other_workers: bool = False,
    config: str = "",
    callbacks: Sequence[object] = (),
    quiet: bool = False,
) -> TrainResult:
    """Continue a run whose master has ended.

    The run returns to its newest undamaged checkpoint and continues from there. Workers that an
    audit has expelled remain expelled.

    Usually weights, optimizers and losses get the same bits as without an interruption. If the bits
    of a code depend on which workers answered, rounds that closed after the checkpoint are closed
    again with the answers of the same workers. If one of these workers fails or remains silent,
    other answers are used, and a warning is given. With ``ssp`` and similar defences the bits may
    differ, and a warning is given: parts of gradients that had not arrived at the checkpoint are
    computed again, with weights that are no staler than allowed. Each part is applied once, unless
    the defence allows that parts of a shard are applied again after a failure.

    The configuration in ``config.toml`` and the ``plan`` must be the same as at the beginning of
    the run. If ``jobs_per_round`` of the plan is None, the run uses the number from its beginning.
    If ``accept_changes`` is True, each difference becomes a warning, and the run continues if its
    state can be loaded. If a text ``config`` is given, it replaces the ``config.toml`` of the run.
    The other arguments are the same as for `train`.

    If ``other_workers`` is True, the number and the kind of the workers may differ. With another
    number, jobs that are not complete at the checkpoint are divided among the new workers. Each
    data point is still used once, and the weights of an exact defence differ only by rounding.

    Raises
    ------
    ParameterError
        If ``run`` is not the folder of a run, or another master is executing the run. If the scheme
        or the state of the run does not allow the number of workers. If the configuration, the
        plan, its code or data, or the version of seqgc, torch or numpy has changed. If functions on
        AWS no longer have the version with which the run began. In these cases no worker is
        started.
    DamageError
        If the journal or all checkpoints are damaged, or another version of seqgc wrote them. No
        worker is started.
    BudgetError
        If the run has already spent more than the budget of an observer allows.
    """
    directory = RunDirectory(run, config=config, reopened=True)
    planned = begun_with(plan, directory, workers=workers.n).on(workers.n)
    now = fingerprint(planned, config=directory.config, callbacks=callbacks)
    with acquire_run(
        directory,
        planned,
        plan=plan,
        now=now,
        observers=observers,
        accept_changes=accept_changes,
        other_workers=other_workers,
    ) as record:  # acquired before workers start, so that their costs are recorded
        history, master = record.recorder.history, record.recorder.master
        pin = {} if accept_changes else history.pin
        work = planned.work(directory.path.absolute(), master=master, pin=pin, name=history.name)
        return _execute(
            planned,
            workers,
            work,
            lambda: nullcontext(record),
            choose_groups=(
                partial(GroupChoice, sizes=history.group_sizes)
                if history.fingerprint.get("vectorize") == now["vectorize"]
                else planned.choose_groups
            ),
            observers=observers,
            tuner=tuner,
            callbacks=callbacks,
            quiet=quiet,
        )


def _execute(
    planned: PlannedRun,
    workers: Workers,
    work: Work,
    begin: Callable[[], AbstractContextManager[RunRecord]],
    *,
    choose_groups: Callable[[], GroupChoice],
    observers: Sequence[Observer],
    tuner: Tuner | None,
    callbacks: Sequence[object],
    quiet: bool,
) -> TrainResult:
    plan, switches = planned.plan, list[Switch]()
    workers.check(work)
    RandomState.now()  # raises if no checkpoint can hold the state
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        if not quiet:
            rounds = num_rounds(planned.setting.scheme, planned.num_jobs)
            progress = RunProgress(planned.setting.scheme.spec, total=rounds)
            stack.enter_context(progress)
            # A display that is broken cannot show errors.
            observers = [*observers, Forgiving(progress, warn=lambda _: None)]
            callbacks = [*callbacks, progress]  # not of the fingerprint: it receives the losses
        try_models(plan.models, precision=plan.precision)
        groups = choose_groups()
        work = replace(work, group_sizes=groups.sizes)
        crew = stack.enter_context(workers.open(work))
        store, retires = stack.enter_context(weight_store(crew, rounds=planned.max_delay))
        observers = [*retires, *observers]
        workload = planned.workload(store=store, callbacks=callbacks, tried=True)
        workload.require_steps(plan.steps)
        stack.callback(workload.discard_weights)  # needed if the run fails
        backend = stack.enter_context(started(crew, workers, observers=observers))
        record = stack.enter_context(begin())
        stack.callback(record.recorder.write_last_memories)
        warnings = [*record.warnings, *record.recorder.pin(crew.pin), *planned.shortcomings()]
        warnings += groups.notes
        record.recorder.group(groups.sizes)
        if crew.leases is not None:
            stack.callback(log_functions, record.directory.path / LOG, crew.leases)
        stack.callback(backend.close)  # before the cost of the backend is written
        if plan.adaptation is not None:
            tuner = stack.enter_context(closing(BackgroundTuner() if tuner is None else tuner))
        session = TrainingSession(
            workload,
            run=planned,
            switches=switches,
            tuner=tuner,
            observers=observers,
            recorder=record.recorder,
            provider=workers.provider,
            snapshot=record.snapshot,
        )
        try:
            seconds = session.run(backend, record.directory, warnings=warnings)
        except BaseException as error:
            path = record.directory.path
            lost = record.recorder.lease.lost()
            if isinstance(error, ModelError):  # resuming would fail again
                error.add_note(f"the run: {path}")
            elif lost:
                if lost not in str(error):
                    error.add_note(lost)
            else:
                tasks = _tasks_note(backend, open_usd=record.recorder.open_usd)
                last = _checkpoint_note(record.directory, error)
                error.add_note(f"{tasks}{last}continue with: seqgc resume {path}")
            raise
    path = record.directory.path
    try:
        evaluations, unevaluated = _evaluate_all(workload, plan.models)
        result = TrainResult(
            run=path,
            scheme=planned.setting.scheme.spec,
            jobs=session.num_jobs,
            seconds=seconds,
            counts=session.counts,
            evaluations=evaluations,
            unevaluated=unevaluated,
            payload=work.payload,
            switches=tuple(switches),
            answers=tuple(session.answers),
            parked=dict(workload.parked),
            modules={name: workload.module(name) for name in workload.names},
            best={name: best for name, (best, _) in workload.best().items()},
        )
        workload.after_step.callbacks.call("on_end", result)
        workload.after_step.callbacks.require_none_failed()
    except BaseException as error:
        error.add_note(f"training is complete and saved; show the result with: seqgc resume {path}")
        raise
    return result


def _tasks_note(backend: Backend, *, open_usd: float) -> str:
    """Return a text about the tasks that continue after the master has ended, and their cost."""
    count = backend.under_way if isinstance(backend, OutlastingBackend) else 0
    price = f", which may still cost ${open_usd:.4f}" if open_usd else ""
    return f"{count} tasks are under way{price}; " if count else ""


def _checkpoint_note(directory: RunDirectory, error: BaseException) -> str:
    """Return a text with the last checkpoint if an error of a file or store has ended the run."""
    if not isinstance(error, OSError | StoreError):
        return ""
    numbers = SnapshotFolder(directory.checkpoints, RunState).numbers
    last = directory.checkpoints / str(numbers[0]) if numbers else "none yet"
    return f"the last checkpoint: {last}; "


def _evaluate_all(
    workload: ModelsWorkload, models: Sequence[Model]
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Return two dictionaries by name: evaluations, and reasons why models have no evaluation.

    A model that crashed or hung is not evaluated, and is in neither dictionary. The same holds for
    a model whose code raised an error during the run, and raises an error again now.
    """
    evaluations, failed = dict[str, Evaluation](), dict[str, str]()
    for model in models:
        parked = workload.parked.get(model.name)
        if parked is not None and parked.kind in ("crashed", "hung"):
            continue
        data = model.dataset if model.test_dataset is None else model.test_dataset
        module = workload.module(model.name)
        try:
            evaluations[model.name] = evaluate(
                module, loss=model.loss, dataset=data, autocast=model.autocast
            )
        except BaseException as error:  # from the user's own module, loss or data
            reraise_stop(error)
            if parked is None or parked.kind != "raised":
                failed[model.name] = fault_of(error)
    return evaluations, failed


@contextmanager
def started(crew: Crew, workers: Workers, *, observers: Sequence[Observer]) -> Iterator[Backend]:
    """Start a crew and notify the observers. Close the backend at the end of the block."""
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


@contextmanager
def weight_store(crew: Crew, *, rounds: int) -> Iterator[tuple[BlobStore, list[Observer]]]:
    """Yield the store for a run's weights, and the observers that remove old versions from it.

    ``rounds`` is the number of earlier rounds whose weights tasks may still read.
    """
    if crew.grace_s is None:
        yield crew.store, []
        return
    with closing(RetiringStore(crew.store, rounds=rounds, grace_s=crew.grace_s)) as store:
        yield store, [_retire_weights(store)]


def _retire_weights(store: RetiringStore) -> Observer:
    """Return an observer that removes old weights when rounds begin."""

    def retire(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0:
            store.advance(seen.round)

    return retire

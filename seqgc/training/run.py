"""`train`: a plan and workers, from the first job to the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from seqgc.ports import Backend, Dispatch, Notice, Observer, Payload, Seen
from seqgc.stores import RetiringStore
from seqgc.training._plan import TrainingPlan
from seqgc.training._session import RunCounts, Session
from seqgc.training._tuner import Answer, BackgroundTuner, Tuner
from seqgc.training._work import Crew, Workers
from seqgc.training.adaptive import Switch
from seqgc.training.metrics import Evaluation, evaluate
from seqgc.training.model import Model
from seqgc.training.rundir import RunDirectory, new_run_path, require_new
from seqgc.training.workload import TorchWorkload

__all__ = ["TrainResult", "started", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a finished run came to."""

    run: Path
    scheme: str  # what the run began with
    jobs: int
    seconds: float  # from the first dispatch to the last decoding: workers had been started before
    counts: RunCounts
    evaluations: dict[str, Evaluation]  # by model, on its test data if it has any
    payload: Payload  # the format in which results travelled
    switches: tuple[Switch, ...] = ()
    answers: tuple[Answer, ...] = ()  # of the searches for a better setting

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that ran, in order."""
        return (self.scheme, *(switch.after.scheme.spec for switch in self.switches))


def train(
    plan: TrainingPlan,
    workers: Workers,
    *,
    run: str | Path | None = None,
    observers: Sequence[Observer] = (),
    config: str = "",
    tuner: Tuner | None = None,
) -> TrainResult:
    """Train several models at once on unreliable workers, exactly.

    ``run`` is the folder of the run, which must not exist; a new one in ``runs`` unless given. Into
    its ``config.toml`` goes the text ``config``. ``observers`` (logs, progress, a
    `seqgc.deploy.Budget`) are shown all that happens, before it goes on record. The ``tuner``
    searches for better settings, a process in the background unless given; it is closed at the end.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; nothing is written then.
    WorkerError
        If a round cannot end; what was trained so far is in the run's checkpoints.
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
    >>> result.jobs, len(result.counts.round_seconds), result.scheme
    (3, 3, 'gc:s=1')
    """
    setting, switches = plan.setting(workers.n), list[Switch]()
    path = new_run_path("runs", setting.scheme.spec) if run is None else Path(run)
    require_new(path)
    work = plan.work(path, setting=setting, now=lambda: switches[-1].after if switches else setting)
    workers.check(work)
    with ExitStack() as stack:
        # The cores are the workers': a second thread of the master would spin on one of them.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        crew = stack.enter_context(workers.open(work))
        store = crew.store
        if crew.grace_s is not None:
            delay = plan.max_delay(setting)
            store = slow = RetiringStore(store, rounds=delay, grace_s=crew.grace_s)
            stack.callback(slow.close)
            observers = [_retiring(slow), *observers]
        workload = TorchWorkload(
            plan.models,
            scheme=setting.scheme,
            store=store,
            precision=plan.precision,
            jobs_per_round=setting.jobs_per_round,
            stale=plan.stale,
        )
        stack.callback(workload.abandon)  # in a run that failed some have not been discarded
        backend = stack.enter_context(started(crew, workers, observers=observers))
        if plan.adaptation is not None:
            tuner = stack.enter_context(closing(BackgroundTuner() if tuner is None else tuner))
        session = Session(
            workload,
            plan=plan,
            setting=setting,
            switches=switches,
            tuner=tuner,
            observers=observers,
        )
        seconds = session.run(backend, RunDirectory(path, config=config))
    return TrainResult(
        run=path,
        scheme=setting.scheme.spec,
        jobs=session.num_jobs,
        seconds=seconds,
        counts=session.counts,
        evaluations={model.name: _evaluated(model, workload) for model in plan.models},
        payload=work.payload,
        switches=tuple(switches),
        answers=tuple(session.answers),
    )


def _evaluated(model: Model, workload: TorchWorkload) -> Evaluation:
    data = model.dataset if model.test_dataset is None else model.test_dataset
    return evaluate(workload.module(model.name), loss=model.loss, dataset=data)


@contextmanager
def started(crew: Crew, workers: Workers, *, observers: Sequence[Observer]) -> Iterator[Backend]:
    """Start a crew, and say so to the observers; closes it at the end of the block."""

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

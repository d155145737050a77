"""`train`: models, a scheme and workers, from the first job to the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from seqgc import master
from seqgc.backends import LocalBackend
from seqgc.cost import Budget
from seqgc.errors import ParameterError
from seqgc.ports import Action, Backend, BlobStore, Dispatch, Event, Payload, WeightStore
from seqgc.rounds import ClosingRule
from seqgc.schemes import Scheme
from seqgc.stores import DirectoryStore, RetiringStore
from seqgc.training._data import PointDataset
from seqgc.training._session import RunCounts, Session
from seqgc.training._tuner import Answer, BackgroundTuner, Tuner
from seqgc.training._vectors import Precision, payload_of
from seqgc.training.adaptive import Adaptation, Switch
from seqgc.training.compute import TorchComputeFactory
from seqgc.training.metrics import Evaluation
from seqgc.training.model import Model
from seqgc.training.rundir import RunDirectory, require_new
from seqgc.training.workload import TorchWorkload

__all__ = [
    "BackendFactory",
    "Delays",
    "Remote",
    "RunCounts",
    "TrainResult",
    "train",
]

ROUND_LIMIT_S: Final = 60.0
"""Seconds after which a live round is given up, unless another limit is given."""

Delays: TypeAlias = Callable[[int, int], float]
BackendFactory: TypeAlias = Callable[[int, TorchComputeFactory], Backend]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Remote:
    """Workers that are not sent the models but rebuild them by name, as functions of a cloud do.

    Parameters
    ----------
    open
        ``n -> Backend``.
    store
        Where they find weights, as the master sees it.
    grace_s
        How long versions that the run needs no more are kept for stragglers, which nobody can call
        back, seconds: the functions' time-out.
    """

    open: Callable[[int], Backend]
    store: BlobStore
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a finished run came to.

    ``seconds`` is the loop's time, from the first dispatch to the last decoding: workers had been
    started before. ``evaluations`` are by model, on the test data if there are any. ``scheme`` is
    what the run began with; ``answers`` are those of the searches for a better one; ``payload`` is
    the format in which results travelled.
    """

    run: Path
    scheme: str
    jobs: int
    seconds: float
    counts: RunCounts
    evaluations: dict[str, Evaluation]
    payload: Payload
    switches: tuple[Switch, ...] = ()
    answers: tuple[Answer, ...] = ()

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that ran, in order."""
        return (self.scheme, *(switch.after.scheme.spec for switch in self.switches))


def train(
    models: Sequence[Model],
    *,
    scheme: Scheme,
    steps: int,
    run: str | Path,
    rule: ClosingRule | None = None,
    precision: Precision = "float32",
    payload: Payload | None = None,
    stochastic_rounding: bool = False,
    jobs_per_round: int = 1,
    stale: bool = False,
    delays: Delays | None = None,
    backend: BackendFactory | None = None,
    remote: Remote | None = None,
    budget: Budget | None = None,
    test_data: Mapping[str, PointDataset] | None = None,
    observe: master.Observer | None = None,
    config: str = "",
    adapt: Adaptation | None = None,
    tuner: Tuner | None = None,
    on_switch: Callable[[Switch], None] | None = None,
) -> TrainResult:
    """Train several models at once on unreliable workers, exactly.

    Parameters
    ----------
    models
        See `Model`; they take turns, so that there must be more than ``scheme.delay`` bundles of
        ``jobs_per_round`` (or ``stale``, see `TorchWorkload`).
    scheme
        Its ``n`` is the number of workers.
    steps
        Optimizer steps of each model.
    run
        Folder of the run; must not exist.
    rule
        When rounds close.
    precision
        Of weights, computation and gradients.
    payload
        Format in which results travel (see `seqgc.ports`), no wider than ``precision``, which it
        is unless given. A ``backend`` of your own is to send them so itself.
    stochastic_rounding
        Whether local workers round results to ``payload`` stochastically; seeded, among others,
        from the name of the run's folder (see `LocalBackend`).
    delays
        ``(round, worker) -> seconds``: stragglers to inject into local workers.
    backend
        ``(n, compute factory) -> Backend``; local processes unless given.
    remote
        Instead of ``backend``: workers that have the models already, and the store they read.
    budget
        Stops the run before it costs too much; what was trained so far is in its checkpoints.
    test_data
        By model, what it is evaluated on at the end; its training data unless given.
    observe
        Sees every event and action of the loop.
    config
        Text for the run's ``config.toml``.
    adapt
        When to look for a better scheme and rule, and switch to it; not with ``stale``. Only
        schemes are taken whose delay the number of models allows.
    tuner
        Searches; a process in the background unless given. Closed at the end of the run.
    on_switch
        Told of every switch, before the first task of the new scheme leaves.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; nothing is written then.
    WorkerError
        If a round cannot end; what was trained so far is in the run's checkpoints.
    BudgetError
        If the next tasks could pass the budget.

    Examples
    --------
    >>> import functools, tempfile, torch
    >>> from seqgc.schemes import GC
    >>> points = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
    >>> model = Model(
    ...     name="line",
    ...     module=torch.nn.Linear(1, 1),
    ...     loss=torch.nn.MSELoss(),
    ...     dataset=points,
    ...     optimizer=functools.partial(torch.optim.SGD, lr=0.1),
    ...     batch_size=4,
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train([model], scheme=GC(n=2, s=1), steps=3, run=Path(folder, "run"))
    >>> result.jobs, len(result.counts.round_seconds), result.scheme
    (3, 3, 'gc:s=1')
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ParameterError("steps", "must be an integer >= 1", steps)
    if adapt is not None and stale:
        raise ParameterError("stale", "must be off in a run that looks for a better scheme", stale)
    if backend is not None and remote is not None:
        raise ParameterError("backend", "must be left out where `remote` is given", backend)
    payload = payload_of(precision, payload, stochastic_rounding=stochastic_rounding)
    path = Path(run)
    require_new(path)
    max_delay = scheme.delay if adapt is None else len(models) // jobs_per_round - 1
    slow: RetiringStore | None = None
    store: WeightStore = DirectoryStore(path.absolute() / "weights")  # also for workers elsewhere
    if remote is not None:
        store = slow = RetiringStore(remote.store, rounds=max_delay, grace_s=remote.grace_s)
    workload = TorchWorkload(
        models,
        scheme=scheme,
        store=store,
        precision=precision,
        jobs_per_round=jobs_per_round,
        stale=stale,
    )
    if backend is None:
        backend = partial(
            _local_workers,
            run_id=path.name,
            delays=delays,
            payload=payload,
            stochastic_rounding=stochastic_rounding,
        )
    if remote is not None:
        workers = remote.open(scheme.n)
    else:
        workers = backend(scheme.n, workload.compute_factory(max_delay=max_delay))
    tuner = BackgroundTuner() if tuner is None else tuner
    try:
        session = Session(
            workload,
            scheme=scheme,
            num_jobs=steps * (len(models) // jobs_per_round),
            rule=rule or ClosingRule(timeout_s=ROUND_LIMIT_S),
            payload=payload,
            directory=RunDirectory(path, config=config),
            names=[model.name for model in models],
        )
        if adapt is not None:
            session.adapt(
                adapt,
                tuner=tuner,
                max_delay=max_delay,
                jobs_per_round=jobs_per_round,
                on_switch=on_switch,
            )
        seconds = session.run(workers, _observer(observe, slow), budget=budget)
    finally:
        tuner.close()
        workers.close()
        workload.abandon()  # in a run that failed some have not been discarded
        if slow is not None:
            slow.close()
    return TrainResult(
        run=path,
        scheme=scheme.spec,
        jobs=session.num_jobs,
        seconds=seconds,
        counts=session.counts,
        evaluations={
            m.name: workload.evaluate(m.name, (test_data or {}).get(m.name, m.dataset))
            for m in models
        },
        payload=payload,
        switches=tuple(session.switches),
        answers=tuple(session.answers),
    )


def _observer(
    observe: master.Observer | None, slow: RetiringStore | None
) -> master.Observer | None:
    """Return the observer that also lets old weights go as rounds begin."""
    if slow is None:
        return observe
    store = slow

    def see(seen: Event | Action) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0:
            store.advance(seen.round)
        if observe is not None:
            observe(seen)

    return see


def _local_workers(
    n: int,
    factory: TorchComputeFactory,
    *,
    run_id: str,
    delays: Delays | None,
    payload: Payload,
    stochastic_rounding: bool,
) -> Backend:
    return LocalBackend(
        n,
        factory,
        run_id=run_id,
        delays=delays,
        payload=payload,
        stochastic_rounding=stochastic_rounding,
        preload=("seqgc.training",),
    )

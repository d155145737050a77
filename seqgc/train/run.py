"""`train`: models, a scheme and workers, from the first job to the last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from seqgc import master
from seqgc.backends import LocalBackend
from seqgc.errors import ParameterError
from seqgc.ports import Action, Arrival, Backend, Close, Drop, Event, Failure, RoundRecord
from seqgc.rounds import RoundPolicy, WaitOut, check_closing_rule
from seqgc.schemes import Scheme
from seqgc.stores import DirectoryStore
from seqgc.train._data import PointDataset
from seqgc.train._vectors import Precision
from seqgc.train.checkpoints import save_checkpoint
from seqgc.train.compute import TorchComputeFactory
from seqgc.train.metrics import Evaluation
from seqgc.train.model import Model
from seqgc.train.rundir import EventLog, MetricsLog, RunDirectory, require_new
from seqgc.train.workload import TorchWorkload

__all__ = ["BackendFactory", "ClosingRule", "Delays", "RunCounts", "TrainResult", "train"]

Delays: TypeAlias = Callable[[int, int], float]
BackendFactory: TypeAlias = Callable[[int, TorchComputeFactory], Backend]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRule:
    """When a round closes (spec, section 6), and when it is given up.

    Parameters
    ----------
    mu, wait_out
        See `seqgc.rounds.RoundGate`.
    timeout_s
        Hard limit of a round, seconds.
    max_attempts
        Times a worker's failed task is sent in one round.

    Examples
    --------
    >>> ClosingRule(mu=1.0, wait_out="all").timeout_s
    60.0
    """

    mu: float = 0.0
    wait_out: WaitOut = "feasible"
    timeout_s: float = 60.0
    max_attempts: int = 3

    def __post_init__(self) -> None:
        check_closing_rule(mu=self.mu, wait_out=self.wait_out, timeout_s=self.timeout_s)
        if self.max_attempts < 1:
            raise ParameterError("max_attempts", "must be >= 1", self.max_attempts)


@dataclass(slots=True, kw_only=True)
class RunCounts:
    """What the rounds of a run came to; an observer of the loop."""

    round_seconds: list[float] = field(default_factory=list)
    waited_out: int = 0  # rounds that stayed open beyond (1+mu)*kappa
    stragglers: int = 0  # (round, worker) pairs without a used answer
    answers: int = 0
    failures: int = 0
    dropped: int = 0

    def __call__(self, seen: Event | Action) -> None:
        match seen:
            case Close(record=record):
                self._close(record)
            case Arrival():
                self.answers += 1
            case Failure():
                self.failures += 1
            case Drop():
                self.dropped += 1
            case _:
                pass

    def _close(self, record: RoundRecord) -> None:
        self.round_seconds.append(record.duration_s)
        self.waited_out += record.waited_out
        self.stragglers += int((~record.responded).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a finished run came to.

    ``seconds`` is the loop's time, from the first dispatch to the last decoding: workers had been
    started before. ``evaluations`` are by model, on the test data if there are any.
    """

    run: Path
    scheme: str
    jobs: int
    seconds: float
    counts: RunCounts
    evaluations: dict[str, Evaluation]


def train(
    models: Sequence[Model],
    *,
    scheme: Scheme,
    steps: int,
    run: str | Path,
    rule: ClosingRule | None = None,
    precision: Precision = "float32",
    jobs_per_round: int = 1,
    stale: bool = False,
    delays: Delays | None = None,
    backend: BackendFactory | None = None,
    test_data: Mapping[str, PointDataset] | None = None,
    observe: master.Observer | None = None,
    config: str = "",
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
        Of weights, computation and results.
    delays
        ``(round, worker) -> seconds``: stragglers to inject into local workers.
    backend
        ``(n, compute factory) -> Backend``; local processes unless given.
    test_data
        By model, what it is evaluated on at the end; its training data unless given.
    observe
        Sees every event and action of the loop.
    config
        Text for the run's ``config.toml``.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; nothing is written then.
    WorkerError
        If a round cannot end; what was trained so far is in the run's checkpoints.

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
    path = Path(run)
    require_new(path)
    workload = TorchWorkload(
        models,
        scheme=scheme,
        store=DirectoryStore(path / "weights"),
        precision=precision,
        jobs_per_round=jobs_per_round,
        stale=stale,
    )
    if backend is None:
        backend = partial(_local_workers, run_id=path.name, delays=delays)
    workers = backend(scheme.n, workload.compute_factory())
    try:
        session = _Session(
            workload,
            scheme=scheme,
            num_jobs=steps * (len(models) // jobs_per_round),
            rule=rule or ClosingRule(),
            directory=RunDirectory(path, config=config),
            names=[model.name for model in models],
        )
        seconds = session.run(workers, observe)
    finally:
        workers.close()
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
    )


def _local_workers(
    n: int, factory: TorchComputeFactory, *, run_id: str, delays: Delays | None
) -> Backend:
    return LocalBackend(n, factory, run_id=run_id, delays=delays, preload=("seqgc.train",))


class _Session:
    """One pass of the loop, with everything about it on record."""

    def __init__(
        self,
        workload: TorchWorkload,
        *,
        scheme: Scheme,
        num_jobs: int,
        rule: ClosingRule,
        directory: RunDirectory,
        names: Sequence[str],
    ) -> None:
        self.num_jobs = num_jobs
        self.counts = RunCounts()
        self._workload, self._directory, self._names = workload, directory, names
        self._policy = RoundPolicy(
            scheme.start(num_jobs),
            n=scheme.n,
            mu=rule.mu,
            wait_out=rule.wait_out,
            timeout_s=rule.timeout_s,
            max_attempts=rule.max_attempts,
        )
        self._events = EventLog(
            directory.path / "events.jsonl",
            header={
                "scheme": scheme.spec,
                "workers": scheme.n,
                "jobs": num_jobs,
                "mu": rule.mu,
                "wait_out": rule.wait_out,
                "models": list(names),
            },
        )

    def run(self, workers: Backend, observe: master.Observer | None) -> float:
        """Drive the loop to its end, whatever it is; return its seconds."""
        outcome = "interrupted"
        with MetricsLog(self._directory.path / "metrics.csv") as metrics:

            def see(seen: Event | Action) -> None:
                self._events(seen)
                self.counts(seen)
                if observe is not None:
                    observe(seen)
                if isinstance(seen, Close):
                    metrics.update(self._workload.metrics)

            began = time.perf_counter()
            try:
                master.run(self._policy, workers, self._workload, observe=see)
                self._workload.flush()
                outcome = "finished"
            except Exception as error:
                outcome = f"failed: {error}"
                raise
            finally:
                seconds = time.perf_counter() - began
                metrics.update(self._workload.metrics)
                self._events.write("end", outcome=outcome)
                self._events.close()
                self._save_checkpoints()
        return seconds

    def _save_checkpoints(self) -> None:
        for name in self._names:
            path = self._directory.checkpoints / f"{name}.safetensors"
            save_checkpoint(path, self._workload.module(name))

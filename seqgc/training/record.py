"""Recording delay profiles on live workers, at several loads, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from seqgc._durable import temporary_folder
from seqgc.errors import WorkerError
from seqgc.ports import (
    Arrival,
    Backend,
    IntArray,
    Notice,
    Observer,
    Task,
    WeightedPoints,
    WeightRef,
    WeightStore,
    WorkItem,
)
from seqgc.profiles import DelayProfile, ProfileMeta, fit_load_model
from seqgc.training._plan import RecordingPlan, num_points
from seqgc.training._vectors import ParameterVector, Precision
from seqgc.training._workers import Workers
from seqgc.training.batches import batch_indices
from seqgc.training.model import Model
from seqgc.training.run import started

__all__ = ["FAILED", "LATE", "record_profile"]

FAILED: Final = 1  # status: the worker failed; its time is when that was known
LATE: Final = 2  # status: no answer within the time limit, which is its time


def record_profile(
    plan: RecordingPlan, workers: Workers, *, observers: Sequence[Observer] = ()
) -> list[DelayProfile]:
    """Measure how long workers take to answer, at each of several loads, with a model's gradient.

    In a round every worker computes one mini-task of ``load * batch_size`` data points, one at
    least, and the master waits for everyone. The loads take turns, round by round, and who begins
    moves on each time: a drift of the workers' speed then looks like noise, not like load.

    Parameters
    ----------
    plan
        What to record. Delays are injected by ``row`` of the profile (the warm-up has those of row
        0), worker and load.
    workers
        Whom to record; see `seqgc.workers`.
    observers
        Are shown a `seqgc.ports.Notice` of kind ``round`` after every round, warm-up included.

    Returns
    -------
    profiles
        One per load, in ascending order: ``base_load`` is the data points that each worker had
        over ``batch_size``, and ``alpha`` the slope of all of them together (`fit_load_model`; 0
        where noise turns it negative, None with fewer than two loads). ``status`` is `FAILED`
        or `LATE` where there was no answer.

    Raises
    ------
    ParameterError
        If the workers cannot do that.
    WorkerError
        If no worker at all answers in a round.

    Examples
    --------
    >>> import functools, torch
    >>> from seqgc import workers
    >>> points = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
    >>> line = Model(
    ...     name="line",
    ...     module=torch.nn.Linear(1, 1),
    ...     loss=torch.nn.MSELoss(),
    ...     dataset=points,
    ...     optimizer=functools.partial(torch.optim.SGD, lr=0.1),
    ...     batch_size=4,
    ... )
    >>> plan = RecordingPlan(model=line, rounds=3, loads=(0.5, 1.0))
    >>> with workers.local(2) as w:
    ...     idle, busy = record_profile(plan, w)
    >>> idle.times.shape, idle.meta.base_load, busy.meta.base_load, idle.meta.batch
    ((3, 2), 0.5, 1.0, 4)
    """
    turns, model = tuple(_turns(plan)), plan.model

    def occasion(number: int, worker: int) -> tuple[int, float]:  # noqa: ARG001 (all alike)
        return turns[number].row or 0, turns[number].load

    with temporary_folder("seqgc-profile-") as folder:
        work = plan.work(folder, occasion=occasion)
        workers.check(work)
        with (
            workers.open(work) as crew,
            _published(model, store=crew.store, precision=plan.precision) as weights,
            started(crew, workers, observers=observers) as live,
        ):
            recording = _Recording(model, weights, workers=workers.n, timeout_s=plan.timeout_s)
            for turn in turns:
                recording.play(turn, live)
                fields = {"done": turn.number + 1, "total": len(turns)}
                for observer in observers:
                    observer(Notice(kind="round", fields=fields))
    return _with_alpha(recording.profiles(plan, provider=workers.provider))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One round: its number on the backend, and what it is of the profile (None: warm-up)."""

    number: int
    load: float
    row: int | None


def _turns(plan: RecordingPlan) -> Iterator[_Turn]:
    """Yield the rounds: which load's turn it is."""
    number, loads = 0, tuple(plan.loads)
    for turn in range(plan.warmup + plan.rounds):
        row = turn - plan.warmup if turn >= plan.warmup else None
        first = turn % len(loads)
        for load in loads[first:] + loads[:first]:
            yield _Turn(number=number, load=load, row=row)
            number += 1


class _Recording:
    """Plays rounds on a backend, and keeps what they took."""

    def __init__(self, model: Model, weights: WeightRef, *, workers: int, timeout_s: float) -> None:
        self._model, self._weights = model, weights
        self._workers, self._timeout_s = workers, timeout_s
        self._rows: dict[tuple[float, int], tuple[list[float], list[int]]] = {}
        self._reason = "no answer within the time limit"

    def play(self, turn: _Turn, backend: Backend) -> None:
        """Play one round to its end: everybody answered or failed, or the time is over."""
        tasks = [self._task(turn, worker) for worker in range(self._workers)]
        left_at = backend.dispatch(turn.number, tasks)
        until = max(left_at) + self._timeout_s
        times, status = [self._timeout_s] * self._workers, [LATE] * self._workers
        waiting = set(range(self._workers))
        while waiting and (event := backend.receive(until)) is not None:
            if event.round != turn.number or event.worker not in waiting:
                continue  # an answer to an earlier round, too late for it
            waiting.remove(event.worker)
            times[event.worker] = event.at - left_at[event.worker]
            if isinstance(event, Arrival):
                status[event.worker] = 0
            else:
                status[event.worker], self._reason = FAILED, event.reason
        if waiting:
            backend.cancel(turn.number, sorted(waiting))
        if all(status):
            message = f"no worker answered in round {turn.number} (load {turn.load:g})"
            raise WorkerError(f"{message}: {self._reason}", round=turn.number)
        if turn.row is not None:
            self._rows[turn.load, turn.row] = (times, status)

    def profiles(self, plan: RecordingPlan, *, provider: str) -> list[DelayProfile]:
        """Return what was recorded, by ascending load."""
        model = plan.model
        now = datetime.now(UTC).isoformat(timespec="seconds")
        profiles = []
        for load in plan.loads:
            rows = [self._rows[load, row] for row in range(plan.rounds)]
            meta = ProfileMeta(
                base_load=num_points(load, model.batch_size) / model.batch_size,
                batch=model.batch_size,
                model=model.name,
                provider=provider,
                recorded_at=now,
                source="recorded by seqgc, every worker awaited",
            )
            times = np.array([times for times, _ in rows])
            status = np.array([status for _, status in rows], dtype=np.int8)
            profiles.append(DelayProfile(times=times, status=status, meta=meta))
        return profiles

    def _task(self, turn: _Turn, worker: int) -> Task:
        points = self._points(turn, worker)
        part = WeightedPoints(
            model=self._model.name,
            weights=self._weights,
            points=points,
            coefficients=np.full(len(points), 1 / self._model.batch_size),
        )
        items = (WorkItem(slot=0, parts=(part,)),)
        return Task(round=turn.number, worker=worker, attempt=0, items=items)

    def _points(self, turn: _Turn, worker: int) -> IntArray:
        """Return a worker's share of the round's batch, which begins where that of others does not.

        Loads above 1, as of bundles of models, go round the batch more than once.
        """
        size = self._model.batch_size
        batch = batch_indices(
            len(self._model.dataset), batch_size=size, seed=self._model.seed, step=turn.number
        )
        first = worker * size // self._workers
        return batch[(first + np.arange(num_points(turn.load, size))) % size]


def _with_alpha(profiles: list[DelayProfile]) -> list[DelayProfile]:
    if len(profiles) < 2:
        return profiles
    alpha = max(fit_load_model(profiles).alpha, 0.0)
    return [replace(p, meta=replace(p.meta, alpha=alpha)) for p in profiles]


@contextmanager
def _published(model: Model, *, store: WeightStore, precision: Precision) -> Iterator[WeightRef]:
    weights = ParameterVector(model.module).read().astype(precision)
    ref = store.publish(model.name, 0, weights)
    try:
        yield ref
    finally:
        store.discard(ref)

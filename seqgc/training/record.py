"""Recording delay profiles on live workers, at several loads, before anything is trained."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, TypeAlias

import numpy as np

from seqgc.backends import LocalBackend
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import (
    Arrival,
    Backend,
    IntArray,
    Task,
    WeightedPoints,
    WeightRef,
    WeightStore,
    WorkItem,
)
from seqgc.profiles import DelayProfile, ProfileMeta, fit_load_model
from seqgc.stores import DirectoryStore
from seqgc.training._vectors import ParameterVector, Precision
from seqgc.training.batches import batch_indices
from seqgc.training.compute import TorchComputeFactory
from seqgc.training.model import Model
from seqgc.training.run import BackendFactory, Remote

__all__ = ["FAILED", "LATE", "LoadDelays", "record_profile"]

# (round of the profile, worker, normalized load) -> seconds
LoadDelays: TypeAlias = Callable[[int, int, float], float]

FAILED: Final = 1  # status: the worker failed; its time is when that was known
LATE: Final = 2  # status: no answer within the time limit, which is its time


def record_profile(
    model: Model,
    *,
    workers: int,
    rounds: int,
    loads: Sequence[float],
    warmup: int = 1,
    timeout_s: float = 60.0,
    precision: Precision = "float32",
    delays: LoadDelays | None = None,
    backend: BackendFactory | None = None,
    remote: Remote | None = None,
    provider: str = "local",
    on_round: Callable[[], None] | None = None,
) -> list[DelayProfile]:
    """Measure how long workers take to answer, at each of ``loads``, with a model's gradient.

    In a round every worker computes one mini-task of ``load * batch_size`` data points, one at
    least, and the master waits for everyone. The loads take turns, round by round, and who begins
    moves on each time: a drift of the workers' speed then looks like noise, not like load.

    Parameters
    ----------
    model
        Nothing is trained: the weights stay as they are.
    rounds
        Rounds of each profile.
    loads
        Normalized loads, distinct and >= 0.
    warmup
        Rounds at every load that are not recorded.
    timeout_s
        Who has not answered a round by then is recorded as `LATE`.
    delays
        Seconds to inject into local workers. The warm-up has those of round 0.
    backend
        ``(n, compute factory) -> Backend``; local processes unless given.
    remote
        Instead of ``backend``: workers that have the model already, and the store they read.
    provider
        Kept in the profiles.
    on_round
        Called after every round, ``len(loads) * (warmup + rounds)`` times.

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
        If an argument breaks its rule.
    WorkerError
        If no worker at all answers in a round.

    Examples
    --------
    >>> import functools, torch
    >>> points = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
    >>> line = Model(
    ...     name="line",
    ...     module=torch.nn.Linear(1, 1),
    ...     loss=torch.nn.MSELoss(),
    ...     dataset=points,
    ...     optimizer=functools.partial(torch.optim.SGD, lr=0.1),
    ...     batch_size=4,
    ... )
    >>> idle, busy = record_profile(line, workers=2, rounds=3, loads=(0.5, 1.0))
    >>> idle.times.shape, idle.meta.base_load, busy.meta.base_load, idle.meta.batch
    ((3, 2), 0.5, 1.0, 4)
    """
    plan = _Plan(rounds=rounds, warmup=warmup, loads=_checked_loads(loads, model.batch_size))
    _check_count("workers", workers, least=1)
    if not 0 < timeout_s < math.inf:
        raise ParameterError("timeout_s", "must be a finite number > 0", timeout_s)
    if backend is not None and remote is not None:
        raise ParameterError("backend", "must be left out where `remote` is given", backend)
    if delays is not None and not (backend is None and remote is None):
        rule = "must be left out with a backend of your own: it injects its own"
        raise ParameterError("delays", rule, delays)
    with tempfile.TemporaryDirectory(prefix="seqgc-profile-") as folder:
        store = DirectoryStore(folder) if remote is None else remote.store

        def open_backend() -> Backend:
            if remote is not None:
                return remote.open(workers)
            factory = TorchComputeFactory(models=[model], store=store, precision=precision)
            if backend is not None:
                return backend(workers, factory)
            return _local_workers(workers, factory, delays=plan.injected(delays))

        with (
            _published(model, store=store, precision=precision) as weights,
            closing(open_backend()) as live,
        ):
            recording = _Recording(model, weights, workers=workers, timeout_s=timeout_s)
            for slot in plan.slots():
                recording.play(slot, live)
                if on_round is not None:
                    on_round()
    return _with_alpha(recording.profiles(plan, model, provider=provider))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One round: its number on the backend, and what it is of the profile (None: warm-up)."""

    number: int
    load: float
    row: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Which load's turn it is, round by round."""

    rounds: int
    warmup: int
    loads: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_count("rounds", self.rounds, least=1)
        _check_count("warmup", self.warmup, least=0)

    def slots(self) -> Iterator[_Slot]:
        number = 0
        for turn in range(self.warmup + self.rounds):
            row = turn - self.warmup if turn >= self.warmup else None
            first = turn % len(self.loads)
            for load in self.loads[first:] + self.loads[:first]:
                yield _Slot(number=number, load=load, row=row)
                number += 1

    def injected(self, delays: LoadDelays | None) -> Callable[[int, int], float] | None:
        """Return the delays by the backend's round and worker."""
        if delays is None:
            return None
        slots = tuple(self.slots())

        def of_slot(number: int, worker: int) -> float:
            return delays(slots[number].row or 0, worker, slots[number].load)

        return of_slot


class _Recording:
    """Plays rounds on a backend, and keeps what they took."""

    def __init__(self, model: Model, weights: WeightRef, *, workers: int, timeout_s: float) -> None:
        self._model, self._weights = model, weights
        self._workers, self._timeout_s = workers, timeout_s
        self._rows: dict[tuple[float, int], tuple[list[float], list[int]]] = {}
        self._reason = "no answer within the time limit"

    def play(self, slot: _Slot, backend: Backend) -> None:
        """Play one round to its end: everybody answered or failed, or the time is over."""
        tasks = [self._task(slot, worker) for worker in range(self._workers)]
        left_at = backend.dispatch(slot.number, tasks)
        until = max(left_at) + self._timeout_s
        times, status = [self._timeout_s] * self._workers, [LATE] * self._workers
        waiting = set(range(self._workers))
        while waiting and (event := backend.receive(until)) is not None:
            if event.round != slot.number or event.worker not in waiting:
                continue  # an answer to an earlier round, too late for it
            waiting.remove(event.worker)
            times[event.worker] = event.at - left_at[event.worker]
            if isinstance(event, Arrival):
                status[event.worker] = 0
            else:
                status[event.worker], self._reason = FAILED, event.reason
        if waiting:
            backend.cancel(slot.number, sorted(waiting))
        if all(status):
            message = f"no worker answered in round {slot.number} (load {slot.load:g})"
            raise WorkerError(f"{message}: {self._reason}", round=slot.number)
        if slot.row is not None:
            self._rows[slot.load, slot.row] = (times, status)

    def profiles(self, plan: _Plan, model: Model, *, provider: str) -> list[DelayProfile]:
        """Return what was recorded, by ascending load."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        profiles = []
        for load in plan.loads:
            rows = [self._rows[load, row] for row in range(plan.rounds)]
            meta = ProfileMeta(
                base_load=_num_points(load, model.batch_size) / model.batch_size,
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

    def _task(self, slot: _Slot, worker: int) -> Task:
        points = self._points(slot, worker)
        part = WeightedPoints(
            model=self._model.name,
            weights=self._weights,
            points=points,
            coefficients=np.full(len(points), 1 / self._model.batch_size),
        )
        items = (WorkItem(slot=0, parts=(part,)),)
        return Task(round=slot.number, worker=worker, attempt=0, items=items)

    def _points(self, slot: _Slot, worker: int) -> IntArray:
        """Return a worker's share of the round's batch, which begins where that of others does not.

        Loads above 1, as of bundles of models, go round the batch more than once.
        """
        size = self._model.batch_size
        batch = batch_indices(
            len(self._model.dataset), batch_size=size, seed=self._model.seed, step=slot.number
        )
        first = worker * size // self._workers
        return batch[(first + np.arange(_num_points(slot.load, size))) % size]


def _with_alpha(profiles: list[DelayProfile]) -> list[DelayProfile]:
    if len(profiles) < 2:
        return profiles
    alpha = max(fit_load_model(profiles).alpha, 0.0)
    return [replace(p, meta=replace(p.meta, alpha=alpha)) for p in profiles]


def _check_count(argument: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ParameterError(argument, f"must be an integer >= {least}", value)


def _checked_loads(loads: Sequence[float], batch_size: int) -> tuple[float, ...]:
    if not loads or not all(math.isfinite(load) and load >= 0 for load in loads):
        raise ParameterError("loads", "must be finite numbers >= 0, at least one", list(loads))
    if len({_num_points(load, batch_size) for load in loads}) < len(loads):
        rule = f"must come to different numbers of data points, of batches of {batch_size}"
        raise ParameterError("loads", rule, list(loads))
    return tuple(sorted(loads))


def _num_points(load: float, batch_size: int) -> int:
    return max(1, round(load * batch_size))


@contextmanager
def _published(model: Model, *, store: WeightStore, precision: Precision) -> Iterator[WeightRef]:
    weights = ParameterVector(model.module).read().astype(precision)
    ref = store.publish(model.name, 0, weights)
    try:
        yield ref
    finally:
        store.discard(ref)


def _local_workers(
    n: int, factory: TorchComputeFactory, *, delays: Callable[[int, int], float] | None
) -> Backend:
    return LocalBackend(n, factory, run_id="profile", delays=delays, preload=("seqgc.training",))

"""Recording of delay profiles on live workers, at several loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from seqgc import ports
from seqgc._durable import temporary_folder
from seqgc.errors import WorkerError
from seqgc.models.model import ParameterVector
from seqgc.profiles import FAILED, LATE, DelayProfile, ProfileMeta, fit_load_model
from seqgc.training.jobs import batch_indices
from seqgc.training.plan import RecordingPlan, num_points
from seqgc.training.run import started
from seqgc.training.work import Workers

__all__ = ["record_profile"]

_ASKED: Final = 16  # number of workers whose round trip is measured


def record_profile(
    plan: RecordingPlan, workers: Workers, *, observers: Sequence[ports.Observer] = ()
) -> list[DelayProfile]:
    """Measure the time in which workers compute a model's gradient, at each of several loads.

    In a round, every worker computes one mini-task of ``load * batch_size`` data points (rounded,
    at least 1), and the master waits for all workers. The loads take turns, round by round. Their
    order rotates, so that a drift of the workers' speed appears as noise, and not as an effect of
    the load. Injected delays depend on the row of the profile (row 0 in the warm-up), the worker
    and the load. After every round, also in the warm-up, ``observers`` receive a
    `seqgc.ports.Notice` of kind ``round``.

    Return a profile for each load, in ascending order of the loads, with these properties:

    - ``base_load``: the number of data points of each worker divided by ``batch_size``.
    - ``alpha``: the common slope of all profiles, in seconds per unit of load (`fit_load_model`).
      It is 0 if noise makes the slope negative, and None if there are fewer than two loads.
    - ``rtt_s``: the median time of an empty task, in seconds, sent to one worker at a time. It is
      None if no worker answers such a task.
    - ``status``: 0 for an answer, `FAILED` or `LATE` if there was no answer.

    Raises
    ------
    ParameterError
        If the workers cannot do this work.
    WorkerError
        If there is a round in which no worker answers.

    Examples
    --------
    >>> import functools, torch
    >>> from seqgc import registered_model, workers
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> model = registered_model("net", module="mlp", optimizer=sgd)
    >>> with workers.local(2) as w:
    ...     idle, busy = record_profile(RecordingPlan(model=model, rounds=3, loads=(0.5, 1.0)), w)
    >>> idle.times.shape, idle.meta.base_load, busy.meta.base_load, idle.meta.batch
    ((3, 2), 0.5, 1.0, 256)
    """
    model, played = plan.model, (plan.warmup + plan.rounds) * len(plan.loads)

    def occasion(task: ports.Task) -> tuple[int, float] | None:
        if task.round >= played:  # an empty task, for the round trip
            return None
        load, row = _turn(plan, task.round)
        return row or 0, load

    rows: dict[float, list[tuple[list[float], list[int]]]] = {load: [] for load in plan.loads}
    with temporary_folder("seqgc-profile-") as folder, ExitStack() as stack:
        work = plan.work(folder, occasion=occasion)
        workers.check(work)
        crew = stack.enter_context(workers.open(work))
        vector = ParameterVector(model.module).read().astype(plan.precision)
        weights = crew.store.publish(model.name, 0, vector)
        stack.callback(crew.store.discard, weights)
        live = stack.enter_context(started(crew, workers, observers=observers))
        for number in range(played):
            load, row = _turn(plan, number)
            tasks = list(_tasks(plan, number, load, weights=weights, workers=workers.n))
            seconds, status, reason = _play(live, tasks, timeout_s=plan.timeout_s)
            if all(status):
                message = f"no worker answered in round {number} (load {load:g}): {reason}"
                raise WorkerError(message, round=number)
            if row is not None:
                rows[load].append((seconds, status))
            for observer in observers:
                observer(ports.Notice(kind="round", fields={"done": number + 1, "total": played}))
        rtt_s = _round_trip_s(live, first=played, workers=workers.n, timeout_s=plan.timeout_s)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    profiles = [
        DelayProfile(
            times=np.array([seconds for seconds, _ in rows[load]]),
            status=np.array([status for _, status in rows[load]], dtype=np.int8),
            meta=ProfileMeta(
                base_load=num_points(load, model.batch_size) / model.batch_size,
                batch=model.batch_size,
                model=model.name,
                provider=workers.provider,
                recorded_at=now,
                source="recorded by seqgc, every worker awaited",
                rtt_s=rtt_s,
            ),
        )
        for load in plan.loads
    ]
    if len(profiles) < 2:
        return profiles
    alpha = max(fit_load_model(profiles).alpha, 0.0)
    return [replace(p, meta=replace(p.meta, alpha=alpha)) for p in profiles]


def _turn(plan: RecordingPlan, number: int) -> tuple[float, int | None]:
    """Return the load of a round, and the round's row in the profile (None in the warm-up)."""
    turn, place = divmod(number, len(plan.loads))
    load = plan.loads[(turn + place) % len(plan.loads)]
    return load, turn - plan.warmup if turn >= plan.warmup else None


def _tasks(
    plan: RecordingPlan, number: int, load: float, *, weights: ports.WeightRef, workers: int
) -> Iterator[ports.Task]:
    """Yield a task for each worker.

    All tasks use points of one batch, beginning at different points. If the load is above 1, as for
    a bundle of several models, a task uses points of the batch more than once.
    """
    model, size = plan.model, plan.model.batch_size
    pieces = ParameterVector(model.module).layout.pieces
    batch = batch_indices(len(model.dataset), batch_size=size, seed=model.seed, step=number)
    coefficients = np.full(num_points(load, size), 1 / size)
    for worker in range(workers):
        part = ports.WeightedPoints(
            model=model.name,
            weights=weights,
            points=batch[(worker * size // workers + np.arange(len(coefficients))) % size],
            coefficients=coefficients,
            pieces=pieces,
        )
        items = (ports.WorkItem(slot=0, parts=(part,)),)
        yield ports.Task(round=number, worker=worker, attempt=0, items=items)


def _round_trip_s(
    backend: ports.Backend, *, first: int, workers: int, timeout_s: float
) -> float | None:
    """Return the median time of an empty task, in seconds; None if no worker answers."""
    seconds = []
    for number, worker in enumerate(range(min(workers, _ASKED)), first):
        task = ports.Task(round=number, worker=worker, attempt=0, items=())
        (taken_s,), (status,), _ = _play(backend, [task], timeout_s=timeout_s)
        seconds += [taken_s] if status == 0 else []
    return float(np.median(seconds)) if seconds else None


def _play(
    backend: ports.Backend, tasks: Sequence[ports.Task], *, timeout_s: float
) -> tuple[list[float], list[int], str]:
    """Run one round until all tasks have been answered or have failed, or the time is over.

    Return the seconds and the status of each task, and the reason why an answer is missing.
    """
    number, reason = tasks[0].round, "no answer within the time limit"
    left_at = backend.dispatch(number, tasks)
    until = max(left_at) + timeout_s
    seconds, status = [timeout_s] * len(tasks), [LATE] * len(tasks)
    places = {task.worker: place for place, task in enumerate(tasks)}
    waiting = set(places)
    while waiting and (event := backend.receive(until)) is not None:
        if isinstance(event, ports.Notice | ports.PartialArrival):
            continue
        if event.round != number or event.worker not in waiting:
            continue  # a late answer to an earlier round
        waiting.remove(event.worker)
        place = places[event.worker]
        seconds[place] = event.at - left_at[place]
        if isinstance(event, ports.Failure):
            faults = [event.reason]
        else:
            faults = [flaw.why for flaw in event.flaws.values() if flaw.kind == "raised"]
        status[place], reason = (FAILED, faults[0]) if faults else (0, reason)
    if waiting:
        backend.cancel(number, sorted(waiting))
    return seconds, status, reason

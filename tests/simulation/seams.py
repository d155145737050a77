"""Where the simulator takes the place of clocks, threads and system calls of seqgc.

This is the list of seams: all that is private in seqgc, and that the simulator replaces, uses as it
is, or spoils on purpose (`tests.simulation.plants`), is imported here and nowhere else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

import msgspec

from seqgc import _durable as durable
from seqgc import master
from seqgc.backends.lambda_ import _backend as lambda_backend
from seqgc.backends.lambda_ import _messages as messages
from seqgc.backends.lambda_ import _resident as resident
from seqgc.backends.lambda_ import _stays as starts
from seqgc.backends.lambda_ import _switchboard as switchboard
from seqgc.backends.lambda_._calls import Calls, Throttle
from seqgc.backends.lambda_._threads import Ended
from seqgc.backends.lambda_._transport import connection_error, reply_of
from seqgc.master import _gathering as gathering
from seqgc.master._blame import Blame
from seqgc.master._replicas import Replicas
from seqgc.models import factories, provenance
from seqgc.ports import FloatArray, WeightedPoints, WeightRef, WeightStore
from seqgc.rounds._engine import Engine
from seqgc.runs import folder
from seqgc.runs.lease import Lease
from seqgc.stores import _objects as objects
from seqgc.stores import _open as opening_stores
from seqgc.training import (
    Model,
    Objective,
    TorchCompute,
    TorchWorkload,
    checkpointer,
    fingerprint,
    work,
    workload,
)
from seqgc.training.history import History, Recorder
from seqgc.training.jobs import DataQueue
from seqgc.training.learner import Learner
from seqgc.training.stale import StaleWorkload
from seqgc.training.workload import ModelsWorkload, PartsState, WorkloadState
from seqgc.wire import _codec as codec
from seqgc.wire import _frame as frames
from seqgc.worker import _invocations as invocations
from seqgc.worker import _resident as staying
from seqgc.worker import _serving as serving
from seqgc.worker import _timing as timing
from seqgc.workers import _functions as opening
from tests.kit import system_calls
from tests.simulation.world import Clock

__all__ = [
    "Blame",
    "Calls",
    "DataQueue",
    "Ended",
    "Engine",
    "History",
    "Learner",
    "Lease",
    "ModelsWorkload",
    "PartsState",
    "Recorder",
    "Replicas",
    "StaleWorkload",
    "Throttle",
    "TorchWorkload",
    "WorkloadState",
    "checkpoints_at_once",
    "codec",
    "connection_error",
    "durable",
    "frames",
    "gathering",
    "invocations",
    "lambda_backend",
    "messages",
    "objects",
    "opening",
    "opening_stores",
    "replaced",
    "reply_of",
    "resident",
    "serving",
    "shared_objectives",
    "starts",
    "staying",
    "switchboard",
]  # fmt: skip

# What takes long and comes to the same in every run; models are told apart by identity.
_data = cache(provenance.describe_data)
_seen: dict[Model, dict[str, str]] = {}  # by model, of which each has its own data


def _of_model(model: Model, data: Mapping[int, str]) -> dict[str, str]:
    if model not in _seen:
        _seen[model] = _plain_of_model(model, data)
    return _seen[model]


_plain_of_model = fingerprint._of_model
_require_sound = cache(workload.require_sound)
_objectives = factories._objectives
_shared: dict[bytes, tuple[Objective, ...]] = {}


class _Anywhere:
    """A store that is each time another one."""

    def __init__(self) -> None:
        self.store: WeightStore | None = None

    def fetch(self, ref: WeightRef) -> FloatArray:
        assert self.store is not None
        return self.store.fetch(ref)


class _SharedCompute:
    """A `TorchComputeFactory` that pickles nothing: all of the same models share one compute."""

    def __init__(self, *, models: Sequence[Model], store: WeightStore, **_: object) -> None:
        self._models, self._store = tuple(models), store

    def __call__(self) -> Callable[[tuple[WeightedPoints, ...]], FloatArray]:
        compute, source = _compute_of(self._models)

        def from_own_store(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            source.store = self._store
            return compute(parts)

        return from_own_store


@cache
def _compute_of(models: tuple[Model, ...]) -> tuple[TorchCompute, _Anywhere]:
    source = _Anywhere()
    return TorchCompute([model.objective for model in models], store=source), source


def shared_objectives(workload: Any) -> tuple[Objective, ...]:
    """Replace `factories._objectives` with a cache; users of an objective copy its module."""
    key = msgspec.json.encode([workload.models, workload.data])
    if key not in _shared:
        _shared[key] = _objectives(workload)
    return _shared[key]


class Inline:
    """A `concurrent.futures.Executor` without a thread; who is killed in it, is killed."""

    def __init__(self, **options: object) -> None:
        pass

    def submit(self, do: Callable[..., object], *arguments: object) -> Future[object]:
        future: Future[object] = Future()
        try:
            future.set_result(do(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        pass


class _Calendar:
    """Stands for the class `datetime.datetime`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self, zone: tzinfo) -> datetime:
        return datetime.fromtimestamp(self._clock.time(), zone)


@cache
def _timed() -> tuple[ModuleType, ...]:
    """Return the modules of seqgc that ask for the time; none is imported later."""
    rooms = ("seqgc.models", "seqgc.runs", "seqgc.training")
    modules = [module for name, module in sys.modules.items() if name.startswith(rooms)]
    return tuple(module for module in modules if getattr(module, "time", None) is time)


@contextmanager
def checkpoints_at_once(clock: object) -> Iterator[None]:
    """Let checkpoints be due by a clock of one's own, and be written when they are taken."""
    with (
        mock.patch.object(checkpointer, "ThreadPoolExecutor", Inline),
        mock.patch.object(checkpointer, "time", clock),
    ):
        yield


@contextmanager
def replaced(
    *,
    clock: Clock,
    system: object,
    at_rest: Callable[[ModelsWorkload, master.Holding], None],
    at_start: Callable[[ModelsWorkload], None] = lambda _: None,
) -> Iterator[None]:
    """Let seqgc run in virtual time, in one thread, on another disk.

    ``at_rest`` is called, with what the loop holds, whenever a checkpoint could be taken;
    ``at_start`` when the loop begins.
    """
    run = master.run

    def watched_run(policy, backend, work, *, rest, **more):  # type: ignore[no-untyped-def]
        def watched_rest(holding: master.Holding) -> None:
            at_rest(work, holding)
            rest(holding)

        at_start(work)
        run(policy, backend, work, rest=watched_rest, **more)

    with ExitStack() as stack:
        patch = stack.enter_context
        patch(system_calls(system))
        patch(mock.patch.object(checkpointer, "ThreadPoolExecutor", Inline))
        patch(mock.patch.object(workload, "require_sound", _require_sound))
        patch(mock.patch.object(work, "TorchComputeFactory", _SharedCompute))
        patch(mock.patch.object(fingerprint, "_of_model", _of_model))
        patch(mock.patch.object(provenance, "describe_data", _data))
        patch(mock.patch.object(master, "run", watched_run))
        patch(mock.patch.object(time, "time", clock.time))
        patch(mock.patch.object(folder, "datetime", _Calendar(clock)))
        for module in (*_timed(), timing):
            patch(mock.patch.object(module, "time", clock))
        yield

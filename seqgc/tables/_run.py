"""`run_app`, which runs an app on local processes, on other workers, or in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, cast, get_args
from zipfile import BadZipFile

import msgspec
import numpy as np

from seqgc import master, ports
from seqgc._durable import replacing, temporary_folder
from seqgc.backends import LocalBackend, Messaging, require_picklable
from seqgc.errors import (
    ModelError,
    ParameterError,
    StoreError,
    one_line,
    require_int,
    require_number,
)
from seqgc.master import PackedJob, pack_held, unpack_held
from seqgc.ports import Backend, FloatArray
from seqgc.profiles import DelayProfile, Pace
from seqgc.rounds import ClosingRule, RunPolicy, Setting, policy_of
from seqgc.runs.lease import Lease
from seqgc.schemes import Defence, parse_scheme
from seqgc.stores import DirectoryStore, MemoryStore, unique_name
from seqgc.tables._app import App, TableLayout, first_tables, measured, require_app, require_fit
from seqgc.tables._compute import MODEL, TableWorker
from seqgc.tables._workload import TableWorkload
from seqgc.virtual import VirtualBackend, WorkerKind
from seqgc.worker import ComputeFactory

__all__ = ["AppRun", "AppWorkers", "run_app"]

_FILE = "tables.npz"


class StartableWorkers(Protocol):
    """Workers that can be started with any computation: `seqgc.workers.local` or ``dask``."""

    @property
    def n(self) -> int:
        """The number of workers."""

    def start(self, compute: ComputeFactory, *, run_id: str) -> Backend: ...


AppWorkers: TypeAlias = int | Pace | StartableWorkers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AppRun:
    """The result of `run_app`.

    ``tables`` are the tables at the end. ``objectives`` (clocks + 1,) are the app's objective
    before the first clock and after each one, and ``at_s`` (clocks + 1,) the seconds of the run at
    these times. With a stale defence, the tables after a clock may have changes of later clocks.
    ``received_bytes`` are the bytes of all tables that workers have read, and ``sent_bytes`` those
    of all changes that they were asked for.
    """

    defence: str
    workers: int
    tables: Mapping[str, FloatArray] = field(repr=False)
    objectives: FloatArray = field(repr=False)
    at_s: FloatArray = field(repr=False)
    received_bytes: int
    sent_bytes: int

    @property
    def seconds(self) -> float:
        """The duration of the run, in seconds, without the start of the workers."""
        return float(self.at_s[-1])

    @property
    def objective(self) -> float:
        """The objective at the end."""
        return float(self.objectives[-1])


def run_app(
    app: App,
    defence: str | Defence,
    *,
    workers: AppWorkers,
    clocks: int,
    passes: int = 1,
    seed: int = 0,
    rule: ClosingRule | None = None,
    kind: WorkerKind = "resident",
    folder: str | Path | None = None,
    checkpoint_every_s: float = 30.0,
    observe: Callable[[ports.Seen], None] | None = None,
) -> AppRun:
    """Run an app for a number of clocks, and return its tables, and its objective over time.

    Parameters
    ----------
    app
        The program; see `App`.
    defence
        A spec, such as ``"ssp:slack=1"``, or a defence. It must be exact or stale, must finish a
        clock before the next one, and each of its tasks must belong to one clock.
    workers
        A number of local processes, a set of workers (`seqgc.workers.local`, ``dask``), or a
        `seqgc.profiles.Pace`. With a pace, the run is in virtual time: the changes are computed in
        this process, and the seconds are those of workers with this pace. A load of 1 is a pass
        over all items.
    kind
        For virtual workers only: ``"resident"`` if they stay, ``"function"`` if they are invoked
        for each task.
    clocks
        The number of clocks. In each clock, every item is processed by one worker.
    passes
        The number of times that a worker goes over its items in each clock. It sees its own changes
        in later passes, and others' changes in later clocks (Cui et al. 2014, 2.2: work per clock,
        with read-my-writes).
    seed
        The seed, >= 0, of ``initial`` and ``process``.
    rule
        The closing rule of rounds, with time limits.
    folder
        A folder for checkpoints, written about every ``checkpoint_every_s`` seconds and at the end.
        If it holds a checkpoint of a run with the same arguments and data, the run continues from
        it. Other data are noticed by the objective of the tables in the checkpoint; a new step size
        is not. Workers on other machines must share the folder. By default a run that is
        interrupted is lost.
    observe
        A function that is called with each event and action of the loop.

    Raises
    ------
    ParameterError
        If an argument or a result of the app's methods is wrong, if the app cannot be run with the
        defence, or if the folder belongs to another run or is in use.
    ModelError
        If ``process`` raises an error on two workers, or changes become infinite or NaN.
    WorkerError
        If the workers cannot complete the run.
    StoreError
        If the checkpoint in the folder is damaged.

    Examples
    --------
    >>> from seqgc.tables.apps import MatrixFactorization, made_ratings
    >>> app = MatrixFactorization(ratings=made_ratings(rows=12, columns=8), rank=2)
    >>> run = run_app(app, "ssp:slack=1", workers=2, clocks=10)
    >>> run.tables["L"].shape, len(run.objectives), bool(run.objective < run.objectives[0])
    ((12, 2), 11, True)
    """
    n = _count(workers)
    require_int("clocks", clocks, least=1)
    require_int("passes", passes, least=1)
    require_int("seed", seed, least=0)
    require_number("checkpoint_every_s", checkpoint_every_s, least=0)
    if kind not in get_args(WorkerKind):
        raise ParameterError("kind", f"must be one of {', '.join(get_args(WorkerKind))}", kind)
    scheme = parse_scheme(defence, n=n) if isinstance(defence, str) else defence
    if scheme.n != n:
        raise ParameterError("defence", f"must be for {n} workers", scheme.n)
    require_app(app)
    items = require_int("items", app.items, least=1)
    scheme = scheme.fitted(1, batch=items)
    require_fit(app, scheme)
    if not hasattr(workers, "latency_s"):
        require_picklable("app", app)
    layout, vector = first_tables(app, seed=seed)
    setting = Setting(scheme=scheme, rule=rule or ClosingRule())
    policy = policy_of(setting, num_jobs=clocks, batches=[items])
    with ExitStack() as stack:
        path = None if folder is None else stack.enter_context(_held_folder(Path(folder)))
        store, start = stack.enter_context(
            _store_and_start(workers, path, kind=kind, passes=passes)
        )
        workload = TableWorkload(vector, scheme, items=items, store=store)
        about = {
            "app": type(app).__qualname__,
            "defence": scheme.spec,
            "workers": n,
            "clocks": clocks,
            "items": items,
            "passes": passes,
            "seed": seed,
            "shapes": layout.shapes,
        }
        watch = _AppWatch(app, layout, workload, policy, about, observe=observe)
        checkpoint = None if path is None else path / _FILE
        held = watch.restore(checkpoint) if checkpoint and checkpoint.exists() else None
        if not policy.done:
            compute = TableWorker(
                app=app,
                shapes=layout.shapes,
                store=store,
                starts=workload.starts,
                seed=seed,
                passes=passes,
            )
            if checkpoint is not None:
                watch.write_to(checkpoint, every_s=checkpoint_every_s)
            with closing(start(compute)) as backend, _naming(app):
                master.run(policy, backend, workload, observe=watch.see, rest=watch.rest, held=held)
    return AppRun(
        defence=scheme.spec,
        workers=n,
        tables=layout.views(workload.vector),
        objectives=np.array(watch.objectives),
        at_s=np.array(watch.at_s),
        received_bytes=watch.read * layout.size * 8,
        sent_bytes=watch.asked * layout.size * 8,
    )


def _count(workers: AppWorkers) -> int:
    """Return the number of workers."""
    if isinstance(workers, int):
        return require_int("workers", workers, least=1)
    if isinstance(workers, DelayProfile):
        rule = "must be a pace, which says how the seconds of a profile depend on the load"
        remedy = "pass seqgc.profiles.latency_pace(profile) or speed_pace(profile)"
        raise ParameterError("workers", rule, "a DelayProfile", remedy)
    if not hasattr(workers, "latency_s") and not hasattr(workers, "start"):
        rule = "must be a number of processes, a set of workers, or a pace"
        raise ParameterError("workers", rule, workers)
    return workers.n


@contextmanager
def _naming(app: App) -> Iterator[None]:
    """Let a `ModelError` in this block name the app."""
    try:
        yield
    except ModelError as error:
        why = "; ".join(error.models.values())
        raise ModelError({f"app {type(app).__name__}": f"failed: {why}"}) from error


@contextmanager
def _held_folder(folder: Path) -> Iterator[Path]:
    """Make a folder for checkpoints if it is absent, and keep other runs out of it in this block.

    Raises
    ------
    ParameterError
        If the folder cannot be made, or another run uses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder}: {error.strerror or error}"
        raise ParameterError("folder", "must be a folder that can be written", why) from error
    with closing(Lease(folder, argument="folder")):
        # A run that was killed left its versions; the numbers of this run's versions are the same.
        for version in (folder / "tables").glob(f"*{MODEL}@*"):
            version.unlink()
        yield folder


@contextmanager
def _store_and_start(
    workers: AppWorkers, folder: Path | None, *, kind: WorkerKind, passes: int
) -> Iterator[tuple[ports.WeightStore, Callable[[TableWorker], Backend]]]:
    """Yield a store for tables, and a function that starts the workers, which read from it."""
    if hasattr(workers, "latency_s"):
        pace = cast("Pace", workers)
        yield (
            MemoryStore(),
            lambda compute: VirtualBackend(
                pace.n,
                pace,
                workers=kind,
                compute=compute(),
                load_of=lambda task: passes * task.load,
            ),
        )
        return
    with temporary_folder("seqgc-tables-") as temporary:
        # Workers on other machines must mount the folder.
        shared = temporary if folder is None else folder / "tables"
        store, run_id = DirectoryStore(shared), unique_name("tables")
        if isinstance(workers, int):
            messaging, n = Messaging(run_id=run_id), workers
            yield (
                store,
                lambda compute: LocalBackend(
                    n, compute, messaging=messaging, preload=("seqgc.tables",)
                ),
            )
        else:
            chosen = workers
            yield store, lambda compute: chosen.start(compute, run_id=run_id)
        store.sweep()


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The part of a checkpoint that is not arrays."""

    about: dict[str, object]
    policy: object
    begun: int
    held: list[PackedJob]
    version: int
    asked: int
    read: int


class _AppWatch:
    """An observer of a run, which measures the objective after each clock, and takes checkpoints.

    ``about`` describes the run, as JSON data; a checkpoint of a run with another one is refused.
    """

    def __init__(
        self,
        app: App,
        layout: TableLayout,
        workload: TableWorkload,
        policy: RunPolicy,
        about: Mapping[str, object],
        *,
        observe: Callable[[ports.Seen], None] | None,
    ) -> None:
        self._app, self._layout, self._workload = app, layout, workload
        self._policy, self._about, self._observe = policy, about, observe
        self.objectives, self.at_s = [self._objective()], [0.0]
        self.asked = self.read = 0  # results of mini-tasks, and tables that tasks read
        self._closed: list[float] = []  # seconds of clocks whose objective is not measured yet
        self._passed_s = 0.0
        self._path: Path | None = None
        self._every_s, self._next_at = 0.0, 0.0

    def _objective(self) -> float:
        return measured(self._app, self._layout, self._workload.vector)

    def see(self, seen: ports.Seen) -> None:
        if isinstance(seen, ports.Dispatch):
            tasks = [len(tasks) for tasks in seen.assignment.values() if tasks]
            self.read += len(tasks)
            self.asked += sum(tasks)
        elif isinstance(seen, ports.Close):
            self._passed_s += seen.record.duration_s
            self._closed += [self._passed_s] * len(seen.jobs)
        if self._observe is not None:
            self._observe(seen)

    def rest(self, hold: master.Holding) -> None:
        """Measure the objective of clocks that have closed; write a checkpoint if one is due."""
        if self._closed:
            self.objectives += [self._objective()] * len(self._closed)
            self.at_s += self._closed
            self._closed = []
        if self._path is not None and (self._policy.done or time.monotonic() >= self._next_at):
            if (held := hold()) is not None:
                self._write(held, self._path)
            self._next_at = time.monotonic() + self._every_s

    # ---- checkpoints -----------------------------------------------------------------------------

    def write_to(self, path: Path, *, every_s: float) -> None:
        """Write checkpoints to a file from now on."""
        self._path, self._every_s = path, every_s
        self._next_at = time.monotonic() + every_s

    def _write(self, held: master.Held, path: Path) -> None:
        arrays, jobs = self._workload.snapshot(), list[PackedJob]()
        for job in held.jobs:
            packed, vectors = pack_held(job)
            jobs.append(packed)
            arrays |= {f"held.{name}": vector for name, vector in vectors.items()}
        state = _State(
            about=dict(self._about),
            policy=self._policy.snapshot(),
            begun=held.begun,
            held=jobs,
            version=self._workload.version,
            asked=self.asked,
            read=self.read,
        )
        arrays["objectives"], arrays["at_s"] = np.array(self.objectives), np.array(self.at_s)
        arrays["objective"] = np.array(self._objective())
        text = np.frombuffer(msgspec.json.encode(state), dtype=np.uint8)
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, state=text, **arrays)

    def restore(self, path: Path) -> master.Held:
        """Continue from the checkpoint at ``path``; return the state of the loop.

        Raises
        ------
        ParameterError
            If the checkpoint is of another run.
        StoreError
            If the file is damaged.
        """
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
            state = msgspec.json.decode(arrays.pop("state").tobytes(), type=_State)
            objective = float(arrays.pop("objective"))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.MsgspecError) as error:
            why = f"{path} cannot be read as a checkpoint of an app: {one_line(error)}"
            raise StoreError(f"{why}; remove it to begin again") from error
        for name, value in json.loads(msgspec.json.encode(self._about)).items():
            if state.about[name] != value:
                rule = f"must be that of the checkpoint in {path.parent}: {state.about[name]}"
                raise ParameterError(name, rule, value, "or choose another folder")
        jobs = [
            unpack_held(job, {n: arrays.pop(f"held.{n}") for n in job.names}) for job in state.held
        ]
        self.objectives, self.at_s = arrays.pop("objectives").tolist(), arrays.pop("at_s").tolist()
        self._passed_s = self.at_s[-1]
        self.asked, self.read = state.asked, state.read
        self._policy.restore(state.policy)
        self._workload.restore(arrays, version=state.version, begun=state.begun)
        if not np.isclose(now := self._objective(), objective, rtol=1e-6, atol=0, equal_nan=True):
            rule = (
                f"must have the data of the run in {path.parent}: "
                f"the objective of its tables was {objective:.9g}"
            )
            raise ParameterError("app", rule, now, "or choose another folder")
        return master.Held(begun=state.begun, jobs=jobs)

"""One scenario from its first master to its last, and what must hold at the end."""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load_file

from seqgc import master, workers
from seqgc.errors import AuditError, ModelError, ParameterError, StoreError, WorkerError
from seqgc.ports import Backend, Seen
from seqgc.schemes import parse_scheme
from seqgc.training import (
    Adaptation,
    TrainingPlan,
    TrainResult,
    Workers,
    resume,
    train,
)
from tests.simulation.backend import SimulatedBackend
from tests.simulation.crew import SimulatedFunctions
from tests.simulation.disk import SimulatedSystem
from tests.simulation.faults import (
    CONNECTION_KINDS,
    FUNCTION_KINDS,
    HARMLESS,
    MAX_NORM,
    READ_KINDS,
    STAY_KINDS,
    Fault,
    Scenario,
    Shape,
    without,
)
from tests.simulation.functions import Account
from tests.simulation.hearing import Hearing
from tests.simulation.ledger import Ledger
from tests.simulation.models import WILD
from tests.simulation.parts import PartsLedger
from tests.simulation.promises import (
    UPDATES,
    is_exact,
    is_lossy,
    is_plain,
    models_of,
    parts_of,
    repeats,
)
from tests.simulation.results import check_result, digests, require_refused
from tests.simulation.seams import ModelsWorkload, replaced
from tests.simulation.tuning import ScriptedTuner
from tests.simulation.world import Killed, Violation, World, check_losses

Weights: TypeAlias = dict[str, dict[str, torch.Tensor]]  # by model and name

_SHM = Path("/dev/shm")
_EXCUSES = {"hang", "crash", "falsify", "delay", "foreign", *FUNCTION_KINDS, *READ_KINDS}
_EXCUSES = (_EXCUSES | {*STAY_KINDS, *CONNECTION_KINDS}) - {*HARMLESS}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a scenario: its events' digest, and what is wrong, in one line, if anything."""

    digest: str
    events: int
    masters: int
    faults: tuple[Fault, ...]  # that happened
    fault: str | None = None
    lines: list[str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a run has come to: weights by model and name, losses by model and step."""

    weights: Weights
    losses: dict[tuple[str, int], float]


def simulate(scenario: Scenario, *, keep: bool = False) -> Outcome:
    """Run a scenario to its end; ``keep`` its lines."""
    world = World(scenario)
    if keep:
        world.record.lines = []
    simulation, fault = None, None
    with _folder() as folder:
        simulation = _Simulation(scenario, world, folder)
        try:
            simulation.run()
        except ModelError as error:
            if len({model for _, model in world.claims}) < scenario.shape.models:
                fault = f"ModelError: {error}"
        except Exception as error:
            fault = " ".join(f"{type(error).__name__}: {error}".split())
    still = without(scenario, "clock")
    if fault is None and still != scenario and simulate(still).digest != world.record.digest:
        fault = "Violation: the run is another one where the clock does not step"
    return Outcome(
        digest=world.record.digest,
        events=world.events,
        masters=simulation.masters,
        faults=tuple(world.happened),
        fault=fault,
        lines=world.record.lines or [],
    )


@contextmanager
def _folder() -> Iterator[Path]:
    where = _SHM if _SHM.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=where) as folder:
        yield Path(folder).resolve()


class _Simulation:
    def __init__(self, scenario: Scenario, world: World, root: Path) -> None:
        self._scenario, self._world, self._root = scenario, world, root
        self._ledger = _ledger(scenario, world)
        self._system = SimulatedSystem(world, leave=self._leave)
        self._plan, self._n = plan(scenario), scenario.shape.n
        world.record.folder = str(root)
        self._account = Account(world, self._ledger, root / "mount")
        self.masters = 0
        self._run, self._next = root / "0" / "run", root / "0" / "run"
        self._result: TrainResult | None = None

    def run(self) -> None:
        scenario, exact = self._scenario, is_exact(self._scenario)
        expected = _expected(scenario)
        specs = scenario.spec, *(spec for _, spec in scenario.switches)
        schemes, bundles = [parse_scheme(spec, n=self._n) for spec in specs], len(self._plan.models)
        delay = max(scheme.jobs_in_flight(bundles) for scheme in schemes) - 1
        most = 2 + len(self._scenario.faults)

        def at_start(workload: ModelsWorkload) -> None:
            if isinstance(self._ledger, PartsLedger):
                self._ledger.go_on(workload.snapshot()[0])

        def at_rest(workload: ModelsWorkload, hold: master.Holding) -> None:
            if isinstance(self._ledger, PartsLedger) and self._world.events % 4 == 0:
                self._ledger.compare(workload.snapshot()[0])
            held = hold() if self._world.events % 8 == 0 else None
            if held is not None and len(held.jobs) > delay + 1:
                raise Violation(f"{len(held.jobs)} jobs are held, of a scheme of delay {delay}")
            if isinstance(self._crew, SimulatedFunctions):
                self._crew.check_memory()
            if expected is not None and not self._world.uncompared:
                sound = [m for m in workload.metrics[-2:] if m.model != WILD or not scenario.wild]
                check_losses(sound, expected.losses, exact=exact)

        try:
            clock, system = self._world.clock, self._system
            with replaced(clock=clock, system=system, at_rest=at_rest, at_start=at_start):
                while not self._one_master():
                    if self.masters > most:
                        raise Violation(f"the run has not ended after {most} masters")
            self._check_end(expected)
        finally:
            self._account.residents.close()

    def _check_end(self, expected: Trained | None) -> None:
        assert self._result is not None
        if isinstance(self._crew, SimulatedFunctions):
            self._account.residents.end()
            self._crew.check_left()
        diverged = {name for name, each in self._result.parked.items() if each.failed}
        self.trained = read(self._run, diverged, self._scenario.shape)
        if self._scenario.updates == "aware" or self._repeated:
            expected = None  # how much each part weighs, and how often, depends on who was slow
        elif not is_exact(self._scenario) and is_lossy(self._scenario) and not diverged:
            late = tuple(late for _, late in sorted(self._world.closed.items()))
            expected = fault_free(replace(self._scenario, faults=(), backend="local", late=late))
        if expected is not None and not self._world.uncompared:
            exact = is_exact(self._scenario)
            compare(self.trained.weights, expected, exact=exact, but=diverged)
        check_result(self._result, self._scenario, self._world)
        if isinstance(self._ledger, PartsLedger):
            self._ledger.check_end()
        if not any(fault.kind == "power-loss" for fault in self._world.happened):
            self._world.record.add("files", *digests(self._run, root=self._root))

    @property
    def _repeated(self) -> int:
        """How many parts have moved the weights more than once."""
        return self._ledger.repeated if isinstance(self._ledger, PartsLedger) else 0

    def _one_master(self) -> bool:
        """Let one master live; say whether the run has ended."""
        self.masters += 1
        self._ledger.begin()
        self._world.alive, self._world.disk_failed = True, False
        self._system.repair()
        self._run = self._next
        before = len(self._world.happened)
        crew = self._crew = self._workers()
        observers = [self._ledger, Hearing(self._world), self._happen]
        tuner = ScriptedTuner(self._scenario.switches)
        self._world.record.add("master", self.masters)
        try:
            if (self._run / "config.toml").exists():
                result = resume(self._run, self._plan, crew, observers=observers, tuner=tuner)
            else:
                if self._world.jobs_begun:
                    raise Violation("jobs have begun, and there is no run on the disk")
                shutil.rmtree(self._run, ignore_errors=True)
                self._run.parent.mkdir(exist_ok=True)
                result = train(self._plan, crew, run=self._run, observers=observers, tuner=tuner)
            self._result = result
        except Killed:
            return False
        except (WorkerError, AuditError, StoreError, OSError, ParameterError) as error:
            self._world.record.add("ended", type(error).__name__)
            if not self._world.alive:
                return False
            if self._excuses(error, self._world.happened[before:]):
                return False
            raise
        return True

    def _excuses(self, error: Exception, happened: list[Fault]) -> bool:
        """Say whether a run may end so, after these faults; it is resumed then."""
        if isinstance(error, WorkerError):
            return any(fault.kind in _EXCUSES for fault in happened)
        if isinstance(error, AuditError):
            return any(f.kind == "lie" for f in self._world.happened)
        if isinstance(error, ParameterError):
            return self._world.disk_failed and not self._run.exists()  # nothing was begun
        return isinstance(error, StoreError | OSError) and self._world.disk_failed

    def _happen(self, _: Seen) -> None:
        fault = self._world.of_event() if self._world.alive else None
        if fault is None:
            return
        if fault.kind == "clock":
            self._world.clock.off_s = 7200 * (fault.amount - 0.5)
        elif fault.kind in CONNECTION_KINDS:
            self._account.residents.happen(fault)
        elif fault.kind == "rival":
            require_refused(self._run, self._plan, workers.custom(self._n, self._backend))
        else:
            self._world.alive = False
            if fault.kind == "lost-machine":
                self._account.residents.master_gone(silently=True)
            self._leave(False)
            raise Killed

    def _leave(self, power: bool) -> None:
        """Put what is on the disk now where the next master finds it."""
        self._account.residents.master_gone(silently=False)
        self._next = self._root / str(self.masters) / "run"
        if self._run.exists():
            shutil.copytree(self._run, self._next)
            if power:
                self._system.lose(self._run, self._next)
            self._system.move(self._run, self._next, settled=power)

    def _workers(self) -> Workers:
        kind = self._scenario.backend
        if kind == "local":
            return workers.custom(self._n, self._backend)
        self._account.mount.mkdir(exist_ok=True)
        return SimulatedFunctions(self._n, self._account, kind=kind, master=self.masters)

    def _backend(self, _: int, factory: object) -> Backend:
        assert callable(factory)
        threads = torch.get_num_threads()
        compute = factory()
        torch.set_num_threads(threads)
        return SimulatedBackend(self._world, self._ledger, compute)


# ---- what is trained, and what it must come to ---------------------------------------------------


def plan(scenario: Scenario) -> TrainingPlan:
    return TrainingPlan(
        models=models_of(scenario),
        scheme=scenario.spec,
        jobs_per_round=1,
        steps=scenario.shape.steps,
        checkpoint_every_s=scenario.checkpoint_every_s,
        max_norm=MAX_NORM,
        audit=scenario.audit,
        stale=scenario.stale,
        adaptation=Adaptation(probe=2, retune=2, alpha=0.0) if scenario.switches else None,
        updates=UPDATES[scenario.updates],
    )


def _ledger(scenario: Scenario, world: World) -> Ledger | PartsLedger:
    if (defence := parts_of(scenario)) is None:
        return Ledger(world)
    return PartsLedger(
        world,
        defence,
        repeats=repeats(scenario),
        aware=scenario.updates == "aware",
        jobs=scenario.shape.jobs,
    )


def fault_free(scenario: Scenario) -> Trained:
    """Return what a scenario's run comes to when nothing goes wrong, to the bit if `is_exact`."""
    return trained(_reference(scenario))


def _expected(scenario: Scenario) -> Trained | None:
    """Return what a scenario's run must come to, if that is known before it ends."""
    known = is_exact(scenario) or not is_lossy(scenario)
    return fault_free(scenario) if known and scenario != _reference(scenario) else None


def _reference(scenario: Scenario) -> Scenario:
    """Return the simplest scenario that comes to the same weights."""
    plain = Scenario(
        seed=0,
        spec="uncoded",
        delays=0,
        checkpoint_every_s=1e9,
        faults=(),
        shape=scenario.shape,
        straight=scenario.straight,
        late=scenario.late,
    )
    if scenario.stale:  # the scheme says how late gradients are
        plain = replace(plain, spec=scenario.spec, stale=True)
    if not is_exact(scenario):
        return plain
    if parts_of(scenario) is not None or is_plain(scenario.spec):
        return replace(plain, spec=scenario.spec, updates=scenario.updates)
    return replace(plain, spec=scenario.spec, delays=scenario.delays, backend=scenario.backend)


@cache
def trained(scenario: Scenario) -> Trained:
    """Return what a scenario without faults comes to."""
    with _folder() as folder:
        simulation = _Simulation(scenario, World(scenario), folder)
        simulation.run()
        return simulation.trained


def read(run: Path, diverged: Collection[str], shape: Shape) -> Trained:
    """Return what is on the disk of a run that has ended; every job must be there once.

    Of the models that have ``diverged`` there may be any steps.
    """
    losses: dict[tuple[str, int], float] = {}
    rows = list(csv.reader((run / "metrics.csv").read_text().splitlines()))
    for _, job, model, step, loss in rows[1:]:
        if (model, int(step)) in losses:
            raise Violation(f"metrics.csv has step {step} of {model} twice, job {job}")
        losses[model, int(step)] = float(loss)
    names = {f"m{index}" for index in range(shape.models)} - set(diverged)
    due = {(name, step) for name in names for step in range(shape.steps)}
    if missing := due - set(losses):
        raise Violation(f"metrics.csv lacks {len(missing)} of {len(due)} steps")
    return Trained(weights=read_weights(run, shape), losses=losses)


def read_weights(run: Path, shape: Shape) -> Weights:
    """Return the trained weights on the disk of a run."""
    names = [f"m{index}" for index in range(shape.models)]
    files = {name: run / "checkpoints" / f"{name}.safetensors" for name in names}
    return {name: dict(load_file(path)) for name, path in files.items()}


def compare(weights: Weights, expected: Trained, *, exact: bool, but: Set[str]) -> None:
    """Refuse other weights than are expected, ``but`` of these models."""
    for name, tensors in expected.weights.items():
        for key, tensor in tensors.items() if name not in but else ():
            got = weights[name][key]
            if exact and not torch.equal(got, tensor):
                raise Violation(
                    f"the weights of {name}, {key}, have other bits than without faults"
                )
            if not torch.allclose(got, tensor, rtol=0, atol=1e-5):
                off = float((got - tensor).abs().max())
                raise Violation(f"the weights of {name}, {key}, are off by {off:.2g}")

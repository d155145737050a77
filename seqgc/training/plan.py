"""Plans of a training run (`TrainingPlan`) or a recording (`RecordingPlan`), and `PlannedRun`.

All are frozen, and are checked when they are created.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeGuard, get_args

from seqgc.control import Controlled
from seqgc.errors import ParameterError, require_int, require_number
from seqgc.models.group_sizes import GroupChoice, choose_group_sizes, seconds_of_parts
from seqgc.models.model import Model, ParameterVector, distinct_models
from seqgc.models.narrowing import narrowing
from seqgc.models.optimizers import Stepper
from seqgc.models.precision import Precision, require_autocast, torch_dtype
from seqgc.models.soundness import frozen_statistics
from seqgc.ports import Capability, Payload, Task, WeightStore, payload_format
from seqgc.rounds import (
    Adaptation,
    ClosingRule,
    PolicyDefence,
    Setting,
    bundles_of,
    needs_of,
    num_bundles,
    num_rounds,
)
from seqgc.schemes import Deal, Defence, by_rounds, parse_scheme
from seqgc.training.jobs import JobPlan, bundle_size
from seqgc.training.stale import StaleWorkload, Updates
from seqgc.training.work import (
    TaskSizes,
    Work,
    batch_sizes,
    most_mini_tasks,
    most_points,
    replicas_of,
    task_sizes,
)
from seqgc.training.workload import ModelsWorkload, TorchWorkload

__all__ = [
    "ROUND_LIMIT_S",
    "OnFailure",
    "PlannedRun",
    "RecordingPlan",
    "TrainingPlan",
    "in_parts",
    "num_points",
]

OnFailure: TypeAlias = Literal["go-on", "stop"]

ROUND_LIMIT_S: Final = 60.0
"""Default time limit of a live round, in seconds."""

_OPEN_BUNDLES: Final = 4  # for dealing, and for a search for schemes, which may have a delay
_MOST_LOAD: Final = 1000  # of a recording, as the tasks of all workers are in memory at once
_MOST_WARMUP: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingPlan:
    """The models to train, the scheme, the number of steps, and the options of a training run.

    Models take turns in bundles of at most ``jobs_per_round`` models. By default, `bundle_size`
    chooses this number. Unless ``stale`` is True, there must be more bundles than the scheme's
    delay (see `TorchWorkload`). The ``scheme`` is a spec such as ``"gc-rep:s=1"``, a scheme, or a
    setting. A setting already has a closing rule and a bundle size. A closing ``rule`` without a
    time limit gets the limit `ROUND_LIMIT_S`.

    With a defence that is not a scheme (``"ssp:slack=1"``), gradients usually arrive in parts.
    ``updates`` are the rules for using the parts. The jobs of such a defence need not wait for each
    other.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.
    """

    models: Sequence[Model]
    scheme: str | Defence | Setting
    steps: int  # optimizer steps of each model
    rule: ClosingRule | None = None  # when rounds close; None: `ClosingRule()`
    jobs_per_round: int | None = None  # most models in a bundle; None: see `bundle_size`
    precision: Precision = "float32"  # of weights, computation and gradients
    payload: Payload | None = None  # format of results in messages; None: `precision`
    # Round results to `payload` stochastically on the workers. The seed depends on the name that
    # the run's folder had when it began.
    stochastic_rounding: bool = False
    stale: bool = False  # allow fewer bundles than the scheme's delay + 1: gradients are late
    # When to search for a better setting and switch to it; not with `stale`. A scheme is a
    # candidate if the number of models allows its delay.
    adaptation: Adaptation | None = None
    # Seconds between two checkpoints. There is also one at the beginning and one at the end.
    checkpoint_every_s: float = 60.0
    # If the 2-norm of a model's results is above this limit twice, the model has diverged. None: no
    # limit for finite results.
    max_norm: float | None = None
    # If the results of a model are not finite, or its code raises an error: "go-on" trains the
    # other models, and "stop" ends the run.
    on_failure: OnFailure = "go-on"
    # Compare results that several workers compute, and expel workers with wrong results. Rounds
    # then wait for three answers to each such result. Not possible with `adaptation`, or with a
    # scheme in which each result is computed by one worker.
    audit: bool = False
    # The rules for gradients that arrive in parts. None: `Updates()`, or `Updates(apply="clock")`
    # for defences whose parts must all be computed on the newest weights.
    updates: Updates | None = None
    # The number of similar models that a worker computes at once, by `torch.vmap`. 1: one model
    # after the other. None: the fastest number, which is measured when the run begins. The number
    # changes the last bits of results. Therefore, unless it is given, two runs may end in different
    # bits.
    vectorize: int | None = None
    # The predicted seconds of a round, for example by `seqgc.tune`, to compare with the run
    # (`seqgc.runs.read_predictions`).
    predicted_round_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", _checked(self.models, self.precision))
        object.__setattr__(self, "steps", require_int("steps", self.steps, least=1))
        if isinstance(self.scheme, Setting):
            self._require_no_setting()
        torch_dtype(self.precision)
        payload: Payload = self.precision if self.payload is None else self.payload
        object.__setattr__(self, "payload", payload)
        bits, precision_bits = payload_format(payload).bits, payload_format(self.precision).bits
        if bits > precision_bits:  # the additional bits would carry no information
            rule = f"must not be wider than the precision, {self.precision}"
            raise ParameterError("payload", rule, payload)
        if self.stochastic_rounding and bits == precision_bits:
            rule = f"must be off, as nothing is rounded: precision and payload are {payload}"
            remedy = "give a narrower `payload`"
            raise ParameterError("stochastic_rounding", rule, self.stochastic_rounding, remedy)
        if not self.checkpoint_every_s > 0:
            rule = "must be a number of seconds > 0"
            raise ParameterError("checkpoint_every_s", rule, self.checkpoint_every_s)
        if self.on_failure not in get_args(OnFailure):
            raise ParameterError("on_failure", "must be 'go-on' or 'stop'", self.on_failure)
        if self.audit and self.adaptation is not None:
            rule = "must be off with adaptation, which may switch to a scheme without replicas"
            raise ParameterError("audit", rule, self.audit)
        if self.adaptation is not None and self.stale:
            rule = "must be off with adaptation"
            raise ParameterError("stale", rule, self.stale)
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ("max_norm", "predicted_round_s"):
            if (number := getattr(self, name)) is not None:
                require_number(name, number, above=0)
        if self.vectorize is not None:
            object.__setattr__(self, "vectorize", require_int("vectorize", self.vectorize, least=1))

    def _require_no_setting(self) -> None:
        for name in ("rule", "jobs_per_round"):
            if (given := getattr(self, name)) is not None:
                raise ParameterError(name, "must be left out: the setting has it", given)

    def on(self, workers: int) -> PlannedRun:
        """Check this plan for ``workers`` workers, and return its run.

        Raises
        ------
        ParameterError
            If the scheme is for another number of workers, needs more models, or cannot be combined
            with other fields of the plan.

        Examples
        --------
        >>> from functools import partial
        >>> from torch.optim import SGD
        >>> from seqgc import registered_model
        >>> model = registered_model("net", module="mlp", optimizer=partial(SGD, lr=0.1))
        >>> plan = TrainingPlan(models=[model], scheme="gc:s=1", steps=3)
        >>> plan.on(4).setting.scheme.n, plan.on(4).num_jobs
        (4, 3)
        """
        return PlannedRun(plan=self, setting=self._setting(workers))

    def for_workers(self, n: int) -> TrainingPlan:
        """Return this plan with its scheme for ``n`` workers.

        Raises `ParameterError` if the scheme cannot have this number of workers.
        """
        scheme = self.scheme
        if isinstance(scheme, str):
            return self
        if isinstance(scheme, Setting):
            same = replace(scheme, scheme=parse_scheme(scheme.scheme.spec, n=n))
            return replace(self, scheme=same)
        return replace(self, scheme=parse_scheme(scheme.spec, n=n))

    def _setting(self, n: int) -> Setting:
        scheme = parse_scheme(self.scheme, n=n) if isinstance(self.scheme, str) else self.scheme
        if isinstance(scheme, Setting):
            setting = scheme.on(n)
        else:
            bundle = self.jobs_per_round or self._bundle_size(scheme)
            closing = self.rule or ClosingRule()
            setting = Setting(scheme=scheme, rule=closing, jobs_per_round=bundle)
        if setting.scheme.n != n:
            rule = f"must be {setting.scheme.n}, the number of workers of the scheme"
            raise ParameterError("workers", rule, n)
        bundle = setting.jobs_per_round
        bundles = max(1, num_bundles(len(self.models), bundle))
        batch = min(batch_sizes(self.models), default=None)
        setting = replace(setting, scheme=setting.scheme.fitted(bundles, batch=batch))
        for on, what in ((self.audit, "an audit"), (self.adaptation, "--probe and --retune")):
            if on:
                by_rounds(setting.scheme, what)
        self._require_updates(setting.scheme)
        if self.audit and max(replicas_of(setting.scheme)) < 2:
            rule = "needs a scheme in which several workers compute the same result"
            remedy = "take gc-rep, gc-binary, sr-sgc-rep or m-sgc-rep with s or lam of 1 at least"
            raise ParameterError("audit", rule, setting.scheme.spec, remedy)
        JobPlan(  # only for its checks
            self.models,
            scheme=setting.scheme,
            jobs_per_round=bundle,
            stale=self.stale,
            lateness=0 if isinstance(setting.scheme, PolicyDefence) else None,
        )
        if math.isinf(setting.rule.timeout_s):
            return replace(setting, rule=replace(setting.rule, timeout_s=ROUND_LIMIT_S))
        return setting

    def _bundle_size(self, scheme: Defence) -> int:
        choosing = self.adaptation is not None or isinstance(scheme, Deal)
        return bundle_size(self.models, bundles=_OPEN_BUNDLES if choosing else scheme.delay + 1)

    def require_steps(self) -> None:
        """Raise `ParameterError` if an optimizer or scheduler does not fit the run.

        This is so if it cannot be created, or if a scheduler ends before the last step. To find
        out, each is created once with the model's own parameters, which do not change.
        """
        for model in self.models:
            Stepper(model, ParameterVector(model.module)).require_steps(self.steps)

    def _require_updates(self, defence: Defence) -> None:
        if in_parts(defence):
            if self.stale:
                rule = f"must be left out with {defence.spec}, which limits how late gradients are"
                raise ParameterError("stale", rule, self.stale)
            self.updates_of(defence).require_fit(self.models, defence)
        elif self.updates is not None:
            rule = f"must be left out with {defence.spec}, whose gradients are applied as a whole"
            raise ParameterError("updates", rule, self.updates, "or take a defence like ssp")

    def updates_of(self, defence: PolicyDefence) -> Updates:
        """Return the plan's rules for updates, or the defence's default."""
        usual = Updates() if defence.kind == "stale" else Updates(apply="clock")
        return self.updates or usual


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedRun:
    """A run of a plan on a number of workers (`TrainingPlan.on`).

    ``setting`` is the setting of the first rounds: the scheme, its closing rule with a time limit,
    and the number of jobs in a round.
    """

    plan: TrainingPlan
    setting: Setting

    def workload(
        self, *, store: WeightStore, callbacks: Sequence[object] = (), tried: bool = False
    ) -> ModelsWorkload:
        """Return the workload that trains the models, with their weights in ``store``.

        Unless ``tried`` is True, `try_models` checks the models first.
        """
        plan, scheme = self.plan, self.setting.scheme
        if in_parts(scheme):
            return StaleWorkload(
                plan.models,
                scheme=scheme,
                store=store,
                precision=plan.precision,
                jobs_per_round=self.setting.jobs_per_round,
                updates=self.plan.updates_of(scheme),
                callbacks=callbacks,
                steps=plan.steps,
                tried=tried,
            )
        return TorchWorkload(
            plan.models,
            scheme=scheme,
            store=store,
            precision=plan.precision,
            jobs_per_round=self.setting.jobs_per_round,
            stale=plan.stale,
            callbacks=callbacks,
            steps=plan.steps,
            tried=tried,
        )

    def choose_groups(self) -> GroupChoice:
        """Return how many similar models a worker computes at once.

        Unless the plan has the number (``vectorize``), it is measured.
        """
        plan, scheme = self.plan, self.setting.scheme
        bundles = bundles_of(len(plan.models), self.setting.jobs_per_round)

        def points(model: Model) -> int:
            if isinstance(scheme, PolicyDefence | Deal):
                return int(scheme.cut(model.batch_size).max())
            return most_points(scheme, self.num_jobs, model.batch_size)

        return choose_group_sizes(
            [[plan.models[index] for index in bundle] for bundle in bundles],
            points=points,
            precision=plan.precision,
            size=plan.vectorize,
        )

    @property
    def task_load(self) -> float:
        """The mean load of a task, or of a piece if work is dealt, as a part of a job's batches."""
        scheme = self.setting.scheme
        pieces = scheme.num_pieces
        return 1 / pieces if pieces else float(scheme.loads_of(None).mean())

    def measure_task_s(self) -> float:
        """Measure how long a task computes on one thread of this machine, in seconds.

        The models of a job are computed one by one, on some of the data points. If jobs have
        different models, the result is the mean. See `seqgc.models.group_sizes.seconds_of_parts`.

        Raises
        ------
        ParameterError
            If a model's code raises an error.
        """
        plan, load = self.plan, self.task_load

        def points(model: Model) -> int:
            return num_points(load, model.batch_size)

        parts_s = seconds_of_parts(plan.models, points=points, precision=plan.precision)
        return parts_s / self.bundles

    @property
    def repeats(self) -> bool:
        """True if a resumed run ends with the same bits as a run without interruption."""
        if not in_parts(defence := self.setting.scheme):
            return not isinstance(defence, Controlled)  # its shares depend on the time
        updates = self.plan.updates_of(defence)
        at_once = defence.staleness == 0 and updates.apply == "clock"
        return at_once or updates.refresh == "late"

    def shortcomings(self) -> list[str]:
        """Return warnings that are shown before the run begins."""
        plan = self.plan
        warnings = [each for model in plan.models for each in frozen_statistics(model)]
        for model in distinct_models(plan.models):
            warnings += narrowing(model, plan.precision)
        replicas = replicas_of(self.setting.scheme) if plan.audit else ()
        if (alone := replicas.count(1)) == 0:
            return warnings
        what = f"{alone} of a job's {len(replicas)} results come from one worker each"
        return [*warnings, f"audit: {what}; a wrong finite value in one of them is not found"]

    @property
    def bundles(self) -> int:
        """The number of bundles of models, which take turns."""
        return num_bundles(len(self.plan.models), self.setting.jobs_per_round)

    @property
    def num_jobs(self) -> int:
        """The planned number of jobs: ``steps`` for each bundle."""
        return self.plan.steps * self.bundles

    def header(self, *, jobs: int, provider: str) -> dict[str, object]:
        """Return the fields of the first line of the run's log.

        ``jobs`` is the number of jobs, and ``provider`` the kind of the workers.
        """
        setting, sizes = self.setting, batch_sizes(self.plan.models)
        return {
            "scheme": setting.scheme.spec,
            "workers": setting.scheme.n,
            "jobs": jobs,
            "rounds": num_rounds(setting.scheme, jobs),
            "mu": setting.rule.mu,
            "wait_out": setting.rule.wait_out,
            "payload": self.plan.payload,
            "models": [model.name for model in self.plan.models],
            "batch": sizes[0] if len(sizes) == 1 else None,
            "provider": provider,
            "pieces": setting.scheme.num_pieces,
            "sizes": asdict(self.sizes),
        }

    @property
    def max_delay(self) -> int:
        """The largest delay, in rounds, of all schemes that the run may switch to."""
        scheme = self.setting.scheme
        if isinstance(scheme, PolicyDefence):
            return scheme.delay
        if self.plan.adaptation is None:
            return scheme.jobs_in_flight(self.bundles) - 1
        return self.bundles - 1

    def _jobs_read(self) -> int:
        """Return the number of most recent jobs whose weights a task may still read."""
        scheme = self.setting.scheme
        if isinstance(scheme, PolicyDefence):
            return scheme.jobs_per_task
        read = scheme.jobs_read(self.bundles)
        if self.plan.adaptation is None:
            return read
        return max(read, 2 * self.max_delay + 1)  # for a scheme that takes late answers

    @cached_property
    def sizes(self) -> TaskSizes:
        """The sizes of the largest task."""
        plan, setting, jobs, versions = self.plan, self.setting, 1, 1
        scheme = setting.scheme
        if isinstance(scheme, PolicyDefence):
            jobs = scheme.jobs_per_task
            if in_parts(scheme) and self.plan.updates_of(scheme).publishes_each:
                versions = scheme.n
        elif not isinstance(scheme, Deal):
            jobs = most_mini_tasks(scheme, self.num_jobs)
        load = max(float(scheme.loads_of(m.batch_size).max()) for m in plan.models)
        sizes = task_sizes(
            plan.models,
            jobs_per_round=setting.jobs_per_round,
            load=load * jobs if isinstance(scheme, PolicyDefence) else load,
            mini_tasks=jobs,
            precision=plan.precision,
            payload=plan.payload or plan.precision,
        )
        return replace(sizes, versions=versions)

    @property
    def needs(self) -> frozenset[Capability]:
        """The capabilities that workers must have."""
        return needs_of(self.setting, batch_sizes(self.plan.models))

    def work(
        self,
        run: Path,
        *,
        master: int = 1,
        pin: Mapping[str, str] | None = None,
        name: str = "",
    ) -> Work:
        """Return the work of the run in the folder ``run``, for which workers are opened.

        ``master`` is the number of the master, and `Crew` explains ``pin``. ``name`` is the name of
        the run at its beginning. The default is the name of the folder. The work does not have the
        group sizes yet.
        """
        plan, setting = self.plan, self.setting
        name = name or run.resolve().name
        return Work(
            name=name,
            run_id=name if master == 1 else f"{name}.{master}",
            models=tuple(plan.models),
            precision=plan.precision,
            payload=plan.payload or plan.precision,
            stochastic_rounding=plan.stochastic_rounding,
            run=run.absolute(),
            weights=run.absolute() / ("weights" if master == 1 else f"weights-{master}"),
            cached_weights=self._jobs_read(),
            code=setting.scheme.spec[:100] if plan.adaptation is None else "",
            sizes=self.sizes,
            fixed=plan.adaptation is None,
            occasion=lambda task: (task.round, setting.jobs_per_round * task.load),
            piece_loads=_piece_loads(setting),
            needs=self.needs,
            pin=pin or {},
        )


def _piece_loads(setting: Setting) -> tuple[float, ...]:
    """Return the normalized load of each piece; an empty tuple if work is not dealt."""
    if not isinstance(setting.scheme, Deal):
        return ()
    return tuple((setting.jobs_per_round * setting.scheme.chunk_fractions).tolist())


def _checked(models: Sequence[Model], precision: Precision) -> tuple[Model, ...]:
    if not isinstance(models, Sequence):
        raise ParameterError("models", "must be a list of models", models)
    for model in models:
        if not isinstance(model, Model):
            raise ParameterError("models", "must each be a Model", model)
        if model.batch_size > (points := len(model.dataset)):
            rule = f"must be at most {points}, as many points as model {model.name!r} has"
            raise ParameterError("batch_size", rule, model.batch_size)
        require_autocast(model.autocast, precision=precision)
    return tuple(models)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordingPlan:
    """A recording of the answer times of workers at each of several loads."""

    model: Model  # its gradient is computed, but it is not trained
    rounds: int  # number of rounds of each profile
    loads: Sequence[float]  # normalized, distinct, 0 to 1000; sorted
    warmup: int = 1  # number of rounds at each load that are not recorded, at most 10,000
    timeout_s: float = ROUND_LIMIT_S  # an answer that takes longer is recorded as `LATE`
    precision: Precision = "float32"  # precision of the weights and the results

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", require_int("rounds", self.rounds, least=1))
        warmup = require_int("warmup", self.warmup, least=0, most=_MOST_WARMUP)
        object.__setattr__(self, "warmup", warmup)
        loads, batch_size = tuple(self.loads), self.model.batch_size
        if not loads or not all(0 <= load <= _MOST_LOAD for load in loads):
            rule = f"must be numbers from 0 to {_MOST_LOAD}, at least one"
            raise ParameterError("loads", rule, list(loads))
        if len({num_points(load, batch_size) for load in loads}) < len(loads):
            rule = f"must give different numbers of data points of a batch of {batch_size}"
            raise ParameterError("loads", rule, list(loads))
        object.__setattr__(self, "loads", tuple(sorted(loads)))
        require_number("timeout_s", self.timeout_s, above=0)
        torch_dtype(self.precision)
        require_autocast(self.model.autocast, precision=self.precision)

    def work(self, weights: Path, *, occasion: Callable[[Task], tuple[int, float] | None]) -> Work:
        """Return the work of the recording, for which workers are opened."""
        models, precision = (self.model,), self.precision
        return Work(
            name="profile",
            run_id="profile",
            models=models,
            precision=precision,
            payload=precision,
            weights=weights,
            cached_weights=1,
            code="recording",
            sizes=task_sizes(
                models, load=max(1.0, *self.loads), precision=precision, payload=precision
            ),
            occasion=occasion,
        )


def num_points(load: float, batch_size: int) -> int:
    """Return the number of data points that a normalized load means: at least 1."""
    return max(1, round(load * batch_size))


def in_parts(defence: Defence) -> TypeGuard[PolicyDefence]:
    """Return True if the gradients of a defence arrive in parts that are used separately."""
    return isinstance(defence, PolicyDefence) and not isinstance(defence, Controlled)

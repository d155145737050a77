"""`compare`: every defence on one profile, by one yardstick.

The yardstick
-------------
Every defence processes the same data: *clocks*, batches of the same points in the same order, of
``models`` models that take turns. What counts is how long it takes until the models are good, and
that has two factors:

- *seconds per clock* of data: the time at which the last point of K clocks is applied, over K; of
  clocks from which points were left out, over what is left. For
  workers that go on by themselves that is the data applied, not the slowest worker's clock.
- *clocks to the target*: how many batches it takes to bring the loss down to it. Exact defences
  share one trajectory. A stale gradient is worth less, and nobody can say how much: so it is really
  trained, in virtual time, with gradients of the weights that each worker would have had.

Their product is read off the curve of the loss over time. Training is at one learning rate for all,
the best of a few for exact gradients; and at each defence's own best of them.

*Money*: functions are paid for until each invocation ends, used or not, and by request; residents
for as long as the run lasts. What is asked of workers beyond one batch a clock is *wasted*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from seqgc.comparison._problem import SoftmaxProblem
from seqgc.comparison._rows import Comparison, Metering, ProfileReading, Row, Trial
from seqgc.comparison._run import Course, Workers, course_of, trained
from seqgc.comparison._training import exact_curve
from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile, latency_pace, speed_pace
from seqgc.rounds import Setting, require_models
from seqgc.schemes import Deal, parse_scheme
from seqgc.search import Rehearsal, SearchSpace, deal, tune
from seqgc.stragglers import busy_seconds
from seqgc.virtual import WorkerKind

__all__ = ["compare", "default_defences"]

_OTHERS = "uncoded", "ssp:slack=1", "ssp:slack=3", "asp", "asp-dds:M=1", "lb-bsp", "antdt-nd"


def default_defences(
    rehearsal: Rehearsal, *, models: int, reading: ProfileReading
) -> list[Setting]:
    """Return what is compared unless something is named, where ``models`` take turns.

    The code that `seqgc.search.tune` finds, the best `ra-sgc` and `deal` where these can run, no
    defence at all, and the field's others at usual parameters.
    """
    n, found = rehearsal.profile.num_workers, list[Setting]()
    space = SearchSpace(jobs_per_round=(1,))
    taken: set[str] = set()
    for row in tune(replace(rehearsal, models=models), space=space).ranking:
        name = row.setting.scheme.spec.partition(":")[0]
        group = name if name in {"ra-sgc", "deal", "uncoded"} else "code"
        if group not in taken | {"uncoded"} and not (group == "deal" and reading == "speed"):
            taken.add(group)
            found.append(row.setting)
    backups = sorted({f"backup:b={max(1, n // part)}" for part in (16, 8, 4)} if n > 1 else ())
    return [*found, *(_setting(spec, n) for spec in (*_OTHERS, *backups))]


def compare(
    on: DelayProfile | Rehearsal,
    defences: Sequence[str | Setting] = (),
    *,
    models: int = 1,
    clocks: int | None = None,
    reading: ProfileReading = "latency",
    workers: WorkerKind = "function",
    trial: Trial | None = None,
    metering: Metering | None = None,
) -> Comparison:
    """Say which defence is best on recorded delays: see the head of `seqgc.comparison._compare`.

    ``on`` is a profile, or a rehearsal on one, of which the slope and the way to deal work count,
    too. ``defences`` are
    specifications or settings; without any, `default_defences`. ``models`` take turns, and
    ``clocks`` of data are timed (None: as many as the profile has rounds). ``reading`` says what
    the recorded seconds are (`seqgc.profiles.Pace`), and ``workers`` whether each task is an
    invocation of its own.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a defence cannot run here.

    Examples
    --------
    >>> from seqgc.profiles import LAMBDA_CNN
    >>> profile = LAMBDA_CNN.profile(20, workers=16, rng=np.random.default_rng(0))
    >>> found = compare(profile, ["uncoded", "gc-rep:s=3"])
    >>> [(row.defence, row.clocks_to_target) for row in found.rows]
    [('gc-rep:s=3', 29.0), ('uncoded', 29.0)]
    """
    rehearsal = on if isinstance(on, Rehearsal) else Rehearsal(profile=on)
    field = _Field.of(rehearsal, models=models, clocks=clocks, reading=reading, kind=workers)
    trial, metering = trial or Trial(), metering or Metering()
    n = field.workers.n
    settings = [each if isinstance(each, Setting) else _setting(each, n) for each in defences]
    settings = settings or default_defences(field.rehearsal, models=models, reading=reading)
    for setting in settings:
        field.check(setting)
    problems = [SoftmaxProblem(batch=trial.batch, seed=seed) for seed in range(trial.seeds)]
    exact = {
        lr: [
            len(exact_curve(problem, lr=lr, target=trial.target, most=trial.most)) - 1
            for problem in problems
        ]
        for lr in trial.lrs
    }
    common = min(trial.lrs, key=lambda lr: median(exact[lr]))
    judge = _Judge(field=field, trial=trial, metering=metering, problems=problems, exact=exact)
    rows = [judge.row(setting, common=common) for setting in settings]
    never = math.inf
    rows.sort(key=lambda row: (row.seconds_to_target or never, row.seconds_per_clock))
    return Comparison(
        rows=tuple(rows),
        reading=reading,
        workers=workers,
        n=n,
        models=models,
        clocks=field.clocks,
        alpha=field.rehearsal.slope,
        lr=common,
        trial=trial,
        bound_s=field.bound_s,
    )


def _setting(spec: str, n: int) -> Setting:
    return Setting(scheme=parse_scheme(spec, n=n))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Field:
    """Where all of them run: the profile, how it is read, and who works."""

    rehearsal: Rehearsal
    reading: ProfileReading
    workers: Workers
    models: int
    clocks: int

    @classmethod
    def of(
        cls,
        rehearsal: Rehearsal,
        *,
        models: int,
        clocks: int | None,
        reading: ProfileReading,
        kind: WorkerKind,
    ) -> _Field:
        require_int("models", models, least=1)
        profile, resident = rehearsal.profile, kind == "resident"
        stay = replace(rehearsal.reading, resident=resident)
        if reading not in ("latency", "speed"):
            raise ParameterError("reading", "must be latency or speed", reading)
        pace = (
            latency_pace(profile, alpha=rehearsal.alpha)
            if reading == "latency"
            else speed_pace(profile)
        )
        rounds = profile.num_rounds if clocks is None else require_int("clocks", clocks, least=1)
        return cls(
            rehearsal=replace(rehearsal, repeat=True, models=models, reading=stay),
            reading=reading,
            workers=Workers(pace=pace, kind=kind),
            models=models,
            clocks=rounds,
        )

    @property
    def bound_s(self) -> float:
        """Seconds per clock of data that perfect knowledge would take."""
        if self.reading == "speed" or self.workers.kind == "resident":
            return busy_seconds(self.workers.pace, self.clocks) / self.clocks
        return self.rehearsal.ideal_s(self.clocks) / self.clocks

    def check(self, setting: Setting) -> None:
        """Refuse what cannot run here."""
        scheme = setting.scheme
        if isinstance(scheme, Deal) and self.reading == "speed":
            rule = "cannot be `deal` where delays are read as speeds"
            raise ParameterError("defence", rule, scheme.spec, "take --reading latency")
        names = [f"model-{index}" for index in range(self.models)]
        require_models(names, delay=scheme.delay, jobs_per_round=setting.jobs_per_round)

    def course(self, setting: Setting, *, clocks: int) -> Course:
        """Run so many clocks of data, for the seconds alone."""
        if not isinstance(setting.scheme, Deal):
            return course_of(setting, self.workers, clocks=clocks)
        run = deal(setting, replace(self.rehearsal, num_jobs=clocks))
        closed_s: FloatArray = run.replay.jobs()["finished_s"]
        once = self.workers.kind == "resident"
        return Course(
            closed_s=closed_s.tolist(),
            busy_s=run.billed_worker_s,
            tasks=setting.scheme.n * (1 if once else clocks),
            load=run.computed_load,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """The target, at some learning rate: after how many clocks of a model, and when."""

    clocks: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judge:
    """Times and trains one defence after the other."""

    field: _Field
    trial: Trial
    metering: Metering
    problems: Sequence[SoftmaxProblem]
    exact: dict[float, list[int]]  # steps to the target, by learning rate and seed

    def row(self, setting: Setting, *, common: float) -> Row:
        """Return what a defence comes to."""
        field, lacks = self.field, list[float]()
        course = field.course(setting, clocks=field.clocks)
        if setting.scheme.kind == "exact":
            reached = {lr: self._exactly(setting, self.exact[lr]) for lr in self.trial.lrs}
        else:
            reached = {common: self._trained(setting, common, lacks)}
            for lr in self.trial.lrs:
                if lr not in reached:  # no longer than what is better
                    known = [each.seconds for each in reached.values() if each is not None]
                    limit_s = min(known, default=math.inf)
                    reached[lr] = self._trained(setting, lr, until_s=limit_s)
        seen, seconds_per_clock = reached[common], course.runtime_s / field.clocks / course.applied
        able = {lr: each.seconds for lr, each in reached.items() if each is not None}
        best = min(able, key=able.__getitem__, default=None)
        return Row(
            defence=setting.scheme.spec,
            kind=setting.scheme.kind,
            seconds_per_clock=seconds_per_clock,
            over_bound=seconds_per_clock / field.bound_s,
            clocks_to_target=None if seen is None else seen.clocks,
            seconds_to_target=None if seen is None else seen.seconds,
            usd=None if seen is None else self._usd(course, seen),
            best_lr=best,
            best_seconds=None if best is None else able[best],
            staleness_mean=float(np.mean(lacks)) if lacks else 0.0,
            staleness_max=max(lacks, default=0.0),
            wasted=round(course.load - 1, 9) + 0.0,  # sums of shares; no -0
        )

    def _exactly(self, setting: Setting, steps: Sequence[int]) -> _Reached | None:
        """Read off when the last model has taken so many steps, the median of the seeds."""
        clocks, models = int(median(steps)), self.field.models
        if clocks >= self.trial.most:
            return None
        course = self.field.course(setting, clocks=clocks * models)
        return _Reached(clocks=float(clocks), seconds=course.runtime_s)

    def _trained(
        self,
        setting: Setting,
        lr: float,
        lacks: list[float] | None = None,
        *,
        until_s: float = math.inf,
    ) -> _Reached | None:
        """Train with each seed, up to a time; note in ``lacks`` how stale its gradients were."""
        ends = list[tuple[float, float]]()
        for problem in self.problems:
            curve, staleness = trained(
                setting,
                self.field.workers,
                problem,
                models=self.field.models,
                lr=lr,
                target=self.trial.target,
                clocks=self.trial.most * self.field.models,
                until_s=until_s,
            )
            if lacks is not None:
                lacks += staleness
            at = curve.reaches(self.trial.target)
            ends.append((math.inf, math.inf) if at is None else curve.point(at))
        seconds, clocks = (median(each) for each in zip(*ends, strict=True))
        if math.isinf(seconds):
            return None
        return _Reached(clocks=clocks / self.field.models, seconds=seconds)

    def _usd(self, course: Course, reached: _Reached) -> float:
        """Return what the run up to the target costs: see this module's head."""
        n, clocks = self.field.workers.n, reached.clocks * self.field.models
        if self.field.workers.kind == "resident":
            return self.metering.usd(worker_s=reached.seconds * n, requests=n)
        share = clocks / len(course.closed_s)
        requests = round(course.tasks * share)
        return self.metering.usd(worker_s=course.busy_s * share, requests=requests)

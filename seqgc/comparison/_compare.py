"""`compare`: every defence on one profile, by one yardstick.

The yardstick
-------------
Every defence processes the same data: *clocks*, batches of the same points in the same order, of
``models`` models, bundle by bundle in turn: the gradients of a bundle are one job. What counts is
how long it takes until the models are good, and that has two factors:

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
from dataclasses import replace
from statistics import median

from seqgc.comparison._curve import Trainees
from seqgc.comparison._field import Field
from seqgc.comparison._judge import Judge
from seqgc.comparison._problem import SoftmaxProblem
from seqgc.comparison._rows import Comparison, Metering, ProfileReading, Trial
from seqgc.comparison._training import SoftmaxTrainees
from seqgc.errors import ModelError, ParameterError
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting
from seqgc.schemes import Defence, parse_scheme
from seqgc.search import Rehearsal, SearchSpace, tune
from seqgc.virtual import WorkerKind

__all__ = ["compare", "default_defences", "require_comparable"]

_OTHERS = "uncoded", "ssp:slack=1", "ssp:slack=3", "asp", "asp-dds:M=1", "lb-bsp", "antdt-nd"


def default_defences(
    rehearsal: Rehearsal, *, models: int, reading: ProfileReading
) -> list[Setting]:
    """Return what is compared unless something is named, where so many ``models`` are trained.

    The code that `seqgc.search.tune` finds, the best `ra-sgc` and `deal` where these can run (work
    is dealt to workers that stay), each with the bundle that suits it best; no defence at all, and
    the field's others at usual parameters, with the largest bundle that they can have. Of speeds a
    search knows nothing: there the code is the smallest.
    """
    n = rehearsal.profile.num_workers
    found = [] if reading == "speed" else _tuned(rehearsal, models)
    if reading == "speed" and n > 1:
        found.append(_setting("gc:s=1" if n % 2 else "gc-rep:s=1", n, models=models))
    backups = sorted({f"backup:b={max(1, n // part)}" for part in (16, 8, 4)} if n > 1 else ())
    return [*found, *(_setting(spec, n, models=models) for spec in (*_OTHERS, *backups))]


def _tuned(rehearsal: Rehearsal, models: int) -> list[Setting]:
    """Return the best of each group of schemes."""
    found, taken = list[Setting](), {"uncoded"}
    if not rehearsal.reading.resident:
        taken.add("deal")
    space = SearchSpace(jobs_per_round=tuple(reversed(_divisors(models))))
    for row in tune(replace(rehearsal, models=models), space=space).ranking:
        name = row.setting.scheme.spec.partition(":")[0]
        group = name if name in {"ra-sgc", "deal", "uncoded"} else "code"
        if group not in taken:
            taken.add(group)
            found.append(row.setting)
    return found


def compare(
    on: DelayProfile | Rehearsal,
    defences: Sequence[str | Defence | Setting] = (),
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
    too. ``defences`` are specifications or settings; without any, `default_defences`. Of
    ``models`` (as many as the trial has, if it has a plan), as many as a defence's delay allows
    make a bundle, one job, unless its setting says how many; bundles take turns. ``clocks`` of data
    are timed (None: as many as the profile has rounds). ``reading`` says what the recorded seconds
    are (`seqgc.profiles.Pace`), and ``workers`` whether each task is an invocation of its own.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a defence cannot run here.
    ModelError
        If a model of a plan fails in training with exact gradients, whatever the learning rate.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.profiles import LAMBDA_CNN
    >>> profile = LAMBDA_CNN.profile(20, workers=16, rng=np.random.default_rng(0))
    >>> found = compare(profile, ["uncoded", "gc-rep:s=3"])
    >>> [(row.defence, row.clocks_to_target) for row in found.rows]
    [('gc-rep:s=3', 29.0), ('uncoded', 29.0)]
    """
    trial, metering = trial or Trial(), metering or Metering()
    models = _models(models, trained=None if trial.plan is None else len(trial.plan.models))
    field, settings = _checked(
        on, defences, models=models, clocks=clocks, reading=reading, workers=workers
    )
    trainees = _trainees(trial, models)
    for setting in settings:
        trainees[0].check(setting)
    if not settings:
        usual = default_defences(field.rehearsal, models=models, reading=reading)
        settings = [each for each in usual if _can_be(each, trainees[0])]
    exact = _exact_steps(trial, trainees)
    common = min(trial.lrs, key=lambda lr: median(exact[lr]))
    bound_s = field.bound_s(settings)
    judge = Judge(
        field=field,
        trial=trial,
        metering=metering,
        trainees=trainees,
        exact=exact,
        bound_s=bound_s,
    )
    rows = [judge.row(setting, common=common) for setting in settings]
    never = math.inf
    rows.sort(key=lambda row: (row.seconds_to_target or never, row.seconds_per_clock))
    return Comparison(
        rows=tuple(rows),
        reading=reading,
        workers=workers,
        n=field.n,
        models=models,
        clocks=field.clocks,
        alpha=field.rehearsal.slope,
        lr=common,
        trial=trial,
        bound_s=bound_s,
    )


def require_comparable(
    on: DelayProfile | Rehearsal,
    defences: Sequence[str | Defence | Setting] = (),
    *,
    models: int = 1,
    trained: int | None = None,
    clocks: int | None = None,
    reading: ProfileReading = "latency",
    workers: WorkerKind = "function",
) -> None:
    """Refuse what `compare` would refuse of these, with `ParameterError`, before it has a plan.

    To make a plan's models may take long, and is their author's code; so many are ``trained``.
    """
    models = _models(models, trained=trained)
    _checked(on, defences, models=models, clocks=clocks, reading=reading, workers=workers)


def _checked(
    on: DelayProfile | Rehearsal,
    defences: Sequence[str | Defence | Setting],
    *,
    models: int,
    clocks: int | None,
    reading: ProfileReading,
    workers: WorkerKind,
) -> tuple[Field, list[Setting]]:
    """Return where defences are to run, and the settings of those that are named."""
    if not isinstance(on, DelayProfile | Rehearsal):
        raise ParameterError("on", "must be a DelayProfile or a Rehearsal", on)
    if isinstance(defences, str) or not isinstance(defences, Sequence):
        raise ParameterError("defences", "must be a list of defences", defences)
    rehearsal = on if isinstance(on, Rehearsal) else Rehearsal(profile=on)
    field = Field.of(rehearsal, models=models, clocks=clocks, reading=reading, kind=workers)
    settings = [_setting(each, field.n, models=models) for each in defences]
    for setting in settings:
        field.check(setting)
    return field, settings


def _models(models: int, *, trained: int | None) -> int:
    """Return how many models there are: as many as are trained, if a plan says what is."""
    if trained is None:
        return models
    if models not in (1, trained):
        rule = f"must be left out, or {trained}, as many as are trained"
        raise ParameterError("models", rule, models)
    return trained


def _trainees(trial: Trial, models: int) -> list[Trainees]:
    if trial.plan is None:
        problems = [SoftmaxProblem(batch=trial.batch, seed=seed) for seed in range(trial.seeds)]
        return [SoftmaxTrainees(problem=problem, models=models) for problem in problems]
    from seqgc.comparison._torch import TorchTrainees  # needs torch, which takes seconds

    return [TorchTrainees(plan=trial.plan, seed=seed) for seed in range(trial.seeds)]


def _can_be(setting: Setting, trainees: Trainees) -> bool:
    try:
        trainees.check(setting)
    except ParameterError:
        return False
    return True


def _exact_steps(trial: Trial, trainees: Sequence[Trainees]) -> dict[float, list[float]]:
    """Return each seed's steps to the target with exact gradients, by learning rate.

    A rate with which a model fails is one with which they never get there, unless there is none
    without; `ParameterError`: they are there before they begin.
    """
    if (loss := trainees[0].loss()) <= trial.target:
        rule = f"must be below the loss that training begins with, {loss:.4g}"
        raise ParameterError("target", rule, trial.target)
    steps, failures = dict[float, list[float]](), list[ModelError]()
    for lr in trial.lrs:
        try:
            steps[lr] = [
                each.exact_steps(lr=lr, target=trial.target, most=trial.most) for each in trainees
            ]
        except ModelError as error:
            failures.append(error)
            steps[lr] = [math.inf] * len(trainees)
    if len(failures) == len(trial.lrs):
        raise failures[0]
    return steps


def _setting(defence: str | Defence | Setting, n: int, *, models: int) -> Setting:
    """Return a defence with as many models in a job as its delay allows, unless it says."""
    if isinstance(defence, Setting):
        return defence
    scheme = parse_scheme(defence, n=n) if isinstance(defence, str) else defence
    most = max(1, models // (scheme.delay + 1))
    size = next(k for k in _divisors(models) if k <= most)
    return Setting(scheme=scheme, jobs_per_round=size)


def _divisors(number: int) -> list[int]:
    """Return what divides a number, the largest first."""
    return [k for k in range(number, 0, -1) if number % k == 0]

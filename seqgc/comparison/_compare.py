"""Comparison of all defences on one delay profile, by the time to a target loss.

The measure
-----------
Every defence processes the same data. A *clock* is one batch of one model; all defences have the
same batches in the same order. There are ``models`` models, which take turns in bundles; the
gradients of a bundle are one job. The measure is the time until the models reach a target loss. It
has two factors:

- *Seconds per clock* of data: the time at which the last point of K clocks is applied, divided by
  K. If some data are lost, it is divided by the applied part of K. For workers that do not wait
  for each other, this counts the applied data, not the slowest worker's clock.
- *Clocks to the target*: the number of batches until the loss reaches the target. All exact
  defences have the same losses. No formula gives the effect of stale gradients. Therefore stale
  defences actually train, in virtual time, with gradients at the weights that each worker would
  have had.

The curve of the loss over time gives the product of both factors. All defences train at one
learning rate, the best rate for exact gradients, and at their own best rate. To find a best rate, a
first rate is doubled and halved until the best rate is not at an end of the rates tried. The times
at which workers compute do not depend on the weights. Therefore a single run of the loop serves all
trainings of a defence.

If no defences are named, codes are chosen on the first half of the recording, and all defences are
evaluated on the second half. Otherwise the codes, unlike the other defences, would be evaluated on
the rounds on which they were chosen.

*Money*: each task of a function is one paid request, and its whole time is paid, even if its result
is not used. Resident workers are paid for the duration of the run. Work beyond one batch per clock
is *wasted*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final, TypeAlias

from seqgc.comparison._apps import AppTrainees
from seqgc.comparison._evaluation import FEW_SEEDS, BestRate, Evaluator, best_near, best_of
from seqgc.comparison._field import Field
from seqgc.comparison._rows import Comparison, Metering, Row, Trial
from seqgc.comparison._softmax import SoftmaxProblem, SoftmaxTrainees
from seqgc.comparison._training import Trainees
from seqgc.errors import ModelError, ParameterError, require_int
from seqgc.progress import working
from seqgc.rounds import Setting
from seqgc.runs import ProfileSource
from seqgc.schemes import Defence
from seqgc.search import ProfileReading, Rehearsal, SearchSpace, hold_out, tune
from seqgc.virtual import WorkerKind

__all__ = ["compare", "default_defences", "require_comparable"]

Progress: TypeAlias = Callable[[str, float], None]
"""A function that is called with the name of the next step, and the progress from 0 to 1."""

_HALF: Final = 0.5  # of the rounds, on which defences are evaluated after a choice
_RATE: Final = 4.0  # the first learning rate
_SEARCH_SHARE: Final = 0.1  # approximate share of the search for codes in the total time
_SEEDS: Final = 10

_OTHERS = (
    "uncoded",
    "hedge",
    "ssp:slack=1",
    "ssp:slack=3",
    "asp",
    "asp-dds:M=1",
    "lb-bsp",
    "antdt-nd",
)


def default_defences(
    on: Rehearsal | ProfileSource,
    *,
    models: int,
    reading: ProfileReading | None = None,
    progress: Progress | None = None,
) -> list[Setting]:
    """Return the defences that are compared by default, for ``models`` models.

    There are two groups. The first group is chosen by `seqgc.search.tune`, each defence with its
    best bundle size: the best code, the best `ra-sgc`, and the best `deal` if workers stay. The
    second group has usual parameters and the largest possible bundle: `uncoded`, and the defences
    of other authors. ``reading`` is the interpretation of the recorded seconds; None means
    `Rehearsal.recorded`.
    """
    rehearsal = Rehearsal.of(on) if reading is None else Rehearsal.of(on, recorded=reading)
    n = rehearsal.profile.num_workers
    tell = progress or (lambda _what, _share: None)
    tuned = _tuned(rehearsal, models, tell)
    backups = sorted({f"backup:b={max(1, n // part)}" for part in (16, 8, 4)} if n > 1 else ())
    return [*tuned, *(_setting(spec, n, models=models) for spec in (*_OTHERS, *backups))]


def _tuned(rehearsal: Rehearsal, models: int, tell: Progress) -> list[Setting]:
    """Return the best setting of each group of schemes."""
    settings, taken = list[Setting](), {"uncoded"}
    if not rehearsal.reading.resident:
        taken.add("deal")
    space = SearchSpace(jobs_per_round=tuple(reversed(_divisors(models))))
    tuning = tune(
        replace(rehearsal, models=models),
        space=space,
        progress=lambda settled, total: tell("search for a code", settled / total),
    )
    for row in tuning.ranking:
        name = row.setting.scheme.spec.partition(":")[0]
        group = name if name in {"ra-sgc", "deal", "uncoded"} else "code"
        if group not in taken:
            taken.add(group)
            settings.append(row.setting)
    return settings


def compare(
    on: Rehearsal | ProfileSource,
    defences: Sequence[str | Defence | Setting] = (),
    *,
    models: int = 1,
    clocks: int | None = None,
    reading: ProfileReading | None = None,
    workers: WorkerKind = "function",
    holdout: float | None = None,
    trial: Trial | None = None,
    metering: Metering | None = None,
    progress: Progress | None = None,
    quiet: bool = False,
) -> Comparison:
    """Compare defences on recorded delays, by the time until models reach a target loss.

    The docstring of the module `seqgc.comparison._compare` describes the measure.

    ``on`` is a profile, the path of one, or the name of a generator (`seqgc.runs.read_delays`);
    or a rehearsal, whose slope and interpretation are also used. ``defences``
    are specs or settings, which are evaluated on the whole profile. By default,
    `default_defences` are chosen on the first half of the profile, and evaluated on the second
    half. ``holdout`` is the fraction of the rounds, at the end of the profile, on which all
    defences are evaluated; the default ones are then chosen on the rounds before.

    ``models`` is the number of models; if the trial has a plan, the default is the number in the
    plan. Models take turns in bundles. A bundle has as many models as the defence's delay allows,
    unless the setting gives the number.

    ``clocks`` is the number of clocks that are timed; None means the number of rounds for the
    evaluation. ``reading`` is the interpretation of the recorded seconds (`seqgc.profiles.Pace`);
    None means `Rehearsal.recorded`. If ``workers`` is ``"function"``, each task is a separate
    invocation. ``progress`` is called before each step with the name of the step, and the progress
    from 0 to 1. If it is None, a terminal or notebook shows the progress after a second, unless
    ``quiet`` is True.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or a defence does not fit the workers or the models.
    ModelError
        If a model of a plan fails at every learning rate, although gradients are exact.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.profiles import LAMBDA_CNN
    >>> profile = LAMBDA_CNN.profile(20, workers=16, rng=np.random.default_rng(0))
    >>> found = compare(profile, ["uncoded", "gc-rep:s=3"])
    >>> found
    <Comparison: defences 2; workers 16; target 0.25; advice gc-rep:s=3 reaches 0.25 in ...>
    >>> [(row.defence, row.clocks_to_target) for row in found.rows]
    [('gc-rep:s=3', 23.0), ('uncoded', 23.0)]
    >>> found.lr, found.lr_is_edge, found.trial.seeds
    (8.0, False, 10)
    """
    with working("compare", quiet=quiet or progress is not None) as tell:
        return _compared(
            on,
            defences,
            models=models,
            clocks=clocks,
            reading=reading,
            workers=workers,
            holdout=holdout,
            trial=trial or Trial(),
            metering=metering or Metering(),
            tell=progress or tell,
        )


def _compared(
    on: Rehearsal | ProfileSource,
    defences: Sequence[str | Defence | Setting],
    *,
    models: int,
    clocks: int | None,
    reading: ProfileReading | None,
    workers: WorkerKind,
    holdout: float | None,
    trial: Trial,
    metering: Metering,
    tell: Progress,
) -> Comparison:
    if trial.is_own and trial.lrs is None:
        trial = replace(trial, lrs=(1.0,))
    if trial.app is not None and models > 1:
        raise ParameterError("models", "must be 1 for an app, which is a single program", models)
    models = _models(models, trained=None if trial.plan is None else len(trial.plan.models))
    whole, settings = _checked(
        on, defences, models=models, clocks=clocks, reading=reading, workers=workers
    )
    if trial.app is not None:  # the number of pieces that `run_app` would choose
        items = require_int("items", trial.app.items, least=1)
        settings = [replace(s, scheme=s.scheme.fitted(1, batch=items)) for s in settings]
    first, field, chosen_on = _trainees(trial, models, whole.n, seeds=1)[0], whole, None
    if holdout is not None:  # raises if the fraction or the profile does not allow it
        _, field = _split(whole, clocks=clocks, fraction=holdout)
    for setting in settings:
        first.check(setting)
    share = 0.0
    if not settings:
        share = _SEARCH_SHARE
        chosen, field = _split(whole, clocks=clocks, fraction=holdout or _HALF)
        chosen_on = 0 if field is whole else chosen.profile.num_rounds
        usual = default_defences(
            chosen, models=models, progress=lambda what, part: tell(what, part * share)
        )
        settings = [each for each in usual if _can_train(each, first)]
    seeds = trial.seeds or (FEW_SEEDS if trial.is_own else _SEEDS)
    trial, trainees = replace(trial, seeds=seeds), _trainees(trial, models, whole.n, seeds=seeds)
    tell("learning rates", share)
    common, exact = _exact_steps(trial, trainees)
    bound_s = field.bound_s(settings)
    rows = list[Row]()
    for index, setting in enumerate(settings):
        at = share + (1 - share) * index / len(settings)
        judge = Evaluator(
            field=field,
            trial=trial,
            metering=metering,
            trainees=trainees,
            common=common,
            exact=exact,
            bound_s=bound_s,
            tell=partial(lambda share, what: tell(what, share), at),
        )
        rows.append(judge.row(setting))
    never = math.inf
    rows.sort(key=lambda row: (row.seconds_to_target or never, row.seconds_per_clock))
    tell("done", 1.0)
    read = field.rehearsal.recorded
    return Comparison(
        rows=tuple(rows),
        reading=read,
        workers=workers,
        n=field.n,
        models=models,
        clocks=field.clocks,
        alpha=None if read == "speed" else field.rehearsal.slope,
        lr=common.rate,
        trial=replace(trial, lrs=common.tried),
        bound_s=bound_s,
        lr_is_edge=common.is_edge,
        chosen_on=chosen_on,
    )


def _split(whole: Field, *, clocks: int | None, fraction: float) -> tuple[Rehearsal, Field]:
    """Return the rounds on which defences are chosen, and the rounds on which they are evaluated.

    If the profile has only one round, it is used for both, unless the fraction was requested.
    """
    profile = whole.rehearsal.profile
    if profile.num_rounds < 2 and fraction == _HALF:
        return whole.rehearsal, whole
    chosen, judged = hold_out(profile, fraction=fraction)
    return whole.rehearsal.on_part(chosen), whole.on(judged, clocks=clocks)


def require_comparable(
    on: Rehearsal | ProfileSource,
    defences: Sequence[str | Defence | Setting] = (),
    *,
    models: int = 1,
    trained: int | None = None,
    clocks: int | None = None,
    reading: ProfileReading | None = None,
    workers: WorkerKind = "function",
) -> None:
    """Check the arguments of `compare` before a training plan is created.

    To create the models of a plan may take long, and executes the user's code. ``trained`` is the
    number of models that the plan will have; None means that no plan is used.

    Raises
    ------
    ParameterError
        If `compare` would raise it for these arguments.
    """
    models = _models(models, trained=trained)
    _checked(on, defences, models=models, clocks=clocks, reading=reading, workers=workers)


def _checked(
    on: Rehearsal | ProfileSource,
    defences: Sequence[str | Defence | Setting],
    *,
    models: int,
    clocks: int | None,
    reading: ProfileReading | None,
    workers: WorkerKind,
) -> tuple[Field, list[Setting]]:
    """Check the arguments; return the field, and the settings of the named defences."""
    if isinstance(defences, str) or not isinstance(defences, Sequence):
        raise ParameterError("defences", "must be a list of defences", defences)
    field = Field.of(Rehearsal.of(on), models=models, clocks=clocks, reading=reading, kind=workers)
    settings = [_setting(each, field.n, models=models) for each in defences]
    for setting in settings:
        field.check(setting)
    field.workers(1).backend()  # raises if the workers cannot exist
    return field, settings


def _models(models: int, *, trained: int | None) -> int:
    """Return the number of models, which is ``trained`` if there is a plan."""
    if trained is None:
        return models
    if models not in (1, trained):
        rule = f"must be left out, or {trained}, the number of models in the plan"
        raise ParameterError("models", rule, models)
    return trained


def _trainees(trial: Trial, models: int, n: int, *, seeds: int) -> list[Trainees]:
    if trial.app is not None:
        return [AppTrainees(app=trial.app, n=n, seed=seed) for seed in range(seeds)]
    if trial.plan is None:
        problems = [SoftmaxProblem(batch=trial.batch, seed=seed) for seed in range(seeds)]
        return [SoftmaxTrainees(problem=problem, models=models) for problem in problems]
    from seqgc.comparison._torch import TorchTrainees  # needs torch, which takes seconds

    return [TorchTrainees(plan=trial.plan, seed=seed) for seed in range(seeds)]


def _can_train(setting: Setting, trainees: Trainees) -> bool:
    try:
        trainees.check(setting)
    except ParameterError:
        return False
    return True


def _exact_steps(trial: Trial, trainees: Sequence[Trainees]) -> tuple[BestRate, list[float]]:
    """Return the best learning rate for exact gradients, and each seed's steps to the target.

    The rate is chosen with the first seeds. If a model fails at a rate, the number of steps is
    infinite.

    Raises
    ------
    ModelError
        If a model fails at every rate.
    ParameterError
        If the target is reached before training.
    """
    if (loss := trainees[0].loss()) <= trial.target:
        rule = f"must be below the loss before training, {loss:.4g}"
        raise ParameterError("target", rule, trial.target)
    failures = dict[float, ModelError]()
    steps_at = dict[float, list[float]]()

    def steps(lr: float, among: Sequence[Trainees]) -> list[float]:
        try:
            return [each.exact_steps(lr=lr, target=trial.target, most=trial.most) for each in among]
        except ModelError as error:
            failures[lr] = error
            return [math.inf] * len(among)

    def cost(lr: float) -> float:
        steps_at[lr] = steps(lr, trainees[:FEW_SEEDS])
        return median(steps_at[lr])

    best = best_near(cost, _RATE) if trial.lrs is None else best_of(cost, trial.lrs)
    if len(failures) == len(best.tried):
        raise failures[best.rate]
    return best, steps_at[best.rate] + steps(best.rate, trainees[FEW_SEEDS:])


def _setting(defence: str | Defence | Setting, n: int, *, models: int) -> Setting:
    """Return the setting of a defence; by default, its bundle is as large as the delay allows."""
    setting = Setting.of(defence, n=n)
    if isinstance(defence, Setting):
        return setting
    most = max(1, models // (setting.scheme.delay + 1))
    return replace(setting, jobs_per_round=next(k for k in _divisors(models) if k <= most))


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, the largest first."""
    return [k for k in range(number, 0, -1) if number % k == 0]

"""From a configuration to a plan and workers: everything is checked before anything is written."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import tomli_w

from seqgc import workers
from seqgc.cli._messages import say
from seqgc.cli._names import FUNCTIONS, OPTIMIZERS, SCHEDULERS, check_names
from seqgc.cli._show import busy
from seqgc.cli.config import (
    ModelConfig,
    RunConfig,
    ValidationConfig,
    Values,
)
from seqgc.cli.progress import RunProgress
from seqgc.costs import Budget, StayBudget, find_prices
from seqgc.deploy import DEPLOYMENT_FILE
from seqgc.errors import ParameterError
from seqgc.ports import Observer
from seqgc.rounds import Adaptation, ClosingRule, Setting, num_rounds, require_models
from seqgc.schemes import Deal, Defence, parse_scheme
from seqgc.worker import OwnFunction, call_own, own_function, own_module, require_arguments
from seqgc.workers import Forecast, FunctionSettings, InjectedDelays, WorkerSet

if TYPE_CHECKING:
    from types import ModuleType

    from seqgc.models.evaluation import Metric
    from seqgc.models.model import OptimizerFactory, SchedulerFactory
    from seqgc.models.points import PointDataset
    from seqgc.training import Model, TrainingPlan, TrainResult, Updates, Validation


_OPEN_BUNDLES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A run whose configuration has been found good, and its workers, not yet at work."""

    config: RunConfig
    plan: TrainingPlan
    workers: WorkerSet
    forecast: Forecast | None  # of functions

    def train(self, *, run: Path | None) -> TrainResult:
        """Train; ``run`` defaults to a new folder in ``runs``."""
        from seqgc.training import new_run_path, train

        config = self.config
        settled: Values = {
            "payload": self.plan.payload,
            "jobs_per_round": self.plan.on(config.workers).setting.jobs_per_round,
        }
        if self.forecast is not None:
            store = {"store": self.forecast.where}
            settled["function"] = self.forecast.settings.model_copy(update=store)
        final = config.model_copy(update=settled).model_dump(exclude_none=True, mode="json")
        with self._watched() as (observers, callbacks):
            return train(
                self.plan,
                self.workers,
                run=run or new_run_path("runs", config.scheme),
                observers=observers,
                config=tomli_w.dumps(final),
                callbacks=callbacks,
            )

    def resume(self, run: Path, *, accept_changes: bool = False) -> TrainResult:
        """Go on with the run in a folder."""
        from seqgc.training import resume

        with self._watched() as (observers, callbacks):
            return resume(
                run,
                self.plan,
                self.workers,
                observers=observers,
                accept_changes=accept_changes,
                callbacks=callbacks,
            )

    def train_or_resume(self, run: Path) -> TrainResult:
        """Go on with the run in a folder, if it has begun there; else begin it."""
        from seqgc.runs.folder import remove_unbegun

        remove_unbegun(run)
        begun = os.path.exists(run)  # noqa: PTH110 (`Path.exists` raises at some names)
        return self.resume(run) if begun else self.train(run=run)

    @contextmanager
    def _watched(self) -> Iterator[tuple[list[Observer], list[object]]]:
        """Yield observers and callbacks: the budget, one's own, and what shows how far it is."""
        from seqgc.runs.folder import Forgiving

        config, plan, crew = self.config, self.plan, self.workers
        budget = self._budget()
        if config.max_usd is not None and self.forecast is not None:
            dated = find_prices(region := self.forecast.settings.region)
            why = f" ({dated.missed})" if dated.missed else ""
            with suppress(OSError):  # nobody is there to read it
                say("prices", f"prices of {region}, {dated.as_of}: {dated.source}{why}")
        planned = plan.on(crew.n)
        rounds = num_rounds(planned.setting.scheme, planned.num_jobs)
        counted = budget if self.forecast is not None else None
        with RunProgress(config.scheme, total=rounds, spending=counted) as progress:
            shown = Forgiving(progress, warn=lambda _: None)  # who could be warned there?
            own = make_callbacks(config)
            yield [*([budget] if budget else []), shown], [*own, progress]

    def _budget(self) -> Budget | StayBudget | None:
        """Return what counts the cost, where there is any, and keeps it within ``max_usd``."""
        most = self.config.max_usd
        if most is not None:
            return self.workers.budget(self.plan, most)
        if self.config.backend == "lambda":
            with suppress(ParameterError):  # no price that is known beforehand
                return self.workers.budget(self.plan, math.inf)
        return None


def prepare(config: RunConfig, crew: WorkerSet) -> PreparedRun:
    """Make what a configuration asks for, or raise `ParameterError`."""
    with busy("importing PyTorch, checking the models"):
        plan = make_plan(config)
    if (predicted := crew.forecast(plan)) is not None:
        predicted.check()
    return PreparedRun(config=config, plan=plan, workers=crew, forecast=predicted)


def make_plan(config: RunConfig) -> TrainingPlan:
    """Return what is to be trained, and how."""
    scheme = parse_scheme(config.scheme, n=config.workers)
    require_models(  # as far as it goes before PyTorch is imported
        [model.name for model in config.models],
        delay=scheme.delay,
        jobs_per_round=config.jobs_per_round or 1,
        stale=config.stale,
    )
    adaptation = None
    if config.probe is not None or config.retune is not None:
        alpha = config.alpha
        if alpha is None and (delays := make_delays(config)) is not None:
            alpha = delays.alpha
        adaptation = Adaptation(probe=config.probe, retune=config.retune, alpha=alpha)
    models = make_models(config)
    from seqgc.training import TrainingPlan, bundle_size

    # Who looks for schemes, or deals, does so among as many delays, or jobs, as there are bundles.
    bundles = _OPEN_BUNDLES if adaptation or isinstance(scheme, Deal) else scheme.delay + 1
    rule = ClosingRule(
        mu=config.mu,
        wait_out=config.wait_out,
        timeout_s=config.timeout_s,
        max_attempts=config.max_attempts,
    )
    jobs_per_round = config.jobs_per_round or bundle_size(models, bundles=bundles)
    plan = TrainingPlan(
        models=models,
        scheme=Setting(scheme=scheme, rule=rule, jobs_per_round=jobs_per_round),
        steps=config.steps,
        precision=config.precision,
        payload=config.payload,
        stochastic_rounding=config.stochastic_rounding,
        stale=config.stale,
        adaptation=adaptation,
        checkpoint_every_s=config.checkpoint_every_s,
        max_norm=config.max_norm,
        on_failure=config.on_failure,
        audit=config.audit,
        updates=make_updates(config, scheme),
    )
    _require_setting(plan, config)
    plan.require_steps()
    return plan


def _require_setting(plan: TrainingPlan, config: RunConfig) -> None:
    """Refuse what the scheme is not for; what is wrong with updates, by what was said of them."""
    try:
        plan.on(config.workers)
    except ParameterError as error:
        if error.argument != "updates":
            raise
        name, value = next(iter(_of_updates(config).items()))
        raise ParameterError(name, error.rule, value, error.remedy) from None


def models_plan(config: RunConfig) -> TrainingPlan:
    """Return what a configuration has trained, whoever is to run it."""
    with busy("importing PyTorch, checking the models"):
        models = make_models(config)
        from seqgc.training import TrainingPlan

        return TrainingPlan(
            models=models,
            scheme="uncoded",
            steps=config.steps,
            precision=config.precision,
            updates=make_updates(config, parse_scheme("asp", n=1)),
        )


def make_updates(config: RunConfig, defence: Defence) -> Updates | None:
    """Return how parts of batches are used, as far as the configuration says so."""
    if not (given := _of_updates(config)):
        return None
    from seqgc.training import Updates

    whole = defence.kind != "stale" or config.refresh == "late"
    return cast("Callable[..., Updates]", Updates)(
        **{"apply": "clock" if whole else "update"} | given
    )


def _of_updates(config: RunConfig) -> Values:
    """Return what the configuration says of updates."""
    given = {"apply": config.apply, "refresh": config.refresh, "aware": config.aware or None}
    return {name: value for name, value in given.items() if value is not None}


def make_workers(
    config: RunConfig, *, delays: InjectedDelays | None = None, dry_run: bool = False
) -> WorkerSet:
    """Return the workers, of which none is started yet, or raise `ParameterError`.

    For a dry run functions need not have been deployed, unless it is said by which file they were.
    """
    n = config.workers
    if config.dask_scheduler is not None and config.backend != "dask":
        rule = "must be left out where the backend is not dask"
        raise ParameterError("dask_scheduler", rule, config.dask_scheduler)
    if config.function.resident and config.backend not in FUNCTIONS:
        rule = f"must be left out with backend {config.backend}, whose workers stay anyway"
        raise ParameterError("function.resident", rule, True, "or take lambda-local, or lambda")
    match config.backend:
        case "local":
            return workers.local(n, delays=delays)
        case "dask":
            return workers.dask(n, scheduler=config.dask_scheduler, delays=delays)
        case "lambda" if dry_run and not _may_be_deployed(config.function):
            return workers.undeployed(n, config.function)
        case "lambda":
            return workers.functions(n, config.function, delays=delays)
        case "lambda-local":
            return workers.lambda_local(n, config.function, delays=delays)


def _may_be_deployed(settings: FunctionSettings) -> bool:
    usual = Path(DEPLOYMENT_FILE)
    return Path(settings.deployment) != usual or usual.exists()


def make_delays(config: RunConfig, *, rounds: int | None = None) -> InjectedDelays | None:
    """Return what to inject, if anything, in so many rounds or those of a run."""
    if config.delays is None:
        return None
    if rounds is None:
        jobs = config.steps * (len(config.models) // max(1, config.jobs_per_round))
        rounds = num_rounds(parse_scheme(config.scheme, n=config.workers), jobs)
    return InjectedDelays.of(config.delays, workers=config.workers, num_rounds=max(1, rounds))


def make_models(config: RunConfig) -> list[Model]:
    """Return the models of a configuration; for functions, refuse what they do not have."""
    check_names(config)  # before PyTorch is imported, which takes seconds
    from seqgc.models.factories import (
        check_recipe,
        import_registered,
        loading_once,
        registered_model,
    )
    from seqgc.training import Recipe

    import_registered()
    names = {"module", "data", "loss", "module_args", "data_args", "loss_args"}
    recipes = [cast("Any", model.model_dump(include=names)) for model in config.models]
    if config.backend in FUNCTIONS:
        for recipe in recipes:
            check_recipe(Recipe(**recipe))
    validation = _validations()
    with loading_once():
        return [
            registered_model(
                model.name,
                **recipe,
                optimizer=_optimizer(model),
                scheduler=_scheduler(model, steps=config.steps),
                gradient_clip_val=model.gradient_clip_val,
                gradient_clip_algorithm=model.gradient_clip_algorithm,
                validation=validation(model.validation),
                save_every_n_steps=model.save_every_n_steps,
                autocast=model.autocast,
                batch_size=model.batch_size,
                seed=model.seed,
            )
            for model, recipe in zip(config.models, recipes, strict=True)
        ]


def _optimizer(config: ModelConfig) -> OptimizerFactory:
    import torch

    kind = _own_or("optimizer", config.optimizer, OPTIMIZERS, torch.optim)
    options = config.model_dump(include={"lr", "momentum", "weight_decay"}, exclude_none=True)
    more = _arguments("optimizer_args", config.optimizer_args, of=kind, name=config.optimizer)
    return cast("OptimizerFactory", partial(kind, **options, **more))


def _scheduler(config: ModelConfig, *, steps: int) -> SchedulerFactory | None:
    """Return what makes a model's scheduler; one of torch's knows the run's length and rate."""
    if (name := config.scheduler) is None:
        return None
    from torch.optim import lr_scheduler

    known: Values = {
        "onecyclelr": {"max_lr": config.lr, "total_steps": steps},
        "cosineannealinglr": {"T_max": steps},
        "polynomiallr": {"total_iters": steps},
    }
    kind = _own_or("scheduler", name, SCHEDULERS, lr_scheduler)
    given = _arguments("scheduler_args", config.scheduler_args, of=kind, name=name)
    if given.keys() & {"epochs", "steps_per_epoch"}:  # another way to say how long one cycle is
        known["onecyclelr"] = {"max_lr": config.lr}
    implied = cast("Values", known.get(name.lower(), {}))
    return cast("SchedulerFactory", partial(kind, **(implied | given)))


def _own_or(
    argument: str, name: str, known: Mapping[str, str], of_torch: ModuleType
) -> OwnFunction:
    """Return one's own function of a path, or torch's class of a name."""
    if own_module(name) is not None:
        return own_function(name, argument=argument)
    return cast("OwnFunction", getattr(of_torch, known[name.lower()]))


def _validations() -> Callable[[ValidationConfig | None], Validation | None]:
    """Return what makes validations; models whose rules are equal have the same one."""
    from seqgc.training import Validation

    made: dict[str, Validation] = {}

    def make(rules: ValidationConfig | None) -> Validation | None:
        if rules is None:
            return None
        if (key := rules.model_dump_json()) not in made:
            data = None
            if rules.data is not None:
                data = _made(rules.data, argument="validation.data")
            made[key] = Validation(
                dataset=cast("PointDataset | None", data),
                metrics={
                    name: cast("Metric", own_function(path, argument="metrics"))
                    for name, path in rules.metrics.items()
                },
                **rules.model_dump(exclude={"data", "metrics"}),
            )
        return made[key]

    return make


def make_callbacks(config: RunConfig) -> list[object]:
    """Return what the functions that a configuration names make."""
    return [_made(name, argument="callbacks") for name in config.callbacks]


def _made(path: str, *, argument: str) -> object:
    """Return what one's own function, without arguments, returns."""
    return call_own(own_function(path, argument=argument), path, argument=argument)


def _arguments(argument: str, values: Values, *, of: OwnFunction, name: str) -> Values:
    """Return values for arguments of a function, if it has such; lists become tuples."""
    require_arguments(argument, values, of=of, name=name)
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

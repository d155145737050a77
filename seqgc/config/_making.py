"""Functions that make models, a plan and workers from a configuration.

They write no file, so an error in a configuration leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from seqgc import workers
from seqgc.config._names import FUNCTIONS, OPTIMIZERS, SCHEDULERS, check_names
from seqgc.config._tables import ModelConfig, RunConfig, ValidationConfig, Values
from seqgc.deploy import DEPLOYMENT_FILE
from seqgc.errors import ParameterError
from seqgc.rounds import Adaptation, ClosingRule, num_bundles, num_rounds, require_models
from seqgc.schemes import Defence, parse_scheme
from seqgc.worker import OwnFunction, call_own, own_function, own_module, require_arguments
from seqgc.workers import FunctionSettings, InjectedDelays, WorkerSet

if TYPE_CHECKING:
    from types import ModuleType

    from seqgc.models.datasets import PointDataset
    from seqgc.models.evaluation import Metric
    from seqgc.models.model import OptimizerFactory, SchedulerFactory
    from seqgc.training import Model, TrainingPlan, Updates, Validation


def make_plan(config: RunConfig) -> TrainingPlan:
    """Return the training plan of a configuration; raise `ParameterError` if it is not valid."""
    scheme = parse_scheme(config.scheme, n=config.workers)
    require_models(  # before PyTorch is imported, so that an error appears at once
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
    from seqgc.training import TrainingPlan

    rule = ClosingRule(
        mu=config.mu,
        wait_out=config.wait_out,
        timeout_s=config.timeout_s,
        max_attempts=config.max_attempts,
    )
    plan = TrainingPlan(
        models=models,
        scheme=scheme,
        rule=rule,
        jobs_per_round=config.jobs_per_round or None,
        steps=config.steps,
        precision=config.precision,
        payload=config.payload,
        stochastic_rounding=config.stochastic_rounding,
        vectorize=config.vectorize,
        predicted_round_s=config.predicted_round_s,
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
    """Raise `ParameterError` if the plan does not fit its scheme.

    The error of `updates` names the key of the configuration instead.
    """
    try:
        plan.on(config.workers)
    except ParameterError as error:
        if error.argument != "updates":
            raise
        name, value = next(iter(_of_updates(config).items()))
        raise ParameterError(name, error.rule, value, error.remedy) from None


def models_plan(config: RunConfig) -> TrainingPlan:
    """Return a plan for the models alone, which is uncoded whatever the configured scheme is."""
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
    """Return the rules by which parts of a batch are applied, or None if none are configured."""
    if not (given := _of_updates(config)):
        return None
    from seqgc.training import Updates

    whole = defence.kind != "stale" or config.refresh == "late"
    return cast("Callable[..., Updates]", Updates)(
        **{"apply": "clock" if whole else "update"} | given
    )


def _of_updates(config: RunConfig) -> Values:
    given = {"apply": config.apply, "refresh": config.refresh, "aware": config.aware or None}
    return {name: value for name, value in given.items() if value is not None}


def make_workers(
    config: RunConfig, *, delays: InjectedDelays | None = None, dry_run: bool = False
) -> WorkerSet:
    """Return the workers of a configuration, without starting them.

    In a dry run, functions need not be deployed, unless the configuration names a deployment file.
    """
    n = config.workers
    if config.dask_scheduler is not None and config.backend != "dask":
        rule = "must be left out unless the backend is dask"
        raise ParameterError("dask_scheduler", rule, config.dask_scheduler)
    if config.function.resident and config.backend not in FUNCTIONS:
        rule = f"must be left out with backend {config.backend}, whose workers are always resident"
        raise ParameterError(
            "function.resident", rule, True, "or use backend lambda or lambda-local"
        )
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
    default = Path(DEPLOYMENT_FILE)
    return Path(settings.deployment) != default or default.exists()


def make_delays(config: RunConfig, *, rounds: int | None = None) -> InjectedDelays | None:
    """Return the delays to inject into a run of ``rounds`` rounds, or None if none are configured.

    By default ``rounds`` follows from the configured steps, models and scheme.
    """
    if config.delays is None:
        return None
    if rounds is None:
        jobs = config.steps * num_bundles(len(config.models), config.jobs_per_round or 1)
        rounds = num_rounds(parse_scheme(config.scheme, n=config.workers), jobs)
    return InjectedDelays.of(config.delays, workers=config.workers, num_rounds=max(1, rounds))


def make_models(config: RunConfig) -> list[Model]:
    """Return the models of a configuration.

    Raises `ParameterError` if the workers are functions and a function cannot build a model.
    """
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
    """Return a factory of the model's scheduler, or None.

    Some schedulers of torch need the number of steps or the learning rate; these arguments are
    added.
    """
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
    if given.keys() & {"epochs", "steps_per_epoch"}:  # they replace `total_steps`
        known["onecyclelr"] = {"max_lr": config.lr}
    implied = cast("Values", known.get(name.lower(), {}))
    return cast("SchedulerFactory", partial(kind, **(implied | given)))


def _own_or(
    argument: str, name: str, known: Mapping[str, str], of_torch: ModuleType
) -> OwnFunction:
    """Return the user's function if the name is a path, else the class of torch with this name."""
    if own_module(name) is not None:
        return own_function(name, argument=argument)
    return cast("OwnFunction", getattr(of_torch, known[name.lower()]))


def _validations() -> Callable[[ValidationConfig | None], Validation | None]:
    """Return a function that makes validations. Models with equal rules share one validation."""
    from seqgc.training import Validation

    validations: dict[str, Validation] = {}

    def make(rules: ValidationConfig | None) -> Validation | None:
        if rules is None:
            return None
        if (key := rules.model_dump_json()) not in validations:
            data = None
            if rules.data is not None:
                data = _call(rules.data, argument="validation.data")
            validations[key] = Validation(
                dataset=cast("PointDataset | None", data),
                metrics={
                    name: cast("Metric", own_function(path, argument="metrics"))
                    for name, path in rules.metrics.items()
                },
                **rules.model_dump(exclude={"data", "metrics"}),
            )
        return validations[key]

    return make


def make_callbacks(config: RunConfig) -> list[object]:
    """Return the configured callbacks: call each of the functions that `callbacks` lists."""
    return [_call(name, argument="callbacks") for name in config.callbacks]


def _call(path: str, *, argument: str) -> object:
    """Return the result of the user's function at ``path``; ``argument`` is its key in errors."""
    return call_own(own_function(path, argument=argument), path, argument=argument)


def _arguments(argument: str, values: Values, *, of: OwnFunction, name: str) -> Values:
    """Check that a function has these arguments; return the values with lists made tuples."""
    require_arguments(argument, values, of=of, name=name)
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

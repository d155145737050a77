"""From a configuration to a plan and workers: everything is checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqgc import workers
from seqgc.cli._config import RunConfig, Values, dump
from seqgc.cli._models import make_models
from seqgc.cli._show import RunProgress, busy
from seqgc.errors import ParameterError
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.workers import FunctionWorkers, InjectedDelays, WorkerSet

if TYPE_CHECKING:
    from seqgc.training import TrainingPlan, TrainResult

__all__ = ["PreparedRun", "make_delays", "make_plan", "make_workers", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A run whose configuration has been found good, and its workers, not yet at work."""

    config: RunConfig
    plan: TrainingPlan
    workers: WorkerSet

    def train(self, *, run: Path | None) -> TrainResult:
        """Train; ``run`` defaults to a new folder in ``runs``."""
        from seqgc.training import new_run_path, train

        config, plan, crew = self.config, self.plan, self.workers
        path = run or new_run_path("runs", config.scheme)
        budget = [] if config.max_usd is None else [crew.budget(plan, config.max_usd)]
        settled: Values = {"payload": plan.payload}
        if isinstance(crew, FunctionWorkers):
            store = {"store": crew.forecast(plan).where}
            settled["function"] = crew.settings.model_copy(update=store)
        setting = plan.setting(crew.n)
        rounds = plan.num_jobs(setting) + setting.scheme.delay
        with RunProgress(config.scheme, total=rounds) as progress:
            return train(
                plan,
                crew,
                run=path,
                observers=[*budget, progress],
                config=dump(config.model_copy(update=settled)),
            )


def prepare(config: RunConfig, crew: WorkerSet) -> PreparedRun:
    """Make what a configuration asks for, or raise `ParameterError`."""
    with busy("importing PyTorch, checking the models"):
        plan = make_plan(config)
    if isinstance(crew, FunctionWorkers):
        predicted = crew.forecast(plan)
        workers.require_fit(predicted.sizes, predicted.where)
    return PreparedRun(config=config, plan=plan, workers=crew)


def make_plan(config: RunConfig) -> TrainingPlan:
    """Return what is to be trained, and how."""
    from seqgc.training import Adaptation, TrainingPlan

    adaptation = None
    if config.probe is not None or config.retune is not None:
        alpha = config.alpha
        if alpha is None and config.delays is not None:
            alpha = make_delays(config).alpha
        adaptation = Adaptation(probe=config.probe, retune=config.retune, alpha=alpha)
    rule = ClosingRule(
        mu=config.mu,
        wait_out=config.wait_out,
        timeout_s=config.timeout_s,
        max_attempts=config.max_attempts,
    )
    scheme = parse_scheme(config.scheme, n=config.workers)
    plan = TrainingPlan(
        models=make_models(config),
        scheme=Setting(scheme=scheme, rule=rule, jobs_per_round=config.jobs_per_round),
        steps=config.steps,
        precision=config.precision,
        payload=config.payload,
        stochastic_rounding=config.stochastic_rounding,
        stale=config.stale,
        adaptation=adaptation,
    )
    plan.setting(config.workers)  # enough models for the scheme's delay, bundles that divide them
    return plan


def make_workers(config: RunConfig, *, delays: InjectedDelays | None = None) -> WorkerSet:
    """Return the workers, of which none is started yet, or raise `ParameterError`."""
    n = config.workers
    if config.dask_scheduler is not None and config.backend != "dask":
        rule = "must be left out where the backend is not dask"
        raise ParameterError("dask_scheduler", rule, config.dask_scheduler)
    match config.backend:
        case "local":
            return workers.local(n, delays=delays)
        case "dask":
            return workers.dask(n, scheduler=config.dask_scheduler, delays=delays)
        case "lambda":
            return workers.functions(n, config.function, delays=delays)
        case "lambda-local":
            return workers.lambda_local(n, config.function, delays=delays)


def make_delays(config: RunConfig) -> InjectedDelays:
    """Return what to inject in the run's rounds."""
    if config.delays is None:
        raise ParameterError("delays", "must be given", None)
    jobs = config.steps * (len(config.models) // config.jobs_per_round)
    rounds = jobs + parse_scheme(config.scheme, n=config.workers).delay
    return InjectedDelays.of(config.delays, workers=config.workers, num_rounds=max(1, rounds))

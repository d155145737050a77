"""From a configuration to a run: everything is checked before anything is started or written."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.cli._build import InjectedDelays, make_delays, make_models
from seqgc.cli._config import RunConfig, dump
from seqgc.cli._engine import FUNCTIONS, as_deployed, check_engine, open_engine
from seqgc.cli._plan import budget_of, plan_of, require_fit, require_priced
from seqgc.cli._show import RoundProgress
from seqgc.rounds import ClosingRule
from seqgc.schemes import Scheme, parse_scheme

if TYPE_CHECKING:
    from seqgc.training import Model, TrainResult
    from seqgc.training._data import PointDataset
    from seqgc.training.adaptive import Adaptation, Switch

__all__ = ["PreparedRun", "prepare", "why_switched"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A run whose configuration has been found good."""

    config: RunConfig
    scheme: Scheme
    models: list[Model]
    test_data: dict[str, PointDataset]
    num_rounds: int
    delays: InjectedDelays | None
    adaptation: Adaptation | None

    def train(self, *, run: Path | None) -> TrainResult:
        """Train; ``run`` defaults to a new folder in ``runs``."""
        from seqgc.training import new_run_path, train
        from seqgc.training.rundir import require_new

        config = self.config
        path = run or new_run_path("runs", self.scheme.spec)
        require_new(path)
        budget = budget_of(self)
        with (
            open_engine(config, name=path.name, delays=self.delays) as engine,
            RoundProgress(self.scheme.spec, num_rounds=self.num_rounds) as progress,
        ):
            return train(
                self.models,
                scheme=self.scheme,
                steps=config.steps,
                run=path,
                rule=ClosingRule(
                    mu=config.mu,
                    wait_out=config.wait_out,
                    timeout_s=config.timeout_s,
                    max_attempts=config.max_attempts,
                ),
                precision=config.precision,
                payload=config.payload,
                stochastic_rounding=config.stochastic_rounding,
                jobs_per_round=config.jobs_per_round,
                stale=config.stale,
                delays=self.delays,
                backend=engine.backend,
                remote=engine.remote,
                budget=budget,
                test_data=self.test_data,
                observe=progress,
                config=dump(config.model_copy(update={"function": as_deployed(config)})),
                adapt=self.adaptation,
                on_switch=self._switch,
            )

    def _switch(self, to: Switch) -> None:
        if self.delays is not None:
            load = self.config.jobs_per_round * to.after.scheme.normalized_load
            self.delays.set_load(load)
        sys.stderr.write(f"switch before round {to.first_round}: {why_switched(to)}\n")


def prepare(config: RunConfig) -> PreparedRun:
    """Make what a configuration asks for.

    Raises
    ------
    ParameterError
        Naming the first argument that breaks its rule.
    """
    scheme = parse_scheme(config.scheme, n=config.workers)
    check_engine(config)
    require_priced(config)
    from seqgc.training import JobPlan, payload_of

    payload = payload_of(
        config.precision, config.payload, stochastic_rounding=config.stochastic_rounding
    )
    config = config.model_copy(update={"payload": payload})  # named, also in the run's directory
    models, test_data = make_models(config)
    # Made for its checks: enough models for the scheme's delay, bundles that divide them.
    JobPlan(models, scheme=scheme, jobs_per_round=config.jobs_per_round, stale=config.stale)
    num_rounds = config.steps * (len(models) // config.jobs_per_round) + scheme.delay
    delays = None
    if config.delays is not None:
        load = config.jobs_per_round * scheme.normalized_load
        delays = make_delays(config.delays, workers=scheme.n, load=load, num_rounds=num_rounds)
    prepared = PreparedRun(
        config=config,
        scheme=scheme,
        models=models,
        test_data=test_data,
        num_rounds=num_rounds,
        delays=delays,
        adaptation=_adaptation(config, delays),
    )
    if config.backend in FUNCTIONS:
        require_fit(plan_of(prepared))
    return prepared


def why_switched(switch: Switch) -> str:
    """Say from what a run switched to what, and why."""
    choice = switch.choice
    return (
        f"{switch.before.label} -> {switch.after.label}; {choice.predicted_s:.3g} s predicted for "
        f"the jobs left instead of {choice.predicted_current_s:.3g} s"
    )


def _adaptation(config: RunConfig, delays: InjectedDelays | None) -> Adaptation | None:
    if config.probe is None and config.retune is None:
        return None
    from seqgc.training import Adaptation

    injected = None if delays is None else delays.alpha
    alpha = injected if config.alpha is None else config.alpha
    return Adaptation(probe=config.probe, retune=config.retune, alpha=alpha)

"""Training and resuming of a configured run, with progress display and budget."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from seqgc.cli._messages import say
from seqgc.cli._show import busy
from seqgc.cli.progress import run_progress
from seqgc.config._making import make_callbacks, make_plan
from seqgc.config._tables import RunConfig, Values
from seqgc.costs import Budget, find_prices
from seqgc.errors import ParameterError
from seqgc.ports import Observer
from seqgc.rounds import num_rounds
from seqgc.workers import Forecast, WorkerSet

if TYPE_CHECKING:
    from seqgc.training import TrainingPlan, TrainResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A run whose configuration has been checked. Its workers have not been started.

    ``forecast`` is the expected use of cloud functions, or None for other workers.
    """

    config: RunConfig
    plan: TrainingPlan
    workers: WorkerSet
    forecast: Forecast | None

    def train(self, *, run: Path | None) -> TrainResult:
        """Train in the folder ``run``, by default a new folder in ``runs``."""
        from seqgc.training import new_run_path, train

        with self._watched() as (observers, callbacks):
            return train(
                self.plan,
                self.workers,
                run=run or new_run_path("runs", self.config.scheme),
                observers=observers,
                config=self._settled(self.config),
                callbacks=callbacks,
                quiet=True,  # `_watched` shows the progress
            )

    def _settled(self, config: RunConfig) -> str:
        """Return the text of ``config.toml``, with the values that were chosen for the run."""
        settled: Values = {
            "payload": self.plan.payload,
            "jobs_per_round": self.plan.on(config.workers).setting.jobs_per_round,
        }
        if self.forecast is not None:
            store = {"store": self.forecast.where}
            settled["function"] = self.forecast.settings.model_copy(update=store)
        final = config.model_copy(update=settled).model_dump(exclude_none=True, mode="json")
        return tomli_w.dumps(final)

    def resume(
        self,
        run: Path,
        *,
        accept_changes: bool = False,
        other_workers: RunConfig | None = None,
    ) -> TrainResult:
        """Resume the run in a folder.

        ``other_workers`` is a configuration with other workers, which replaces that of the run.
        """
        from seqgc.training import resume

        with self._watched() as (observers, callbacks):
            return resume(
                run,
                self.plan,
                self.workers,
                observers=observers,
                accept_changes=accept_changes,
                other_workers=other_workers is not None,
                config="" if other_workers is None else self._settled(other_workers),
                callbacks=callbacks,
                quiet=True,  # `_watched` shows the progress
            )

    def train_or_resume(self, run: Path) -> TrainResult:
        """Resume the run in a folder; if the folder does not exist, begin the run."""
        from seqgc.runs.folder import remove_unbegun

        remove_unbegun(run)
        begun = os.path.exists(run)  # noqa: PTH110 (`Path.exists` raises at some names)
        return self.resume(run) if begun else self.train(run=run)

    @contextmanager
    def _watched(self) -> Iterator[tuple[list[Observer], list[object]]]:
        """Yield the observers and the callbacks of the run; display its progress in this block."""
        from seqgc.runs.folder import Forgiving

        config, plan, crew = self.config, self.plan, self.workers
        budget = self._budget()
        if config.max_usd is not None and self.forecast is not None:
            dated = find_prices(region := self.forecast.settings.region)
            why = f" ({dated.missed})" if dated.missed else ""
            with suppress(OSError):  # stderr is closed
                say("prices", f"prices of {region}, {dated.as_of}: {dated.source}{why}")
        planned = plan.on(crew.n)
        rounds = num_rounds(planned.setting.scheme, planned.num_jobs)
        counted = budget if self.forecast is not None else None
        with run_progress(config.scheme, total=rounds, spending=counted) as progress:
            shown = Forgiving(progress, warn=lambda _: None)  # a broken display cannot show errors
            own = make_callbacks(config)
            yield [*([budget] if budget else []), shown], [*own, progress]

    def _budget(self) -> Budget | None:
        """Return the observer that counts the cost and stops the run at ``max_usd``, or None."""
        most = self.config.max_usd
        if most is not None:
            return self.workers.budget(self.plan, most)
        if self.config.backend == "lambda":
            with suppress(ParameterError):  # the price is unknown
                return self.workers.budget(self.plan, math.inf)
        return None


def prepare(config: RunConfig, crew: WorkerSet) -> PreparedRun:
    """Make and check the plan of a configuration for these workers."""
    with busy("importing PyTorch, checking the models"):
        plan = make_plan(config)
    if (predicted := crew.forecast(plan)) is not None:
        predicted.check()
    return PreparedRun(config=config, plan=plan, workers=crew, forecast=predicted)

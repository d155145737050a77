"""``seqgc compare``: time and cost of all defences on recorded delays."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

from seqgc.cli._messages import in_json, is_quiet
from seqgc.cli._options import CaseResult, ProfileFile, RehearsalOptions, numbers, show_cases
from seqgc.cli._report import page_path
from seqgc.cli._show import Screen, TableOutput, busy, print_pairs, text_table
from seqgc.comparison import (
    Comparison,
    Metering,
    Trial,
    interval_words,
    require_comparable,
)
from seqgc.comparison import compare as compare_defences
from seqgc.config._making import models_plan
from seqgc.config._tables import RunConfig, read_config, validated, with_models
from seqgc.costs import Architecture, read_prices
from seqgc.errors import ParameterError, did_you_mean, one_line
from seqgc.plot import tables
from seqgc.progress import working
from seqgc.report import comparison_page
from seqgc.rounds import Setting
from seqgc.runs import PastPredictions, past_predictions
from seqgc.search import Rehearsal
from seqgc.tables.apps import APPS, named_app
from seqgc.virtual import WorkerKind
from seqgc.worker import own_module

_Row = dict[str, Any]  # of the table of defences

_TRIAL = Trial()
_METERING = Metering()
_EDGE = "*"
_WIDTH = 120  # columns, if the output is not a terminal
_LEGEND = (
    "s/clock: seconds per batch of data; × bound: the same, divided by the seconds of a master "
    "that knows all delays in advance. clocks, seconds, $: until all models reach the target, at "
    "the learning rate {lr}, medians of {seeds} seed(s); between: {interval}; best: seconds at the "
    "defence's best rate. stale: mean number of clocks whose updates the weights of a task lack. "
    "wasted: batches computed per clock, beyond the one that is needed. traffic: vectors, each as "
    "long as a model, that the workers receive (weights) + send (results) per clock.{more}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options that describe the workers and their prices."""

    clocks: Annotated[
        int | None,
        "Number of clocks (batches) to time. By default the number of rounds in the profile.",
    ] = None
    worker_kind: Annotated[
        str, "Workers: function (one invocation for each task) or resident (they keep running)."
    ] = "function"
    jobs_per_round: Annotated[
        int | None,
        "Number of models in a job (a bundle), for the named defences. By default as many as "
        "possible.",
    ] = None
    memory_mb: Annotated[int, "Memory of a function, in MB, for its price."] = _METERING.memory_mb
    arch: Annotated[str, "Processor of the functions, for their price: arm64 or x86_64."] = (
        _METERING.arch
    )
    region: Annotated[str, "AWS region of the prices."] = "us-east-1"

    def settings(self, defences: Sequence[str], *, n: int) -> Sequence[str | Setting]:
        """Return the defences, with the bundle size if one is given."""
        if (k := self.jobs_per_round) is None:
            return defences
        if not defences:
            rule = "needs --defence: it sets the bundle size of the named defences only"
            raise ParameterError("jobs_per_round", rule, k, "add --defence SPEC, or leave this out")
        return [Setting(scheme=spec, jobs_per_round=k).on(n) for spec in defences]

    def check(self, rehearsal: Rehearsal, defences: Sequence[str], *, trained: int) -> None:
        """Raise `ParameterError` if these defences cannot be compared on ``trained`` models."""
        require_comparable(
            rehearsal,
            self.settings(defences, n=rehearsal.profile.num_workers),
            models=rehearsal.models or 1,
            trained=trained,
            clocks=self.clocks,
            workers=cast("WorkerKind", self.worker_kind),
        )

    def metering(self) -> Metering:
        """Return the prices of a worker's time."""
        arch = cast("Architecture", self.arch)
        return Metering(memory_mb=self.memory_mb, arch=arch, prices=read_prices(self.region))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of the training that measures how many clocks reach the target loss."""

    train: Annotated[
        str | None,
        "--train",
        "TOML file of `seqgc train` with the models to train, or an app on tables: mf, lda, "
        "pagerank, mlr, or your own package.module:function. By default a model of the digits.",
    ] = None
    target: Annotated[
        float | None,
        f"Mean loss to reach. By default {_TRIAL.target:g} for the digits; required with a file or "
        "your own function.",
    ] = None
    lr: Annotated[
        str | None,
        "Learning rates to try, for example 4,8. By default 4 is halved and doubled until the best "
        "rate lies between others. With --train: factors of the models' rates, by default 1.",
    ] = None
    train_batch: Annotated[
        int | None, f"Data points in a batch of the digits. By default {_TRIAL.batch}."
    ] = None
    seeds: Annotated[
        int | None,
        "Number of trainings; the result is their median. By default 10, or 3 with --train.",
    ] = None
    most: Annotated[
        int | None,
        f"Largest number of clocks in a training. By default {_TRIAL.most}, or the file's steps.",
    ] = None

    @property
    def _file(self) -> Path | None:
        """The file of --train; None if --train is absent, or names an app."""
        if self.train is None or self.train in APPS or own_module(self.train) is not None:
            return None
        path = Path(self.train)
        if path.suffix != ".toml" and not path.exists():
            rule = f"must be a TOML file, {', '.join(APPS)}, or your own package.module:function"
            raise ParameterError("train", rule, self.train, did_you_mean(self.train, APPS))
        return path

    def own(self) -> RunConfig | None:
        """Return the configuration of the user's models, or None if there is no file of them."""
        if self.train is not None and self.train_batch is not None:
            rule = "must be left out with --train, which determines the batch size"
            raise ParameterError("train_batch", rule, self.train_batch)
        if (path := self._file) is None:
            return None
        self._require_target()
        values = with_models(read_config(path))
        return validated(values if self.most is None else values | {"steps": self.most})

    def _require_target(self) -> None:
        if self.target is None:
            rule = "must be given with --train: the loss that your models should reach"
            raise ParameterError("target", rule, self.target)

    def trial(self) -> Trial:
        """Return the trial that these options describe, or raise `ParameterError`.

        The models of a file are not part of it yet.
        """
        app, target = None, self.target
        if self.train is not None and self._file is None:
            app, usual = named_app(self.train, argument="train")
            if (target := self.target or usual) is None:
                self._require_target()
        return Trial(
            app=app,
            target=_TRIAL.target if target is None else target,
            lrs=None if self.lr is None else numbers("lr", self.lr, float),
            batch=_TRIAL.batch if self.train_batch is None else self.train_batch,
            seeds=self.seeds,
            most=_TRIAL.most if self.most is None else self.most,
        )


def compare(
    profile: ProfileFile,
    options: RehearsalOptions,
    where: WorkerOptions,
    trained: TrainingOptions,
    defence: Annotated[
        list[str] | None, "Defence to compare, for example ssp:slack=1. Repeatable. By default all."
    ] = None,
    holdout: Annotated[
        float | None,
        "Fraction of the rounds, from 0 to 1, to judge all defences on: the last rounds. Codes are "
        "chosen on the rounds before them. By default half, if no defence is named.",
    ] = None,
    page: Annotated[
        Path | None, "-o", "--output", "HTML file for a page with the comparison."
    ] = None,
    runs: Annotated[
        Path, "Folder of past runs. The command prints how far their predicted times were off."
    ] = Path("runs"),
    *,
    output: TableOutput,
) -> None:
    """Compare all defences on recorded delays: time and cost to reach a target loss."""
    page = None if page is None else page_path(page)
    _refuse_unused(options)
    rehearsal, metering, trial = options.of(profile), where.metering(), trained.trial()
    if (own := trained.own()) is not None:
        where.check(rehearsal, defence or (), trained=len(own.models))
        with busy("importing PyTorch, checking the models"):
            plan = models_plan(own)
        trial = replace(trial, most=plan.steps, plan=plan)
    cases = rehearsal.alpha_cases()
    if page is not None and len(cases) > 1:
        rule = "must be left out if alpha is unknown, because a page shows one of two cases"
        raise ParameterError("output", rule, str(page), "give --alpha")
    results = []
    for case in cases:
        with working("compare", quiet=in_json() or is_quiet(), after_s=0.0) as tell:
            comparison = compare_defences(
                case,
                where.settings(defence or (), n=case.profile.num_workers),
                models=case.models or 1,
                clocks=where.clocks,
                workers=cast("WorkerKind", where.worker_kind),
                holdout=holdout,
                trial=trial,
                metering=metering,
                progress=tell,
            )
        results.append(_result(comparison, case, page, past=past_predictions(runs)))
    try:
        show_cases(output, results)
        sys.stdout.flush()
    finally:  # if printing fails, the page still has the result
        if page is not None:
            with busy("drawing"):
                comparison_page(comparison, name=one_line(profile.name, limit=100)).write(page)


def _result(
    comparison: Comparison, case: Rehearsal, page: Path | None, *, past: PastPredictions | None
) -> CaseResult:
    """Return the table of a comparison, and its result for programs and for people."""
    trial = replace(comparison.trial, plan=None, app=None)
    tried = asdict(trial) | {"what": comparison.trial.what}
    facts = asdict(replace(comparison, trial=_TRIAL)) | {
        "trial": tried,
        "advice": comparison.advice,
        "past_predictions": None if past is None else asdict(past),
        **({} if page is None else {"file": str(page)}),
    }

    def text() -> None:
        if page is not None:
            print_pairs({"page": str(page)})
        _print(comparison)
        if past is not None:
            Screen().print(past.words, highlight=False)

    return CaseResult(case=case, table=tables.defences(comparison), facts=facts, text=text)


def _refuse_unused(options: RehearsalOptions) -> None:
    """Raise `ParameterError` if an option of replays was given that a comparison does not use."""
    default = RehearsalOptions()
    for name, remedy in (
        ("jobs", "use --clocks"),
        ("resident", "use --worker-kind resident"),
        ("conformity", "each scheme's own straggler model closes its rounds"),
    ):
        if (value := getattr(options, name)) != getattr(default, name):
            raise ParameterError(name, "must be left out of a comparison", value, remedy)


def _print(comparison: Comparison) -> None:
    console = Screen()
    if not console.is_terminal:
        console = Screen(width=_WIDTH)
    console.print(comparison.premise)
    rows = tables.rows_of(tables.defences(comparison))
    bundles, most = comparison.models > 1, comparison.trial.most
    console.print(text_table(rows, _cells(bundles=bundles, most=most), left=["kind"]))
    for row in comparison.rows:
        if row.failed:
            console.print(f"{row.label}: {row.failed}")
    more = " bundle: models whose gradients are one job." if comparison.models > 1 else ""
    if any(row.seconds_to_target is None for row in comparison.rows):
        more += f" not in {most}: the target was not reached within {most} clocks."
    if comparison.lr_is_edge or any(row.best_is_edge for row in comparison.rows):
        more += f" {_EDGE}: the smallest or largest rate tried; a better one may lie beyond."
    lr = f"{comparison.trial.rate(comparison.lr)}{_EDGE if comparison.lr_is_edge else ''}"
    seeds = comparison.trial.seeds or 1
    console.print(_LEGEND.format(lr=lr, seeds=seeds, interval=interval_words(seeds), more=more))
    console.print(comparison.advice)


def _cells(*, bundles: bool, most: int) -> dict[str, Callable[[_Row], str]]:
    """Return the function for each column that formats its cell of a row."""

    def reached(text: Callable[[_Row], str]) -> Callable[[_Row], str]:
        return lambda row: "–" if math.isnan(row["seconds_to_target"]) else text(row)

    def seconds(row: _Row) -> str:
        if math.isnan(row["seconds_to_target"]):
            return "failed" if row["failed"] else f"not in {most}"
        return f"{row['seconds_to_target']:.1f}"

    def best(row: _Row) -> str:
        if math.isnan(row["best_seconds"]):
            return "–"
        edge = _EDGE if row["best_is_edge"] else ""
        return f"{row['best_seconds']:.1f} ({row['best_lr']:g}{edge})"

    cells: dict[str, Callable[[_Row], str]] = {
        "defence": lambda row: f"{row['defence']}, {row['rule']}".removesuffix(", "),
        "kind": lambda row: row["kind"],
        "bundle": lambda row: str(row["jobs_per_round"]),
        "s/clock": lambda row: f"{row['seconds_per_clock']:.3f}",
        "× bound": lambda row: f"{row['over_bound']:.3f}",
        "clocks": reached(lambda row: f"{row['clocks_to_target']:.0f}"),
        "seconds": seconds,
        "between": reached(lambda row: f"{row['seconds_low']:.3g}–{row['seconds_high']:.3g}"),
        "$": reached(lambda row: f"{row['usd']:.4f}"),
        "best": best,
        "stale": lambda row: f"{row['staleness_mean']:.2f}",
        "wasted": lambda row: f"{row['wasted']:.2f}",
        "traffic": lambda row: f"{row['received']:.3g}+{row['sent']:.3g}",
    }
    if not bundles:
        del cells["bundle"]
    return cells

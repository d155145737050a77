"""``seqgc compare``: which defence is best on recorded delays, and what it costs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, cast

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, TextColumn
from rich.table import Table

from seqgc.cli._options import AsJson, ProfileFile, RehearsalOptions, numbers
from seqgc.cli._report import page_path
from seqgc.cli._run import models_plan
from seqgc.cli._show import Screen, busy, print_json, print_pairs
from seqgc.cli.config import RunConfig, read_config, validated, with_models
from seqgc.cli.progress import progress_bar
from seqgc.comparison import (
    Comparison,
    Metering,
    Row,
    Trial,
    interval_words,
    require_comparable,
)
from seqgc.comparison import compare as compare_defences
from seqgc.costs import Architecture, read_prices
from seqgc.errors import ParameterError, one_line
from seqgc.report import comparison_page
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal
from seqgc.virtual import WorkerKind

_TRIAL = Trial()
_METERING = Metering()
_EDGE = "*"
_WIDTH = 110  # where there is no terminal to fit
_LEGEND = (
    "s/clock: seconds a batch of data; × bound: by those of a master who knows all delays "
    "beforehand. clocks, seconds, $: until all models are at the target, at the learning rate "
    "{lr} for all, medians of {seeds} seed(s); between: {interval}; best: at each one's own rate. "
    "stale: clocks of updates that a task's weights lack, on average. wasted: batches asked of "
    "workers beyond one a clock.{more}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOptions:
    """How the profile is read, and who works."""

    clocks: Annotated[int | None, "Clocks of data to time; as many as the profile has rounds."] = (
        None
    )
    workers: Annotated[str, "function (a task is an invocation), or resident."] = "function"
    jobs_per_round: Annotated[
        int | None, "Models in a job (bundle) of the defences named; as many as can be."
    ] = None
    memory_mb: Annotated[int, "Memory of a function, for its price."] = _METERING.memory_mb
    arch: Annotated[str, "Processor of a function, for its price."] = _METERING.arch
    region: Annotated[str, "Whose prices."] = "us-east-1"

    def settings(self, defences: Sequence[str], *, n: int) -> Sequence[str | Setting]:
        """Return the defences, each with the bundle that was asked for, if any."""
        if (k := self.jobs_per_round) is None:
            return defences
        if not defences:
            rule = "is of the defences that are named"
            raise ParameterError("jobs_per_round", rule, k, "add --defence SPEC, or leave it out")
        return [Setting(scheme=parse_scheme(spec, n=n), jobs_per_round=k) for spec in defences]

    def check(self, rehearsal: Rehearsal, defences: Sequence[str], *, trained: int) -> None:
        """Refuse what cannot be compared while that many models are trained."""
        require_comparable(
            rehearsal,
            self.settings(defences, n=rehearsal.profile.num_workers),
            models=rehearsal.models or 1,
            trained=trained,
            clocks=self.clocks,
            workers=cast("WorkerKind", self.workers),
        )

    def metering(self) -> Metering:
        """Return what a second costs."""
        arch = cast("Architecture", self.arch)
        return Metering(memory_mb=self.memory_mb, arch=arch, prices=read_prices(self.region))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What is trained, to find out how many clocks it takes."""

    train: Annotated[
        Path | None, "--train", "Models to train: a TOML file of `seqgc train`; else digits."
    ] = None
    target: Annotated[
        float | None, f"Mean loss to reach; of the digits {_TRIAL.target:g}, else no default."
    ] = None
    lr: Annotated[
        str | None,
        "Learning rates to try, for example 4,8. By default 4 is halved and doubled until the best "
        "rate lies inside. With --train: factors of the models' own rates; by default 1.",
    ] = None
    train_batch: Annotated[int | None, f"Points in a batch of the digits; {_TRIAL.batch}."] = None
    seeds: Annotated[
        int | None,
        "Number of trainings, whose medians count. By default 10 if that takes about a minute at "
        "most, else 3.",
    ] = None
    most: Annotated[
        int | None, f"Clocks of a model after which it is given up; {_TRIAL.most}, or the file's."
    ] = None

    def own(self) -> RunConfig | None:
        """Return what a file says of one's own models, if there is one; nothing is made of it."""
        if self.train is None:
            return None
        if self.target is None:
            rule = "must be given with --train: what loss your models are to reach"
            raise ParameterError("target", rule, self.target)
        if self.train_batch is not None:
            rule = "must be left out with --train, whose file says it"
            raise ParameterError("train_batch", rule, self.train_batch)
        values = with_models(read_config(self.train))
        return validated(values if self.most is None else values | {"steps": self.most})

    def trial(self) -> Trial:
        """Return what the options come to, but for a plan, or raise `ParameterError`."""
        return Trial(
            target=_TRIAL.target if self.target is None else self.target,
            lrs=None if self.lr is None else numbers("lr", self.lr, float),
            batch=_TRIAL.batch if self.train_batch is None else self.train_batch,
            seeds=self.seeds,
            most=_TRIAL.most if self.most is None else self.most,
        )


def compare(
    profile: ProfileFile,
    options: RehearsalOptions,
    where: FieldOptions,
    trained: TrialOptions,
    defence: Annotated[
        list[str] | None, "A defence to compare, for example ssp:slack=1; again for more."
    ] = None,
    output: Annotated[Path | None, "-o", "--output", "Draw it on a page, too: .html."] = None,
    as_json: AsJson = False,
) -> None:
    """Compare all defences on recorded delays: time to a target loss, and what it costs."""
    page = None if output is None else page_path(output)
    _keep_out(options)
    rehearsal, metering, trial = options.of(profile), where.metering(), trained.trial()
    if (own := trained.own()) is not None:
        where.check(rehearsal, defence or (), trained=len(own.models))
        plan = models_plan(own)  # imports torch, and the models' modules
        trial = replace(trial, most=plan.steps, plan=plan)
    with progress_bar(BarColumn(), TextColumn("{task.percentage:.0f} %,")) as bar:
        task = bar.add_task("compare", total=1.0)
        found = compare_defences(
            rehearsal,
            where.settings(defence or (), n=rehearsal.profile.num_workers),
            models=rehearsal.models or 1,
            clocks=where.clocks,
            workers=cast("WorkerKind", where.workers),
            trial=trial,
            metering=metering,
            progress=lambda doing, share: bar.update(task, description=doing, completed=share),
        )
    try:
        _show(found, page, as_json=as_json)
    finally:  # of what was computed nothing is lost with the page, nor with what is printed
        if page is not None:
            with busy("drawing"):
                comparison_page(found, name=one_line(profile.name, limit=100)).write(page)


def _show(found: Comparison, page: Path | None, *, as_json: bool) -> None:
    if as_json:
        tried = asdict(replace(found.trial, plan=None)) | {"what": found.trial.what}
        facts = asdict(replace(found, trial=_TRIAL)) | {"trial": tried, "advice": found.advice}
        print_json(facts if page is None else facts | {"file": str(page)})
    else:
        if page is not None:
            print_pairs({"page": str(page)})
        _print(found)
    sys.stdout.flush()


def _keep_out(options: RehearsalOptions) -> None:
    """Refuse what a comparison has by other names, or none."""
    usual = RehearsalOptions()
    for name, remedy in (
        ("jobs", "take --clocks"),
        ("resident", "take --workers resident"),
        ("conformity", "rounds close by what a scheme promises"),
    ):
        if (value := getattr(options, name)) != getattr(usual, name):
            raise ParameterError(name, "must be left out of a comparison", value, remedy)


def _print(found: Comparison) -> None:
    console = Screen()
    if not console.is_terminal:
        console = Screen(width=_WIDTH)
    console.print(found.premise)
    console.print(_table(found))
    for row in found.rows:
        if row.failed:
            console.print(f"{row.label}: {row.failed}")
    more = " bundle: models whose gradients are one job." if found.models > 1 else ""
    if any(row.seconds_to_target is None for row in found.rows):
        more += f" not in {found.trial.most}: not reached in so many clocks."
    if found.lr_is_edge or any(row.best_is_edge for row in found.rows):
        more += f" {_EDGE}: the smallest or largest rate tried; a better one may lie beyond."
    lr = f"{found.trial.rate(found.lr)}{_EDGE if found.lr_is_edge else ''}"
    seeds = found.trial.seeds or 1
    console.print(_LEGEND.format(lr=lr, seeds=seeds, interval=interval_words(seeds), more=more))
    console.print(found.advice)


def _table(found: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("defence", overflow="fold")
    table.add_column("kind", no_wrap=True)
    bundles = found.models > 1
    headings = ["bundle"] if bundles else []
    headings += ["s/clock", "× bound", "clocks", "seconds", "between", "$"]
    headings += ["best", "stale", "wasted"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.rows:
        bundle = [str(row.jobs_per_round)] if bundles else []
        table.add_row(row.label, row.kind, *bundle, *_cells(row, most=found.trial.most))
    return table


def _cells(row: Row, *, most: int) -> list[str]:
    cells = [f"{row.seconds_per_clock:.3f}", f"{row.over_bound:.3f}"]
    if row.clocks_to_target is None:
        cells += ["–", "failed" if row.failed else f"not in {most}", "–", "–"]
    else:
        low, high = row.seconds_between or (math.nan, math.nan)
        cells += [f"{row.clocks_to_target:.0f}", f"{row.seconds_to_target:.1f}"]
        cells += [f"{low:.3g}–{high:.3g}", f"{row.usd:.4f}"]
    edge = _EDGE if row.best_is_edge else ""
    best = "–" if row.best_seconds is None else f"{row.best_seconds:.1f} ({row.best_lr:g}{edge})"
    return [*cells, best, f"{row.staleness_mean:.2f}", f"{row.wasted:.2f}"]

"""``seqgc tune``: a search for the fastest scheme and its settings on recorded delays."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, cast

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, TextColumn
from rich.table import Table

from seqgc.cli._options import AsJson, ProfileFile, RehearsalOptions, numbers, words
from seqgc.cli._show import WAIT_OUT, Screen, print_json
from seqgc.cli.progress import progress_bar
from seqgc.config._names import FUNCTIONS
from seqgc.rounds import WaitOut
from seqgc.schemes import Deal
from seqgc.search import MOST_AT_SPEED, Ranked, Rehearsal, SearchSpace, Tuning
from seqgc.search import tune as search_rehearsal
from seqgc.worker import require_known

_GRID = SearchSpace()
_BACKENDS = ("local", "dask", *FUNCTIONS)
_WIDTH = 80  # columns, if the output is not a terminal
_MIN_MODELS = 4  # in the suggested command; deal was replayed with one bundle
_LEGEND = (
    f"mu, wait-out: when a round closes (a wait-out is {WAIT_OUT}). jobs: models in a round. "
    "× bound: the time divided by that of a master that knows all delays beforehand. bill: "
    "worker-seconds."
)
_LEGEND_INEXACT = (
    "exact, s: seconds until these gradients have as much information as the exact gradients of "
    "all jobs. Rows are ranked by this time; the best exact scheme takes {best:.3f} s."
)

_AT_SPEED = (
    "Delays are read as speeds: only the first --mu and --wait-out are searched, and at most "
    f"{MOST_AT_SPEED} schemes of each name, spread evenly. × bound: the time divided by that of "
    "workers that are never idle."
)


def _listed(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Options of the search space."""

    schemes: Annotated[str, "Schemes to try, for example gc-rep,m-sgc. By default all."] = ""
    mu: Annotated[str, "Tolerances to try, separated by commas."] = _listed(_GRID.mus)
    wait_out: Annotated[str, "Closing rules to try, separated by commas."] = _listed(
        _GRID.wait_outs
    )
    jobs_per_round: Annotated[str, "Numbers of models in a job to try, separated by commas."] = (
        _listed(_GRID.jobs_per_round)
    )
    max_delay: Annotated[int, "Largest delay of a scheme, in rounds."] = _GRID.max_delay
    coarse: Annotated[bool, "Try fewer parameters of each scheme, for thousands of workers."] = (
        False
    )
    inexact: Annotated[
        bool,
        "--inexact",
        "Also rank approximate schemes by time and error, in a separate table.",
    ] = False

    def space(self) -> SearchSpace:
        """Return the search space, or raise `ParameterError`."""
        return SearchSpace(
            families=words(self.schemes),
            mus=numbers("mu", self.mu, float),
            wait_outs=cast("tuple[WaitOut, ...]", words(self.wait_out)),
            jobs_per_round=numbers("jobs_per_round", self.jobs_per_round, int),
            max_delay=self.max_delay,
            coarse=self.coarse,
            inexact=self.inexact,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingOptions:
    """Options of the ranking."""

    holdout: Annotated[
        float | None, "Fraction of the rounds to exclude from the search and judge the result on."
    ] = None
    top: Annotated[int, "Number of rows to show."] = 20
    pareto: Annotated[bool, "Also show the best trade-offs of run time and bill. Takes longer."] = (
        False
    )
    seed: Annotated[int | None, "Seed that draws the held-out rounds and the bootstrap."] = None


def tune(
    profile: ProfileFile,
    options: RehearsalOptions,
    searched: SpaceOptions,
    ranked: RankingOptions,
    plugins: list[str],
    backend: Annotated[
        str | None,
        f"Kind of the recorded workers: {', '.join(_BACKENDS)}. By default read from the profile, "
        "or functions.",
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest scheme, its parameters and its closing rule on recorded delays."""
    space, rehearsal = searched.space(), options.of(profile)
    if backend is not None:
        require_known("backend", backend, _BACKENDS)
        meta = replace(rehearsal.profile.meta, provider=backend)
        rehearsal = replace(rehearsal, profile=replace(rehearsal.profile, meta=meta))
    began = time.monotonic()
    with (
        progress_bar(BarColumn(), TextColumn("{task.percentage:.0f} %,")) as bar,
        _interrupted() as interrupted,
    ):
        task = bar.add_task("search", total=None)
        tuning = search_rehearsal(
            rehearsal,
            space=space,
            holdout=ranked.holdout,
            top=ranked.top,
            pareto=ranked.pareto,
            seed=ranked.seed,
            progress=lambda settled, total: bar.update(task, completed=settled, total=total),
            stop=interrupted.is_set,
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json(_report(tuning, seconds) | {"recorded": rehearsal.recorded})
    else:
        _print(tuning, seconds, jobs_given=options.jobs is not None)
        if rehearsal.recorded == "speed":
            Screen().print(_AT_SPEED)
        train = _command(tuning.best, rehearsal, plugins)
        Screen().print("To train with the first one:", train, sep="\n", soft_wrap=True)
    if tuning.stopped:
        raise KeyboardInterrupt


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT sets; a second SIGINT raises `KeyboardInterrupt`."""
    event, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield event
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _report(tuning: Tuning, seconds: float) -> dict[str, object]:
    lead = tuning.lead
    return {
        "best": _row(tuning.best),
        "ranking": [_row(row) for row in tuning.ranking],
        "searched": tuning.evaluated + tuning.pruned,
        "seconds": seconds,
        "ideal_s": tuning.best.ideal_s,
        "jobs": tuning.num_jobs,
        "evaluated": tuning.evaluated,
        "pruned": tuning.pruned,
        "unfit": tuning.unfit,
        "rounds": tuning.num_rounds,
        "rounds_seen": tuning.rounds_seen,
        "left_out": tuning.left_out,
        "stopped": tuning.stopped,
        "lead": None
        if lead is None
        else {
            "runner_up": _row(lead.runner_up),
            "saved_s": lead.saved_s,
            "interval_s": [lead.low_s, lead.high_s],
            "confidence": lead.confidence,
            "real": lead.real,
        },
        "pareto": [_row(row) for row in tuning.pareto],
        "inexact": [_row(row) for row in tuning.inexact],
    }


def _row(row: Ranked) -> dict[str, object]:
    setting, scheme = row.setting, row.setting.scheme
    return {
        "scheme": scheme.spec,
        "mu": setting.rule.mu,
        "wait_out": setting.rule.wait_out,
        "jobs_per_round": setting.jobs_per_round,
        "normalized_load": None if isinstance(scheme, Deal) else scheme.normalized_load,
        "runtime_s": row.runtime_s,
        "holdout_s": row.holdout_s,
        "delay": scheme.delay,
        "load_lower_bound": scheme.load_lower_bound,
        "ideal_s": row.ideal_s,
        "holdout_ideal_s": row.holdout_ideal_s,
        "ratio": row.ratio,
        "billed_worker_s": row.billed_worker_s,
        "error": row.error,
        "information": row.information,
        "equivalent_s": row.equivalent_s,
        "holdout_equivalent_s": row.holdout_equivalent_s,
        "reading": _reading(row),
    }


def _reading(row: Ranked) -> str:
    """Return the meaning of the recorded times for this row.

    A scheme with rounds invokes all workers in each round.
    """
    return row.reading.label if isinstance(row.setting.scheme, Deal) else "per round"


def _print(tuning: Tuning, seconds: float, *, jobs_given: bool) -> None:
    console = Screen()
    if not console.is_terminal:
        console = Screen(width=_WIDTH)
    console.print(_table(tuning.ranking, title=f"{tuning.num_jobs} jobs"))
    if tuning.pareto:
        console.print(_table(tuning.pareto, title="run time against the bill"))
    if tuning.inexact:
        console.print(_table(tuning.inexact, title="approximations"))
        console.print(_LEGEND_INEXACT.format(best=tuning.best.equivalent_s))
    console.print(_LEGEND)
    for line in _limits(tuning, jobs_given=jobs_given):
        console.print(line)
    if tuning.lead is not None:
        lead, best = tuning.lead, tuning.best.setting.scheme.spec
        sure = "the lead is real" if lead.real else "the lead may be chance"
        console.print(
            f"{best} saves {lead.saved_s:.3f} s against {lead.runner_up.setting.scheme.spec} "
            f"({lead.confidence:.0%} interval {lead.low_s:.3f} … {lead.high_s:.3f} s): {sure}"
        )
    unfit = f", {tuning.unfit} too long for the profile" if tuning.unfit else ""
    if tuning.stopped:
        console.print("interrupted: not all candidates were tried, and a better one may exist")
    console.print(
        f"searched {tuning.evaluated + tuning.pruned} candidates in {seconds:.1f} s: "
        f"{tuning.evaluated} replayed, {tuning.pruned} too slow in any case{unfit}"
    )


def _limits(tuning: Tuning, *, jobs_given: bool) -> Iterator[str]:
    """Yield a line for each part of the recording, or of the space, that was not searched."""
    rounds = tuning.rounds_seen.items()
    if partly := {k: count for k, count in rounds if 0 < count < tuning.num_rounds}:
        parts = ", ".join(f"{count} in bundles of {k}" for k, count in partly.items())
        remedy = "leave out --jobs" if jobs_given else "leave out --no-repeat"
        yield f"searched a part of the {tuning.num_rounds} rounds: {parts}; {remedy} to use all"
    if skipped := [str(k) for k, count in rounds if not count]:
        yield f"no bundles of {', '.join(skipped)}: they do not divide the jobs or the models"
    if tuning.left_out:
        yield (
            f"not searched: {', '.join(tuning.left_out)}, which needs workers that keep running; "
            "add --resident if the functions may keep running, or --backend local (or dask) if the "
            "workers are processes"
        )


def _command(row: Ranked, rehearsal: Rehearsal, plugins: Sequence[str]) -> str:
    """Return the command that trains with this setting, on the same kind of workers."""
    setting, scheme = row.setting, row.setting.scheme
    words = ["seqgc", "train", "--scheme", scheme.spec, "-n", str(scheme.n)]
    if not isinstance(scheme, Deal):
        mu = str(setting.rule.mu).removesuffix(".0")
        words += ["--mu", mu, "--wait-out", setting.rule.wait_out]
    bundle = setting.jobs_per_round
    bundles = 1 if isinstance(scheme, Deal) else max(scheme.delay + 1, -(-_MIN_MODELS // bundle))
    models = rehearsal.models or bundles * bundle
    words += ["--models", str(models), "--jobs-per-round", str(bundle)]
    if rehearsal.batch is not None:
        words += ["--batch-size", str(rehearsal.batch)]
    if (backend := rehearsal.profile.meta.provider) in (*FUNCTIONS, "dask"):
        words += ["--backend", backend]
        if backend in FUNCTIONS and row.reading.resident and isinstance(scheme, Deal):
            words.append("--resident")
    for plugin in plugins:
        words += ["--plugin", plugin]
    return shlex.join(words)


def _table(rows: tuple[Ranked, ...], *, title: str) -> Table:
    """Return a table of at most 80 columns; ``--json`` has all fields."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("scheme", overflow="fold")
    held_out = any(row.holdout_s is not None for row in rows)
    approximate = any(row.error is not None for row in rows)
    headings = ["mu", "wait-out", "jobs", "time, s"]
    headings += ["held out"] * held_out + ["error", "exact, s"] * approximate
    for heading in [*headings, "× bound", "bill, s"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        scheme, rule = row.setting.scheme, row.setting.rule
        dealt = isinstance(scheme, Deal)
        name = f"{scheme.spec} ({_reading(row)})" if dealt else scheme.spec
        cells = ["–", "–"] if dealt else [f"{rule.mu:g}", rule.wait_out]
        cells += [str(row.setting.jobs_per_round), f"{row.runtime_s:.3f}"]
        if held_out:
            cells.append("–" if row.holdout_s is None else f"{row.holdout_s:.3f}")
        if approximate:
            seconds = row.holdout_equivalent_s if held_out else row.equivalent_s
            cells.append("–" if row.error is None else f"{row.error:.3f}")
            cells.append("–" if seconds is None else f"{seconds:.3f}")
        table.add_row(name, *cells, f"{row.ratio:.3f}", f"{row.billed_worker_s:.0f}")
    return table

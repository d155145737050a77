"""``seqgc tune``: a search for the fastest scheme and its settings on recorded delays."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import numpy as np
from rich.table import Table

from seqgc.cli._messages import in_json, is_quiet
from seqgc.cli._options import (
    CaseResult,
    ProfileFile,
    RehearsalOptions,
    numbers,
    show_cases,
    words,
)
from seqgc.cli._show import WAIT_OUT, Screen, TableOutput, text_table
from seqgc.config._names import FUNCTIONS
from seqgc.errors import ParameterError, require_int
from seqgc.plot import tables
from seqgc.progress import working
from seqgc.rounds import WaitOut, num_rounds
from seqgc.schemes import Deal
from seqgc.search import MOST_AT_SPEED, Ranked, Rehearsal, SearchSpace, Tuning, mean_interval
from seqgc.search import tune as search_rehearsal
from seqgc.worker import require_known

_Row = dict[str, Any]  # of the table of rankings

_GRID = SearchSpace()
_BACKENDS = ("local", "dask", *FUNCTIONS)
_WIDTH = 80  # columns, if the output is not a terminal
_MIN_MODELS = 4  # in the suggested command; deal was replayed with one bundle
_LEGEND = (
    f"mu, wait-out: when a round closes (a wait-out is {WAIT_OUT}). jobs: models in a round. "
    "× bound: the time divided by the time of a master that knows all delays in advance. bill: "
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
    seeds: Annotated[
        int,
        "Number of further searches, each with other held-out rounds, drawn by the seeds 0, 1, ... "
        "Needs --holdout.",
    ] = 0

    def __post_init__(self) -> None:
        require_int("seeds", self.seeds, least=0)
        if self.seeds and self.holdout is None:
            rule = "needs --holdout: each seed draws other held-out rounds"
            raise ParameterError("seeds", rule, self.seeds)


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
    *,
    output: TableOutput,
) -> None:
    """Find the fastest scheme, its parameters and its closing rule on recorded delays."""
    space, rehearsal = searched.space(), options.of(profile)
    if backend is not None:
        require_known("backend", backend, _BACKENDS)
        meta = replace(rehearsal.profile.meta, provider=backend)
        rehearsal = replace(rehearsal, profile=replace(rehearsal.profile, meta=meta))
    results, stopped = list[CaseResult](), False
    for case in rehearsal.alpha_cases():
        began = time.monotonic()
        tuning = _searched(case, space, ranked)
        seconds = time.monotonic() - began
        by_seed = []
        for seed in range(0 if tuning.stopped else ranked.seeds):
            by_seed.append(_searched(case, space, replace(ranked, seed=seed, top=1, pareto=False)))
            if by_seed[-1].stopped:
                break
        found = _result(
            tuning, by_seed, case, seconds, plugins, jobs_given=options.jobs is not None
        )
        results.append(found)
        if stopped := any(each.stopped for each in (tuning, *by_seed)):
            break
    show_cases(output, results)
    if stopped:
        raise KeyboardInterrupt


def _searched(rehearsal: Rehearsal, space: SearchSpace, ranked: RankingOptions) -> Tuning:
    """Search with a progress bar, until the first SIGINT."""
    quiet = in_json() or is_quiet()
    with working("search", quiet=quiet, after_s=0.0) as tell, _interrupted() as interrupted:
        return search_rehearsal(
            rehearsal,
            space=space,
            holdout=ranked.holdout,
            top=ranked.top,
            pareto=ranked.pareto,
            seed=ranked.seed,
            progress=lambda settled, total: tell("search", settled / max(total, 1)),
            stop=interrupted.is_set,
        )


def _result(
    tuning: Tuning,
    by_seed: Sequence[Tuning],
    case: Rehearsal,
    seconds: float,
    plugins: Sequence[str],
    *,
    jobs_given: bool,
) -> CaseResult:
    """Return the table of a search, and its result for programs and for people.

    ``by_seed`` are further searches, with other held-out rounds.
    """
    table = tables.rankings(tuning, by_seed)
    best = [
        row for seed in range(len(by_seed)) for row in _part(tables.rows_of(table), f"seed {seed}")
    ]

    def text() -> None:
        _print(tuning, tables.rows_of(table), seconds, jobs_given=jobs_given)
        if best:
            _print_seeds(best)
        if case.recorded == "speed":
            Screen().print(_AT_SPEED)
        train = _command(tuning.best, case, plugins, num_jobs=tuning.num_jobs)
        Screen().print("To train with the first one:", train, sep="\n", soft_wrap=True)

    facts = _report(tuning, tables.rows_of(table), seconds) | {"recorded": case.recorded}
    if best:
        facts["by_seed"] = best
    return CaseResult(case=case, table=table, facts=facts, text=text)


def _print_seeds(best: Sequence[_Row]) -> None:
    """Print the best row of each search, and how well their choices did on held-out rounds."""
    Screen(width=_WIDTH).print(_table(best, title="the best of each seed"))
    held_s = np.array([row["holdout_s"] for row in best])
    line = f"on the held-out rounds: {held_s.mean():.3f} s on average"
    if len(best) > 1:
        low_s, high_s = mean_interval(held_s)
        line += f" (95 % interval {low_s:.3f} … {high_s:.3f} s, over {len(best)} seeds)"
    Screen().print(line)


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


def _part(rows: Sequence[_Row], part: str) -> list[_Row]:
    """Return the rows of one part of the table, without the column ``part``."""
    of_part = [row for row in rows if row["part"] == part]
    return [{name: row[name] for name in row if name != "part"} for row in of_part]


def _report(tuning: Tuning, rows: Sequence[_Row], seconds: float) -> dict[str, object]:
    lead, ranking = tuning.lead, _part(rows, "ranking")
    return {
        "best": ranking[0],
        "ranking": ranking,
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
            "runner_up": ranking[tuning.ranking.index(lead.runner_up)],
            "saved_s": lead.saved_s,
            "interval_s": [lead.low_s, lead.high_s],
            "confidence": lead.confidence,
            "real": lead.real,
        },
        "pareto": _part(rows, "pareto"),
        "inexact": _part(rows, "inexact"),
    }


def _print(tuning: Tuning, rows: Sequence[_Row], seconds: float, *, jobs_given: bool) -> None:
    console = Screen()
    if not console.is_terminal:
        console = Screen(width=_WIDTH)
    console.print(_table(_part(rows, "ranking"), title=f"{tuning.num_jobs} jobs"))
    if tuning.pareto:
        console.print(_table(_part(rows, "pareto"), title="run time against the bill"))
    if tuning.inexact:
        console.print(_table(_part(rows, "inexact"), title="approximations"))
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


def _command(row: Ranked, rehearsal: Rehearsal, plugins: Sequence[str], *, num_jobs: int) -> str:
    """Return the command that trains with this setting, on the same kind of workers.

    The setting was replayed for ``num_jobs`` gradients.
    """
    setting, scheme = row.setting, row.setting.scheme
    words = ["seqgc", "train", "--scheme", scheme.spec, "-n", str(scheme.n)]
    if not isinstance(scheme, Deal):
        mu = str(setting.rule.mu).removesuffix(".0")
        words += ["--mu", mu, "--wait-out", setting.rule.wait_out]
    bundle = setting.jobs_per_round
    bundles = 1 if isinstance(scheme, Deal) else max(scheme.delay + 1, -(-_MIN_MODELS // bundle))
    models = rehearsal.models or bundles * bundle
    round_s = row.runtime_s / num_rounds(scheme, num_jobs // bundle)
    words += ["--predicted-round-s", f"{round_s:.4g}"]
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


def _table(rows: Sequence[_Row], *, title: str) -> Table:
    """Return a table of at most 80 columns; ``--json`` and ``--csv`` have all fields."""
    held_out = any(not math.isnan(row["holdout_s"]) for row in rows)
    approximate = any(not math.isnan(row["error"]) for row in rows)

    def dealt(row: _Row) -> bool:
        return math.isnan(row["normalized_load"])

    def seconds(name: str) -> Callable[[_Row], str]:
        return lambda row: "–" if math.isnan(row[name]) else f"{row[name]:.3f}"

    cells: dict[str, Callable[[_Row], str]] = {
        "scheme": lambda row: (
            f"{row['scheme']} ({row['reading']})" if dealt(row) else row["scheme"]
        ),
        "mu": lambda row: "–" if dealt(row) else f"{row['mu']:g}",
        "wait-out": lambda row: "–" if dealt(row) else row["wait_out"],
        "jobs": lambda row: str(row["jobs_per_round"]),
        "time, s": seconds("runtime_s"),
    }
    if held_out:
        cells["held out"] = seconds("holdout_s")
    if approximate:
        cells["error"] = seconds("error")
        cells["exact, s"] = seconds("holdout_equivalent_s" if held_out else "equivalent_s")
    cells["× bound"] = seconds("ratio")
    cells["bill, s"] = lambda row: f"{row['billed_worker_s']:.0f}"
    return text_table(rows, cells, title=title)

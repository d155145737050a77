"""``seqgc tune``: the fastest scheme, parameters and closing rule on recorded delays."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, TextColumn
from rich.table import Table

from seqgc.cli._names import FUNCTIONS
from seqgc.cli._options import AsJson, ProfileFile, RehearsalOptions, numbers, words
from seqgc.cli._show import WAIT_OUT, Screen, print_json
from seqgc.cli.progress import progress_bar
from seqgc.rounds import WaitOut
from seqgc.schemes import Deal
from seqgc.search import MOST_AT_SPEED, Ranked, Rehearsal, SearchSpace, Tuning
from seqgc.search import tune as search_rehearsal

_GRID = SearchSpace()
_WIDTH = 80  # where there is no terminal to fit
_MODELS = 4  # at least, in the command to type next
_LEGEND = (
    f"mu, wait-out: when a round closes (a wait-out is {WAIT_OUT}). jobs: models in a round. "
    "× bound: the time by that of a master who knows all delays beforehand. bill: worker-seconds."
)

_AT_SPEED = (
    "Delays are read as speeds: searched are the first mu and wait-out only, and at most "
    f"{MOST_AT_SPEED} schemes of a name, spread evenly. × bound: the time by that of workers who "
    "are never idle."
)


def _listed(values: tuple[object, ...]) -> str:
    return ",".join(map(str, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """What is searched."""

    schemes: Annotated[str, "Schemes to look at, for example gc-rep,m-sgc; all of them."] = ""
    mu: Annotated[str, "Tolerances to look at."] = _listed(_GRID.mus)
    wait_out: Annotated[str, "Closing rules to look at."] = _listed(_GRID.wait_outs)
    jobs_per_round: Annotated[str, "Bundle sizes to look at."] = _listed(_GRID.jobs_per_round)
    max_delay: Annotated[int, "Largest delay of a scheme, rounds."] = _GRID.max_delay
    coarse: Annotated[bool, "Thin the grid out, for thousands."] = False
    inexact: Annotated[bool, "--inexact", "Also rank, apart, schemes that approximate."] = False

    def space(self) -> SearchSpace:
        """Return what the words come to, or raise `ParameterError`."""
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
    """How what was searched is judged and ranked."""

    holdout: Annotated[float | None, "Share of rounds to judge by and not to choose by."] = None
    top: Annotated[int, "How many to rank."] = 20
    pareto: Annotated[bool, "Also trade run time for the bill; takes longer."] = False
    seed: Annotated[int | None, "Draws the held-out rounds, and the bootstrap."] = None


def tune(
    profile: ProfileFile,
    options: RehearsalOptions,
    searched: SpaceOptions,
    ranked: RankingOptions,
    plugins: list[str],
    as_json: AsJson = False,
) -> None:
    """Find the fastest scheme, parameters and closing rule on recorded delays."""
    space, rehearsal = searched.space(), options.of(profile)
    began = time.monotonic()
    with progress_bar(BarColumn(), TextColumn("{task.percentage:.0f} %,")) as bar:
        task = bar.add_task("search", total=None)
        found = search_rehearsal(
            rehearsal,
            space=space,
            holdout=ranked.holdout,
            top=ranked.top,
            pareto=ranked.pareto,
            seed=ranked.seed,
            progress=lambda settled, total: bar.update(task, completed=settled, total=total),
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json(_report(found, seconds) | {"recorded": rehearsal.recorded})
    else:
        _print(found, seconds)
        if rehearsal.recorded == "speed":
            Screen().print(_AT_SPEED)
        train = _command(found.best, rehearsal, plugins)
        Screen().print("Train with the first:", train, sep="\n", soft_wrap=True)


def _report(found: Tuning, seconds: float) -> dict[str, object]:
    lead = found.lead
    return {
        "best": _row(found.best),
        "ranking": [_row(row) for row in found.ranking],
        "searched": found.evaluated + found.pruned,
        "seconds": seconds,
        "ideal_s": found.best.ideal_s,
        "jobs": found.num_jobs,
        "evaluated": found.evaluated,
        "pruned": found.pruned,
        "unfit": found.unfit,
        "lead": None
        if lead is None
        else {
            "runner_up": _row(lead.runner_up),
            "saved_s": lead.saved_s,
            "interval_s": [lead.low_s, lead.high_s],
            "confidence": lead.confidence,
            "real": lead.real,
        },
        "pareto": [_row(row) for row in found.pareto],
        "inexact": [_row(row) for row in found.inexact],
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
        "reading": _reading(row),
    }


def _reading(row: Ranked) -> str:
    """Say how the recorded rounds were taken: a scheme by rounds invokes everybody in each."""
    return row.reading.label if isinstance(row.setting.scheme, Deal) else "per round"


def _print(found: Tuning, seconds: float) -> None:
    console = Screen()
    if not console.is_terminal:
        console = Screen(width=_WIDTH)
    console.print(_table(found.ranking, title=f"{found.num_jobs} jobs"))
    if found.pareto:
        console.print(_table(found.pareto, title="run time against the bill"))
    if found.inexact:
        console.print(_table(found.inexact, title="approximations"))
    console.print(_LEGEND)
    if found.lead is not None:
        lead, best = found.lead, found.best.setting.scheme.spec
        sure = "the lead is real" if lead.real else "the lead may be luck"
        console.print(
            f"{best} saves {lead.saved_s:.3f} s against {lead.runner_up.setting.scheme.spec} "
            f"({lead.confidence:.0%} interval {lead.low_s:.3f} … {lead.high_s:.3f} s): {sure}"
        )
    unfit = f", {found.unfit} too long for the profile" if found.unfit else ""
    console.print(
        f"searched {found.evaluated + found.pruned} candidates in {seconds:.1f} s: "
        f"{found.evaluated} replayed, {found.pruned} too slow in any case{unfit}"
    )


def _command(row: Ranked, rehearsal: Rehearsal, plugins: Sequence[str]) -> str:
    """Return what to type to train with a setting, on workers like those that were recorded."""
    setting, scheme = row.setting, row.setting.scheme
    words = ["seqgc", "train", "--scheme", scheme.spec, "-n", str(scheme.n)]
    if not isinstance(scheme, Deal):
        mu = str(setting.rule.mu).removesuffix(".0")
        words += ["--mu", mu, "--wait-out", setting.rule.wait_out]
    bundle = setting.jobs_per_round
    models = rehearsal.models or max(scheme.delay + 1, -(-_MODELS // bundle)) * bundle
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
    """Return the rows in 80 columns; ``--json`` has all that is known of each."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("scheme", overflow="fold")
    held_out = any(row.holdout_s is not None for row in rows)
    approximate = any(row.error is not None for row in rows)
    headings = ["mu", "wait-out", "jobs", "time, s"]
    headings += ["held out"] * held_out + ["error"] * approximate
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
            cells.append("–" if row.error is None else f"{row.error:.3f}")
        table.add_row(name, *cells, f"{row.ratio:.3f}", f"{row.billed_worker_s:.0f}")
    return table

"""The tables behind the pictures, and the tables that the command line prints.

The function for a picture has the name of the picture. `csv_text` writes a table as the option
``--csv`` does, and `rows_of` returns its rows.

A table is a dictionary of columns, which are arrays of equal length; ``pandas.DataFrame`` accepts
it. If a picture shows several runs or profiles, their tables are stacked, and the first column
names the run or profile of each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np

from seqgc._tabular import csv_text as csv_text
from seqgc._tabular import number as number
from seqgc._tabular import percent as percent
from seqgc._tabular import rows_of as rows_of
from seqgc.comparison import Comparison
from seqgc.errors import ParameterError
from seqgc.plot._summaries import bills as bills
from seqgc.plot._summaries import counterfactuals as counterfactuals
from seqgc.plot._summaries import defences as defences
from seqgc.plot._summaries import findings as findings
from seqgc.plot._summaries import layers as layers
from seqgc.plot._summaries import rankings as rankings
from seqgc.plot._summaries import replays as replays
from seqgc.plot._summaries import schemes as schemes
from seqgc.plot._summaries import stages as stages
from seqgc.plot._summaries import straggler_models as straggler_models
from seqgc.plot._summaries import trainings as trainings
from seqgc.ports import BoolArray, FloatArray, IntArray, Table
from seqgc.profiles import DelayProfile
from seqgc.runs import RecordedRun
from seqgc.search import Ranked, Replay, Tuning
from seqgc.stragglers import count_bursts, straggler_pattern

__all__ = [
    "bills", "bursts", "comparison", "completion_times", "counterfactuals", "csv_text",
    "defences", "findings",
    "finished_jobs", "heat_map", "landscape", "layers", "losses", "pareto", "rankings", "ratios",
    "replays", "rows_of", "schemes", "stages", "straggler_models", "timeline", "trainings",
    "worker_seconds",
]  # fmt: skip

_MOST_CELLS: Final = 1024  # for a heat map, along one axis: a picture has no more pixels
_QUANTILES: Final = 201
OUTCOMES: Final = "used", "dropped", "failed", "unanswered"

Source: TypeAlias = DelayProfile | RecordedRun
"""A source of delays: a profile, or a recorded run."""

Delays: TypeAlias = Source | Sequence[Source] | Mapping[str, Source]
"""One profile or recorded run, or several, by name or in order."""

Recorded: TypeAlias = RecordedRun | Sequence[RecordedRun] | Mapping[str, RecordedRun]
"""One recorded run, or several, by name or in order."""

Run: TypeAlias = RecordedRun | Replay
"""A recorded run, or a replay of recorded delays: both have rounds and jobs."""

Runs: TypeAlias = Run | Sequence[Run] | Mapping[str, Run]
"""One run, or several, by name or in order. A run without a name gets the name of its scheme."""

_Data = TypeVar("_Data", DelayProfile, RecordedRun, Replay, Source, Run)


# ---- delays -------------------------------------------------------------------------------------


def heat_map(data: Source, *, mu: float = 1.0) -> Table:
    """Return a row for each column of the heat map: a round, or several successive rounds.

    The columns are ``round``, the first of the rounds; ``slowest_s``, the slowest answer, NaN if
    no answer came; and ``straggling``, the fraction of the workers that straggled. Raises
    `ParameterError` if a run has closed no round.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5, 1.0], [1.0, 3.0, 1.1, 1.0]])
    >>> {name: column.tolist() for name, column in heat_map(profile).items()}
    {'round': [0, 1], 'slowest_s': [5.0, 3.0], 'straggling': [0.25, 0.25]}
    """
    cells = cells_of(data, mu=mu)
    columns = len(cells.slowest_s)
    slowest = np.where(np.isnan(cells.slowest_s), -np.inf, cells.slowest_s).max(axis=1)
    return {
        "round": cells.first + -(-np.arange(columns) * (cells.last - cells.first + 1) // columns),
        "slowest_s": np.where(np.isfinite(slowest), slowest, np.nan),
        "straggling": cells.straggling.mean(axis=1),
    }


def bursts(data: Delays, *, mu: float = 1.0) -> Table:
    """Return the number of bursts of straggling by their length in rounds.

    A burst is a worker's uninterrupted sequence of rounds in which it straggled. The columns are
    ``data``, the profile or run; ``rounds``, from 1 to the length of the longest burst; ``bursts``,
    the number of bursts of that length; and ``share``, the fraction of all bursts of this profile
    or run. Raises like `heat_map`.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 5.0, 2.0], [4.0, 1.0, 1.0]])
    >>> bursts(profile)["bursts"].tolist()
    [1, 1]
    """

    def counted(source: Source) -> Table:
        answers = _answers_of(source, mu=mu)
        place, worker = np.divmod(answers.in_time, answers.n)
        place = (np.cumsum(answers.judged) - 1)[place]  # index among the judged rounds
        counts = count_bursts(place, worker, shape=(int(answers.judged.sum()), answers.n))
        share = counts / max(int(counts.sum()), 1)
        return {"rounds": 1 + np.arange(len(counts)), "bursts": counts, "share": share}

    return _stacked("data", {name: counted(each) for name, each in named(data).items()})


def completion_times(data: Delays) -> Table:
    """Return the fraction of all tasks that were answered within a number of seconds.

    The columns are ``data``, the profile or run; ``seconds``, from task to answer; and
    ``answered``, the fraction of the tasks. Of more than 201 answers the table has 201, evenly
    spread. A task of a run counts as unanswered if the run gave it up.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> table = completion_times(DelayProfile.from_times([[2.0, 1.0, 4.0, 3.0]]))
    >>> table["seconds"].tolist(), table["answered"].tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.25, 0.5, 0.75, 1.0])
    """

    def answered(source: Source) -> Table:
        answers = _answers_of(source, mu=0.0)
        seconds = np.sort(answers.seconds)
        count = min(len(seconds), _QUANTILES)
        places = np.linspace(0, len(seconds) - 1, count).round().astype(np.intp)
        return {"seconds": seconds[places], "answered": (places + 1) / max(answers.tasks, 1)}

    return _stacked("data", {name: answered(each) for name, each in named(data).items()})


# ---- runs ---------------------------------------------------------------------------------------


def timeline(runs: Runs) -> Table:
    """Return a row for each closed round of each run.

    The columns are ``run``; ``round``; ``began_s``, ``first_answer_s`` and ``closed_s``, the times
    of its beginning, first answer and end; ``reason``, the reason why it closed (see
    `seqgc.ports.RoundRecord`); and ``stragglers``, the number of stragglers.

    Examples
    --------
    >>> from seqgc import DelayProfile, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> table = timeline(replay("gc:s=1", profile, alpha=0.0))
    >>> table["closed_s"].tolist(), table["reason"].tolist()
    ([2.0, 3.5], ['wait-out', 'wait-out'])
    """

    def closed(run: Run) -> Table:
        rounds = run.rounds()
        began_s = rounds["began_s"]
        # If pieces of work are dealt, the first result may come before the round's clock starts.
        waited_s = np.where(rounds["reason"] == "dealt", 0.0, rounds["kappa_s"])
        closed_s = np.maximum(rounds["closed_s"], began_s)
        return {
            "round": rounds["round"],
            "began_s": began_s,
            "first_answer_s": np.minimum(began_s + waited_s, closed_s),
            "closed_s": closed_s,
            "reason": rounds["reason"],
            "stragglers": rounds["stragglers"],
        }

    return _stacked("run", {name: closed(run) for name, run in named(runs).items()})


def finished_jobs(runs: Runs) -> Table:
    """Return a row for each finished job of each run.

    The columns are ``run``; ``finished_s``, the time; and ``jobs``, the number of jobs that the run
    had finished by then.
    """

    def finished(run: Run) -> Table:
        finished_s = np.sort(run.jobs()["finished_s"])
        return {"finished_s": finished_s, "jobs": 1 + np.arange(len(finished_s))}

    return _stacked("run", {name: finished(run) for name, run in named(runs).items()})


def losses(runs: Recorded) -> Table:
    """Return the loss of each model before each of its steps.

    The columns are ``run`` and those of `seqgc.runs.RecordedRun.models`.
    """
    return _stacked("run", {name: run.models() for name, run in named(runs).items()})


def worker_seconds(runs: Recorded) -> Table:
    """Return the worker-seconds of each run by the outcome of the tasks.

    The columns are ``run``; ``load``, the mean fraction of a job's batch that a worker had in a
    round, NaN if the log does not say; ``seconds``, from the beginning of the first round to the
    end of the last; and the worker-seconds ``used_s``, ``dropped_s`` (the answer came too late to
    be used), ``failed_s``, ``unanswered_s`` (until the task was given up) and ``total_s``. After a
    task is given up its function continues to run, and is billed.
    """

    def spent(run: RecordedRun) -> Table:
        rounds, answers = run.rounds(), run.answers()
        loads = rounds["load"][~np.isnan(rounds["load"])]
        took_s = np.nan_to_num(answers["took_s"])
        by_outcome = {
            f"{outcome}_s": float(took_s[answers["outcome"] == outcome].sum())
            for outcome in OUTCOMES
        }
        began_s = rounds["began_s"].min(initial=np.inf)
        lasted_s = max(rounds["closed_s"].max(initial=0.0) - began_s, 0.0)
        row = {"load": loads.mean() if len(loads) else np.nan, "seconds": lasted_s, **by_outcome}
        row["total_s"] = sum(by_outcome.values())
        return {name: np.array([value]) for name, value in row.items()}

    return _stacked("run", {name: spent(run) for name, run in named(runs).items()})


# ---- searches and comparisons -------------------------------------------------------------------


def ratios(tuning: Tuning) -> Table:
    """Return the best setting of each scheme, in ascending order of their distance to the bound.

    The columns are ``setting``; ``scheme``, the name of its scheme; ``runtime_s`` and ``ideal_s``
    (the clairvoyant bound), on the held-out rounds if there are any; and ``ratio``, their ratio.
    """
    best: dict[str, Ranked] = {}
    for row in tuning.ranking:
        best.setdefault(_scheme_name(row), row)
    rows = sorted(best.values(), key=lambda row: row.ratio)
    seconds = np.array(
        [row.runtime_s if row.holdout_s is None else row.holdout_s for row in rows], dtype=float
    )
    ratio = np.array([row.ratio for row in rows])
    return {
        "setting": _objects(row.setting.label for row in rows),
        "scheme": _objects(map(_scheme_name, rows)),
        "runtime_s": seconds,
        "ideal_s": seconds / ratio,
        "ratio": ratio,
    }


def pareto(tuning: Tuning) -> Table:
    """Return the ranked settings of a search in order of run time, with their Pareto front.

    The columns are ``setting``, ``runtime_s``, ``billed_worker_s`` and ``front``, which is True if
    no other setting is both faster and cheaper. If `tune` was called with ``pareto=True``, the
    table also has the settings of the front that are not in the ranking.
    """
    rows = sorted(
        {id(row): row for row in (*tuning.ranking, *tuning.pareto)}.values(),
        key=lambda row: (row.runtime_s, row.billed_worker_s),
    )
    bills = np.array([row.billed_worker_s for row in rows])
    cheapest_so_far = np.minimum.accumulate(np.concatenate([[np.inf], bills]))[:-1]
    return {
        "setting": _objects(row.setting.label for row in rows),
        "runtime_s": np.array([row.runtime_s for row in rows]),
        "billed_worker_s": bills,
        "front": bills < cheapest_so_far,
    }


def landscape(tuning: Tuning) -> Table:
    """Return the shortest ranked run time for each scheme and its parameters.

    The columns are ``scheme``, with all parameters except the last (``B`` and ``W``);
    ``parameter``, the last parameter (``lam`` or ``s``), 0 if the scheme has neither;
    ``runtime_s``, the shortest over closing rules and bundles; and ``best``, which marks the
    winner. A search ranks only its ``top`` best settings. To see the whole landscape, let it rank
    all settings with one closing rule (``top=100_000, prune=False``).
    """
    least: dict[tuple[str, int], Ranked] = {}
    for row in tuning.ranking:
        least.setdefault(_coordinates(row), row)
    keys = sorted(least, key=lambda key: (_natural(key[0]), key[1]))
    winner = _coordinates(tuning.best)
    return {
        "scheme": _objects(name for name, _ in keys),
        "parameter": np.array([value for _, value in keys]),
        "runtime_s": np.array([least[key].runtime_s for key in keys]),
        "best": np.array([key == winner for key in keys]),
    }


def comparison(result: Comparison) -> Table:
    """Return a row for each defence of a comparison; the defence that needs least time is first.

    The columns are ``defence``; ``kind``, the kind of its gradients; ``seconds_to_target`` and
    ``usd``, NaN if it did not reach the target; and ``front``, True if no other defence is at least
    as fast and as cheap. See `seqgc.comparison.Row`.
    """
    rows = result.rows
    seconds = np.array([row.seconds_to_target for row in rows], dtype=float)
    usd = np.array([row.usd for row in rows], dtype=float)
    order = np.lexsort([usd, seconds])
    cheapest_so_far = np.fmin.accumulate(np.concatenate([[np.inf], usd[order]]))[:-1]
    front = np.empty(len(rows), dtype=bool)
    front[order] = usd[order] < cheapest_so_far
    return {
        "defence": _objects(row.defence for row in rows),
        "kind": _objects(row.kind for row in rows),
        "seconds_to_target": seconds,
        "usd": usd,
        "front": front,
    }


def _scheme_name(row: Ranked) -> str:
    return row.setting.scheme.spec.partition(":")[0]


def _coordinates(row: Ranked) -> tuple[str, int]:
    """Return a scheme without its last parameter, and the value of that parameter."""
    name, _, rest = row.setting.scheme.spec.partition(":")
    pairs = [pair.split("=") for pair in rest.split(",") if pair]
    last = next((value for key, value in pairs if key in {"lam", "s"}), "0")
    others = [f"{key}={value}" for key, value in pairs if key not in {"lam", "s"}]
    return " ".join([name, *others]), int(last)


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that compares the digits of a text as numbers."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text)]


def _objects(texts: Iterable[str]) -> np.ndarray:
    return np.array(list(texts), dtype=np.object_)


def _stacked(label: str, parts: Mapping[str, Table]) -> Table:
    """Stack the tables of several runs or profiles, whose names are the new first column."""
    lengths = [len(next(iter(part.values()))) for part in parts.values()]
    names = np.repeat(_objects(parts), lengths)
    first = next(iter(parts.values()))
    columns = {name: np.concatenate([part[name] for part in parts.values()]) for name in first}
    return {label: names, **columns}


# ---- profiles and runs --------------------------------------------------------------------------


def named(data: _Data | Sequence[_Data] | Mapping[str, _Data]) -> dict[str, _Data]:
    """Return profiles or runs by unique names.

    Raises
    ------
    ParameterError
        If ``data`` is empty.
    """
    if isinstance(data, Mapping):
        by_name = dict(data)
    else:
        by_name = {}
        for each in [data] if isinstance(data, DelayProfile | RecordedRun | Replay) else data:
            name = base = _name(each)
            count = 1
            while name in by_name:
                count += 1
                name = f"{base} ({count})"
            by_name[name] = each
    if not by_name:
        raise ParameterError("data", "must be at least one profile or run", by_name)
    return by_name


def _name(source: DelayProfile | RecordedRun | Replay) -> str:
    match source:
        case DelayProfile():
            return source.meta.model or "profile"
        case RecordedRun():
            return source.scheme or "run"
        case Replay():
            return "replay"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AnswerTimes:
    """The answers of ``n`` workers in ``rounds`` (rounds,), ascending round numbers.

    For each answer (answers,), ``place`` is the index of its round in ``rounds``, ``worker`` is its
    worker, and ``seconds`` is the time from task to answer. ``tasks`` is the number of all tasks.
    ``judged`` (rounds,) marks the rounds that wait for workers; no worker straggles in a round that
    deals pieces of work or is idle. ``in_time`` are the workers that did not straggle in a judged
    round, as unique ascending numbers ``place * n + worker``. A worker does not straggle in a round
    in which the run had fewer workers.
    """

    rounds: IntArray
    n: int
    place: IntArray
    worker: IntArray
    seconds: FloatArray
    tasks: int
    judged: BoolArray
    in_time: IntArray


def _answers_of(data: Source | Replay, *, mu: float) -> _AnswerTimes:
    """Return the answers of a profile or of the closed rounds of a run.

    In a profile a worker straggles by tolerance ``mu``. In a run a worker straggles if the round
    closed without it.

    Raises
    ------
    ParameterError
        If ``data`` is a replay, or a run that has closed no round.
    """
    if isinstance(data, DelayProfile):
        place, worker = np.nonzero(data.answered)
        return _AnswerTimes(
            rounds=np.arange(data.num_rounds),
            n=data.num_workers,
            place=place,
            worker=worker,
            seconds=data.times[data.answered],
            tasks=data.times.size,
            judged=np.ones(data.num_rounds, dtype=np.bool_),
            in_time=np.flatnonzero(~straggler_pattern(data, mu=mu)),
        )
    if isinstance(data, Replay):
        rule = "must be a delay profile or a recorded run"
        raise ParameterError("data", rule, "a replay", "take the profile that was replayed")
    closed, table = data.rounds(), data.answers()
    rounds = closed["round"]
    if not len(rounds):
        rule = "must be a run that has closed at least one round"
        raise ParameterError("data", rule, str(data.path))
    place = np.searchsorted(rounds, table["round"]).clip(max=len(rounds) - 1)
    of_closed = rounds[place] == table["round"]
    used = table["outcome"] == "used"
    answered = of_closed & (used | (table["outcome"] == "dropped")) & ~np.isnan(table["took_s"])
    judged = (closed["reason"] != "dealt") & (closed["reason"] != "idle")
    in_time = of_closed & used & ~table["late"] & judged[place]
    absent = judged[:, None] & (np.arange(data.workers) >= closed["workers"][:, None])
    in_time_or_absent = [
        place[in_time] * data.workers + table["worker"][in_time],
        np.flatnonzero(absent),
    ]
    return _AnswerTimes(
        rounds=rounds,
        n=data.workers,
        place=place[answered],
        worker=table["worker"][answered],
        seconds=table["took_s"][answered],
        tasks=int(of_closed.sum()),
        judged=judged,
        in_time=np.unique(np.concatenate(in_time_or_absent)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeatMapCells:
    """The cells (rounds, workers) of a heat map.

    A cell is one worker in one round, or several workers and rounds if a picture has too few
    pixels. ``slowest_s`` is the longest time from task to answer in a cell, NaN if there is no
    answer. ``straggling`` is the fraction of answers in a cell that straggled, 0 if its rounds
    waited for no worker. The cells are of equal size, and cover all ``workers`` and the rounds from
    ``first`` to ``last``.
    """

    first: int
    last: int
    workers: int
    slowest_s: FloatArray
    straggling: FloatArray


def cells_of(data: Source, *, mu: float) -> HeatMapCells:
    """Return the cells of the heat map of a profile or a run. Raises like `_answers_of`."""
    answers = _answers_of(data, mu=mu)
    first, last, n = int(answers.rounds[0]), int(answers.rounds[-1]), answers.n
    rows, columns = min(last - first + 1, _MOST_CELLS), min(n, _MOST_CELLS)
    row_of = (answers.rounds - first) * rows // (last - first + 1)
    column_of = np.arange(n) * columns // n
    slowest = np.full((rows, columns), -np.inf)
    np.maximum.at(slowest, (row_of[answers.place], column_of[answers.worker]), answers.seconds)
    in_time = np.zeros((rows, columns))
    places, workers = np.divmod(answers.in_time, n)
    np.add.at(in_time, (row_of[places], column_of[workers]), 1)
    judged = np.bincount(row_of[answers.judged], minlength=rows)
    total = np.outer(judged, np.bincount(column_of))
    return HeatMapCells(
        first=first,
        last=last,
        workers=n,
        slowest_s=np.where(np.isfinite(slowest), slowest, np.nan),
        straggling=1 - np.divide(in_time, total, out=np.ones_like(in_time), where=total > 0),
    )

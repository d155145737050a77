"""The tables behind the pictures: a function of a picture's name returns what it shows.

A table is a dictionary of columns, arrays of one length: ``pandas.DataFrame(table)`` takes it.
Where several runs or profiles are shown, their tables are one below the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from seqgc.comparison import Comparison
from seqgc.plot._sources import Delays, Recorded, Run, Runs, Source, answers_of, grid_of, named
from seqgc.ports import Table
from seqgc.runs import RecordedRun
from seqgc.search import Ranked, Tuning
from seqgc.stragglers import count_bursts

__all__ = [
    "bursts",
    "comparison",
    "completion_times",
    "finished_jobs",
    "heat_map",
    "landscape",
    "losses",
    "pareto",
    "ratios",
    "timeline",
    "worker_seconds",
]

_QUANTILES: Final = 201
OUTCOMES: Final = "used", "dropped", "failed", "unanswered"


def heat_map(data: Source, *, mu: float = 1.0) -> Table:
    """Return a row for each round, or for as many in succession as a picture has room for.

    ``round`` (the first of them), ``slowest_s``, NaN without an answer, and ``straggling``, the
    share of all workers. Raises `ParameterError` if a run has closed no round.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5, 1.0], [1.0, 3.0, 1.1, 1.0]])
    >>> {name: column.tolist() for name, column in heat_map(profile).items()}
    {'round': [0, 1], 'slowest_s': [5.0, 3.0], 'straggling': [0.25, 0.25]}
    """
    grid = grid_of(data, mu=mu)
    rows = len(grid.slowest_s)
    slowest = np.where(np.isnan(grid.slowest_s), -np.inf, grid.slowest_s).max(axis=1)
    return {
        "round": grid.first + -(-np.arange(rows) * (grid.last - grid.first + 1) // rows),
        "slowest_s": np.where(np.isfinite(slowest), slowest, np.nan),
        "straggling": grid.straggling.mean(axis=1),
    }


def bursts(data: Delays, *, mu: float = 1.0) -> Table:
    """Return how many bursts of straggling lasted how many rounds.

    ``data``, which profile or run; ``rounds``, from 1 to the longest burst; ``bursts``, how many;
    ``share`` of all its bursts, NaN if there is none. A burst is a worker's straggling rounds in
    succession. Raises like `heat_map`.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 5.0, 2.0], [4.0, 1.0, 1.0]])
    >>> bursts(profile)["bursts"].tolist()
    [1, 1]
    """

    def counted(source: Source) -> Table:
        answers = answers_of(source, mu=mu)
        place, worker = np.divmod(answers.in_time, answers.n)
        place = (np.cumsum(answers.judged) - 1)[place]  # among the rounds that wait for workers
        counts = count_bursts(place, worker, shape=(int(answers.judged.sum()), answers.n))
        share = counts / max(int(counts.sum()), 1)
        return {"rounds": 1 + np.arange(len(counts)), "bursts": counts, "share": share}

    return _joined("data", {name: counted(each) for name, each in named(data).items()})


def completion_times(data: Delays) -> Table:
    """Return the share of all tasks that had been answered after so many seconds each.

    ``data``, which profile or run; ``seconds``, from task to answer; ``answered``. Where there are
    more answers than that, these are 201 of them, evenly spread. A run's tasks that nobody waited
    for to the end count as not answered.

    Examples
    --------
    >>> from seqgc import DelayProfile
    >>> table = completion_times(DelayProfile.from_times([[2.0, 1.0, 4.0, 3.0]]))
    >>> table["seconds"].tolist(), table["answered"].tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.25, 0.5, 0.75, 1.0])
    """

    def answered(source: Source) -> Table:
        answers = answers_of(source, mu=0.0)
        seconds = np.sort(answers.seconds)
        count = min(len(seconds), _QUANTILES)
        places = np.linspace(0, len(seconds) - 1, count).round().astype(np.intp)
        return {"seconds": seconds[places], "answered": (places + 1) / max(answers.tasks, 1)}

    return _joined("data", {name: answered(each) for name, each in named(data).items()})


def timeline(runs: Runs) -> Table:
    """Return a row for each closed round of each run: when it began and closed.

    ``run``; ``round``; ``began_s``; ``first_answer_s`` and ``closed_s``, when it was answered first
    and closed; ``reason``, why then (see `seqgc.ports.RoundRecord`); ``stragglers``.

    Examples
    --------
    >>> from seqgc import DelayProfile, Rehearsal, Setting, parse_scheme, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> setting = Setting(scheme=parse_scheme("gc:s=1", n=3))
    >>> table = timeline(replay(setting, Rehearsal(profile=profile, alpha=0.0)))
    >>> table["closed_s"].tolist(), table["reason"].tolist()
    ([2.0, 3.5], ['wait-out', 'wait-out'])
    """

    def closed(run: Run) -> Table:
        rounds = run.rounds()
        began_s = rounds["began_s"]
        # Where work is dealt, the first piece may have come before the round's own time began.
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

    return _joined("run", {name: closed(run) for name, run in named(runs).items()})


def finished_jobs(runs: Runs) -> Table:
    """Return how many jobs each run had finished when: ``run``, ``finished_s``, ``jobs``."""

    def finished(run: Run) -> Table:
        finished_s = np.sort(run.jobs()["finished_s"])
        return {"finished_s": finished_s, "jobs": 1 + np.arange(len(finished_s))}

    return _joined("run", {name: finished(run) for name, run in named(runs).items()})


def losses(runs: Recorded) -> Table:
    """Return the loss of each model before each of its steps.

    ``run``, and the columns of `seqgc.runs.RecordedRun.models`.
    """
    return _joined("run", {name: run.models() for name, run in named(runs).items()})


def worker_seconds(runs: Recorded) -> Table:
    """Return what the workers of each run did: seconds of all tasks, by what became of them.

    ``run``; ``load``, the mean share of a job's batch that a worker had in a round, NaN where the
    log does not say; ``seconds``, from the first round's beginning to the last one's end; and
    worker-seconds ``used_s``; ``dropped_s`` (others had come before), ``failed_s``,
    ``unanswered_s`` (until it was given up), ``total_s``. A function that is given up runs on, and
    is billed.
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

    return _joined("run", {name: spent(run) for name, run in named(runs).items()})


# ---- searches -----------------------------------------------------------------------------------


def ratios(tuning: Tuning) -> Table:
    """Return the best setting of each scheme, the fastest first, and its ratio to the bound.

    ``setting``; ``scheme``, its name; ``runtime_s`` and ``ideal_s`` (the clairvoyant bound), on the
    held-out rounds if there are any; ``ratio`` of the two.
    """
    best: dict[str, Ranked] = {}
    for row in tuning.ranking:
        best.setdefault(scheme_name(row), row)
    rows = sorted(best.values(), key=lambda row: row.ratio)
    held = [row.holdout_s is not None for row in rows]
    seconds = [row.holdout_s if h else row.runtime_s for row, h in zip(rows, held, strict=True)]
    ratio = np.array([row.ratio for row in rows])
    return {
        "setting": _objects(row.setting.label for row in rows),
        "scheme": _objects(scheme_name(row) for row in rows),
        "runtime_s": np.array(seconds, dtype=float),
        "ideal_s": np.array(seconds, dtype=float) / ratio,
        "ratio": ratio,
    }


def pareto(tuning: Tuning) -> Table:
    """Return what a search ranked, by run time: which settings nothing beats in time and bill.

    ``setting``, ``runtime_s``, ``billed_worker_s``, and whether it is on the ``front``. What is
    shown is the ranking, and the front that `tune` finds with ``pareto=True``; without it the front
    is that of the ranking.
    """
    rows = sorted(
        {id(row): row for row in (*tuning.ranking, *tuning.pareto)}.values(),
        key=lambda row: (row.runtime_s, row.billed_worker_s),
    )
    bills = np.array([row.billed_worker_s for row in rows])
    cheapest_before = np.minimum.accumulate(np.concatenate([[np.inf], bills]))[:-1]
    return {
        "setting": _objects(row.setting.label for row in rows),
        "runtime_s": np.array([row.runtime_s for row in rows]),
        "billed_worker_s": bills,
        "front": bills < cheapest_before,
    }


def landscape(tuning: Tuning) -> Table:
    """Return the shortest run time that a search ranked for each scheme and its parameters.

    ``scheme``, with all its parameters but the last: ``B`` and ``W``; ``parameter``, the last one:
    ``lam`` or ``s``, 0 where there is none; ``runtime_s``, the least over closing rules and
    bundles; ``best``, whether it is the winner's. A search ranks its ``top`` best: let it rank all
    (``top=100_000, prune=False``, one closing rule) to see the whole landscape.
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


def comparison(found: Comparison) -> Table:
    """Return what each defence of a comparison comes to: as its rows, the soonest first.

    ``defence``; ``kind`` of its gradients; ``seconds_to_target`` and ``usd``, NaN where the target
    was not reached; ``front``, whether no other is both as soon and as cheap. See
    `seqgc.comparison.Row`.
    """
    rows = found.rows
    seconds = np.array([row.seconds_to_target for row in rows], dtype=float)
    usd = np.array([row.usd for row in rows], dtype=float)
    order = np.lexsort([usd, seconds])
    cheapest_before = np.fmin.accumulate(np.concatenate([[np.inf], usd[order]]))[:-1]
    front = np.empty(len(rows), dtype=bool)
    front[order] = usd[order] < cheapest_before
    return {
        "defence": _objects(row.defence for row in rows),
        "kind": _objects(row.kind for row in rows),
        "seconds_to_target": seconds,
        "usd": usd,
        "front": front,
    }


def scheme_name(row: Ranked) -> str:
    """Return the name of a ranked setting's scheme, as specs begin."""
    return row.setting.scheme.spec.partition(":")[0]


def _coordinates(row: Ranked) -> tuple[str, int]:
    """Return a scheme without its last parameter, and this."""
    name, _, rest = row.setting.scheme.spec.partition(":")
    pairs = [pair.split("=") for pair in rest.split(",") if pair]
    last = next((value for key, value in pairs if key in {"lam", "s"}), "0")
    others = [f"{key}={value}" for key, value in pairs if key not in {"lam", "s"}]
    return " ".join([name, *others]), int(last)


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a key to sort by in which numbers count as such."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text)]


def _objects(texts: Iterable[str]) -> np.ndarray:
    return np.array(list(texts), dtype=np.object_)


def _joined(whose: str, parts: Mapping[str, Table]) -> Table:
    """Return several tables, one below the other; the column ``whose`` says whose a row is."""
    lengths = [len(next(iter(part.values()))) for part in parts.values()]
    names = np.repeat(_objects(parts), lengths)
    first = next(iter(parts.values()))
    columns = {name: np.concatenate([part[name] for part in parts.values()]) for name in first}
    return {whose: names, **columns}

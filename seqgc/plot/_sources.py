"""What pictures are made of: profiles and runs, one or several, and who answered when in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.profiles import DelayProfile
from seqgc.runs import RecordedRun
from seqgc.search import Replay
from seqgc.stragglers import straggler_pattern

__all__ = [
    "Answers",
    "Delays",
    "Grid",
    "Recorded",
    "Run",
    "Runs",
    "Source",
    "answers_of",
    "grid_of",
    "named",
]

_MOST_CELLS: Final = 1024  # a picture has no more pixels

Source: TypeAlias = DelayProfile | RecordedRun
"""What has delays of workers."""

Delays: TypeAlias = Source | Sequence[Source] | Mapping[str, Source]
"""One profile or recorded run, or several, by name or in order."""

Recorded: TypeAlias = RecordedRun | Sequence[RecordedRun] | Mapping[str, RecordedRun]
"""One recorded run, or several, by name or in order."""

Run: TypeAlias = RecordedRun | Replay
"""What has rounds and jobs: a recorded run, or one replayed on recorded delays."""

Runs: TypeAlias = Run | Sequence[Run] | Mapping[str, Run]
"""One run, or several, by name or in order; without a name a run has that of its scheme."""

_Data = TypeVar("_Data", DelayProfile, RecordedRun, Replay, Source, Run)


def named(data: _Data | Sequence[_Data] | Mapping[str, _Data]) -> dict[str, _Data]:
    """Return profiles or runs by name, no two of which are the same.

    Raises
    ------
    ParameterError
        If there is none.
    """
    if isinstance(data, Mapping):
        return _some(dict(data))
    several = [data] if isinstance(data, DelayProfile | RecordedRun | Replay) else data
    found: dict[str, _Data] = {}
    for each in several:
        name = base = _name(each)
        count = 1
        while name in found:
            count += 1
            name = f"{base} ({count})"
        found[name] = each
    return _some(found)


def _some(found: dict[str, _Data]) -> dict[str, _Data]:
    if not found:
        raise ParameterError("data", "must be one profile or run at least", found)
    return found


def _name(source: DelayProfile | RecordedRun | Replay) -> str:
    match source:
        case DelayProfile():
            return source.meta.model or "profile"
        case RecordedRun():
            return source.scheme or "run"
        case Replay():
            return "replay"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """Who answered when: of ``rounds`` (rounds,), their numbers in ascending order, and n workers.

    An answer (answers,) has the ``place`` of its round among these, its ``worker``, and
    ``seconds`` from task to answer; ``tasks`` were sent in all. ``judged`` (rounds,) are the rounds
    that wait for workers: not those where work is dealt, or there is nothing to do. In these,
    ``in_time`` are those who did not straggle: numbers ``place * n + worker``, each once, in
    ascending order.
    """

    rounds: IntArray
    n: int
    place: IntArray
    worker: IntArray
    seconds: FloatArray
    tasks: int
    judged: BoolArray
    in_time: IntArray


def answers_of(data: Source | Replay, *, mu: float) -> Answers:
    """Return the answers of a profile or of a run's closed rounds.

    In a profile stragglers are those that tolerance ``mu`` calls so; in a run, those that its
    rounds were closed without.

    Raises
    ------
    ParameterError
        If it is something else, or the run has closed no round.
    """
    if isinstance(data, DelayProfile):
        place, worker = np.nonzero(data.answered)
        return Answers(
            rounds=np.arange(data.num_rounds),
            n=data.num_workers,
            place=place,
            worker=worker,
            seconds=data.times[data.answered],
            tasks=data.times.size,
            judged=np.ones(data.num_rounds, dtype=np.bool_),
            in_time=np.flatnonzero(~straggler_pattern(data, mu=mu)),
        )
    if isinstance(data, Replay):  # its delays are its profile's
        rule = "must be a delay profile or a recorded run"
        raise ParameterError("data", rule, "a replay", "the profile has its delays")
    closed, table = data.rounds(), data.answers()
    rounds = closed["round"]
    if not len(rounds):
        raise ParameterError("data", "must be a run that has closed a round", str(data.path))
    place = np.searchsorted(rounds, table["round"]).clip(max=len(rounds) - 1)
    known = rounds[place] == table["round"]
    used = table["outcome"] == "used"
    came = known & (used | (table["outcome"] == "dropped")) & ~np.isnan(table["took_s"])
    judged = (closed["reason"] != "dealt") & (closed["reason"] != "idle")
    in_time = known & used & ~table["late"] & judged[place]
    return Answers(
        rounds=rounds,
        n=data.workers,
        place=place[came],
        worker=table["worker"][came],
        seconds=table["took_s"][came],
        tasks=int(known.sum()),
        judged=judged,
        in_time=np.unique(place[in_time] * data.workers + table["worker"][in_time]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Cells (rounds, workers), each a round and a worker, or several where there are too many.

    ``slowest_s`` is the longest from task to answer in a cell, NaN without one; ``straggling`` the
    share of it that straggled, 0 where no round waited for anybody. The cells are of equal size and
    reach from round ``first`` to round ``last``, and over all ``workers``.
    """

    first: int
    last: int
    workers: int
    slowest_s: FloatArray
    straggling: FloatArray


def grid_of(data: Source, *, mu: float) -> Grid:
    """Return the cells of a profile or of a run; raises like `answers_of`."""
    answers = answers_of(data, mu=mu)
    first, last, n = int(answers.rounds[0]), int(answers.rounds[-1]), answers.n
    rows, columns = min(last - first + 1, _MOST_CELLS), min(n, _MOST_CELLS)
    row_of = (answers.rounds - first) * rows // (last - first + 1)
    column_of = np.arange(n) * columns // n
    slowest = np.full((rows, columns), -np.inf)
    np.maximum.at(slowest, (row_of[answers.place], column_of[answers.worker]), answers.seconds)
    came = np.zeros((rows, columns))
    places, workers = np.divmod(answers.in_time, n)
    np.add.at(came, (row_of[places], column_of[workers]), 1)
    judged = np.bincount(row_of[answers.judged], minlength=rows)
    total = np.outer(judged, np.bincount(column_of))
    return Grid(
        first=first,
        last=last,
        workers=n,
        slowest_s=np.where(np.isfinite(slowest), slowest, np.nan),
        straggling=1 - np.divide(came, total, out=np.ones_like(came), where=total > 0),
    )

"""What pictures are made of: profiles and runs, one or several, and the matrix of their seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, IntArray
from seqgc.profiles import DelayProfile
from seqgc.runs import RecordedRun
from seqgc.search import Replay
from seqgc.stragglers import straggler_pattern

__all__ = ["Grid", "Run", "Runs", "grid_of", "named"]

_MOST_CELLS: Final = 1024  # a picture has no more pixels

Run: TypeAlias = RecordedRun | Replay
"""What has rounds and jobs: a recorded run, or one replayed on recorded delays."""

Runs: TypeAlias = Run | Sequence[Run] | Mapping[str, Run]
"""One run, or several, by name or in order; without a name a run has that of its scheme."""


def named(runs: Runs) -> dict[str, Run]:
    """Return runs by name, no two of which are the same.

    Raises
    ------
    ParameterError
        If there is none.
    """
    if isinstance(runs, Mapping):
        found = dict(runs)
    else:
        found = {}
        for run in [runs] if isinstance(runs, RecordedRun | Replay) else runs:
            name = base = getattr(run, "scheme", "") or "run"
            count = 1
            while name in found:
                count += 1
                name = f"{base} ({count})"
            found[name] = run
    if not found:
        raise ParameterError("runs", "must be one run at least", runs)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """Cells (rounds, workers), each a round and a worker, or several where there are too many.

    ``slowest_s`` is the longest from task to answer in a cell, NaN without one; ``straggling`` the
    share of it that straggled, NaN where there was no round. The cells are of equal size and reach
    from round ``first`` to round ``last``, and over all ``workers``.
    """

    first: int
    last: int
    workers: int
    slowest_s: FloatArray
    straggling: FloatArray


def grid_of(data: DelayProfile | RecordedRun, *, mu: float) -> Grid:
    """Return the seconds of a profile or of a run, and who straggled.

    In a profile stragglers are those that tolerance ``mu`` calls so; in a run, those that its
    rounds were closed without.

    Raises
    ------
    ParameterError
        If the run has closed no round.
    """
    if isinstance(data, DelayProfile):
        numbers, n = np.arange(data.num_rounds), data.num_workers
        places, workers = np.divmod(np.flatnonzero(data.answered), n)
        seconds = data.times[data.answered]
        present = ~straggler_pattern(data, mu=mu).ravel()
        in_time = np.flatnonzero(present)
    else:
        places, workers, seconds, in_time = _of_run(data)
        numbers, n = data.rounds()["round"], data.workers
    if not len(numbers):
        raise ParameterError("data", "must have a closed round", 0)
    first, last = int(numbers[0]), int(numbers[-1])
    rows, columns = min(last - first + 1, _MOST_CELLS), min(n, _MOST_CELLS)
    row_of = (numbers - first) * rows // (last - first + 1)
    column_of = np.arange(n) * columns // n
    slowest = np.full((rows, columns), -np.inf)
    np.maximum.at(slowest, (row_of[places], column_of[workers]), seconds)
    answered = np.zeros((rows, columns))
    np.add.at(answered, (row_of[in_time // n], column_of[in_time % n]), 1)
    total = np.outer(np.bincount(row_of, minlength=rows), np.bincount(column_of)).astype(float)
    total[total == 0] = np.nan
    return Grid(
        first=first,
        last=last,
        workers=n,
        slowest_s=np.where(np.isfinite(slowest), slowest, np.nan),
        straggling=1 - answered / total,
    )


def _of_run(run: RecordedRun) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """Return answers' rounds (places among the closed ones), workers and seconds; who was in time.

    These are numbers ``place * n + worker``, each once.
    """
    numbers, answers = run.rounds()["round"], run.answers()
    if not len(numbers):
        empty = np.zeros(0, dtype=np.intp)
        return empty, empty, np.zeros(0), empty
    of, workers = answers["round"], answers["worker"]
    places = np.searchsorted(numbers, of).clip(max=len(numbers) - 1)
    known = numbers[places] == of
    seconds = answers["took_s"]
    came = known & np.isin(answers["outcome"], ("used", "dropped")) & ~np.isnan(seconds)
    in_time = known & (answers["outcome"] == "used") & ~answers["late"]
    pairs = np.unique(places[in_time] * run.workers + workers[in_time])
    return places[came], workers[came], seconds[came], pairs

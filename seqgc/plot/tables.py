"""The tables behind the pictures: a function of a picture's name returns what it shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seqgc.plot._sources import Run, Runs, grid_of, named
from seqgc.ports import Table
from seqgc.profiles import DelayProfile
from seqgc.runs import RecordedRun

__all__ = ["heat_map", "timeline"]


def heat_map(data: DelayProfile | RecordedRun, *, mu: float = 1.0) -> Table:
    """Return a row for each round, or for as many in succession as a picture has room for.

    ``round`` (the first of them), ``slowest_s``, NaN without an answer, and ``straggling``, the
    share of all workers. Raises `ParameterError` if a run has closed no round.

    Examples
    --------
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


def timeline(runs: Runs) -> Table:
    """Return a row for each closed round of each run: when it began and closed.

    ``run``; ``round``; ``began_s``; ``first_answer_s`` and ``closed_s``, when it was answered first
    and closed; ``reason``, why then (see `seqgc.ports.RoundRecord`); ``stragglers``.

    Examples
    --------
    >>> from seqgc import Rehearsal, Setting, parse_scheme, replay
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> setting = Setting(scheme=parse_scheme("gc:s=1", n=3))
    >>> table = timeline(replay(setting, Rehearsal(profile=profile, alpha=0.0)))
    >>> table["closed_s"].tolist(), table["reason"].tolist()
    ([2.0, 3.5], ['wait-out', 'wait-out'])
    """
    return _joined(runs, _rounds)


def _rounds(run: Run) -> Table:
    rounds = run.rounds()
    began_s = rounds["began_s"]
    closed_s = np.maximum(rounds["closed_s"], began_s)
    return {
        "round": rounds["round"],
        "began_s": began_s,
        "first_answer_s": np.minimum(began_s + rounds["kappa_s"], closed_s),
        "closed_s": closed_s,
        "reason": rounds["reason"],
        "stragglers": rounds["stragglers"],
    }


def _joined(runs: Runs, table_of: Callable[[Run], Table]) -> Table:
    """Return the tables of several runs, one below the other, with whose row it is in ``run``."""
    parts = {name: table_of(run) for name, run in named(runs).items()}
    lengths = [len(next(iter(part.values()))) for part in parts.values()]
    whose = np.repeat(np.array(list(parts), dtype=np.object_), lengths)
    first = next(iter(parts.values()))
    columns = {name: np.concatenate([part[name] for part in parts.values()]) for name in first}
    return {"run": whose, **columns}

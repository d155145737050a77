"""The import of a trace as a delay profile, with a list of the decisions that it took."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from seqgc._tabular import counted
from seqgc.errors import (
    ParameterError,
    ProfileError,
    ProfileWarning,
    did_you_mean,
    one_line,
    require_number,
)
from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles._delay_profile import DelayProfile, ProfileMeta, StatusArray
from seqgc.profiles._files import MOST_TIMES, read_profile
from seqgc.profiles._lint import MOST_USUAL_S
from seqgc.profiles.traces._cells import (
    PER_SECOND,
    IndexArray,
    Moments,
    are_times_in_text,
    cell_text,
    column_of,
    epoch_unit,
    listed_columns,
    moments_of_text,
    named_unit,
    numbered,
    numbers_of,
)
from seqgc.profiles.traces._formats import Recognized, TraceColumns, recognized_format
from seqgc.profiles.traces._gaps import least_gap
from seqgc.profiles.traces._rows import TraceRows, lists_answers, read_rows, rows_of

__all__ = ["ImportedTrace", "import_trace", "read_or_import"]

_ATTEMPTS: Final = ("span", "sum", "first", "last")
_MISSING_RULES: Final = ("fail", "drop")
_LEAST_SHARE: Final = 0.5  # of the workers, in a round that is kept
# A series of 6 independent times rises throughout in 1 of 720 cases.
_LEAST_RISING_ROUNDS: Final = 6
_RISING_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportedTrace:
    """A delay profile made of a trace, with a list of the decisions that were taken.

    ``format`` is the name of the recognised format, or "columns" if the columns were given.
    ``workers`` and ``rounds`` have the trace's names of the workers and rounds of the profile. If
    gaps separate the rounds, they are numbered from 0. ``notes`` has the decisions, one sentence
    each; ``warnings`` are the notes that name a likely mistake. ``columns`` says which column of
    the trace was used for what.
    """

    profile: DelayProfile
    format: str
    columns: dict[str, str]
    workers: tuple[str, ...]
    rounds: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def import_trace(
    source: str | Path | object,
    *,
    worker: str | None = None,
    round: str | None = None,
    submit: str | None = None,
    start: str | None = None,
    end: str | None = None,
    duration: str | None = None,
    unit: str | None = None,
    failed: Sequence[str] = (),
    where: Sequence[str] = (),
    attempts: str | None = None,
    missing: str = "fail",
    base_load: float | None = None,
) -> ImportedTrace:
    """Make a delay profile of a trace: rows of tasks instead of a matrix of seconds.

    ``source`` is a path of a CSV, JSON, JSON lines or parquet file or of log lines, or the rows
    themselves: a mapping of columns, a data frame, or a sequence of mappings. The formats in
    `FORMATS` are recognised by their content, and need no other argument. For other formats, name
    the columns; columns that are named here replace the ones of a recognised format.

    ``worker`` names the column of the worker. Several columns, separated by commas, name the worker
    together. If it is ``"order"``, the n-th row of a round is worker n. ``round`` names the column
    of the round. If it is ``"gap"``, a round begins wherever there is a gap between the starts of
    tasks; ``"gap:SECONDS"`` sets the least gap. The time of a task is ``duration``, or ``end``
    minus ``start``. If ``submit`` names the time of the request, on the master's clock, it is
    ``end`` minus ``submit``. ``unit`` is s, ms, us or
    ns, for all numbers. Texts such as ``2026-01-31T12:00:00Z`` need no unit.

    ``failed`` has texts ``COLUMN=VALUE``: rows with one of these values are failed tasks, and so
    are rows without a time. ``where`` has texts ``COLUMN=VALUE``: only rows with all of these
    values are used. ``attempts`` decides about workers that have several rows in a round:
    ``"span"`` is the time from the first start to the last end, ``"sum"`` adds the times, and
    ``"first"`` and ``"last"`` use one row. ``missing`` decides about workers that have no row in a
    round: ``"fail"`` counts this as a failure, and ``"drop"`` leaves the round out. ``base_load``
    is the load of each worker, as a fraction of a job; the default is 1/workers.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the rows do not show what a missing argument must be.
    ProfileError
        If the rows cannot be read, or no profile can be made of them.

    Examples
    --------
    >>> rows = {"node": ["a", "b"] * 2, "step": [0, 0, 1, 1], "took_ms": [900, 800, 700, 2500]}
    >>> trace = import_trace(rows, worker="node", round="step", duration="took_ms")
    >>> trace.profile.times.tolist(), trace.workers
    ([[0.9, 0.8], [0.7, 2.5]], ('a', 'b'))
    >>> trace.notes[0]
    'times are in ms, because of the name of the column took_ms'
    """
    _check_choice("unit", unit, tuple(PER_SECOND))
    _check_choice("attempts", attempts, _ATTEMPTS)
    _check_choice("missing", missing, _MISSING_RULES)
    if base_load is not None:
        require_number("base_load", base_load, above=0)
    choices = _Choices(
        worker=worker,
        round=round,
        submit=submit,
        start=start,
        end=end,
        duration=duration,
        unit=unit,
        failed=_conditions("failed", failed),
        where=_conditions("where", where),
        attempts=attempts,
        drops=missing == "drop",
        base_load=base_load,
    )
    if not isinstance(source, str | Path):
        return _Importer(rows_of(source), choices).run()
    try:
        return _Importer(read_rows(source), choices).run()
    except ProfileError as error:
        raise ProfileError(f"{source}: {error}") from None
    except OSError as error:
        raise ProfileError(f"{source}: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """The arguments of `import_trace`, checked as far as is possible without the rows."""

    worker: str | None
    round: str | None
    submit: str | None
    start: str | None
    end: str | None
    duration: str | None
    unit: str | None
    failed: tuple[tuple[str, str], ...]
    where: tuple[tuple[str, str], ...]
    attempts: str | None
    drops: bool
    base_load: float | None

    def applied_to(self, columns: TraceColumns) -> TraceColumns:
        """Return the columns, replaced by the columns that the caller names."""
        if self.worker is not None:
            names = () if self.worker == "order" else tuple(_words(self.worker))
            columns = replace(columns, worker=names, succeeding=False)
        if self.round is not None:
            gap, _, least = self.round.partition(":")
            if gap == "gap":
                gap_s = _gap("round", self.round, least) if least else None
                columns = replace(columns, round=(), gap_s=gap_s)
            else:
                columns = replace(columns, round=tuple(_words(self.round)))
        if self.duration is not None:
            columns = replace(columns, duration=self.duration, submit=None, end=None)
        elif self.end is not None:
            columns = replace(columns, duration=None)
        given = {name: getattr(self, name) for name in ("submit", "start", "end", "unit")}
        given |= {"failed": self.failed or None, "attempts": self.attempts}
        return replace(columns, **{name: value for name, value in given.items() if value})


def _gap(argument: str, value: str, seconds: str) -> float:
    try:
        return require_number(argument, float(seconds), above=0)
    except ValueError:
        raise ParameterError(argument, "must be gap:SECONDS, seconds > 0", value) from None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _conditions(argument: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return ``COLUMN=VALUE`` texts as pairs."""
    pairs = []
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            raise ParameterError(argument, "must be COLUMN=VALUE", text)
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


def read_or_import(path: str | Path) -> DelayProfile:
    """Read a delay profile, or import a trace of a known format (`import_trace`).

    A file that ends in `.npz` is a profile. A file that ends in `.csv` is a trace if its first line
    names a column of workers; otherwise it is a profile. All other files are traces.

    Raises
    ------
    ParameterError
        If the file is absent and does not end in `.npz` or `.csv`.
    ProfileError
        If the file is neither a profile (`read_profile`) nor a trace of a known format.

    Warns
    -----
    ProfileWarning
        If a trace was imported. The warning says which load was assumed, what may be wrong
        (`ImportedTrace.warnings`), and which command lists every decision.
    """
    path = Path(path)
    if path.suffix == ".npz" or not os.path.isfile(path):  # noqa: PTH113 (raises at some names)
        return read_profile(path)
    if path.suffix == ".csv" and not lists_answers(path):
        return read_profile(path)
    try:
        trace = import_trace(path)
    except (ParameterError, ProfileError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ProfileError(
            f"{path}: not a delay profile, and {reason} (options of `seqgc profile import`)"
        ) from None
    load = f"base load {trace.profile.meta.base_load:.4g}"
    decisions = f"`seqgc profile import {path} --dry-run` lists every decision"
    parts = (
        f"imported as {trace.format}",
        trace.profile.dimensions,
        load,
        *trace.warnings,
        decisions,
    )
    warnings.warn(f"{path}: {'; '.join(parts)}", ProfileWarning, stacklevel=2)
    return trace.profile


def _check_choice(argument: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        rule = f"must be {', '.join(known[:-1])} or {known[-1]}"
        raise ParameterError(argument, rule, value, did_you_mean(value, known))


_STATES: Final = (
    "failed",
    "status",
    "state",
    "outcome",
    "result",
    "success",
    "ok",
    "error",
    "exception",
)
"""Columns that usually say whether a task failed, in lower case."""


def _values(cells: Sequence[object]) -> str:
    """Return the first different values of a column, for a message."""
    values = sorted({cell_text(each) for each in cells} - {""})
    return one_line(", ".join(values[:6]) + (", …" if len(values) > 6 else ""), limit=100)


class _Importer:
    """The import of one trace, which collects the decisions in ``notes``."""

    def __init__(self, rows: TraceRows, choices: _Choices) -> None:
        self.choices, self.notes, self.warnings = choices, list[str](), list[str]()
        rows = self._only(rows, choices.where)
        found = recognized_format(rows)
        if found is None:
            named = choices.worker or choices.duration or choices.start or choices.submit
            if not named:
                given = one_line(listed_columns(rows), limit=80)
                raise ProfileError(
                    f"not a trace of a known format (columns: {given}): name the columns with "
                    "--worker, --round, and --duration or --start and --end"
                )
            found = Recognized(name="columns", rows=rows, columns=TraceColumns())
        self.found, self.rows = found, found.rows
        self.columns = choices.applied_to(found.columns)
        self.notes += found.notes
        if not self.rows.count:
            raise ProfileError("the trace has no rows of tasks")
        self._require_columns()

    @staticmethod
    def _only(rows: TraceRows, where: Sequence[tuple[str, str]]) -> TraceRows:
        for name, value in where:
            cells = column_of(rows, name)
            keep = [i for i, each in enumerate(cells) if cell_text(each).lower() == value.lower()]
            if not keep:
                raise ProfileError(f"no row has {name}={value}")
            rows = rows.take(keep)
        return rows

    def _require_columns(self) -> None:
        columns, given = self.columns, listed_columns(self.rows)
        if not columns.worker and self.choices.worker is None and self.found.name == "columns":
            rule = "must name the column of the worker, or be order (the n-th row of a round)"
            raise ParameterError("worker", rule, None, f"the columns are {given}")
        if not columns.round and self.choices.round is None and self.found.name == "columns":
            rule = "must name the column of the round, or be gap (gaps between starts)"
            raise ParameterError("round", rule, None, f"the columns are {given}")
        if columns.duration is None and (
            columns.end is None or not (columns.start or columns.submit)
        ):
            rule = "must name the column of the seconds, unless start and end are given"
            raise ParameterError("duration", rule, None, f"the columns are {given}")
        times = (columns.submit, columns.start, columns.end, columns.duration)
        for name in (*columns.worker, *columns.round, *filter(None, times)):
            column_of(self.rows, name)  # raises if the name is misspelt

    def run(self) -> ImportedTrace:
        """Return the profile and the decisions."""
        seconds, starts = self._seconds()
        failed = self._failed() | np.isnan(seconds)
        rounds, round_names, workers, worker_names = self._places(seconds, starts)
        cells = _cells(rounds, workers)
        times, status, seen = self._matrix(
            cells, (len(round_names), len(worker_names)), seconds, starts, failed
        )
        kept = self._kept(seen, round_names) & self._answered(status, seen, round_names)
        times, status, seen = times[kept], status[kept], seen[kept]
        used = seen.any(axis=0)
        times, status = times[:, used], status[:, used]
        self._say_missing(seen[:, used], status)
        profile = DelayProfile(
            times=_filled(times, status),
            status=status,
            meta=self._meta(int(used.sum())),
        )
        self._say_usual(profile)
        self._say_rising(profile)
        return ImportedTrace(
            profile=profile,
            format=self.found.name,
            columns=_described(self.columns),
            workers=tuple(
                name
                for name, is_used in zip(worker_names, np.atleast_1d(used), strict=True)
                if is_used
            ),
            rounds=tuple(round_names[i] for i in np.flatnonzero(kept)),
            notes=tuple(self.notes),
            warnings=tuple(self.warnings),
        )

    # ---- times ----------------------------------------------------------------------------------

    def _seconds(self) -> tuple[FloatArray, FloatArray]:
        """Return the times (rows,) and the starts of the rows, in seconds, or NaN."""
        columns = self.columns
        start, end, submit = (
            None if name is None else self._moments(name)
            for name in (columns.start, columns.end, columns.submit)
        )
        if columns.duration is not None:
            seconds = self._durations(columns.duration)
            starts: FloatArray = np.full(self.rows.count, np.nan)
            if start is not None:
                starts = start.seconds()
            elif end is not None:
                starts = end.seconds() - seconds
            self._check_positive(seconds)
            return seconds, starts
        assert end is not None
        begin = start if submit is None else submit
        assert begin is not None
        if submit is not None and start is not None:
            early = start.since(submit) < 0
            if early.any():
                offset_s = -np.nanmin(start.since(submit))
                self.notes.append(
                    f"{early.sum()} of {self.rows.count} rows start before their request, by up to "
                    f"{offset_s:.3g} s: the clocks differ, so times are from {columns.start} to "
                    f"{columns.end}, without the way to the worker"
                )
                begin = start
        seconds = end.since(begin)
        self._check_positive(seconds)
        return seconds, begin.seconds()

    def _check_positive(self, seconds: FloatArray) -> None:
        wrong = seconds <= 0
        if wrong.any():
            row = int(wrong.argmax())
            rule = "a task must take more than 0 s"
            raise ProfileError(f"row {row} (from 0): {rule}; got {seconds[row]:g} s")

    def _moments(self, name: str) -> Moments:
        values = column_of(self.rows, name)
        if are_times_in_text(values):
            return moments_of_text(name, values)
        numbers, known = numbers_of(name, values)
        unit = self.columns.unit or named_unit(name)
        if unit is None:
            usual = float(np.median(numbers[known])) if known.any() else 0.0
            unit = epoch_unit(usual)
            if unit is None:
                rule = f"must be given, because nothing says in which unit {name} is"
                raise ParameterError("unit", rule, None, "s, ms, us or ns")
            self._note(f"{name} is in {unit}, because {usual:.4g} is then a time of this century")
        elif self.columns.unit is None:
            self._note(f"times are in {unit}, because of the name of the column {name}")
        return Moments(raw=numbers, known=known, per_second=PER_SECOND[unit])

    def _durations(self, name: str) -> FloatArray:
        numbers, known = numbers_of(name, column_of(self.rows, name))
        unit = self.columns.unit or named_unit(name)
        if unit is None:
            rule = f"must be given, because nothing says in which unit {name} is"
            raise ParameterError("unit", rule, None, "s, ms, us or ns")
        if self.columns.unit is None:
            self._note(f"times are in {unit}, because of the name of the column {name}")
        return np.where(known, numbers / PER_SECOND[unit], np.nan)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _warn(self, text: str) -> None:
        """Add a note that names a likely mistake."""
        self.notes.append(text)
        self.warnings.append(text)

    def _failed(self) -> BoolArray:
        failed = np.zeros(self.rows.count, dtype=np.bool_)
        for name, value in self.columns.failed:
            wanted = value.lower()
            cells = column_of(self.rows, name)
            matches = np.array([cell_text(each).lower() == wanted for each in cells])
            if value and not matches.any() and (name, value) in self.choices.failed:
                self._warn(f"no row has {name}={value}: its values are {_values(cells)}")
            failed |= matches
        if not self.columns.failed:
            self._say_states()
        return failed

    def _say_states(self) -> None:
        """Note that a column may say which rows failed, although no option names it."""
        for name, cells in self.rows.columns.items():
            if name.rpartition(".")[2].lower() in _STATES and len(set(map(cell_text, cells))) > 1:
                self._warn(
                    f"the column {name} ({_values(cells)}) is not used: every row with a time "
                    f"counts as an answer (--failed {name}=VALUE names the failures)"
                )

    # ---- rounds and workers ---------------------------------------------------------------------

    def _places(
        self, seconds: FloatArray, starts: FloatArray
    ) -> tuple[IndexArray, list[str], IndexArray, list[str]]:
        """Return the round and worker of each row, with the names of all rounds and workers.

        All attempts of one task have the round and the worker of the first attempt.
        """
        first = self._first_attempts(starts)
        workers, names = np.zeros(self.rows.count, dtype=np.intp), ["0"]
        if self.columns.worker:
            workers, names = numbered([column_of(self.rows, name) for name in self.columns.worker])
        if self.columns.round:
            rounds, rounds_named = numbered(
                [column_of(self.rows, name) for name in self.columns.round]
            )
        else:
            rounds, rounds_named = self._separated(
                seconds, starts, leaders=np.unique(first), workers=workers
            )
        rounds = rounds[first]
        if not self.columns.worker:
            return rounds, rounds_named, *self._in_order(rounds, starts)
        workers = workers[first]
        if self.columns.succeeding:
            workers, names = self._succeeded(workers, names, rounds)
        return rounds, rounds_named, workers, names

    def _first_attempts(self, starts: FloatArray) -> IndexArray:
        """Return, for each row, the number of the row with the first attempt at the same task."""
        own = np.arange(self.rows.count)
        if self.columns.task is None or np.isnan(starts).any():
            return own
        tasks, _ = numbered([column_of(self.rows, self.columns.task)])
        first: dict[int, int] = {}
        for row in np.argsort(starts, kind="stable").tolist():
            first.setdefault(int(tasks[row]), row)
        return np.array([first[task] for task in tasks.tolist()], dtype=np.intp)

    def _separated(
        self, seconds: FloatArray, starts: FloatArray, *, leaders: IndexArray, workers: IndexArray
    ) -> tuple[IndexArray, list[str]]:
        """Separate rounds by gaps between the starts of the rows ``leaders``."""
        if np.isnan(starts).any():
            rule = "must name a column: rounds are found by gaps only if every row has a start"
            raise ParameterError(
                "round", rule, None, f"the columns are {listed_columns(self.rows)}"
            )
        order = leaders[np.argsort(starts[leaders], kind="stable")]
        gaps = np.diff(starts[order])
        known = workers[order] if self.columns.worker else None
        least = self.columns.gap_s or least_gap(starts[order], seconds[order], known)
        rounds = np.zeros(len(starts), dtype=np.intp)
        rounds[order[1:]] = np.cumsum(gaps >= least)
        count = int(rounds.max()) + 1
        if count == 1:
            worker = "" if self.columns.worker else ", and --worker COLUMN"
            self._warn(
                f"all {len(leaders)} tasks are one round (no gap between starts): if there were "
                f"several, give --round COLUMN or gap:SECONDS{worker}"
            )
        else:
            within = gaps[gaps < least]
            longest = float(within.max()) if within.size else 0.0
            self.notes.append(
                f"{count} rounds, separated by gaps between starts of at least "
                f"{gaps[gaps >= least].min():.3g} s (within a round: at most {longest:.3g} s)"
            )
        return rounds, [str(i) for i in range(count)]

    def _in_order(self, rounds: IndexArray, starts: FloatArray) -> tuple[IndexArray, list[str]]:
        """Return worker n for the n-th row of each round."""
        workers = np.zeros(len(rounds), dtype=np.intp)
        begun = np.where(np.isnan(starts), np.inf, starts)
        taken: dict[int, int] = {}
        for row in np.lexsort((np.arange(len(rounds)), begun, rounds)).tolist():
            workers[row] = taken.get(int(rounds[row]), 0)
            taken[int(rounds[row])] = int(workers[row]) + 1
        return workers, [str(i) for i in range(int(workers.max()) + 1)]

    def _succeeded(
        self, workers: IndexArray, names: list[str], rounds: IndexArray
    ) -> tuple[IndexArray, list[str]]:
        """Give each new worker the place of a worker that occurs no more, if there is one."""
        first = np.full(len(names), np.iinfo(np.intp).max)
        last = np.full(len(names), -1)
        np.minimum.at(first, workers, rounds)
        np.maximum.at(last, workers, rounds)
        places: list[list[int]] = []  # the workers of each place, one after the other
        place_of = np.zeros(len(names), dtype=np.intp)
        for worker in np.argsort(first, kind="stable").tolist():
            free = [i for i, held in enumerate(places) if last[held[-1]] < first[worker]]
            if free:
                places[free[0]].append(worker)
            else:
                places.append([worker])
            place_of[worker] = free[0] if free else len(places) - 1
        if len(places) == len(names):
            return workers, names
        self.notes.append(
            f"{len(names)} workers took {len(places)} places: a new worker takes the place of a "
            "worker that occurs no more"
        )
        return place_of[workers], ["+".join(names[i] for i in held) for held in places]

    # ---- the matrix -----------------------------------------------------------------------------

    def _matrix(
        self,
        cells: dict[tuple[int, int], list[int]],
        shape: tuple[int, int],
        seconds: FloatArray,
        starts: FloatArray,
        failed: BoolArray,
    ) -> tuple[FloatArray, StatusArray, BoolArray]:
        """Return the seconds (rounds, workers), the status, and a mask of cells that have rows."""
        if shape[0] * shape[1] > MOST_TIMES:
            raise ProfileError(
                f"a profile has at most {MOST_TIMES} times; got {shape} (rounds, workers)"
            )
        several = sum(len(each) > 1 for each in cells.values())
        combine = self._combination(several, len(cells), starts)
        times = np.full(shape, np.nan)
        status = np.ones(shape, dtype=np.int8)
        for place, each in cells.items():
            ordered = sorted(each, key=lambda row: (np.nan_to_num(starts[row]), row))
            times[place], failure = combine(ordered, seconds, starts, failed)
            status[place] = failure
        return times, status, ~np.isnan(times) | _has_rows(cells, shape)

    def _combination(self, several: int, cells: int, starts: FloatArray) -> Callable[..., Any]:
        chosen = self.columns.attempts
        if several and chosen is None:
            rule = (
                f"must be given, because {several} of {cells} answers have several rows (a worker "
            )
            rule += "in a round)"
            raise ParameterError("attempts", rule, None, "span, sum, first or last")
        if chosen == "span" and np.isnan(starts).all():
            chosen = "sum"
        words = {
            "span": "the time from their first start to their last end counts",
            "sum": "their times are added",
            "first": "the first counts",
            "last": "the last counts",
        }
        if several and chosen is not None:
            text = f"{several} of {cells} answers have several rows (retries, or several tasks): "
            if self.found.name != "StragglerAnalysis":  # where each answer has several
                self.notes.append(text + words[chosen])
        return _COMBINATIONS[chosen or "last"]

    def _kept(self, seen: BoolArray, names: list[str]) -> BoolArray:
        """Return a mask of the rounds (rounds,) that the profile keeps."""
        share = seen.mean(axis=1)
        kept = share == 1 if self.choices.drops else share >= _LEAST_SHARE
        if not kept.any():
            rule = "no round has a row of " + (
                "every worker" if self.choices.drops else "half of the workers"
            )
            raise ProfileError(f"{rule}: check the columns of worker and round")
        if not kept.all():
            dropped = [names[i] for i in np.flatnonzero(~kept)[:5]]
            least = "a row of every worker" if self.choices.drops else "rows of half of the workers"
            more = ", …" if (~kept).sum() > 5 else ""
            self.notes.append(
                f"{(~kept).sum()} of {len(kept)} rounds left out, which lack {least}: "
                f"{', '.join(dropped)}{more}"
            )
        return cast("BoolArray", kept)

    def _answered(self, status: StatusArray, seen: BoolArray, names: list[str]) -> BoolArray:
        """Return a mask of the rounds (rounds,) in which some worker answered."""
        answered: BoolArray = ~(status != 0).all(axis=1)
        if not answered.any():
            raise ProfileError("no worker answered in any round, which leaves no delays to use")
        silent = ~answered & (seen.mean(axis=1) >= _LEAST_SHARE)
        if silent.any():
            rounds = ", ".join(names[i] for i in np.flatnonzero(silent)[:5])
            left_out = f"{silent.sum()} of {len(silent)} rounds left out"
            self.notes.append(f"{left_out}, in which nobody answered: {rounds}")
        return answered

    def _say_missing(self, seen: BoolArray, status: StatusArray) -> None:
        absent, failed = int((~seen).sum()), int(((status != 0) & seen).sum())
        if absent:
            rounds = int((~seen).any(axis=1).sum())
            self.notes.append(
                f"{absent} of {seen.size} answers are missing, in {counted(rounds, 'round')}: they "
                "count as failures (--missing drop leaves these rounds out)"
            )
        if failed:
            self.notes.append(f"{failed} of {seen.size} calls failed")

    def _meta(self, workers: int) -> ProfileMeta:
        load = self.choices.base_load
        if load is None:
            load = 1 / workers
            self.notes.append(
                f"the base load is taken to be 1/{workers}: each worker computed an equal part of "
                "a job (--base-load changes this)"
            )
        return ProfileMeta(base_load=load, provider=self.found.provider, source=self.found.name)

    def _say_usual(self, profile: DelayProfile) -> None:
        usual_s = float(np.median(profile.times[profile.answered]))
        if usual_s > MOST_USUAL_S:
            self._warn(f"the median answer took {usual_s:.4g} s: check the unit (--unit)")

    def _say_rising(self, profile: DelayProfile) -> None:
        """Warn if almost every time of a worker is longer than its time in the round before."""
        if self.columns.duration is None or profile.num_rounds < _LEAST_RISING_ROUNDS:
            return
        answered = profile.answered[1:] & profile.answered[:-1]
        rises = (np.diff(profile.times, axis=0) > 0)[answered]
        first_s, last_s = np.median(profile.times[0]), np.median(profile.times[-1])
        if rises.size and rises.mean() >= _RISING_SHARE and last_s > 2 * first_s:
            self._warn(
                f"the times rise from round to round, from {first_s:.4g} to {last_s:.4g} s: if "
                f"{self.columns.duration} is an end time, give --start and --end, not --duration"
            )


def _span(
    rows: list[int], seconds: FloatArray, starts: FloatArray, failed: Any
) -> tuple[float, bool]:
    if len(rows) == 1:
        return float(seconds[rows[0]]), bool(failed[rows[0]])
    end = (
        float(np.nanmax(starts[rows] + seconds[rows]))
        if not np.isnan(seconds[rows]).all()
        else np.nan
    )
    return end - float(starts[rows[0]]), bool(failed[rows[-1]])


def _sum(
    rows: list[int], seconds: FloatArray, _starts: FloatArray, failed: Any
) -> tuple[float, bool]:
    return float(np.nansum(seconds[rows])) or np.nan, bool(failed[rows[-1]])


def _first(
    rows: list[int], seconds: FloatArray, _starts: FloatArray, failed: Any
) -> tuple[float, bool]:
    return float(seconds[rows[0]]), bool(failed[rows[0]])


def _last(
    rows: list[int], seconds: FloatArray, _starts: FloatArray, failed: Any
) -> tuple[float, bool]:
    return float(seconds[rows[-1]]), bool(failed[rows[-1]])


_COMBINATIONS: Final = {"span": _span, "sum": _sum, "first": _first, "last": _last}


def _cells(rounds: IndexArray, workers: IndexArray) -> dict[tuple[int, int], list[int]]:
    cells: dict[tuple[int, int], list[int]] = {}
    for row, place in enumerate(zip(rounds.tolist(), workers.tolist(), strict=True)):
        cells.setdefault(place, []).append(row)
    return cells


def _has_rows(cells: dict[tuple[int, int], list[int]], shape: tuple[int, int]) -> BoolArray:
    mask = np.zeros(shape, dtype=np.bool_)
    for place in cells:
        mask[place] = True
    return mask


def _filled(times: FloatArray, status: StatusArray) -> FloatArray:
    """Return the seconds; an unknown time is the slowest answer of its round, or of all rounds."""
    answers = np.where(status == 0, times, -np.inf)
    slowest = answers.max(axis=1, keepdims=True)
    slowest[np.isneginf(slowest)] = answers.max()
    return np.where(np.isnan(times), slowest, times)


def _described(columns: TraceColumns) -> dict[str, str]:
    """Return the column that is used for each purpose."""
    gap = "gap" if columns.gap_s is None else f"gap:{columns.gap_s:g}"
    told = {
        "worker": ",".join(columns.worker) or "order",
        "round": ",".join(columns.round) or gap,
        "submit": columns.submit,
        "start": columns.start,
        "end": columns.end,
        "duration": columns.duration,
        "unit": columns.unit,
        "failed": " ".join(f"{name}={value}" for name, value in columns.failed),
        "attempts": columns.attempts,
    }
    return {name: text for name, text in told.items() if text}

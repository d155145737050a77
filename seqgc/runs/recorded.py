"""A recorded run, read from its folder as tables."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from seqgc._bounded import open_bounded
from seqgc.errors import one_line
from seqgc.ports import FloatArray, IntArray, Table
from seqgc.runs._log import END, LOG, Event, Gaps, RunHeader, jobs_of, read_run_log

__all__ = [
    "Columns",
    "LogTables",
    "RecordedRun",
    "frozen_table",
    "read_losses",
    "read_run",
    "texts",
]


class Columns:
    """The columns of one table, ``most`` rows at most; a text is its place among known ones."""

    def __init__(self, kinds: Mapping[str, type[int] | type[float]], *, most: int) -> None:
        self._columns: dict[str, array[Any]] = {
            name: array("q" if kind is int else "d") for name, kind in kinds.items()
        }
        self._arrays = list(self._columns.values())
        self._most = most
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._arrays[0])

    def append(self, *row: float) -> int | None:
        """Add a row, and return its place; None if there are too many, and it is left out."""
        place = len(self._arrays[0])
        if place >= self._most:
            self.left_out += 1
            return None
        for column, value in zip(self._arrays, row, strict=True):
            column.append(value)
        return place

    def set(self, place: int, name: str, value: float) -> None:
        """Change one value of a row."""
        self._columns[name][place] = value

    def take(self, order: IntArray | None = None) -> Table:
        """Return the columns as arrays of int64 and float64; rows in this ``order``, if given."""
        arrays = {
            name: np.array(column, dtype=np.int64 if column.typecode == "q" else np.float64)
            for name, column in self._columns.items()
        }
        return arrays if order is None else {name: each[order] for name, each in arrays.items()}


def texts(known: Sequence[str], places: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Return texts by their places among the known ones; equal ones are one object."""
    words: npt.NDArray[np.object_] = np.array([*known, ""], dtype=np.object_)[places]
    return words


def frozen_table(table: Table) -> Table:
    """Return the table, with its arrays made read-only."""
    for column in table.values():
        column.flags.writeable = False
    return table


_FILE: Final = "metrics.csv"
_MOST_ROWS: Final = 2_000_000
_MOST_MODELS: Final = 10_000
_MOST_BYTES: Final = 2**40
_MOST_LINE_BYTES: Final = 2**12
_LONGEST_NAME: Final = 100


def read_losses(run: Path, jobs: Table, *, gaps: Gaps) -> Table:
    """Return the losses of a run, by model and step: a later row of a step replaces an earlier one.

    When a step was taken is when its job was decoded, NaN if the log does not say.
    """
    names: dict[str, int] = {}
    rows = Columns({"model": int, "job": int, "step": int, "loss": float}, most=_MOST_ROWS)
    wrong = 0
    try:
        for cells in _rows(run, gaps):
            row = _row(cells, names)
            if row is None:
                wrong += 1
            else:
                rows.append(*row)
    except OSError as error:
        gaps.append(f"There are no losses: {_FILE}: {one_line(error.strerror or error)}.")
    if wrong:
        gaps.append(f"Of {_FILE} {wrong:,} lines cannot be read and are left out.")
    if rows.left_out:
        gaps.append(f"Of the losses the first {_MOST_ROWS:,} are shown.")
    found = rows.take()
    keys = np.stack([found["model"], found["step"]])[:, ::-1]
    _, from_end = np.unique(keys, axis=1, return_index=True)
    found = {name: column[keys.shape[1] - 1 - from_end] for name, column in found.items()}
    return frozen_table(
        {
            "model": texts(list(names), found["model"]),
            "step": found["step"],
            "job": found["job"],
            "loss": found["loss"],
            "at_s": _when(found["job"], jobs),
        }
    )


def _rows(run: Path, gaps: Gaps) -> Iterator[list[str]]:
    with open_bounded(run / _FILE, most_bytes=_MOST_BYTES) as file:
        file.readline(_MOST_LINE_BYTES)  # the heading
        while line := file.readline(_MOST_LINE_BYTES):
            if not line.endswith(b"\n"):
                gaps.append(f"The last line of {_FILE} is torn, or too long.")
                return
            try:
                yield next(csv.reader([line.decode(errors="replace")], strict=True), [])
            except csv.Error:
                yield []


def _row(cells: list[str], names: dict[str, int]) -> tuple[int, int, int, float] | None:
    """Return a row's model, by its place among the ``names``, job, step and loss."""
    try:
        _, job_text, name, step_text, loss_text = cells
        job, step, loss = int(job_text), int(step_text), float(loss_text)
    except ValueError:
        return None
    if not (0 <= job < 2**31 and 0 <= step < 2**31):
        return None
    name = one_line(name, limit=_LONGEST_NAME)
    if name not in names and len(names) >= _MOST_MODELS:
        return None
    return names.setdefault(name, len(names)), job, step, loss if math.isfinite(loss) else math.nan


def _when(of: IntArray, jobs: Table) -> FloatArray:
    """Return when jobs were decoded, seconds of the run; those ``jobs`` are in ascending order."""
    if not len(jobs["job"]):
        return np.full(len(of), np.nan)
    known = jobs["job"]
    place = np.searchsorted(known, of).clip(max=len(known) - 1)
    return np.where(known[place] == of, jobs["finished_s"][place], np.nan)


_MOST_ROUNDS: Final = 1_000_000
_MOST_ANSWERS: Final = 2_000_000
_MOST_NOTICES: Final = 1_000
_MOST_OPEN: Final = 100_000  # tasks whose answers are waited for
_MOST_REASONS: Final = 100
_LONGEST_NOTICE: Final = 300

_OUTCOMES: Final = "used", "dropped", "failed", "unanswered"
_USED, _DROPPED, _FAILED, _UNANSWERED = range(4)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Address = tuple[int, int, int]  # round, worker, attempt


class LogTables:
    """Reads the events of a log into tables. ``outcome`` is how the run ended; None: it has not."""

    def __init__(self, workers: int, *, gaps: Gaps) -> None:
        self.outcome: str | None = None
        self._n, self._gaps = workers, gaps
        whole, real = int, float
        self._rounds = Columns(
            {
                "round": whole, "master": whole, "began_s": real, "closed_s": real,
                "kappa_s": real, "duration_s": real, "reason": whole, "waited_out": whole,
                "stragglers": whole, "load": real,
            },
            most=_MOST_ROUNDS,
        )  # fmt: skip
        self._answers = Columns(
            {
                "round": whole, "worker": whole, "attempt": whole, "master": whole,
                "at_s": real, "elapsed_s": real, "took_s": real, "outcome": whole, "late": whole,
            },
            most=_MOST_ANSWERS,
        )  # fmt: skip
        self._last_job = -1  # of which work was sent
        self._jobs = Columns({"job": whole, "finished_s": real, "error": real}, most=_MOST_ROUNDS)
        self._notices: list[tuple[float, str, str]] = []
        self._reasons: dict[str, int] = {}
        self._master, self._offset_s = 1, 0.0
        self._begun: dict[int, tuple[float, float]] = {}  # rounds: when, at which load
        self._closed: dict[int, None] = {}  # the latest rounds
        self._sent: dict[tuple[int, int], dict[int, float]] = {}  # by round and worker; attempts
        self._given_up: dict[_Address, int] = {}  # its row
        self._latest: tuple[_Address, int | None] | None = None  # answer, and its row

    def read(self, events: Iterable[tuple[Event, bytes]]) -> None:
        """Read a log to its end, or as far as there is room for its rounds."""
        for event, line in events:
            match event.event:
                case "arrival" | "failure":
                    self._answer(event)
                case "drop":
                    self._drop(event)
                case "dispatch":
                    self._dispatch(event)
                case "cancel":
                    self._cancel(event)
                case "close":
                    self._close(event)
                    if self._rounds.left_out:
                        break
                case _:
                    self._other(event, line)
        self._gaps.end_log()
        if self._rounds.left_out:
            self._gaps.append(f"The run is shown up to its {_MOST_ROUNDS:,}th closed round.")
        if self._answers.left_out:
            self._gaps.append(f"Of its answers the first {_MOST_ANSWERS:,} are shown.")

    def _other(self, event: Event, line: bytes) -> None:
        if event.event == "decode":
            self._decode(event)
        elif event.event == END:
            self._end(event)
            if line:  # a later master goes on
                self.outcome = None
                self._last_job = min(self._last_job, jobs_of(line) - 1)  # they may be fewer now
        else:
            self._notice(event, line)

    def _at(self, event: Event) -> float:
        return self._offset_s + event.at_s

    def _dispatch(self, event: Event) -> None:
        if event.round < 0:
            return
        self._last_job = max(self._last_job, *event.jobs, -1)
        if event.attempt == 0:
            load = math.nan if event.load is None else event.load
            self._begun[event.round] = self._at(event), load
            _forget(self._begun)
        at_s = self._at(event)
        for worker in range(self._n) if event.workers is None else event.workers:
            if worker < self._n:
                self._sent.setdefault((event.round, worker), {})[event.attempt] = at_s
        _forget(self._sent)

    def _answer(self, event: Event) -> None:
        address = event.round, event.worker, event.attempt
        if event.round < 0 or not 0 <= event.worker < self._n:
            return
        at_s, outcome = self._at(event), _FAILED if event.event == "failure" else _USED
        self._sent.get(address[:2], {}).pop(event.attempt, None)
        elapsed_s = math.nan if event.elapsed_s is None else event.elapsed_s
        took_s = math.nan if event.took_s is None else event.took_s
        place = self._given_up.pop(address, None)
        late = event.round in self._closed
        if place is None:
            place = self._answers.append(
                *address, self._master, at_s, elapsed_s, took_s, outcome, late
            )
        else:
            values = {"at_s": at_s, "elapsed_s": elapsed_s, "took_s": took_s, "outcome": outcome}
            for name, value in values.items():
                self._answers.set(place, name, value)
            self._answers.set(place, "late", late)
        self._latest = address, place

    def _drop(self, event: Event) -> None:
        """Mark the answer that a drop is about, which is the one before it."""
        address = event.round, event.worker, event.attempt
        if self._latest is not None and self._latest[0] == address:
            place = self._latest[1]
            if place is not None:
                self._answers.set(place, "outcome", _DROPPED)

    def _cancel(self, event: Event) -> None:
        for worker in event.workers or ():
            self._give_up(event.round, worker, self._at(event))

    def _give_up(self, round: int, worker: int, at_s: float) -> None:
        """Nobody waits any more for what a worker was sent in a round, unless it answers late."""
        for attempt, sent_s in self._sent.pop((round, worker), {}).items():
            address = round, worker, attempt
            place = self._answers.append(
                *address, self._master, at_s, math.nan, at_s - sent_s, _UNANSWERED, False
            )
            if place is not None:
                self._given_up[address] = place
        _forget(self._given_up)

    def _close(self, event: Event) -> None:
        if event.round < 0:
            return
        at_s = self._at(event)
        began_s, load = self._begun.pop(event.round, (at_s - event.duration_s, math.nan))
        if event.reason == "dealt":  # its tasks may have left while others went on
            began_s = max(at_s - event.duration_s, 0.0)
        if event.reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons[event.reason] = len(self._reasons)
        self._rounds.append(
            event.round, self._master, began_s, at_s, event.kappa_s, event.duration_s,
            self._reasons.get(event.reason, _MOST_REASONS), event.waited_out,
            sum(worker < self._n for worker in set(event.stragglers)), load,
        )  # fmt: skip
        self._closed[event.round] = None
        _forget(self._closed)

    def _decode(self, event: Event) -> None:
        if event.job >= 0:
            error = math.nan if event.error is None else event.error
            self._jobs.append(event.job, self._at(event), error)

    def _end(self, event: Event) -> None:
        for round, worker in list(self._sent):
            self._give_up(round, worker, self._at(event))
        self._offset_s += event.at_s
        self._master += 1
        self._begun, self._closed, self._given_up = {}, {}, {}

    def _notice(self, event: Event, line: bytes) -> None:
        ends = event.event == "end"
        if len(self._notices) >= _MOST_NOTICES and not ends:
            return
        try:
            fields = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            return
        if ends:
            self.outcome = one_line(fields.get("outcome", ""), limit=_LONGEST_NOTICE)
        text = fields.get("text")
        if not isinstance(text, str):
            about = {k: v for k, v in fields.items() if k not in {"event", "at_s"}}
            text = ", ".join(f"{name}: {value}" for name, value in about.items())
        kind = one_line(event.event, limit=40)
        self._notices.append((self._at(event), kind, one_line(text, limit=_LONGEST_NOTICE)))

    # ---- the tables ------------------------------------------------------------------------------

    def tables(self) -> dict[str, Table]:
        """Return the tables ``rounds``, ``answers``, ``jobs`` and ``notices``."""
        rounds = self._rounds.take(_last_of_each(self._rounds.take()["round"]))
        answers = self._answers.take()
        newest = _newest_masters(rounds, answers)
        answers = {name: column[newest] for name, column in answers.items()}
        order = np.lexsort((answers["at_s"], answers["round"]))
        answers = {name: column[order] for name, column in answers.items()}
        reasons = [one_line(reason, limit=40) for reason in self._reasons]
        reasons += ["?"] * (_MOST_REASONS + 1 - len(reasons))
        jobs = self._jobs.take(_last_of_each(self._jobs.take()["job"]))
        for what, numbers in (("round", rounds["round"]), ("job", jobs["job"])):
            last = int(numbers[-1]) if len(numbers) else -1
            if what == "job" and self.outcome == "finished":
                last = max(last, self._last_job)
            if missing := last + 1 - len(numbers):  # not yet on the disk when a master was killed
                self._gaps.append(f"{missing:,} of the {what}s up to {last:,} are not in {LOG}.")
        at_s, kinds, words = zip(*self._notices, strict=True) if self._notices else ((), (), ())
        notices: Table = {
            "at_s": np.array(at_s, dtype=np.float64),
            "kind": np.array(kinds, dtype=np.object_),
            "text": np.array(words, dtype=np.object_),
        }
        rounds |= {
            "reason": texts(reasons, rounds["reason"]),
            "waited_out": rounds["waited_out"].astype(np.bool_),
        }
        answers |= {
            "outcome": texts(_OUTCOMES, answers["outcome"]),
            "late": answers["late"].astype(np.bool_),
        }
        found = {"rounds": rounds, "answers": answers, "jobs": jobs, "notices": notices}
        return {name: frozen_table(table) for name, table in found.items()}


def _forget(table: dict[_Key, _Value]) -> None:
    """Let go of the older half of what is remembered, if it is too much."""
    if len(table) > _MOST_OPEN:
        for key in list(table)[: _MOST_OPEN // 2]:
            del table[key]


def _last_of_each(keys: npt.NDArray[Any]) -> IntArray:
    """Return where each of the keys stands last, in their order."""
    _, from_end = np.unique(keys[::-1], return_index=True)
    places: IntArray = len(keys) - 1 - from_end
    return places


def _newest_masters(rounds: Table, answers: Table) -> npt.NDArray[np.bool_]:
    """Return which answers are to the master that a round is told by, (answers,)."""
    known = np.concatenate([rounds["round"], answers["round"]])
    masters = np.concatenate([rounds["master"], answers["master"]])
    _, place = np.unique(known, return_inverse=True)
    newest = np.zeros(len(known), dtype=np.int64)
    np.maximum.at(newest, place, masters)
    newest[place[: len(rounds["round"])]] = rounds["master"]
    kept: npt.NDArray[np.bool_] = answers["master"] == newest[place[len(rounds["round"]) :]]
    return kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A recorded run, as far as its folder is readable; made by `read_run`.

    ``scheme`` is the spec with which the run began, ``workers`` the number of workers,
    ``started_at`` the time in ISO 8601, and ``outcome`` the end of the run, None if it continues or
    was killed. ``gaps`` are sentences on what cannot be shown. Times named ``…_s`` are seconds of
    the run's clock, which starts at 0 and stops between a master and the master that resumed it.
    """

    path: Path
    scheme: str
    workers: int
    started_at: str
    outcome: str | None
    gaps: tuple[str, ...]
    _tables: dict[str, Table]

    def rounds(self) -> Table:
        """Return a row for each closed round, in ascending order.

        ``round``; ``master``, the number of the master that closed it, from 1; ``began_s`` and
        ``closed_s``; ``kappa_s``, the seconds from its beginning to its first answer;
        ``duration_s``, by the clock of the closing rule; ``reason``, the reason for its end (see
        `seqgc.ports.RoundRecord`); ``waited_out``, True if it stayed open beyond (1+mu) kappa;
        ``stragglers``, the number of workers without an answer; ``load``, the mean share of a job's
        batch that a worker had, NaN if work is dealt.
        """
        return dict(self._tables["rounds"])

    def answers(self) -> Table:
        """Return a row for each task that was answered or given up, by round and time.

        ``round``, ``worker``, ``attempt``; ``master``; ``at_s``, when; ``elapsed_s``, since the
        round's first task left; ``took_s``, since its own left; ``outcome``: ``used``, ``dropped``,
        because others had come before, ``failed``, or ``unanswered``, and then ``took_s`` is until
        it was given up; ``late``, whether its round had closed before.
        """
        return dict(self._tables["answers"])

    def jobs(self) -> Table:
        """Return a row for each finished job: ``job``, ``finished_s``, ``error``.

        The error bounds what an approximate decoding leaves out (`seqgc.ports.Decoding`).
        """
        return dict(self._tables["jobs"])

    def models(self) -> Table:
        """Return a row for each step that a model took: its loss before that step.

        ``model``, ``step`` (from 0), ``job``, ``loss``, NaN where it is not finite, and ``at_s``,
        when the job was decoded, NaN where the log does not say.
        """
        return dict(self._tables["models"])

    def notices(self) -> Table:
        """Return what the run did beside its rounds: ``at_s``, ``kind``, ``text``."""
        return dict(self._tables["notices"])


def read_run(folder: str | Path) -> RecordedRun:
    """Read a recorded run from its folder, whether it has ended, was killed or continues.

    Nothing that the folder names is imported, and each text becomes one printable line. Unreadable
    parts are left out, and reported in `RecordedRun.gaps`.

    Raises
    ------
    ParameterError
        If it is not the folder of a run, or of another version.

    Examples
    --------
    >>> import tempfile
    >>> log = '''{"event": "run", "at_s": 0.0, "schema": 1, "workers": 2, "scheme": "uncoded"}
    ... {"event": "dispatch", "at_s": 0.1, "round": 0, "attempt": 0, "jobs": [0]}
    ... {"event": "arrival", "at_s": 0.6, "round": 0, "worker": 1, "attempt": 0, "took_s": 0.5}
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text(log)
    ...     run = read_run(folder)
    >>> run.scheme, run.answers()["took_s"].tolist(), run.answers()["outcome"].tolist()
    ('uncoded', [0.5, 0.5], ['used', 'unanswered'])
    >>> run.gaps
    ('There are no losses: metrics.csv: No such file or directory.',)
    """
    path, gaps = Path(folder), Gaps()
    header, events = read_run_log(path, gaps=gaps)
    log = LogTables(header.workers, gaps=gaps)
    log.read(events)
    tables = log.tables()
    tables["models"] = read_losses(path, tables["jobs"], gaps=gaps)
    return RecordedRun(
        path=path,
        scheme=one_line(header.scheme, limit=100),
        workers=header.workers,
        started_at=_started_at(header),
        outcome=log.outcome,
        gaps=tuple(gaps),
        _tables=tables,
    )


def _started_at(header: RunHeader) -> str:
    return one_line(header.started_at, limit=40)

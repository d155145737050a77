"""A recorded run, read from its folder as tables."""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from seqgc._bounded import open_bounded
from seqgc._tabular import Summarised, number
from seqgc.errors import one_line
from seqgc.ports import FloatArray, IntArray, Table, TaskPhases
from seqgc.profiles import DelayProfile
from seqgc.runs._delays import delays_of
from seqgc.runs._log import END, LOG, Gaps, LogEvent, RunHeader, header_of, read_run_log

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
    """The columns of a table that grows row by row, to at most ``most`` rows.

    A text is stored as its index in a list of texts.
    """

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
        """Add a row and return its index. If the table is full, count the row and return None."""
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
        """Return the columns as arrays of int64 and float64. ``order`` selects and orders rows."""
        arrays = {
            name: np.array(column, dtype=np.int64 if column.typecode == "q" else np.float64)
            for name, column in self._columns.items()
        }
        return arrays if order is None else {name: each[order] for name, each in arrays.items()}


def texts(words: Sequence[str], places: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Return an array of the texts in ``words`` with these indices."""
    column: npt.NDArray[np.object_] = np.array([*words, ""], dtype=np.object_)[places]
    return column


def frozen_table(table: Table) -> Table:
    """Make the arrays of a table read-only, and return the table."""
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
    """Return the losses of a run, with one row for each step of each model, in this order.

    If the file has several rows for a step, the last one counts. The time of a step is the time at
    which its job was decoded, or NaN if the log does not have it.
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
    table = rows.take()
    keys = np.stack([table["model"], table["step"]])[:, ::-1]
    _, from_end = np.unique(keys, axis=1, return_index=True)
    table = {name: column[keys.shape[1] - 1 - from_end] for name, column in table.items()}
    return frozen_table(
        {
            "model": texts(list(names), table["model"]),
            "step": table["step"],
            "job": table["job"],
            "loss": table["loss"],
            "at_s": _when(table["job"], jobs),
        }
    )


def _rows(run: Path, gaps: Gaps) -> Iterator[list[str]]:
    with open_bounded(run / _FILE, most_bytes=_MOST_BYTES) as file:
        file.readline(_MOST_LINE_BYTES)  # the heading
        while line := file.readline(_MOST_LINE_BYTES):
            if not line.endswith(b"\n"):
                gaps.append(f"The last line of {_FILE} is incomplete, or too long.")
                return
            try:
                yield next(csv.reader([line.decode(errors="replace")], strict=True), [])
            except csv.Error:
                yield []


def _row(cells: list[str], names: dict[str, int]) -> tuple[int, int, int, float] | None:
    """Return the index of a row's model in ``names``, and the job, step and loss.

    A new model is added to ``names``. If the row is not valid, return None.
    """
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
    """Return the time, in seconds of the run, at which each job in ``of`` was decoded, or NaN.

    The table ``jobs`` must be in ascending order.
    """
    if not len(jobs["job"]):
        return np.full(len(of), np.nan)
    numbers = jobs["job"]
    place = np.searchsorted(numbers, of).clip(max=len(numbers) - 1)
    return np.where(numbers[place] == of, jobs["finished_s"][place], np.nan)


_MOST_ROUNDS: Final = 1_000_000
_MOST_ANSWERS: Final = 2_000_000
_MOST_NOTICES: Final = 1_000
_MOST_OPEN: Final = 100_000  # entries of each table of unanswered tasks, open or closed rounds
_MOST_REASONS: Final = 100
_LONGEST_NOTICE: Final = 300

_OUTCOMES: Final = "used", "dropped", "failed", "unanswered"
_USED, _DROPPED, _FAILED, _UNANSWERED = range(4)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Address = tuple[int, int, int]  # round, worker, attempt


class LogTables:
    """A reader that collects the events of a log in tables.

    ``outcome`` describes the end of the run. It is None if the run has not ended. ``workers`` is
    the largest number of workers that the run has had.
    """

    def __init__(self, workers: int, *, gaps: Gaps) -> None:
        self.outcome: str | None = None
        self._n, self._gaps = workers, gaps  # `_n` is the number of workers of the present master
        self.workers = workers
        whole, real = int, float
        self._rounds = Columns(
            {
                "round": whole, "master": whole, "began_s": real, "closed_s": real,
                "kappa_s": real, "duration_s": real, "reason": whole, "waited_out": whole,
                "stragglers": whole, "load": real, "workers": whole,
            },
            most=_MOST_ROUNDS,
        )  # fmt: skip
        self._answers = Columns(
            {
                "round": whole, "worker": whole, "attempt": whole, "master": whole,
                "at_s": real, "elapsed_s": real, "took_s": real, "outcome": whole, "late": whole,
                "load": real, **dict.fromkeys(TaskPhases._fields, real),
            },
            most=_MOST_ANSWERS,
        )  # fmt: skip
        self._parts = Columns(
            {
                "round": whole, "worker": whole, "attempt": whole, "slot": whole, "master": whole,
                "at_s": real, "elapsed_s": real, "took_s": real, "load": real, "used": whole,
            },
            most=_MOST_ANSWERS,
        )  # fmt: skip
        self._last_job = -1  # the last job with a task
        self._jobs = Columns({"job": whole, "finished_s": real, "error": real}, most=_MOST_ROUNDS)
        self._notices: list[tuple[float, str, str]] = []
        self._reasons: dict[str, int] = {}
        self._master, self._offset_s = 1, 0.0
        self._begun: dict[int, tuple[float, float]] = {}  # time and load of each open round
        self._closed: dict[int, None] = {}  # the latest closed rounds
        # The time and the load of each attempt in flight, by round and worker.
        self._sent: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
        self._given_up: dict[_Address, int] = {}  # rows of unanswered tasks
        self._latest: tuple[_Address, int | None] | None = None  # the latest answer and its row
        self._latest_part: tuple[tuple[int, ...], int | None] | None = None

    def read(self, events: Iterable[tuple[LogEvent, bytes]]) -> None:
        """Read a log to its end, or until the table of rounds is full."""
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

    def _other(self, event: LogEvent, line: bytes) -> None:
        if event.event == "part":
            self._part(event)
        elif event.event == "decode":
            self._decode(event)
        elif event.event == END:
            self._end(event)
            if line:  # a later master continues the run
                self.outcome, header = None, header_of(line)
                jobs = 1 if header is None else header.jobs
                self._last_job = min(self._last_job, jobs - 1)  # it may have fewer jobs
                if header is not None:
                    self._n = header.workers
                    self.workers = max(self.workers, self._n)
        else:
            self._notice(event, line)

    def _at(self, event: LogEvent) -> float:
        return self._offset_s + event.at_s

    def _dispatch(self, event: LogEvent) -> None:
        if event.round < 0:
            return
        self._last_job = max(self._last_job, *event.jobs, -1)
        if event.attempt == 0:
            mean_load = math.nan if event.load is None else event.load
            self._begun[event.round] = self._at(event), mean_load
            _forget(self._begun)
        at_s = self._at(event)
        workers = range(self._n) if event.workers is None else event.workers
        for worker, load in zip(workers, event.task_loads(len(workers)), strict=True):
            if worker < self._n:
                sent = at_s, math.nan if load is None else load
                self._sent.setdefault((event.round, worker), {})[event.attempt] = sent
        _forget(self._sent)

    def _answer(self, event: LogEvent) -> None:
        address = event.round, event.worker, event.attempt
        if event.round < 0 or not 0 <= event.worker < self._n:
            return
        at_s, outcome = self._at(event), _FAILED if event.event == "failure" else _USED
        _, load = self._sent.get(address[:2], {}).pop(event.attempt, (math.nan, math.nan))
        elapsed_s = math.nan if event.elapsed_s is None else event.elapsed_s
        took_s = math.nan if event.took_s is None else event.took_s
        spent = (getattr(event, name) for name in TaskPhases._fields)
        phases = [math.nan if seconds is None else seconds for seconds in spent]
        place = self._given_up.pop(address, None)
        late = event.round in self._closed
        if place is None:
            place = self._answers.append(
                *address, self._master, at_s, elapsed_s, took_s, outcome, late, load, *phases
            )
        else:
            values = dict(zip(TaskPhases._fields, phases, strict=True))
            values |= {"at_s": at_s, "elapsed_s": elapsed_s, "took_s": took_s, "outcome": outcome}
            for name, value in values.items():
                self._answers.set(place, name, value)
            self._answers.set(place, "late", late)
        self._latest = address, place

    def _part(self, event: LogEvent) -> None:
        if event.round < 0 or event.slot < 0 or not 0 <= event.worker < self._n:
            return
        elapsed_s = math.nan if event.elapsed_s is None else event.elapsed_s
        took_s = math.nan if event.took_s is None else event.took_s
        address = event.round, event.worker, event.attempt, event.slot
        load = math.nan if event.load is None else event.load
        place = self._parts.append(
            *address, self._master, self._at(event), elapsed_s, took_s, load, True
        )
        self._latest_part = address, place

    def _drop_part(self, event: LogEvent) -> None:
        """Mark the latest partial answer as not used, if the drop is about it."""
        address = event.round, event.worker, event.attempt, event.slot
        if self._latest_part is not None and self._latest_part[0] == address:
            place = self._latest_part[1]
            if place is not None:
                self._parts.set(place, "used", False)

    def _drop(self, event: LogEvent) -> None:
        """Mark the latest answer as dropped, if the drop is about this answer."""
        address = event.round, event.worker, event.attempt
        if event.slot >= 0:
            self._drop_part(event)
        elif self._latest is not None and self._latest[0] == address:
            place = self._latest[1]
            if place is not None:
                self._answers.set(place, "outcome", _DROPPED)

    def _cancel(self, event: LogEvent) -> None:
        for worker in event.workers or ():
            self._give_up(event.round, worker, self._at(event))

    def _give_up(self, round: int, worker: int, at_s: float) -> None:
        """Add the tasks of a worker in a round as unanswered, until a late answer replaces them."""
        for attempt, (sent_s, load) in self._sent.pop((round, worker), {}).items():
            address = round, worker, attempt
            row = *address, self._master, at_s, math.nan, at_s - sent_s, _UNANSWERED, False, load
            place = self._answers.append(*row, *[math.nan] * len(TaskPhases._fields))
            if place is not None:
                self._given_up[address] = place
        _forget(self._given_up)

    def _close(self, event: LogEvent) -> None:
        if event.round < 0:
            return
        at_s = self._at(event)
        began_s, load = self._begun.pop(event.round, (at_s - event.duration_s, math.nan))
        if event.reason == "dealt":  # its tasks may have left before the previous round ended
            began_s = max(at_s - event.duration_s, 0.0)
        if event.reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons[event.reason] = len(self._reasons)
        self._rounds.append(
            event.round, self._master, began_s, at_s, event.kappa_s, event.duration_s,
            self._reasons.get(event.reason, _MOST_REASONS), event.waited_out,
            sum(worker < self._n for worker in set(event.stragglers)), load, self._n,
        )  # fmt: skip
        self._closed[event.round] = None
        _forget(self._closed)

    def _decode(self, event: LogEvent) -> None:
        if event.job >= 0:
            error = math.nan if event.error is None else event.error
            self._jobs.append(event.job, self._at(event), error)

    def _end(self, event: LogEvent) -> None:
        for round, worker in list(self._sent):
            self._give_up(round, worker, self._at(event))
        self._offset_s += event.at_s
        self._master += 1
        self._begun, self._closed, self._given_up = {}, {}, {}

    def _notice(self, event: LogEvent, line: bytes) -> None:
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
        """Return the tables ``rounds``, ``answers``, ``parts``, ``jobs`` and ``notices``."""
        rounds = self._rounds.take(_last_of_each(self._rounds.take()["round"]))
        parts = self._parts.take()
        parts = self._parts.take(np.lexsort((parts["at_s"], parts["round"])))
        parts["used"] = parts["used"].astype(np.bool_)
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
            if missing := last + 1 - len(numbers):  # a master was killed before it wrote them
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
        tables = {"rounds": rounds, "answers": answers, "jobs": jobs, "notices": notices}
        tables["parts"] = parts
        return {name: frozen_table(table) for name, table in tables.items()}


def _forget(table: dict[_Key, _Value]) -> None:
    """If a table has too many entries, remove the older half."""
    if len(table) > _MOST_OPEN:
        for key in list(table)[: _MOST_OPEN // 2]:
            del table[key]


def _last_of_each(keys: npt.NDArray[Any]) -> IntArray:
    """Return the index of the last occurrence of each distinct key, in ascending order of keys."""
    _, from_end = np.unique(keys[::-1], return_index=True)
    places: IntArray = len(keys) - 1 - from_end
    return places


def _newest_masters(rounds: Table, answers: Table) -> npt.NDArray[np.bool_]:
    """Return a mask (answers,) of the answers to the master that closed their round.

    If the round has not closed, it marks the answers to the newest master.
    """
    numbers = np.concatenate([rounds["round"], answers["round"]])
    masters = np.concatenate([rounds["master"], answers["master"]])
    _, place = np.unique(numbers, return_inverse=True)
    newest = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(newest, place, masters)
    newest[place[: len(rounds["round"])]] = rounds["master"]
    mask: npt.NDArray[np.bool_] = answers["master"] == newest[place[len(rounds["round"]) :]]
    return mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecordedRun(Summarised):
    """A recorded run, which `read_run` reads from its folder.

    ``scheme`` is the scheme with which the run began. ``workers`` is the number of workers, or the
    largest number if the run was resumed with another.
    ``started_at`` is the time in ISO 8601. ``outcome`` describes the end of the run; it is None if
    the run continues or was killed. ``gaps`` are sentences about parts that cannot be shown. Times
    named ``…_s`` are seconds of the run's clock. This clock starts at 0, and stands still from the
    end of a master until the run is resumed. ``header`` is the first line of the log.
    """

    path: Path
    scheme: str
    workers: int
    started_at: str
    outcome: str | None
    gaps: tuple[str, ...]
    header: RunHeader
    _tables: dict[str, Table]

    def summary(self) -> dict[str, object]:
        closed_s = self._tables["rounds"]["closed_s"]
        return {
            "path": str(self.path),
            "scheme": self.scheme,
            "workers": self.workers,
            "rounds": len(closed_s),
            "jobs": len(self._tables["jobs"]["job"]),
            "time": f"{number(closed_s.max(initial=0.0))} s",
            "outcome": self.outcome or "not ended",
            **({"gaps": len(self.gaps)} if self.gaps else {}),
        }

    def profile(self, *, alpha: float | None = None) -> DelayProfile:
        """Return the times of the workers' answers as a delay profile.

        Row k is the k-th closed round in which a worker answered, and its times are from the first
        dispatch to the answer. A task that was cancelled has the status `seqgc.profiles.CENSORED`
        and the time until then; a task that failed has `seqgc.profiles.FAILED`. A cell is also
        censored, at almost no time, if the worker had no task in this round.

        A run with a defence without rounds (``deal``, ``ssp`` and others) has only tasks. Row k
        then has the k-th task of each worker, up to the smallest number of tasks that a worker
        answered. The time of a task begins when it left or, if the worker had another task, when
        the worker answered that one.

        ``alpha``, in seconds per unit of load, is fitted to the run if it is None
        (`seqgc.profiles.fit_alpha`). This needs loads that change; otherwise the profile has no
        alpha. If alpha is known, all times are converted to the smallest load of a task, which is
        the profile's base load (docs/mathematics.md, section 7). Otherwise the base load is the
        mean load.

        If tasks were answered in `parts`, the profile has the times of their first mini-tasks, and
        alpha is fitted to the times between the answers of a task.

        Raises
        ------
        ProfileError
            If no task was answered, or ``alpha`` makes a time negative.
        """
        return delays_of(self, alpha=alpha).profile

    def explain(self, *, alpha: float | None = None, usd_per_worker_s: float | None = None) -> Any:
        """Explain the run: the slow workers, rounds and phases, and what would have been faster.

        This is `seqgc.explain`, which describes the arguments and the errors. The result is a
        `seqgc.explanation.Explanation`.
        """
        room = import_module("seqgc.explanation")  # which imports this one
        return room.explain(self, alpha=alpha, usd_per_worker_s=usd_per_worker_s)

    def rounds(self) -> Table:
        """Return a table with a row for each closed round, in ascending order.

        Its columns are ``round``; ``master``, the number, from 1, of the master that closed the
        round; ``began_s`` and ``closed_s``; ``kappa_s``, the seconds from the beginning of the
        round to its first answer; ``duration_s``, the seconds of the round for the closing rule;
        ``reason``, the reason for the close (see `seqgc.ports.RoundRecord`); ``waited_out``, True
        if the round stayed open beyond (1+mu) kappa, where mu is the tolerance of the closing
        rule; ``stragglers``, the number of workers without
        an answer; ``load``, the mean share of a job's batch that a worker had, or NaN with `deal`;
        and ``workers``, the number of workers.
        """
        return dict(self._tables["rounds"])

    def answers(self) -> Table:
        """Return a table with a row for each task that was answered or cancelled.

        The rows are ordered by round and time. The columns are ``round``, ``worker``, ``attempt``
        and ``master``; ``at_s``, the time of the answer; ``elapsed_s``, the seconds since the
        round's first task left; ``took_s``, the seconds since this task left; ``outcome``;
        ``late``, True if the round had closed before the answer; and ``load``. The outcome is
        ``used``, ``dropped`` (not used), ``failed`` or ``unanswered``. For an unanswered task, the
        times are those of its cancellation, or of the end of its master. ``load`` is the task's
        share of a job's batch. ``waited_s``, ``started_s``, ``fetched_s`` and ``computed_s`` are
        the seconds that the worker reports (`seqgc.ports.TaskPhases`). A value that the log does
        not have is NaN.
        """
        return dict(self._tables["answers"])

    def parts(self) -> Table:
        """Return a table with a row for each answer to one mini-task of a task that continued.

        Only workers of a defence that asks for such answers send them (`Dispatch.item_loads`). The
        rows are ordered by round and time. The columns are ``round``, ``worker``, ``attempt``, the
        ``slot`` of the mini-task, ``master``, ``at_s``, ``elapsed_s`` and ``took_s`` as in
        `answers`, ``load``, the load of all mini-tasks up to this one, and ``used``, False if the
        answer was dropped. The last answer of a task is in `answers`.
        """
        return dict(self._tables["parts"])

    def jobs(self) -> Table:
        """Return a table with a row for each finished job: ``job``, ``finished_s``, ``error``.

        ``error`` is an upper bound on the error of an approximate decoding
        (`seqgc.ports.Decoding`).
        """
        return dict(self._tables["jobs"])

    def models(self) -> Table:
        """Return a table with a row for each optimizer step of each model.

        The columns are ``model``; ``step``, from 0; ``job``; ``loss``, the loss before the step, or
        NaN if it is not finite; and ``at_s``, the time at which the job was decoded, or NaN if the
        log does not have it.
        """
        return dict(self._tables["models"])

    def notices(self) -> Table:
        """Return a table of the notices of the run, with ``at_s``, ``kind`` and ``text``."""
        return dict(self._tables["notices"])


def read_run(folder: str | Path) -> RecordedRun:
    """Read a run from its folder. The run may have ended, may have been killed, or may continue.

    No module that the folder names is imported, and each text is converted to one printable line.
    Unreadable parts are left out, and reported in `RecordedRun.gaps`.

    Raises
    ------
    ParameterError
        If this is not the folder of a run, or a run of another version.

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
    >>> run
    <RecordedRun: path /...; scheme uncoded; workers 2; rounds 0; jobs 0; time 0 s; outcome not
    ended; gaps 1>
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
        workers=log.workers,
        started_at=_started_at(header),
        outcome=log.outcome,
        gaps=tuple(gaps),
        header=header,
        _tables=tables,
    )


def _started_at(header: RunHeader) -> str:
    return one_line(header.started_at, limit=40)

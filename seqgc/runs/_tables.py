"""What a run's log comes to: a row for each round, each task and each finished job.

A run that was resumed has several masters in one log, each with its own clock from 0, and does
again what came after the last checkpoint. The tables have one clock: a master begins where the one
before it wrote last. And a round is told once, by the last master that closed it, with the answers
to that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from seqgc.errors import one_line
from seqgc.ports import IntArray, Table
from seqgc.runs._columns import Columns, frozen_table, texts
from seqgc.runs._log import END, LOG, Event, Gaps, jobs_of

__all__ = ["LogTables"]

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

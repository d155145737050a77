"""The run directory: what happened, when and why; a run never overwrites another.

Two clocks run in ``events.jsonl``, and an answer has a time by each. ``elapsed_s`` is by the
*round's* clock, which starts when the round's first task leaves: the closing rule decides by it,
kappa and durations are its seconds, and it never goes back from one event to the next. ``took_s``
is by the *task's* own clock, which starts when that task leaves: it is the worker's seconds, with
none of those in which the master was busy sending to others. The two differ by when the task left,
at most by the time that sending a whole round takes.

A replay sends all tasks of a round at once, at 0. So what must be replayed to give a run's own
decisions again, to the last bit, is ``elapsed_s``: the sending is then a part of each answer's
time, as it was for the closing rule. What says how workers would do under another scheme or another
master, and what a profile is made of, is ``took_s``; recordings (`seqgc.training.record`) and the
rounds that an adaptive run searches on (`seqgc.training.adaptive`) hold these seconds.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import numpy as np

from seqgc import ports
from seqgc._bounded import read_bounded
from seqgc._durable import AppendOnly
from seqgc.errors import StoreError, no_run
from seqgc.runs import SCHEMA
from seqgc.training.metrics import JobMetrics
from seqgc.training.new_run import make_run, require_new

__all__ = ["EventLog", "MetricsLog", "RunDirectory", "new_run_path"]

_LOG: Final = "events.jsonl"
_FILES = "journal.jsonl", _LOG, "metrics.csv", "lock"  # that a resumed run opens
_ROUNDS = 64  # whose answers have their times in the log: later than that they have none
_MOST_CONFIG_BYTES = 2**20
_BLOCK_BYTES = 1 << 16
_MOST_TORN_BYTES: Final = 1 << 26  # at a log's end: more than a power cut leaves
_MOST_UNSYNCED: Final = 1000  # losses; all of them are held until they are on the disk
_HEAD: Final = b"seconds,job,model,step,loss\r\n"  # of metrics.csv


def new_run_path(root: str | Path, label: str) -> Path:
    """Return ``root/<UTC time>-<label>-<random>``, a name that no other run has, or will have."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    safe = "".join(c if c.isalnum() or c in "-." else "_" for c in label)
    return Path(root, f"{stamp}-{safe[:100]}-{secrets.token_hex(4)}")


class RunDirectory:
    """The folder of one run, which must be new unless it is ``reopened``.

    It holds ``config.toml`` (what was asked for), ``events.jsonl`` (what happened), ``metrics.csv``
    (losses), ``journal.jsonl`` and ``checkpoints/`` (what `resume` needs; trained weights),
    ``saved/`` (weights after every so many steps, if asked for), ``weights/`` (versions in flight),
    ``lock`` and ``masters/`` (who is at work on it).

    Raises
    ------
    ParameterError
        If the folder exists already, or is to be reopened and is no run's; nothing is written then.
    OSError
        If there is no room for it; nothing is left then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = RunDirectory(Path(folder, "first"), config="steps = 1")
    ...     sorted(path.name for path in run.path.iterdir())
    ['checkpoints', 'config.toml']
    """

    def __init__(self, path: str | Path, *, config: str = "", reopened: bool = False) -> None:
        self.path: Final = Path(path)
        self._config = self.path / "config.toml"
        if reopened:
            if not self.path.resolve().name:
                raise no_run(path, "this one has no name, by which rounding is seeded")
            if not self._config.is_file():
                raise no_run(path, "it has no config.toml")
            for name in _FILES:  # a pipe would be waited for, a device has no end
                there = self.path / name
                if there.exists() and not there.is_file():
                    raise no_run(path, f"{name} is no regular file")
            _require_lines(self.path, _LOG)
            return
        require_new(self.path)
        make_run(self.path, config=config)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints and trained weights."""
        return self.path / "checkpoints"

    @property
    def saved(self) -> Path:
        """The folder of weights after every so many steps."""
        return self.path / "saved"

    @property
    def journal(self) -> Path:
        """The file of what has been decided."""
        return self.path / "journal.jsonl"

    @property
    def config(self) -> str:
        """What was asked for, in words; `StoreError` if it cannot be read."""
        try:
            return read_bounded(self._config, most_bytes=_MOST_CONFIG_BYTES).decode(
                errors="replace"
            )
        except OSError as error:
            raise StoreError(f"{self._config}: {error.strerror or error}") from error


def _require_lines(run: Path, name: str) -> None:
    """Refuse a run with a file of which nobody would find the last line in a reasonable time."""
    with suppress(FileNotFoundError), (run / name).open("rb") as file:
        try:
            _end_of_lines(file)
        except ValueError as error:
            raise no_run(run, f"{name}: {error}") from None


class Forgiving:
    """An observer that is left alone, with one warning, once it cannot write: the run goes on.

    The warning says what becomes of it ``then``.
    """

    def __init__(
        self, observer: ports.Observer, *, warn: Callable[[str], None], then: str = "is given up"
    ) -> None:
        self._observer: ports.Observer | None = observer
        self._warn, self._then = warn, then

    def __call__(self, seen: ports.Seen) -> None:
        if self._observer is None:
            return
        try:
            self._observer(seen)
        except OSError as error:
            name, self._observer = type(self._observer).__name__, None
            why = f"and {self._then}: {error.strerror or error}"
            self._warn(f"the {name} of the run cannot be written any more, {why}")


@dataclass(slots=True)
class _Sent:
    """When a round's first task left, and each of them by worker and attempt; backend's seconds."""

    began_at: float
    left_at: dict[tuple[int, int], float] = field(default_factory=dict)


class EventLog:
    """Appends all that happens, except ticks, to ``events.jsonl``; an observer of the run.

    One JSON object a line with ``event`` and ``at_s``, seconds since the log was opened. Answers
    also have ``elapsed_s``, since their round's first task left, and ``took_s``, since their own
    left (see the head of this module): the rounds of a run are a delay profile. Decoded jobs have
    ``error``, which is 0 unless they were decoded approximately (`Decoding`). One that came in
    parts is decoded when its clock has passed; a part that moves the weights again is a ``repeat``.
    """

    def __init__(self, path: Path) -> None:
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._began = time.monotonic()
        self._sent: dict[int, _Sent] = {}  # by round; the latest only
        self._workers: object = None  # how many, as soon as the run has begun
        self._is_dealt = False  # then a task's load is no round's
        self._in_parts: set[int] = set()  # jobs of which parts have come by themselves

    def close(self) -> None:
        """Close the file; what cannot be written is lost."""
        with suppress(OSError):
            self._file.close()

    def __call__(self, seen: ports.Seen) -> None:
        match seen:
            case ports.Notice(kind=kind, fields=fields):
                started_at = datetime.now(UTC).isoformat()
                begins = kind in {"run", "resume"}
                self._workers = fields.get("workers") if begins else self._workers
                self._is_dealt = bool(fields.get("pieces")) if begins else self._is_dealt
                heading = {"schema": SCHEMA, "started_at": started_at} if begins else {}
                self._write(kind, **heading, **fields)
                self._file.flush()
            case ports.Dispatch(round=round, attempt=attempt, assignment=assignment):
                jobs = sorted({m.job for tasks in assignment.values() for m in tasks})
                everyone = attempt == 0 and len(assignment) == self._workers
                some = {} if everyone else {"workers": sorted(assignment)}
                counts = [len(assignment[worker]) for worker in sorted(assignment)]
                had = {"mini_tasks": counts[0] if len(set(counts)) == 1 else counts}
                about = {"round": round, "attempt": attempt, "jobs": jobs}
                self._write("dispatch", **about, **had, **some, **self._load_of_round(seen))
            case ports.Dispatched():
                self._note_sent(seen)
            case ports.Arrival() | ports.Failure() | ports.Drop():
                self._answer(seen)
            case ports.Doubt(event=answer):
                about = {"round": answer.round, "worker": answer.worker, "attempt": answer.attempt}
                flaws = {model: flaw.why for model, flaw in answer.flaws.items()}
                self._write("doubt", **about, flaws=flaws)
            case ports.Close():
                self._close_round(seen.record, seen.jobs)
            case ports.Cancel(round=round, workers=workers):
                self._write("cancel", round=round, workers=workers)
            case ports.Restart(worker=worker):
                self._write("restart", worker=worker)
            case ports.Finish() | ports.Update():
                self._decode(seen)

    def _load_of_round(self, dispatch: ports.Dispatch) -> dict[str, float]:
        if dispatch.loads is None or self._is_dealt:
            return {}
        return {"load": float(np.mean(dispatch.loads))}

    def _write(self, event: str, **fields: object) -> None:
        at_s = round(time.monotonic() - self._began, 6)
        self._file.write(json.dumps({"event": event, "at_s": at_s, **fields}) + "\n")

    def _note_sent(self, seen: ports.Dispatched) -> None:
        sent = self._sent.setdefault(seen.round, _Sent(seen.at))
        pairs = zip(seen.workers, seen.left_at, strict=True)
        sent.left_at |= {(worker, seen.attempt): at for worker, at in pairs}
        if len(self._sent) > _ROUNDS:
            del self._sent[min(self._sent)]

    def _answer(self, seen: ports.Arrival | ports.Failure | ports.Drop) -> None:
        about = seen.event if isinstance(seen, ports.Drop) else seen
        address = about.round, about.worker, about.attempt
        fields: dict[str, object] = dict(zip(("round", "worker", "attempt"), address, strict=True))
        if (sent := self._sent.get(about.round)) is not None:
            fields["elapsed_s"] = about.at - sent.began_at
            left_at = sent.left_at.pop(address[1:], None)  # once, not with a drop again
            if left_at is not None:
                fields["took_s"] = about.at - left_at
        if not isinstance(seen, ports.Arrival):
            fields["reason"] = seen.reason
        self._write(type(seen).__name__.lower(), **fields)

    def _decode(self, seen: ports.Finish | ports.Update) -> None:
        if isinstance(seen, ports.Finish):
            self._write("decode", job=seen.job, error=seen.decoding().error)
        else:
            part = seen.decoding().part
            if part is not None and part.again:
                self._write("repeat", job=seen.job, part=part.index)
            self._in_parts.add(seen.job)

    def _close_round(self, record: ports.RoundRecord, jobs: Sequence[int]) -> None:
        for job in sorted(self._in_parts.intersection(jobs)):
            self._write("decode", job=job, error=0.0)
            self._in_parts.remove(job)
        self._write(
            "close",
            round=record.round,
            reason=record.reason,
            kappa_s=record.kappa_s,
            duration_s=record.duration_s,
            waited_out=record.waited_out,
            stragglers=np.flatnonzero(~record.responded).tolist(),
        )
        self._file.flush()  # a crash loses at most the open round
        if not os.fstat(self._file.fileno()).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "somebody has removed it")


def _cut_torn_line(path: Path) -> None:
    """Let a log that was left by a master which was killed end with a whole line."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        if (end := _end_of_lines(file)) < file.seek(0, io.SEEK_END):
            file.truncate(end)


def _end_of_lines(file: IO[bytes]) -> int:
    """Return how many bytes whole lines have; `ValueError` if too many more follow them."""
    size = end = file.seek(0, io.SEEK_END)
    while end:
        if size - end >= _MOST_TORN_BYTES:
            raise ValueError(f"its last {size - end} bytes are no whole line")
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a file held at some time: its length and the CRC-32 of all of it."""

    size_bytes: int = 0
    crc: int = 0

    def more(self, data: bytes) -> Written:
        """Return what it holds with these bytes at its end."""
        return Written(size_bytes=self.size_bytes + len(data), crc=zlib.crc32(data, self.crc))


class MetricsLog:
    """Appends finished jobs' losses to ``metrics.csv``; an observer of the run.

    ``metrics`` returns those that are new, in the order in which jobs finished. Of a file that is
    there, what was ``before`` stays: what came after is trained again. If it is not what it was,
    ``warn`` is told. ``unwritten`` are those that the master before could not write for sure.
    """

    def __init__(
        self,
        path: Path,
        *,
        metrics: Callable[[], Sequence[JobMetrics]],
        before: Written | None = None,
        warn: Callable[[str], None],
        unwritten: Iterable[JobMetrics] = (),
    ) -> None:
        self.path: Final = path
        self._metrics, self._unwritten = metrics, list(unwritten)
        self._unsynced: list[JobMetrics] = []  # written, but a power cut may lose them
        self._written = self.lasting = _kept(path, before or Written(), warn=warn)
        self._file = AppendOnly(path, keep_bytes=self.lasting.size_bytes)
        if not self.lasting.size_bytes:
            self._append(_HEAD, sync=False)
        self._began = time.monotonic()

    @property
    def unwritten(self) -> list[JobMetrics]:
        """What has been added, and is not in ``lasting``: what a power cut leaves of the file."""
        return [*self._unsynced, *self._unwritten]

    def close(self) -> None:
        """Close the file; what cannot be written is lost."""
        with suppress(OSError):
            self._file.close()

    def __call__(self, seen: ports.Seen) -> None:
        if isinstance(seen, ports.Close) or (isinstance(seen, ports.Notice) and seen.kind == "end"):
            self.update()

    def update(self, *, sync: bool = False) -> None:
        """Write what has been added; wait until it is on the disk if ``sync``, or much is not."""
        self._unwritten += self._metrics()
        sync = sync or len(self._unsynced) + len(self._unwritten) > _MOST_UNSYNCED
        text, seconds = io.StringIO(newline=""), f"{time.monotonic() - self._began:.3f}"
        csv.writer(text).writerows(
            [seconds, entry.job, entry.model, entry.step, entry.loss] for entry in self._unwritten
        )
        self._append(text.getvalue().encode(), sync=sync)
        if sync:
            self._unsynced.clear()
        else:
            self._unsynced += self._unwritten
        self._unwritten = []

    def _append(self, data: bytes, *, sync: bool) -> None:
        self._file.append(data, sync=sync)
        self._written = self._written.more(data)
        if sync:
            self.lasting = self._written


def _kept(path: Path, before: Written, *, warn: Callable[[str], None]) -> Written:
    """Return what is left of a file's beginning, which was once ``before``."""
    found = whole = Written()  # of lines
    with suppress(FileNotFoundError), path.open("rb") as file:
        while data := file.read(min(_BLOCK_BYTES, before.size_bytes - found.size_bytes)):
            whole = found.more(data[: data.rfind(b"\n") + 1]) if b"\n" in data else whole
            found = found.more(data)
    if found != before:
        lost = before.size_bytes - found.size_bytes
        what = f"{lost} of its {before.size_bytes} bytes are lost" if lost else "bytes have changed"
        warn(f"{path} is damaged since the last checkpoint ({what}): losses in it may be wrong")
        return whole
    return found

"""The folder of a run: its files, its creation, and its event log."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import IO, Final

import numpy as np

from seqgc import ports
from seqgc._bounded import read_bounded
from seqgc._durable import make_folder, rename, replacing
from seqgc.errors import ParameterError, StoreError, no_run
from seqgc.runs import FUNCTIONS, SCHEMA
from seqgc.runs.metrics import _BLOCK_BYTES

__all__ = ["EventLog", "RunDirectory", "make_run", "new_run_path", "remove_unbegun", "require_new"]

_LOG: Final = "events.jsonl"
_FILES = "journal.jsonl", _LOG, "metrics.csv", "lock"  # the files that a resumed run opens
_ROUNDS = 64  # number of latest rounds whose answers get `elapsed_s` and `took_s` in the log
_MOST_CONFIG_BYTES = 2**20
_MOST_TORN_BYTES: Final = 1 << 26  # of an incomplete last line; a power failure leaves less


def new_run_path(root: str | Path, label: str) -> Path:
    """Return a new path ``root/<UTC time>-<label>-<random>`` for a run."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    safe = "".join(c if c.isalnum() or c in "-." else "_" for c in label)
    return Path(root, f"{stamp}-{safe[:100]}-{secrets.token_hex(4)}")


class RunDirectory:
    """The folder of one run. It must be new unless it is ``reopened``.

    If a ``config`` is given for a reopened folder, `save_config` writes it.

    The folder contains ``config.toml`` (the configuration), ``events.jsonl`` (the event log),
    ``metrics.csv`` (losses), ``journal.jsonl`` (decisions, for `resume`), ``checkpoints/``
    (checkpoints and trained weights), ``saved/`` (weights saved during training, if configured),
    ``weights/`` (versions in use), ``lock`` and ``masters/`` (the lease of the master), and
    ``workers`` (the number of local processes, if it was changed).

    Raises
    ------
    ParameterError
        If a new folder exists already, or if a reopened folder is not the folder of a run. Nothing
        is written.
    OSError
        If the disk is full. Nothing is left.

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
        self._new_config = config if reopened else ""
        if reopened:
            if not self.path.resolve().name:
                raise no_run(path, "it has no name, which is the seed of rounding")
            if not self._config.is_file():
                raise no_run(path, "it has no config.toml")
            for name in _FILES:  # reading a pipe could block, and a device may have no end
                file = self.path / name
                if file.exists() and not file.is_file():
                    raise no_run(path, f"{name} is not a regular file")
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
        """The folder of weights that are saved during the training."""
        return self.path / "saved"

    @property
    def journal(self) -> Path:
        """The file of the run's decisions."""
        return self.path / "journal.jsonl"

    @property
    def config(self) -> str:
        """The text of the configuration. Raises `StoreError` if it cannot be read."""
        if self._new_config:
            return self._new_config
        try:
            return read_bounded(self._config, most_bytes=_MOST_CONFIG_BYTES).decode(
                errors="replace"
            )
        except OSError as error:
            raise StoreError(f"{self._config}: {error.strerror or error}") from error

    def save_config(self) -> None:
        """Write the text with which the folder was reopened, if any, to ``config.toml``."""
        if self._new_config:
            with replacing(self._config) as file:
                file.write(self._new_config.encode())


def _require_lines(run: Path, name: str) -> None:
    """Raise `ParameterError` if the end of a file, without a line break, is unreasonably long."""
    with suppress(FileNotFoundError), (run / name).open("rb") as file:
        try:
            _end_of_lines(file)
        except ValueError as error:
            raise no_run(run, f"{name}: {error}") from None


class Forgiving:
    """An observer that calls another observer until that observer raises an `OSError`.

    The run continues without the other observer, and ``warn`` is called once. ``then`` is the part
    of the warning that says what happens.
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


def log_functions(path: Path, leases: ports.Leases) -> None:
    """Append the billed times of a master's resident functions to its log, if it has one.

    The functions end after the log was closed. Errors are ignored.
    """
    with suppress(OSError):
        if path.exists():
            names = ("count", "likely_ms", "ended_ms", "open_ms")
            fields = {name: getattr(leases, name) for name in names}
            with closing(EventLog(path)) as log:
                log(ports.Notice(kind=FUNCTIONS, fields=fields))


@dataclass(slots=True)
class _Sent:
    """The times, in seconds, at which the tasks (worker, attempt) of a round left the master."""

    began_at: float
    left_at: dict[tuple[int, int], float] = field(default_factory=dict)


class EventLog:
    """An observer that appends all events, except ticks, to ``events.jsonl``.

    Each line is a JSON object with ``event`` and ``at_s``, the seconds since the log was opened. An
    answer also has ``elapsed_s``, the seconds since the round's first task left, and ``took_s``,
    the seconds since its own task left; and the phases of the worker, if it reports them
    (`seqgc.ports.TaskPhases`). With these times, the rounds of a run are a delay profile.
    A dispatch has ``load``, the mean load of the workers in the round as a share of a job's batch,
    and, if the tasks have other loads, ``loads`` in the order of the workers.
    The answer to one mini-task of a task that continues is a ``part``, with the ``slot`` and the
    ``load`` of the mini-tasks up to this one.
    A decoded job has ``error``, which is 0 unless the job was decoded approximately (`Decoding`). A
    job whose gradient comes in parts is logged as decoded when its round closes. A part that is
    applied to the weights again is logged as a ``repeat``.
    """

    def __init__(self, path: Path) -> None:
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._began = time.monotonic()
        self._sent: dict[int, _Sent] = {}  # of the latest rounds
        # Of the latest rounds, by worker, attempt and slot: the loads of parts.
        self._part_loads: dict[int, dict[tuple[int, int, int], float]] = {}
        self._workers: object = None  # number of workers, once the run has begun
        self._is_dealt = False  # with `deal`, a dispatch has no load of a round
        self._in_parts: set[int] = set()  # jobs that have had updates by parts

    def close(self) -> None:
        """Close the file. Errors are ignored."""
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
                self._write("dispatch", **about, **had, **some, **self._loads(seen))
                self._note_part_loads(seen)
            case ports.Dispatched():
                self._note_sent(seen)
            case ports.Arrival() | ports.PartialArrival() | ports.Failure() | ports.Drop():
                self._answer(seen)
            case ports.Close():
                self._close_round(seen.record, seen.jobs)
            case ports.Cancel(round=round, workers=workers):
                self._write("cancel", round=round, workers=workers)
            case ports.Restart(worker=worker):
                self._write("restart", worker=worker)
            case ports.Finish() | ports.Update():
                self._decode(seen)

    def _loads(self, dispatch: ports.Dispatch) -> dict[str, object]:
        """Return the mean load of the round, and the loads of the tasks if they differ from it."""
        if dispatch.loads is None:
            return {}
        mean = {} if self._is_dealt else {"load": float(np.mean(dispatch.loads))}
        loads = [float(dispatch.loads[worker]) for worker in sorted(dispatch.assignment)]
        if all(load == mean.get("load") for load in loads):
            return {**mean}
        return {**mean, "loads": loads[0] if len(set(loads)) == 1 else loads}

    def _note_part_loads(self, dispatch: ports.Dispatch) -> None:
        """Record the loads of the answers to single mini-tasks, if they are asked for."""
        for worker, items in (dispatch.item_loads or {}).items():
            slots = [(worker, dispatch.attempt, task.slot) for task in dispatch.assignment[worker]]
            loads_until = dict(zip(slots, itertools.accumulate(items), strict=True))
            self._part_loads.setdefault(dispatch.round, {}).update(loads_until)
        if len(self._part_loads) > _ROUNDS:
            del self._part_loads[min(self._part_loads)]

    def _write(self, event: str, **fields: object) -> None:
        at_s = round(time.monotonic() - self._began, 6)
        self._file.write(json.dumps({"event": event, "at_s": at_s, **fields}) + "\n")

    def _note_sent(self, seen: ports.Dispatched) -> None:
        sent = self._sent.setdefault(seen.round, _Sent(seen.at))
        pairs = zip(seen.workers, seen.left_at, strict=True)
        sent.left_at |= {(worker, seen.attempt): at for worker, at in pairs}
        if len(self._sent) > _ROUNDS:
            del self._sent[min(self._sent)]

    def _answer(
        self, seen: ports.Arrival | ports.PartialArrival | ports.Failure | ports.Drop
    ) -> None:
        about = seen.event if isinstance(seen, ports.Drop) else seen
        address = about.round, about.worker, about.attempt
        fields: dict[str, object] = dict(zip(("round", "worker", "attempt"), address, strict=True))
        if isinstance(about, ports.PartialArrival):
            fields["slot"] = about.slot
            place = about.worker, about.attempt, about.slot
            if (load := self._part_loads.get(about.round, {}).get(place)) is not None:
                fields["load"] = load
        if (sent := self._sent.get(about.round)) is not None:
            fields["elapsed_s"] = about.at - sent.began_at
            left_at = sent.left_at.get(address[1:])
            if not isinstance(about, ports.PartialArrival):  # so that a later drop has no `took_s`
                sent.left_at.pop(address[1:], None)
            if left_at is not None:
                fields["took_s"] = about.at - left_at
        if isinstance(seen, ports.Failure | ports.Drop):
            fields["reason"] = seen.reason
        if isinstance(seen, ports.Failure) and seen.flaws:
            fields["flaws"] = {model: flaw.why for model, flaw in seen.flaws.items()}
        if isinstance(seen, ports.Arrival) and seen.phases is not None:
            fields |= seen.phases._asdict()
        is_part = isinstance(seen, ports.PartialArrival)
        self._write("part" if is_part else type(seen).__name__.lower(), **fields)

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
            raise FileNotFoundError(errno.ENOENT, "the file was removed")


def _cut_torn_line(path: Path) -> None:
    """Remove the incomplete last line of a log, which a killed master may have left."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        if (end := _end_of_lines(file)) < file.seek(0, io.SEEK_END):
            file.truncate(end)


def _end_of_lines(file: IO[bytes]) -> int:
    """Return the length, in bytes, of all complete lines.

    Raises `ValueError` if too many bytes without a line break follow.
    """
    size = end = file.seek(0, io.SEEK_END)
    while end:
        if size - end >= _MOST_TORN_BYTES:
            raise ValueError(f"its last {size - end} bytes are not a complete line")
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        newline = file.read(end - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


_CHECKPOINTS = "checkpoints"
_RULE = "must be a folder that can be made"
# Characters. Workers accept 200, but in a resumed run the master's number is appended to the name.
_MOST_NAME = 180


def require_new(path: Path) -> None:
    """Raise `ParameterError` if a run's folder exists, or cannot be made. Nothing is written."""
    if path.name == "..":
        raise ParameterError("run", _RULE, str(path))
    try:
        path.lstat()  # a broken link also counts as existing
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # the name is not valid
        why = getattr(error, "strerror", None) or str(error)
        raise ParameterError("run", _RULE, str(path), why) from None
    else:
        rule = "must not exist: a run never overwrites another"
        raise ParameterError("run", rule, str(path), "choose another directory or remove it")
    _require_name(path)
    nearest = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise ParameterError("run", _RULE, str(path), f"{nearest.name} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ParameterError("run", _RULE, str(path), f"{nearest} is not writable")


def _require_name(path: Path) -> None:
    """Raise `ParameterError` if the name of a run is too long or not text.

    Each message to the workers contains the name.
    """
    name = os.path.basename(os.path.realpath(path))  # noqa: PTH119 (`resolve` raises at some names)
    if len(name) > _MOST_NAME:
        raise ParameterError("run", f"must have a name of at most {_MOST_NAME} characters", name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ParameterError("run", "must have a name that is text in UTF-8", name) from None


def make_run(path: Path, *, config: str) -> None:
    """Make the folder of a run, with its ``config.toml`` and ``checkpoints/``.

    The folder gets its name when it is complete, so that an incomplete folder is never taken for a
    run. The function waits until the name is on the disk.

    Raises
    ------
    ParameterError
        If the folder cannot be made, or exists already.
    OSError
        If the disk is full. Nothing is left.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.part")
    with _making(path):
        make_folder(partial)
    try:
        Path(partial, _CHECKPOINTS).mkdir()
        with replacing(Path(partial, "config.toml")) as file:
            file.write(config.encode())
        with _making(path):
            rename(partial, path)
    except BaseException as error:
        rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):  # name the final path, not the temporary one
            error.filename = str(path / "config.toml")
        raise


def remove_unbegun(path: Path) -> None:
    """Remove a folder if it is empty, or if it contains only an empty folder ``checkpoints``.

    Earlier versions left such a folder if they ended at once, or if the disk was full. All other
    folders are unchanged.
    """
    with suppress(OSError):
        if {each.name for each in path.iterdir()} == {_CHECKPOINTS}:
            Path(path, _CHECKPOINTS).rmdir()
        path.rmdir()


@contextmanager
def _making(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ParameterError("run", _RULE, str(path), error.strerror or "") from error

"""The log of a run, ``events.jsonl``, read line by line without trusting its content.

A damaged log is treated in two ways. The cost of a run is refused unless the log is complete; the
tables of a run show whatever is readable. So an unreadable line raises `ParameterError`, or, if the
reader passes `Gaps`, becomes an entry there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from seqgc._bounded import open_bounded
from seqgc.errors import ParameterError, no_run, one_line

LOG: Final = "events.jsonl"
SCHEMA: Final = 1
END: Final = "resume"  # of what a master has sent: the one after it sends anew, its clock at 0
_BEGINS: Final = ("run", END)
_MOST_LOG_BYTES: Final = 2**40  # read line by line
_MOST_LINE_BYTES: Final = 2**20
_USED: Final = ("dispatch", "cancel", "arrival", "failure", "drop", "close", "decode")

_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]  # floats are made of them
_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The first line of a run's log: how much was to be done, and the ``sizes`` of its tasks.

    It may be a later master's: nothing waits until a log is on the disk.
    """

    event: Literal["run", "resume"]
    schema: Literal[1]
    workers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    jobs: _Count = 1
    rounds: _Count = 1
    pieces: _Index = 0  # of a job, where work is dealt
    sizes: dict[str, _Count] = field(default_factory=dict)
    scheme: str = ""
    started_at: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A later line, as far as it says what was sent, what came of it, and which rounds closed."""

    event: str
    at_s: _Seconds
    round: _Index = -1  # the log does not say it
    worker: _Index = -1
    attempt: _Index = 0
    job: _Index = -1
    jobs: list[_Index] = []
    workers: list[_Index] | None = None
    # of each of these workers, or of all; None: in a log that does not say it, as many as may be
    mini_tasks: _Index | list[_Index] | None = None
    load: _Seconds | None = None
    took_s: _Seconds | None = None
    elapsed_s: _Seconds | None = None
    kappa_s: _Seconds = 0.0
    duration_s: _Seconds = 0.0
    reason: str = ""
    waited_out: bool = False
    stragglers: list[_Index] = []
    error: float | None = None

    def counts(self, workers: int) -> Sequence[int | None]:
        """Return the number of mini-tasks sent to each of ``workers`` workers; None if unknown."""
        counts = self.mini_tasks
        if isinstance(counts, list) and len(counts) == workers:
            return counts
        return [None if isinstance(counts, list) else counts] * workers


class _Moment(msgspec.Struct, frozen=True, gc=False):
    event: str
    at_s: _Seconds


class _LogSchema(msgspec.Struct, frozen=True, gc=False):
    schema: int


class Gaps(list[str]):
    """Sentences on what cannot be shown of a run. Unreadable lines are counted in one sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._lines, self._first = 0, 0

    def leave_out(self, number: int) -> None:
        """Count a line that cannot be read, by its number from 1."""
        self._first = self._first or number
        self._lines += 1

    def end_log(self) -> None:
        """Say how many lines could not be read."""
        if self._lines:
            lines = "1 line" if self._lines == 1 else f"{self._lines:,} lines"
            where = f"line {self._first:,}" if self._lines == 1 else f"from line {self._first:,} on"
            self.append(f"{lines} of {LOG} cannot be read and are left out ({where}).")


_Read = TypeVar("_Read", RunHeader, Event, _Moment, _LogSchema)
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_run_header(run: str | Path) -> RunHeader:
    """Return the first line of a run's log, or raise `ParameterError`."""
    return read_run_log(Path(run))[0]


def read_run_log(
    run: Path, *, gaps: Gaps | None = None
) -> tuple[RunHeader, Iterator[tuple[Event, bytes]]]:
    """Return the header of a run's log, and its later events, each with its line; then the end.

    Of events of other kinds than `Event` tells of, it has ``event`` and ``at_s`` alone. The end of
    what a master has sent, a later one's header or the log's end, is an event of the kind `END`.

    Raises
    ------
    ParameterError
        If it is no run's log, or one of another version; and, unless ``gaps`` are to be noted
        instead, if a line cannot be read, at once or where it comes.
    """
    lines = _lines(run, gaps)
    for number, line in lines:
        if gaps is None:
            _require_schema(line, run)
            return _decoded(line, number, RunHeader, run), _events(run, lines, None)
        try:
            header = _header(line, run)
        except _FAULTS:
            gaps.leave_out(number)
        else:
            return header, _events(run, lines, gaps)
    raise no_run(run, f"{LOG} has no whole line that begins a run")


def _header(line: bytes, run: Path) -> RunHeader:
    _require_schema(line, run)
    return msgspec.json.decode(line, type=RunHeader)


def jobs_of(line: bytes) -> int:
    """Return how many jobs the run has according to a header; 1 if that cannot be read."""
    try:
        return msgspec.json.decode(line, type=RunHeader).jobs
    except _FAULTS:
        return 1


def _require_schema(line: bytes, run: Path) -> None:
    """Refuse a header of another version, which may look like damage."""
    try:
        schema = msgspec.json.decode(line, type=_LogSchema).schema
    except _FAULTS:
        return
    if schema != SCHEMA:
        found = one_line(schema, limit=20)
        raise no_run(run, f"{LOG} has schema {found}, and this version of seqgc reads {SCHEMA}")


def _events(
    run: Path, lines: Iterator[tuple[int, bytes]], gaps: Gaps | None
) -> Iterator[tuple[Event, bytes]]:
    at_s = 0.0
    decode = msgspec.json.Decoder(Event).decode
    for number, line in lines:
        try:
            event = decode(line)
        except _FAULTS:
            try:  # other events may have fields of these names that mean something else
                moment = _decoded(line, number, _Moment, run)
                if moment.event in _USED:
                    _decoded(line, number, Event, run)
            except ParameterError:
                if gaps is None:
                    raise
                gaps.leave_out(number)
                continue
            event = Event(event=moment.event, at_s=moment.at_s)
        if event.event == END:
            _require_schema(line, run)
            yield Event(event=END, at_s=at_s), line
        else:
            yield event, line
        at_s = event.at_s
    yield Event(event=END, at_s=at_s), b""


def _lines(run: Path, gaps: Gaps | None) -> Iterator[tuple[int, bytes]]:
    """Yield a log's lines by number; a torn last one, of a master that was killed, is left out."""
    number, line = 0, b""
    try:
        with open_bounded(run / LOG, most_bytes=_MOST_LOG_BYTES) as file:
            while line := file.readline(_MOST_LINE_BYTES):
                number += 1
                if line.endswith(b"\n"):
                    yield number, line
                elif len(line) == _MOST_LINE_BYTES:
                    if gaps is None:
                        raise no_run(run, f"{LOG} has a line of {len(line)} bytes, or more")
                    gaps.append(f"{LOG} is shown up to line {number:,}, which is too long.")
                    return
                elif gaps is not None:
                    gaps.append(f"The last line of {LOG} is torn: the run was killed, or goes on.")
    except OSError as error:
        raise no_run(run, f"{LOG}: {error.strerror}") from None


def _decoded(line: bytes, number: int, kind: type[_Read], run: Path) -> _Read:
    try:
        return msgspec.json.decode(line, type=kind)
    except _FAULTS as error:
        raise no_run(run, f"line {number} of {LOG}: {error}") from None

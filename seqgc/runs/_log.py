"""Reading of the log of a run, ``events.jsonl``, line by line without trusting its content.

There are two ways to read a damaged log. The cost of a run requires a complete log, so an
unreadable line raises `ParameterError`. The tables of a run show all readable lines; if the reader
passes a `Gaps`, an unreadable line is counted there instead of raising an error.
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
FUNCTIONS: Final = "functions"  # the billed times of a master's resident functions
END: Final = "resume"  # the end of a master's tasks; a resumed run's clock begins at 0 again
_MOST_LOG_BYTES: Final = 2**40  # the log is never in memory as a whole
_MOST_LINE_BYTES: Final = 2**20
_USED: Final = (
    "dispatch",
    "cancel",
    "arrival",
    "part",
    "failure",
    "drop",
    "close",
    "decode",
    FUNCTIONS,
)

_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]  # a float represents each of them exactly
_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The first readable line of a run's log: the amount of work, and the ``sizes`` of tasks.

    If the run was resumed, it may be the line of a later master, because nothing waits until the
    log is on the disk.
    """

    event: Literal["run", "resume"]
    schema: Literal[1]
    workers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    jobs: _Count = 1
    rounds: _Count = 1
    pieces: _Index = 0  # number of pieces of a job, with `deal`
    sizes: dict[str, _Count] = field(default_factory=dict)
    scheme: str = ""
    started_at: str = ""
    mu: float = 0.0
    wait_out: str = "feasible"
    models: list[str] = field(default_factory=list)
    batch: int | None = None  # data points in a batch, if all models have the same number
    provider: str = ""  # kind of the workers

    @property
    def bundle(self) -> int:
        """The number of models in a job."""
        return self.sizes.get("models", 1)


class LogEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A later line of the log, with the fields about tasks, answers, rounds and jobs."""

    event: str
    at_s: _Seconds
    round: _Index = -1  # -1: not in the log
    worker: _Index = -1
    attempt: _Index = 0
    slot: _Index = -1
    job: _Index = -1
    jobs: list[_Index] = []
    workers: list[_Index] | None = None
    # For all workers, or for each of ``workers``. None: not in the log.
    mini_tasks: _Index | list[_Index] | None = None
    load: _Seconds | None = None  # the mean load of all workers in the round
    loads: _Seconds | list[_Seconds] | None = None  # of the tasks, if they differ from ``load``
    took_s: _Seconds | None = None
    elapsed_s: _Seconds | None = None
    waited_s: _Seconds | None = None  # see `seqgc.ports.TaskPhases`
    started_s: _Seconds | None = None
    fetched_s: _Seconds | None = None
    computed_s: _Seconds | None = None
    kappa_s: _Seconds = 0.0
    duration_s: _Seconds = 0.0
    reason: str = ""
    waited_out: bool = False
    stragglers: list[_Index] = []
    error: float | None = None
    # Of resident functions, see `seqgc.ports.Leases`.
    count: _Milliseconds = 0
    likely_ms: _Milliseconds = 0
    ended_ms: _Milliseconds = 0
    open_ms: _Milliseconds = 0

    def counts(self, workers: int) -> Sequence[int | None]:
        """Return the number of mini-tasks for each of ``workers`` workers, or None if unknown."""
        counts = self.mini_tasks
        if isinstance(counts, list) and len(counts) == workers:
            return counts
        return [None if isinstance(counts, list) else counts] * workers

    def task_loads(self, workers: int) -> Sequence[float | None]:
        """Return the load of each of ``workers`` tasks, or None if unknown."""
        loads = self.load if self.loads is None else self.loads
        if isinstance(loads, list):
            return loads if len(loads) == workers else [None] * workers
        return [loads] * workers


class _Moment(msgspec.Struct, frozen=True, gc=False):
    event: str
    at_s: _Seconds


class _LogSchema(msgspec.Struct, frozen=True, gc=False):
    schema: int


class Gaps(list[str]):
    """A list of sentences about parts of a run that cannot be shown.

    One sentence counts all unreadable lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines, self._first = 0, 0

    def leave_out(self, number: int) -> None:
        """Count an unreadable line. ``number`` is its line number, from 1."""
        self._first = self._first or number
        self._lines += 1

    def end_log(self) -> None:
        """Add the sentence about unreadable lines, if there are any."""
        if self._lines:
            lines = "1 line" if self._lines == 1 else f"{self._lines:,} lines"
            where = f"line {self._first:,}" if self._lines == 1 else f"from line {self._first:,} on"
            self.append(f"{lines} of {LOG} cannot be read and are left out ({where}).")


_Read = TypeVar("_Read", RunHeader, LogEvent, _Moment, _LogSchema)
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_run_header(run: str | Path) -> RunHeader:
    """Return the first line of a run's log, or raise `ParameterError`."""
    return read_run_log(Path(run))[0]


def read_run_log(
    run: Path, *, gaps: Gaps | None = None
) -> tuple[RunHeader, Iterator[tuple[LogEvent, bytes]]]:
    """Return the header of a run's log, and an iterator over pairs of an event and its line.

    An event of a kind that `LogEvent` does not describe has only ``event`` and ``at_s``. When a run
    was resumed, and at the end of the log, the iterator yields an event of the kind `END`.

    Raises
    ------
    ParameterError
        If this is not the log of a run, or the log of another version. Without ``gaps``, also if a
        line cannot be read; the iterator raises the error at this line.
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
    raise no_run(run, f"{LOG} has no complete line that begins a run")


def _header(line: bytes, run: Path) -> RunHeader:
    _require_schema(line, run)
    return msgspec.json.decode(line, type=RunHeader)


def header_of(line: bytes) -> RunHeader | None:
    """Return the header of a later master, or None if its line cannot be read."""
    try:
        return msgspec.json.decode(line, type=RunHeader)
    except _FAULTS:
        return None


def _require_schema(line: bytes, run: Path) -> None:
    """Raise `ParameterError` if a header line is of another version, which could look damaged."""
    try:
        schema = msgspec.json.decode(line, type=_LogSchema).schema
    except _FAULTS:
        return
    if schema != SCHEMA:
        text = one_line(schema, limit=20)
        raise no_run(run, f"{LOG} has schema {text}, and this version of seqgc reads {SCHEMA}")


def _events(
    run: Path, lines: Iterator[tuple[int, bytes]], gaps: Gaps | None
) -> Iterator[tuple[LogEvent, bytes]]:
    at_s = 0.0
    decode = msgspec.json.Decoder(LogEvent).decode
    for number, line in lines:
        try:
            event = decode(line)
        except _FAULTS:
            try:  # other kinds of events may use the same field names for something else
                moment = _decoded(line, number, _Moment, run)
                if moment.event in _USED:
                    _decoded(line, number, LogEvent, run)
            except ParameterError:
                if gaps is None:
                    raise
                gaps.leave_out(number)
                continue
            event = LogEvent(event=moment.event, at_s=moment.at_s)
        if event.event == FUNCTIONS:  # written when the log had been closed
            event = msgspec.structs.replace(event, at_s=at_s)
        if event.event == END:
            _require_schema(line, run)
            yield LogEvent(event=END, at_s=at_s), line
        else:
            yield event, line
        at_s = event.at_s
    yield LogEvent(event=END, at_s=at_s), b""


def _lines(run: Path, gaps: Gaps | None) -> Iterator[tuple[int, bytes]]:
    """Yield the number and text of each complete line of a log.

    If a master was killed, the last line may be incomplete. It is not yielded.
    """
    number, line = 0, b""
    try:
        with open_bounded(run / LOG, most_bytes=_MOST_LOG_BYTES) as file:
            while line := file.readline(_MOST_LINE_BYTES):
                number += 1
                if line.endswith(b"\n"):
                    yield number, line
                elif len(line) == _MOST_LINE_BYTES:
                    if gaps is None:
                        raise no_run(run, f"{LOG} has a line of {len(line)} or more bytes")
                    gaps.append(f"{LOG} is shown up to line {number:,}, which is too long.")
                    return
                elif gaps is not None:
                    why = "the run was killed, or continues"
                    gaps.append(f"The last line of {LOG} is incomplete: {why}.")
    except OSError as error:
        raise no_run(run, f"{LOG}: {error.strerror}") from None


def _decoded(line: bytes, number: int, kind: type[_Read], run: Path) -> _Read:
    try:
        return msgspec.json.decode(line, type=kind)
    except _FAULTS as error:
        raise no_run(run, f"line {number} of {LOG}: {error}") from None

"""The log of a run, as far as it says what was used: whoever wrote it, it is only read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from seqgc._bounded import open_bounded
from seqgc.errors import no_run

_MOST_LOG_BYTES: Final = 2**40  # read line by line
_MOST_LINE_BYTES: Final = 2**20

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
END: Final = "resume"  # of what a master has sent: the one after it sends anew, its clock at 0
_USED: Final = ("dispatch", "cancel", "arrival", "failure")


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
    pieces: Annotated[int, msgspec.Meta(ge=0)] = 0  # of a job, where work is dealt
    sizes: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    event: str
    at_s: _Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """A later line, as far as it says what was used."""

    event: str
    at_s: _Seconds
    round: int = 0
    worker: int = 0
    attempt: int = 0
    jobs: list[int] = field(default_factory=list)
    workers: list[int] | None = None
    # of each of these workers, or of all; None: in a log that does not say it, as many as may be
    mini_tasks: _Number | list[_Number] | None = None
    took_s: _Seconds | None = None

    def counts(self, workers: int) -> Sequence[int | None]:
        """Return how many mini-tasks each of so many workers was sent; None: it is not said."""
        counts = self.mini_tasks
        if isinstance(counts, list) and len(counts) == workers:
            return counts
        return [None if isinstance(counts, list) else counts] * workers


_Read = TypeVar("_Read", RunHeader, _Moment, _Event)


def read_run_header(run: str | Path) -> RunHeader:
    """Return the first line of a run's log, or raise `ParameterError`."""
    return read_run_log(Path(run))[0]


def read_run_log(run: Path) -> tuple[RunHeader, Iterator[_Event]]:
    """Return the header of a run's log, and what of the rest says what was used; then the end.

    Raises
    ------
    ParameterError
        If it is no run's log, at once or where it ceases to be.
    """
    lines = _lines(run)
    first = next(lines, None)
    if first is None:
        raise no_run(run, "events.jsonl has no whole line")
    return _decoded(first, 1, RunHeader, run), _events(run, lines)


def _events(run: Path, lines: Iterator[bytes]) -> Iterator[_Event]:
    at_s = 0.0
    for number, line in enumerate(lines, start=2):
        moment = _decoded(line, number, _Moment, run)
        if moment.event == END:
            yield _Event(event=END, at_s=at_s)
        elif moment.event in _USED:
            yield _decoded(line, number, _Event, run)
        at_s = moment.at_s
    yield _Event(event=END, at_s=at_s)


def _lines(run: Path) -> Iterator[bytes]:
    """Yield a log's lines; a torn last one, of a master that was killed, is left out."""
    try:
        with open_bounded(run / "events.jsonl", most_bytes=_MOST_LOG_BYTES) as file:
            while (line := file.readline(_MOST_LINE_BYTES)).endswith(b"\n"):
                yield line
    except OSError as error:
        raise no_run(run, f"events.jsonl: {error.strerror}") from None
    if len(line) == _MOST_LINE_BYTES:
        raise no_run(run, f"events.jsonl has a line of {len(line)} bytes, or more")


def _decoded(line: bytes, number: int, kind: type[_Read], run: Path) -> _Read:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise no_run(run, f"line {number} of events.jsonl: {error}") from None

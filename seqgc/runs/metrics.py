"""Losses of a run's jobs: `metrics.csv`."""

from __future__ import annotations

import csv
import io
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seqgc import ports
from seqgc._durable import AppendOnly

__all__ = ["JobMetrics", "MetricsLog"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """A finished job's share of one model: its ``step`` (from 0), and the batch's mean loss.

    The loss is that of the weights which the job used, before its own gradient was applied.
    """

    job: int
    model: str
    step: int
    loss: float


_BLOCK_BYTES = 1 << 16
_MOST_UNSYNCED: Final = 1000  # losses; all of them are held until they are on the disk
_HEAD: Final = b"seconds,job,model,step,loss\r\n"  # of metrics.csv


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The content of a file at some time: its length and its CRC-32."""

    size_bytes: int = 0
    crc: int = 0

    def more(self, data: bytes) -> Written:
        """Return what it holds with these bytes at its end."""
        return Written(size_bytes=self.size_bytes + len(data), crc=zlib.crc32(data, self.crc))


class MetricsLog:
    """An observer that appends the losses of finished jobs to ``metrics.csv``.

    ``metrics`` returns the new losses, in the order in which jobs finished. An existing file is cut
    to its content ``before``, because later jobs are trained again; ``warn`` is called if this
    content has changed. ``unwritten`` are losses that the master before may not have written.
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
        """The losses that are not yet in ``lasting``: a power cut may remove them from the file."""
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
    """Return the content that is left of a file whose beginning was ``before``.

    If the file is damaged, this is its beginning up to the last complete line, and ``warn`` is
    called.
    """
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

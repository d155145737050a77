"""The losses of a run's jobs, in the file ``metrics.csv``."""

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
    """The loss of one model in a finished job.

    ``loss`` is the mean loss of the batch at the weights that the job used, before the job's
    gradient was applied. ``step`` is the number of the model's optimizer step, from 0.
    """

    job: int
    model: str
    step: int
    loss: float


_BLOCK_BYTES = 1 << 16
_MOST_UNSYNCED: Final = 1000  # losses that are kept in memory until they are on the disk
_HEAD: Final = b"seconds,job,model,step,loss\r\n"  # of metrics.csv


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A description of the content of a file: its length and its CRC-32."""

    size_bytes: int = 0
    crc: int = 0

    def more(self, data: bytes) -> Written:
        """Return the description after these bytes are appended."""
        return Written(size_bytes=self.size_bytes + len(data), crc=zlib.crc32(data, self.crc))


class MetricsLog:
    """An observer that appends the losses of finished jobs to ``metrics.csv``.

    ``metrics`` returns the new losses, in the order in which jobs finished. After a resume, jobs
    after the checkpoint are trained again. The file is therefore cut to ``before``, its content at
    the checkpoint. If this content has changed, ``warn`` is called. ``unwritten`` are losses that
    the previous master may not have written.
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
        self._unsynced: list[JobMetrics] = []  # written, but a power failure may lose them
        self._written = self.lasting = _intact(path, before or Written(), warn=warn)
        self._file = AppendOnly(path, keep_bytes=self.lasting.size_bytes)
        if not self.lasting.size_bytes:
            self._append(_HEAD, sync=False)
        self._began = time.monotonic()

    @property
    def unwritten(self) -> list[JobMetrics]:
        """The losses that may not be on the disk yet, so that a power failure could remove them."""
        return [*self._unsynced, *self._unwritten]

    def close(self) -> None:
        """Close the file. Errors are ignored."""
        with suppress(OSError):
            self._file.close()

    def __call__(self, seen: ports.Seen) -> None:
        if isinstance(seen, ports.Close) or (isinstance(seen, ports.Notice) and seen.kind == "end"):
            self.update()

    def update(self, *, sync: bool = False) -> None:
        """Write the new losses.

        If ``sync``, or if too many losses are not on the disk yet, wait until all are on the disk.
        """
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


def _intact(path: Path, before: Written, *, warn: Callable[[str], None]) -> Written:
    """Return the beginning of a file that can be kept; ``before`` describes the original beginning.

    If the file has changed, call ``warn`` and return the beginning up to the last complete line.
    """
    present = lines = Written()
    with suppress(FileNotFoundError), path.open("rb") as file:
        while data := file.read(min(_BLOCK_BYTES, before.size_bytes - present.size_bytes)):
            lines = present.more(data[: data.rfind(b"\n") + 1]) if b"\n" in data else lines
            present = present.more(data)
    if present != before:
        lost = before.size_bytes - present.size_bytes
        what = f"{lost} of its {before.size_bytes} bytes are lost" if lost else "bytes have changed"
        warn(f"{path} was damaged after the last checkpoint ({what}): losses in it may be wrong")
        return lines
    return present

"""Predicted run times in the log of a run, beside the times that the run took."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from seqgc.errors import ParameterError, one_line
from seqgc.runs._log import END, Gaps, read_run_log

__all__ = ["PastPredictions", "Prediction", "past_predictions", "read_predictions"]

_MOST_RUNS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A time that was predicted for the rest of a run, and the time that the rest took.

    ``source`` is ``plan`` if the time was predicted before the run (``predicted_round_s``), or
    ``search`` if a search during the run predicted it (``probe`` and ``retune``). ``scheme`` is the
    setting that the time was predicted for. ``took_s`` is None if the run has not finished. Both
    times are in seconds.
    """

    source: str
    scheme: str
    predicted_s: float
    took_s: float | None

    @property
    def error(self) -> float | None:
        """The error as a fraction of the time that the run took: 0.1 means 10 % too long."""
        return self.predicted_s / self.took_s - 1 if self.took_s else None

    @property
    def words(self) -> str:
        """A text with both times."""
        took = "the run has not finished" if self.took_s is None else f"took {self.took_s:.1f} s"
        return f"predicted {self.predicted_s:.1f} s, {took}"


class _SearchTimes(msgspec.Struct, frozen=True):
    to: float


class _Predicted(msgspec.Struct, frozen=True):
    predicted_s: float | _SearchTimes
    scheme: str = ""
    to: str = ""


def read_predictions(run: str | Path) -> tuple[Prediction, ...]:
    """Return the predictions of a run, in their order.

    Times are on the run's clock, which stands still from the end of a master until the run is
    resumed.

    Raises
    ------
    ParameterError
        If this is not the folder of a run.
    """
    made: list[tuple[float, str, _Predicted]] = []
    offset_s, ended_s, finished = 0.0, 0.0, False
    for event, line in read_run_log(Path(run), gaps=Gaps())[1]:
        at_s = offset_s + event.at_s
        if event.event == END:
            offset_s, finished = at_s, finished and not line
        elif event.event in ("prediction", "search"):
            try:
                fields = msgspec.json.decode(line, type=_Predicted)
            except (msgspec.DecodeError, UnicodeDecodeError):  # a search that failed
                continue
            made.append((at_s, "plan" if event.event == "prediction" else "search", fields))
        elif event.event in ("close", "decode"):
            ended_s = at_s
        elif event.event == "end":
            finished = b'"finished"' in line
    predictions = []
    for at_s, source, fields in made:
        seconds = fields.predicted_s
        predictions.append(
            Prediction(
                source=source,
                scheme=one_line(fields.scheme or fields.to, limit=100),
                predicted_s=seconds if isinstance(seconds, float) else seconds.to,
                took_s=ended_s - at_s if finished else None,
            )
        )
    return tuple(predictions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPredictions:
    """The errors of the predictions of past runs, as fractions of the times that they took.

    0.1 means that the predicted time was 10 % too long.
    """

    runs: int
    errors: tuple[float, ...]

    @property
    def words(self) -> str:
        """A sentence about the errors."""
        low, middle, high = (100 * float(q) for q in np.quantile(self.errors, [0.0, 0.5, 1.0]))
        return (
            f"On {self.runs} past runs here, {len(self.errors)} predicted times were off by "
            f"{middle:+.0f} % in the median ({low:+.0f} … {high:+.0f} %)."
        )


def past_predictions(root: str | Path) -> PastPredictions | None:
    """Return the errors of the predictions of the newest 200 runs in a folder, or None.

    Folders that cannot be read as runs are left out.
    """
    errors, runs = list[float](), 0
    for folder in _folders(Path(root)):
        try:
            found = [each.error for each in read_predictions(folder)]
        except ParameterError:
            continue
        known = [error for error in found if error is not None]
        runs, errors = runs + bool(known), errors + known
    return PastPredictions(runs=runs, errors=tuple(errors)) if errors else None


def _folders(root: Path) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            found: Sequence[tuple[float, str]] = [
                (entry.stat().st_mtime, entry.path) for entry in entries if entry.is_dir()
            ]
    except OSError:
        return
    for _, path in sorted(found, reverse=True)[:_MOST_RUNS]:
        yield Path(path)

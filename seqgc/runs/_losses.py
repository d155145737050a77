"""The losses of a run, ``metrics.csv``: a row for each step that a model took."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from seqgc._bounded import open_bounded
from seqgc.errors import one_line
from seqgc.ports import FloatArray, IntArray, Table
from seqgc.runs._columns import Columns, frozen_table, texts
from seqgc.runs._log import Gaps

__all__ = ["read_losses"]

_FILE: Final = "metrics.csv"
_MOST_ROWS: Final = 2_000_000
_MOST_MODELS: Final = 10_000
_MOST_BYTES: Final = 2**40
_MOST_LINE_BYTES: Final = 2**12
_LONGEST_NAME: Final = 100


def read_losses(run: Path, jobs: Table, *, gaps: Gaps) -> Table:
    """Return the losses of a run, by model and step: a later row of a step replaces an earlier one.

    When a step was taken is when its job was decoded, NaN if the log does not say.
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
    found = rows.take()
    keys = np.stack([found["model"], found["step"]])[:, ::-1]
    _, from_end = np.unique(keys, axis=1, return_index=True)
    found = {name: column[keys.shape[1] - 1 - from_end] for name, column in found.items()}
    return frozen_table(
        {
            "model": texts(list(names), found["model"]),
            "step": found["step"],
            "job": found["job"],
            "loss": found["loss"],
            "at_s": _when(found["job"], jobs),
        }
    )


def _rows(run: Path, gaps: Gaps) -> Iterator[list[str]]:
    with open_bounded(run / _FILE, most_bytes=_MOST_BYTES) as file:
        file.readline(_MOST_LINE_BYTES)  # the heading
        while line := file.readline(_MOST_LINE_BYTES):
            if not line.endswith(b"\n"):
                gaps.append(f"The last line of {_FILE} is torn, or too long.")
                return
            try:
                yield next(csv.reader([line.decode(errors="replace")], strict=True), [])
            except csv.Error:
                yield []


def _row(cells: list[str], names: dict[str, int]) -> tuple[int, int, int, float] | None:
    """Return a row's model, by its place among the ``names``, job, step and loss."""
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
    """Return when jobs were decoded, seconds of the run; those ``jobs`` are in ascending order."""
    if not len(jobs["job"]):
        return np.full(len(of), np.nan)
    known = jobs["job"]
    place = np.searchsorted(known, of).clip(max=len(known) - 1)
    return np.where(known[place] == of, jobs["finished_s"][place], np.nan)

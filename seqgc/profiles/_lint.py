"""What is legal in a recording, and yet looks like an accident of the measurement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from seqgc.errors import ProfileError
from seqgc.ports import FloatArray, IntArray
from seqgc.profiles._profile import DelayProfile

__all__ = ["Finding", "Rule", "Severity", "lint", "require_sound"]

Severity: TypeAlias = Literal["error", "warning"]
Rule: TypeAlias = Literal[
    "no-answer", "constant", "cold-start", "duplicate-row", "retry", "stall", "silent-worker"
]

COLD_RATIO = 1.5
STALL_RATIO = 10.0
CLUSTER_RATIO = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to look at, and where: round and worker from 0, None for all of them.

    An ``error`` makes the recording useless; a ``warning`` may be true of the workers.
    """

    rule: Rule
    severity: Severity
    message: str
    row: int | None = None
    column: int | None = None


def lint(profile: DelayProfile) -> list[Finding]:
    """Return what looks wrong in a profile, errors first, then from top to bottom.

    These are errors:

    - ``no-answer``: a round, or the whole recording, in which nobody answered;
    - ``constant``: a recording all of whose times are the same.

    And these are warnings:

    - ``constant``: a round all of whose times are the same;
    - ``duplicate-row``: a round that repeats an earlier one to the last digit;
    - ``silent-worker``: a worker that answered in no round;
    - ``cold-start``: a first round whose median is more than 1.5 times the median of the other
      rounds' medians (three rounds or more);
    - ``retry``: an answer that took more than 10 times its round's median, where another such
      answer came as much later than its own round's median, to 10 %: clients give up, wait and ask
      again after fixed times, so that retries inside latencies gather at common offsets;
    - ``stall``: an answer that took more than 10 times its round's median, at no such offset.

    Examples
    --------
    >>> times = [[0.9, 0.8, 0.7], [0.3, 0.4, 25.4], [0.5, 0.4, 0.4], [25.9, 0.3, 0.4]]
    >>> for found in lint(DelayProfile.from_times(times)):
    ...     print(found.rule, found.row, found.column)
    cold-start 0 None
    retry 1 2
    retry 3 0
    """
    found = [*_errors(profile)]
    if not found:
        found = [*_rows(profile), *_columns(profile), *_cold_start(profile), *_slow(profile)]
    return sorted(
        found, key=lambda f: (f.severity != "error", _place(f.row), _place(f.column), f.rule)
    )


def require_sound(profile: DelayProfile) -> DelayProfile:
    """Return the profile, unless `lint` finds an error in it.

    Raises
    ------
    ProfileError
        For the first error.

    Examples
    --------
    >>> require_sound(DelayProfile.from_times([[0.5, 0.5]]))
    Traceback (most recent call last):
        ...
    seqgc.errors.ProfileError: all times are the same, 0.5 s: this was not measured
    """
    for found in lint(profile):
        if found.severity == "error":
            raise ProfileError(found.message)
    return profile


def _place(index: int | None) -> int:
    return -1 if index is None else index


def _errors(profile: DelayProfile) -> Iterator[Finding]:
    silent = (profile.status != 0).all(axis=1)
    if silent.all():
        message = "no worker answered in any round: this is no recording of delays"
        yield Finding(rule="no-answer", severity="error", message=message)
        return
    for row in np.flatnonzero(silent).tolist():
        message = f"row {row} (round, from 0): no worker answered"
        yield Finding(rule="no-answer", severity="error", message=message, row=row)
    if profile.times.size > 1 and np.ptp(profile.times) == 0:
        message = f"all times are the same, {float(profile.times[0, 0])} s: this was not measured"
        yield Finding(rule="constant", severity="error", message=message)


def _rows(profile: DelayProfile) -> Iterator[Finding]:
    seen: dict[bytes, int] = {}
    for row, times in enumerate(profile.times):
        if profile.num_workers > 1 and np.ptp(times) == 0:
            message = f"row {row}: every worker took the same {float(times[0])} s"
            yield Finding(rule="constant", severity="warning", message=message, row=row)
        first = seen.setdefault(times.tobytes(), row)
        if first != row:
            message = f"row {row} repeats row {first} to the last digit"
            yield Finding(rule="duplicate-row", severity="warning", message=message, row=row)


def _columns(profile: DelayProfile) -> Iterator[Finding]:
    for column in np.flatnonzero((profile.status != 0).all(axis=0)).tolist():
        message = f"column {column} (worker, from 0) answered in no round"
        yield Finding(rule="silent-worker", severity="warning", message=message, column=column)


def _cold_start(profile: DelayProfile) -> Iterator[Finding]:
    if profile.num_rounds < 3:
        return
    medians = _medians(profile)
    usual = float(np.median(medians[1:]))
    if medians[0] > COLD_RATIO * usual:
        message = (
            f"row 0: its median, {medians[0]:.3f} s, is {medians[0] / usual:.1f} times that of the "
            "other rounds: workers were cold; leave it out"
        )
        yield Finding(rule="cold-start", severity="warning", message=message, row=0)


def _slow(profile: DelayProfile) -> Iterator[Finding]:
    medians = _medians(profile)
    late = (profile.times > STALL_RATIO * medians[:, None]) & (profile.status == 0)
    rows, columns = np.nonzero(late)
    offsets = profile.times[late] - medians[rows]
    cluster, sizes = _clusters(offsets)
    for index, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        others = int(sizes[cluster[index]]) - 1
        took = (
            f"row {row}, column {column}: took {profile.times[row, column]:.3f} s, "
            f"{profile.times[row, column] / medians[row]:.0f} times its round's median"
        )
        if others:
            message = f"{took}, and {others} more came as late: a client's time-out and retry"
        else:
            message = f"{took}, and no other came as late: a stall"
        rule: Rule = "retry" if others else "stall"
        yield Finding(rule=rule, severity="warning", message=message, row=row, column=column)


def _medians(profile: DelayProfile) -> FloatArray:
    """Return each round's median (rounds,) over the workers that answered; all rounds have some."""
    rows = zip(profile.times, profile.status == 0, strict=True)
    return np.array([np.median(times[answered]) for times, answered in rows])


def _clusters(offsets: FloatArray) -> tuple[IntArray, IntArray]:
    """Return each offset's cluster, and the clusters' sizes.

    From the smallest offset up, a cluster takes what is at most 1.1 times its smallest member.
    """
    cluster = np.empty(len(offsets), dtype=np.intp)
    sizes: list[int] = []
    first = -np.inf
    for index in np.argsort(offsets, kind="stable").tolist():
        if not sizes or offsets[index] > CLUSTER_RATIO * first:
            first = offsets[index]
            sizes.append(0)
        cluster[index] = len(sizes) - 1
        sizes[-1] += 1
    return cluster, np.array(sizes, dtype=np.intp)

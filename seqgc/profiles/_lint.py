"""Checks for values of a recording that are valid, but look like errors of the measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles._censored import longest_known
from seqgc.profiles._delay_profile import DelayProfile

__all__ = ["Finding", "lint", "lint_series"]

_LEAST_S = 1e-4  # a worker needs longer than this to receive a task, compute, and answer
_COLD_RATIO = 1.5
_STALL_RATIO = 10.0
_CLUSTER_RATIO = 1.1
_OFTEN_FAILED = 0.25  # of all calls
_FIND_OUT = "find out why (`seqgc doctor`, the functions' logs), and record again"
MOST_USUAL_S = 1000.0  # a larger median is more likely in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A suspicious value of a recording, and its place.

    ``row`` is the round and ``column`` is the worker, both from 0; None means all of them. An
    ``error`` makes the recording useless; a ``warning`` may be a true property of the workers.
    `lint` and `lint_series` list the rules.
    """

    rule: str
    severity: Literal["error", "warning"]
    message: str
    row: int | None = None
    column: int | None = None


_error = partial(Finding, severity="error")
_warning = partial(Finding, severity="warning")


def lint(profile: DelayProfile) -> list[Finding]:
    """Return the suspicious values of a profile, errors first, then from top to bottom.

    These are errors:

    - ``no-answer``: in a round, or in the whole recording, no worker answered;
    - ``mostly-failed``: at least half of all calls failed, so that the answers say little about the
      workers;
    - ``constant``: all times of the recording are equal;
    - ``too-fast``: answers took less than 0.1 ms, which is impossible;
    - ``alpha``: according to the load model, half of the answers would take no time at load 0, so
      that neither `tune` nor bounds can use the recording.

    These are warnings:

    - ``often-failed``: at least a quarter of all calls failed;
    - ``cancelled``: tasks were cancelled before they answered (as in a run with a code), after a
      longer time than any answer took, so that their times are too short;
    - ``milliseconds``: the median answer took more than 1,000 s;
    - ``alpha``: according to the load model, some answers would take no time at load 0;
    - ``constant``: all times of a round are equal;
    - ``duplicate-row``: a round is equal to an earlier round to the last digit;
    - ``silent-worker``: a worker answered in no round;
    - ``cold-start``: the median of the first round is more than 1.5 times the median of the other
      rounds' medians (for three rounds or more);
    - ``retry``: an answer took more than 10 times its round's median, and another such answer has
      the same delay behind its own round's median, to 10 %. Clients try again after fixed times, so
      that answers to retries have common delays;
    - ``stall``: an answer took more than 10 times its round's median, without such a common delay.

    Examples
    --------
    >>> times = [[0.9, 0.8, 0.7], [0.3, 0.4, 25.4], [0.5, 0.4, 0.4], [25.9, 0.3, 0.4]]
    >>> for found in lint(DelayProfile.from_times(times)):
    ...     print(found.rule, found.row, found.column)
    cold-start 0 None
    retry 1 2
    retry 3 0
    """
    findings = [*_errors(profile)]
    if not findings:
        findings = [*_impossible_loads(profile), *_warnings(profile), *_slow(profile)]

    def place(finding: Finding) -> tuple[bool, int, int, str]:
        row, column = (-1 if at is None else at for at in (finding.row, finding.column))
        return finding.severity != "error", row, column, finding.rule

    return sorted(findings, key=place)


def are_milliseconds(usual_s: float) -> str:
    """Return a warning for a recording whose median answer took ``usual_s`` seconds."""
    asked = f"the median answer took {usual_s:.6g} s: are these milliseconds? Times are in seconds"
    return f"{asked}; if so, divide them by 1000"


def lint_series(profiles: Sequence[DelayProfile]) -> list[Finding]:
    """Return the recordings that do not fit the other recordings of the same workers.

    The recordings are at different loads; at least three are needed. There is one warning,
    ``crashed``, for a recording with two properties: (a) its median answer took less than half as
    long as the median answer of any other recording; (b) the line through the medians of the other
    recordings predicts a median that is higher by more than half of the median of these medians. If
    the status of calls was not recorded, calls that ended early with an error look like quick
    answers.

    Examples
    --------
    >>> from seqgc.profiles import ProfileMeta
    >>> series = [
    ...     DelayProfile.from_times([[s, 1.1 * s]], meta=ProfileMeta(base_load=load))
    ...     for load, s in ((0.0, 0.2), (0.5, 16.0), (1.0, 17.0))
    ... ]
    >>> [found.rule for found in lint_series(series)], lint_series(series[1:])
    (['crashed'], [])
    """
    known = [p for p in profiles if p.answered.any()]
    loads = np.array([p.meta.base_load for p in known])
    medians = np.array([float(np.median(p.times[p.answered])) for p in known])
    found = []
    for index, profile in enumerate(known):
        others = np.arange(len(known)) != index
        if len(np.unique(loads[others])) < 2:
            continue
        slope, start = np.polyfit(loads[others], medians[others], 1)
        due, took = float(start + slope * loads[index]), float(medians[index])
        if took < medians[others].min() / 2 and due - took > np.median(medians[others]) / 2:
            message = (
                f"the recording at base load {profile.meta.base_load:.4g}: its median answer took "
                f"{took:.3g} s, but the other recordings predict {due:.3g} s: its calls may have "
                "crashed early; leave it out, or record it again and look at the replies"
            )
            found.append(_warning(rule="crashed", message=message))
    return found


def _errors(profile: DelayProfile) -> Iterator[Finding]:
    times, failed = profile.times, _failed(profile)
    silent = ~profile.answered.any(axis=1)
    if silent.all():
        message = "no worker answered in any round, which leaves no delays to use"
        yield _error(rule="no-answer", message=message)
        return
    for row in np.flatnonzero(silent).tolist():
        message = f"row {row} (round, from 0): no worker answered"
        yield _error(rule="no-answer", message=message, row=row)
    failures = int(np.count_nonzero(failed))
    if 2 * failures >= failed.size:
        message = f"{failures} of {failed.size} calls failed: the few answers say little "
        message += f"about the workers; {_FIND_OUT}"
        yield _error(rule="mostly-failed", message=message)
    answers = times[profile.answered]
    if answers.size > 1 and np.ptp(answers) == 0:
        message = f"all times are the same, {float(answers[0])} s: this was not measured; "
        message += "use the matrix of times as it was recorded"
        yield _error(rule="constant", message=message)
    fast = (times < _LEAST_S) & profile.answered
    if fast.any():
        row, column = np.argwhere(fast)[0].tolist()
        message = (
            f"{int(fast.sum())} answers took less than {_LEAST_S * 1e3:g} ms, the first in row "
            f"{row}, column {column} ({times[row, column]:.3g} s): no worker is this fast; the "
            "clock was started after the task had left, or the times are not seconds; record again"
        )
        yield _error(rule="too-fast", message=message, row=row, column=column)


def _impossible_loads(profile: DelayProfile) -> Iterator[Finding]:
    """Yield a finding if answers took less than the time that ``alpha`` gives for their load."""
    alpha = profile.meta.alpha or 0.0
    cost_s = alpha * profile.meta.base_load
    answers = profile.times[profile.answered]
    count, total = int(np.sum(answers <= cost_s)), len(answers)
    message = (
        f"{count} of {total} answers took less than the {cost_s:.3g} s that their data points "
        f"cost by alpha={alpha:.4g} and base load {profile.meta.base_load:.4g}: "
    )
    if 2 * count >= total:
        message += "one of the two is wrong; set --alpha or --base-load"
        yield _error(rule="alpha", message=message)
    elif count:
        message += "these workers had a processor to themselves, or alpha is too large"
        yield _warning(rule="alpha", message=message)


def _warnings(profile: DelayProfile) -> Iterator[Finding]:
    failures = int(np.count_nonzero(_failed(profile)))
    if _OFTEN_FAILED * profile.times.size <= failures:
        message = (
            f"{failures} of {profile.times.size} calls failed: in a replay, each of them takes at "
            f"least as long as its round's slowest answer; {_FIND_OUT}"
        )
        yield _warning(rule="often-failed", message=message)
    longest = longest_known(profile.times, profile.answered, where=profile.censored)
    if longest.any():
        message = (
            f"{int(longest.sum())} of {int(profile.censored.sum())} cancelled tasks ran longer "
            "than any answer took, so that their times are only known to be longer: record all "
            "workers with seqgc profile, or run a few rounds with --scheme uncoded"
        )
        yield _warning(rule="cancelled", message=message)
    usual_s = float(np.median(profile.times[profile.answered]))
    if usual_s > MOST_USUAL_S:
        yield _warning(rule="milliseconds", message=are_milliseconds(usual_s))
    seen: dict[bytes, int] = {}
    for row, times in enumerate(profile.times):
        answers = times[profile.answered[row]]
        if answers.size > 1 and np.ptp(answers) == 0:
            message = f"row {row}: every worker took the same {float(answers[0])} s; leave it out"
            yield _warning(rule="constant", message=message, row=row)
        first = seen.setdefault(times.tobytes(), row)
        if first != row:
            message = f"row {row} repeats row {first} to the last digit; leave it out"
            yield _warning(rule="duplicate-row", message=message, row=row)
    for column in np.flatnonzero((~profile.answered).all(axis=0)).tolist():
        message = f"column {column} (worker, from 0) answered in no round"
        yield _warning(rule="silent-worker", message=message, column=column)
    medians = _medians(profile)
    usual = float(np.median(medians[1:])) if len(medians) > 2 else np.inf
    if medians[0] > _COLD_RATIO * usual:
        message = (
            f"row 0: its median, {medians[0]:.3f} s, is {medians[0] / usual:.1f} times that of "
        )
        message += "the other rounds: workers were cold; leave it out"
        yield _warning(rule="cold-start", message=message, row=0)


def _slow(profile: DelayProfile) -> Iterator[Finding]:
    medians = _medians(profile)
    late = (profile.times > _STALL_RATIO * medians[:, None]) & profile.answered
    rows, columns = np.nonzero(late)
    cluster_sizes = _others_in_cluster(profile.times[late] - medians[rows])
    for row, column, others in zip(rows.tolist(), columns.tolist(), cluster_sizes, strict=True):
        took = f"row {row}, column {column}: took {profile.times[row, column]:.3f} s, "
        took += f"{profile.times[row, column] / medians[row]:.0f} times its round's median"
        rule, cause = "stall", "no other came as late: a stall"
        if others:
            rule, cause = "retry", f"{others} more came as late: a client's time-out and retry"
        yield _warning(rule=rule, message=f"{took}, and {cause}", row=row, column=column)


def _failed(profile: DelayProfile) -> BoolArray:
    """Return a mask of the tasks that neither answered nor were cancelled."""
    failed: BoolArray = ~(profile.answered | profile.censored)
    return failed


def _medians(profile: DelayProfile) -> FloatArray:
    """Return each round's median (rounds,) over the workers that answered."""
    times: FloatArray = np.where(profile.answered, profile.times, np.nan)
    return np.nanmedian(times, axis=1)


def _others_in_cluster(offsets: FloatArray) -> list[int]:
    """Return, for each offset, the number of other offsets in its cluster.

    A cluster consists of offsets that are at most 1.1 times its smallest member.
    """
    cluster = np.zeros(len(offsets), dtype=np.intp)
    number, first = -1, -np.inf
    for index in np.argsort(offsets, kind="stable").tolist():
        if offsets[index] > _CLUSTER_RATIO * first:
            number, first = number + 1, offsets[index]
        cluster[index] = number
    others: list[int] = (np.bincount(cluster)[cluster] - 1).tolist()
    return others

"""The delays of a recorded run as a delay profile."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError, ProfileError, did_you_mean
from seqgc.ports import BoolArray, FloatArray, IntArray, Table, TaskPhases
from seqgc.profiles import (
    CENSORED,
    FAILED,
    GENERATORS,
    DelayProfile,
    ProfileMeta,
    fit_alpha,
    named_profile,
    read_or_import,
)
from seqgc.runs._log import RunHeader
from seqgc.runs._parts import first_parts
from seqgc.schemes import Scheme, parse_scheme

if TYPE_CHECKING:
    from seqgc.runs.recorded import RecordedRun

__all__ = ["PHASES", "ProfileSource", "RunDelays", "delays_of", "in_rounds", "read_delays"]

ProfileSource: TypeAlias = "DelayProfile | RecordedRun | str | Path"
"""A profile or a recorded run, the path of one, or the name of a generator."""

PHASES: Final = "waited at the worker", "started", "weights fetched", "computed", "on the way"
"""The phases of a task, in order. The last one is the way there and back, and injected delays."""

_LEAST_S: Final = 1e-9  # the time of a worker without a task, which says nothing about the worker


def read_delays(source: ProfileSource, *, alpha: float | None = None) -> DelayProfile:
    """Return the delay profile of a source: a profile, a recorded run, a path or a name.

    A profile is returned unchanged. A path is the file of a profile, the folder of a run, or a
    trace of another tool (`seqgc.profiles.import_trace`). The name of a generator, such as
    ``lambda-cnn:workers=16,rounds=100,seed=3``, generates a profile
    (`seqgc.profiles.named_profile`). ``alpha``, in seconds per unit of load, is used for a run, see
    `RecordedRun.profile`. It has no effect on a profile.

    Raises
    ------
    ParameterError
        If ``source`` is nothing of this, a folder without a run, or a file that does not exist and
        does not end in `.npz` or `.csv`.
    ProfileError
        If the file cannot be read (`seqgc.profiles.read_or_import`), or the run has no answers.

    Examples
    --------
    >>> read_delays("lambda-cnn:workers=4,rounds=2").times.shape
    (2, 4)
    """
    from seqgc.runs.recorded import RecordedRun, read_run  # which imports this file

    given: object = source  # the user's code may not be type-checked
    if isinstance(given, DelayProfile):
        return given
    if isinstance(given, RecordedRun):
        return given.profile(alpha=alpha)
    if not isinstance(given, str | Path):
        rule = "must be a DelayProfile, a recorded run, the path of one, or a generator's name"
        raise ParameterError("profile", rule, given)
    if str(given).partition(":")[0] in GENERATORS:
        return named_profile(str(given))
    if not os.path.isdir(given):  # noqa: PTH112 (`Path.is_dir` raises for some names)
        return _read_file(given)
    try:
        return read_run(given).profile(alpha=alpha)
    except ProfileError as error:
        raise ProfileError(f"{given}: {error}") from None


def _read_file(path: str | Path) -> DelayProfile:
    if not Path(path).suffix and not os.path.isfile(path):  # noqa: PTH113 (raises at some names)
        rule = "must be the folder of a run, an .npz or .csv file, or the name of a generator "
        rule += f"({', '.join(GENERATORS)})"
        raise ParameterError("profile", rule, str(path), did_you_mean(str(path), GENERATORS))
    return read_or_import(path)


def in_rounds(header: RunHeader) -> bool:
    """Return True if the scheme of a run works in rounds, in which each worker has one task."""
    if header.pieces:
        return False
    try:
        return isinstance(parse_scheme(header.scheme, n=header.workers), Scheme)
    except ParameterError:  # a scheme of a plug-in that is not imported
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunDelays:
    """The delays of a run: its profile, and the phases of its tasks.

    ``places`` (rounds,) has the row of each round of the profile in the run's table of rounds.
    ``phases`` has the seconds (rows, n) of each phase of the tasks (`PHASES`), or is empty if the
    workers reported no phases.
    """

    profile: DelayProfile
    places: IntArray
    phases: dict[str, FloatArray]


def delays_of(run: RecordedRun, *, alpha: float | None = None) -> RunDelays:
    """Return the delays of a run. `RecordedRun.profile` returns the same profile."""
    header, answers, rounds = run.header, run.answers(), run.rounds()
    fitted, parts = alpha is None, run.parts()
    in_parts = bool(np.isfinite(parts["load"]).any())
    if in_parts:
        answers, slope = first_parts(answers, parts)
        alpha = slope / header.bundle if alpha is None and slope is not None else alpha
    by_rounds = in_parts or in_rounds(header)
    if by_rounds:
        cells = _cells_of_rounds(answers, rounds, workers=run.workers)
    else:
        cells = _cells_of_tasks(answers, workers=run.workers)
        cells = replace(cells, places=np.arange(len(rounds["round"])))
    times, status, loads = cells.times, cells.status, cells.loads
    loads = np.where(np.isnan(loads), np.nanmean(loads), loads) if (loads > 0).any() else 0 * times
    loads *= header.bundle
    answered = status == 0
    if not answered.any():
        raise ProfileError("no task of the run was answered, which leaves no delays to use")
    had_task = times > _LEAST_S
    if alpha is None:
        alpha = fit_alpha(times, loads=loads, answered=answered)
    base_load = float(loads[had_task & (loads > 0)].min(initial=np.inf, where=True))
    converted = times
    if alpha is not None:
        extra = alpha * (loads - base_load)
        converted = np.where(had_task, times - extra, times)
        if (converted[answered] <= 0).any():
            if not fitted:
                worst = float((times - extra)[answered].min())
                rule = f"alpha={alpha:g} leaves {worst:.6g} s for an answer, which must be > 0"
                raise ProfileError(f"{rule}: give a smaller alpha")
            alpha, converted = None, times  # not possible: it is an average
    if alpha is None:
        base_load = float(loads[answered].mean())
    profile = DelayProfile(
        times=np.maximum(converted, _LEAST_S),
        status=status,
        meta=ProfileMeta(
            base_load=base_load if np.isfinite(base_load) else 0.0,
            alpha=alpha,
            batch=header.batch,
            provider=header.provider,
            recorded_at=header.started_at,
            source=f"{'rounds' if by_rounds else 'tasks'} of a run with {header.scheme}",
        ),
    )
    return RunDelays(profile=profile, places=cells.places, phases=cells.named_phases())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cells:
    """The times, status and loads (rows, n) of tasks, and the phases that workers reported.

    ``phases`` are in the order of `TaskPhases`, and ``places`` as in `RunDelays`.
    """

    times: FloatArray
    status: npt.NDArray[np.int8]
    loads: FloatArray
    phases: tuple[FloatArray, ...]
    places: IntArray

    def named_phases(self) -> dict[str, FloatArray]:
        """Return the phases by name, with the rest of the time; nothing if none is known."""
        if not np.isfinite(self.phases).any():
            return {}
        rest = np.maximum(0.0, self.times - np.sum(self.phases, axis=0))
        return dict(zip(PHASES, (*self.phases, rest), strict=True))


def _cells_of_rounds(answers: Table, rounds: Table, *, workers: int) -> _Cells:
    """Return the times of the rounds with all ``workers`` in which a worker answered."""
    whole: IntArray = np.flatnonzero(rounds["workers"] == workers)
    numbers = rounds["round"][whole]
    if not len(numbers):
        raise ProfileError("the run has no closed round, which leaves no delays to use")
    shape = len(numbers), workers
    times, loads = np.full(shape, _LEAST_S), np.full(shape, np.nan)
    status = np.full(shape, CENSORED, dtype=np.int8)
    place = np.searchsorted(numbers, answers["round"]).clip(max=len(numbers) - 1)
    here = numbers[place] == answers["round"]
    # A later attempt counts from the round's first task, because the first attempt left then.
    first = answers["attempt"] == 0
    seconds = np.where(first, answers["took_s"], answers["elapsed_s"])
    outcome = answers["outcome"]
    worker = answers["worker"]
    is_answer = (outcome == "used") | (outcome == "dropped")
    spent = tuple(np.full(shape, np.nan) for _ in TaskPhases._fields)
    # In this order, so that an answer replaces a failure, and the first answer a later one.
    for kind, mask in (
        (CENSORED, outcome == "unanswered"),
        (FAILED, outcome == "failed"),
        (0, is_answer),
    ):
        rows: IntArray = np.flatnonzero(here & mask & np.isfinite(seconds))[::-1]
        cell = place[rows], worker[rows]
        times[cell], status[cell] = seconds[rows], kind
        for phase, name in zip(spent, TaskPhases._fields, strict=True):
            phase[cell] = answers[name][rows]
    rows = np.flatnonzero(here & first)
    loads[place[rows], worker[rows]] = answers["load"][rows]
    kept = np.flatnonzero((status == 0).any(axis=1))
    return _Cells(
        times=times[kept],
        status=status[kept],
        loads=loads[kept],
        phases=tuple(phase[kept] for phase in spent),
        places=whole[kept],
    )


def _cells_of_tasks(answers: Table, *, workers: int) -> _Cells:
    """Return the times of the k-th task of each worker, in row k."""
    order = np.argsort(answers["at_s"], kind="stable")
    columns: list[_Column] = []
    for worker in range(workers):
        mine = order[answers["worker"][order] == worker]
        columns.append(_column({name: column[mine] for name, column in answers.items()}))
    counts = [len(column[0]) for column in columns]
    if (fewest := min(counts)) == 0:
        rule = f"worker {counts.index(0)} answered no task, so that it has no delays"
        raise ProfileError(f"{rule}; record all workers with seqgc profile")
    times, loads, *phases = (
        np.stack([each[:fewest] for each in part], axis=1) for part in zip(*columns, strict=True)
    )
    return _Cells(
        times=times,
        status=np.zeros(times.shape, dtype=np.int8),
        loads=loads,
        phases=tuple(phases),
        places=np.arange(0),
    )


_Column = tuple[FloatArray, ...]  # times, loads and phases


def _column(tasks: dict[str, npt.NDArray[Any]]) -> _Column:
    """Return the times, loads and phases of a worker's answered tasks, without empty tasks.

    A task that waited for another one begins when that one was answered, so that it did not wait.
    """
    at_s, sent_s = tasks["at_s"], tasks["at_s"] - tasks["took_s"]
    is_answer: BoolArray = (tasks["outcome"] == "used") | (tasks["outcome"] == "dropped")
    free_s = np.concatenate([[-np.inf], np.maximum.accumulate(at_s)[:-1]])
    seconds = at_s - np.fmax(sent_s, free_s)
    kept = is_answer & (seconds > _LEAST_S) & ~(tasks["load"] <= 0)
    tasks["waited_s"] = np.minimum(tasks["waited_s"], 0.0)
    return seconds[kept], *(tasks[name][kept] for name in ("load", *TaskPhases._fields))

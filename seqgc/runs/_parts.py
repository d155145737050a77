"""The answers of tasks that were answered one mini-task after the other."""

from __future__ import annotations

from typing import Final

import numpy as np

from seqgc.ports import Table, TaskPhases

__all__ = ["first_parts"]

_FEWEST_SLOPES: Final = 5


def first_parts(answers: Table, parts: Table) -> tuple[Table, float | None]:
    """Return the answers as if each task ended with its first mini-task, and the slope of the time.

    ``answers`` and ``parts`` are tables of a `seqgc.runs.RecordedRun`. A task without any part did
    not complete its first mini-task: it was cancelled, or has failed. The slope, in seconds per
    unit of load, is the median over pairs of answers of the same task, one after the other. It is
    None if there are fewer than five pairs. Pairs of different tasks would give a wrong slope,
    because fast tasks get further before they are cancelled.
    """
    names = ("master", "round", "worker", "attempt")
    keys = [np.stack([table[name] for name in names]) for table in (answers, parts)]
    tasks = np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)[1].ravel()
    of_answers, of_parts = tasks[: len(answers["round"])], tasks[len(answers["round"]) :]
    whole = (answers["outcome"] == "used") | (answers["outcome"] == "dropped")
    task = np.concatenate([of_parts, of_answers[whole]])
    load = np.concatenate([parts["load"], answers["load"][whole]])
    took_s = np.concatenate([parts["took_s"], answers["took_s"][whole]])
    order = np.lexsort((took_s, task))
    task, load, took_s = task[order], load[order], took_s[order]
    wider = np.where(task[1:] == task[:-1], load[1:] - load[:-1], 0.0)
    rises = wider > 0
    slopes = (took_s[1:] - took_s[:-1])[rises] / wider[rises]
    slope = float(np.median(slopes)) if len(slopes) >= _FEWEST_SLOPES else None

    by_time = np.argsort(parts["took_s"], kind="stable")
    known, first = np.unique(of_parts[by_time], return_index=True)
    place = np.searchsorted(known, of_answers).clip(max=len(known) - 1)
    has_part = known[place] == of_answers
    row = by_time[first[place[has_part]]]
    ended = dict(answers)
    for name in ("at_s", "elapsed_s", "took_s", "load"):
        ended[name] = answers[name].copy()
        ended[name][has_part] = parts[name][row]
    ended["load"][~has_part] = np.fmin(ended["load"][~has_part], np.nanmin(parts["load"]))
    for name in TaskPhases._fields:  # these are of the whole task
        ended[name] = np.where(has_part, np.nan, answers[name])
    ended["outcome"] = np.where(has_part, "used", answers["outcome"])
    return ended, slope

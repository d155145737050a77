"""The phases of a task: what a worker reports, and what the log of a run has of it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from seqgc.backends import LocalBackend, event_of
from seqgc.errors import WireError
from seqgc.ports import Task, TaskPhases, WorkItem
from seqgc.runs import read_run
from seqgc.wire import ResultMessage, Subject, decode, encode
from seqgc.worker import TaskTimer
from tests.runs.logs import write_run

SUBJECT = Subject(round=0, worker=0, attempt=0)


def test_a_phase_within_a_phase_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    timer = TaskTimer()
    timer.begin(waited_s=2.0)
    with timer.phase("fetched_s"):
        now[0] += 1.0
        with timer.phase("fetched_s"):
            now[0] += 4.0
    with timer.phase("started_s"):
        now[0] += 0.5
    now[0] += 8.0
    assert timer.phases() == TaskPhases(2.0, 0.5, 5.0, 8.0)
    timer.begin()
    assert timer.phases() == TaskPhases()


def test_a_frame_carries_the_phases_of_its_task_and_refuses_impossible_ones() -> None:
    phases = TaskPhases(0.25, 0.5, 1.0, 2.0)
    message = ResultMessage(subject=SUBJECT, results={0: np.ones(3)}, phases=phases)
    read = decode(encode(message, run_id="r"), run_id="r")
    assert isinstance(read, ResultMessage)
    assert read.phases == phases
    event = event_of(read, at=9.0)
    assert event.phases == phases  # type: ignore[union-attr]
    wrong = ResultMessage(subject=SUBJECT, results={}, phases=TaskPhases(computed_s=-1.0))
    with pytest.raises(WireError):
        decode(encode(wrong, run_id="r"), run_id="r")


def ones(_parts: object) -> np.ndarray:
    return np.ones(2)


def test_a_local_worker_reports_its_phases_and_that_a_task_waited_for_another() -> None:
    tasks = [
        Task(round=0, worker=0, attempt=attempt, items=(WorkItem(slot=0, parts=()),))
        for attempt in (0, 1)
    ]
    with LocalBackend(1, partial(partial, ones)) as backend:
        left = backend.dispatch(0, tasks)
        events = [backend.receive(math.inf) for _ in tasks]
    for event, sent in zip(events, left, strict=True):
        assert event.phases is not None  # type: ignore[union-attr]
        assert 0 <= sum(event.phases) <= event.at - sent + 1e-3  # type: ignore[union-attr]


def test_answers_have_the_phases_of_the_log_and_nan_in_an_old_log(tmp_path: Path) -> None:
    answers = read_run(write_run(tmp_path / "old", [[1.0, 2.0]])).answers()
    assert np.isnan(answers["computed_s"]).all()
    run = write_run(tmp_path / "new", [[1.0, 2.0]], phases=TaskPhases(0.1, 0.0, 0.2, 0.5))
    answers = read_run(run).answers()
    assert answers["waited_s"].tolist() == [0.1, 0.1]
    assert answers["computed_s"].tolist() == [0.5, 0.5]

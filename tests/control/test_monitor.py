"""What a monitor knows: the latest answers, of workers as they are now."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.control import Monitor, Sample, TaskMonitor
from seqgc.ports import Arrival, Dispatched, RoundRecord

NAN = math.nan


def record(round: int, seconds: float, n: int) -> RoundRecord:
    return RoundRecord(
        round=round,
        responded=np.ones(n, dtype=np.bool_),
        kappa_s=seconds,
        duration_s=seconds,
        reason="everyone",
        waited_out=False,
    )


def play(
    monitor: Monitor,
    round: int,
    times: list[float],
    *,
    loads: list[float] | None = None,
    began_at: float = 0.0,
) -> Sample:
    """Let a round happen in which workers answer after these seconds; NaN: they are not asked."""
    n, asked = len(times), [i for i, each in enumerate(times) if not math.isnan(each)]
    left_at = [began_at + 0.125 * i for i in asked]
    shares = np.full(n, 1 / n) if loads is None else np.array(loads)
    monitor.on(
        Dispatched(
            round=round, attempt=0, workers=tuple(asked), left_at=tuple(left_at), loads=shares
        )
    )
    for worker, left in zip(asked, left_at, strict=True):
        at = left + times[worker]
        monitor.on(Arrival(round=round, worker=worker, attempt=0, at=at, results={}))
    return monitor.close(record(round, max(times[i] for i in asked), n))


@pytest.mark.parametrize("window_s", [1e-300, 1.0])
@pytest.mark.parametrize("seconds", [0.5, 1e18])
def test_the_latest_answer_is_known_however_late_it_is(window_s: float, seconds: float) -> None:
    monitor = Monitor(2, window_s=window_s)
    for round in range(3):
        play(monitor, round, [seconds, seconds])  # beside which the window may be nothing
    assert monitor.seconds(window_s).values.tolist() == [seconds, seconds]


def test_a_time_begins_when_the_workers_own_task_leaves() -> None:
    sample = play(Monitor(3, window_s=9.0), 0, [2.0, 1.0, 4.0], loads=[0.5, 0.25, 0.25])
    assert sample.seconds.tolist() == [2.0, 1.0, 4.0]
    assert sample.speeds.tolist() == [0.25, 0.25, 0.0625]
    assert sample.at == 4.0


def test_a_mean_is_of_the_rounds_in_the_window_each_counting_once() -> None:
    monitor = Monitor(2, window_s=10.0)
    for round, slow in enumerate((8.0, 2.0, 4.0, 6.0)):
        play(monitor, round, [1.0, slow], began_at=100.0 * (round % 2))  # clocks may go back
    assert monitor.now == 20.0
    assert monitor.seconds(10.0).values.tolist() == [1.0, 5.0]  # those that closed after 10 s
    assert monitor.seconds(6.0).values.tolist() == [1.0, 6.0]
    assert monitor.seconds(1000.0).values.tolist() == [1.0, 5.0], "the others are forgotten"
    assert monitor.speeds(10.0).values.tolist() == [0.5, (0.5 / 4 + 0.5 / 6) / 2]


def test_of_who_is_not_asked_nothing_is_known() -> None:
    monitor = Monitor(2, window_s=math.inf)
    sample = play(monitor, 0, [1.0, NAN], loads=[1.0, 0.0])
    assert sample.answered.tolist() == [True, False]
    assert monitor.speeds(math.inf).known.tolist() == [True, False]
    assert monitor.speeds(math.inf).values.tolist() == [1.0, 0.0]


def test_a_fresh_worker_is_known_by_its_second_answer() -> None:
    monitor = Monitor(2, window_s=math.inf)
    play(monitor, 0, [1.0, 9.0])
    monitor.forget(1)
    assert monitor.seconds(math.inf).known.tolist() == [True, False]
    play(monitor, 1, [1.0, 5.0])  # with its start
    assert monitor.seconds(math.inf).known.tolist() == [True, False]
    play(monitor, 2, [1.0, 2.0])
    assert monitor.seconds(math.inf).values.tolist() == [1.0, 2.0]
    assert monitor.up_s.tolist() == [16.0, 7.0]


def test_only_the_first_answer_to_the_open_round_counts() -> None:
    monitor = Monitor(1, window_s=math.inf)
    monitor.on(Dispatched(round=3, attempt=0, workers=(0,), left_at=(1.0,)))
    for round, at in ((2, 1.5), (3, 2.0), (3, 7.0)):
        monitor.on(Arrival(round=round, worker=0, attempt=0, at=at, results={}))
    assert monitor.close(record(3, 1.0, 1)).seconds.tolist() == [1.0]


def test_a_repeated_task_is_as_late_as_that_takes() -> None:
    monitor = Monitor(1, window_s=math.inf)
    for attempt, at in ((0, 1.0), (1, 4.0)):
        monitor.on(Dispatched(round=0, attempt=attempt, workers=(0,), left_at=(at,)))
    monitor.on(Arrival(round=0, worker=0, attempt=1, at=6.0, results={}))
    assert monitor.close(record(0, 5.0, 1)).seconds.tolist() == [5.0]


@pytest.mark.parametrize("n", [0, -1])
def test_there_are_workers(n: int) -> None:
    with pytest.raises(ValueError, match="`n` must be an integer >= 1"):
        Monitor(n, window_s=1.0)


def tell(monitor: TaskMonitor, *, round: int, worker: int, left_at: float, at: float) -> None:
    """Let a worker answer its task."""
    monitor.on(Dispatched(round=round, attempt=0, workers=(worker,), left_at=(left_at,)))
    monitor.on(Arrival(round=round, worker=worker, attempt=0, at=at, results={}))


def test_tasks_count_one_by_one_and_time_is_since_the_first_event() -> None:
    monitor = TaskMonitor(3, window_s=10.0)
    for round, (left_at, at) in enumerate(((500.0, 501.0), (501.0, 503.0), (503.0, 507.0))):
        tell(monitor, round=round, worker=1, left_at=left_at, at=at)
    tell(monitor, round=0, worker=0, left_at=504.0, at=512.0)
    assert monitor.now == 12.0
    assert monitor.seconds(math.inf).values.tolist() == [8.0, 3.0, 0.0], "those after 2 s"
    assert monitor.seconds(6.0).values.tolist() == [8.0, 4.0, 0.0]
    assert monitor.seconds(1.0).known.tolist() == [True, False, False]
    assert monitor.speeds(6.0).values.tolist() == [1 / 24, 1 / 12, 0.0], "a third of a batch each"


def test_an_answer_to_another_task_than_the_newest_is_nobodys() -> None:
    monitor = TaskMonitor(1, window_s=math.inf)
    for round, attempt in ((3, 0), (3, 1)):
        monitor.on(Dispatched(round=round, attempt=attempt, workers=(0,), left_at=(1.0 + attempt,)))
    for round, attempt, at in ((3, 0, 4.0), (2, 1, 5.0), (3, 1, 6.0), (3, 1, 9.0)):
        monitor.on(Arrival(round=round, worker=0, attempt=attempt, at=at, results={}))
    assert monitor.seconds(math.inf).values.tolist() == [4.0]


def test_of_a_fresh_worker_that_goes_on_by_itself_the_second_answer_counts() -> None:
    monitor = TaskMonitor(2, window_s=math.inf)
    tell(monitor, round=0, worker=1, left_at=0.0, at=9.0)
    monitor.on(Dispatched(round=1, attempt=0, workers=(1,), left_at=(9.0,)))
    tell(monitor, round=0, worker=0, left_at=9.0, at=10.0)
    monitor.forget(1)
    monitor.on(Arrival(round=1, worker=1, attempt=0, at=11.0, results={}))  # was on its way
    assert monitor.seconds(math.inf).known.tolist() == [True, False]
    tell(monitor, round=2, worker=1, left_at=11.0, at=16.0)  # with its start
    assert monitor.seconds(math.inf).known.tolist() == [True, False]
    tell(monitor, round=3, worker=1, left_at=16.0, at=18.0)
    assert monitor.seconds(math.inf).values.tolist() == [1.0, 2.0]
    assert monitor.up_s.tolist() == [18.0, 8.0]

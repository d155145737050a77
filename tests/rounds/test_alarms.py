"""What is to be done at some time is done then, and what is of no use by then is not kept."""

from __future__ import annotations

import gc
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.master import run
from seqgc.ports import Close, Seen
from seqgc.profiles import ByRound
from seqgc.rounds import Alarms, ClosingRule, Setting, policy_of
from seqgc.schemes import parse_scheme
from seqgc.virtual import VirtualBackend

KEYS = st.sampled_from([None, 0, 1, "a"])
MOMENTS = st.integers(0, 9).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), MOMENTS, KEYS),
        st.tuples(st.just("forget"), MOMENTS, KEYS),
        st.tuples(st.just("due"), MOMENTS, KEYS),
    ),
    max_size=200,
)


@given(steps=STEPS)
def test_what_is_not_forgotten_is_called_in_order(
    steps: list[tuple[str, float, int | str | None]],
) -> None:
    alarms, left = Alarms[int](), list[tuple[float, int, int | str | None]]()
    for call, (what, at, of) in enumerate(steps):
        if what == "due":
            due = [each for each in sorted(left, key=lambda each: each[:2]) if each[0] <= at]
            assert list(alarms.due(at)) == [each[1] for each in due]
            left = [each for each in left if each not in due]
            continue
        left = [each for each in left if of is None or each[2] != of]
        if what == "set":
            alarms.set(at, call, of=of)
            left.append((at, call, of))
        elif of is not None:
            alarms.forget(of)
        assert alarms.next_at <= min((each[0] for each in left), default=math.inf)
    assert list(alarms.due(math.inf)) == [each[1] for each in sorted(left, key=lambda e: e[:2])]
    assert alarms.next_at == math.inf


@pytest.mark.parametrize(
    ("spec", "most_bytes"),  # a clock; a task's limit and what it was of are 500 and more
    [("ssp:slack=1", 500), ("asp-dds:M=4", 500), ("deal", 500)],
)
def test_the_time_limits_of_tasks_that_were_answered_are_not_kept(
    spec: str, most_bytes: int
) -> None:
    clocks, marks = 120, list[int]()
    rooms = [tracemalloc.Filter(True, f"*/{room}/*") for room in ("rounds", "clocks", "shards")]

    def watch(seen: Seen) -> None:
        if isinstance(seen, Close) and seen.record.round in (clocks // 3, clocks - 1):
            traces = tracemalloc.take_snapshot().filter_traces(rooms).traces
            marks.append(sum(trace.size for trace in traces))

    setting = Setting(scheme=parse_scheme(spec, n=4), rule=ClosingRule(timeout_s=3600.0))
    pace = ByRound(latencies_s=[[0.01] * 4], rates=[[0.0]])
    gc.collect()  # memory that Python keeps for tuples is not traced again
    tracemalloc.start()
    try:
        run(policy_of(setting, num_jobs=clocks), VirtualBackend(4, pace), observe=watch)
    finally:
        tracemalloc.stop()
    assert marks[1] - marks[0] < most_bytes * clocks * 2 / 3

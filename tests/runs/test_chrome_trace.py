"""A trace has the form that Perfetto reads, and the times of its run."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from seqgc import read_run
from seqgc.cli import main
from seqgc.ports import TaskPhases
from seqgc.runs.chrome_trace import trace_events
from tests.runs.logs import write_run

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "cat", "ph", "ts", "pid", "tid", "s", "args"},
    "M": {"name", "ph", "ts", "pid", "tid", "args"},
}


def slices(events: list[dict[str, Any]], pid: int) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["pid"] == pid]


def test_the_file_has_the_schema_of_trace_events(tmp_path: Path, capsys: Any) -> None:
    run = write_run(
        tmp_path / "run",
        [[1.0, 2.0, 9.0], [1.0, 9.0, 3.0]],
        needed=2,
        failed={(1, 0): 0.5},
        phases=TaskPhases(0.1, 0.0, 0.2, 0.3),
        notices=[{"event": "warning", "text": "<b>"}],
    )
    output = tmp_path / "trace.json.gz"
    assert main(["report", str(run), "--trace", str(output), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(output)}
    with gzip.open(output, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] == "ms"
    assert {event["ph"] for event in events} == set(REQUIRED)
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert set(event) == REQUIRED[event["ph"]]
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        assert event["ph"] == "M" or (event["pid"], event["tid"]) in threads
    by_thread: dict[int, list[dict[str, Any]]] = {}
    for event in slices(events, pid=2):
        by_thread.setdefault(event["tid"], []).append(event)
    for own in by_thread.values():  # Perfetto draws slices of a thread only if they nest
        tasks = [event for event in own if event["cat"] != "phase"]
        for one, other in pairwise(sorted(tasks, key=lambda event: event["ts"])):
            assert one["ts"] + one["dur"] <= other["ts"]
        for phase in (event for event in own if event["cat"] == "phase"):
            assert any(
                task["ts"] <= phase["ts"]
                and phase["ts"] + phase["dur"] <= task["ts"] + task["dur"] + 0.2
                for task in tasks
            )


def test_rounds_and_tasks_have_the_times_of_the_run(tmp_path: Path) -> None:
    phases = TaskPhases(waited_s=0.0, started_s=0.0, fetched_s=0.25, computed_s=0.5)
    run = read_run(write_run(tmp_path / "run", [[1.0, 2.0], [3.0, 1.0]], phases=phases))
    events = list(trace_events(run))
    rounds = [(e["name"], e["ts"], e["dur"]) for e in slices(events, pid=1)]
    assert rounds == [("round 0", 0.0, 2e6), ("round 1", 2e6, 3e6)]
    tasks = [e for e in slices(events, pid=2) if e["cat"] == "used"]
    assert sorted(e["dur"] for e in tasks) == [1e6, 1e6, 2e6, 3e6]
    first = next(e for e in tasks if e["dur"] == 3e6)
    inside = [
        (e["name"], e["ts"] - first["ts"], e["dur"])
        for e in slices(events, pid=2)
        if e["cat"] == "phase" and e["tid"] == first["tid"] and e["ts"] > first["ts"]
    ]
    assert inside == [("fetched", 1.125e6, 0.25e6), ("computed", 1.375e6, 0.5e6)]
    assert [e["name"] for e in events if e["ph"] == "i" and e["tid"] == 2] == ["job 0", "job 1"]


@pytest.mark.parametrize(
    ("runs", "output", "argument"), [(1, "trace.txt", "trace"), (2, "trace.json", "trace")]
)
def test_what_is_no_trace_is_refused(
    runs: int, output: str, argument: str, tmp_path: Path, capsys: Any
) -> None:
    folders = [str(write_run(tmp_path / f"run{i}", [[1.0]])) for i in range(runs)]
    assert main(["report", *folders, "--trace", str(tmp_path / output)]) == 2
    assert f"`{argument}`" in capsys.readouterr().err
    assert not (tmp_path / output).exists()

"""Small traces in the formats of other tools, and the matrices that they hold."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

T0 = 1_700_000_000  # seconds since 1970, in whole seconds
STREAMS = ("2023/11/14/[$LATEST]aaaa1111", "2023/11/14/[$LATEST]bbbb2222")


@dataclass(frozen=True)
class Expected:
    """What a trace is: its format, its seconds (rounds, workers), and parts of the notes."""

    format: str
    times: list[list[float | None]]
    notes: tuple[str, ...] = ()


TWO = [[1.5, 2.25], [1.25, 4.0]]


def lithops() -> str:
    """`json.dump([f.stats for f in futures])`: three calls in each of two jobs."""
    calls = [
        {
            "host_job_create_tstamp": created,
            "host_submit_tstamp": created + 0.25,
            "worker_start_tstamp": created + 0.375,
            "worker_end_tstamp": created + 0.25 + s,
            "host_status_done_tstamp": created + 3.0,
            "worker_func_cpu_usage": [70.0],
        }
        for created, took in ((T0, (0.5, 0.75, 1.0)), (T0 + 60.0, (0.5, 2.0, 0.625)))
        for s in took
    ]
    return json.dumps(calls)


def _reports() -> list[dict[str, Any]]:
    events = []
    for begin, took in ((0, (1500, 2250)), (30_000, (1250, 4000))):
        for worker, ms in enumerate(took):
            init = 250.0 if begin == 0 and worker == 1 else 0.0
            text = f"REPORT RequestId: 0-{begin}-{worker}\tDuration: {ms - init:.2f} ms\t"
            text += f"Billed Duration: {ms} ms\tMemory Size: 128 MB\tMax Memory Used: 40 MB\t"
            text += f"Init Duration: {init:.2f} ms\t" if init else ""
            text += "Status: timeout" if ms == 4000 else ""
            events.append(
                {"stream": STREAMS[worker], "timestamp": T0 * 1000 + begin + ms, "message": text}
            )
    return events


def cloudwatch_json() -> str:
    """`aws logs filter-log-events`: REPORT lines among others."""
    events = [
        {
            "logStreamName": each["stream"],
            "timestamp": each["timestamp"],
            "message": each["message"] + "\n",
            "ingestionTime": each["timestamp"] + 99,
            "eventId": "1",
        }
        for each in _reports()
    ]
    start = events[0] | {"message": "START RequestId: 1 Version: $LATEST\n"}
    return json.dumps({"events": [start, *events], "searchedLogStreams": []})


def _stamp(ms: int) -> str:
    second, rest = divmod(ms - T0 * 1000, 1000)  # T0 is 2023-11-14T22:13:20Z
    minute, second = divmod(20 + second, 60)
    return f"2023-11-14T22:{13 + minute:02d}:{second:02d}.{rest:03d}"


def cloudwatch_text() -> str:
    """`aws logs tail`: a time stamp, the log stream and the message on each line."""
    lines = [f"{_stamp(e['timestamp'])}+00:00 {e['stream']} {e['message']}" for e in _reports()]
    return "\n".join(["2023-11-14T22:13:20+00:00 x START RequestId: 1", *lines])


def cloudwatch_csv() -> str:
    """A query of CloudWatch Insights, exported as CSV."""
    lines = [
        f'{_stamp(e["timestamp"]).replace("T", " ")},"{e["message"]}",{e["stream"]}'
        for e in _reports()
    ]
    return "\n".join(["@timestamp,@message,@logStream", *lines])


def ray_timeline() -> str:
    """`ray.timeline(FILE)`: a Chrome trace in microseconds."""
    events: list[dict[str, Any]] = [
        {"cat": "submit_task", "name": "submit_task", "pid": "h", "tid": "driver:1", "ts": 1.0,
         "dur": 2.0, "ph": "X", "args": {}},
        {"cat": "task::A.__init__", "name": "__init__", "pid": "h", "tid": "worker:a",
         "ts": T0 * 1e6 - 9e6, "dur": 70.0, "ph": "X", "args": {"task_id": "0"}},
    ]  # fmt: skip
    for step, row in enumerate(TWO):
        for worker, s in enumerate(row):
            begin = (T0 + 20 * step) * 10**6
            common = {"pid": "h", "tid": f"worker:{'ab'[worker]}", "ph": "X"}
            events.append(
                common
                | {"cat": "task::work", "name": "work", "ts": begin, "dur": s * 1e6,
                   "args": {"task_id": f"{step}{worker}"}}
            )  # fmt: skip
            events.append(
                common
                | {"cat": "task:execute", "name": "task:execute", "ts": begin + 9, "dur": 5.0}
            )
    return json.dumps(events)


def ray_tasks() -> str:
    """`ray list tasks --detail --format json`: one task was tried twice."""
    tasks: list[dict[str, Any]] = [
        {
            "task_id": "d",
            "attempt_number": 0,
            "name": "driver",
            "state": "RUNNING",
            "worker_id": "c",
            "type": "DRIVER_TASK",
            "start_time_ms": 1,
            "end_time_ms": None,
        }
    ]
    for step, row in enumerate(TWO):
        for worker, s in enumerate(row):
            began = (T0 + 20 * step) * 1000
            attempts = [("FINISHED", began, began + int(1000 * s))]
            if s == 4.0:
                attempts = [
                    ("FAILED", began, began + 500),
                    ("FINISHED", began + 1000, began + 4000),
                ]
            for number, (state, start, end) in enumerate(attempts):
                tasks.append(
                    {
                        "task_id": f"{step}{worker}",
                        "attempt_number": number,
                        "name": "work",
                        "state": state,
                        "worker_id": "ab"[worker],
                        "type": "NORMAL_TASK",
                        "start_time_ms": start,
                        "end_time_ms": end,
                    }
                )
    return json.dumps(tasks)


def dask() -> str:
    """`json.dump(client.get_task_stream())`: one task failed."""
    records = []
    for step, row in enumerate(TWO):
        for worker, s in enumerate(row):
            begin = T0 + 20.0 * step
            records.append(
                {
                    "worker": f"tcp://127.0.0.1:{4000 + worker}",
                    "key": f"f-{step}-{worker}",
                    "status": "error" if s == 4.0 else "OK",
                    "thread": 1,
                    "startstops": [
                        {"action": "transfer", "start": begin - 0.5, "stop": begin},
                        {"action": "compute", "start": begin, "stop": begin + s},
                    ],
                }
            )
    return json.dumps(records)


def straggler_rows() -> dict[str, list[Any]]:
    """The columns of a trace of StragglerAnalysis: two ranks, two steps."""
    rows: dict[str, list[Any]] = {
        name: [] for name in ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
    }
    for step, took in ((16, TWO[0]), (21, TWO[1])):
        for worker, s in enumerate(took):
            for optype, duration in (
                ("forward-compute", s / 4),
                ("forward-compute", s / 4),
                ("backward-compute", s / 2),
                ("grads-reduce-scatter", 7.0),
            ):
                values = (worker, 0, 4 * worker, step, optype, 1.0, duration)
                for name, value in zip(rows, values, strict=True):
                    rows[name].append(value)
    return rows


def faas() -> str:
    """A file of results of faas-parallelism-benchmark: objects, each with a comma behind it."""
    calls = [
        {
            "pystart_ms": T0 * 1000.0 + 16 * i,
            "pyend_ms": T0 * 1000.0 + 16 * i + 1000 * s,
            "pyduration_ms": 1000 * s,
            "func_data": {"initTime_ms": T0 * 1000.0 + 500, "containerID": "c"},
            "metadata": {"HTTPStatusCode": 200},
        }
        for i, s in enumerate((2.0, 7.5, 4.25))
    ]
    return "".join(
        f"\n{json.dumps(each, indent=4)}," for each in sorted(calls, key=lambda e: e["pyend_ms"])
    )


def plain() -> str:
    """Rows that name their columns as the options do."""
    return "worker,round,seconds\n0,0,1.5\n1,0,2.25\n0,1,1.25\n1,1,4.0\n"


FAILED = [[1.5, 2.25], [1.25, None]]
_TEXTS: dict[str, Callable[[], str]] = {
    "lithops": lithops,
    "cloudwatch-json": cloudwatch_json,
    "cloudwatch-text": cloudwatch_text,
    "cloudwatch-csv": cloudwatch_csv,
    "ray-timeline": ray_timeline,
    "ray-tasks": ray_tasks,
    "dask": dask,
    "faas": faas,
    "rows": plain,
}
FORMATS = (*_TEXTS, "straggler-analysis")
_CLOUDWATCH = Expected(
    "CloudWatch REPORT lines",
    FAILED,
    ("without the network", "1 of 4 calls were cold starts", "2 rounds", "1 of 4 calls failed"),
)
EXPECTED = {
    "lithops": Expected(
        "Lithops stats", [[0.5, 0.75, 1.0], [0.5, 2.0, 0.625]], ("worker n is the n-th call",)
    ),
    "cloudwatch-json": _CLOUDWATCH,
    "cloudwatch-text": _CLOUDWATCH,
    "cloudwatch-csv": _CLOUDWATCH,
    "ray-timeline": Expected("Ray timeline", TWO, ("2 rounds, separated by gaps",)),
    "ray-tasks": Expected("Ray tasks", TWO, ("1 of 4 answers have several rows",)),
    "dask": Expected("dask task stream", FAILED, ("1 of 4 calls failed",)),
    "straggler-analysis": Expected("StragglerAnalysis", TWO, ("sum of its forward-compute",)),
    "faas": Expected(
        "faas-parallelism-benchmark", [[2.0, 7.5, 4.25]], ("n-th request", "are one round")
    ),
    "rows": Expected("rows", TWO),
}


def write(name: str, path: Path) -> Path:
    """Write the trace ``name`` to ``path``; the timeline of Ray is compressed."""
    if name == "straggler-analysis":
        import pytest

        pa = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
        from pyarrow import parquet

        parquet.write_table(pa.table(straggler_rows()), path)
    else:
        path.write_text(_TEXTS[name]())
    return path


def compressed(path: Path) -> Path:
    """Compress a file with gzip, in place."""
    path.write_bytes(gzip.compress(path.read_bytes()))
    return path

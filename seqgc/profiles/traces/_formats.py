"""The formats of traces that are recognised by their content.

Sources of the fields: lithops ``docs/source/api_stats.rst`` and ``lithops/worker/status.py``; the
REPORT lines and the log events of AWS Lambda and CloudWatch Logs (``FilterLogEvents``,
``GetQueryResults``); ``ray.timeline`` and Ray's ``TaskState``; dask's ``Client.get_task_stream``;
the readme of ByteDance-Seed/StragglerAnalysis; ``run_sync_requests.py`` of
danielBCN/faas-parallelism-benchmark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from seqgc.errors import ProfileError
from seqgc.profiles.traces._cells import cell_text
from seqgc.profiles.traces._rows import MISSING, REPORT, TraceRows

__all__ = ["FORMATS", "Recognized", "TraceColumns", "recognized_format"]

_INIT: Final = re.compile(r"(?<!\w)Init Duration: ([\d.]+) ms")
_STATUS: Final = re.compile(r"Status: (\w+)")
# Operations that compute. Other operations of a training step wait for other ranks.
_COMPUTING: Final = ("forward-compute", "backward-compute")

# The values of a column `failed` of rows that are no failure, in lower case.
_NO_FAILURE: Final = MISSING | {"false", "f", "no", "n", "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """The columns that hold the worker, the round and the times of each row.

    ``worker`` is empty if the n-th row of each round counts as worker n. ``round`` is empty if
    gaps between the starts separate the rounds; ``gap_s`` is then the least gap, or None. ``start``
    and ``end`` are on the worker's clock, ``submit`` is the time of the request on the master's.
    ``unit`` is the unit of all numbers. ``failed`` lists pairs of a column and a value. ``task``
    names the task of a row; rows with the same task are attempts at it. If ``succeeding``, a worker
    that appears takes the place of one that has disappeared.
    """

    worker: tuple[str, ...] = ()
    round: tuple[str, ...] = ()
    gap_s: float | None = None
    submit: str | None = None
    start: str | None = None
    end: str | None = None
    duration: str | None = None
    unit: str | None = None
    failed: tuple[tuple[str, str], ...] = ()
    task: str | None = None
    attempts: str | None = None
    succeeding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognized:
    """A trace of a known format: its rows, its columns, and notes about decisions."""

    name: str
    rows: TraceRows
    columns: TraceColumns
    notes: tuple[str, ...] = ()
    provider: str = ""
    names: str | None = None  # the column with the names of tasks


def _lithops(rows: TraceRows) -> Recognized | None:
    if not rows.has("worker_start_tstamp", "worker_end_tstamp", "host_submit_tstamp"):
        return None
    notes: list[str] = []
    worker: tuple[str, ...] = ()
    round_: tuple[str, ...] = ("host_job_create_tstamp",)
    if rows.has("job_id"):
        round_ = ("executor_id", "job_id") if rows.has("executor_id") else ("job_id",)
    elif not rows.has("host_job_create_tstamp"):
        round_ = ()
    if rows.has("call_id"):
        worker = ("call_id",)
    else:
        notes.append("the stats do not name workers: worker n is the n-th call of each job")
    columns = TraceColumns(
        worker=worker,
        round=round_,
        submit="host_submit_tstamp",
        start="worker_start_tstamp",
        end="worker_end_tstamp",
        unit="s",
        failed=(("exception", "true"),) if rows.has("exception") else (),
        attempts="span",
    )
    return Recognized(name="Lithops stats", rows=rows, columns=columns, notes=tuple(notes))


def _cloudwatch(rows: TraceRows) -> Recognized | None:
    message = next((name for name in ("@message", "message") if rows.has(name)), None)
    stamp = next((name for name in ("@timestamp", "timestamp") if rows.has(name)), None)
    if rows.has("@timestamp", "@duration"):
        return _insights(rows)
    if message is None or stamp is None:
        return None
    found = [REPORT.match(str(text).strip()) for text in rows.columns[message]]
    keep = [i for i, report in enumerate(found) if report]
    if not keep:
        return None
    reports = [report for report in found if report]
    cold = [_INIT.search(report["more"]) for report in reports]
    status = [_STATUS.search(report["more"]) for report in reports]
    picked = rows.take(keep)
    stream = next((n for n in ("@logStream", "logStreamName") if rows.has(n)), None)
    columns: dict[str, list[object]] = {
        "timestamp": list(picked.columns[stamp]),
        "duration_ms": [
            float(report["duration"]) + (float(init[1]) if init else 0.0)
            for report, init in zip(reports, cold, strict=True)
        ],
        "status": [each[1] if each else "success" for each in status],
        "request": [report["request"] for report in reports],
        "log stream": list(picked.columns[stream]) if stream else [None] * len(keep),
    }
    return _reports(columns, cold=sum(init is not None for init in cold))


def _insights(rows: TraceRows) -> Recognized:
    """Return the rows of a query of CloudWatch Insights that has ``@duration``."""
    durations = rows.columns["@duration"]
    keep = [i for i, each in enumerate(durations) if each is not None]
    picked = rows.take(keep)
    init = picked.columns.get("@initDuration", [None] * len(keep))
    stream = picked.columns.get("@logStream", [None] * len(keep))
    columns: dict[str, list[object]] = {
        "timestamp": list(picked.columns["@timestamp"]),
        "duration_ms": [
            float(str(a)) + float(str(b or 0))
            for a, b in zip(picked.columns["@duration"], init, strict=True)
        ],
        "status": ["success"] * len(keep),
        "request": list(picked.columns.get("@requestId", range(len(keep)))),
        "log stream": list(stream),
    }
    return _reports(columns, cold=sum(each is not None for each in init))


def _reports(columns: dict[str, list[object]], *, cold: int) -> Recognized:
    count = len(columns["timestamp"])
    if None in columns["timestamp"]:
        rule = "REPORT lines lack time stamps, so that rounds cannot be found"
        remedy = (
            "export them with `aws logs filter-log-events` or `aws logs tail --format detailed`"
        )
        raise ProfileError(f"{rule}: {remedy}")
    named = None not in columns["log stream"]
    notes = ["times are those of the function (Duration + Init Duration), without the network"]
    if cold:
        notes.append(f"{cold} of {count} calls were cold starts (Init Duration)")
    if not named:
        notes.append("some lines name no log stream: worker n is the n-th call of each round")
    layout = TraceColumns(
        worker=("log stream",) if named else (),
        end="timestamp",
        duration="duration_ms",
        unit="ms",
        failed=(("status", "timeout"), ("status", "error")),
        task="request",
        attempts="span",
        succeeding=True,
    )
    rows = TraceRows(columns, count)
    return Recognized(
        name="CloudWatch REPORT lines",
        rows=rows,
        columns=layout,
        notes=tuple(notes),
        provider="lambda",
    )


def _ray_timeline(rows: TraceRows) -> Recognized | None:
    if not rows.has("cat", "name", "tid", "ts", "dur"):
        return None
    kinds, names = rows.columns["cat"], rows.columns["name"]
    keep = [
        i
        for i, kind in enumerate(kinds)
        if str(kind).startswith("task::") and names[i] != "__init__"
    ]
    if not keep:
        return None
    columns = TraceColumns(
        worker=("tid",),
        start="ts",
        duration="dur",
        unit="us",
        task="args.task_id" if rows.has("args.task_id") else None,
        attempts="span",
        succeeding=True,
    )
    notes = ("the timeline does not say which tasks failed: all count as answers",)
    return Recognized(
        name="Ray timeline",
        rows=rows.take(keep),
        columns=columns,
        notes=notes,
        provider="custom",
        names="cat",
    )


def _ray_tasks(rows: TraceRows) -> Recognized | None:
    if not rows.has("task_id", "attempt_number", "worker_id", "state"):
        return None
    if not rows.has("start_time_ms", "end_time_ms"):
        remedy = "ray list tasks --detail --format json"
        raise ProfileError(
            f"the tasks lack start_time_ms and end_time_ms: write them with `{remedy}`"
        )
    kinds = rows.columns.get("type", ["NORMAL_TASK"] * rows.count)
    keep = [
        i
        for i, kind in enumerate(kinds)
        if kind not in ("DRIVER_TASK", "ACTOR_CREATION_TASK")
        and rows.columns["start_time_ms"][i] is not None
    ]
    columns = TraceColumns(
        worker=("worker_id",),
        start="start_time_ms",
        end="end_time_ms",
        unit="ms",
        failed=(("state", "FAILED"),),
        task="task_id",
        attempts="span",
        succeeding=True,
    )
    return Recognized(
        name="Ray tasks",
        rows=rows.take(keep),
        columns=columns,
        provider="custom",
        names="name",
    )


def _dask(rows: TraceRows) -> Recognized | None:
    if not rows.has("worker", "startstops", "key"):
        return None
    columns: dict[str, list[object]] = {"worker": [], "start": [], "stop": [], "status": []}
    statuses = rows.columns.get("status", ["OK"] * rows.count)
    for worker, spans, status in zip(
        rows.columns["worker"], rows.columns["startstops"], statuses, strict=True
    ):
        for span in spans if isinstance(spans, list | tuple) else ():
            if isinstance(span, dict) and span.get("action") == "compute":
                for name, value in (
                    ("worker", worker),
                    ("start", span.get("start")),
                    ("stop", span.get("stop")),
                    ("status", status),
                ):
                    columns[name].append(value)
    layout = TraceColumns(
        worker=("worker",),
        start="start",
        end="stop",
        unit="s",
        failed=(("status", "error"),),
        attempts="span",
        succeeding=True,
    )
    return Recognized(
        name="dask task stream",
        rows=TraceRows(columns, len(columns["worker"])),
        columns=layout,
        notes=("times are those of the computation; transfers and the scheduler are left out",),
        provider="dask",
    )


def _straggler_analysis(rows: TraceRows) -> Recognized | None:
    if not rows.has("rank", "step", "optype", "start_ts", "duration"):
        return None
    keep = [i for i, op in enumerate(rows.columns["optype"]) if op in _COMPUTING]
    columns = TraceColumns(
        worker=("rank",), round=("step",), duration="duration", unit="s", attempts="sum"
    )
    note = f"a rank's time in a step is the sum of its {' and '.join(_COMPUTING)} operations; "
    note += "all others wait for other ranks"
    return Recognized(
        name="StragglerAnalysis",
        rows=rows.take(keep),
        columns=columns,
        notes=(note,),
        provider="custom",
    )


def _faas_benchmark(rows: TraceRows) -> Recognized | None:
    if not rows.has("pystart_ms", "pyend_ms", "pyduration_ms"):
        return None
    columns = TraceColumns(start="pystart_ms", end="pyend_ms", unit="ms", attempts="span")
    note = "worker n is the n-th request of each round; times are those of the client"
    return Recognized(name="faas-parallelism-benchmark", rows=rows, columns=columns, notes=(note,))


def _plain(rows: TraceRows) -> Recognized | None:
    """Return rows whose columns have the same names as the options."""
    if not rows.has("worker", "round"):
        return None
    columns = TraceColumns(worker=("worker",), round=("round",), unit="s")
    if rows.has("seconds"):
        columns = replace(columns, duration="seconds")
    elif rows.has("start_s", "end_s"):
        columns = replace(columns, start="start_s", end="end_s")
    else:
        return None
    if rows.has("failed"):
        values = sorted({cell_text(each) for each in rows.columns["failed"]})
        failures = [each for each in values if each.strip().lower() not in _NO_FAILURE]
        columns = replace(columns, failed=tuple(("failed", each) for each in failures))
    return Recognized(name="rows", rows=rows, columns=columns)


_READERS: Final[tuple[Callable[[TraceRows], Recognized | None], ...]] = (
    _lithops,
    _cloudwatch,
    _ray_tasks,
    _ray_timeline,
    _dask,
    _straggler_analysis,
    _faas_benchmark,
    _plain,
)
FORMATS: Final = (
    "Lithops stats",
    "CloudWatch REPORT lines",
    "Ray tasks",
    "Ray timeline",
    "dask task stream",
    "StragglerAnalysis",
    "faas-parallelism-benchmark",
    "rows",
)
"""The names of the formats that are recognised by their content."""


def recognized_format(rows: TraceRows) -> Recognized | None:
    """Return the trace if its format is known, else None."""
    for reader in _READERS:
        if (found := reader(rows)) is not None:
            return _of_one_task(found)
    return None


def _of_one_task(found: Recognized) -> Recognized:
    """Return the rows of the most frequent task, if the trace has tasks of several names."""
    if found.names is None or not found.rows.has(found.names):
        return found
    counts = Counter(str(name) for name in found.rows.columns[found.names])
    if len(counts) < 2:
        return found
    (name, count), (other, second), *_ = counts.most_common()
    if count == second:
        return found  # all tasks count; `--where` chooses
    keep = [i for i, each in enumerate(found.rows.columns[found.names]) if str(each) == name]
    note = f"only the tasks with {found.names}={name} count ({count} of {found.rows.count} rows; "
    note += f"next: {other})"
    return replace(found, rows=found.rows.take(keep), notes=(*found.notes, note))

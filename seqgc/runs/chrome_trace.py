"""A recorded run as a trace in Chrome's format, which Perfetto and ``chrome://tracing`` show.

Source: *Trace Event Format* (Google), the JSON object format with complete events (``X``), instant
events (``i``) and metadata (``M``). Times are in microseconds of the run's clock.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from seqgc._durable import replacing
from seqgc.errors import ParameterError
from seqgc.ports import TaskPhases
from seqgc.runs.recorded import RecordedRun

__all__ = ["require_trace_name", "trace_events", "write_trace"]

TraceEvent: TypeAlias = dict[str, object]

_ENDINGS: Final = ".json", ".json.gz"
_MASTER, _WORKERS = 1, 2  # processes of the trace
_ROUNDS, _JOBS, _NOTICES = 1, 2, 3  # threads of the master
_PHASES: Final = {name: name.removesuffix("_s") for name in TaskPhases._fields}


def require_trace_name(path: Path) -> None:
    """Raise `ParameterError` unless the name of a trace file ends in .json or .json.gz."""
    if not path.name.lower().endswith(_ENDINGS):
        raise ParameterError("trace", f"must end in {' or '.join(_ENDINGS)}", str(path))


def write_trace(run: RecordedRun, path: str | Path) -> None:
    """Write the trace of a run to a file, which is compressed if its name ends in ``.gz``.

    Raises
    ------
    ParameterError
        If the name ends in neither ``.json`` nor ``.json.gz``.
    OSError
        If the file cannot be written. An earlier file is unchanged.
    """
    path = Path(path)
    require_trace_name(path)
    about = {"scheme": run.scheme, "workers": run.workers, "started_at": run.started_at}
    rest = {"displayTimeUnit": "ms", "otherData": about}
    with replacing(path) as file:
        target = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if path.suffix == ".gz" else file
        text = TextIOWrapper(target, encoding="utf-8", write_through=True)
        text.write(json.dumps(rest)[:-1] + ', "traceEvents": [\n')
        for number, event in enumerate(trace_events(run)):
            text.write((",\n" if number else "") + json.dumps(event, allow_nan=False))
        text.write("\n]}\n")
        text.detach()
        if target is not file:
            target.close()


def trace_events(run: RecordedRun) -> Iterator[TraceEvent]:
    """Yield the events of a run's trace.

    The master has a thread for rounds, one for decoded jobs, and one for notices. Each worker has a
    thread for its tasks, from the time at which a task left the master to its answer. If tasks of a
    worker overlap, the later ones are in another thread with the same name. The phases that a
    worker reports lie within its task. How long a task and its answer were on the way is known only
    in total; the trace divides this time equally.

    Examples
    --------
    >>> import tempfile
    >>> from seqgc.runs import read_run
    >>> log = '''{"event": "run", "at_s": 0.0, "schema": 1, "workers": 1, "scheme": "uncoded"}
    ... {"event": "dispatch", "at_s": 0.1, "round": 0, "attempt": 0, "jobs": [0]}
    ... {"event": "arrival", "at_s": 0.6, "round": 0, "worker": 0, "attempt": 0, "took_s": 0.5}
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "events.jsonl").write_text(log)
    ...     events = list(trace_events(read_run(folder)))
    >>> [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    [('round 0', 100000.0, 500000.0)]
    """
    yield _named("process_name", f"master: {run.scheme}", pid=_MASTER)
    yield _named("process_name", "workers", pid=_WORKERS)
    for thread, name in ((_ROUNDS, "rounds"), (_JOBS, "decoded jobs"), (_NOTICES, "notices")):
        yield _named("thread_name", name, pid=_MASTER, tid=thread)
    yield from _round_events(run)
    jobs = run.jobs()
    for job, at_s, error in zip(jobs["job"], jobs["finished_s"], jobs["error"], strict=True):
        yield _instant(f"job {job}", at_s, tid=_JOBS, args={"error": _number(error)})
    notices = run.notices()
    for at_s, kind, text in zip(notices["at_s"], notices["kind"], notices["text"], strict=True):
        yield _instant(str(kind), at_s, tid=_NOTICES, args={"text": str(text)})
    yield from _task_events(run)


def _round_events(run: RecordedRun) -> Iterator[TraceEvent]:
    rounds = run.rounds()
    for place, number in enumerate(rounds["round"].tolist()):
        began_s = float(rounds["began_s"][place])
        yield _complete(
            f"round {number}",
            began_s,
            float(rounds["closed_s"][place]) - began_s,
            category=str(rounds["reason"][place]),
            pid=_MASTER,
            tid=_ROUNDS,
            args={
                "reason": str(rounds["reason"][place]),
                "waited_out": bool(rounds["waited_out"][place]),
                "stragglers": int(rounds["stragglers"][place]),
                "first_answer_s": _number(rounds["kappa_s"][place]),
                "load": _number(rounds["load"][place]),
            },
        )


def _task_events(run: RecordedRun) -> Iterator[TraceEvent]:
    answers = run.answers()
    began_s = answers["at_s"] - answers["took_s"]
    lanes: dict[int, list[tuple[int, float]]] = {}  # by worker: thread, and when it is free
    threads = 0
    for place in np.argsort(began_s, kind="stable").tolist():
        if not math.isfinite(began_s[place]):
            continue
        worker, start_s = int(answers["worker"][place]), float(began_s[place])
        own, took_s = lanes.setdefault(worker, []), float(answers["took_s"][place])
        lane = next((i for i, (_, free_s) in enumerate(own) if free_s <= start_s), len(own))
        if lane == len(own):
            threads += 1
            own.append((threads, 0.0))
            yield _named("thread_name", f"worker {worker}", pid=_WORKERS, tid=threads)
            order: dict[str, object] = {"sort_index": 1000 * worker + lane}
            yield _metadata("thread_sort_index", order, pid=_WORKERS, tid=threads)
        thread = own[lane][0]
        own[lane] = thread, start_s + took_s
        outcome = str(answers["outcome"][place])
        yield _complete(
            f"round {answers['round'][place]}",
            start_s,
            took_s,
            category=outcome,
            pid=_WORKERS,
            tid=thread,
            args={
                "outcome": outcome,
                "attempt": int(answers["attempt"][place]),
                "late": bool(answers["late"][place]),
                "load": _number(answers["load"][place]),
            },
        )
        spent = [float(answers[name][place]) for name in _PHASES]
        yield from _phase_events(spent, start_s, took_s, tid=thread)


def _phase_events(
    spent_s: Iterable[float], start_s: float, took_s: float, *, tid: int
) -> Iterator[TraceEvent]:
    seconds = list(spent_s)
    way_s = took_s - sum(seconds)
    if not way_s >= 0:  # unknown (NaN), or the worker's clock is faster
        return
    start_s += way_s / 2
    for name, each_s in zip(_PHASES.values(), seconds, strict=True):
        if each_s > 0:
            yield _complete(name, start_s, each_s, category="phase", pid=_WORKERS, tid=tid, args={})
        start_s += each_s


def _complete(
    name: str,
    start_s: float,
    seconds: float,
    *,
    category: str,
    pid: int,
    tid: int,
    args: dict[str, object],
) -> TraceEvent:
    place = {"pid": pid, "tid": tid, "ts": _us(start_s), "dur": _us(max(0.0, seconds))}
    return {"name": name, "cat": category, "ph": "X", **place, "args": args}


def _instant(name: str, at_s: float, *, tid: int, args: dict[str, object]) -> TraceEvent:
    place = {"pid": _MASTER, "tid": tid, "ts": _us(at_s)}
    return {"name": name, "cat": "event", "ph": "i", "s": "p", **place, "args": args}


def _named(kind: str, name: str, *, pid: int, tid: int = 0) -> TraceEvent:
    return _metadata(kind, {"name": name}, pid=pid, tid=tid)


def _metadata(kind: str, args: dict[str, object], *, pid: int, tid: int) -> TraceEvent:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _us(seconds: float) -> float:
    """Return microseconds, to a tenth; 0 if the time is unknown."""
    return round(float(seconds) * 1e6, 1) if math.isfinite(seconds) else 0.0


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

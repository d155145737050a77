"""The events of a run as spans of OpenTelemetry (extra ``otel``)."""

from __future__ import annotations

import time
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from seqgc import ports
from seqgc.errors import one_line

__all__ = ["SpanObserver"]

_Address: TypeAlias = tuple[int, int, int]  # round, worker, attempt


class SpanObserver:
    """An observer that makes a span of a run, of each round and of each task.

    The span of the run, ``seqgc.run``, is a child of the span that is active when the run begins.
    Its children are the rounds, ``seqgc.round``, and the children of a round are its tasks,
    ``seqgc.task``, each from the time at which it left the master to its answer. A decoded job is
    an event of its run, and so is a notice. A task that fails has the status ``ERROR``. A task that
    was cancelled ends with its cancellation.

    ``tracer`` makes the spans. The default is the tracer ``seqgc`` of the program's global
    provider. Without an SDK, OpenTelemetry records nothing. The attributes are named
    ``seqgc.scheme``, ``seqgc.workers``, ``seqgc.round``, ``seqgc.reason``, ``seqgc.stragglers``,
    ``seqgc.worker``, ``seqgc.attempt``, ``seqgc.load``, ``seqgc.outcome`` (``answered``,
    ``failed``, ``cancelled`` or ``open``) and, for the phases that a worker reports,
    ``seqgc.waited_s``, ``seqgc.started_s``, ``seqgc.fetched_s`` and ``seqgc.computed_s``.

    Examples
    --------
    >>> from seqgc.ports import Notice
    >>> spans = SpanObserver()                          # train(plan, workers, observers=[spans])
    >>> spans(Notice(kind="run", fields={"scheme": "uncoded", "workers": 2}))
    >>> spans(Notice(kind="end", fields={"outcome": "finished"}))
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer: Final = tracer or trace.get_tracer("seqgc")
        self._run: Span | None = None
        self._rounds: dict[int, Span] = {}
        self._tasks: dict[_Address, Span] = {}
        # The time of day minus the time of the backend's clock; known from the first dispatch on.
        self._offset_ns: int | None = None
        self._now_ns = 0  # the time of day of the latest event

    def __call__(self, seen: ports.Seen) -> None:
        match seen:
            case ports.Notice():
                self._notice(seen)
            case ports.Dispatched():
                self._dispatched(seen)
            case ports.Arrival() | ports.Failure():
                self._answered(seen)
            case ports.Cancel(round=round, workers=workers):
                for address in [a for a in self._tasks if a[0] == round and a[1] in workers]:
                    self._end_task(address, "cancelled")
            case ports.Finish(job=job) if self._run is not None:
                self._run.add_event("decoded", {"seqgc.job": job}, timestamp=self._now_ns)
            case ports.Close(record=record):
                self._close(record)
            case ports.Tick(at=at):
                self._time_ns(at)

    def _notice(self, notice: ports.Notice) -> None:
        if notice.kind in ("run", "resume"):
            self._end_all("open")
            scheme, workers = notice.fields.get("scheme", ""), notice.fields.get("workers", 0)
            self._offset_ns, self._now_ns = None, time.time_ns()
            self._run = self._tracer.start_span(
                "seqgc.run",
                start_time=self._now_ns,
                attributes={"seqgc.scheme": str(scheme), "seqgc.workers": int(str(workers))},
            )
        elif self._run is not None and notice.kind == "end":
            outcome = str(notice.fields.get("outcome", ""))
            if outcome != "finished":
                self._run.set_status(Status(StatusCode.ERROR, outcome))
            self._end_all(outcome)
        elif self._run is not None:
            fields = {f"seqgc.{name}": one_line(str(v)) for name, v in notice.fields.items()}
            self._run.add_event(notice.kind, fields, timestamp=self._now_ns)

    def _dispatched(self, seen: ports.Dispatched) -> None:
        if seen.round not in self._rounds:
            self._rounds[seen.round] = self._tracer.start_span(
                "seqgc.round",
                context=None if self._run is None else trace.set_span_in_context(self._run),
                start_time=self._time_ns(seen.at),
                attributes={"seqgc.round": seen.round},
            )
        parent = trace.set_span_in_context(self._rounds[seen.round])
        for worker, left_at in zip(seen.workers, seen.left_at, strict=True):
            attributes: dict[str, int | float] = {
                "seqgc.round": seen.round,
                "seqgc.worker": worker,
                "seqgc.attempt": seen.attempt,
            }
            if seen.loads is not None:
                attributes["seqgc.load"] = float(seen.loads[worker])
            self._tasks[seen.round, worker, seen.attempt] = self._tracer.start_span(
                "seqgc.task",
                context=parent,
                start_time=self._time_ns(left_at),
                attributes=attributes,
            )

    def _answered(self, seen: ports.Arrival | ports.Failure) -> None:
        self._time_ns(seen.at)
        address = seen.round, seen.worker, seen.attempt
        span = self._tasks.get(address)
        if span is None:  # a late answer
            return
        if isinstance(seen, ports.Failure):
            span.set_status(Status(StatusCode.ERROR, seen.reason))
        elif seen.phases is not None:
            for name, seconds in seen.phases._asdict().items():
                span.set_attribute(f"seqgc.{name}", seconds)
        self._end_task(address, "failed" if isinstance(seen, ports.Failure) else "answered")

    def _close(self, record: ports.RoundRecord) -> None:
        if (span := self._rounds.pop(record.round, None)) is not None:
            span.set_attribute("seqgc.reason", record.reason)
            span.set_attribute("seqgc.stragglers", record.missed)
            span.end(self._now_ns)

    def _end_task(self, address: _Address, outcome: str) -> None:
        span = self._tasks.pop(address)
        span.set_attribute("seqgc.outcome", outcome)
        span.end(self._now_ns)

    def _end_all(self, outcome: str) -> None:
        """End the spans that are still open."""
        for address in list(self._tasks):
            self._end_task(address, "open")
        for span in self._rounds.values():
            span.end(self._now_ns)
        self._rounds.clear()
        if self._run is not None:
            self._run.set_attribute("seqgc.outcome", outcome)
            self._run.end(max(self._now_ns, time.time_ns()))
            self._run = None

    def _time_ns(self, at_s: float) -> int:
        """Return the time of day of a time of the backend's clock, in nanoseconds."""
        if self._offset_ns is None:
            self._offset_ns = time.time_ns() - int(at_s * 1e9)
        moment = self._offset_ns + int(at_s * 1e9)
        self._now_ns = max(self._now_ns, moment)
        return moment

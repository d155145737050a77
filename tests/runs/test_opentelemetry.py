"""The spans of a run are its rounds and tasks, with their times and outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seqgc import TrainingPlan, ports, train, workers
from tests.training.reference import make_model

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from seqgc.runs.opentelemetry import SpanObserver


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[SpanObserver]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield SpanObserver(provider.get_tracer("test"))
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == f"seqgc.{name}"]


def test_a_run_is_a_span_with_rounds_and_tasks(
    spans: SpanObserver, exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    plan = TrainingPlan(models=[make_model()], scheme="uncoded", steps=3, vectorize=1)
    with workers.local(2) as crew:
        train(plan, crew, run=tmp_path / "run", observers=[spans])
    (run,), rounds, tasks = (by_name(exporter, name) for name in ("run", "round", "task"))
    assert (len(rounds), len(tasks)) == (3, 6)
    assert dict(run.attributes) == {
        "seqgc.scheme": "uncoded", "seqgc.workers": 2, "seqgc.outcome": "finished",
    }  # fmt: skip
    assert [event.name for event in run.events].count("decoded") == 3
    for each in rounds:
        assert each.parent.span_id == run.context.span_id
        assert run.start_time <= each.start_time <= each.end_time <= run.end_time
        assert each.attributes["seqgc.reason"] == "everyone"
    parents = {each.context.span_id: each for each in rounds}
    for task in tasks:
        parent = parents[task.parent.span_id]
        assert parent.start_time <= task.start_time < task.end_time <= parent.end_time
        assert task.attributes["seqgc.outcome"] == "answered"
        assert task.attributes["seqgc.computed_s"] >= 0
        assert task.status.status_code == StatusCode.UNSET


def test_failed_cancelled_and_open_tasks_say_so(
    spans: SpanObserver, exporter: InMemorySpanExporter
) -> None:
    def address(worker: int) -> dict[str, int]:
        return {"round": 0, "worker": worker, "attempt": 0}

    spans(ports.Notice(kind="run", fields={"scheme": "gc:s=1", "workers": 4}))
    left_at = (10.0, 10.5, 11.0, 11.0)
    spans(ports.Dispatched(round=0, attempt=0, workers=(0, 1, 2, 3), left_at=left_at))
    spans(ports.Arrival(**address(0), at=12.0, results={}))
    spans(ports.Failure(**address(1), at=13.5, reason="it died"))
    spans(ports.Arrival(round=7, worker=1, attempt=0, at=13.5, results={}))  # unknown
    spans(ports.Cancel(round=0, workers=(2,)))
    spans(ports.Notice(kind="warning", fields={"text": "look"}))
    spans(ports.Notice(kind="end", fields={"outcome": "failed: no answer"}))
    found = {
        span.attributes["seqgc.worker"]: (
            span.attributes["seqgc.outcome"],
            round((span.end_time - span.start_time) / 1e9, 3),
            span.status.description,
        )
        for span in by_name(exporter, "task")
    }
    assert found == {
        0: ("answered", 2.0, None),
        1: ("failed", 3.0, "it died"),
        2: ("cancelled", 2.5, None),
        3: ("open", 2.5, None),
    }
    (run,) = by_name(exporter, "run")
    assert (run.status.status_code, run.status.description) == (
        StatusCode.ERROR, "failed: no answer",
    )  # fmt: skip
    assert [(event.name, dict(event.attributes)) for event in run.events] == [
        ("warning", {"seqgc.text": "look"})
    ]

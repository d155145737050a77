"""The sizes that a plan tells, against the messages themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqgc.backends.lambda_._messages import Invocations
from seqgc.cli._config import validated
from seqgc.cli._plan import RunPlan, plan_of, require_fit
from seqgc.cli._run import PreparedRun, prepare
from seqgc.errors import ParameterError
from seqgc.ports import Task, WorkItem
from seqgc.stores import DirectoryStore
from seqgc.train import TorchWorkload
from seqgc.train.factories import workload_of
from seqgc.wire import StoreRef, TaskMessage, encode, to_json


def prepared(**settings: object) -> PreparedRun:
    models = [{"name": f"model-{i}", "module": "mlp", "batch_size": 96} for i in range(6)]
    given: dict[str, object] = {"backend": "lambda-local", "steps": 4, "models": models}
    return prepare(validated(given | settings))


def messages(run: PreparedRun, store: DirectoryStore) -> list[TaskMessage]:
    """The tasks of the first round in which every job in flight has some."""
    workload = TorchWorkload(
        run.models,
        scheme=run.scheme,
        store=store,
        precision=run.config.precision,
        jobs_per_round=run.config.jobs_per_round,
    )
    schedule = run.scheme.start(run.num_rounds - run.scheme.delay)
    while schedule.round < run.scheme.delay:
        schedule.close_round(np.ones(run.scheme.n, dtype=np.bool_))
    for job in range(run.scheme.delay + 1):
        workload.begin(job)
    return [
        TaskMessage(
            task=Task(
                round=schedule.round,
                worker=worker,
                attempt=0,
                items=tuple(
                    WorkItem(slot=task.slot, parts=workload.resolve(task)) for task in tasks
                ),
            ),
            payload=run.config.payload,
        )
        for worker, tasks in enumerate(schedule.assignment())
    ]


@pytest.mark.parametrize("store", ["directory", "inline"])
@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "gc:s=1", "workers": 4},
        {"scheme": "m-sgc:B=1,W=3,lam=2", "workers": 6, "precision": "float64"},
        {"scheme": "sr-sgc:B=1,W=2,lam=2", "workers": 6, "payload": "bfloat16"},
        {"scheme": "gc-rep:s=1", "workers": 4, "jobs_per_round": 3},
    ],
    ids=lambda settings: str(settings["scheme"]),
)
def test_messages_are_as_large_as_planned_and_hardly_smaller(
    store: str, settings: dict[str, object], tmp_path: Path
) -> None:
    run = prepared(**settings, function={"store": store})
    plan = plan_of(run)
    shared = DirectoryStore(tmp_path)
    invocations = Invocations(
        run_id="a-run",
        workload=workload_of(run.config.models, precision=run.config.precision),
        store=StoreRef(kind=store),  # type: ignore[arg-type]
        shared=shared,
    )
    asked = messages(run, shared)
    largest = max(len(invocations.body(each)) for each in asked)
    assert largest <= plan.request_bytes <= 1.1 * largest + 8000
    results = {
        item.slot: np.zeros(sum(part.weights.size + 1 for part in item.parts))
        for item in max(asked, key=lambda each: len(each.task.items)).task.items
    }
    reply = to_json(encode(asked[0].answered(results), run_id="a-run"))
    assert len(reply) <= plan.reply_bytes <= 1.1 * len(reply) + 8000


def plan(**sizes: object) -> RunPlan:
    given: dict[str, object] = {
        "workers": 2,
        "rounds": 3,
        "jobs": 3,
        "where": "inline",
        "weights_bytes": 10,
        "weights_files": 1,
        "result_bytes": 10,
        "request_bytes": 100,
        "reply_bytes": 100,
        "limit_bytes": 100,
    }
    return RunPlan(**(given | sizes))  # type: ignore[arg-type]


def test_what_fits_exactly_fits() -> None:
    require_fit(plan())
    require_fit(plan(where="directory", reply_bytes=101))  # through the store
    assert plan(where="directory", reply_bytes=101).traffic.results_stored


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ({"request_bytes": 101}, r"`request` must not exceed the 100 bytes .*got 101 \(weights in"),
        ({"reply_bytes": 101}, r"`function.store` must be a store .*replies of 101 bytes.*EFS"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(sizes: dict[str, object], rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        require_fit(plan(**sizes))

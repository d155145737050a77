"""The sizes that a plan tells, against the messages themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqgc.backends.lambda_._messages import Invocations
from seqgc.cli._config import validated
from seqgc.cli._plan import RunPlan, budget_of, plan_of, require_fit
from seqgc.cli._run import PreparedRun, prepare
from seqgc.cost import FunctionSetup, PriceModel, read_prices
from seqgc.errors import ParameterError
from seqgc.ports import Dispatch, Task, WorkItem
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


@pytest.mark.parametrize(
    ("function", "outside"),
    [
        ({}, True),
        ({"mount": "/mnt/x"}, False),
        ({"master": "inside"}, False),
        ({"mount": "/mnt/x", "master": "outside"}, True),
    ],
)
def test_a_master_is_outside_unless_it_has_the_mount(
    function: dict[str, object], outside: bool
) -> None:
    run = prepared(scheme="uncoded", workers=2, max_usd=1.0, function=function)
    traffic = plan_of(run).traffic
    assert (traffic.task().transfer_out_bytes > 0) == traffic.master_outside == outside
    budget = budget_of(run)
    assert budget is not None
    model = PriceModel(
        read_prices("us-east-1"),
        architecture="arm64",
        function=FunctionSetup(memory_mb=2560, timeout_s=60.0),
        traffic=traffic,
    )
    assert budget.spent_usd == 2 * model.warm_up_usd  # reserved
    tasks = dict.fromkeys((0, 1), ())
    budget(Dispatch(round=0, attempt=0, assignment=tasks))
    assert budget.committed_usd == budget.spent_usd + 2 * model.task_usd(60.0)


@pytest.mark.parametrize("known", [{"probe": 2}, {"retune": 2}])
def test_schemes_that_are_not_known_have_no_budget(known: dict[str, object]) -> None:
    settings = {"scheme": "uncoded", "workers": 2, "alpha": 1.0, **known}
    prepared(**settings)
    with pytest.raises(ParameterError, match="`max_usd` must be left out with `probe` or `retune`"):
        prepared(**settings, max_usd=5.0)


def test_a_budget_needs_the_region_s_prices() -> None:
    settings = {"scheme": "uncoded", "workers": 2, "function": {"region": "moon-1"}}
    prepared(**settings)
    with pytest.raises(ParameterError, match="`region` must be one of us-east-1"):
        prepared(**settings, max_usd=5.0)


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

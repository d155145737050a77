"""The sizes that a plan tells, against the messages themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from seqgc.backends.lambda_._messages import Invocations
from seqgc.config._tables import validated
from seqgc.costs import FunctionSetup, Meter, read_prices
from seqgc.errors import ParameterError
from seqgc.models.factories import workload_of
from seqgc.ports import Dispatch, MiniTask, Task, WorkItem
from seqgc.schemes import Scheme, parse_scheme
from seqgc.stores import DirectoryStore, StoreChoice
from seqgc.training import ResultLayout, TaskSizes, TorchWorkload, TrainingPlan, Work
from seqgc.wire import (
    MESSAGE_LIMIT_BYTES,
    StoreKind,
    StoreRef,
    TaskMessage,
    decode_invocation,
    encode,
    envelope_bytes,
    from_json,
    to_json,
)
from seqgc.workers import (
    Forecast,
    FunctionSettings,
    FunctionWorkers,
    Reach,
    forecast,
    require_fit,
)
from seqgc.workers._forecast import choose, traffic_of
from tests.cli.inside import PreparedRun, make_workers, prepare
from tests.cli.kit import Out, deploy
from tests.cli.refused import refused
from tests.training.reference import make_model


def prepared(**settings: object) -> PreparedRun:
    models = [{"name": f"model-{i}", "module": "mlp", "batch_size": 96} for i in range(6)]
    given: dict[str, object] = {"backend": "lambda-local", "steps": 4, "models": models}
    given["jobs_per_round"] = 1
    config = validated(given | settings)
    return prepare(config, make_workers(config))


def scheme_of(run: PreparedRun) -> Scheme:
    return run.plan.on(run.workers.n).setting.scheme


def predicted(run: PreparedRun) -> Forecast:
    return run.workers.forecast(run.plan)


def messages(run: PreparedRun, store: DirectoryStore) -> list[TaskMessage]:
    """The tasks of the first round in which every job in flight has some."""
    scheme = scheme_of(run)
    workload = TorchWorkload(
        run.plan.models,
        scheme=scheme,
        store=store,
        precision=run.config.precision,
        jobs_per_round=run.config.jobs_per_round,
    )
    schedule = scheme.start(run.plan.on(scheme.n).num_jobs)
    while schedule.round < scheme.delay:
        schedule.close_round(np.ones(scheme.n, dtype=np.bool_))
    for job in range(scheme.delay + 1):
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
            payload=run.plan.payload,
            code="c" * 100,
        )
        for worker, tasks in enumerate(schedule.assignment())
    ]


RUN_ID = "a-run" * 18
MANY = [{"name": f"{'model-' * 15}{i}", "module": "mlp", "batch_size": 96} for i in range(96)]


@pytest.mark.parametrize("store", ["directory", "inline"])
@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "gc:s=1", "workers": 4},
        {"scheme": "m-sgc:B=1,W=3,lam=2", "workers": 6, "precision": "float64"},
        {"scheme": "sr-sgc:B=1,W=2,lam=2", "workers": 6, "payload": "bfloat16"},
        {"scheme": "gc-rep:s=1", "workers": 4, "jobs_per_round": 3},
        {"scheme": "m-sgc:B=1,W=3,lam=1", "workers": 4, "jobs_per_round": 32, "models": MANY},
    ],
    ids=lambda settings: str(settings["scheme"]),
)
def test_messages_are_as_large_as_planned_and_hardly_smaller(
    store: str, settings: dict[str, object], tmp_path: Path
) -> None:
    run = prepared(**settings, function={"store": store})
    plan = predicted(run)
    shared = DirectoryStore(tmp_path)
    invocations = Invocations(
        run_id=RUN_ID,
        workload=workload_of(run.plan.models, precision=run.config.precision),
        store=StoreRef(kind=store, location=RUN_ID),  # type: ignore[arg-type]
        shared=shared,
    )
    asked = messages(run, shared)
    largest = max(len(invocations.body(each)) for each in asked)
    spare = 8000 + 400 * plan.sizes.mini_tasks * plan.sizes.models
    assert largest <= plan.request_bytes <= 1.1 * largest + spare
    results = {
        item.slot: np.zeros(sum(sum(part.pieces) for part in item.parts))
        for item in max(asked, key=lambda each: len(each.task.items)).task.items
    }
    reply = len(to_json(encode(asked[0].result(results), run_id=RUN_ID)))
    _, asking = decode_invocation(from_json(invocations.body(asked[0])))
    spared = MESSAGE_LIMIT_BYTES - asking.inline_limit_bytes
    assert reply + spared <= plan.sizes.reply_bytes <= 1.1 * reply + spare


@pytest.mark.parametrize(
    ("spec", "jobs", "most"),
    [
        ("m-sgc:B=2,W=3,lam=4", 8, 4),  # without coded results: what stragglers leave
        ("m-sgc:B=2,W=3,lam=1", 8, 4),
        ("m-sgc:B=2,W=3,lam=1", 2, 2),
        ("sr-sgc:B=2,W=3,lam=2", 1, 1),  # of fewer jobs than it has rounds of delay
        ("gc:s=1", 1, 1),
    ],
)
def test_the_heaviest_round_is_found_whoever_straggles(spec: str, jobs: int, most: int) -> None:
    plan = TrainingPlan(models=[make_model()], scheme=spec, steps=jobs, stale=True)
    scheme, sizes = parse_scheme(spec, n=4), plan.on(4).sizes
    length = ResultLayout([p.numel() for p in plan.models[0].module.parameters()]).size
    assert (sizes.mini_tasks, sizes.result_bytes) == (most, most * 4 * length)
    for pattern in np.random.default_rng(0).random((20, scheme.delay + jobs, 4)) < 0.5:
        schedule = scheme.start(jobs)
        for responded in pattern:
            assert max(map(len, schedule.assignment())) <= most
            schedule.close_round(responded if schedule.feasible(responded) else responded | True)


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
    run = prepared(scheme="uncoded", workers=2, function=function)
    traffic = predicted(run).use.traffic
    assert (traffic.task().transfer_out_bytes > 0) == traffic.master_outside == outside
    budget = run.workers.budget(run.plan, 1.0)
    meter = Meter(function=FunctionSetup(memory_mb=2560, timeout_s=60.0), traffic=traffic)
    bill = partial(read_prices("us-east-1").bill, architecture="arm64")
    assert budget.spent_usd == bill(meter.invocations(2)).usd  # reserved for the warm-up
    task = MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    budget(Dispatch(round=0, attempt=0, assignment=dict.fromkeys((0, 1), (task,))))
    moved = traffic.task(fresh=True).times(2) + traffic.publication()
    assert budget.committed_usd == pytest.approx(bill(meter.invocations(4) + moved).usd)


@pytest.mark.parametrize("known", [{"probe": 2}, {"retune": 2}])
def test_schemes_that_are_not_known_have_no_budget(known: dict[str, object]) -> None:
    settings = {"scheme": "uncoded", "workers": 2, "alpha": 1.0, **known}
    run = prepared(**settings)
    with pytest.raises(ParameterError, match="`max_usd` must be left out with `probe` or `retune`"):
        run.workers.budget(run.plan, 5.0)


def test_a_budget_needs_the_region_s_prices() -> None:
    settings = {"scheme": "uncoded", "workers": 2, "function": {"region": "moon-1"}}
    run = prepared(**settings)
    with pytest.raises(ParameterError, match="`region` must be one of us-east-1"):
        run.workers.budget(run.plan, 5.0)


# ---- the store ----------------------------------------------------------------------------------


def store_of(*, deployed: bool = True, **settings: object) -> StoreChoice:
    """What is chosen; for functions of AWS, but without a deployment's file."""
    return as_if(prepared(workers=4, **settings), deployed=deployed).store


def as_if(run: PreparedRun, *, deployed: bool) -> Forecast:
    """What is foreseen; for functions of AWS without a deployment's file."""
    return forecast(run.plan, run.workers.n, run.config.function, reach=Reach(deployed=deployed))


LARGE = {
    "scheme": "m-sgc:B=1,W=3,lam=2",  # three mini-tasks of 2.2 MB, either way
    "precision": "float64",
    "models": [{"name": f"model-{i}", "module": "paper-cnn"} for i in range(4)],
}
MOUNTED = {"mount": "/mnt/x"}


def test_small_weights_travel_in_messages() -> None:
    small = store_of(scheme="uncoded")
    assert (small.kind, "fit the 6.29 MB of a message" in small.reason) == ("inline", True)
    assert store_of(scheme="uncoded", function=MOUNTED) == small


def test_a_master_outside_sends_less_of_weights() -> None:
    models = [{"name": f"model-{i}", "module": "paper-cnn"} for i in range(4)]
    settings = {"scheme": "m-sgc:B=1,W=2,lam=4", "models": models}  # 4 requests of 2.9 MB
    assert store_of(**settings).kind == "s3"
    assert store_of(**settings, function={"master": "inside"}).kind == "inline"


def test_large_weights_are_where_a_round_costs_less() -> None:
    assert store_of(**LARGE).reason.startswith("the only store available")
    run = prepared(workers=4, **LARGE, function=MOUNTED)
    plan = as_if(run, deployed=True)
    assert plan.store.kind == "s3"
    # The weights of a job written once and read by four, results of 6.5 MB written and read.
    weights, results = 269_998 * 8, 3 * 269_999 * 8
    efs = (weights + 4 * results) * 0.06 + 4 * (weights + results) * 0.03
    s3 = (1 + 4) * 0.000005 + 4 * 2 * 0.0000004
    shown = f"${s3:.4f} a round, on the directory ${efs / 2**30:.4f}; more than the 6.29 MB"
    assert plan.store.reason.startswith(shown)
    assert plan.use.traffic.results_stored


@pytest.mark.parametrize("settings", [{"scheme": "uncoded"}, LARGE])
def test_functions_of_this_machine_share_a_folder(settings: dict[str, object]) -> None:
    assert store_of(deployed=False, **settings).kind == "directory"


@pytest.mark.parametrize("kind", ["directory", "inline"])
def test_what_is_asked_for_is_taken(kind: str) -> None:
    asked = store_of(scheme="uncoded", function={"store": kind})
    assert asked == StoreChoice(kind=kind, reason="as configured")  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [{"probe": 2}, {"retune": 2}])
@pytest.mark.parametrize(("function", "kind"), [({}, "s3"), (MOUNTED, "directory")])
def test_where_schemes_are_not_known_it_is_what_takes_any_size(
    known: dict[str, object], function: dict[str, object], kind: str
) -> None:
    choice = store_of(scheme="uncoded", alpha=1.0, function=function, **known)
    assert choice.kind == kind
    assert "sizes, are not known" in choice.reason


def test_where_prices_are_not_known_it_is_the_quicker_one() -> None:
    moon = {"region": "moon-1"}
    assert store_of(**LARGE, function=moon).kind == "s3"  # there is no other
    choice = store_of(**LARGE, function=moon | MOUNTED)
    assert (choice.kind, choice.reason[:14]) == ("directory", "the faster one")
    assert store_of(scheme="uncoded", function=moon | MOUNTED).kind == "inline"


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"scheme": "uncoded", "workers": 4}, "inline"),
        (LARGE | {"workers": 4, "function": MOUNTED}, "directory"),
        (
            {"scheme": "uncoded", "workers": 4, "probe": 2, "alpha": 1.0, "function": MOUNTED},
            "directory",
        ),
    ],
)
def test_functions_without_a_way_to_s3_are_not_sent_there(
    settings: dict[str, object], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deploy(reaches_s3=False)
    assert predicted(prepared(backend="lambda", **settings)).where == kind


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"scheme": "uncoded", "function": {"store": "s3"}}, "they have no S3"),
        (LARGE, "`store` must exist for a request or reply of more than"),
        (
            {"scheme": "uncoded", "alpha": 1.0, "retune": 2},
            "must be directory or s3 with --probe or --retune",
        ),
    ],
)
def test_what_needs_a_store_is_refused_where_none_is_in_reach(
    settings: dict[str, object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deploy(reaches_s3=False)
    with pytest.raises(ParameterError, match=told):
        prepared(backend="lambda", workers=4, **settings)


def test_a_bundle_s_weights_are_those_of_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deploy()
    mixed = [{"name": name, "module": name} for name in ("mlp", "paper-cnn")]
    run = prepared(backend="lambda", scheme="uncoded", workers=4, models=mixed, jobs_per_round=2)
    assert predicted(run).sizes.weights_bytes == (4_810 + 269_998) * 4
    assert predicted(run).where == "inline"


@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_store_of_a_recording_is_chosen_for_tasks_of_a_whole_batch(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    def keep(self: FunctionWorkers, work: Work) -> None:
        seen.append((work, choose(self.settings, work.sizes, workers=self.n, reach=self.reach)))
        raise ParameterError("work", "must be kept", None)

    seen: list[tuple[Work, StoreChoice]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FunctionWorkers, "check", keep)
    deploy()
    recorded = ["profile", "--backend", "lambda", "-n", workers, "--module", "mlp"]
    refused(capsys, *recorded, "--batch-size", "1000", "-o", "seen.npz")
    ((work, store),) = seen
    assert store.kind == "inline"
    assert 16 * 1000 < work.sizes.task_bytes < 16 * 1000 + 2000
    assert work.sizes.mini_tasks == 1


# ---- what fits ----------------------------------------------------------------------------------

FULL = TaskSizes(
    weights_bytes=100,
    weights_files=1,
    mini_tasks=2,
    task_bytes=100,
    result_bytes=172,  # and 64 for each of its parts
    limit_bytes=envelope_bytes(4096 + 300),
)


def test_what_fits_exactly_fits() -> None:
    require_fit(FULL, "inline")
    assert not traffic_of(FULL, "inline", settings=FunctionSettings()).results_stored
    require_fit(replace(FULL, task_bytes=300), "directory")  # weights are elsewhere
    through_the_store = replace(FULL, result_bytes=175)
    require_fit(through_the_store, "directory")
    assert traffic_of(through_the_store, "directory", settings=FunctionSettings()).results_stored


@pytest.mark.parametrize(
    ("where", "sizes", "rule"),
    [
        ("inline", {"task_bytes": 103}, r"`request` must not exceed the 5886 .*\(keep weights in"),
        ("directory", {"task_bytes": 303}, r"`request` must not exceed the 5886 bytes .*got 5890"),
        ("inline", {"result_bytes": 175}, r"`function.store` must be .*replies of 5890 .*EFS"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(
    where: StoreKind, sizes: dict[str, int], rule: str
) -> None:
    with pytest.raises(ParameterError, match=rule):
        require_fit(replace(FULL, **sizes), where)

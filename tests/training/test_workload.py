"""Coded training equals plain training, whatever is bundled, late or stale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from seqgc import workers
from seqgc.errors import ParameterError, ScheduleError, StoreError
from seqgc.models.model import ParameterVector
from seqgc.ports import Decoding, FloatArray, MiniTask, Task, WeightRef, WorkItem
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.stores import MemoryStore
from seqgc.training import (
    Model,
    ResultLayout,
    TorchCompute,
    TorchWorkload,
    TrainingPlan,
    batch_indices,
    digits,
    evaluate,
    make_module,
)
from tests.kit import decoded
from tests.training.reference import SGD, Chunks, flat, make_model, run_coded, train_alone

MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
ADAM = partial(torch.optim.Adam, lr=1e-2)


class Assigning(torch.optim.SGD):
    """SGD that gives its parameters new memory, as ``p.data = p.data - lr * gradient`` does."""

    def step(self) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data.clone()


ASSIGNING = partial(Assigning, lr=0.1)


def run(
    models: list[Model],
    *,
    jobs: int,
    scheme: Chunks,
    jobs_per_round: int = 1,
    stale: bool = False,
    precision: str = "float64",
) -> TorchWorkload:
    store = MemoryStore()
    workload = TorchWorkload(
        models,
        scheme=scheme,
        store=store,
        precision=precision,
        jobs_per_round=jobs_per_round,
        stale=stale,
    )
    objectives = [model.objective for model in models]
    compute = TorchCompute(objectives, store=store, precision=precision)
    run_coded(workload, compute, jobs=jobs, scheme=scheme)
    return workload


@pytest.mark.parametrize(
    "optimizer",
    [SGD, MOMENTUM, ADAM, ASSIGNING],
    ids=["sgd", "momentum", "adam", "assigning"],
)
@pytest.mark.parametrize(
    ("delay", "per_round"),
    [(0, 1), (0, 2), (3, 1), (1, 2), (0, 4), (1, 3)],
    ids=["T0", "T0k2", "T3", "T1k2", "T0k4", "T1k3"],
)
def test_coded_training_of_five_models_equals_plain_training_of_each(
    optimizer: object, delay: int, per_round: int
) -> None:
    models = [
        make_model(f"m{i}", seed=i, optimizer=optimizer, batch_size=[16, 7, 3, 64, 5][i])
        for i in range(5)
    ]
    bundles = math.ceil(5 / per_round)
    workload = run(models, jobs=10 * bundles, scheme=Chunks(delay=delay), jobs_per_round=per_round)
    for model in models:
        alone, losses = train_alone(model, steps=10, dtype=torch.float64)
        np.testing.assert_allclose(
            flat(workload.module(model.name)), flat(alone), rtol=0, atol=1e-8, err_msg=model.name
        )
        decoded = [entry.loss for entry in workload.metrics if entry.model == model.name]
        np.testing.assert_allclose(decoded, losses, rtol=1e-10, err_msg=model.name)


@pytest.mark.parametrize(
    ("delay", "models", "per_round", "steps_late"),
    [(1, 1, 1, 1), (3, 1, 1, 3), (3, 2, 1, 1), (2, 4, 2, 1), (5, 2, 1, 2)],
)
def test_stale_gradients_are_applied_exactly_as_late_as_the_delay_says(
    delay: int, models: int, per_round: int, steps_late: int
) -> None:
    """With G bundles, job t - T - 1 is the last applied: floor(T / G) steps of a model are not."""
    nets = [make_model(f"m{i}", seed=i, optimizer=MOMENTUM) for i in range(models)]
    bundles = models // per_round
    workload = run(
        nets, jobs=12 * bundles, scheme=Chunks(delay=delay), jobs_per_round=per_round, stale=True
    )
    for net in nets:
        late, _ = train_alone(net, steps=12, dtype=torch.float64, steps_late=steps_late)
        prompt, _ = train_alone(net, steps=12, dtype=torch.float64)
        np.testing.assert_allclose(flat(workload.module(net.name)), flat(late), rtol=0, atol=1e-8)
        assert np.abs(flat(late) - flat(prompt)).max() > 1e-3  # the test can tell them apart


def test_a_gradient_that_comes_early_does_not_change_a_stale_run() -> None:
    weights = []
    for finish_at_once in (True, False):
        model, store, scheme = make_model(), MemoryStore(), Chunks(delay=2)
        workload = TorchWorkload(
            [model], scheme=scheme, store=store, precision="float64", stale=True
        )
        compute = TorchCompute([model.objective], store=store, precision="float64")
        open_jobs: list[int] = []
        for job in range(8):
            workload.begin(job)
            open_jobs.append(job)
            while open_jobs and (finish_at_once or open_jobs[0] <= job - scheme.delay):
                workload.finish(
                    decoded(open_jobs[0]), compute(workload.resolve(whole(open_jobs.pop(0))))
                )
        for job in open_jobs:
            workload.finish(decoded(job), compute(workload.resolve(whole(job))))
        workload.flush()
        weights.append(flat(workload.module("net")))
    np.testing.assert_array_equal(*weights)


def whole(job: int) -> MiniTask:
    return MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))


def test_adam_in_float32_reaches_the_accuracy_of_plain_training_on_digits() -> None:
    data = digits(seed=0)
    model = make_model(
        module=make_module("digits-cnn", seed=0),
        dataset=data.train,
        optimizer=ADAM,
        batch_size=128,
    )
    workload = run([model], jobs=100, scheme=Chunks(), precision="float32")
    alone, _ = train_alone(model, steps=100, dtype=torch.float32)
    plain = evaluate(alone, loss=model.loss, dataset=data.test).accuracy
    coded = evaluate(workload.module("net"), loss=model.loss, dataset=data.test).accuracy
    assert plain is not None
    assert coded == pytest.approx(plain, abs=0.01)
    assert coded >= 0.95


def test_the_module_given_and_the_global_random_state_are_left_alone() -> None:
    model = make_model()
    before, state = flat(model.module), torch.get_rng_state()
    workload = run([model], jobs=3, scheme=Chunks())
    np.testing.assert_array_equal(flat(model.module), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.abs(flat(workload.module("net")) - before).max() > 1e-3


def test_only_versions_that_a_job_in_flight_needs_stay_in_the_store() -> None:
    published: list[tuple[str, int]] = []
    held: set[WeightRef] = set()

    class Noting(MemoryStore):
        def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
            ref = super().publish(model, version, params)
            published.append((model, version))
            held.add(ref)
            return ref

        def discard(self, ref: WeightRef) -> None:
            super().discard(ref)
            held.remove(ref)

    models, store, scheme = [make_model("a"), make_model("b", seed=1)], Noting(), Chunks(delay=1)
    workload = TorchWorkload(models, scheme=scheme, store=store)
    first = None
    for job in range(6):
        workload.begin(job)
        first = first or workload.resolve(whole(0))[0].weights
        if job >= 1:
            workload.resolve(whole(job - 1))
            workload.finish(
                decoded(job - 1), np.ones(workload.result_form(job - 1)[1], dtype=np.float32)
            )
        assert len(held) == min(job + 1, 2)
    assert published == [(name, version) for version in range(3) for name in "ab"]
    with pytest.raises(StoreError):
        store.fetch(first)
    workload.finish(decoded(5), np.ones(workload.result_form(5)[1], dtype=np.float32))
    workload.flush()
    assert held == set()


def test_a_mini_task_names_each_chunk_as_a_slice_of_the_batch_with_its_coefficient() -> None:
    workload = TorchWorkload(
        [make_model(batch_size=16), make_model("b", batch_size=5, seed=1)],
        scheme=Chunks(),
        store=MemoryStore(),
        jobs_per_round=2,
    )
    workload.begin(0)
    everything = workload.resolve(whole(0))
    task = MiniTask(job=0, slot=0, chunks=np.array([3, 1]), coefficients=np.array([2.0, -1.0]))
    a, b = workload.resolve(task)
    # Fractions 1/4, 1/8, 1/8, 1/2: of 16 points 4, 2, 2, 8; of 5 points 1, 1, 1, 2 (1.25 -> 1).
    assert a.points.tolist() == [*everything[0].points[8:16], *everything[0].points[4:6]]
    assert a.coefficients.tolist() == [2 / 16] * 8 + [-1 / 16] * 2
    assert b.points.tolist() == [*everything[1].points[3:5], *everything[1].points[1:2]]
    assert b.coefficients.tolist() == [2 / 5] * 2 + [-1 / 5]


def test_too_few_models_for_the_delay_are_refused_with_the_remedy() -> None:
    models = [make_model(f"m{i}", seed=i) for i in range(4)]
    with pytest.raises(ParameterError, match=r"at least T \* .* = 5.*got 4.*stale") as caught:
        TorchWorkload(models, scheme=Chunks(delay=2), store=MemoryStore(), jobs_per_round=2)
    assert caught.value.argument == "models"


@pytest.mark.parametrize("jobs_per_round", [0, 5])
def test_bundles_without_models_or_of_too_many_are_refused(jobs_per_round: int) -> None:
    models = [make_model(f"m{i}") for i in range(4)]
    with pytest.raises(ParameterError, match="`jobs_per_round` must be >= 1 and at most"):
        TorchWorkload(models, scheme=Chunks(), store=MemoryStore(), jobs_per_round=jobs_per_round)


@pytest.mark.parametrize("models", [[], [make_model("a"), make_model("a")]], ids=["none", "twice"])
def test_models_without_names_of_their_own_are_refused(models: list[Model]) -> None:
    with pytest.raises(ParameterError, match="`models` must h"):
        TorchWorkload(models, scheme=Chunks(), store=MemoryStore())


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ParameterError, match="`precision` must be one of float32, float64"):
        TorchWorkload([make_model()], scheme=Chunks(), store=MemoryStore(), precision="float16")


def size_of(workload: TorchWorkload, name: str) -> int:
    """Return how long the results of a model alone are."""
    return ResultLayout([each.numel() for each in workload.module(name).parameters()]).size


def test_jobs_out_of_order_unfinished_or_finished_twice_are_refused_and_change_nothing() -> None:
    workload = TorchWorkload([make_model()], scheme=Chunks(), store=MemoryStore())
    gradient = np.zeros(size_of(workload, "net"), dtype=np.float32)
    with pytest.raises(ScheduleError, match="job 1 cannot begin: the next job is 0"):
        workload.begin(1)
    with pytest.raises(ScheduleError, match="job 0 is not in flight"):
        workload.resolve(whole(0))
    with pytest.raises(ScheduleError, match="job 0 cannot finish"):
        workload.finish(decoded(0), gradient)
    workload.begin(0)
    with pytest.raises(ScheduleError, match="job 0 has not been decoded"):
        workload.begin(1)
    with pytest.raises(ScheduleError, match="job 0 has not been decoded"):
        workload.flush()
    with pytest.raises(ParameterError, match="`gradient` of job 0 must have shape"):
        workload.finish(decoded(0), gradient[1:])
    workload.finish(decoded(0), gradient)
    with pytest.raises(ScheduleError, match="finished before"):
        workload.finish(decoded(0), gradient)
    assert len(workload.metrics) == 1
    workload.begin(1)
    with pytest.raises(ScheduleError, match="job 0 is not in flight"):
        workload.resolve(whole(0))


@pytest.mark.parametrize(("models", "delay"), [(1, 0), (4, 0), (3, 2), (6, 2), (1, 2), (2, 3)])
def test_a_job_needs_exactly_the_gradients_that_its_weights_hold(models: int, delay: int) -> None:
    nets = [make_model(f"m{i}", seed=i) for i in range(models)]
    workload = TorchWorkload(nets, scheme=Chunks(delay=delay), store=MemoryStore(), stale=True)
    gradient = np.zeros(size_of(workload, "m0"), dtype=np.float32)
    open_jobs: set[int] = set()
    for job in range(3 * models + delay):
        needed = {other for other in range(job) if workload.needs(job, other)}
        assert needed == open_jobs & set(range(job % models, job - delay, models))
        if needed:
            with pytest.raises(ScheduleError, match=f"job {min(needed)} has not been decoded"):
                workload.begin(job)
        for other in needed:
            workload.finish(decoded(other), gradient)
        open_jobs -= needed
        workload.begin(job)
        open_jobs.add(job)


def test_a_model_that_is_not_there_is_named() -> None:
    workload = TorchWorkload([make_model()], scheme=Chunks(), store=MemoryStore())
    with pytest.raises(ParameterError, match="`name` must be one of net; got 'nets'"):
        workload.module("nets")


def test_batches_are_of_the_data_that_there_were_when_the_run_began() -> None:
    data = [(torch.ones(1, 8, 8), 0)] * 40
    workload = TorchWorkload([make_model(dataset=data)], scheme=Chunks(), store=MemoryStore())
    for job in range(3):
        workload.begin(job)
        part = workload.resolve(whole(job))[0]
        assert part.points.tolist() == batch_indices(40, batch_size=16, seed=0, step=job).tolist()
        workload.finish(Decoding(job=job, terms=()), np.zeros(workload.result_form(job)[1]))
        data += data  # whoever keeps the list: workers have their copies


def test_the_orders_of_an_epoch_of_many_models_are_drawn_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batches(step: int) -> list[list[int]]:
        points = [batch_indices(300, batch_size=5, seed=s, step=step) for s in range(7000, 7100)]
        assert {each.dtype for each in points} == {np.dtype(np.intp)}
        return [each.tolist() for each in points]

    first = batches(0)
    monkeypatch.setattr(np.random, "default_rng", None)
    assert batches(0) == first
    assert all(map(set.isdisjoint, map(set, first), map(set, batches(1))))


def test_a_batch_larger_than_the_dataset_takes_points_again() -> None:
    x = torch.tensor([[1.0], [2.0]])
    model = make_model(
        module=torch.nn.Linear(1, 1),
        loss=torch.nn.MSELoss(),
        dataset=TensorDataset(x, 3 * x),
        batch_size=5,
    )
    workload = run([model], jobs=4, scheme=Chunks())
    alone, _ = train_alone(model, steps=4, dtype=torch.float64)
    np.testing.assert_allclose(flat(workload.module("net")), flat(alone), rtol=0, atol=1e-12)


READ = [
    ("ra-sgc:s=1,q=0.5,r=2", 3),  # job t - 2 is dealt in round t - 1, awaited until t closes
    ("ra-sgc:s=1,q=0.5,r=2,late=drop", 2),
    ("m-sgc:B=1,W=2,lam=2,late=take", 3),
    ("gc:s=1", 1),
]
"""Of how many jobs at once some task of use may read the weights."""


@pytest.mark.parametrize(("spec", "kept"), READ)
def test_weights_stay_while_a_late_task_may_read_them(spec: str, kept: int) -> None:
    store, models = MemoryStore(), [make_model(f"m{i}") for i in range(4)]
    scheme = parse_scheme(spec, n=4)
    workload = TorchWorkload(models, scheme=scheme, store=store)
    seen: list[WeightRef] = []
    task = MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    for job in range(4):
        workload.begin(job)
        seen.append(workload.resolve(replace(task, job=job))[0].weights)
        if job + 1 > scheme.delay:
            gone = job - scheme.delay
            size = workload.result_form(gone)[1]
            workload.finish(decoded(gone), np.zeros(size))
    for ref in seen[-kept:]:
        store.fetch(ref)
    for ref in seen[:-kept]:
        with pytest.raises(StoreError):
            store.fetch(ref)


@pytest.mark.parametrize(("spec", "kept"), READ)
def test_a_worker_keeps_the_weights_of_every_job_that_it_may_be_asked_for(
    spec: str, kept: int
) -> None:
    models = [make_model(f"m{i}") for i in range(8)]
    setting = Setting(scheme=parse_scheme(spec, n=4), jobs_per_round=2)
    plan = TrainingPlan(models=models, scheme=setting, steps=1)
    work = plan.on(4).work(Path("run"))
    assert work.cached_weights == kept  # one vector for both models of a job


def test_the_weights_of_a_bundle_are_published_as_one_vector() -> None:
    models, store = [make_model(f"m{i}") for i in range(3)], MemoryStore()
    scheme = parse_scheme("uncoded", n=2)
    workload = TorchWorkload(models, scheme=scheme, store=store, jobs_per_round=3)
    workload.begin(0)
    everything = MiniTask(job=0, slot=0, chunks=np.array([0, 1]), coefficients=np.ones(2))
    parts = workload.resolve(everything)
    (ref,) = {part.weights for part in parts}
    for part, model in zip(parts, models, strict=True):
        parameters = ParameterVector(workload.module(model.name))
        np.testing.assert_array_equal(part.parameters(store.fetch), parameters.read())
    assert store.fetch(ref).shape == (sum(ParameterVector(m.module).size for m in models),)


def test_an_injected_delay_is_of_the_load_that_a_worker_has_in_the_round() -> None:
    models = [make_model(f"m{i}") for i in range(4)]
    setting = Setting(scheme=parse_scheme("ra-sgc:s=0,q=0.5,r=1", n=4), jobs_per_round=2)
    work = TrainingPlan(models=models, scheme=setting, steps=1).on(4).work(Path("run"))
    crew = workers.local(4, delays=lambda row, worker, load: 10 * row + worker + load)
    task = Task(round=2, worker=1, attempt=0, items=(), load=0.25)
    message = crew._messaging(work).message
    assert message(task).delay_s == 21.5
    assert message(replace(task, attempt=1)).delay_s == 21.5
    dealt = TrainingPlan(models=models, scheme="deal:pieces=4", steps=2)
    work = dealt.on(4).work(Path("run"))
    message = crew._messaging(work).message
    pieces = tuple(WorkItem(slot=slot, parts=()) for slot in (0, 3))
    for attempt in (0, 1):  # of job 5, a quarter of a batch each
        piece = Task(round=5, worker=1, attempt=attempt, items=pieces[:1])
        assert message(piece).delay_s == 51.25
        assert message(replace(piece, items=pieces)).delay_s == 102.5
    assert message(Task(round=0, worker=2, attempt=0, items=())).delay_s == 2.0


def by_groups(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer that decays the weights, and not the biases."""
    own = list(parameters)
    weights, biases = [p for p in own if p.ndim > 1], [p for p in own if p.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01)


def halved_every_three_steps(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.StepLR:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


JOINT = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "nesterov": MOMENTUM,
    "dampened": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.1, maximize=True),
    "adam": ADAM,
    "amsgrad": partial(torch.optim.Adam, lr=1e-2, weight_decay=0.01, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, betas=(0.8, 0.95)),
    "adamax": partial(torch.optim.Adamax, lr=1e-2),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-2, momentum=0.9, centered=True),
    "adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "nadam": partial(torch.optim.NAdam, lr=1e-2),
    "groups": by_groups,
}


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", JOINT.values(), ids=JOINT)
def test_models_that_step_together_get_the_bits_of_models_that_step_alone(
    optimizer: Callable[..., torch.optim.Optimizer], precision: str
) -> None:
    """Two models are equal, a third has a schedule, and a fourth another learning rate."""

    def faster(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        made = optimizer(parameters)
        made.param_groups[0]["lr"] *= 2
        return made

    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    models = [
        make_model("a", seed=1, optimizer=optimizer, gradient_clip_val=0.5),
        make_model("b", seed=2, optimizer=optimizer, module=linear),
        make_model("c", seed=3, optimizer=optimizer, scheduler=halved_every_three_steps),
        make_model("d", seed=4, optimizer=faster),
    ]

    def trained(jobs_per_round: int) -> dict[str, object]:
        workload = TorchWorkload(
            models,
            scheme=Chunks(),
            store=MemoryStore(),
            precision=precision,  # type: ignore[arg-type]
            jobs_per_round=jobs_per_round,
        )
        rng, job = np.random.default_rng(0), 0
        for _ in range(12):
            gradients: list[FloatArray] = []
            for number in range(4 // jobs_per_round):
                workload.begin(job + number)
                dtype, size, _ = workload.result_form(job + number)
                gradients.append(rng.standard_normal(size).astype(dtype))
            for gradient in gradients:
                workload.finish(Decoding(job=job, terms=()), gradient)
                job += 1
        state, files = workload.snapshot()
        tensors = {
            (file, name): tensor.numpy().tobytes()
            for file, each in files.items()
            if not file.startswith("flight")
            for name, tensor in each.items()
        }
        return {"settings": [model.settings for model in state.models], **tensors}

    together, alone = trained(4), trained(1)
    assert len(together) > 9
    assert together == alone

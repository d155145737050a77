"""Batches in parts: each is applied once, on weights no staler than promised, to the right sum."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seqgc.errors import ParameterError, ScheduleError, StoreError
from seqgc.ports import Decoding, FloatArray, MiniTask, Part, Term, WeightRef
from seqgc.schemes import chunk_sizes
from seqgc.stores import MemoryStore
from seqgc.training import (
    Callback,
    Model,
    StaleWorkload,
    Stop,
    TorchCompute,
    TorchWorkload,
    Updates,
    batch_indices,
)
from seqgc.training.workload import WorkloadState
from tests.kit import decoded
from tests.training.reference import SGD, Chunks, flat, make_model, mean_loss, train_alone

N = 4  # parts of a batch, which `Chunks` cuts unevenly
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
ADAM = partial(torch.optim.Adam, lr=1e-2)
CLOCK, LATE = Updates(apply="clock"), Updates(apply="clock", refresh="late")


@dataclass(frozen=True, kw_only=True)
class Parts(Chunks):
    """A defence as far as training knows it."""

    staleness: int | None = 0
    most_again: int = 0


@dataclass(eq=False)
class Run:
    """A workload whose parts are sent and answered by hand."""

    models: list[Model]
    staleness: int | None = 0
    updates: Updates = field(default_factory=Updates)
    callbacks: tuple[object, ...] = ()
    store: MemoryStore = field(default_factory=MemoryStore)
    most_again: int = 0

    def __post_init__(self) -> None:
        self.workload = StaleWorkload(
            self.models,
            scheme=Parts(staleness=self.staleness, most_again=self.most_again),
            store=self.store,
            precision="float64",
            updates=self.updates,
            callbacks=self.callbacks,
        )
        objectives = [model.objective for model in self.models]
        self.compute = TorchCompute(objectives, store=self.store, precision="float64")
        self.begun = 0
        self.on_their_way: dict[tuple[int, int], FloatArray] = {}

    def send(self, job: int, part: int) -> WeightRef:
        while self.begun <= job:
            self.workload.begin(self.begun)
            self.begun += 1
        points = self.workload.resolve(one(job, part))
        self.on_their_way[job, part] = self.compute(points)
        return points[0].weights

    def answer(self, job: int, part: int, *, weight: float = 1.0) -> None:
        result = self.on_their_way.pop((job, part))
        self.workload.finish(decoding(job, part, weight=weight), weight * result)

    def sent_and_answered(self, jobs: range) -> None:
        """One batch after the other, as with a barrier."""
        for job in jobs:
            for part in range(N):
                self.send(job, part)
            for part in range(N):
                self.answer(job, part)

    def weights(self, name: str = "net") -> FloatArray:
        return flat(self.workload.module(name))


def one(job: int, part: int) -> MiniTask:
    return MiniTask(
        job=job, slot=0, chunks=np.array([part]), coefficients=np.ones(1), cover=part, place=0
    )


def decoding(job: int, part: int, *, weight: float = 1.0) -> Decoding:
    term = Term(worker=part, round=job, slot=0, weight=weight)
    return Decoding(job=job, terms=(term,), part=Part(index=part, of=N))


def bounded(data: st.DataObject, *, jobs: int, slack: int) -> Iterator[tuple[str, int, int]]:
    """Yield what happens, in an order of one's own choice, where workers go on by themselves."""
    done, busy = [0] * N, [False] * N
    while min(done) < jobs:
        ready = [
            i for i in range(N) if not busy[i] and done[i] < jobs and done[i] - min(done) <= slack
        ]
        worker = data.draw(st.sampled_from(ready + [i for i in range(N) if busy[i]]))
        if busy[worker]:
            done[worker] += 1
            yield "answer", done[worker] - 1, worker
        else:
            yield "send", done[worker], worker
        busy[worker] = not busy[worker]


def delayed(model: Model, happened: list[tuple[str, int, int]]) -> FloatArray:
    """Plain gradient descent in the order in which parts came, on the weights they were sent at."""
    module = copy.deepcopy(model.module).double()
    steps: dict[tuple[int, int], list[torch.Tensor]] = {}
    for what, job, part in happened:
        if what == "send":
            steps[job, part] = share_of(model, module, job, part)
            continue
        with torch.no_grad():
            for p, step in zip(module.parameters(), steps.pop((job, part)), strict=True):
                p.sub_(0.1 * step)  # the rate of SGD
    return flat(module)


def share_of(model: Model, module: nn.Module, job: int, part: int) -> list[torch.Tensor]:
    """What a part of a batch has of the gradient of the batch's mean loss."""
    size = model.batch_size
    ends = np.cumsum([0, *chunk_sizes(size, Chunks().chunk_fractions)])
    points = batch_indices(len(model.dataset), batch_size=size, seed=model.seed, step=job)
    items = [model.dataset[int(i)] for i in points[ends[part] : ends[part + 1]]]
    x, y = (torch.stack([item[axis] for item in items]) for axis in (0, 1))
    loss = mean_loss(model, module(x.double()), y) * len(x) / size
    return list(torch.autograd.grad(loss, list(module.parameters())))


def small_model(**others: object) -> Model:
    torch.manual_seed(3)
    return make_model(module=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), **others)


# ---- the weights are right ----------------------------------------------------------------------


def test_parts_that_are_applied_as_they_come_make_the_steps_of_plain_training() -> None:
    """With a barrier all parts of a batch read the same weights: SGD in parts is exact."""
    models = [make_model(f"m{i}", seed=i, batch_size=[16, 7, 3][i]) for i in range(3)]
    run = Run(models)
    run.sent_and_answered(range(24))
    run.workload.flush()
    for model in models:
        alone, losses = train_alone(model, steps=8, dtype=torch.float64)
        np.testing.assert_allclose(run.weights(model.name), flat(alone), rtol=0, atol=1e-12)
        noted = [entry.loss for entry in run.workload.metrics if entry.model == model.name]
        np.testing.assert_allclose(noted, losses, rtol=1e-12)


@settings(max_examples=15)
@given(st.data(), st.integers(0, 3))
def test_weights_are_those_of_sequential_delayed_gradients_in_any_order(
    data: st.DataObject, slack: int
) -> None:
    run, happened = Run([small_model()], staleness=slack), list(bounded(data, jobs=4, slack=slack))
    for what, job, part in happened:
        run.send(job, part) if what == "send" else run.answer(job, part)
    run.workload.flush()
    expected = delayed(run.models[0], happened)
    np.testing.assert_allclose(run.weights(), expected, rtol=0, atol=1e-12)


@settings(max_examples=15)
@given(st.data(), st.integers(0, 3))
def test_a_run_that_reads_as_late_as_may_be_is_the_same_whoever_was_slow(
    data: st.DataObject, slack: int
) -> None:
    """Bits and all, with any optimizer: it is gradient descent, each gradient ``slack`` late."""
    run = Run([small_model(optimizer=MOMENTUM)], staleness=slack, updates=LATE)
    for what, job, part in bounded(data, jobs=5, slack=slack):
        run.send(job, part) if what == "send" else run.answer(job, part)
    run.workload.flush()
    in_turn = Run([small_model(optimizer=MOMENTUM)], staleness=slack, updates=LATE)
    in_turn.sent_and_answered(range(5))
    in_turn.workload.flush()
    np.testing.assert_array_equal(run.weights(), in_turn.weights())
    assert run.workload.metrics == in_turn.workload.metrics
    late, _ = train_alone(run.models[0], steps=5, dtype=torch.float64, steps_late=slack)
    np.testing.assert_allclose(run.weights(), flat(late), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("slack", "models"), [(1, 1), (3, 1), (3, 2), (1, 3)])
def test_reading_as_late_as_may_be_is_a_stale_run_of_a_scheme_with_that_delay(
    slack: int, models: int
) -> None:
    nets = [make_model(f"m{i}", seed=i, optimizer=ADAM) for i in range(models)]
    run, scheme = Run(nets, staleness=slack, updates=LATE), Chunks(delay=slack)
    run.sent_and_answered(range(6 * models))
    run.workload.flush()
    store = MemoryStore()
    coded = TorchWorkload(nets, scheme=scheme, store=store, precision="float64", stale=True)
    compute = TorchCompute([net.objective for net in nets], store=store, precision="float64")
    whole = [
        MiniTask(job=t, slot=0, chunks=np.arange(N), coefficients=np.ones(N))
        for t in range(6 * models)
    ]
    for job, task in enumerate(whole):
        coded.begin(job)
        coded.finish(decoded(job), compute(coded.resolve(task)))
    coded.flush()
    for net in nets:
        expected = flat(coded.module(net.name))
        np.testing.assert_allclose(run.weights(net.name), expected, rtol=0, atol=1e-12)


def test_parts_added_up_make_one_step_of_any_optimizer_when_the_last_of_them_comes() -> None:
    run, seen = Run([make_model(optimizer=ADAM)], staleness=1, updates=CLOCK), list[FloatArray]()
    for part in range(N):
        run.send(0, part)
    for part in (2, 0, 3, 1):
        seen.append(run.weights())
        run.answer(0, part)
    for before in seen:
        np.testing.assert_array_equal(before, seen[0])
    alone, _ = train_alone(run.models[0], steps=1, dtype=torch.float64)
    np.testing.assert_allclose(run.weights(), flat(alone), rtol=0, atol=1e-12)


def test_steps_end_in_their_order_although_a_later_batch_is_in_first() -> None:
    heard: list[tuple[int, float]] = []

    class Listener(Callback):
        def on_step(self, _: str, step: int, loss: float, *__: object) -> None:
            heard.append((step, loss))

    halved = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    model = make_model(scheduler=halved)
    run = Run([model], staleness=None, callbacks=(Listener(),))
    for job in (0, 1):
        for part in range(N):
            run.send(job, part)
    before = run.weights()
    for part in range(N):
        run.answer(1, part)
    assert not np.array_equal(run.weights(), before)  # what has come is in the weights,
    assert heard == []  # and no step is over
    for part in range(N):
        run.answer(0, part)
    losses = [entry.loss for entry in run.workload.take_metrics()]
    assert [step for step, _ in heard] == [1, 2]
    assert [loss for _, loss in heard] == [losses[1], losses[0]]  # noted as batches were complete
    run.send(2, 0)
    now = run.weights()
    share = run.on_their_way[2, 0][: len(now)]
    run.answer(2, 0)
    np.testing.assert_allclose(run.weights(), now - 0.1 * 0.25 * share, rtol=0, atol=1e-12)


def test_an_update_that_is_weighted_down_moves_less_and_its_loss_is_the_batchs() -> None:
    run, plain = Run([make_model()], staleness=None), Run([make_model()], staleness=None)
    for each, weight in ((run, 0.5), (plain, 1.0)):
        before = each.weights()
        for part in range(N):
            each.send(0, part)
        for part in range(N):
            each.answer(0, part, weight=weight)
        each.moved = each.weights() - before
    np.testing.assert_allclose(2 * run.moved, plain.moved, rtol=0, atol=1e-12)
    assert run.workload.metrics == plain.workload.metrics


# ---- which weights are read ---------------------------------------------------------------------


def test_a_task_reads_all_that_has_come_and_nothing_is_published_twice() -> None:
    run = Run([make_model()], staleness=1)
    first = [run.send(0, part).version for part in range(N)]
    run.answer(0, 2)
    again = run.send(1, 2).version
    assert (first, again) == ([0] * N, 1)


def test_weights_that_are_not_needed_fresh_are_read_as_long_as_the_bound_allows() -> None:
    """About one publication in ``staleness + 1`` batches, and one in each without slack."""
    for slack, expected in ((0, [0, 4, 8, 12, 16, 20]), (2, [0, 0, 0, 12, 12, 12])):
        run = Run([make_model()], staleness=slack, updates=Updates(refresh="needed"))
        versions = []
        for job in range(6):
            versions.append(run.send(job, 0).version)
            for part in range(1, N):
                assert run.send(job, part).version == versions[-1]
            for part in range(N):
                run.answer(job, part)
        assert versions == expected


def test_weights_staler_than_promised_are_not_handed_out() -> None:
    run = Run([make_model()], staleness=1)
    for job in (0, 1):
        for part in range(N):
            run.send(job, part)
    for part in range(1, N):
        run.answer(0, part)
    with pytest.raises(ScheduleError, match=r"job 2 .* lack parts of job 0: .* 1 jobs late"):
        run.send(2, 1)
    run.answer(0, 0)
    assert run.send(2, 1).version == N


def test_a_version_is_kept_as_long_as_a_part_that_reads_it_is_not_in() -> None:
    held: set[WeightRef] = set()

    class Noting(MemoryStore):
        def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
            held.add(ref := super().publish(model, version, params))
            return ref

        def discard(self, ref: WeightRef) -> None:
            super().discard(ref)
            held.remove(ref)

    run = Run([make_model()], staleness=1, store=Noting())
    old = run.send(0, 0)
    for part in range(1, N):
        run.send(0, part)
        run.answer(0, part)
        new = run.send(1, part)
    assert old in held  # part 0 of job 0 reads it
    run.send(0, 0)  # it is asked for again: another version is read as well
    assert {old, new} <= held
    run.answer(0, 0)
    assert old not in held
    assert new in held
    for part in range(1, N):
        run.answer(1, part)
    run.send(1, 0)
    run.answer(1, 0)
    run.workload.flush()
    assert held == set()


# ---- what is refused ----------------------------------------------------------------------------


def test_a_part_is_taken_once() -> None:
    run = Run([make_model()], staleness=1)
    run.send(0, 1)
    result = run.on_their_way[0, 1]
    run.answer(0, 1)
    before = run.weights()
    for refused in (decoding(0, 1), decoded(0), decoding(1, 0)):
        with pytest.raises(ScheduleError, match=f"of job {refused.job} cannot be taken"):
            run.workload.finish(refused, result)
    np.testing.assert_array_equal(run.weights(), before)
    with pytest.raises(ScheduleError, match="job 0 has not been decoded"):
        run.workload.flush()
    for part in (0, 2, 3):
        run.send(0, part)
        run.answer(0, part)
    run.workload.flush()


class Halving(torch.optim.Optimizer):
    """One's own, of which no list knows: each step halves what is left of the one before."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= group["lr"] * 0.5**self.steps * p.grad


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (ADAM, "Adam"),
        (MOMENTUM, "SGD"),
        (partial(torch.optim.SGD, lr=0.1, weight_decay=1e-4), "SGD"),
        (partial(torch.optim.RMSprop, lr=0.1), "RMSprop"),
        (Halving, "Halving"),
    ],
)
def test_an_optimizer_that_takes_no_step_in_parts_is_refused_and_told_what_to_do(
    optimizer: object, name: str
) -> None:
    models = [make_model("a"), make_model("b", optimizer=optimizer)]
    with pytest.raises(
        ParameterError,
        match=rf'`optimizer` .*; got .{name}. \(.*apply="clock", or --apply clock\)$',
    ):
        Run(models, staleness=1)
    Run(models, staleness=1, updates=CLOCK)


def test_one_that_is_as_plain_as_sgd_is_not_refused() -> None:
    for optimizer in (
        SGD,
        partial(torch.optim.SGD, lr=1e-7),
        partial(torch.optim.SGD, lr=0.0),
        partial(torch.optim.SGD, lr=3.0, maximize=True),
    ):
        Run([make_model(optimizer=optimizer)], staleness=1)


def test_what_does_not_go_together_is_refused_in_one_line() -> None:
    with pytest.raises(ParameterError, match="`apply` must be clock"):
        Updates(refresh="late")
    with pytest.raises(ParameterError, match="`refresh` must be always"):
        Run([make_model()], staleness=None, updates=LATE)
    with pytest.raises(ParameterError, match="`apply` must be one of update, clock; got 'never'"):
        Updates(apply="never")
    with pytest.raises(
        ParameterError, match=r'gradient_clip_val.* \(.*apply="clock", or --apply clock\)$'
    ):
        Run([make_model(gradient_clip_val=1.0)], staleness=1)


# ---- models that end, runs that go on -----------------------------------------------------------


def test_a_model_that_is_stopped_takes_no_more_parts_and_its_turns_go_to_the_others() -> None:
    class Stopper(Callback):
        def on_step(self, model: str, step: int, *_: object) -> Stop | None:
            return Stop.MODEL if (model, step) == ("a", 2) else None

    models = [make_model("a"), make_model("b", seed=1)]
    run = Run(models, staleness=1, callbacks=(Stopper(),))
    run.sent_and_answered(range(3))  # steps 1 and 2 of a, step 1 of b
    assert run.workload.parked["a"].step == 2
    left = run.weights("a")
    run.sent_and_answered(range(3, 7))
    np.testing.assert_array_equal(run.weights("a"), left)
    alone, _ = train_alone(models[1], steps=5, dtype=torch.float64)
    np.testing.assert_allclose(run.weights("b"), flat(alone), rtol=0, atol=1e-12)
    assert {entry.model for entry in run.workload.metrics if entry.job >= 3} == {"b"}


def test_parts_that_overflow_park_their_model_alone() -> None:
    run = Run([make_model("a"), make_model("b", seed=1)], staleness=1)
    size = run.workload.result_form
    run.send(0, 0)
    run.workload.finish(decoding(0, 0), np.full(size(0)[1], np.inf))
    assert run.workload.parked["a"].kind == "diverged"
    assert "b" not in run.workload.parked
    assert np.isfinite(run.weights("a")).all()


def test_a_batch_is_the_same_models_when_it_is_tried_again_to_publish_its_weights() -> None:
    """Also by a run that goes on from a checkpoint of that moment."""

    class Full(MemoryStore):
        full = False

        def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
            if self.full:
                raise StoreError("no space left")
            return super().publish(model, version, params)

    models, store = [make_model("a"), make_model("b", seed=1)], Full()
    run = Run(models, staleness=1, store=store)
    run.sent_and_answered(range(1))
    store.full = True
    with pytest.raises(StoreError):
        run.send(1, 0)
    store.full = False
    again = Run(models, staleness=1)
    again.workload.restore(*run.workload.snapshot())
    again.begun = run.begun
    for each in (run, again):
        assert each.send(1, 0).model == "b"
        assert each.send(2, 0).model == "a"


@pytest.mark.parametrize("updates", [Updates(), CLOCK, LATE], ids=["update", "clock", "late"])
def test_a_run_that_goes_on_from_a_checkpoint_takes_every_part_once(updates: Updates) -> None:
    """Parts that were on their way are asked for again; with "late", the bits are the same."""
    models = [small_model()]
    run, whole = (
        Run(models, staleness=1, updates=updates),
        Run(models, staleness=1, updates=updates),
    )
    for each in (run, whole):
        each.sent_and_answered(range(2))
        for part in range(N):
            each.send(2, part)
        for part in (0, 3):
            each.answer(2, part)
            each.send(3, part)
        each.answer(3, 3)
    state, files = run.workload.snapshot()
    told = msgspec.json.decode(msgspec.json.encode(state), type=WorkloadState)
    again = Run(models, staleness=1, updates=updates)
    again.workload.restore(told, files)
    again.begun = 4
    for each in (again, whole):
        each.workload.take_metrics()
        for job, part in [(2, 1), (2, 2), (3, 0)]:
            each.send(job, part)
        for job, part in [(2, 1), (2, 2), (3, 0)]:
            each.answer(job, part)
        with pytest.raises(ScheduleError, match="part 3 of 4 of job 3 cannot be taken"):
            each.workload.finish(decoding(3, 3), np.zeros(each.workload.result_form(3)[1]))
        for part in (1, 2):
            each.send(3, part)
        for part in (2, 1):
            each.answer(3, part)
        each.sent_and_answered(range(4, 6))
        each.workload.flush()
    np.testing.assert_array_equal(again.weights(), whole.weights())
    assert again.workload.metrics == whole.workload.metrics
    assert [entry.job for entry in again.workload.metrics] == [2, 3, 4, 5]

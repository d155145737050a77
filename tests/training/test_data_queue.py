"""What a step lost is drawn again: every data point that was drawn is applied once, or waits."""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from seqgc import master, workers
from seqgc.ports import Decoding, Finish, FloatArray, MiniTask, Seen, WeightedPoints
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule, RoundPolicy, Setting
from seqgc.schemes import Backup, Scheme, Uncoded
from seqgc.stores import MemoryStore
from seqgc.training import (
    AugmentedDataset,
    Model,
    TorchCompute,
    TorchWorkload,
    TrainingPlan,
    batch_indices,
    resume,
    train,
)
from seqgc.virtual import RandomFaults, VirtualBackend
from tests.kit import SOAK
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed
from tests.training.test_resume import (
    CopyAt,
    outcome,
    whole_checkpoints,  # noqa: F401 (a fixture)
)

Batch = dict[int, list[int]]  # its points, by chunk


class Tally(nn.Module):
    """A weight for each data point, which says at the end how often the point was applied.

    It kills the worker's process that computes it as often as there are files.
    """

    def __init__(self, size: int, folder: Path | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(self.layer.weight)
        self.folder = folder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for file in self.folder.iterdir() if self.folder and parent_process() else ():
            with suppress(FileNotFoundError):  # another worker was first
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x)[:, 0]


def output(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """A loss whose gradient is the data point, on any weights."""
    return found


def same(x: object) -> object:
    return x


class Numbered(AugmentedDataset):
    """Points whose indices say of which epoch they are, and which are the same in all of them."""

    def __getitem__(self, index: int) -> tuple[object, object]:
        return self.dataset[index % len(self)]


def tally(
    name: str = "net", *, size: int, batch: int, seed: int = 0, folder: Path | None = None
) -> Model:
    data = TensorDataset(torch.eye(size, dtype=torch.float64), torch.zeros(size))
    return make_model(
        name,
        module=Tally(size, folder),
        loss=output,
        dataset=Numbered(data, transform=same),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        batch_size=batch,
        seed=seed,
    )


def applied(module: nn.Module, *, batch: int, scheme: Backup) -> list[int]:
    """How often each point is in a model's weights."""
    (weights,) = (p.detach().numpy()[0] for p in module.parameters())
    counts = -weights * batch * (scheme.n - scheme.b) / scheme.n
    np.testing.assert_allclose(counts, counts.round(), rtol=0, atol=1e-6)
    return counts.round().astype(int).tolist()


class Noting(TorchWorkload):
    """Notes what the chunks of each step were, and which it lost; parks a model if told so."""

    def __init__(self, models: Sequence[Model], *, scheme: Scheme, **options: object) -> None:
        self.store = MemoryStore()
        super().__init__(models, scheme=scheme, store=self.store, precision="float64", **options)
        self.chunks: dict[int, dict[str, Batch]] = {}  # by job and model
        self.lost: dict[int, tuple[int, ...]] = {}  # by job
        self.park_at: tuple[int, str] | None = None  # a job, and the model to be parked after it

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        parts = super().resolve(mini_task)
        for part in parts:
            batch = self.chunks.setdefault(mini_task.job, {}).setdefault(part.model, {})
            (chunk,) = mini_task.chunks.tolist()
            assert batch.setdefault(chunk, part.points.tolist()) == part.points.tolist()
        return parts

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self.lost[decoding.job] = decoding.lost
        super().finish(decoding, gradient)
        if self.park_at is not None and self.park_at[0] == decoding.job:
            self.park([self.park_at[1]], why="it has seen enough")

    def steps(self, name: str) -> list[tuple[Batch, tuple[int, ...]]]:
        """Return what each step of a model drew, and lost, for as long as it was trained."""
        own = [(each[name], self.lost[job]) for job, each in self.chunks.items() if name in each]
        return [(batch, lost) for batch, lost in own if any(batch.values())]

    def drive(self, losses: Sequence[tuple[int, ...]], *, chunks: int, first: int = 0) -> None:
        """Make these jobs, without workers: zeros are applied, but for the chunks that are lost."""
        for job, lost in enumerate(losses, start=first):
            self.begin(job)
            for chunk in range(chunks):
                one = np.ones(1)
                self.resolve(MiniTask(job=job, slot=0, chunks=np.array([chunk]), coefficients=one))
            dtype, size, _ = self.result_form(job)
            self.finish(Decoding(job=job, terms=(), lost=lost), np.zeros(size, dtype))


def epochs(size: int, seed: int) -> Iterator[list[int]]:
    """The points of each epoch in their order, numbered on from epoch to epoch."""
    for epoch in count():
        order = batch_indices(size, batch_size=size, seed=seed, step=epoch)
        yield (order + epoch * size).tolist()


def follow(
    steps: Sequence[tuple[Batch, tuple[int, ...]]], model: Model
) -> tuple[Counter[int], list[int]]:
    """See that a model's batches are those of its queue; return what was applied, and what waits.

    The queue holds what is left of the epoch under way; what is lost goes to its end.
    """
    size, coming = len(model.dataset), epochs(len(model.dataset), model.seed)
    queue: deque[int] = deque()
    waiting: set[int] = set()
    found: Counter[int] = Counter()
    for batch, lost in steps:
        drawn: list[int] = []
        ended: list[int] = []  # an epoch
        while len(drawn) < model.batch_size:
            if not queue:
                queue.extend(next(coming))
                ended += [queue[0] // size - 1]
            drawn.append(queue.popleft())
        points = [point for chunk in sorted(batch) for point in batch[chunk]]
        assert sorted(points) == sorted(drawn)
        if waiting.isdisjoint(drawn):
            assert points == drawn, "a batch without repeated points is in its usual order"
        again = [point for chunk in lost for point in batch[chunk]]
        found.update(point for c, each in batch.items() if c not in lost for point in each)
        for (
            epoch
        ) in ended:  # its queue is empty: all of it has been applied, but for losses just now
            for point in range(max(0, epoch * size), (epoch + 1) * size):
                assert found[point] == (point not in again), (point, epoch)
        queue.extend(again)
        waiting = waiting - set(drawn) | set(again)
    assert set(found.values()) <= {1}, "nothing is applied twice"
    assert not waiting & found.keys()
    return found, sorted(waiting)


@st.composite
def runs(draw: Callable[..., object]) -> dict[str, object]:
    n, per_round, bundles = (draw(st.integers(1, most)) for most in (5, 2, 3))
    models = [
        tally(f"m{k}", size=draw(st.integers(1, 30)), batch=draw(st.integers(1, 20)), seed=k)
        for k in range(per_round * bundles)
    ]
    steps = draw(st.integers(1, 16))
    parked = draw(st.none() | st.tuples(st.integers(0, 20), st.sampled_from(models)))
    return {
        "scheme": Backup(n=n, b=draw(st.integers(0, n - 1))),
        "models": models,
        "per_round": per_round,
        "steps": steps,
        "jobs": steps * bundles,
        "seed": draw(st.integers(0, 10**6)),
        "fail": draw(st.sampled_from([0.0, 0.1, 0.3])),
        "kind": draw(st.sampled_from(["resident", "function"])),
        "park_at": parked and (parked[0], parked[1].name),
    }


@given(about=runs())
@settings(max_examples=2000 if SOAK else 15)
def test_whoever_is_slow_or_fails_every_point_that_was_drawn_is_applied_once_or_waits(
    about: dict,
) -> None:
    scheme, models, seed = about["scheme"], about["models"], about["seed"]
    workload = Noting(
        models, scheme=scheme, jobs_per_round=about["per_round"], steps=about["steps"]
    )
    workload.park_at = about["park_at"]
    objectives = [model.objective for model in models]
    compute = TorchCompute(objectives, store=workload.store, precision="float64")
    rng = np.random.default_rng(seed)
    pace = ByRound(
        latencies_s=1 + rng.pareto(1.0, (about["jobs"], scheme.n)), rates=[[0.0] * scheme.n]
    )
    faults = RandomFaults(seed=seed, fail=about["fail"], die=about["fail"] / 2)
    backend = VirtualBackend(
        scheme.n, pace, workers=about["kind"], compute=compute, faults=faults, restart_s=0.5
    )
    sizes = workload.batch_sizes
    policy = RoundPolicy(scheme.begin(about["jobs"], batches=sizes), ClosingRule(mu=0.2))
    master.run(policy, backend, workload)
    workload.flush()
    for model in models:
        steps = workload.steps(model.name)
        found, _ = follow(steps, model)
        if scheme.b == 0:
            size = model.batch_size
            for step, (batch, _) in enumerate(steps):
                usual = batch_indices(
                    len(model.dataset), batch_size=size, seed=model.seed, step=step
                )
                points = np.concatenate([batch[c] for c in sorted(batch)])
                assert (points % len(model.dataset)).tolist() == usual.tolist()
        if model.name not in workload.parked:
            assert len(steps) == about["steps"]
            counts = Counter(point % len(model.dataset) for point in found)
            module = workload.module(model.name)
            assert applied(module, batch=model.batch_size, scheme=scheme) == [
                counts[point] for point in range(len(model.dataset))
            ]


losses = st.lists(st.lists(st.integers(0, 3), unique=True, max_size=3).map(tuple), max_size=14)


@given(
    losses=losses,
    at=st.integers(0, 14),
    size=st.integers(1, 25),
    batches=st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
@settings(max_examples=2000 if SOAK else 12)
def test_a_workload_that_goes_on_from_a_snapshot_draws_what_it_would_have_drawn(
    losses: list[tuple[int, ...]], at: int, size: int, batches: tuple[int, int]
) -> None:
    """Also for a job that has begun by then, and is given up."""
    models = [tally(f"m{k}", size=size, batch=batch, seed=k) for k, batch in enumerate(batches)]
    make = partial(Noting, models, scheme=Backup(n=4, b=1), jobs_per_round=2)
    one, other, at = make(), make(), min(at, len(losses))
    one.drive(losses[:at], chunks=4)
    before = one.snapshot()
    assert not before[0].in_flight, "of jobs that are over nothing is asked again"
    if at < len(losses):
        one.begin(at)
        in_flight = one.snapshot()
        one.resolve(MiniTask(job=at, slot=0, chunks=np.array([1]), coefficients=np.ones(1)))
        third = make()
        third.restore(*in_flight)
        third.resolve(MiniTask(job=at, slot=0, chunks=np.array([1]), coefficients=np.ones(1)))
        assert third.chunks[at] == one.chunks[at]
    whole = make()
    whole.drive(losses, chunks=4)
    other.restore(*before)
    other.drive(losses[at:], chunks=4, first=at)
    assert {j: each for j, each in whole.chunks.items() if j >= at} == other.chunks
    for model in models:
        follow(whole.steps(model.name), model)


@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize(("size", "batch"), [(3, 2), (4, 2), (3, 4)])
def test_a_worker_that_is_never_heard_keeps_no_point_for_itself(
    silent: int, size: int, batch: int
) -> None:
    """It could be given the same points every time, and half of each batch is its."""
    for seed in range(3):
        model = tally(size=size, batch=batch, seed=seed)
        workload = Noting([model], scheme=Backup(n=2, b=1))
        workload.drive([(silent,)] * 60, chunks=2)
        found, waiting = follow(workload.steps("net"), model)
        assert len(found) == 60 * batch / 2
        assert set(range(len(found) // 2)) <= found.keys()
        assert len(waiting) <= 4 * batch


def test_what_one_scheme_has_lost_comes_again_under_another() -> None:
    model = tally(size=12, batch=6)
    workload = Noting([model], scheme=Backup(n=3, b=1))
    workload.drive([(1,), (2,)], chunks=3)
    workload.switch(Uncoded(n=2))
    workload.drive([()] * 2, chunks=2, first=2)
    found, waiting = follow(workload.steps("net"), model)
    assert not waiting
    assert set(range(12)) <= found.keys()


def test_where_gradients_are_late_by_design_batches_are_the_usual_ones() -> None:
    """The next batch has been drawn before it is known what this one loses."""

    class Late(Backup):
        delay = 1

    model = tally(size=12, batch=6)
    workload = Noting([model], scheme=Late(n=3, b=1), stale=True)
    for job in range(5):
        workload.begin(job)
        part = workload.resolve(
            MiniTask(job=job, slot=0, chunks=np.arange(1), coefficients=np.ones(1))
        )[0]
        usual = batch_indices(12, batch_size=6, seed=0, step=job)[:2] + 12 * (job // 2)
        assert part.points.tolist() == usual.tolist()
        size = workload.result_form(job).size
        workload.finish(Decoding(job=job, terms=(), lost=(0,)), np.zeros(size))
    workload.flush()
    assert len(workload.metrics) == 5


# ---- whole runs ----------------------------------------------------------------------------------


SETTING = Setting(scheme=Backup(n=3, b=1), jobs_per_round=2)


class Lost:
    """An observer that notes what each job was made without."""

    def __init__(self) -> None:
        self.chunks: dict[int, tuple[int, ...]] = {}

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Finish):
            self.chunks[seen.job] = seen.decoding().lost


def due(models: Sequence[Model], lost: Lost) -> dict[str, list[int]]:
    """How often each point must be in the weights of each model, if these chunks were lost."""
    workload = Noting(models, scheme=SETTING.scheme, jobs_per_round=SETTING.jobs_per_round)
    workload.drive([lost.chunks[job] for job in sorted(lost.chunks)], chunks=SETTING.scheme.n)
    counts = {}
    for model in models:
        size = len(model.dataset)
        found = Counter(p % size for p in follow(workload.steps(model.name), model)[0])
        counts[model.name] = [found[point] for point in range(size)]
    return counts


def test_workers_that_are_killed_take_no_point_with_them(tmp_path: Path) -> None:
    (tmp_path / "kills").mkdir()
    for name in "ab":
        (tmp_path / "kills" / name).touch()
    models = [
        tally("m0", size=24, batch=9, folder=tmp_path / "kills"),
        tally("m1", size=10, batch=6, seed=1),
    ]
    plan, lost = TrainingPlan(models=models, scheme=SETTING, steps=9, precision="float64"), Lost()
    with workers.local(3, delays=lambda t, i, _: 0.03 * (i == t % 3)) as crew:
        result = train(plan, crew, run=tmp_path / "run", observers=[lost])
    assert result.counts.failures >= 1, "of a killed worker that the round could do without, too"
    assert not list((tmp_path / "kills").iterdir())
    assert all(len(chunks) == 1 for chunks in lost.chunks.values())
    expected = due(models, lost)
    for model in models:
        module = result.modules[model.name]
        assert (
            applied(module, batch=model.batch_size, scheme=SETTING.scheme) == expected[model.name]
        )
    assert min(expected["m0"]) >= 1, "nine batches less a third of them are two epochs and more"


def test_a_run_that_is_broken_off_goes_on_to_the_same_points(tmp_path: Path) -> None:
    """Of bundles; `test_resume` has models that take turns."""
    models = [tally(f"m{k}", size=12 + k, batch=9 + k, seed=k) for k in range(4)]
    plan = TrainingPlan(
        models=models, scheme=SETTING, steps=6, precision="float64", checkpoint_every_s=1e-9
    )
    times = 1 + np.random.default_rng(0).pareto(1.0, (40, 3))
    crew, lost = workers.custom(3, replayed(times)), Lost()
    crash = CopyAt(tmp_path / "run", set(range(40, 300, 3 if SOAK else 29)))
    result = train(plan, crew, run=tmp_path / "run", observers=[crash, lost])
    assert len(crash.copies) >= 2
    expected, counts = outcome(result.run), due(models, lost)
    for copy in crash.copies:
        again = resume(copy, plan, crew)
        assert outcome(again.run) == expected, copy
        for model in models:
            module = again.modules[model.name]
            assert (
                applied(module, batch=model.batch_size, scheme=SETTING.scheme) == counts[model.name]
            )

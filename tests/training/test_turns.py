"""Turns of bundles that are done are the others'; nobody's steps come later for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.ports import FloatArray, MiniTask
from seqgc.profiles import ByInvocation
from seqgc.schemes import Deal
from seqgc.stores import MemoryStore
from seqgc.training import Stop, TorchWorkload, TrainingPlan, train
from seqgc.virtual import VirtualBackend
from tests.kit import decoded
from tests.training.reference import Chunks, flat, make_model
from tests.training.test_diverged import STEPS, N, crew, logged, others
from tests.training.test_diverged import plan as plan_of

BUNDLES = 4


def workload_of(*, delay: int, steps: int, bundle: int = 1, stale: bool = False) -> TorchWorkload:
    return TorchWorkload(
        [make_model(f"m{i}", seed=i) for i in range(BUNDLES)],
        scheme=Chunks(delay=delay),
        store=MemoryStore(),
        jobs_per_round=bundle,
        stale=stale,
        steps=steps,
    )


def computed(workload: TorchWorkload, job: int) -> list[str]:
    """Return the models for which something is computed in a job."""
    task = MiniTask(job=job, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    return [part.model for part in workload.resolve(task) if len(part.points)]


def play(workload: TorchWorkload, stops: dict[int, str], *, delay: int) -> list[str]:
    """Do jobs, each finished as late as it may be, until there are no more; stop models at some."""
    order: list[str] = []
    job = 0
    while workload.num_jobs is None:
        if job in stops:
            workload.park([stops[job]], why="enough")
        workload.begin(job)
        order += [" ".join(computed(workload, job)) or "-"]
        if job >= delay:
            finish(workload, job - delay)
        job += 1
    for last in range(max(job - delay, 0), job):
        finish(workload, last)
    workload.flush()
    return order


def finish(workload: TorchWorkload, job: int) -> None:
    size = workload.result_form(job)[1]
    workload.finish(decoded(job), np.zeros(size, dtype=np.float32))


def test_without_anybody_done_bundles_take_turns_and_the_last_step_ends_the_run() -> None:
    workload = workload_of(delay=0, steps=2)
    assert play(workload, {}, delay=0) == ["m0", "m1", "m2", "m3"] * 2
    assert workload.num_jobs == 2 * BUNDLES


def test_turns_of_a_model_that_is_stopped_are_the_others() -> None:
    workload = workload_of(delay=0, steps=2)
    assert play(workload, {2: "m1"}, delay=0) == ["m0", "m1", "m2", "m3", "m0", "m2", "m3"]
    assert workload.parked["m1"].step == 1
    steps = [(entry.model, entry.step) for entry in workload.metrics]
    assert sorted(steps) == [(f"m{i}", s) for i in range(4) for s in range(2) if (i, s) != (1, 1)]


def test_where_one_is_left_it_waits_until_its_step_is_decoded() -> None:
    workload = workload_of(delay=2, steps=3)
    order = play(workload, dict(zip((1, 2, 3), ("m1", "m2", "m3"), strict=True)), delay=2)
    assert order == ["m0", "m2", "m3", "m0", "-", "-", "m0"]


def test_a_bundle_leaves_once_all_of_its_models_are_parked() -> None:
    workload = workload_of(delay=0, steps=3, bundle=2)
    order = play(workload, {1: "m0", 3: "m1"}, delay=0)
    assert order == ["m0 m1", "m2 m3", "m1", "m2 m3", "m2 m3"]


def test_late_weights_keep_their_turns() -> None:
    workload = workload_of(delay=4, steps=2, stale=True)
    assert play(workload, {1: "m0"}, delay=4) == ["m0", "m1", "m2", "m3", "-", "m1", "m2", "m3"]


@pytest.mark.parametrize("seed", range(20))
def test_no_step_comes_later_than_it_would_if_nobody_had_stopped(seed: int) -> None:
    draw = random.Random(seed)
    delay, steps = draw.randrange(BUNDLES), draw.randrange(1, 6)
    workload = workload_of(delay=delay, steps=steps)
    stops = {draw.randrange(BUNDLES * steps): f"m{draw.randrange(BUNDLES)}" for _ in range(2)}
    order = play(workload, stops, delay=delay)
    for index in range(BUNDLES):
        jobs = [job for job, models in enumerate(order) if models == f"m{index}"]
        assert all(job <= step * BUNDLES + index for step, job in enumerate(jobs)), (order, stops)
        assert all(b - a > delay for a, b in pairwise(jobs)), (order, stops)
        assert len(jobs) == steps or f"m{index}" in workload.parked


@pytest.mark.parametrize(
    "spec", ["uncoded", "gc-rep:s=1", "sr-sgc-rep:B=1,W=2,lam=3", "m-sgc:B=1,W=2,lam=2"]
)
def test_a_run_ends_with_the_last_step_of_whoever_is_left(spec: str, tmp_path: Path) -> None:
    fine = train(plan_of(spec, bundle=1), crew(None), run=tmp_path / "fine")
    bad = train(plan_of(spec, wild=3, bundle=1), crew(None), run=tmp_path / "bad")
    assert fine.jobs == BUNDLES * STEPS
    assert fine.jobs - STEPS < bad.jobs < fine.jobs
    delay = fine.counts.rounds - fine.jobs
    assert bad.counts.rounds == bad.jobs + delay
    assert len(logged(bad.run, "close")) == bad.jobs + delay
    assert others(bad, "m3") == others(fine, "m3")


class StopAfter:
    """Stops models after so many steps, and all of them with one of these, if it is said so."""

    def __init__(self, steps: dict[str, int], *, all_with: str = "") -> None:
        self._steps, self._all_with = steps, all_with

    def on_step(self, model: str, step: int, loss: float, metrics: object) -> Stop | None:  # noqa: ARG002
        if self._steps.get(model) != step:
            return None
        return Stop.RUN if model == self._all_with else Stop.MODEL


def do_dealt(workload: TorchWorkload, draw: random.Random) -> None:
    """Do jobs as where they are dealt: they close, begin and are handed over at any time."""
    known = begun = closed = done = 0  # jobs that the policy has begun, and the workload; over

    while workload.num_jobs is None:
        known = max(known, closed + max(1, workload.bundles_left))
        for job in range(begun, draw.randrange(begun, known + 1)):
            while any(workload.needs(job, each) for each in range(done, closed)):
                finish(workload, done)
                done += 1
            workload.begin(job)
            begun = job + 1
        for job in range(done, closed):
            finish(workload, job)
        done = closed
        closed = draw.randrange(closed, begun + 1)
    for job in range(done, begun):
        finish(workload, job)


@pytest.mark.parametrize("all_with", ["", "m2"])
@pytest.mark.parametrize(
    "stops",
    [{"m2": 2}, {"m0": 1, "m3": 3}, {"m1": 1, "m2": 1, "m3": 1}, {"m0": 2, "m1": 3, "m2": 1}],
)
def test_where_work_is_dealt_turns_are_no_matter_of_time(
    stops: dict[str, int], all_with: str
) -> None:
    found = set()
    for seed in range(8):
        workload = TorchWorkload(
            [make_model(f"m{i}", seed=i) for i in range(BUNDLES)],
            scheme=Deal(n=N).fitted(BUNDLES),
            store=MemoryStore(),
            steps=6,
            callbacks=[StopAfter(stops, all_with=all_with)],
        )
        do_dealt(workload, random.Random(seed))
        steps = tuple((each.job, each.model, each.step) for each in workload.metrics)
        found.add((workload.num_jobs, steps))
    assert len(found) == 1, found


def dealt(factory: Callable[[], Callable[..., FloatArray]]) -> VirtualBackend:
    """Return workers that do one task after the other in simulated time, and compute for real."""
    there = np.zeros((1, N))
    pace = ByInvocation(before_s=there, after_s=there, rate=1.0)
    return VirtualBackend(N, pace, message_s=0.05, compute=factory())


def test_where_work_is_dealt_as_many_jobs_are_under_way_as_bundles_are_left(
    tmp_path: Path,
) -> None:
    """A few turns are idle, those that had begun when the others were stopped; then no more."""
    models = [make_model(f"m{i}", seed=i) for i in range(BUNDLES)]
    plan = TrainingPlan(models=models, scheme="deal", jobs_per_round=1, steps=8)
    crew = workers.custom(N, lambda _, factory: dealt(factory))
    results = [
        train(plan, crew, run=tmp_path / str(number), callbacks=[StopAfter(stops)])
        for number, stops in enumerate(({}, {"m1": 1, "m2": 1, "m3": 1}))
    ]
    fine, few = results
    assert fine.jobs == 8 * BUNDLES
    assert few.jobs - (8 + 3) <= BUNDLES
    assert np.array_equal(flat(fine.modules["m0"]), flat(few.modules["m0"]))

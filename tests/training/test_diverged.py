"""One model of several diverges: the others go on, to the same bits; a worker that errs is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import workers
from seqgc.backends import event_of
from seqgc.errors import ModelError
from seqgc.ports import Arrival, Backend, FloatArray, Notice, Seen, Task
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.training import Model, TrainingPlan, TrainResult, resume, train
from seqgc.wire import TaskMessage, decode, encode
from tests.kit import SOAK
from tests.training.reference import make_model
from tests.training.test_resume import CopyAt, outcome, whole_checkpoints  # noqa: F401

N, STEPS, MODELS = 6, 3, 4
REPEATED = [
    "gc-rep:s=1",
    "sr-sgc-rep:B=1,W=2,lam=3",
]  # a gradient has the same bits, whoever answers
SPECS = ["uncoded", "gc:s=2", "gc:s=3", "m-sgc:B=1,W=2,lam=2", *REPEATED]
SEEDS = 20 if SOAK else 1

Damage = Callable[[Task, dict[int, FloatArray]], None]


class Wired(ReplayBackend):
    """Its answers, perhaps damaged, travel as those of workers elsewhere do."""

    def __init__(self, times: FloatArray, compute: object, damage: Damage) -> None:
        super().__init__(times, compute=compute)
        self._damage = damage
        self._requests: dict[tuple[int, int], TaskMessage] = {}

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._requests |= {(round, task.worker): TaskMessage(task=task) for task in tasks}
        return super().dispatch(round, tasks)

    def receive(self, until: float) -> Arrival | None:
        event = super().receive(until)
        if event is None:
            return None
        request = self._requests[event.round, event.worker]
        self._damage(request.task, event.results)
        answer = decode(
            encode(request.result(event.results, event.flaws), run_id="run"), run_id="run"
        )
        request.check(answer)
        return event_of(answer, at=event.at)


def wired(n: int, factory: object, *, seed: int | None, damage: Damage) -> Backend:
    threads = torch.get_num_threads()
    compute = factory()
    torch.set_num_threads(threads)
    times = np.ones((60, n))
    if seed is not None:
        times += np.minimum(np.random.default_rng(seed).pareto(1.0, (60, n)), 9)
    return Wired(times, compute, damage)


def crew(seed: int | None = 0, damage: Damage = lambda *_: None) -> workers.WorkerSet:
    return workers.custom(N, partial(wired, seed=seed, damage=damage))


def models(count: int = MODELS, *, wild: int | None, rate: float = 1e38) -> list[Model]:
    """Models of which one, perhaps, makes steps that no float holds, or no limit allows."""
    rates = [rate if i == wild else 0.1 for i in range(count)]
    return [
        make_model(f"m{i}", seed=i, optimizer=partial(torch.optim.SGD, lr=rate))
        for i, rate in enumerate(rates)
    ]


def plan(
    spec: str, *, wild: int | None = None, bundle: int = 2, every_s: float = 60.0
) -> TrainingPlan:
    setting = Setting(scheme=parse_scheme(spec, n=N), jobs_per_round=bundle)
    return TrainingPlan(
        models=models(wild=wild), scheme=setting, steps=STEPS, checkpoint_every_s=every_s
    )


def others(result: TrainResult, name: str) -> tuple[object, object]:
    """Return the digests and losses of all models but one, whichever jobs their steps were."""
    digests, rows = outcome(result.run)
    kept = {k: v for k, v in digests.items() if k.startswith("m") and not k.startswith(name)}
    return kept, sorted(row[1:] for row in rows if row[1] != name)


def logged(run: Path, event: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def sent_again(run: Path) -> bool:
    return any(line["attempt"] for line in logged(run, "dispatch"))


def flawed(run: Path) -> list[dict[str, object]]:
    return [line for line in logged(run, "failure") if "flaws" in line]


@pytest.mark.parametrize(("spec", "bundle"), list(zip(SPECS, [2, 1, 2, 1, 1, 2], strict=True)))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_other_models_get_the_bits_of_a_run_without_it(
    spec: str, bundle: int, seed: int, tmp_path: Path
) -> None:
    wild = 3
    # Where turns are free, rounds are others', and there may be other stragglers in them.
    at_random = seed if bundle > 1 or spec in ["uncoded", *REPEATED] else None
    fine = train(plan(spec, bundle=bundle), crew(at_random), run=tmp_path / "fine")
    notices: list[Seen] = []
    bad = train(
        plan(spec, wild=wild, bundle=bundle),
        crew(at_random),
        run=tmp_path / "bad",
        observers=[notices.append],
    )
    assert fine.parked == {}
    assert list(bad.parked) == ["m3"]
    assert 1 <= bad.parked["m3"].step < STEPS
    assert others(bad, "m3") == others(fine, "m3")
    seconds, all_seconds = (
        [line["duration_s"] for line in logged(run, "close")] for run in (bad.run, fine.run)
    )
    if bundle > 1:
        differ = [a != b for a, b in zip(seconds, all_seconds, strict=True)]
        doubted = flawed(bad.run)[0]["round"]
        assert not any(differ[:doubted])
        if not spec.startswith("sr-sgc"):  # whose next rounds are not the same after others answer
            assert sum(differ) <= 1, "the round in which it was found"
    else:
        assert len(seconds) < len(all_seconds), "its turns are free"
    told = [seen.fields for seen in notices if isinstance(seen, Notice) and seen.kind == "parked"]
    parked = bad.parked["m3"]
    assert parked.kind == "diverged"
    assert parked.why.startswith("its results are not finite; lower the learning rate")
    assert told == [{"model": "m3", "step": parked.step, "cause": "diverged", "why": parked.why}]
    assert [line["model"] for line in logged(bad.run, "parked")] == ["m3"]
    assert spec == "uncoded" or not sent_again(bad.run)


@pytest.mark.parametrize(
    ("spec", "bundle"),
    [("gc:s=3", 2), ("sr-sgc-rep:B=1,W=2,lam=3", 2), ("m-sgc:B=1,W=2,lam=2", 1)],
)
def test_a_resumed_run_remembers_who_has_diverged(spec: str, bundle: int, tmp_path: Path) -> None:
    make = partial(plan, spec, wild=3, bundle=bundle, every_s=1e-9)
    watch = CopyAt(tmp_path / "run", set(range(20, 400, 11 if SOAK else 25)))
    result = train(make(), crew(), run=tmp_path / "run", observers=[watch])
    assert len(watch.copies) > 2
    for copy in watch.copies:
        again = resume(copy, make(), crew())
        assert (again.parked, again.jobs) == (result.parked, result.jobs)
        assert others(again, "m3") == others(result, "m3"), copy


@pytest.mark.parametrize("spec", ["uncoded", "gc:s=3"])
def test_a_run_whose_models_have_all_diverged_ends_and_names_them(
    spec: str, tmp_path: Path
) -> None:
    alone = models(wild=0)[:1]
    with pytest.raises(ModelError) as caught:
        train(
            TrainingPlan(models=alone, scheme=spec, jobs_per_round=1, steps=9),
            crew(),
            run=tmp_path / "run",
        )
    assert str(caught.value) == (
        "m0 diverged after 1 step: its results are not finite; lower the learning rate, or check "
        "the data"
    )
    assert list(caught.value.models) == ["m0"]
    assert caught.value.__notes__ == [f"the run: {tmp_path / 'run'}"], "resuming would fail again"
    assert [line["model"] for line in logged(tmp_path / "run", "parked")] == ["m0"]


def test_finite_results_that_overflow_together_are_one_models_divergence(tmp_path: Path) -> None:
    def huge(task: Task, results: dict[int, FloatArray]) -> None:
        if task.round == 4:
            for item in task.items:
                results[item.slot] = results[item.slot].copy()
                results[item.slot][0] = 3e38

    bad = train(plan("uncoded"), crew(0, huge), run=tmp_path / "bad")
    assert {name: each.step for name, each in bad.parked.items()} == {"m0": 2}
    fine = train(plan("uncoded"), crew(0), run=tmp_path / "fine")
    assert others(bad, "m0") == others(fine, "m0")

"""Whole runs whose workers go on by themselves: trained, recorded, refused, gone on with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqgc import read_run, workers
from seqgc.errors import ParameterError, StoreError
from seqgc.ports import Backend, FloatArray, Seen, Update
from seqgc.profiles import ByRound
from seqgc.report import run_page
from seqgc.training import (
    Adaptation,
    Callback,
    Model,
    Stop,
    TrainingPlan,
    TrainResult,
    Updates,
    resume,
    train,
)
from seqgc.virtual import Faults, RandomFaults, VirtualBackend
from tests.training.reference import SGD, flat, make_model, train_alone
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)

N = 4
ADAM = partial(torch.optim.Adam, lr=1e-2)
CLOCK, LATE = Updates(apply="clock"), Updates(apply="clock", refresh="late")


def virtual(seed: int = 0, *, rounds: int = 40, faults: Faults | None = None) -> workers.WorkerSet:
    """Workers of this process, in virtual time, whose times are those of stragglers."""
    times = 1 + np.minimum(np.random.default_rng(seed).pareto(1.0, (rounds, N)), 9)
    return workers.custom(N, partial(_backend, times=times, faults=faults))


def _backend(
    n: int, factory: Callable[[], object], *, times: FloatArray, faults: Faults | None
) -> Backend:
    threads = torch.get_num_threads()
    compute = factory()
    torch.set_num_threads(threads)
    pace = ByRound(latencies_s=times, rates=[[0.0] * n])
    return VirtualBackend(n, pace, compute=compute, faults=faults)


def weight(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """A loss whose gradient is the same on any weights: where a run ends says what it applied."""
    return output.sum(dim=1) / 100


def straight_model(name: str = "net", *, seed: int = 0, batch_size: int = 10) -> Model:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    return make_model(name, seed=seed, module=module, loss=weight, batch_size=batch_size)


def applied_once(result: TrainResult, plan: TrainingPlan) -> None:
    """Every part of every batch has been applied, and none twice."""
    for model in plan.models:
        alone, _ = train_alone(model, steps=plan.steps, dtype=torch.float64)
        found = flat(result.modules[model.name])
        np.testing.assert_allclose(found, flat(alone), rtol=0, atol=1e-10, err_msg=model.name)


@pytest.mark.parametrize("spec", ["bsp", "a-bsp:wpc=2", "ssp:slack=1", "ssp:slack=2,wpc=2", "asp"])
def test_every_part_of_every_batch_is_applied_once(spec: str, tmp_path: Path) -> None:
    seen: Counter[tuple[int, int]] = Counter()

    def count(each: Seen) -> None:
        if isinstance(each, Update) and (part := each.decoding().part) is not None:
            seen[each.job, part.index] += 1

    models = [straight_model("a"), straight_model("b", seed=1, batch_size=3)]
    plan = TrainingPlan(models=models, scheme=spec, steps=5, precision="float64")
    result = train(plan, virtual(), run=tmp_path / "run", observers=[count])
    applied_once(result, plan)
    assert seen == Counter({(job, part): 1 for job in range(10) for part in range(N)})
    clocks = 5 if "wpc" in spec else 10
    assert (result.jobs, len(result.counts.round_seconds), result.scheme) == (10, clocks, spec)


@pytest.mark.parametrize("updates", [None, Updates()], ids=["clock", "update"])
def test_a_barrier_makes_plain_training(updates: Updates | None, tmp_path: Path) -> None:
    models = [make_model(f"m{i}", seed=i, batch_size=[16, 7][i]) for i in range(2)]
    plan = TrainingPlan(models=models, scheme="bsp", steps=4, precision="float64", updates=updates)
    result = train(plan, virtual(), run=tmp_path / "run")
    for model in models:
        alone, _ = train_alone(model, steps=4, dtype=torch.float64)
        found = flat(result.modules[model.name])
        np.testing.assert_allclose(found, flat(alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("jobs_per_round", [1, 2])
def test_a_run_that_reads_as_late_as_may_be_has_the_same_bits_whoever_is_slow(
    jobs_per_round: int, tmp_path: Path
) -> None:
    from seqgc.rounds import Setting
    from seqgc.schemes import parse_scheme

    models = [make_model(f"m{i}", seed=i, optimizer=ADAM) for i in range(2)]
    setting = Setting(scheme=parse_scheme("ssp:slack=1", n=N), jobs_per_round=jobs_per_round)
    plan = TrainingPlan(models=models, scheme=setting, steps=6, precision="float64", updates=LATE)
    one, other = (train(plan, virtual(seed), run=tmp_path / str(seed)) for seed in (0, 1))
    for model in models:
        found = flat(one.modules[model.name])
        np.testing.assert_array_equal(found, flat(other.modules[model.name]))
        late, _ = train_alone(model, steps=6, dtype=torch.float64, steps_late=jobs_per_round == 2)
        np.testing.assert_allclose(found, flat(late), rtol=0, atol=1e-8)


def test_a_stale_run_is_recorded_and_can_be_looked_at(tmp_path: Path) -> None:
    plan = TrainingPlan(models=[make_model()], scheme="ssp:slack=1", steps=6)
    result = train(plan, virtual(), run=tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.scheme, run.workers, run.outcome, run.gaps) == ("ssp:slack=1", N, "finished", ())
    assert run.rounds()["round"].tolist() == list(range(6))
    assert run.rounds()["duration_s"].sum() == pytest.approx(sum(result.counts.round_seconds))
    assert run.jobs()["job"].tolist() == list(range(6))
    answers = run.answers()
    assert len(answers["round"]) == 6 * N
    assert set(answers["outcome"]) == {"used"}
    assert run.models()["loss"].shape == (6,)
    assert "ssp:slack=1" in run_page({"run": run}).html()


def test_a_run_ends_early_when_nobody_is_left_to_train(tmp_path: Path) -> None:
    class AfterTwo(Callback):
        def on_step(self, _: str, step: int, *__: object) -> Stop | None:
            return Stop.RUN if step == 2 else None

    plan = TrainingPlan(models=[make_model()], scheme="ssp:slack=1", steps=50)
    result = train(plan, virtual(), run=tmp_path / "run", callbacks=[AfterTwo()])
    assert result.jobs < 8
    assert result.parked["net"].step == 2


# ---- going on with a run ------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["ssp:slack=2", "asp"])
def test_a_run_that_is_broken_off_applies_every_part_once(spec: str, tmp_path: Path) -> None:
    """Whatever had been applied after the checkpoint, and whatever was under way."""
    models = [straight_model("a"), straight_model("b", seed=1)]
    plan = TrainingPlan(
        models=models, scheme=spec, steps=4, precision="float64", checkpoint_every_s=1e-9
    )
    crash = CopyAt(tmp_path / "run", set(range(20, 200, 31)))
    applied_once(train(plan, virtual(), run=tmp_path / "run", observers=[crash]), plan)
    assert len(crash.copies) >= 3
    for copy in crash.copies:
        had_checkpoint = bool(list(copy.glob("checkpoints/[0-9]*")))
        result = resume(copy, plan, virtual(1))
        applied_once(result, plan)
        run = read_run(copy)
        assert run.outcome == "finished"
        assert run.rounds()["round"].tolist() == list(range(8))
        said = " ".join(run.notices()["text"])
        assert ("newer weights, and applied once" in said) == had_checkpoint
        rows = (copy / "metrics.csv").read_text().splitlines()[1:]
        steps = Counter(tuple(row.split(",")[1:4]) for row in rows)
        assert steps == Counter({(str(job), "ab"[job % 2], str(job // 2)): 1 for job in range(8)})


def test_a_run_that_reads_as_late_as_may_be_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    plan = TrainingPlan(
        models=[make_model(optimizer=ADAM)],
        scheme="ssp:slack=1",
        steps=6,
        updates=LATE,
        checkpoint_every_s=1e-9,
    )
    crash = CopyAt(tmp_path / "run", set(range(20, 200, 23)))
    whole = train(plan, virtual(), run=tmp_path / "run", observers=[crash])
    assert len(crash.copies) >= 3
    for copy in crash.copies:
        result = resume(copy, plan, virtual(1))
        np.testing.assert_array_equal(flat(result.modules["net"]), flat(whole.modules["net"]))
        assert "newer weights" not in " ".join(read_run(copy).notices()["text"])


def test_a_run_that_fails_in_the_midst_of_an_update_goes_on_from_before_it(tmp_path: Path) -> None:
    """Its last checkpoint is none that the policy took for further than the weights are."""
    for instant in range(5, 60, 6):
        seen = 0

        def stumble(_: Seen, instant: int = instant) -> None:
            nonlocal seen
            seen += 1
            if seen == instant:
                raise OSError("no space left for anything")

        plan = TrainingPlan(
            models=[straight_model()], scheme="asp", steps=5, precision="float64",
            checkpoint_every_s=1e-9,
        )  # fmt: skip
        run = tmp_path / str(instant)
        with pytest.raises(OSError, match="no space"):
            train(plan, virtual(), run=run, observers=[stumble])
        applied_once(resume(run, plan, virtual(1)), plan)


def test_a_checkpoint_of_another_defence_is_refused(tmp_path: Path) -> None:
    rounds = TrainingPlan(models=[make_model()], scheme="gc:s=1", steps=3)
    clocks = replace(rounds, scheme="ssp:slack=1")
    for plan, other in ((rounds, clocks), (clocks, rounds)):
        run = tmp_path / str(plan.scheme)
        train(plan, virtual(), run=run)
        with pytest.raises(ParameterError, match="changed since: scheme"):
            resume(run, other, virtual())
        with pytest.raises(StoreError, match=f"of another defence than {other.scheme}: "):
            resume(run, other, virtual(), accept_changes=True)


# ---- failures -----------------------------------------------------------------------------------


def test_failures_take_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    plan = TrainingPlan(
        models=[straight_model()], scheme="ssp:slack=1", steps=8, precision="float64"
    )
    result = train(
        plan, virtual(faults=RandomFaults(fail=0.2, die=0.1, seed=0)), run=tmp_path / "run"
    )
    assert result.counts.failures >= 3
    applied_once(result, plan)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("ssp:slack=1", {"audit": True}, "`scheme` must have rounds for an audit"),
        ("asp", {"adaptation": Adaptation(probe=2, alpha=1.0)}, "must have rounds for --probe"),
        ("ssp:slack=1", {"stale": True}, "`stale` must be left out with ssp:slack=1"),
        ("gc:s=1", {"updates": CLOCK}, "`updates` must be left out with gc:s=1"),
        ("asp", {"updates": LATE}, "`refresh` must be always where nothing bounds"),
        ("ssp:slack=1", {"models": [make_model(optimizer=ADAM)]}, r'Adam. \(apply="clock"\)'),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_starts(
    scheme: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    plan = TrainingPlan(
        **{"models": [make_model()], "scheme": scheme, "steps": 2} | options  # type: ignore[arg-type]
    )
    with pytest.raises(ParameterError, match=message) as refused:
        train(plan, virtual(), run=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_old_updates_weigh_less_where_that_is_asked_for(tmp_path: Path) -> None:
    """The slowest worker's part of the first batch comes when others have done three more."""
    times = np.ones((9, N))
    times[0, 0] = 3.5
    crew = workers.custom(N, partial(_backend, times=times, faults=None))
    weights: list[float] = []

    def look(seen: Seen) -> None:
        if isinstance(seen, Update):
            (term,) = seen.decoding().terms
            weights.append(term.weight)

    plan = TrainingPlan(models=[make_model()], scheme="asp", steps=4, updates=Updates(aware=True))
    train(plan, crew, run=tmp_path / "run", observers=[look])
    # nine updates came before worker 0's first, two clocks and a quarter of them
    assert Counter(weights) == {1.0: 15, 1 / 3: 1}
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "run"


def test_local_processes_train_with_slack(tmp_path: Path) -> None:
    plan = TrainingPlan(
        models=[straight_model()], scheme="ssp:slack=1", steps=6, precision="float64"
    )
    with workers.local(2) as crew:
        applied_once(train(plan, crew, run=tmp_path / "run"), plan)
    assert SGD.keywords == {"lr": 0.1}

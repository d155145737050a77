"""A run whose master has died goes on with another number of workers: each point once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import plot, read_run, workers
from seqgc.clocks import HedgePolicy
from seqgc.errors import ParameterError
from seqgc.ports import Dispatch, Seen
from seqgc.report import run_page
from seqgc.rounds import Adaptation
from seqgc.runs.journal import read_journal
from seqgc.training import Model, TrainingPlan, TrainResult, resume, train
from tests.kit import SOAK
from tests.training.reference import flat, make_model, train_alone
from tests.training.stale_runs import ADAM, LATE, applied_once, backend_of, straight_model
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)

OLD, STEPS = 4, 3
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
EXACT = {
    "uncoded": [6, 1],
    "gc-rep:s=1": [6, 2],
    "gc:s=1": [6, 3],
    "sr-sgc:B=1,W=2,lam=1": [6, 2],
    "m-sgc:B=1,W=3,lam=2": [6, 3],
    "ra-sgc:s=1,q=0.5,r=2": [6, 3],
    "deal": [6, 1],
    "bsp": [6, 2],
    "bsp-rr": [6, 2],
    "hedge": [6, 2],
    "lb-bsp": [6, 2],
}
STALE = ["ssp:slack=2", "ssp:slack=1,wpc=2", "asp", "asp-dds:M=3", "flexrr:slack=1"]


def crew(n: int, seed: int = 0) -> workers.WorkerSet:
    """Workers of this process, in virtual time, some of them slow."""
    times = 1 + np.minimum(np.random.default_rng(seed).pareto(1.0, (60, n)), 9)
    return workers.custom(n, partial(backend_of, times=times, faults=None))


def one_is_late(n: int, *, row: int, workers_: int = 1) -> workers.WorkerSet:
    """Workers of which the first take very long for one of their tasks."""
    times = np.ones((60, n))
    times[row, :workers_] = 30.0
    return workers.custom(n, partial(backend_of, times=times, faults=None))


def models(count: int = 3) -> list[Model]:
    return [
        make_model(f"m{i}", seed=i, batch_size=11 + 2 * i, optimizer=[ADAM, MOMENTUM][i % 2])
        for i in range(count)
    ]


def straight_models() -> list[Model]:
    return [straight_model("a"), straight_model("b", seed=1, batch_size=13)]


def made(spec: str, **changes: object) -> TrainingPlan:
    plan = TrainingPlan(
        models=models(),
        scheme=spec,
        jobs_per_round=1,
        steps=STEPS,
        precision="float64",
        checkpoint_every_s=1e-9,
    )
    return replace(plan, **changes)


def copies(plan: TrainingPlan, folder: Path, *, instants: Sequence[int]) -> Sequence[Path]:
    """Return what crashes of a run on four workers would leave, and the finished run."""
    soaked = {*instants, *range(9, 120, 4)}
    crash = CopyAt(folder / "run", soaked if SOAK else set(instants))
    whole = train(plan, crew(OLD), run=folder / "run", observers=[crash])
    assert len(crash.copies) >= len(instants)
    return [*crash.copies, whole.run]


def workers_of(run: Path) -> list[object]:
    """Return the number of workers of each master."""
    lines, _ = read_journal(run / "journal.jsonl")
    return [line.fields["workers"] for line in lines if line.kind == "begin"]


def continued(run: Path, plan: TrainingPlan, n: int) -> TrainResult:
    """Resume a run on ``n`` workers, and check all that does not depend on the defence."""
    result = resume(run, plan, crew(n, 1), other_workers=True)
    assert workers_of(run) == [OLD, n]
    rows = [row.split(",")[1:4] for row in (run / "metrics.csv").read_text().splitlines()[1:]]
    found = Counter((model, step) for _, model, step in rows)
    assert found == Counter((m.name, str(step)) for m in plan.models for step in range(plan.steps))
    table = read_run(run)
    assert (table.outcome, table.workers) == ("finished", max(OLD, n))
    assert f"had {OLD} workers, and continues with {n}" in " ".join(table.notices()["text"])
    return result


def same_as_alone(result: TrainResult, plan: TrainingPlan) -> None:
    for model in plan.models:
        alone, _ = train_alone(model, steps=plan.steps, dtype=torch.float64)
        found = flat(result.modules[model.name])
        np.testing.assert_allclose(found, flat(alone), rtol=0, atol=1e-12, err_msg=model.name)


# ---- what a run ends with ------------------------------------------------------------------------


@pytest.mark.parametrize("spec", EXACT)
def test_an_exact_run_ends_with_the_same_weights(spec: str, tmp_path: Path) -> None:
    plan = made(spec)
    *crashed, _ = copies(plan, tmp_path, instants=[17, 44])
    for run, n in zip(crashed, cycle(EXACT[spec]), strict=False):
        same_as_alone(continued(run, plan, n), plan)


@pytest.mark.parametrize("spec", STALE)
def test_a_run_whose_parts_move_the_weights_uses_every_point_once(
    spec: str, tmp_path: Path
) -> None:
    plan = made(spec, models=straight_models(), steps=4)
    *crashed, _ = copies(plan, tmp_path, instants=[21, 40])
    for run, n in zip(crashed, cycle([6, 1]), strict=False):
        applied_once(continued(run, plan, n), plan)


@pytest.mark.parametrize(
    "plan",
    [
        made("ssp:slack=2", updates=LATE),
        made("ssp:slack=2", updates=LATE, models=models(1), steps=8),
        made("m-sgc:B=1,W=3,lam=2", stale=True, models=models(1), steps=8),
    ],
)
def test_gradients_that_are_late_are_as_late_as_before(plan: TrainingPlan, tmp_path: Path) -> None:
    *crashed, _ = copies(plan, tmp_path, instants=[21, 45])
    whole = train(plan, crew(OLD), run=tmp_path / "whole")
    for run in crashed:
        result = continued(run, plan, 6)
        for name, module in whole.modules.items():
            np.testing.assert_allclose(
                flat(result.modules[name]), flat(module), rtol=0, atol=1e-12, err_msg=name
            )


def test_jobs_that_are_complete_before_an_earlier_one_are_not_computed_again(
    tmp_path: Path,
) -> None:
    """The first part of job 0 does not come, and other workers complete the jobs 1, 2, ..."""
    for count in (1, 2):
        plan = made("asp-dds", models=straight_models()[:count], steps=8)
        crash, late = CopyAt(tmp_path / f"{count}", {70}), one_is_late(OLD, row=0)
        train(plan, late, run=tmp_path / f"{count}", observers=[crash])
        (run,) = crash.copies
        applied_once(continued(run, plan, 6), plan)


@pytest.mark.parametrize("plan", [
    made("sr-sgc:B=2,W=3,lam=2", steps=4),
    made("sr-sgc:B=2,W=3,lam=2", models=models(1), stale=True, steps=12),
])  # fmt: skip
def test_gradients_that_are_decoded_before_an_earlier_one_are_applied_once(
    plan: TrainingPlan, tmp_path: Path
) -> None:
    """Job 3 waits for its second attempt in round 5, and job 4 does not."""
    crash = CopyAt(tmp_path / "run", set(range(50, 66, 1 if SOAK else 4)))
    late = one_is_late(OLD, row=3, workers_=2)
    whole = train(plan, late, run=tmp_path / "run", observers=[crash])
    for run in crash.copies:
        result = continued(run, plan, 6)
        for name, module in whole.modules.items():
            same = flat(result.modules[name])
            np.testing.assert_allclose(same, flat(module), rtol=0, atol=1e-12, err_msg=name)


def one(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """A loss of 1 with the gradient of `straight_model`."""
    return 1 + (output - output.detach()).sum(dim=1) / 100


@pytest.mark.parametrize("spec", ["ssp:slack=2", "asp-dds"])
def test_the_loss_of_a_step_is_that_of_all_its_points(spec: str, tmp_path: Path) -> None:
    plan = made(spec, models=[replace(each, loss=one) for each in straight_models()], steps=5)
    *crashed, _ = copies(plan, tmp_path, instants=[26, 45])
    for run in crashed:
        continued(run, plan, 6)
        np.testing.assert_allclose(read_run(run).models()["loss"], 1.0, rtol=1e-12)


@pytest.mark.parametrize("spec", ["gc:s=1", "deal", "ssp:slack=2"])
def test_a_run_may_change_again_and_return(spec: str, tmp_path: Path) -> None:
    """The third master dies before its first checkpoint, and the fourth needs no permission."""
    plan = made(spec) if spec != "ssp:slack=2" else made(spec, models=straight_models(), steps=5)
    run, *_ = copies(plan, tmp_path, instants=[12])
    for n, instant in ((6, 19), (3, 4), (3, 19)):
        crash, may_change = CopyAt(run, {instant}), workers_of(run)[-1] != n
        resume(run, plan, crew(n, instant), observers=[crash], other_workers=may_change)
        (run,) = crash.copies
    result = resume(run, plan, crew(OLD), other_workers=True)
    assert workers_of(run) == [OLD, 6, 3, 3, OLD]
    if spec == "ssp:slack=2":
        applied_once(result, plan)
    else:
        same_as_alone(result, plan)


@pytest.mark.parametrize("n", [6, 3])
def test_a_run_may_continue_from_a_checkpoint_of_earlier_workers(n: int, tmp_path: Path) -> None:
    """All checkpoints of the second master are damaged: its rounds are computed again."""
    plan = made("gc:s=1", steps=6)
    run, *_ = copies(plan, tmp_path, instants=[30])
    earlier = max(int(path.name) for path in run.glob("checkpoints/[0-9]*"))
    shutil.copytree(run / "checkpoints" / str(earlier), tmp_path / "earlier")
    crash = CopyAt(run, {90})
    resume(run, plan, crew(6), observers=[crash], other_workers=True)
    (run,) = crash.copies
    for checkpoint in run.glob("checkpoints/[0-9]*"):
        shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "earlier", run / "checkpoints" / str(earlier))
    same_as_alone(resume(run, plan, crew(n, 1), other_workers=n != 6), plan)
    assert read_run(run).rounds()["round"].tolist() == list(range(18))


def test_a_search_for_a_better_scheme_begins_again(tmp_path: Path) -> None:
    plan = made("uncoded", adaptation=Adaptation(probe=4, alpha=0.0), steps=4)
    run, *_ = copies(plan, tmp_path, instants=[60])
    same_as_alone(continued(run, plan, 6), plan)


# ---- what is refused -----------------------------------------------------------------------------


def refused(run: Path, plan: TrainingPlan, n: int, **options: bool) -> str:
    files = [path for path in run.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files if path.parent != run / "masters"}
    with pytest.raises(ParameterError) as caught:
        resume(run, plan, crew(n), **options)
    for path, content in before.items():
        assert path.read_bytes() == content, path
    return str(caught.value)


def test_what_a_code_cannot_do_is_refused_and_the_run_goes_on_as_it_was(tmp_path: Path) -> None:
    plan = made("gc-rep:s=1")
    run, whole = copies(plan, tmp_path, instants=[30])
    assert refused(run, plan, 5, other_workers=True).startswith("`s` must ")
    assert "`workers` must be 4, as in this run; got 6" in refused(run, plan, 6)
    assert "scheme (was" in refused(run, replace(plan, scheme="gc:s=1"), 6, other_workers=True)
    assert "steps (was" in refused(run, replace(plan, steps=9), 6, other_workers=True)
    assert "the run is complete" in refused(whole, plan, 6, other_workers=True)
    same_as_alone(resume(run, plan, crew(OLD)), plan)


def test_shards_that_are_computed_again_as_a_whole_are_refused(tmp_path: Path) -> None:
    plan = made("asp-dds:M=3,resume=shard", models=straight_models())
    run, _ = copies(plan, tmp_path, instants=[30])
    assert "resume=part" in refused(run, plan, 6, other_workers=True)


def test_a_policy_that_cannot_begin_in_the_middle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = made("hedge")
    run, _ = copies(plan, tmp_path, instants=[30])
    monkeypatch.delattr(HedgePolicy, "skip_to")
    assert "HedgePolicy has no method skip_to" in refused(run, plan, 6, other_workers=True)


# ---- what the records show -----------------------------------------------------------------------


@pytest.mark.parametrize("n", [6, 2])
def test_tables_pictures_and_reports_know_the_workers_of_each_round(n: int, tmp_path: Path) -> None:
    plan = made("gc-rep:s=1", steps=6)

    def end_early(seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.round == 8:
            raise RuntimeError("early")

    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="early"):
        train(plan, crew(OLD), run=run, observers=[end_early])
    continued(run, plan, n)
    table = read_run(run)
    rounds = table.rounds()
    assert rounds["workers"].tolist() == [OLD if master == 1 else n for master in rounds["master"]]
    assert set(rounds["master"]) == {1, 2}
    cells = plot.tables.cells_of(table, mu=1.0)
    assert cells.straggling.shape == (len(rounds["round"]), max(n, OLD))
    np.testing.assert_array_equal(cells.straggling.sum(axis=1), rounds["stragglers"])
    assert run_page({"run": table}).sections

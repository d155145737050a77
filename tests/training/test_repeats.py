"""Parts that come again: each moves the weights again, and a job is over when that is said."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from seqgc.errors import ParameterError, ScheduleError
from seqgc.ports import FloatArray, Part, Seen, Update
from seqgc.runs import read_run
from seqgc.schemes import parse_scheme
from seqgc.training import Model, TrainingPlan, batch_indices, resume, train
from seqgc.training.workload import WorkloadState
from seqgc.virtual import RandomFaults
from tests.training.reference import flat, make_model, mean_loss, train_alone
from tests.training.stale_runs import ADAM, N, straight_model, virtual
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)
from tests.training.test_stale import CLOCK, Run, decoding

SPEC = "asp-dds:M=3,resume=shard"


class Repeating(Run):
    """A run by hand, of a policy that may have parts done again."""

    def come(self, job: int, part: int, *, again: bool = False, ends: tuple[int, ...] = ()) -> None:
        self.send(job, part)
        result = self.on_their_way.pop((job, part))
        told = replace(decoding(job, part), part=Part(index=part, of=N, again=again), ends=ends)
        self.workload.finish(told, result)


def new_run() -> Repeating:
    return Repeating([make_model()], staleness=None, most_again=2)


def test_a_part_that_comes_again_moves_the_weights_again_and_its_job_ends_when_it_is_said() -> None:
    run = new_run()
    for job in range(2):
        for part in range(N):
            run.come(job, part)
    assert run.workload.metrics == []  # all parts of both are in
    before = run.weights()
    run.send(0, 1)
    result = run.on_their_way[0, 1].copy()  # gradient, then the loss and others
    run.come(0, 1, again=True)
    np.testing.assert_allclose(
        run.weights(), before - 0.1 * result[: len(before)], rtol=0, atol=1e-15
    )
    assert run.workload.metrics == []
    run.come(1, 3, again=True, ends=(0, 1))
    assert [(entry.job, entry.step) for entry in run.workload.metrics] == [(0, 0), (1, 1)]
    with pytest.raises(ScheduleError, match="part 3 of 4 of job 1 cannot be taken"):
        run.workload.finish(decoding(1, 3), result)
    run.workload.flush()


def test_a_part_says_rightly_whether_it_comes_again() -> None:
    run = new_run()
    run.come(0, 1)
    before = run.weights()
    for part, again in ((1, False), (2, True)):
        with pytest.raises(ScheduleError, match=f"part {part} of 4 of job 0 cannot be taken"):
            run.come(0, part, again=again)
    np.testing.assert_array_equal(run.weights(), before)
    for part in (0, 2, 3):
        run.come(0, part)
    with pytest.raises(ScheduleError, match="job 0 has not been decoded"):
        run.workload.flush()  # though its parts are in


def test_parts_may_come_again_in_a_run_that_goes_on_from_a_checkpoint() -> None:
    run, later = new_run(), new_run()
    for job, part in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]:
        run.come(job, part)
    state, files = run.workload.snapshot()
    later.workload.restore(
        msgspec.json.decode(msgspec.json.encode(state), type=WorkloadState), files
    )
    later.begun = run.begun
    for each in (run, later):
        for part in range(1, N):
            each.come(1, part, ends=())
        assert each.workload.metrics == []
        each.come(1, 0, again=True)
        each.come(0, 2, again=True, ends=(0, 1))
        assert [entry.job for entry in each.workload.metrics] == [0, 1]
    np.testing.assert_array_equal(run.weights(), later.weights())


def test_sums_of_parts_are_refused_where_parts_come_again() -> None:
    with pytest.raises(ParameterError, match=r"`apply` must be update .* \(take resume=part\)"):
        Repeating([make_model()], staleness=None, updates=CLOCK, most_again=1)
    with pytest.raises(
        ParameterError, match=r'resume=part, and apply="clock", or --apply clock\)$'
    ):
        Repeating([make_model(optimizer=ADAM)], staleness=None, most_again=1)


# ---- whole runs ---------------------------------------------------------------------------------


def step_of(model: Model, *, step: int, part: int) -> FloatArray:
    """Return how a part of a batch moves weights whose gradients are the same anywhere."""
    points = batch_indices(
        len(model.dataset), batch_size=model.batch_size, seed=model.seed, step=step
    )
    ends = np.cumsum(parse_scheme(SPEC, n=N).cut(model.batch_size))
    x, y = zip(*(model.dataset[int(i)] for i in np.split(points, ends)[part]), strict=True)
    module = copy.deepcopy(model.module).double()
    before = flat(module).copy()
    mean = mean_loss(model, module(torch.stack(x).double()), torch.stack(y))
    loss = mean * len(x) / model.batch_size
    loss.backward()
    model.optimizer(module.parameters()).step()
    return flat(module) - before


def test_weights_hold_each_part_as_often_as_it_is_said_to_have_come(tmp_path: Path) -> None:
    model, again = straight_model(), Counter[tuple[int, int]]()

    def look(seen: Seen) -> None:
        if isinstance(seen, Update) and (part := seen.decoding().part) is not None:
            again[seen.job, part.index] += part.again

    plan = TrainingPlan(models=[model], scheme=SPEC, steps=12, precision="float64")
    faults = RandomFaults(fail=0.1, die=0.1, seed=0)
    result = train(plan, virtual(faults=faults), run=tmp_path / "run", observers=[look])
    assert result.counts.repeated == again.total() >= 3
    alone, _ = train_alone(model, steps=12, dtype=torch.float64)
    moved = [times * step_of(model, step=job, part=part) for (job, part), times in again.items()]
    due = flat(alone) + np.sum(moved, axis=0)
    np.testing.assert_allclose(flat(result.modules["net"]), due, rtol=0, atol=1e-10)
    assert not np.allclose(due, flat(alone), rtol=0, atol=1e-6)
    run = read_run(tmp_path / "run")
    assert run.notices()["kind"].tolist().count("repeat") == result.counts.repeated
    assert run.rounds()["round"].tolist() == run.jobs()["job"].tolist() == list(range(12))


def test_a_run_that_is_broken_off_says_that_parts_may_be_applied_again(tmp_path: Path) -> None:
    models = [straight_model("a"), straight_model("b", seed=1)]
    plan = TrainingPlan(
        models=models,
        scheme=SPEC,
        jobs_per_round=1,
        steps=4,
        precision="float64",
        checkpoint_every_s=1e-9,
    )
    crash = CopyAt(tmp_path / "run", set(range(25, 200, 41)))
    whole = train(plan, virtual(), run=tmp_path / "run", observers=[crash])
    assert whole.counts.repeated == 0
    assert len(crash.copies) >= 2
    for copied in crash.copies:
        had_checkpoint = bool(list(copied.glob("checkpoints/[0-9]*")))
        result = resume(copied, plan, virtual(1))
        assert result.counts.repeated <= 2 * N
        said = " ".join(read_run(copied).notices()["text"])
        assert ("at least once" in said) == had_checkpoint
        rows = (copied / "metrics.csv").read_text().splitlines()[1:]
        steps = Counter(tuple(row.split(",")[1:4]) for row in rows)
        assert steps == Counter({(str(job), "ab"[job % 2], str(job // 2)): 1 for job in range(8)})

"""Runs train on answers to single mini-tasks, to the weights of a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import examples.multimessage  # noqa: F401 (registers uc-mmc)
from seqgc import read_run, workers
from seqgc.errors import ParameterError
from seqgc.profiles import ByRound
from seqgc.training import TrainingPlan, resume, train
from seqgc.virtual import Compute, VirtualBackend
from tests.training.reference import flat, make_model
from tests.training.stale_runs import N, applied_once, virtual
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)

FIRST_CHUNK = 1 / N


def plan(steps: int = 6, **others: object) -> TrainingPlan:
    models = [make_model(batch_size=16)]
    return TrainingPlan(
        models=models, scheme="uc-mmc:r=2", steps=steps, precision="float64", **others
    )


def only_the_first(round: int, worker: int, load: float) -> float:  # noqa: ARG001
    """Delay whatever is more than the first chunk by an hour: no task is ever complete."""
    return 3600.0 if load > 1.5 * FIRST_CHUNK else 0.0


def test_local_workers_that_complete_no_task_train_to_the_weights_of_a_loop(tmp_path: Path) -> None:
    """With whole answers, the first step would take an hour."""
    with workers.local(N, delays=only_the_first) as crew:
        result = train(plan(), crew, run=tmp_path / "run")
    applied_once(result, plan())
    run = read_run(tmp_path / "run")
    parts, answers = run.parts(), run.answers()
    assert parts["round"].tolist() == np.repeat(range(6), N).tolist()
    assert set(zip(parts["worker"].tolist(), parts["slot"].tolist(), strict=True)) == {
        (worker, worker) for worker in range(N)
    }
    assert parts["used"].all()
    assert parts["load"].tolist() == [FIRST_CHUNK] * 6 * N
    assert (parts["took_s"] < 3600).all()
    assert set(answers["outcome"]) == {"unanswered"}
    assert run.rounds()["round"].tolist() == list(range(6))


def test_a_stalled_worker_is_not_waited_for(tmp_path: Path) -> None:
    """Worker 0 has the first chunk of worker 1, and worker 2 the second."""

    def delays(round: int, worker: int, load: float) -> float:  # noqa: ARG001
        return 3600.0 if worker == 1 else 0.0

    with workers.local(N, delays=delays) as crew:
        applied_once(train(plan(), crew, run=tmp_path / "run"), plan())
    assert 1 not in read_run(tmp_path / "run").parts()["worker"]


def test_a_run_that_is_broken_off_between_two_parts_goes_on_to_the_same_bits(
    tmp_path: Path,
) -> None:
    of = plan(checkpoint_every_s=1e-9)
    crash = CopyAt(tmp_path / "run", set(range(12, 160, 19)))
    whole = train(of, virtual(), run=tmp_path / "run", observers=[crash])
    applied_once(whole, of)
    assert len(crash.copies) >= 4
    for copy in crash.copies:
        result = resume(copy, of, virtual(1))
        np.testing.assert_array_equal(flat(result.modules["net"]), flat(whole.modules["net"]))
        assert read_run(copy).outcome == "finished"


def functions(n: int, factory: Callable[[], Compute], *, pace: ByRound) -> VirtualBackend:
    return VirtualBackend(n, pace, workers="function", compute=factory())


def test_a_run_in_parts_is_a_profile_of_first_chunks_with_its_alpha(tmp_path: Path) -> None:
    latencies_s = 1 + np.random.default_rng(2).exponential(size=(8, N))
    latencies_s[3, 2] = 60.0  # its task is cancelled before any answer
    pace = ByRound(latencies_s=latencies_s, rates=[[2.0]])
    crew = workers.custom(N, partial(functions, pace=pace))
    train(plan(steps=8), crew, run=tmp_path / "run")
    run = read_run(tmp_path / "run")
    profile = run.profile()
    assert profile.meta.alpha == pytest.approx(2.0, rel=1e-9)
    assert profile.meta.base_load == pytest.approx(FIRST_CHUNK)
    assert profile.censored[3, 2]
    first_s = latencies_s + 2.0 * FIRST_CHUNK
    np.testing.assert_allclose(profile.times[profile.answered], first_s[profile.answered])
    assert (profile.times <= first_s + 1e-3).all()
    assert profile.answered.sum() >= 4 * N


@pytest.mark.parametrize("make", [workers.lambda_local, workers.dask])
def test_workers_that_answer_whole_tasks_only_are_refused(make: object, tmp_path: Path) -> None:
    with (
        pytest.raises(ParameterError, match=r"`backend` must be able to answer each mini-task"),
        make(N) as crew,  # type: ignore[operator]
    ):
        train(plan(), crew, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()

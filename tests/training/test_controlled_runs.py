"""Whole runs whose shares a controller changes: plain training, whoever computes how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc import read_run, workers
from seqgc.errors import ParameterError
from seqgc.ports import Backend, Task
from seqgc.profiles import Pace
from seqgc.profiles.slowdowns import SleepWindows
from seqgc.training import Model, TrainingPlan, TrainResult, Updates, resume, train
from seqgc.virtual import Faults, RandomFaults, VirtualBackend
from tests.kit import SOAK
from tests.training.reference import flat, make_model, train_alone
from tests.training.test_resume import CopyAt, whole_checkpoints  # noqa: F401 (a fixture)

N, STEPS = 4, 6
SPECS = [
    "lb-bsp",
    "lb-bsp:most=9",
    "antdt-nd:trans=3,per=6,act=3",
    "antdt-nd:trans=3,per=6,act=3,back=3",
    "antdt-dd:most=6,probe=2",
]
SLEEPS = SleepWindows(n=N, intensity=0.8, probability=0.0).pace()  # of worker 0, until it is fresh
ADAM = partial(torch.optim.Adam, lr=1e-2)


class Noting(VirtualBackend):
    """Notes how many points each worker has in each round, and of what blocks."""

    def __init__(
        self,
        pace: Pace,
        notes: list[list[list[int]]],
        compute: Callable[..., object],
        faults: Faults | None,
    ) -> None:
        super().__init__(N, pace, compute=compute, faults=faults)  # type: ignore[arg-type]
        self._notes = notes

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        if len(tasks) > 1:
            by_worker = {task.worker: task for task in tasks}
            sizes = [[len(i.parts[0].points) for i in by_worker[w].items] if w in by_worker else []
                     for w in range(N)]  # fmt: skip
            self._notes.append(sizes)
        return super().dispatch(round, tasks)


def crew(
    notes: list[list[list[int]]] | None = None,
    *,
    pace: Pace = SLEEPS,
    faults: Faults | None = None,
) -> workers.WorkerSet:
    """Workers of this process, in virtual time."""

    def backend(n: int, factory: Callable[[], object]) -> Backend:  # noqa: ARG001 (they are N)
        threads = torch.get_num_threads()
        compute = factory()
        torch.set_num_threads(threads)
        return Noting(pace, [] if notes is None else notes, compute, faults)  # type: ignore[arg-type]

    return workers.custom(N, backend)


def models() -> list[Model]:
    return [make_model(f"m{i}", seed=i, batch_size=20, optimizer=ADAM) for i in range(2)]


def plan(spec: str, *, every_s: float = 60.0, steps: int = STEPS) -> TrainingPlan:
    return TrainingPlan(
        models=models(),
        scheme=spec,
        jobs_per_round=1,
        steps=steps,
        precision="float64",
        checkpoint_every_s=every_s,
    )


def trained_plainly(result: TrainResult, *, steps: int = STEPS) -> None:
    for model in models():
        alone, _ = train_alone(model, steps=steps, dtype=torch.float64)
        found = flat(result.modules[model.name])
        np.testing.assert_allclose(found, flat(alone), rtol=0, atol=1e-8, err_msg=model.name)


@pytest.mark.parametrize("spec", SPECS if SOAK else SPECS[1:])
def test_the_weights_are_those_of_plain_training_and_workers_have_their_shares(
    spec: str, tmp_path: Path
) -> None:
    notes: list[list[list[int]]] = []
    result = train(plan(spec), crew(notes), run=tmp_path / "run")
    trained_plainly(result)
    shares = [[sum(sizes) for sizes in each] for each in notes]
    assert all(sum(each) == 20 for each in shares)
    assert len(shares) == 2 * STEPS
    assert shares[0] == [5, 5, 5, 5]
    assert min(each[0] for each in shares) < 5, "worker 0 is slow"
    assert max(each[1] for each in shares) > 5, "others have what it has not"
    if "most" in spec:
        most = int(spec.partition("most=")[2].partition(",")[0])
        assert max(size for each in notes for sizes in each for size in sizes) <= most


@pytest.mark.parametrize("spec", SPECS if SOAK else SPECS[-2:])
def test_a_run_goes_on_from_any_instant_with_its_shares(spec: str, tmp_path: Path) -> None:
    crash = CopyAt(tmp_path / "run", set(range(20, 200, 23 if SOAK else 53)))
    notes: list[list[list[int]]] = []
    train(plan(spec, every_s=1e-9), crew(notes), run=tmp_path / "run", observers=[crash])
    assert len(crash.copies) >= 2
    for copy in crash.copies:
        checkpoints = [int(each.name) for each in copy.glob("checkpoints/[0-9]*")]
        again: list[list[list[int]]] = []
        trained_plainly(resume(copy, plan(spec, every_s=1e-9), crew(again)))
        run = read_run(copy)
        assert run.outcome == "finished"
        if not checkpoints:
            assert again[0] == notes[0]
            continue
        assert again[0] == notes[max(checkpoints)], copy
        said = " ".join(run.notices()["text"])
        assert f"continues from checkpoint {max(checkpoints)} with its shares" in said


def test_failures_take_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    faults = RandomFaults(fail=0.1, die=0.1, seed=0)
    trained_plainly(train(plan("lb-bsp"), crew(faults=faults), run=tmp_path / "run"))


def test_workers_that_are_processes_train_alike(tmp_path: Path) -> None:
    result = train(plan("lb-bsp"), workers.local(2), run=tmp_path / "run")
    trained_plainly(result)
    assert result.scheme == "lb-bsp"


def test_a_checkpoint_of_another_defence_is_refused(tmp_path: Path) -> None:
    train(plan("uncoded"), crew(), run=tmp_path / "run")
    with pytest.raises(ParameterError, match="`scheme` must stay as it was"):
        resume(tmp_path / "run", plan("lb-bsp"), crew(), accept_changes=True)


def test_gradients_are_applied_as_a_whole() -> None:
    parts = TrainingPlan(models=models(), scheme="lb-bsp", steps=1, updates=Updates())
    with pytest.raises(ParameterError, match="`updates` must be left out with lb-bsp"):
        parts.on(N)

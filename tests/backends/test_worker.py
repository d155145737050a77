"""What a worker computes, alone and in a process of its own with weights from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.backends import LocalBackend
from seqgc.errors import WorkerError
from seqgc.ports import Arrival, FloatArray, Task, WeightedPoints, WorkItem
from seqgc.stores import DirectoryStore
from seqgc.testing.scripted import gradient, next_events, part, task
from seqgc.worker import Compute, run_task

SEED = 7
POINTS, FEATURES = 40, 5


def dataset() -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(SEED)
    return rng.standard_normal((POINTS, FEATURES)), rng.standard_normal(POINTS)


@dataclass(frozen=True)
class LeastSquares:
    """Gradients of ``(x·w - y)**2 / 2``, the weights from a folder, as a real factory has them."""

    weights: Path

    def __call__(self) -> Compute:
        x, y = dataset()
        store = DirectoryStore(self.weights)

        def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            gradients = []
            for each in parts:
                rows = x[each.points]
                residuals = rows @ store.fetch(each.weights) - y[each.points]
                gradients.append((each.coefficients * residuals) @ rows)
            return np.concatenate(gradients)

        return compute


def test_workers_compute_the_gradients_of_the_weights_they_are_referred_to(tmp_path: Path) -> None:
    x, y = dataset()
    rng = np.random.default_rng(SEED + 1)
    store = DirectoryStore(tmp_path)
    models = {f"model{m}": rng.standard_normal(FEATURES) for m in range(2)}
    refs = {name: store.publish(name, 3, weights) for name, weights in models.items()}
    chunks = np.array_split(rng.permutation(POINTS), 3)
    coefficients = [rng.standard_normal(len(chunk)) for chunk in chunks]
    tasks = [
        Task(
            round=0,
            worker=worker,
            attempt=0,
            items=(
                WorkItem(
                    slot=5,
                    parts=tuple(
                        WeightedPoints(
                            model=name, weights=refs[name], points=chunk, coefficients=weight
                        )
                        for name in models
                    ),
                ),
            ),
        )
        for worker, (chunk, weight) in enumerate(zip(chunks, coefficients, strict=True))
    ]
    with LocalBackend(3, LeastSquares(tmp_path)) as backend:
        backend.dispatch(0, tasks)
        arrivals = next_events(backend, 3)
    for event in arrivals:
        assert isinstance(event, Arrival)
        chunk, weight = chunks[event.worker], coefficients[event.worker]
        expected = [
            sum(c * (x[p] @ weights - y[p]) * x[p] for p, c in zip(chunk, weight, strict=True))
            for weights in models.values()
        ]
        np.testing.assert_allclose(
            event.results[5], np.concatenate(expected), rtol=1e-12, err_msg=f"seed {SEED}"
        )


def test_a_task_is_answered_slot_by_slot() -> None:
    computed = run_task(
        task(0, 0, "a", "b"), lambda parts: np.concatenate([gradient(each) for each in parts])
    )
    assert computed is not None
    results, flaws = computed
    assert flaws == {}
    assert list(results) == [0, 10]
    np.testing.assert_array_equal(results[10], gradient(part()))


def test_a_cancelled_task_computes_no_further_and_has_no_results() -> None:
    seen: list[str] = []

    def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
        seen.append(parts[0].model)
        return np.ones(1)

    assert run_task(task(0, 0, "a", "b", "c"), compute, cancelled=lambda: "b" in seen) is None
    assert seen == ["a", "b"]


@pytest.mark.parametrize("wrong", [np.ones((1, 3)), 1.0, np.ones(3, int), None])
def test_a_computation_that_returns_no_vector_is_told_so(wrong: Any) -> None:
    with pytest.raises(
        WorkerError, match=r"`compute` must return a vector .* for slot 0"
    ) as caught:
        run_task(task(4, 2), lambda _: wrong)
    assert (caught.value.round, caught.value.worker) == (4, 2)

"""Items whose parts are dictionaries and tuples, from the first read to the metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from seqgc.models.datasets import collate
from seqgc.models.provenance import describe_data
from seqgc.training import TrainingPlan, Validation, train
from tests.models.exactness import CASES, NESTED, STEPS, Exact, Pair, nested
from tests.training.reference import flat
from tests.training.test_diverged import crew

CASE = CASES["dictionaries, tuples and lists as inputs, outputs and targets"]


def distance(output: dict[str, object], target: list[object]) -> float:
    """Return a metric of all points, whose nests are those of the module and the items."""
    one, more = target
    assert len(output["one"]) == len(one) == len(more["more"]) == len(NESTED)
    return float((output["more"][0] - more["more"]).abs().max())


def test_a_run_trains_validates_and_evaluates_them_as_plain_torch_does(tmp_path: Path) -> None:
    assert isinstance(CASE, Exact)
    rules = Validation(every_n_steps=STEPS, metrics={"distance": distance}, monitor="distance")
    model = CASE.model(validation=rules)
    plan = TrainingPlan(models=[model], scheme="gc-rep:s=1", steps=STEPS, precision="float64")
    result = train(plan, crew(), run=tmp_path / "run")
    expected = CASE.plain(torch.float64)
    np.testing.assert_allclose(flat(result.modules["net"]), flat(expected), rtol=1e-10)
    loss = CASE.mean(expected, range(len(NESTED)), torch.float64).item()
    assert result.evaluations["net"].loss == pytest.approx(loss, rel=1e-10)
    x, y = CASE.batch(range(len(NESTED)), torch.float64)
    with torch.no_grad():
        value = distance(nested(expected, x), y)
    assert result.best["net"].metrics["distance"] == pytest.approx(value, rel=1e-10)


def test_a_change_deep_in_an_item_changes_what_a_run_was_begun_with() -> None:
    def last(**changed: object) -> list[object]:
        x, y = NESTED[-1]
        return [*NESTED[:-1], ({**x, **changed}, y)]

    pair = NESTED[-1][0]["pair"]
    others = [
        last(pair=Pair(pair.one, pair.other + 1)),
        last(first=pair.one + 1),
        last(note="a text"),
        [*NESTED[:-1], (NESTED[-1][0], (NESTED[-1][1][0],))],
    ]
    lines = [describe_data(data) for data in (NESTED, *others)]
    assert lines[0] == describe_data(list(NESTED))
    assert len(set(lines)) == len(lines)


def test_a_subset_gives_the_items_that_torch_gives() -> None:
    whole = TensorDataset(torch.randn(20, 3), torch.arange(20))
    subset = Subset(Subset(whole, [3, -1, 7, 7, 0, -20]), [5, 1, 2, 3, 4])
    points = np.array([4, 0, 1, 1, 3, -1])
    x, y = collate(subset, points, dtype=torch.float32)
    expected = default_collate([subset[int(point)] for point in points])
    assert torch.equal(x, expected[0])
    assert torch.equal(y, expected[1])

    class Doubled(Subset[tuple[torch.Tensor, ...]]):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
            x, y = super().__getitem__(index)
            return 2 * x, y

        def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
            return [self[index] for index in indices]

    x, _ = collate(Doubled(whole, range(5)), np.arange(2), dtype=torch.float32)
    assert torch.equal(x, 2 * whole.tensors[0][:2])

"""Problems, metrics and checkpoints."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from seqgc.errors import ParameterError, StoreError
from seqgc.training import (
    MODULES,
    Evaluation,
    TrainResult,
    digits,
    evaluate,
    load_checkpoint,
    make_module,
    save_checkpoint,
)
from seqgc.training.results import Parked
from tests.training.reference import flat, make_model, train_alone


def test_the_paper_network_has_the_recorded_number_of_parameters() -> None:
    module = make_module("paper-cnn", seed=0)
    assert sum(p.numel() for p in module.parameters()) == 269_998
    assert module(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", ["digits-cnn", "mlp"])
def test_a_network_learns_the_digits_in_a_few_hundred_steps(name: str) -> None:
    data = digits(seed=1)
    model = make_model(
        module=make_module(name, seed=1),
        dataset=data.train,
        optimizer=partial(torch.optim.Adam, lr=1e-2),
        batch_size=128,
    )
    trained, losses = train_alone(model, steps=200, dtype=torch.float32)
    result = evaluate(trained, loss=model.loss, dataset=data.test)
    assert result.accuracy >= {"digits-cnn": 0.97, "mlp": 0.94}[name]
    assert result.loss < 0.2 < losses[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_networks_weights_hang_on_its_seed_alone(name: str) -> None:
    state = torch.get_rng_state()
    one = flat(make_module(name, seed=5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(123)
    np.testing.assert_array_equal(flat(make_module(name, seed=5)), one)
    assert np.abs(flat(make_module(name, seed=6)) - one).max() > 1e-3


def test_a_misspelt_network_is_answered_with_the_near_one() -> None:
    with pytest.raises(ParameterError, match="did you mean 'digits-cnn'"):
        make_module("digit-cnn", seed=0)


def test_the_digits_are_split_without_overlap_with_every_digit_in_its_share() -> None:
    data, again, other = digits(seed=3), digits(seed=3), digits(seed=4)
    x, y = data.train.tensors
    assert x.shape[1:] == (1, 8, 8)
    assert (x.min(), x.max()) == (0, 1)
    assert len(data.train) + len(data.test) == 1797
    assert torch.equal(x, again.train.tensors[0])
    assert not torch.equal(y, other.train.tensors[1])
    shares = np.bincount(data.test.tensors[1]) / np.bincount(torch.cat([y, data.test.tensors[1]]))
    np.testing.assert_allclose(shares, 0.2, atol=0.01)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_split_without_a_part_is_refused(fraction: float) -> None:
    with pytest.raises(ParameterError, match="`test_fraction` must be between 0 and 1"):
        digits(test_fraction=fraction)


def test_evaluation_is_the_mean_over_all_points_in_eval_mode_and_puts_modes_back() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2500, 6), torch.randint(3, (2500,))
    module = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.BatchNorm1d(3).eval())
    result = evaluate(module, loss=nn.CrossEntropyLoss(), dataset=TensorDataset(x, y))
    assert [part.training for part in module] == [True, True, False]
    output = module.eval()(x)
    assert result.loss == pytest.approx(F.cross_entropy(output, y).item(), rel=1e-5)
    right = sum(int(row.argmax()) == int(label) for row, label in zip(output, y, strict=True))
    assert result.accuracy == pytest.approx(right / 2500)


def test_accuracy_over_sequences_counts_every_element() -> None:
    output = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[9.0, 9.5], [0.0, 9.0]]])  # (point, class, i)
    target = torch.tensor([[0, 1], [0, 1]])  # right, right; right, wrong
    data = TensorDataset(output, target)
    assert evaluate(nn.Identity(), loss=nn.CrossEntropyLoss(), dataset=data).accuracy == 0.75


@pytest.mark.parametrize("accuracy", [0.75, None])
def test_accuracy_is_of_classes_along_the_last_axis_if_axis_1_does_not_fit(
    accuracy: float | None,
) -> None:
    """The output of a language model is (points, words, classes)."""
    output = nn.functional.one_hot(torch.tensor([[0, 1], [2, 2]]), 3).float()
    target = torch.tensor([[0, 1], [2, 0]])

    def loss(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return (scores.flatten(1).sum(1) - words.sum(1)).abs()

    data = TensorDataset(output if accuracy else torch.zeros(2, 5, 4), target)
    assert evaluate(nn.Identity(), loss=loss, dataset=data).accuracy == accuracy


def test_there_is_no_accuracy_without_classes() -> None:
    data = TensorDataset(torch.ones(3, 1), torch.zeros(3, 1))
    result = evaluate(nn.Identity(), loss=nn.MSELoss(), dataset=data)
    assert (result.loss, result.accuracy) == (1.0, None)


def test_an_empty_dataset_cannot_be_evaluated() -> None:
    with pytest.raises(ParameterError, match="`dataset` must hold at least one"):
        evaluate(nn.Identity(), loss=nn.MSELoss(), dataset=[])


def tied(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    module[1].running_mean += seed
    return module


def test_a_checkpoint_brings_back_weights_ties_and_buffers(tmp_path: Path) -> None:
    path, module, other = tmp_path / "net.safetensors", tied(1), tied(2)
    save_checkpoint(path, tied(3))
    save_checkpoint(path, module)
    load_checkpoint(path, other)
    assert list(tmp_path.iterdir()) == [path]
    for (name, one), two in zip(
        module.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), name
    assert other[2].weight is other[0].weight


def test_a_write_that_fails_leaves_the_old_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, tied(1))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, tied(2))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_checkpoint_that_does_not_fit_says_so_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, nn.Linear(2, 1))
    with pytest.raises(StoreError, match=r"does not load into Sequential") as caught:
        load_checkpoint(path, tied(1))
    assert "\n" not in str(caught.value)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(StoreError, match="does not load into Linear"):
        load_checkpoint(path, nn.Linear(2, 1))
    with pytest.raises(StoreError, match="does not load into Linear"):
        load_checkpoint(tmp_path / "none.safetensors", nn.Linear(2, 1))


def test_the_ranking_is_of_models_that_have_not_failed() -> None:
    losses = {"a": 1.0, "wild": 0.1, "nan": float("nan"), "early": 0.7, "as a": 1.0}
    result = TrainResult(
        run=Path("run"),
        scheme="gc:s=1",
        jobs=1,
        seconds=1.0,
        counts=None,  # type: ignore[arg-type]
        evaluations={name: Evaluation(loss=loss, accuracy=None) for name, loss in losses.items()},
        payload="float32",
        parked={
            "wild": Parked(kind="diverged", why="", step=1),
            "early": Parked(kind="stopped early", why="", step=1),
        },
    )
    assert result.ranking == ("early", "a", "as a")
    assert list(result.failed) == ["wild"]

"""`grid` calls a function that makes a model with every combination of its arguments."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from seqgc.errors import ParameterError
from seqgc.models.factories import register_data
from seqgc.training import Model, grid, registered_model
from tests.training.reference import SGD, blobs, make_model


def make(lr: float, seed: int) -> Model:
    return make_model("net", optimizer=partial(torch.optim.SGD, lr=lr), seed=seed)


def test_every_combination_is_made_in_the_order_of_nested_loops() -> None:
    models = grid(make, {"lr": [0.1, 0.2], "seed": [5, 3]})
    made = [(model.optimizer.keywords["lr"], model.seed) for model in models]
    assert made == [(0.1, 5), (0.1, 3), (0.2, 5), (0.2, 3)]
    assert models[1].name == "net-lr_0.1-seed_3"


def test_values_of_any_kind_have_names() -> None:
    def of(optimizer: object, **others: object) -> Model:
        return make_model("net", optimizer=SGD if others else optimizer)

    kinds = {"optimizer": [torch.optim.SGD, torch.optim.Adam], "label": ["a/b:c", True]}
    names = [model.name for model in grid(of, kinds)]
    assert names[:2] == ["net-optimizer_SGD-label_a_b_c", "net-optimizer_SGD-label_True"]
    pairs = grid(of, {"optimizer": [SGD], "betas": [(0.9, 0.99), (0.8, 0.99)]})
    assert [model.name for model in pairs] == [
        "net-optimizer_0-betas_0",
        "net-optimizer_0-betas_1",
    ]


def test_registered_data_are_loaded_once_and_are_one_object() -> None:
    loaded = []

    @register_data("counted-by-a-grid")
    def counted() -> tuple[object, object]:
        loaded.append(None)
        return blobs(20), blobs(10)

    net = partial(registered_model, "net", module="mlp", data="counted-by-a-grid", optimizer=SGD)
    models = grid(net, {"seed": 5})
    assert len(loaded) == len({id(model.dataset) for model in models}) == 1
    grid(net, {"seed": 1})
    assert len(loaded) == 2  # they may have changed by then


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({}, "`grid` must have at least one axis"),
        ({"learning_rate": [0.1], "seed": 1}, "`grid.learning_rate` is not an axis; .* lr, seed"),
        ({"lr": [], "seed": 1}, "`grid.lr` must have at least one value"),
        ({"lr": 0.1, "seed": 1}, "`grid.lr` must be a list"),
        ({"lr": [0.1], "seed": True}, "`grid.seed` must be a list of values, or the number"),
        ({"lr": ["a b", "a_b"], "seed": 1}, "`grid.lr` must have values with distinct names"),
        ({"lr": [*range(1000)], "seed": 1000}, "`grid` must have at most 1000 .* got 1000000"),
        ({"lr": [0.1], "seed": 10**30}, "`grid.seed` must be an integer .* 1000;"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_made(
    axes: dict[str, object], words: str
) -> None:
    def never(lr: float, seed: int) -> Model:
        raise AssertionError((lr, seed))

    with pytest.raises(ParameterError, match=words):
        grid(never, axes)


def test_what_makes_no_model_is_refused() -> None:
    with pytest.raises(ParameterError, match="`make` must return a Model"):
        grid(lambda seed: seed, {"seed": 2})

"""Networks, data and losses by name, with arguments, mean the same wherever they are used."""

from __future__ import annotations

import copy
import datetime
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from seqgc import Validation
from seqgc.config._tables import checked
from seqgc.errors import ParameterError
from seqgc.models.factories import make_models_compute, named_data, workload_of
from seqgc.models.model import ParameterVector
from seqgc.ports import FloatArray, WeightedPoints
from seqgc.stores import MemoryStore
from seqgc.training import Model, Recipe, TorchCompute, evaluate, make_module, registered_model
from seqgc.worker import FACTORIES
from tests.cli.inside import make_models
from tests.training.reference import SGD, blobs, make_model

PARTS = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

def net(width, depth=1, *, seed):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(4, width), *hidden, nn.Linear(width, 3))

def points(count, seeds=(1,)):
    generator = torch.Generator().manual_seed(sum(seeds))
    x = torch.randn(count, 4, generator=generator)
    return TensorDataset(x, x.argmax(1) % 3), TensorDataset(x, x.argmax(1) % 3)

def focal(output, target, gamma=2.0):
    each = F.cross_entropy(output, target, reduction="none")
    return (1 - torch.exp(-each)) ** gamma * each

def weighted(output, target, by):
    weights = torch.tensor(by, dtype=output.dtype)[target]
    return weights * F.cross_entropy(output, target, reduction="none"), weights

class Smooth(nn.CrossEntropyLoss):
    def __init__(self, smoothing):
        super().__init__(label_smoothing=smoothing)

class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, output, target):
        return self.scale * F.cross_entropy(output, target, reduction="none")

def make():
    return nn.CrossEntropyLoss()

ready = nn.CrossEntropyLoss()
"""
WEIGHT = [1.0, 3.0, 0.5]


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user that functions list."""
    (tmp_path / "seqgc_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(FACTORIES, "listed", [])
    monkeypatch.delitem(sys.modules, "seqgc_parts", raising=False)
    threads = torch.get_num_threads()
    FACTORIES.list_modules(["seqgc_parts"])
    yield sys.modules["seqgc_parts"]
    torch.set_num_threads(threads)


NET: dict[str, Any] = {
    "module": "seqgc_parts:net",
    "data": "seqgc_parts:points",
    "module_args": {"width": 5, "depth": 2},
    "data_args": {"count": 12, "seeds": [1, 2]},
}


def result(compute: TorchCompute, model: Model, store: MemoryStore) -> FloatArray:
    """Return the gradient of the mean loss of a model's first eight points."""
    flat = torch.cat([p.detach().double().ravel() for p in model.module.parameters()]).numpy()
    ref = store.publish(model.name, 0, flat)
    points, share = np.arange(8), np.full(8, 0.125)
    parts = WeightedPoints(model=model.name, weights=ref, points=points, coefficients=share)
    return ParameterVector(model.module).layout.read(compute((parts,))).gradient


def plain(model: Model, loss: Any) -> FloatArray:
    module = copy.deepcopy(model.module).double()
    x, y = (column[:8] for column in model.dataset.tensors)
    if isinstance(loss, nn.Module):
        loss = loss.double()
    loss(module(x.double()), y).mean().backward()
    return torch.cat([p.grad.ravel() for p in module.parameters()]).numpy()


def focal(output: Tensor, target: Tensor, gamma: float) -> Tensor:
    each = F.cross_entropy(output, target, reduction="none")
    return (1 - torch.exp(-each)) ** gamma * each


@pytest.mark.parametrize(
    ("loss", "args", "of_torch"),
    [
        ("cross-entropy", {}, nn.CrossEntropyLoss()),
        ("cross-entropy", {"label_smoothing": 0.2}, nn.CrossEntropyLoss(label_smoothing=0.2)),
        ("cross-entropy", {"ignore_index": 1}, nn.CrossEntropyLoss(ignore_index=1)),
        ("cross-entropy", {"weight": WEIGHT}, nn.CrossEntropyLoss(weight=torch.tensor(WEIGHT))),
        ("seqgc_parts:weighted", {"by": WEIGHT}, nn.CrossEntropyLoss(weight=torch.tensor(WEIGHT))),
        ("seqgc_parts:focal", {}, partial(focal, gamma=2.0)),
        ("seqgc_parts:focal", {"gamma": 3}, partial(focal, gamma=3)),
        ("seqgc_parts:Smooth", {"smoothing": 0.1}, nn.CrossEntropyLoss(label_smoothing=0.1)),
        ("seqgc_parts:Scaled", {"scale": 4.0}, lambda o, t: 4 * F.cross_entropy(o, t)),
    ],
)
def test_a_loss_and_its_arguments_mean_the_same_in_a_file_here_and_in_a_function(
    loss: str, args: dict[str, object], of_torch: Any
) -> None:
    named = {"name": "net", "loss": loss, "loss_args": args, "seed": 3, **NET}
    (of_a_file,) = make_models(checked({"models": [named]}))
    here = registered_model(**named, optimizer=SGD)
    assert of_a_file.recipe == here.recipe
    store, results = MemoryStore(), []
    for model in (of_a_file, here):
        local = TorchCompute([model.objective], store=store, precision="float64")
        sent = json.loads(json.dumps(workload_of([model], precision="float64").settings))
        remote = make_models_compute(sent, store.fetch)
        results += [result(compute, model, store) for compute in (local, remote)]
    assert all(np.array_equal(results[0], each) for each in results[1:])
    expected = plain(here, of_torch)
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-14)


def test_models_of_one_name_and_other_arguments_are_told_apart_in_a_function() -> None:
    made = [
        registered_model(
            f"net-{at}",
            optimizer=SGD,
            loss="seqgc_parts:focal",
            loss_args={"gamma": at},
            **NET | {"module_args": {"width": 2 + at % 2}, "data_args": {"count": 8 + at}},
        )
        for at in range(4)
    ]
    store = MemoryStore()
    compute = make_models_compute(workload_of(made, precision="float64").settings, store.fetch)
    local = TorchCompute([each.objective for each in made], store=store, precision="float64")
    results = [result(compute, model, store) for model in made]
    assert [len(each.dataset) for each in made] == [8, 9, 10, 11]
    for model, each in zip(made, results, strict=True):
        assert np.array_equal(each, result(local, model, store))
    assert len({len(each) for each in results}) == 2
    assert not np.allclose(results[0], results[2])


def test_a_model_takes_a_loss_as_a_name_and_a_registered_model_takes_it_itself(parts: Any) -> None:
    for given, name, args in (
        ("cross-entropy", "cross-entropy", {}),
        (nn.CrossEntropyLoss(), "cross-entropy", {}),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "cross-entropy", {"label_smoothing": 0.1}),
        (nn.CrossEntropyLoss(torch.tensor(WEIGHT)), "cross-entropy", {"weight": WEIGHT}),
        (parts.focal, "seqgc_parts:focal", {}),
        ("seqgc_parts:focal", "seqgc_parts:focal", {}),
    ):
        model = registered_model("net", loss=given, optimizer=SGD, **NET)
        assert (model.recipe.loss, dict(model.recipe.loss_args)) == (name, args)
        workload_of([model], precision="float32")
        assert mean(make_model(loss=given).loss, model) == mean(model.loss, model)
    for own in (lambda o, t: focal(o, t, 1.0), partial(focal, gamma=1.0)):
        model = registered_model("net", loss=own, optimizer=SGD, **NET)
        assert model.loss is own
        with pytest.raises(ParameterError, match=r"recipe for functions.* the loss"):
            workload_of([model], precision="float32")
        with pytest.raises(ParameterError, match="`loss_args` must be left out"):
            registered_model("net", loss=own, loss_args={"gamma": 1}, optimizer=SGD, **NET)


def mean(loss: Any, model: Model) -> float:
    return evaluate(model.module, loss=loss, dataset=model.dataset).loss


def test_a_registered_model_has_all_that_a_model_has() -> None:
    held_out = Validation(every_n_steps=2, dataset=blobs(5))
    more: dict[str, Any] = {
        "scheduler": partial(StepLR, step_size=2),
        "gradient_clip_val": 0.5,
        "gradient_clip_algorithm": "value",
        "validation": held_out,
        "save_every_n_steps": 3,
        "autocast": "bfloat16",
    }
    model = registered_model("net", module="mlp", optimizer=SGD, **more)
    assert {name: getattr(model, name) for name in more} == more


def test_a_recipe_is_told_by_its_arguments_and_shows_those_that_it_has() -> None:
    plain = Recipe(module="mlp", data="digits", loss="mse")
    assert repr(plain) == "Recipe(module='mlp', data='digits', loss='mse')"  # old runs recorded it
    wide = Recipe(module="mlp", data="digits", loss="mse", module_args={"sizes": (3, 4)})
    assert wide.module_args == {"sizes": [3, 4]}
    assert "module_args={'sizes': [3, 4]}" in repr(wide)
    assert len({plain, wide, Recipe(module="mlp", data="digits", loss="mse")}) == 2
    assert make_module("mlp", seed=0, args={"width": 7})[1].out_features == 7
    train, test = named_data("digits", {"test_fraction": 0.5})
    assert abs(len(train) - len(test)) < 10
    assert isinstance(train, TensorDataset)


@pytest.mark.parametrize(
    ("given", "argument", "words"),
    [
        ({"module_args": {"widht": 5}}, "module_args", "did you mean 'width'"),
        ({"module_args": {"width": 5, "seed": 1}}, "module_args", "must not have a seed"),
        ({"module_args": {"width": "many"}}, "module", "must not raise TypeError"),
        ({"module_args": {"width": float("nan")}}, "module_args", "finite numbers"),
        ({"module_args": {"width": datetime.date(2026, 1, 1)}}, "module_args", "2026"),
        ({"module_args": {"width": {3: 4}}}, "module_args", "dicts with text keys"),
        ({"module_args": [5]}, "module_args", "arguments by name"),
        ({"module": "mlp", "module_args": {"depth": 5}}, "module_args", "of mlp, which are width"),
        ({"data": "digits"}, "data_args", "of digits, which are seed, test_fraction"),
        ({"data_args": {}}, "data", "must not raise TypeError"),
        ({"loss_args": {"label_smothing": 0.1}}, "loss_args", "did you mean 'label_smoothing'"),
        ({"loss_args": {"reduction": "sum"}}, "loss", "sum"),
        ({"loss_args": {"weight": ["a"]}}, "loss_args", "must make a loss cross-entropy"),
        ({"loss": "cross_entropy"}, "loss", "did you mean 'cross-entropy'"),
        ({"loss": "seqgc_parts:focul"}, "loss", "importable"),
        ({"loss": "seqgc_parts:focal", "loss_args": {"gama": 1}}, "loss_args", "'gamma'"),
        ({"loss": "seqgc_parts:Smooth", "loss_args": {"smooth": 1}}, "loss_args", "'smoothing'"),
        ({"loss": "seqgc_parts:make"}, "loss", "a function (output, target)"),
        ({"loss": "seqgc_parts:focal", "loss_args": {"target": 1}}, "loss", "'target'"),
        ({"loss": "seqgc_parts:Scaled"}, "loss", "must not raise TypeError"),
    ],
)
def test_arguments_that_a_part_does_not_take_are_refused_in_one_line(
    given: dict[str, Any], argument: str, words: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        registered_model("net", optimizer=SGD, **NET | given)
    assert caught.value.argument == argument
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "torch.nn:CrossEntropyLoss"}, "`loss` must be of a module that the image lists"),
        ({"loss": "seqgc_parts:nn"}, "`loss` must name a function"),
        ({"loss": "seqgc_parts:ready"}, "`loss` must be defined in its module"),
        ({"module_args": 3}, "`$.models[0].module_args`"),
        ({"loss_args": {"gamma": 1}}, "`loss_args` must be arguments of cross-entropy"),
        ({"module_kwargs": {}}, "unknown field `module_kwargs`"),
    ],
)
def test_a_payload_names_losses_and_arguments_by_the_same_rules(
    changes: Mapping[str, Any], words: str
) -> None:
    model = registered_model("net", optimizer=SGD, **NET)
    told = dict(workload_of([model], precision="float32").settings)
    told["models"] = [{**told["models"][0], **changes}]
    with pytest.raises(ParameterError) as caught:
        make_models_compute(told, MemoryStore().fetch)
    assert words in str(caught.value)

"""Objectives rebuilt from names give what the local backend's workers give, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from seqgc.errors import ParameterError
from seqgc.ports import WeightedPoints
from seqgc.stores import DirectoryStore
from seqgc.training import Model, Recipe, TorchComputeFactory
from seqgc.training import factories as factories_module
from seqgc.training.factories import (
    LOSSES,
    import_registered,
    make_models_compute,
    make_module,
    named_data,
    register_data,
    register_module,
    workload_of,
)


@dataclass(frozen=True, kw_only=True)
class Spec:
    name: str
    module: str = "digits-cnn"
    data: str = "digits"
    loss: str = "cross-entropy"
    seed: int = 0


@pytest.fixture(autouse=True)
def registered_names_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factories_module, "_MODULES", dict(factories_module._MODULES))
    monkeypatch.setattr(factories_module, "_DATA", dict(factories_module._DATA))


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def model_of(spec: Spec) -> Model:
    return Model(
        name=spec.name,
        module=make_module(spec.module, seed=spec.seed),
        loss=LOSSES[spec.loss](),
        dataset=named_data(spec.data)[0],
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=16,
        seed=spec.seed,
        recipe=Recipe(module=spec.module, data=spec.data, loss=spec.loss),
    )


def flat(module: nn.Module) -> np.ndarray:
    vector: np.ndarray = parameters_to_vector(module.parameters()).detach().numpy()
    return vector


def batchnorm(seed: int) -> nn.Module:  # noqa: ARG001 (drawn from torch's global state)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_gradients_are_the_local_workers_bit_for_bit(
    tmp_path: Path, precision: Literal["float32", "float64"]
) -> None:
    register_module("with-buffers")(batchnorm)
    specs = [
        Spec(name="a", seed=3),
        Spec(name="b", module="mlp"),
        Spec(name="c", module="with-buffers"),
    ]
    models, store = [model_of(spec) for spec in specs], DirectoryStore(tmp_path)
    local = TorchComputeFactory(models=models, store=store, precision=precision)()
    sent = json.loads(json.dumps(workload_of(models, precision=precision).settings))
    remote = make_models_compute(sent, store.fetch)
    rng = np.random.default_rng(0)
    for version in range(2):
        parts = []
        for model in models:
            start = flat(model.module).astype(precision)
            ref = store.publish(
                model.name, version, start + rng.normal(0, 0.1, start.shape).astype(precision)
            )
            parts.append(
                WeightedPoints(
                    model=model.name,
                    weights=ref,
                    points=rng.integers(0, 1000, 8),
                    coefficients=rng.normal(size=8),
                )
            )
        expected, found = local(tuple(parts)), remote(tuple(parts))
        assert found.dtype == precision
        assert found.tobytes() == expected.tobytes()
        assert np.abs(found).max() > 0


def test_models_share_their_data() -> None:
    read = []

    @register_data("read-once")
    def read_once() -> Any:
        read.append(1)
        return named_data("digits")

    models = [model_of(Spec(name=name, data="read-once")) for name in "ab"]
    read.clear()
    make_models_compute(workload_of(models, precision="float32").settings, lambda _: np.ones(1))
    assert read == [1]


def test_of_a_model_workers_get_what_they_need() -> None:
    workload = workload_of([model_of(Spec(name="a", seed=5))], precision="float64")
    assert workload.name == "models"
    assert workload.settings == {
        "models": [
            {
                "name": "a",
                "module": "digits-cnn",
                "data": "digits",
                "loss": "cross-entropy",
                "seed": 5,
            }
        ],
        "precision": "float64",
    }


@pytest.mark.parametrize("field", ["module", "data"])
@pytest.mark.parametrize("path", ["mine.nets:resnet", "os:system", "os.system"])
def test_code_of_your_own_is_asked_to_be_registered(field: str, path: str) -> None:
    recipe: Any = Recipe(**{"module": "mlp", "data": "digits", "loss": "mse", field: path})
    with pytest.raises(ParameterError) as caught:
        workload_of([replace(model_of(Spec(name="a")), recipe=recipe)], precision="float32")
    settings = {
        "models": [{**Spec(name="a").__dict__, field: path}],
        "precision": "float32",
    }
    with pytest.raises(ParameterError) as at_the_worker:
        make_models_compute(settings, lambda _: np.ones(1))
    assert str(caught.value) == str(at_the_worker.value)
    assert f"(register_{field}): a payload names no code; got {path!r}" in str(caught.value)
    assert "register it in a module listed in SEQGC_FACTORIES" in str(caught.value)


def test_code_of_a_script_is_asked_to_be_moved_to_a_module() -> None:
    class Net(nn.Linear):
        pass

    def net(seed: int) -> nn.Module:  # noqa: ARG001 (drawn from torch's global state)
        return Net(64, 10)

    model = model_of(Spec(name="a", module="mlp"))
    own = replace(model, module=nn.Sequential(nn.Flatten(), net(0)), recipe=None)
    register_module("scripted")(net)
    registered = replace(own, recipe=Recipe(module="scripted", data="digits", loss="mse"))
    with pytest.raises(ParameterError, match=r"recipe[^@]*training.registered_model"):
        workload_of([own], precision="float32")
    assert workload_of([registered], precision="float32").settings
    Net.__module__ = net.__module__ = "__main__"
    how = "move the script's or notebook's own into a module.*SEQGC_FACTORIES=nets"
    with pytest.raises(ParameterError, match=f"recipe.*functions.*{how}.*registered_model"):
        workload_of([own], precision="float32")
    with pytest.raises(
        ParameterError, match=f"made in a module where workers are functions.*{how}"
    ):
        workload_of([registered], precision="float32")


def change(**changes: Any) -> dict[str, Any]:
    return {"models": [{**Spec(name="a").__dict__, **changes}], "precision": "float32"}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, "`settings` must be `models` and `precision`"),
        (change() | {"path": "x"}, "`settings` must be `models` and `precision`"),
        (change() | {"models": []}, "`models` must be a list of 1 to 1000"),
        (change() | {"models": {"a": 1}}, "`models` must be a list of 1 to 1000"),
        (change() | {"models": ["a"]}, "`models` must each have name, module, data, loss, seed"),
        (change(lr=1.0), "`models` must each have name, module, data, loss, seed"),
        (change(seed=-1), "`seed` must be an integer >= 0"),
        (change(seed="0"), "`seed` must be an integer >= 0"),
        (change(loss="hinge"), "`loss` must be one of cross-entropy, mse"),
        (change(module=["mlp"]), "`module` must be a string"),
        (change(module="mpl"), "did you mean 'mlp'?"),
        (change() | {"precision": "float16"}, "`precision` must be one of float32, float64"),
        (change() | {"precision": ["float32"]}, "`precision` must be one of float32, float64"),
    ],
)
def test_settings_that_make_no_models_are_refused(settings: Mapping[str, Any], rule: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make_models_compute(settings, lambda _: np.ones(1))
    assert rule in str(caught.value)


@pytest.mark.parametrize("name", ["mlp", "taken", "", "a.b", "a:b"])
def test_a_name_is_registered_once_and_looks_like_no_path(name: str) -> None:
    register_module("taken")(batchnorm)
    register_module("taken")(batchnorm)
    with pytest.raises(ParameterError, match="`name` must be"):
        register_module(name)(lambda _: nn.Linear(1, 1))


def test_a_registered_networks_weights_depend_on_the_seed_alone() -> None:
    register_module("with-buffers")(batchnorm)
    state = torch.random.get_rng_state()
    one, same, other = (flat(make_module("with-buffers", seed=seed)).tolist() for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_master_imports_what_the_image_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seqgc_mine.py").write_text(
        "from torch import nn\n"
        "from seqgc.training.factories import register_module\n"
        "@register_module('line')\n"
        "def line(seed): return nn.Linear(1, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import_registered({})
    with pytest.raises(ParameterError, match="`module` must be one of"):
        make_module("line", seed=0)
    import_registered({"SEQGC_FACTORIES": "seqgc_mine, "})
    assert isinstance(make_module("line", seed=0), nn.Linear)
    with pytest.raises(ParameterError, match=r"`SEQGC_FACTORIES` .*no_such.*; got 'no_such'"):
        import_registered({"SEQGC_FACTORIES": "seqgc_mine,no_such"})

"""Objectives rebuilt from names give what the local backend's workers give, bit for bit."""

from __future__ import annotations

import json
import sys
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
from seqgc.models import factories as factories_module
from seqgc.models.factories import (
    import_registered,
    make_models_compute,
    make_module,
    named_data,
    register_data,
    register_module,
    workload_of,
)
from seqgc.models.losses import LOSSES
from seqgc.models.model import structure_of
from seqgc.models.problems import MODULES
from seqgc.ports import WeightedPoints, WeightRef
from seqgc.stores import DirectoryStore
from seqgc.training import Model, Recipe, TorchComputeFactory
from seqgc.worker import FACTORIES


@dataclass(frozen=True, kw_only=True)
class Spec:
    name: str
    module: str = "digits-cnn"
    data: str = "digits"
    loss: str = "cross-entropy"
    autocast: str = "off"
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
        autocast=spec.autocast,
    )


def flat(module: nn.Module) -> np.ndarray:
    vector: np.ndarray = parameters_to_vector(module.parameters()).detach().numpy()
    return vector


def batchnorm(seed: int) -> nn.Module:  # noqa: ARG001 (drawn from torch's global state)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("together", [1, 2])
def test_gradients_are_the_local_workers_bit_for_bit(
    tmp_path: Path, precision: Literal["float32", "float64"], together: int
) -> None:
    register_module("with-buffers")(batchnorm)
    specs = [
        Spec(name="a", seed=3),
        Spec(name="b", module="mlp"),
        Spec(name="b2", module="mlp", seed=7),
        Spec(name="c", module="with-buffers"),
    ]
    if precision == "float32":
        specs.append(Spec(name="d", module="mlp", autocast="bfloat16"))
    models, store = [model_of(spec) for spec in specs], DirectoryStore(tmp_path)
    sizes = {"b": together, "b2": together}
    local = TorchComputeFactory(
        models=models, store=store, precision=precision, group_sizes=sizes
    )()
    workload = workload_of(models, precision=precision, group_sizes=sizes)
    sent = json.loads(json.dumps(workload.settings))
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


@pytest.mark.parametrize("name", MODULES)
def test_seeds_draw_nothing_but_weights_of_our_own_networks(name: str) -> None:
    """So a function makes one network for all seeds: the master sends the weights."""
    assert (
        structure_of(make_module(name, seed=0))
        == structure_of(make_module(name, seed=1))
        is not None
    )


def test_a_function_draws_one_network_of_our_own_and_all_of_the_users(tmp_path: Path) -> None:
    drawn = dict[str, list[int]](mlp=[], own=[])

    ours = factories_module._MODULES["mlp"]

    def noting(name: str, seed: int) -> nn.Module:
        drawn[name].append(seed)
        return ours(seed)

    factories_module._MODULES["mlp"] = partial(noting, "mlp")
    factories_module._MODULES["own"] = partial(noting, "own")
    specs = [Spec(name=f"{m}-{s}", module=m, seed=s) for m in ("mlp", "own") for s in range(1, 4)]
    ref = workload_of([model_of(spec) for spec in specs], precision="float32")
    for each in drawn.values():
        each.clear()
    make_models_compute(ref.settings, DirectoryStore(tmp_path).fetch)
    assert drawn == {"mlp": [0], "own": [1, 2, 3]}


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
    assert dict(workload.settings, fingerprint={}) == {
        "fingerprint": {},
        "data": {},
        "models": [
            {
                "name": "a",
                "module": "digits-cnn",
                "data": "digits",
                "loss": "cross-entropy",
                "autocast": "off",
                "seed": 5,
            }
        ],
        "precision": "float64",
    }


OWN = """
import functools, os
from collections import OrderedDict
from torch import nn
from torch.utils.data import TensorDataset
import torch

def net():
    return nn.Linear(2, 1)

def seeded(seed):
    return nn.Linear(2, 1 + seed)

def points():
    x = torch.arange(8.0).reshape(4, 2)
    return TensorDataset(x, x[:, :1]), TensorDataset(x, x[:, :1])

def alone():
    return points()[0]

def fails():
    raise OSError("no such file")

wide = functools.partial(seeded, 4)
other = functools.partial(nn.Linear, 1, 1)
_hidden = net
"""
LISTED = {"module": "seqgc_own:net", "data": "seqgc_own:points", "loss": "mse"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user that can be imported, and that no image lists yet."""
    (tmp_path / "seqgc_own.py").write_text(OWN)
    (tmp_path / "seqgc_unlisted.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(FACTORIES, "listed", [])
    for name in ("seqgc_own", "seqgc_unlisted"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("own")
def test_own_functions_make_in_a_function_what_they_make_here() -> None:
    model = model_of(Spec(name="a", seed=3, **LISTED))
    assert flat(model.module).tolist() == flat(make_module("seqgc_own:net", seed=3)).tolist()
    assert flat(model.module).tolist() != flat(make_module("seqgc_own:net", seed=4)).tolist()
    settings = workload_of([model], precision="float64").settings
    with pytest.raises(ParameterError, match=r"of a module that the image lists .*: none\)"):
        make_models_compute(settings, lambda _: np.ones(1))
    FACTORIES.list_modules(["seqgc_own"])
    compute = make_models_compute(settings, lambda _: np.array([1.0, 2.0, 3.0]))
    ref = WeightRef(model="a", version=0, digest="", dtype="float64", size=3)
    part = WeightedPoints(
        model="a", weights=ref, points=np.array([1]), coefficients=np.array([1.0])
    )
    error = 2 + 2 * 3 + 3 - 2  # of the point (2, 3), whose target is 2
    result = compute((part,))[:4]
    np.testing.assert_allclose(result, [4 * error, 6 * error, 2 * error, error**2])


@pytest.mark.usefixtures("own")
def test_an_own_function_is_given_the_seed_if_it_takes_one() -> None:
    assert make_module("seqgc_own:seeded", seed=2).out_features == 3
    assert make_module("seqgc_own:net", seed=2).out_features == 1
    with pytest.raises(ParameterError, match=r"`data` must return a pair"):
        named_data("seqgc_own:alone")
    with pytest.raises(ParameterError, match=r"must not raise OSError: no such file; got 'seqgc_o"):
        named_data("seqgc_own:fails")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("seqgc_own:nett", "did you mean 'net'?"),
        ("seqgc_owm:net", "did you mean 'seqgc_own'?"),
        ("seqgc_parts.net:net", "did you mean 'seqgc_parts.nets'?"),
        ("seqgc_parts.nets:net", "set PYTHONPATH=."),
    ],
)
def test_the_remedy_suits_what_is_missing(
    path: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seqgc_parts").mkdir()
    (tmp_path / "seqgc_parts" / "nets.py").write_text(OWN)
    if path.startswith("seqgc_parts"):  # this folder is not on the path
        monkeypatch.setattr(
            sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))]
        )
    with pytest.raises(ParameterError) as caught:
        make_module(path, seed=0)
    assert remedy in str(caught.value)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("field", ["module", "data"])
@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("seqgc_unlisted:net", "must be of a module that the image lists (SEQGC_FACTORIES: seqgc_"),
        ("os:abort", "must be of a module that the image lists"),
        ("seqgc_own.os:abort", "must be of a module that the image lists"),
        ("seqgc_own:os.abort", "must be an importable package.module:function"),
        ("seqgc_own:OrderedDict", "collections defines it"),
        ("seqgc_own:other", "torch.nn.modules.linear defines it"),
        ("seqgc_own:_hidden", "must be public"),
        ("seqgc_own:__dir__", "must be public"),
        ("os.abort", "must be one of"),
    ],
)
def test_a_payload_leads_into_listed_modules_only(field: str, path: str, rule: str) -> None:
    FACTORIES.list_modules(["seqgc_own"])
    settings = change(**{field: path})
    with pytest.raises(ParameterError) as caught:
        make_models_compute(settings, lambda _: np.ones(1))
    assert str(caught.value).startswith(f"`{field}` must be")
    assert rule in str(caught.value)
    assert "seqgc_unlisted" not in sys.modules


@pytest.mark.usefixtures("own")
def test_what_no_function_could_follow_is_refused_here_as_well() -> None:
    model = model_of(Spec(name="a", **LISTED))
    recipe = Recipe(module="seqgc_own:OrderedDict", data="digits", loss="mse")
    with pytest.raises(ParameterError, match="`module` must be defined in its module if"):
        workload_of([replace(model, recipe=recipe)], precision="float32")
    assert isinstance(make_module("seqgc_own:wide", seed=0), nn.Linear)


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
    how = "move the code of the script or notebook into a module.*SEQGC_FACTORIES=nets"
    with pytest.raises(ParameterError, match=f"recipe.*functions.*{how}.*registered_model"):
        workload_of([own], precision="float32")
    with pytest.raises(ParameterError, match=f"made in a module for functions.*{how}"):
        workload_of([registered], precision="float32")


def change(**changes: Any) -> dict[str, Any]:
    spec = {**Spec(name="a").__dict__, **changes}
    return {"models": [spec], "precision": "float32", "fingerprint": {}, "data": {}}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, "missing required field `models`"),
        (change() | {"path": "x"}, "unknown field `path`"),
        (change() | {"models": []}, "`$.models`"),
        (change() | {"models": {"a": 1}}, "`$.models`"),
        (change() | {"models": ["a"]}, "`$.models[0]`"),
        (change(lr=1.0), "unknown field `lr`"),
        (change(seed=-1), "`$.models[0].seed`"),
        (change(seed="0"), "`$.models[0].seed`"),
        (change(loss="hinge"), "`loss` must be one of cross-entropy, mse"),
        (change(module=["mlp"]), "`$.models[0].module`"),
        (change(module="mpl"), "did you mean 'mlp'?"),
        (change() | {"data": {"mine": 1}}, "`$.data[...]`"),
        (change() | {"precision": "float16"}, "'float16' - at `$.precision`"),
        (change() | {"precision": ["float32"]}, "`$.precision`"),
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
    with pytest.raises(ParameterError, match=f"`name` must .*; got '{name}'"):
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
        "from seqgc.models.factories import register_module\n"
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

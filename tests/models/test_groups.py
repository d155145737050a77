"""Models of one form that a worker computes together have the results of models alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import Dataset, TensorDataset

from seqgc.models.group_sizes import choose_group_sizes
from seqgc.models.model import ParameterVector
from seqgc.ports import FlawedResult, FloatArray, WeightedPoints
from seqgc.stores import MemoryStore
from seqgc.training import Dropout, Model, TorchCompute, make_module
from tests.models.exactness import CASES, Exact
from tests.training.reference import SGD, blobs, make_model

POINTS = 5
FLAT, LABELS = blobs().tensors
FLAT = FLAT.flatten(1)


class Net(nn.Module):
    """A network with parts that a form may have: frozen, unused and tied."""

    def __init__(self, *, frozen: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.unused, self.last = nn.Linear(2, 2), nn.Linear(64, 10)
        self.register_buffer("shift", torch.full((64,), 0.5))
        self.first.requires_grad_(not frozen)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))) + self.shift)


class InDictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"out": self.last(x["one"] + x["other"])}


def weighted(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    values = nn.functional.cross_entropy(output, target, reduction="none")
    weights = torch.where(target > 4, 2.0, 0.5)
    return values * weights, weights


def of_dictionary(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(output["out"], target["label"], reduction="none")


def seeded(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def module(seed: int) -> nn.Module:
        torch.manual_seed(0)  # for what is frozen
        built = make()
        generator = torch.Generator().manual_seed(seed)
        for p in built.parameters():
            if p.requires_grad:
                p.data.normal_(generator=generator).mul_(0.2)
        return built

    return module


FORMS: dict[str, tuple[Callable[[int], nn.Module], dict[str, object]]] = {
    "mlp": (lambda seed: make_module("mlp", seed=seed), {}),
    "cnn": (lambda seed: make_module("digits-cnn", seed=seed), {}),
    "frozen and unused": (seeded(lambda: Net(frozen=True)), {}),
    "tied": (seeded(lambda: Net(tied=True)), {}),
    "parametrized": (
        seeded(
            lambda: nn.Sequential(
                nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 8)), nn.Linear(8, 10)
            )
        ),
        {},
    ),
    "dropout": (
        seeded(
            lambda: nn.Sequential(
                nn.Flatten(), Dropout(0.5), nn.Linear(64, 8), Dropout(0.2), nn.Linear(8, 10)
            )
        ),
        {},
    ),
    "class weights, ignored targets": (
        lambda seed: make_module("mlp", seed=seed),
        {"loss": nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0), ignore_index=3)},
    ),
    "values and weights": (lambda seed: make_module("mlp", seed=seed), {"loss": weighted}),
    "dictionaries": (
        seeded(InDictionary),
        {
            "loss": of_dictionary,
            "dataset": [
                ({"one": x, "other": -0.5 * x}, {"label": y})
                for x, y in zip(FLAT, LABELS, strict=True)
            ],
        },
    ),
}


def models_of(form: str, count: int = 4, **others: object) -> list[Model]:
    module, options = FORMS[form]
    dataset = blobs()
    return [
        make_model(f"m{i}", **{"dataset": dataset, **options, **others}, module=module(i))
        for i in range(count)
    ]


def parts_of(
    models: Sequence[Model], store: MemoryStore, *, precision: str = "float64"
) -> tuple[WeightedPoints, ...]:
    rng, parts = np.random.default_rng(0), []
    for number, model in enumerate(models):
        vector = ParameterVector(model.module).read().astype(precision)
        parts.append(
            WeightedPoints(
                model=model.name,
                weights=store.publish(model.name, number, vector),
                points=rng.integers(len(model.dataset), size=POINTS),
                coefficients=rng.normal(size=POINTS),
            )
        )
    return tuple(parts)


def computes(
    models: Sequence[Model], store: MemoryStore, *, size: int, precision: str = "float64"
) -> tuple[TorchCompute, TorchCompute]:
    """Return the functions that compute models alone, and in groups of ``size``."""
    objectives, sizes = [m.objective for m in models], dict.fromkeys((m.name for m in models), size)
    alone = TorchCompute(objectives, store=store, precision=precision)
    return alone, TorchCompute(objectives, store=store, precision=precision, group_sizes=sizes)


def passes(module: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that has an entry for each call of a module of this class."""
    calls: list[object] = []
    forward = module.forward

    def counted(self: nn.Module, x: Tensor) -> Tensor:
        calls.append(self)
        return forward(self, x)

    monkeypatch.setattr(module, "forward", counted)
    return calls


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_group_has_the_results_of_models_alone(form: str, size: int) -> None:
    models, store = models_of(form), MemoryStore()
    assert choose_group_sizes(
        [models], points=lambda _: POINTS, precision="float64", size=size
    ) == (choose_group_sizes([models], points=lambda _: 2, precision="float64", size=size))
    alone, together = computes(models, store, size=size)
    parts = parts_of(models, store)
    expected, result = alone(parts), together(parts)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12)
    marks = expected.reshape(4, -1)[:, ParameterVector(models[0].module).layout.marks]
    found = result.reshape(4, -1)[:, ParameterVector(models[0].module).layout.marks]
    np.testing.assert_array_equal(found, marks)
    assert form != "frozen and unused" or not marks.all()


@pytest.mark.parametrize(("size", "expected"), [(2, 2), (3, 2), (4, 1), (9, 1)])
def test_a_group_takes_one_forward_pass(
    size: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, store = passes(Net, monkeypatch), MemoryStore()
    models = models_of("tied")
    _, together = computes(models, store, size=size)
    together(parts_of(models, store))
    assert len(calls) == expected


def test_parts_of_other_forms_and_lengths_are_computed_apart() -> None:
    store, mlps, cnns = MemoryStore(), models_of("mlp", 5), models_of("cnn", 2)
    models = [mlps[0], replace(cnns[0], name="c0"), *mlps[1:], replace(cnns[1], name="c1")]
    alone, together = computes(models, store, size=3)
    parts = list(parts_of(models, store))
    parts[2] = replace(parts[2], points=parts[2].points[:2], coefficients=np.ones(2))
    parts[4] = replace(parts[4], points=parts[4].points[:0], coefficients=np.ones(0))
    expected = alone(tuple(parts))
    np.testing.assert_allclose(together(tuple(parts)), expected, rtol=0, atol=1e-12)


def test_models_of_a_form_may_have_data_sets_of_their_own() -> None:
    store = MemoryStore()
    models = [replace(m, dataset=blobs(seed=i)) for i, m in enumerate(models_of("mlp"))]
    alone, together = computes(models, store, size=4)
    parts = parts_of(models, store)
    np.testing.assert_allclose(together(parts), alone(parts), rtol=0, atol=1e-12)


class Pixels(nn.Linear):
    """A layer that scales its input if it is an image of bytes."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.to(self.weight.dtype) / 255 if x.dtype == torch.uint8 else x
        return super().forward(scaled.flatten(1))


def test_data_sets_of_different_dtypes_are_not_stacked() -> None:
    store, pixels = MemoryStore(), (FLAT.abs() * 50).to(torch.uint8)
    data = [TensorDataset(x, LABELS) for x in (pixels / 255, pixels / 255, pixels, pixels)]
    models = [
        make_model(f"m{i}", module=seeded(lambda: Pixels(64, 10))(i), dataset=each)
        for i, each in enumerate(data)
    ]
    alone, together = computes(models, store, size=4)
    parts = parts_of(models, store)
    np.testing.assert_allclose(together(parts), alone(parts), rtol=0, atol=1e-12)


class Distance:
    """A loss with a teacher, whose weights are not frozen."""

    def __init__(self, seed: int) -> None:
        self.teacher = make_module("mlp", seed=seed).double()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - self.teacher(target).detach()).square().mean(1)


def test_losses_with_different_teachers_are_different_forms() -> None:
    store, (x, _) = MemoryStore(), blobs().tensors
    models = [
        make_model(f"m{i}", seed=i, loss=Distance(seed=i // 2), dataset=TensorDataset(x, x))
        for i in range(4)
    ]
    alone, together = computes(models, store, size=4)
    parts = parts_of(models, store)
    np.testing.assert_allclose(together(parts), alone(parts), rtol=0, atol=1e-12)


def test_the_same_parts_have_the_same_bits_on_every_worker() -> None:
    store, models = MemoryStore(), models_of("cnn")
    parts = parts_of(models, store, precision="float32")
    first, second = (computes(models, store, size=3, precision="float32")[1] for _ in range(2))
    other = parts_of(models_of("cnn"), store, precision="float32")
    second(tuple(reversed(other)))  # the worker has computed other parts before
    assert first(parts).tobytes() == second(parts).tobytes()


@pytest.mark.parametrize("form", ["mlp", "cnn"])
def test_the_bits_of_a_model_do_not_depend_on_the_others_of_its_group(form: str) -> None:
    """So a run without a parked model ends in the same bits."""
    store, models = MemoryStore(), models_of(form)
    _, together = computes(models, store, size=3, precision="float32")
    parts = parts_of(models, store, precision="float32")
    expected = together(parts).reshape(4, -1)
    for some in ([0], [3], [1, 2], [3, 0, 2]):
        result = together(tuple(parts[i] for i in some)).reshape(len(some), -1)
        np.testing.assert_array_equal(result, expected[some])


def test_a_model_that_diverges_leaves_the_others_as_they_are() -> None:
    store, models = MemoryStore(), models_of("frozen and unused")
    _, together = computes(models, store, size=4)
    expected = together(parts_of(models, store)).reshape(4, -1)
    nn.init.constant_(models[1].module.last.weight, torch.nan)
    models = [replace(m, name=f"n{i}") for i, m in enumerate(models)]
    _, together = computes(models, store, size=4)
    result = together(parts_of(models, store)).reshape(4, -1)
    assert np.isnan(result[1]).any()
    np.testing.assert_array_equal(np.delete(result, 1, axis=0), np.delete(expected, 1, axis=0))


class Sensitive(nn.Linear):
    """A layer that raises at some weights, which `torch.vmap` cannot know."""

    def forward(self, x: Tensor) -> Tensor:
        if self.bias[0] > 1e3:
            raise ArithmeticError("too large")
        return super().forward(x.flatten(1))


def sensitive(dataset: TensorDataset) -> list[Model]:
    return [
        make_model(f"m{i}", module=seeded(lambda: Sensitive(64, 10))(i), dataset=dataset)
        for i in range(3)
    ]


def test_a_model_that_raises_in_a_group_is_the_only_one_with_a_flaw() -> None:
    store, models = MemoryStore(), sensitive(blobs())
    nn.init.constant_(models[1].module.bias, 1e4)
    alone, together = computes(models, store, size=3)
    parts, results = parts_of(models, store), list[FloatArray]()
    for compute in (alone, together):
        with pytest.raises(FlawedResult) as caught:
            compute(parts)
        assert list(caught.value.flaws) == ["m1"]
        assert "ArithmeticError" in caught.value.flaws["m1"].why
        results.append(caught.value.result)
    np.testing.assert_array_equal(*results)


# ---- the choice ----------------------------------------------------------------------------------


def test_a_network_that_vmap_cannot_map_is_named_with_the_reason() -> None:
    choice = choose_group_sizes(
        [sensitive(blobs())], points=lambda _: 4, precision="float32", size=3
    )
    assert not choice.sizes
    (note,) = choice.notes
    assert "Sensitive" in note
    assert "test_groups.py" in note
    assert "\n" not in note


class Mixed(nn.Linear):
    """A layer that computes something else in a group."""

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x.flatten(1))
        return output if torch._C._functorch.maybe_current_level() is None else 1.1 * output


def test_a_network_with_other_results_in_a_group_is_computed_alone() -> None:
    models = [make_model(f"m{i}", module=seeded(lambda: Mixed(64, 10))(i)) for i in range(2)]
    choice = choose_group_sizes([models], points=lambda _: 4, precision="float32", size=2)
    assert not choice.sizes
    assert "differ" in choice.notes[0]


class Words(nn.Module):
    def __init__(self, padding_idx: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 3, padding_idx=padding_idx)
        self.last = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x).mean(1))


@pytest.mark.parametrize(("padding_idx", "size"), [(None, 2), (0, 0), (19, 0), (-1, 0)])
def test_an_embedding_with_padding_is_computed_alone(padding_idx: int | None, size: int) -> None:
    """The data have no padding: the padding's gradient would be wrong only where it occurs."""
    data = TensorDataset(torch.arange(80).view(40, 2) % 18 + 1, LABELS)
    models = [
        make_model(f"m{i}", module=seeded(lambda: Words(padding_idx))(i), dataset=data)
        for i in range(2)
    ]
    choice = choose_group_sizes([models], points=lambda _: 4, precision="float64", size=2)
    assert choice.sizes == (dict.fromkeys(["m0", "m1"], size) if size else {})
    assert ["padding_idx" in note for note in choice.notes] == ([] if size else [True])


def test_a_group_is_never_larger_than_a_bundle() -> None:
    models = models_of("mlp", 4)
    bundles = [models[:2], models[2:]]
    choice = choose_group_sizes(bundles, points=lambda _: 4, precision="float32", size=9)
    assert choice.sizes == {"m0": 2, "m1": 2, "m2": 2, "m3": 2}


@pytest.mark.parametrize("size", [None, 1, 4])
def test_nothing_is_tried_without_two_models_of_a_form(
    size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, models = passes(Net, monkeypatch), models_of("tied", 2)
    bundles = [models] if size == 1 else [[model] for model in models]
    other = replace(models[1], name="other", module=make_module("mlp", seed=0))
    mixed = [[models[0], other]]
    for each in (bundles, mixed):
        choice = choose_group_sizes(each, points=lambda _: 4, precision="float32", size=size)
        assert not choice.sizes
        assert not choice.notes
    assert not calls


def test_the_choice_reads_few_items_of_a_shared_data_set() -> None:
    reads: list[int] = []

    class Slow(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(FLAT)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            reads.append(index)
            return FLAT[index], LABELS[index]

    models = models_of("tied", 8, dataset=Slow())
    choice = choose_group_sizes([models], points=lambda _: 30, precision="float32", size=8)
    assert choice.sizes
    assert len(reads) < 10


@pytest.mark.parametrize(
    ("pass_s", "group_s", "expected"),
    [(1e-3, 1e-3, 16), (1e-3, 0.1, 1), (0.1, 0.1, 1)],
    ids=["a group pays", "a group costs more", "a pass of one model takes long"],
)
def test_the_number_is_the_fastest_one(
    pass_s: float, group_s: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, forward, spent, groups = models_of("tied", 16), Net.forward, [0.0], [0]

    def timed(self: Net, x: Tensor) -> Tensor:
        in_group = torch._C._functorch.maybe_current_level() is not None
        groups[0] += in_group
        spent[0] += group_s if in_group else pass_s
        return forward(self, x)

    monkeypatch.setattr(Net, "forward", timed)
    monkeypatch.setattr(time, "thread_time", lambda: spent[0])
    choice = choose_group_sizes([models], points=lambda _: 4, precision="float32")
    assert choice.sizes.get("m0", 1) == expected
    assert not choice.notes
    assert bool(groups[0]) == (pass_s < 0.1)


ALONE = {
    "recurrent networks and attention, batch first",
    "`Embedding`, dense or sparse",
    "hooks of modules",
    "a network that takes gradients in forward (forces, physics-informed)",
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("case", [name for name, case in CASES.items() if isinstance(case, Exact)])
def test_every_network_that_is_exact_alone_is_exact_in_a_group_or_computed_alone(case: str) -> None:
    one = CASES[case].model()
    models = [replace(one, name=name, optimizer=SGD) for name in "ab"]
    precision = CASES[case].precisions[-1]
    choice = choose_group_sizes([models], points=lambda _: POINTS, precision=precision, size=2)
    assert bool(choice.sizes) != bool(choice.notes)
    assert bool(choice.notes) == (case in ALONE)
